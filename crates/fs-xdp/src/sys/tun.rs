//! `/dev/net/tun`: `linux/if_tun.h`.

use crate::sys::ioctl::set_name;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Opens a queue of the device called `name` and returns its name. Creates the device if it does
/// not exist; the kernel replaces `%d` by a number.
pub(crate) fn open(name: &str, flags: i32) -> io::Result<(OwnedFd, String)> {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    // SAFETY: an `ifreq` is integers and a pointer that null suits.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    set_name(&mut request, name)?;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: a live `ifreq`, as this request wants it.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let name = request.ifr_name.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8 as char).collect();
    Ok((file.into(), name))
}

/// Tells the kernel which features it may use in packets to us (`TUN_F_*`).
pub(crate) fn set_offload(fd: BorrowedFd<'_>, offload: u32) -> io::Result<()> {
    // SAFETY: this request takes its argument by value.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offload)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets the length of the header in front of each packet (`IFF_VNET_HDR`).
pub(crate) fn set_header_len(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    let len = len as libc::c_int;
    // SAFETY: a live integer, as this request wants it.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
