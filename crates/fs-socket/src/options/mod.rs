//! Options and names.
//!
//! Every option goes to the placeholder first: the kernel has the errno, the limits and the value that getsockopt gives.
//! What means something to a channel is done besides.

pub(crate) mod tcp_options;

use core::net::{Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering::Relaxed;

use fs_shm::channel::state::Phase;
use libc::{IP_TOS, IPV6_ADDRFORM, SOL_IP, SOL_SOCKET, SOL_TCP};
use rustix::io::Errno;

use crate::{
    address,
    descriptor::{is_own, kept, table},
    poll,
    socket::{Kind, Readiness, Socket, mark},
    stream::ancillary,
    sys::call,
    types::{Address, Fd, Ours},
};

pub(crate) use libc::SOL_IPV6;

/// Names of SOL_SOCKET (asm-generic/socket.h).
mod so {
    pub(super) use libc::{
        SO_COOKIE as COOKIE, SO_DOMAIN as DOMAIN, SO_ERROR as ERROR, SO_LINGER as LINGER, SO_OOBINLINE as OOBINLINE,
        SO_PEERNAME as PEERNAME, SO_PRIORITY as PRIORITY, SO_RCVBUF as RCVBUF, SO_RCVBUFFORCE as RCVBUFFORCE,
        SO_RCVLOWAT as RCVLOWAT, SO_RCVTIMEO as RCVTIMEO, SO_RCVTIMEO_NEW as RCVTIMEO_NEW, SO_REUSEADDR as REUSEADDR,
        SO_SNDBUF as SNDBUF, SO_SNDBUFFORCE as SNDBUFFORCE, SO_SNDTIMEO as SNDTIMEO, SO_SNDTIMEO_NEW as SNDTIMEO_NEW,
        SO_ZEROCOPY as ZEROCOPY,
    };
}

/// Names of SOL_TCP (linux/tcp.h).
mod tcp {
    pub(super) use libc::{
        TCP_CORK as CORK, TCP_FASTOPEN as FASTOPEN, TCP_FASTOPEN_CONNECT as FASTOPEN_CONNECT, TCP_INFO as INFO,
        TCP_MAXSEG as MAXSEG, TCP_NOTSENT_LOWAT as NOTSENT_LOWAT, TCP_WINDOW_CLAMP as WINDOW_CLAMP,
    };
}

pub(crate) use libc::IPV6_V6ONLY;
/// Of linux/in.h; libc has it not.
const IP_LOCAL_PORT_RANGE: i32 = 51;

/// What getsockopt(TCP_MAXSEG) says of a connection over loopback: its MTU of 65536 less headers.
const LOCAL_MSS: i32 = 65483;
/// TCP_ESTABLISHED and TCP_CLOSE of tcp_states.h.
const ESTABLISHED: u8 = 1;
const CLOSE: u8 = 7;

/// `getsockopt(2)`: writes at most `value.len()` bytes and answers the length the kernel would answer in `optlen`.
pub fn getsockopt(fd: Fd, level: i32, name: i32, value: &mut [u8]) -> Ours<usize> {
    let socket = table::find(fd)?;
    if level == SOL_SOCKET && matches!(name, so::COOKIE | so::LINGER) {
        kept::spoil(socket);
    }
    if socket.kind() != Kind::Channel {
        if is_own(fd, socket) {
            return Some(Err(Errno::BADF));
        }
        let told = (level, name) == (SOL_SOCKET, so::ERROR) && socket.unmark(mark::DISCONNECTED);
        return told.then(|| Ok(put_int(value, Errno::CONNRESET.raw_os_error())));
    }
    sync(fd, socket);
    let channel = socket.channel()?;
    if let Some(len) = tcp_options::get(socket, level, name, value) {
        return Some(Ok(len));
    }
    match (level, name) {
        (SOL_SOCKET, so::ERROR) => {
            Some(Ok(put_int(value, channel.take_error().map_or(0, |errno| errno.raw_os_error()))))
        }
        (SOL_SOCKET, so::PEERNAME) => getpeername(fd).map(|answer| {
            let name = answer?;
            let name = name.as_bytes();
            // sk_getsockopt() of the kernel: no more than the name.
            let room = value.len();
            value.copy_from_slice(name.get(..room).ok_or(Errno::INVAL)?);
            Ok(room)
        }),
        (SOL_TCP, tcp::MAXSEG) => Some(Ok(put_int(value, LOCAL_MSS))),
        (SOL_TCP, tcp::WINDOW_CLAMP) => Some(window_clamp(fd).map(|clamp| put_int(value, clamp))),
        (SOL_IPV6, _) if was_ipv6(fd, socket) => Some(Err(Errno::OPNOTSUPP)),
        (SOL_IPV6, IPV6_ADDRFORM) if socket.family() == address::AF_INET6 => {
            let connected = tcp_state(socket) == ESTABLISHED;
            Some(if connected { Ok(put_int(value, socket.family() as i32)) } else { Err(Errno::NOTCONN) })
        }
        (SOL_SOCKET, so::DOMAIN) => Some(Ok(put_int(value, socket.family() as i32))),
        (SOL_TCP, tcp::INFO) => Some(call::getsockopt(fd, level, name, value).inspect(|len| {
            if let Some(state) = value[..*len].first_mut() {
                *state = tcp_state(socket);
            }
            // tcpi_snd_mss and tcpi_rcv_mss.
            for at in [16, 20] {
                if let Some(mss) = value[..*len].get_mut(at..at + 4) {
                    mss.copy_from_slice(&LOCAL_MSS.to_ne_bytes());
                }
            }
        })),
        _ => None,
    }
}

fn put_int(value: &mut [u8], int: i32) -> usize {
    let len = value.len().min(4);
    value[..len].copy_from_slice(&int.to_ne_bytes()[..len]);
    len
}

/// The state as TCP_INFO names it.
fn tcp_state(socket: &Socket) -> u8 {
    socket.channel().map_or(CLOSE, |channel| channel.tcp_state())
}

/// Both directions have ended, or it was reset: no connection any more.
pub(crate) fn is_over(socket: &Socket) -> bool {
    tcp_state(socket) == CLOSE
}

/// Sets on an accepted socket's placeholder what its listener had set: when it is first looked at.
pub(crate) fn sync(fd: Fd, socket: &Socket) {
    if !socket.marked(mark::ACCEPTED) || socket.marked(mark::SYNCED) {
        return;
    }
    socket.mark(mark::SYNCED);
    if socket.has_of_listener() {
        kept::spoil(socket);
    }
    for (name, sending) in [(so::RCVTIMEO, false), (so::SNDTIMEO, true)] {
        let nanoseconds = socket.timeout(sending);
        if nanoseconds != 0 {
            let mut value = [0; 16];
            value[..8].copy_from_slice(&(nanoseconds / 1_000_000_000).to_ne_bytes());
            value[8..].copy_from_slice(&(nanoseconds % 1_000_000_000 / 1000).to_ne_bytes());
            // It was valid on the listener.
            let _ = call::setsockopt(fd, SOL_SOCKET, name, &value);
        }
    }
    let linger = socket.linger().load(Relaxed);
    if linger != 0 {
        let mut value = [0; 8];
        value[..4].copy_from_slice(&1_i32.to_ne_bytes());
        value[4..].copy_from_slice(&(linger - 1).to_ne_bytes());
        // As above.
        let _ = call::setsockopt(fd, SOL_SOCKET, so::LINGER, &value);
    }
    let mut has_tos = false;
    socket.take_options(|level, name, value| {
        if (level, name) == (SOL_TCP, tcp::FASTOPEN) {
            // The listener's queue, which is not inherited.
            return;
        }
        // It was valid on the listener; on a fresh socket it is too, and what it is for is done by us.
        let _ = call::setsockopt(fd, level, name, &value.to_ne_bytes());
        has_tos |= (level, name) == (SOL_IP, IP_TOS);
    });
    if has_tos {
        // Setting it sets this too, which is not inherited (sk_clone_lock() of the kernel).
        let _ = call::setsockopt(fd, SOL_SOCKET, so::PRIORITY, &0_i32.to_ne_bytes());
    }
}

/// `setsockopt(2)`.
pub fn setsockopt(fd: Fd, level: i32, name: i32, value: &[u8]) -> Ours<()> {
    let socket = table::find(fd)?;
    if is_own(fd, socket) {
        return Some(Err(Errno::BADF));
    }
    match socket.kind() {
        Kind::Fresh | Kind::Channel | Kind::Listener => {}
        Kind::Free | Kind::Kernel | Kind::Epoll | Kind::Internal => return None,
    }
    if (level, name) == (SOL_SOCKET, so::LINGER) && kept::notes_linger(fd, socket, value) {
        act(fd, socket, level, name, value);
        tcp_options::was_set(fd, socket, level, name, value);
        return Some(Ok(()));
    }
    kept::spoil(socket);
    if socket.kind() == Kind::Channel && (level, name) == (SOL_TCP, tcp::FASTOPEN_CONNECT) {
        // Only before a connection is made.
        return Some(Err(Errno::INVAL));
    }
    if socket.kind() == Kind::Channel
        && let Some(answer) = of_connection(fd, socket, level, name, value)
    {
        return Some(answer);
    }
    if let Some(channel) = socket.channel()
        && let Some(errno) = tcp_options::too_late(&channel, level, name, value)
    {
        // The kernel's own errors come first.
        return Some(call::setsockopt(fd, level, name, value).and(Err(errno)));
    }
    sync(fd, socket);
    if let Some(answer) = tcp_options::set_first(socket, level, name, value) {
        return Some(answer);
    }
    if socket.kind() == Kind::Listener {
        crate::listen::keep_options(socket);
    }
    Some(call::setsockopt(fd, level, name, value).inspect(|()| {
        act(fd, socket, level, name, value);
        if tcp_options::is_kernel_only(level, name, value) {
            crate::listen::leave_to_kernel(socket);
        }
        tcp_options::was_set(fd, socket, level, name, value);
        match (level, name) {
            (SOL_SOCKET, so::SNDBUF | so::SNDBUFFORCE) | (SOL_TCP, tcp::NOTSENT_LOWAT) => {
                poll::tell(socket, Readiness::OUT);
            }
            (SOL_SOCKET, so::RCVLOWAT) => poll::tell(socket, Readiness::IN),
            _ => {}
        }
    }))
}

/// What the kernel looks at a connection's state for, which the placeholder does not have; `None`: nothing.
fn of_connection(fd: Fd, socket: &Socket, level: i32, name: i32, value: &[u8]) -> Option<Result<(), Errno>> {
    let int = value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes))?;
    match (level, name) {
        // tcp_set_window_clamp() of the kernel.
        (SOL_TCP, tcp::WINDOW_CLAMP) if int == 0 => {
            Some(if is_over(socket) { call::setsockopt(fd, level, name, value) } else { Err(Errno::INVAL) })
        }
        // Its completions come by an error queue that a channel has not.
        (SOL_SOCKET, so::ZEROCOPY) => Some(match int {
            0 => Ok(()),
            1 => Err(Errno::OPNOTSUPP),
            _ => Err(Errno::INVAL),
        }),
        // Of a listener, or one that may become one.
        (SOL_TCP, tcp::FASTOPEN) if !is_over(socket) => Some(Err(Errno::INVAL)),
        (SOL_IPV6, _) if was_ipv6(fd, socket) => Some(Err(Errno::NOPROTOOPT)),
        // What has a port keeps it.
        (SOL_IPV6, IPV6_V6ONLY) if socket.family() == address::AF_INET6 => {
            // What was chosen for it has gone with the connection.
            has_port(socket).then_some(Err(Errno::INVAL))
        }
        (SOL_IPV6, IPV6_ADDRFORM) if socket.family() == address::AF_INET6 => Some(to_ipv4(fd, socket, int)),
        _ => None,
    }
}

