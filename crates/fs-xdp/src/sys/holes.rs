//! Keeps the kernel from filling the holes of a mapped file (userfaultfd(2), `linux/userfaultfd.h`).

use crate::umem_unsafe::Area;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `UFFD_USER_MODE_ONLY` (Linux 5.11): needs no right, and a system call that finds a hole fails with
/// EFAULT (`handle_userfault`).
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

/// While it lives, system calls that would fill a hole of the area's file fail. A thread that touches a
/// hole blocks.
pub(crate) struct KeptHoles(#[expect(dead_code, reason = "its drop ends this")] OwnedFd);

impl KeptHoles {
    /// # Errors
    /// The kernel has no userfaultfd(2), or a filter forbids it.
    pub(crate) fn of(area: &Area) -> io::Result<Self> {
        // SAFETY: a plain system call without pointers.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | UFFD_USER_MODE_ONLY) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        // `struct uffdio_api` and `struct uffdio_register`. The kernel maps whole pages.
        let mut api = [UFFD_API, 0, 0];
        let length = area.len().next_multiple_of(rustix::param::page_size()) as u64;
        let mut range = [area.start().as_ptr() as u64, length, UFFDIO_REGISTER_MODE_MISSING, 0];
        // SAFETY: the kernel reads and writes a live structure of the size that the number names.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) })?;
        // SAFETY: as above. The area stays mapped, and a thread that touches a hole of it blocks.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, range.as_mut_ptr()) })?;
        Ok(Self(fd))
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::config::UmemConfig;
    use crate::umem::Umem;
    use rustix::fs::{FallocateFlags, fallocate, fstat};
    use std::os::fd::AsFd;

    /// The kernel frees pages of a memory file that were only read.
    #[test]
    fn reclaim_makes_no_hole() {
        let config = UmemConfig { chunks: 16, chunk_size: 4096 };
        let (umem, file) = Umem::in_file(config).unwrap();
        // The advice concerns pages that are mapped once.
        drop(umem);
        let area = Area::of_file(file.as_fd(), config.bytes(), true).unwrap();
        // SAFETY: the range is mapped, and the advice does not change its contents.
        let done = unsafe { libc::madvise(area.start().as_ptr().cast(), area.len(), libc::MADV_PAGEOUT) };
        check(done).unwrap();
        assert!(fstat(&file).unwrap().st_blocks * 512 >= config.bytes() as i64);
    }

    #[test]
    fn system_call_does_not_fill_a_hole() {
        let config = UmemConfig { chunks: 16, chunk_size: 4096 };
        let (_umem, file) = Umem::in_file(config).unwrap();
        let area = Area::of_file(file.as_fd(), config.bytes(), false).unwrap();
        let zero = std::fs::File::open("/dev/zero").unwrap();
        // SAFETY: the kernel writes to the area, to which nobody refers.
        let fill = || unsafe { libc::read(zero.as_raw_fd(), area.start().as_ptr().cast(), area.len()) };
        let blocks = || fstat(&file).unwrap().st_blocks;
        let whole = blocks();
        let kept = match KeptHoles::of(&area) {
            Ok(kept) => kept,
            Err(error) => return println!("skipped: no userfaultfd(2) here: {error}"),
        };
        assert_eq!(fill(), config.bytes() as isize);
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 8192, 4096).unwrap();
        assert_eq!((fill(), blocks()), (8192, whole - 8));
        drop(kept);
        assert_eq!((fill(), blocks()), (config.bytes() as isize, whole));
    }
}
