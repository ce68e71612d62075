//! fcntl(2), ioctl(2), setsockopt(2), getsockopt(2), shutdown(2).

use core::ffi::c_void;

use libc::{
    F_DUPFD, F_DUPFD_CLOEXEC, F_SETFL, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, O_APPEND, O_ASYNC, O_NONBLOCK, SHUT_WR,
    SOL_SOCKET, c_int, socklen_t,
};

use crate::descriptor;
use crate::socket::Socket;
use crate::sys::errno::{keeping_errno, set_errno};
use crate::sys::kernel::SIOCATMARK;
use crate::sys::{memory, real};

const FIONREAD: usize = libc::FIONREAD as usize;
const FIONBIO: usize = libc::FIONBIO as usize;
const FIOASYNC: usize = libc::FIOASYNC as usize;

/// include/uapi/linux/tcp.h
const TCP_ZEROCOPY_RECEIVE: c_int = 35;

/// Options that affect neither the bytes nor when they arrive. Any other option makes the kernel
/// the only carrier for good.
const HARMLESS: &[(c_int, c_int)] = &[
    (SOL_SOCKET, libc::SO_KEEPALIVE),
    (SOL_SOCKET, libc::SO_LINGER),
    (SOL_SOCKET, libc::SO_RCVBUF),
    (SOL_SOCKET, libc::SO_SNDBUF),
    (SOL_SOCKET, libc::SO_RCVTIMEO),
    (SOL_SOCKET, libc::SO_SNDTIMEO),
    (SOL_SOCKET, libc::SO_REUSEADDR),
    (SOL_SOCKET, libc::SO_REUSEPORT),
    (SOL_SOCKET, libc::SO_PRIORITY),
    (SOL_SOCKET, libc::SO_OOBINLINE),
    (SOL_SOCKET, libc::SO_BUSY_POLL),
    (IPPROTO_TCP, libc::TCP_NODELAY),
    (IPPROTO_TCP, libc::TCP_CORK),
    (IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (IPPROTO_TCP, libc::TCP_KEEPCNT),
    (IPPROTO_TCP, libc::TCP_SYNCNT),
    (IPPROTO_TCP, libc::TCP_LINGER2),
    (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
    (IPPROTO_TCP, libc::TCP_QUICKACK),
    (IPPROTO_TCP, libc::TCP_CONGESTION),
    (IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (IPPROTO_TCP, libc::TCP_FASTOPEN),
    (IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (IPPROTO_TCP, libc::TCP_MAXSEG),
    (IPPROTO_IP, libc::IP_TOS),
    (IPPROTO_IP, libc::IP_TTL),
    (IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (IPPROTO_IPV6, libc::IPV6_TCLASS),
    (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (IPPROTO_IPV6, libc::IPV6_V6ONLY),
];

define! {
    /// fcntl(2).
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int =
        controlled(fd, command, argument, || real::fcntl(fd, command, argument));
    /// fcntl of programs with 64-bit file offsets.
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int =
        controlled(fd, command, argument, || real::fcntl64(fd, command, argument));
    /// ioctl(2).
    fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int = match request {
        FIONREAD | SIOCATMARK => {
            let result = real::ioctl(fd, request, argument);
            if result == 0 {
                // The kernel has written it.
                let n = &mut *core::ptr::with_exposed_provenance_mut::<c_int>(argument);
                descriptor::with_socket(fd, |socket| {
                    let pair = socket.pair();
                    let by_ring = c_int::try_from(pair.unread_in_ring()).unwrap_or(c_int::MAX);
                    if request == SIOCATMARK {
                        // The kernel carries urgent data, after the ring's bytes.
                        *n &= c_int::from(by_ring == 0);
                        return;
                    }
                    if *n > 0 {
                        pair.report_readable();
                    }
                    *n = n.saturating_add(by_ring);
                });
            }
            result
        }
        FIONBIO => {
            let result = real::ioctl(fd, request, argument);
            if result == 0 {
                // The kernel has read it.
                let nonblocking = *core::ptr::with_exposed_provenance::<c_int>(argument) != 0;
                descriptor::with_socket(fd, |socket| socket.set_nonblocking(nonblocking));
            }
            result
        }
        FIOASYNC => {
            // The kernel sends SIGIO, so it has to carry the bytes.
            descriptor::leave_to_kernel(fd);
            real::ioctl(fd, request, argument)
        }
        _ => real::ioctl(fd, request, argument),
    };
    /// sockatmark(3).
    fn sockatmark(fd: c_int) -> c_int = {
        let mut mark: c_int = 0;
        if ioctl(fd, SIOCATMARK, (&raw mut mark).expose_provenance()) < 0 { -1 } else { mark }
    };
    /// setsockopt(2).
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int = {
        if (level, name) == (IPPROTO_TCP, libc::TCP_CORK) && is_cork_deferred(fd, value, length) {
            return 0;
        }
        if !is_harmless(level, name, value, length) {
            descriptor::leave_to_kernel(fd);
        }
        if (level, name) == (IPPROTO_TCP, libc::TCP_ULP) && has_rest(fd) {
            // The kernel's TLS would decrypt only what follows these bytes. The error is that of a host without the
            // protocol's module, with which programs use TLS of their own.
            set_errno(libc::ENOENT);
            return -1;
        }
        let no_time = is_no_time(level, name, value, length);
        if no_time {
            // Also before a promotion, because getsockopt(2) returns 0, as if calls waited forever.
            descriptor::leave_to_kernel(fd);
        }
        let result = real::setsockopt(fd, level, name, value, length);
        if result == 0 && (level, name) == (IPPROTO_TCP, libc::TCP_NODELAY) {
            // The kernel has read it.
            let nodelay = value.cast::<c_int>().read_unaligned() != 0;
            descriptor::with_socket(fd, |socket| socket.set_nodelay(nodelay));
        }
        if result == 0 && (level, name) == (SOL_SOCKET, libc::SO_RCVTIMEO) {
            // The ring still has unread bytes.
            descriptor::with_socket(fd, |socket| socket.set_no_time(no_time));
        }
        result
    };
    /// getsockopt(2).
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int = {
        if (level, name) == (IPPROTO_TCP, libc::TCP_CORK) {
            keeping_errno(|| descriptor::with_socket(fd, |socket| socket.pair().kernel().tell_cork()));
        }
        if (level, name) == (IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) {
            // Such a receive takes bytes from the kernel only, which the library would not count.
            descriptor::leave_to_kernel(fd);
            if has_rest(fd) && map_nothing(fd, value.cast(), length) {
                return 0;
            }
        }
        let result = real::getsockopt(fd, level, name, value, length);
        if result == 0 && (level, name) == (IPPROTO_TCP, libc::TCP_NODELAY) {
            descriptor::with_socket(fd, |socket| {
                if !socket.nodelay() {
                    // The kernel has written this many bytes.
                    value.write_bytes(0, *length as usize);
                }
            });
        }
        if result == 0 && (level, name) == (SOL_SOCKET, libc::SO_ERROR) && *length == 4 && value.cast::<c_int>().read_unaligned() == 0 {
            descriptor::with_socket(fd, |socket| {
                if let Some(error) = socket.pair().kept_error() {
                    value.cast::<c_int>().write_unaligned(error.raw_os_error());
                }
            });
        }
        result
    };
    /// shutdown(2).
    fn shutdown(fd: c_int, how: c_int) -> c_int = {
        if how == SHUT_WR {
            descriptor::with_socket(fd, |socket| socket.pair().before_shutdown_send());
        } else {
            // Also a socket that may be promoted later, because a ring does not know that its
            // reader wants no bytes.
            descriptor::leave_to_kernel(fd);
        }
        let result = real::shutdown(fd, how);
        if result == 0 {
            keeping_errno(|| descriptor::with_socket(fd, Socket::repeat_edges));
        }
        result
    };
}

fn controlled(fd: c_int, command: c_int, argument: usize, call: impl Fn() -> c_int) -> c_int {
    let flags = argument as c_int;
    // SIGIO is the kernel's, and sendfile(2) to such a socket is EINVAL.
    if command == F_SETFL && flags & (O_ASYNC | O_APPEND) != 0 {
        descriptor::leave_to_kernel(fd);
    }
    let result = call();
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC if result >= 0 => descriptor::duplicated(fd, result),
        F_SETFL if result == 0 => {
            descriptor::with_socket(fd, |socket| socket.set_nonblocking(flags & O_NONBLOCK != 0));
        }
        _ => {}
    }
    result
}

/// Returns whether a socket that was left to the kernel still has unread bytes in its ring.
fn has_rest(fd: c_int) -> bool {
    let mut has_rest = false;
    descriptor::with_socket(fd, |socket| has_rest = socket.has_ring(fd));
    has_rest
}

/// TCP_ZEROCOPY_RECEIVE while the ring has unread bytes: maps nothing and names the bytes that recv(2) would return, as
/// the kernel does for less than a page. Returns false if the kernel refuses the arguments.
///
/// # Safety
/// Like getsockopt(2).
unsafe fn map_nothing(fd: c_int, about: *mut u32, length: *const socklen_t) -> bool {
    /// Where `struct tcp_zerocopy_receive` has these fields, in words: length, recv_skip_hint, inq, err, copybuf_len, msg_flags.
    const FIELDS: [usize; 6] = [2, 3, 4, 5, 8, 14];
    if !memory::is_readable(length, size_of::<socklen_t>()) {
        return false;
    }
    // SAFETY: readable.
    let words = unsafe { length.read_unaligned() } as usize / size_of::<u32>();
    let last = words.min(FIELDS[5] + 1).wrapping_sub(1);
    if words <= FIELDS[0] || !memory::is_writable(about, 4) || !memory::is_writable(about.wrapping_add(last), 4) {
        return false;
    }
    let mut unread = 0;
    keeping_errno(|| descriptor::with_socket(fd, |socket| unread = socket.pair().unread().unwrap_or(0)));
    let unread = u32::try_from(unread).unwrap_or(u32::MAX);
    for (at, value) in FIELDS.into_iter().zip([0, unread, unread, 0, 0, 0]).filter(|&(at, _)| at < words) {
        // SAFETY: writable.
        unsafe { about.add(at).write_unaligned(value) };
    }
    true
}

/// Returns whether a receive or a send does not wait from now on: a negative time.
///
/// # Safety
/// Like setsockopt(2).
unsafe fn is_no_time(level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> bool {
    let seconds = value.cast::<libc::time_t>();
    level == SOL_SOCKET
        && matches!(name, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO)
        && length as usize >= size_of::<libc::timeval>()
        && memory::is_readable(seconds, size_of::<libc::timeval>())
        // SAFETY: readable.
        && unsafe { seconds.read_unaligned() } < 0
}

/// # Safety
/// Like setsockopt(2) of TCP_CORK.
unsafe fn is_cork_deferred(fd: c_int, value: *const c_void, length: socklen_t) -> bool {
    let value = value.cast::<c_int>();
    let is_int = c_int::try_from(length).is_ok_and(|length| length as usize >= size_of::<c_int>());
    // Otherwise the kernel refuses the call.
    if !is_int || !memory::is_readable(value, size_of::<c_int>()) {
        return false;
    }
    // SAFETY: readable.
    let corks = unsafe { value.read_unaligned() } != 0;
    let mut is_deferred = false;
    descriptor::with_socket(fd, |socket| is_deferred = socket.defer_cork(corks));
    is_deferred
}

/// # Safety
/// Like setsockopt(2).
unsafe fn is_harmless(level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> bool {
    if (level, name) == (SOL_SOCKET, libc::SO_RCVLOWAT) {
        let value = value.cast::<c_int>();
        let is_int = length as usize >= size_of::<c_int>() && memory::is_readable(value, size_of::<c_int>());
        // SAFETY: readable. Otherwise the kernel refuses the call.
        return !is_int || unsafe { value.read_unaligned() } == 1;
    }
    HARMLESS.contains(&(level, name))
}
