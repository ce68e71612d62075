//! The TUN device: raw IP packets with a virtio header, so that large segments arrive unsplit.

use super::check::check;
use fs_core::internals::Sum;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime};

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

/// Makes the device in the calling thread's namespace. It is removed with the descriptor.
pub(crate) fn open_tun(name: &str) -> io::Result<OwnedFd> {
    // SAFETY: a constant path.
    let fd = check(unsafe { libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }.into())?;
    // SAFETY: just opened, and not owned elsewhere.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    // struct ifreq: a name of 16 bytes and a union of 24.
    let mut request = [0u8; 40];
    request[..name.len().min(15)].copy_from_slice(&name.as_bytes()[..name.len().min(15)]);
    request[16..18].copy_from_slice(&(IFF_TUN | IFF_NO_PI | IFF_VNET_HDR).to_ne_bytes());
    // SAFETY: the request is as large as the kernel reads, and outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) }.into())?;
    // SAFETY: the argument is a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD, OFFLOADS) }.into())?;
    Ok(fd)
}

/// Opens a socket that receives packets sent by the device, before they are split into segments.
/// The device itself is never read: in packetdrill's runs, too, its queue keeps the packets, and
/// the kernel's decisions about retransmissions depend on that.
pub(crate) fn open_sniffer(device: &str) -> io::Result<OwnedFd> {
    let all = libc::ETH_P_ALL as u16;
    // SAFETY: no memory.
    let fd = check(
        unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(all.to_be())) }.into(),
    )?;
    // SAFETY: just opened, and not owned elsewhere.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let name = std::ffi::CString::new(device)?;
    // SAFETY: the name is zero-terminated and outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let at = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: all.to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    let on = |level: i32, name: i32, value: i32| {
        let len = size_of::<i32>() as libc::socklen_t;
        // SAFETY: an int, which outlives the call.
        check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) }.into())
    };
    on(libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
    on(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    on(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 8 << 20)?;
    // SAFETY: the address outlives the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const at).cast(), len) }.into())?;
    Ok(fd)
}

const PACKET_VNET_HDR: i32 = 15;

/// Returns the next packet that the host has sent, with complete checksums, and its time; `None`
/// after a tenth of a second without one.
pub(crate) fn read_packet(sniffer: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<(Instant, Vec<u8>)>> {
    let mut poll = libc::pollfd { fd: sniffer.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, which outlives the call.
    if check(unsafe { libc::poll(&mut poll, 1, 100) }.into())? == 0 {
        return Ok(None);
    }
    // SAFETY: all zeros is a valid address and a valid msghdr.
    let (mut from, mut header): (libc::sockaddr_ll, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = [0u64; 16];
    header.msg_name = (&raw mut from).cast();
    header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: everything that the header points to outlives the call and has the given length.
    let n = check(unsafe { libc::recvmsg(sniffer.as_raw_fd(), &mut header, 0) } as i64)? as usize;
    let at = stamp(&header).unwrap_or_else(Instant::now);
    const PACKET_OUTGOING: u8 = 4;
    let Some((header, packet)) = buffer[..n].split_at_checked(VNET).filter(|_| from.sll_pkttype == PACKET_OUTGOING)
    else {
        return Ok(None);
    };
    let mut packet = packet.to_vec();
    let word = |i: usize| usize::from(u16::from_ne_bytes([header[i], header[i + 1]]));
    let (start, offset) = (word(6), word(8));
    if header[0] & NEEDS_CSUM != 0 && start + offset + 2 <= packet.len() {
        // The field already contains the pseudo-header's sum.
        let sum = Sum::of(&packet[start..]).finish();
        packet[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(Some((at, packet)))
}

/// Returns the kernel's time of a packet, on the monotonic clock.
fn stamp(header: &libc::msghdr) -> Option<Instant> {
    // SAFETY: the macros walk the control buffer within the length that the kernel set.
    let time = unsafe {
        let first = libc::CMSG_FIRSTHDR(header);
        if first.is_null() || (*first).cmsg_type != libc::SO_TIMESTAMPNS {
            return None;
        }
        libc::CMSG_DATA(first).cast::<libc::timespec>().read_unaligned()
    };
    let sent = Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Instant::now().checked_sub(now.saturating_sub(sent))
}

/// Sends a packet to the host.
pub(crate) fn write_packet(tun: BorrowedFd<'_>, packet: &[u8]) -> io::Result<()> {
    let bytes = [&[0; VNET][..], packet].concat();
    // SAFETY: the bytes outlive the call.
    check(unsafe { libc::write(tun.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) } as i64).map(|_| ())
}
