//! What madvise(2) does here. QEMU's emulation of Linux for programs of other processors takes MADV_REMOVE and does nothing.

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::io::pwrite;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Whether MADV_REMOVE gives the memory of a file back.
pub(crate) fn removes() -> bool {
    const LEN: usize = 1 << 16;
    let file = memfd_create("asked", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, LEN as u64).unwrap();
    assert_eq!(pwrite(&file, &[1; LEN], 0), Ok(LEN));
    let before = fstat(&file).unwrap().st_blocks;
    // SAFETY: a mapping of its own, anywhere, which nobody else knows of.
    unsafe {
        let at =
            mmap(std::ptr::null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0).unwrap();
        madvise(at, LEN, Advice::LinuxRemove).unwrap();
        munmap(at, LEN).unwrap();
    }
    fstat(&file).unwrap().st_blocks < before
}