/// One that was bound has its port when its connection has ended, too.
fn has_port(socket: &Socket) -> bool {
    !is_over(socket) || socket.marked(mark::BOUND)
}

/// IPV6_ADDRFORM: a connection of mapped addresses becomes one of IPv4 (do_ipv6_setsockopt() of the kernel).
fn to_ipv4(fd: Fd, socket: &Socket, family: i32) -> Result<(), Errno> {
    if family as u32 != address::AF_INET {
        return Err(Errno::INVAL);
    }
    if tcp_state(socket) != ESTABLISHED {
        return Err(Errno::NOTCONN);
    }
    let peer = ends(socket).map(|(_, peer)| peer);
    let is_mapped = peer.is_some_and(|peer| peer.ip().to_canonical().is_ipv4());
    if !is_mapped || call::int_option(fd, SOL_IPV6, IPV6_V6ONLY)? != 0 {
        return Err(Errno::ADDRNOTAVAIL);
    }
    socket.set_family(address::AF_INET);
    Ok(())
}

/// IPV6_ADDRFORM has made it one of IPv4; its placeholder is what it was.
fn was_ipv6(fd: Fd, socket: &Socket) -> bool {
    socket.family() == address::AF_INET
        && call::int_option(fd, SOL_SOCKET, so::DOMAIN) == Ok(address::AF_INET6.cast_signed())
}

