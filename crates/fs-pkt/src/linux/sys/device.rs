//! The TUN device: raw IP packets with a virtio header, so that large segments come as they were sent.

use super::check;
use fs_core::wire::checksum::Sum;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `struct virtio_net_hdr`: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
const VNET: usize = 10;
const NEEDS_CSUM: u8 = 1;

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const IFF_TUN: i16 = 0x0001;
const IFF_NO_PI: i16 = 0x1000;
const IFF_VNET_HDR: i16 = 0x4000;
/// Checksums, TSO for both IP versions, and with ECN.
const OFFLOADS: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x08;

/// Makes the device in the calling thread's namespace; it goes with the descriptor.
pub(crate) fn open_tun(name: &str) -> io::Result<OwnedFd> {
    // SAFETY: a constant path.
    let fd = check(unsafe { libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }.into())?;
    // SAFETY: just opened, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    // struct ifreq: a name of 16 bytes and a union of 24.
    let mut request = [0u8; 40];
    request[..name.len().min(15)].copy_from_slice(&name.as_bytes()[..name.len().min(15)]);
    request[16..18].copy_from_slice(&(IFF_TUN | IFF_NO_PI | IFF_VNET_HDR).to_ne_bytes());
    // SAFETY: the request is as large as the kernel reads, and lives over the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) }.into())?;
    // SAFETY: the argument is a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD, OFFLOADS) }.into())?;
    Ok(fd)
}

/// The next packet, checksums complete; `None` after a tenth of a second without one.
pub(crate) fn read_packet(tun: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Vec<u8>>> {
    let mut poll = libc::pollfd { fd: tun.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, which lives over the call.
    if check(unsafe { libc::poll(&mut poll, 1, 100) }.into())? == 0 {
        return Ok(None);
    }
    // SAFETY: the buffer lives over the call and is as long as said.
    let n = check(unsafe { libc::read(tun.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) } as i64)? as usize;
    let Some((header, packet)) = buffer[..n].split_at_checked(VNET) else { return Ok(None) };
    let mut packet = packet.to_vec();
    let at = |i: usize| usize::from(u16::from_ne_bytes([header[i], header[i + 1]]));
    let (start, offset) = (at(6), at(8));
    if header[0] & NEEDS_CSUM != 0 && start + offset + 2 <= packet.len() {
        // The field holds the pseudo-header's sum already.
        let sum = Sum::of(&packet[start..]).finish();
        packet[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(Some(packet))
}

/// A packet arrives at the host.
pub(crate) fn write_packet(tun: BorrowedFd<'_>, packet: &[u8]) -> io::Result<()> {
    let bytes = [&[0; VNET][..], packet].concat();
    // SAFETY: the bytes live over the call.
    check(unsafe { libc::write(tun.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) } as i64).map(|_| ())
}
