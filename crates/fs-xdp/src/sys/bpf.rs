//! bpf_links of XDP programs: `bpf(2)`, `linux/bpf.h`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `BPF_LINK_CREATE` and `BPF_LINK_DETACH` of `enum bpf_cmd`.
const LINK_CREATE: libc::c_int = 28;
const LINK_DETACH: libc::c_int = 34;
/// `BPF_XDP` of `enum bpf_attach_type`.
const ATTACH_XDP: u32 = 37;

/// The start of `union bpf_attr` for `BPF_LINK_CREATE`.
#[repr(C)]
struct Create {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// The start of `union bpf_attr` for `BPF_LINK_DETACH`.
#[repr(C)]
struct Detach {
    link_fd: u32,
}

/// Attaches `program` to the device with this index; `flags` are `XDP_FLAGS_*`. Returns the link's
/// descriptor, close-on-exec.
pub(crate) fn link_xdp(program: BorrowedFd<'_>, index: u32, flags: u32) -> io::Result<OwnedFd> {
    let attributes =
        Create { prog_fd: program.as_raw_fd() as u32, target_ifindex: index, attach_type: ATTACH_XDP, flags };
    let fd = bpf(LINK_CREATE, &attributes)?;
    // SAFETY: the descriptor is new and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Detaches the link's program now, even if other descriptors of the link are open.
pub(crate) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(LINK_DETACH, &Detach { link_fd: link.as_raw_fd() as u32 }).map(|_| ())
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    // SAFETY: a live structure of integers of that size, which the kernel reads.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}