/// TCP_WINDOW_CLAMP that was not set is the receive buffer's (tcp_init_buffer_space() of the kernel).
fn window_clamp(fd: Fd) -> Result<i32, Errno> {
    match call::int_option(fd, SOL_TCP, tcp::WINDOW_CLAMP)? {
        0 => Ok(call::int_option(fd, SOL_SOCKET, so::RCVBUF)? / 2),
        set => Ok(set),
    }
}

/// The kernel has taken the option.
fn act(fd: Fd, socket: &Socket, level: i32, name: i32, value: &[u8]) {
    let int = value.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    let channel = socket.channel();
    if (level, name) == (SOL_SOCKET, so::REUSEADDR) && socket.kind() == Kind::Listener {
        let (is, is_not) = if int != 0 { (mark::SHARES, mark::SHARES_NOT) } else { (mark::SHARES_NOT, mark::SHARES) };
        socket.unmark(is_not);
        socket.mark(is);
    }
    match (level, name) {
        (SOL_SOCKET, so::RCVTIMEO | so::RCVTIMEO_NEW) => socket.set_timeout(false, nanoseconds(value)),
        (SOL_SOCKET, so::SNDTIMEO | so::SNDTIMEO_NEW) => socket.set_timeout(true, nanoseconds(value)),
        (SOL_SOCKET, so::LINGER) => {
            let seconds = value.get(4..8).and_then(|bytes| bytes.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b));
            socket.linger().store(if int == 0 { 0 } else { seconds.saturating_add(1) }, Relaxed);
        }
        (SOL_SOCKET, so::RCVLOWAT) => {
            // What the kernel makes of it: no more than half of the receive buffer (tcp_set_rcvlowat()).
            let Ok(bytes) = call::int_option(fd, SOL_SOCKET, so::RCVLOWAT).map(i32::cast_unsigned) else { return };
            socket.low_water().store(bytes, Relaxed);
            if let Some(channel) = channel {
                channel.set_rcvlowat(bytes);
            }
        }
        (SOL_SOCKET, so::OOBINLINE) => {
            if int != 0 {
                socket.mark(mark::OOB_INLINE);
            } else {
                socket.unmark(mark::OOB_INLINE);
            }
            if let Some(channel) = channel {
                channel.set_oob_inline(int != 0);
            }
        }
        (SOL_SOCKET, so::REUSEADDR) if channel.is_some() => {
            // Who binds its port when the listener is gone meets it.
            if let Some(channel) = channel {
                channel.set_shares(int != 0);
                let port = channel.local_addr().to_std().map_or(0, |local| local.port());
                if int == 0 && port != 0 {
                    crate::ports::settle(port);
                }
            }
        }
        (SOL_SOCKET, so::RCVBUF | so::RCVBUFFORCE) => set_buffer(fd, socket, false),
        (SOL_SOCKET, so::SNDBUF | so::SNDBUFFORCE) => set_buffer(fd, socket, true),
        _ if tcp_options::is_kernel_only(level, name, value) => {
            socket.mark(mark::KERNEL_ONLY);
        }
        // The daemon has chosen a connection's port before it knows the socket.
        (SOL_IP, IP_LOCAL_PORT_RANGE) if socket.kind() == Kind::Fresh && int != 0 => {
            socket.mark(mark::KERNEL_ONLY);
        }
        (SOL_TCP, tcp::CORK) => {
            if int != 0 {
                socket.mark(mark::CORK);
            } else {
                socket.unmark(mark::CORK);
            }
            if channel.is_none() {
                socket.remember_option(level, name, int);
            }
        }
        _ if ancillary::was_set(socket, level, name, int != 0) && channel.is_some() => {}
        (SOL_SOCKET, so::PRIORITY | so::ZEROCOPY) => {}
        _ if channel.is_none() && (4..=8).contains(&value.len()) => socket.remember_option(level, name, int),
        _ => {}
    }
    if channel.is_none()
        && level == SOL_SOCKET
        && value.len() == 4
        && matches!(name, so::RCVBUF | so::SNDBUF | so::OOBINLINE | so::RCVLOWAT)
    {
        socket.remember_option(level, name, int);
    }
}

