//! Operations on kernel sockets for which neither tokio nor rustix has a safe function.
#![allow(unsafe_code)]

use socket2::{MaybeUninitSlice, MsgHdrMut, SockAddr, SockRef};
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::from_mut;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers `fd` with the calling thread's tokio runtime for EPOLLPRI.
pub(super) fn watch_urgent(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: `fd` is an open descriptor that the AsyncFd owns until it is dropped, and OwnedFd
    // always returns the same number.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::PRIORITY) }?)
}

/// Calls ioctl(2) with a request that fills a C `int`.
pub(super) fn int(fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<i32> {
    let mut value: c_int = 0;
    // SAFETY: the requests of this module's callers (SIOCATMARK, FIONREAD, TIOCOUTQ) write one int,
    // which lives during the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) })?;
    Ok(value)
}

/// The most bytes that Linux moves in one call (`MAX_RW_COUNT`).
const TRANSFER_MAX: usize = 0x7fff_f000;

/// Calls send(2) of the C library, which a preloaded library may replace.
pub(super) fn send(fd: RawFd, buf: &[u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: the buffer is readable for its length.
    check_len(unsafe { libc::send(fd, buf.as_ptr().cast(), buf.len().min(TRANSFER_MAX), flags) })
}

/// Calls recv(2) of the C library, which a preloaded library may replace.
pub(super) fn recv(fd: RawFd, buf: &mut [u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: the buffer is writable for its length.
    check_len(unsafe { libc::recv(fd, buf.as_mut_ptr().cast(), buf.len().min(TRANSFER_MAX), flags) })
}

/// Receives a datagram by recvmsg(2). Returns the number of bytes, the sender, and IP_TOS or
/// IPV6_TCLASS if the socket asks the kernel for it.
pub(super) fn recv_datagram(
    socket: &impl AsFd,
    buf: &mut [u8],
    flags: c_int,
) -> io::Result<(usize, SocketAddr, Option<u8>)> {
    // SAFETY: MaybeUninit<u8> has the layout of u8. recvmsg(2) only writes bytes, so the buffer stays initialised.
    let buf = unsafe { &mut *(from_mut(buf) as *mut [MaybeUninit<u8>]) };
    // The longest address. The kernel writes its own family into it.
    let mut from = SockAddr::from(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)));
    let mut control = [MaybeUninit::new(0); 64];
    let mut bufs = [MaybeUninitSlice::new(buf)];
    let mut message = MsgHdrMut::new().with_addr(&mut from).with_buffers(&mut bufs).with_control(&mut control);
    let len = SockRef::from(socket).recvmsg(&mut message, flags)?;
    let written = message.control_len();
    // SAFETY: every byte was initialised above, and the kernel only writes bytes.
    let control = control.map(|byte| unsafe { byte.assume_init() });
    let from = from.as_socket().ok_or(io::ErrorKind::InvalidData)?;
    Ok((len, from, class(control.get(..written).unwrap_or(&[]))))
}

/// Returns IP_TOS or IPV6_TCLASS of control messages (cmsg(3)): length of header and data, level,
/// type, data; the next one begins at a multiple of a word.
fn class(mut messages: &[u8]) -> Option<u8> {
    const WORD: usize = size_of::<usize>();
    while let Some((len, rest)) = messages.split_first_chunk::<WORD>() {
        let (level, rest) = rest.split_first_chunk()?;
        let (kind, data) = rest.split_first_chunk()?;
        match (i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind)) {
            (libc::IPPROTO_IP, libc::IP_TOS) => return data.first().copied(),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                return data.first_chunk().and_then(|value| u8::try_from(i32::from_ne_bytes(*value)).ok());
            }
            _ => messages = messages.get(usize::from_ne_bytes(*len).max(WORD + 8).checked_next_multiple_of(WORD)?..)?,
        }
    }
    None
}

/// Reads an option and returns how many bytes the kernel wrote.
pub(super) fn option(fd: RawFd, level: c_int, name: c_int, value: &mut [u8]) -> io::Result<usize> {
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: the value is writable for `len` bytes.
    check(unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut len) })?;
    Ok(len as usize)
}

/// Sets an option to `value`.
pub(super) fn set_option(fd: RawFd, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: the value is readable for `len` bytes.
    check(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) }).map(drop)
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    /// IPv4, IPv6, and IPv4 at a socket of both families.
    #[test]
    fn datagrams_come_with_their_class() {
        for (own, to) in [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")] {
            let Ok(receiver) = UdpSocket::bind((own, 0)) else {
                println!("skipped: {own} is no address here");
                continue;
            };
            let options = SockRef::from(&receiver);
            options.set_recv_tos_v4(true).unwrap();
            if own.contains(':') {
                options.set_recv_tclass_v6(true).unwrap();
            }
            let sender = UdpSocket::bind((to, 0)).unwrap();
            match to.contains(':') {
                true => SockRef::from(&sender).set_tclass_v6(0xba).unwrap(),
                false => SockRef::from(&sender).set_tos_v4(0xba).unwrap(),
            }
            sender.send_to(b"hello", (to, receiver.local_addr().unwrap().port())).unwrap();
            for flags in [libc::MSG_PEEK, 0] {
                let mut buf = [0; 8];
                let (len, from, class) = recv_datagram(&receiver, &mut buf, flags).unwrap();
                assert_eq!((&buf[..len], class), (&b"hello"[..], Some(0xba)), "{own}");
                assert_eq!(from.ip().to_canonical(), sender.local_addr().unwrap().ip());
                assert_eq!(from.port(), sender.local_addr().unwrap().port());
            }
        }
    }

    #[test]
    fn malformed_control_messages_have_no_class() {
        for len in 0..64 {
            for byte in [0, 1, 16, 255] {
                assert_eq!(class(&vec![byte; len]), None, "{len} times {byte}");
            }
        }
    }
}
