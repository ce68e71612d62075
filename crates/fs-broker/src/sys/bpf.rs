//! Links and pins of BPF programs: `bpf(2)`, `linux/bpf.h`.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Commands of `enum bpf_cmd`.
const OBJ_PIN: libc::c_int = 6;
const OBJ_GET: libc::c_int = 7;
const PROG_ATTACH: libc::c_int = 8;
const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;
/// `BPF_TCX_INGRESS` of `enum bpf_attach_type`, Linux 6.6.
const TCX_INGRESS: u32 = 46;

/// Attaches `program` to what the device with this index receives, until the link has neither a
/// descriptor nor a pin.
pub(crate) fn link_ingress(program: BorrowedFd<'_>, index: u32) -> io::Result<OwnedFd> {
    let fd = bpf(LINK_CREATE, &[program.as_raw_fd() as u32, index, TCX_INGRESS, 0])?;
    // SAFETY: the descriptor is new and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Replaces a link's program. ENOLINK: its device is gone.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    bpf(LINK_UPDATE, &[link.as_raw_fd() as u32, program.as_raw_fd() as u32, 0, 0]).map(drop)
}

/// Attaches `program` to what the device with this index receives, for as long as the device lives.
pub(crate) fn attach_ingress(program: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    bpf(PROG_ATTACH, &[index, program.as_raw_fd() as u32, TCX_INGRESS, 0]).map(drop)
}

/// The start of `union bpf_attr` for `BPF_OBJ_PIN` and `BPF_OBJ_GET`.
#[repr(C)]
struct Object {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Pins a link to a file of a BPF file system.
pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    bpf(OBJ_PIN, &Object { path: path.as_ptr() as u64, fd: fd.as_raw_fd() as u32, flags: 0 }).map(drop)
}

/// Opens what is pinned there.
pub(crate) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let fd = bpf(OBJ_GET, &Object { path: path.as_ptr() as u64, fd: 0, flags: 0 })?;
    // SAFETY: the descriptor is new and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    // SAFETY: a live structure of integers of that size, which the kernel reads. A path in it is a
    // string that lives as long.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}