/// SO_RCVBUF or SO_SNDBUF has changed: the ring's limit is what the kernel made of it.
fn set_buffer(fd: Fd, socket: &Socket, sending: bool) {
    let name = if sending { so::SNDBUF } else { so::RCVBUF };
    let Ok(bytes) = call::int_option(fd, SOL_SOCKET, name) else { return };
    socket.buffer(sending).store(bytes as u32, Relaxed);
    if let Some(channel) = socket.channel() {
        channel.set_buffer(sending, bytes as u32);
        if sending {
            // Whatever was set before (sock_setsockopt() of the kernel).
            channel.rouse_writers();
        }
    }
}

/// What the kernel knows of an inherited socket's options that this process acts on.
pub(crate) fn recall(fd: Fd, socket: &Socket) {
    let mut value = [0; 16];
    for (name, sending) in [(so::RCVTIMEO, false), (so::SNDTIMEO, true)] {
        if call::getsockopt(fd, SOL_SOCKET, name, &mut value).is_ok() {
            socket.own_timeout(sending).store(nanoseconds(&value), Relaxed);
        }
    }
    if call::getsockopt(fd, SOL_SOCKET, so::LINGER, &mut value[..8]).is_ok() {
        act(fd, socket, SOL_SOCKET, so::LINGER, &value[..8]);
    }
    if call::int_option(fd, SOL_TCP, tcp::CORK).is_ok_and(|on| on != 0) {
        socket.mark(mark::CORK);
    }
    if socket.family() == address::AF_INET6 && call::int_option(fd, SOL_IPV6, IPV6_V6ONLY) == Ok(1) {
        socket.remember_option(SOL_IPV6, IPV6_V6ONLY, 1);
    }
    ancillary::recall(fd, socket);
    socket.wishes().store(tcp_options::inherited(), Relaxed);
}

/// Another process may have set a listener's time-out. One that is over at once looks to us like none: that stays as it was.
pub(crate) fn recall_timeout(fd: Fd, socket: &Socket, sending: bool) {
    let mut value = [0; 16];
    let own = socket.own_timeout(sending);
    let name = if sending { so::SNDTIMEO } else { so::RCVTIMEO };
    if own.load(Relaxed) != AT_ONCE && call::getsockopt(fd, SOL_SOCKET, name, &mut value).is_ok() {
        own.store(nanoseconds(&value), Relaxed);
    }
}

/// A time-out that is over at once.
pub(crate) const AT_ONCE: u64 = 1;

/// A `struct timeval` that the kernel has accepted; 0: none. Negative seconds do not wait (sock_set_timeout() of the kernel).
fn nanoseconds(value: &[u8]) -> u64 {
    let word = |at: usize| value.get(at..at + 8).and_then(|b| b.first_chunk()).map_or(0, |b| i64::from_ne_bytes(*b));
    let Ok(seconds) = u64::try_from(word(0)) else { return AT_ONCE };
    seconds.saturating_mul(1_000_000_000).saturating_add(word(8).unsigned_abs().saturating_mul(1000))
}

/// `getsockname(2)`.
pub fn getsockname(fd: Fd) -> Ours<Address> {
    let socket = table::find(fd)?;
    if is_own(fd, socket) {
        return Some(Err(Errno::BADF));
    }
    if let Some(port) = socket.named() {
        return still_named(fd, socket, port);
    }
    let channel = socket.channel()?;
    if socket.marked(mark::MOVED) {
        return None;
    }
    // Being connected over the wire: what the placeholder is bound to.
    if channel.state().is_some_and(|state| state.phase() == Phase::Connecting) {
        let local = channel.local_addr().to_std()?;
        return Some(Ok(address::raw(local, socket.family())));
    }
    let (mut local, _) = ends(socket)?;
    if socket.marked(mark::NAMELESS) {
        // 0.0.0.0 where the socket is IPv4.
        local = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), local.port());
    }
    Some(Ok(address::raw(local, socket.family())))
}

/// The port of a connection that there is no more.
fn still_named(fd: Fd, socket: &Socket, port: u16) -> Ours<Address> {
    let at = call::getsockname(fd).ok().and_then(|at| address::parse(at.as_bytes(), socket.family()))?;
    Some(Ok(address::raw(SocketAddr::new(at.ip(), port), socket.family())))
}

/// Own address and peer's; `None`: what the connection's memory says is not true.
fn ends(socket: &Socket) -> Option<(SocketAddr, SocketAddr)> {
    let (mapped, channel) = socket.mapped().zip(socket.channel())?;
    mapped.ends_of(&channel).ok()
}

/// `getpeername(2)`.
pub fn getpeername(fd: Fd) -> Ours<Address> {
    let socket = table::find(fd)?;
    if is_own(fd, socket) {
        return Some(Err(Errno::BADF));
    }
    let channel = socket.channel()?;
    let connected = channel.state().is_some_and(|state| state.phase() == Phase::Open && tcp_state(socket) != CLOSE);
    if !connected {
        return Some(Err(Errno::NOTCONN));
    }
    let answer = ends(socket).ok_or(Errno::NOTCONN);
    Some(answer.map(|(_, peer)| address::raw(peer, socket.family())))
}
