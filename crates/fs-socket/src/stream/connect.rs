//! Making a socket and connecting it.

use core::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::atomic::{Ordering::SeqCst, fence},
    time::Duration,
};
use fs_shm::{
    Channel, Interest, OpenArgs, Shutdown,
    channel::{Options, state::Phase},
    control::{KernelReason, Object},
};
use libc::{IPPROTO_TCP, SOCK_STREAM};
use rustix::io::Errno;

use crate::{
    address,
    descriptor::{is_own, kept, numbers, table},
    options::tcp_options,
    poll,
    process::{
        self, Attachment,
        arenas::Mapped,
        route::{self, Way},
    },
    socket::{Kind, Socket, mark},
    stream::{
        channel::{self, O_NONBLOCK, Patience},
        reset,
    },
    sys::{self, call},
    types::{Fd, Ours},
};

const SOCK_TYPE_MASK: i32 = 0xf;

/// `socket(2)`. `None`: a family, type or protocol that is never ours; make the real call, tell nobody.
/// `Some(Ok(fd))`: the descriptor is made (a kernel socket of that family stands behind the number).
pub fn socket(family: i32, kind: i32, protocol: i32) -> Ours<Fd> {
    let ip = family as u32 == address::AF_INET || family as u32 == address::AF_INET6;
    if !ip || kind & SOCK_TYPE_MASK != SOCK_STREAM || (protocol != 0 && protocol != IPPROTO_TCP) {
        return None;
    }
    let _changing = table::Changing::begin();
    let made = match kept::socket(family as u32, kind & !SOCK_TYPE_MASK, protocol, true) {
        Ok(made) => made,
        Err(errno) => return Some(Err(errno)),
    };
    // Without a place in the table it is the kernel's, which answers every call as well.
    let entered = enter_after(made.fd, Kind::Fresh, family as u32, |socket| {
        socket.set_status(kind as u32 & O_NONBLOCK);
        made.enter(socket);
    });
    if entered.is_none() {
        made.let_go();
    }
    Some(Ok(made.fd))
}

/// A socket in the table at `fd`. The caller holds [`table::Changing`].
pub(crate) fn enter(fd: Fd, kind: Kind, family: u32) -> Option<&'static Socket> {
    enter_after(fd, kind, family, |_| {})
}

/// The same after `prepare`, which nobody sees half done.
pub(crate) fn enter_after(
    fd: Fd,
    kind: Kind,
    family: u32,
    prepare: impl FnOnce(&'static Socket),
) -> Option<&'static Socket> {
    // Whatever was there was closed by a system call that we did not see.
    table::displaced(fd);
    let socket = Socket::make(kind)?;
    socket.set_family(family);
    prepare(socket);
    socket.add_descriptor(fd);
    if !table::set(fd, socket) {
        socket.forget_descriptor(fd);
        return None;
    }
    Some(socket)
}

/// One more number in the table for a socket, without counting anything in the channel. The caller holds
/// [`table::Changing`].
pub(crate) fn enter_again(fd: Fd, socket: &'static Socket) {
    table::displaced(fd);
    socket.add_descriptor(fd);
    if !table::set(fd, socket) {
        socket.forget_descriptor(fd);
    }
}

/// The same for one that has a number; false: it is closed, or about to be.
pub(crate) fn enter_another(fd: Fd, socket: &'static Socket) -> bool {
    table::displaced(fd);
    let is_open = socket.add_another_descriptor(fd);
    if is_open && !table::set(fd, socket) {
        socket.forget_descriptor(fd);
    }
    is_open
}

/// `connect(2)`; blocks as the socket's mode and SO_SNDTIMEO say. `address`: the bytes the application passed.
pub fn connect(fd: Fd, address: &[u8]) -> Ours<()> {
    let socket = table::socket(fd)?;
    if is_own(fd, socket.unheld()) {
        return Some(Err(Errno::BADF));
    }
    if crate::listen::is_shut(socket.unheld()) {
        // It listens no more, and may be connected.
        crate::listen::stop(fd, socket.unheld());
    }
    match socket.kind() {
        Kind::Channel => Some(again(fd, socket.unheld(), address)),
        Kind::Fresh => {
            socket.unmark(mark::DISCONNECTED);
            if address::family(address) == Some(address::AF_UNSPEC) {
                socket.unmark(mark::SHUT_READ | mark::SHUT_WRITE);
            }
            socket.status_of(fd);
            let answer = fresh(fd, socket.unheld(), address);
            if socket.kind() != Kind::Channel {
                // What comes next is the kernel's, and may be refused before it returns.
                kept::spoil(&socket);
                poll::kernel_changes();
            }
            answer
        }
        Kind::Kernel => {
            poll::kernel_changes();
            None
        }
        Kind::Free | Kind::Listener | Kind::Epoll | Kind::Internal => None,
    }
}

/// The first connect of a socket.
fn fresh(fd: Fd, socket: &'static Socket, raw: &[u8]) -> Ours<()> {
    // AF_UNSPEC and what is malformed: the kernel has the errno.
    let asked = address::parse(raw, socket.family())?;
    let to = address::destination(asked);
    if is_refused_mapped(fd, raw, socket.family()) || to.port() == 0 || to.ip().is_multicast() {
        return None;
    }
    let attachment = process::attached()?;
    if socket.marked(mark::KERNEL_ONLY) {
        on_kernel(attachment, fd, socket, KernelReason::Option);
        return None;
    }
    if socket.marked(mark::SHARED) {
        // Whoever else holds it would have a socket that is not connected: the kernel's connection is everybody's.
        on_kernel(attachment, fd, socket, KernelReason::Foreign);
        return None;
    }
    if socket.marked(mark::BOUND) && asked.ip().to_canonical().is_unspecified() {
        // To a socket that is bound to an address that is the address meant, and not loopback.
        on_kernel(attachment, fd, socket, KernelReason::NotServed);
        return None;
    }
    for _ in 0..2 {
        let placeholder = sys::borrowed(fd)?;
        match route::way(attachment, to, socket.marked(mark::BOUND), placeholder) {
            Way::Local { arena, source } => match open_local(attachment, fd, socket, arena, to, source) {
                Ok(()) => return Some(opened(fd, socket, arena)),
                // The listener went away: ask again.
                Err(Errno::CONNREFUSED) => route::forget(to),
                // No slot left, no port for it, no entry in the attachment page: the kernel listens too.
                Err(_) => break,
            },
            // The wish for that port comes before ours for speed.
            Way::Wire { .. } if socket.marked(mark::PORT) => {
                on_kernel(attachment, fd, socket, KernelReason::Option);
                return None;
            }
            Way::Wire { arena } => match open_wire(attachment, fd, socket, arena, to) {
                Ok(()) => return Some(connecting(fd, socket)),
                Err(Errno::CONNREFUSED) => route::forget(to),
                Err(_) => break,
            },
            Way::Kernel(reason) => {
                on_kernel(attachment, fd, socket, reason);
                return None;
            }
            Way::Refused(errno) => return Some(Err(errno)),
        }
    }
    on_kernel(attachment, fd, socket, KernelReason::Limit);
    None
}

/// An IPv4-mapped address on a socket with IPV6_V6ONLY: the kernel has the errno.
fn is_refused_mapped(fd: Fd, raw: &[u8], family: u32) -> bool {
    use libc::{IPV6_V6ONLY, SOL_IPV6};
    let mapped = family == address::AF_INET6
        && address::parse(raw, family).is_some_and(|to| to.ip().is_ipv6() && to.ip().to_canonical().is_ipv4());
    mapped && call::int_option(fd, SOL_IPV6, IPV6_V6ONLY) == Ok(1)
}

/// From here on the kernel's for good.
fn on_kernel(attachment: &Attachment, fd: Fd, socket: &Socket, reason: KernelReason) {
    let _changing = table::Changing::begin();
    socket.become_kind(Kind::Kernel);
    // For lists only: no entry is no harm.
    let _ = process::enter_page(attachment, fd, Object::Kernel(reason));
    poll::changed(socket);
}

fn unspecified(like: SocketAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { core::net::Ipv6Addr::UNSPECIFIED.into() }
}

/// Connections that other threads may begin while the daemon is asked for a port, each of which takes one that was meant for this one.
const PORT_TRIES: usize = 64;

/// Takes a channel to another process and makes the socket it. The slot has a port, which the daemon holds in the kernel; a slot
/// that has none gets one, with others: who connects often asks seldom.
fn open_local(
    attachment: &Attachment,
    fd: Fd,
    socket: &'static Socket,
    mapped: &'static Mapped,
    to: SocketAddr,
    source: IpAddr,
) -> Result<(), Errno> {
    let mut args = OpenArgs {
        local: SocketAddr::new(source, 0).into(),
        peer: to.into(),
        lent: Some(mapped.arena().turn()),
        status: socket.status(),
        ..OpenArgs::default()
    };
    for _ in 0..PORT_TRIES {
        match open(attachment, fd, socket, mapped, &args) {
            Err(Errno::ADDRNOTAVAIL) => {}
            opened => return opened,
        }
        let slot = mapped.arena().next_free(args.lent.unwrap_or(0)).ok_or(Errno::NOBUFS)?;
        let refused = |error| {
            attachment.failed(&error);
            mapped.record_no_port();
        };
        let is_lent = mapped.may_have_port() && attachment.client().lend(mapped.id(), slot).map_err(refused).is_ok();
        if !is_lent {
            // There are no more, but the one that was used last may be free.
            if args.lent.replace(0) == Some(0) {
                return Err(Errno::NOBUFS);
            }
        }
    }
    Err(Errno::NOBUFS)
}

/// Takes a channel to a core.
fn open_wire(
    attachment: &Attachment,
    fd: Fd,
    socket: &'static Socket,
    mapped: &'static Mapped,
    to: SocketAddr,
) -> Result<(), Errno> {
    let args = OpenArgs {
        local: wire_source(fd, socket, mapped, unspecified(to)).into(),
        peer: to.into(),
        connecting: true,
        status: socket.status(),
        options: [tcp_options::gather(fd, socket), Options::default()],
        ..OpenArgs::default()
    };
    open(attachment, fd, socket, mapped, &args)
}

/// Takes a channel of the arena and makes the socket it.
fn open(
    attachment: &Attachment,
    fd: Fd,
    socket: &'static Socket,
    mapped: &'static Mapped,
    args: &OpenArgs,
) -> Result<(), Errno> {
    let _changing = table::Changing::begin();
    Channel::open(mapped.arena(), args).and_then(|channel| adopt(attachment, fd, socket, mapped, &channel))
}

/// Makes the socket the channel, on which it has one reference so far.
pub(crate) fn adopt(
    attachment: &Attachment,
    fd: Fd,
    socket: &'static Socket,
    mapped: &'static Mapped,
    channel: &Channel<'static>,
) -> Result<(), Errno> {
    let object = mapped.object(channel.slot());
    if !process::enter_page(attachment, fd, object) {
        channel::throw_away(channel);
        return Err(Errno::MFILE);
    }
    if socket.descriptors() > 1 {
        table::each(0, u32::MAX, |other, of| {
            if other != fd && core::ptr::eq(of, socket) && process::enter_page(attachment, other, object) {
                channel.retain();
            }
        });
    }
    socket.set_life(attachment.life());
    socket.apply_to(channel);
    socket.become_channel(mapped, channel);
    socket.unmark(mark::NAMED);
    // Who finds the daemon gone resets all channels there are: this one was there, or it is seen here.
    fence(SeqCst);
    if attachment.is_dead() {
        channel::lost(socket);
    }
    poll::changed(socket);
    Ok(())
}

/// Over the wire a core chooses; a name until then.
fn wire_source(fd: Fd, socket: &Socket, mapped: &Mapped, source: IpAddr) -> SocketAddr {
    let bound = if socket.marked(mark::BOUND) { call::getsockname(fd).ok() } else { None };
    match bound.and_then(|bound| address::parse(bound.as_bytes(), socket.family())) {
        Some(bound) if bound.ip().is_unspecified() => SocketAddr::new(source, bound.port()),
        Some(bound) => SocketAddr::new(bound.ip().to_canonical(), bound.port()),
        None => SocketAddr::new(source, mapped.ephemeral_port()),
    }
}

/// Of a connection between processes: it is there, or waits for room in the acceptor's queue.
fn opened(fd: Fd, socket: &'static Socket, arena: &Mapped) -> Result<(), Errno> {
    let Some(channel) = socket.channel() else { return connected(socket) };
    if let Some(most) = channel.deferred() {
        process::due(&channel, Duration::from_millis(most.into()));
    }
    if channel.state().is_some_and(|state| state.phase() != Phase::Open) {
        process::due(&channel, given_up_after(fd));
        // Others may have room that they do not use.
        process::ask_for_room(arena.id());
        return connecting(fd, socket);
    }
    connected(socket)
}

/// When TCP gives up to connect: after so many SYNs sent again, a second after each of the first, and then in twice the time
/// of the one before (tcp_syn_linear_timeouts, tcp_syn_retries of the kernel).
fn given_up_after(fd: Fd) -> Duration {
    use libc::{SOL_TCP, TCP_SYNCNT};
    const LINEAR: u64 = 4;
    let again = call::int_option(fd, SOL_TCP, TCP_SYNCNT).map_or(6, |again| again.clamp(1, 20));
    Duration::from_secs(LINEAR + (2 << again) - 1)
}

/// A local connection is there at once; a non-blocking connect says so one call later, as on the kernel.
fn connected(socket: &Socket) -> Result<(), Errno> {
    if socket.status() & O_NONBLOCK == 0 {
        return Ok(());
    }
    socket.mark(mark::CONNECTING);
    Err(Errno::INPROGRESS)
}

/// A connection over the wire is being made.
fn connecting(fd: Fd, socket: &'static Socket) -> Result<(), Errno> {
    socket.mark(mark::CONNECTING);
    if socket.status() & O_NONBLOCK != 0 {
        return Err(Errno::INPROGRESS);
    }
    finish(fd, socket)
}

/// Waits for the wire.
fn finish(fd: Fd, socket: &'static Socket) -> Result<(), Errno> {
    let channel = socket.channel().ok_or(Errno::BADF)?;
    let mut patience = Patience::new(socket.timeout(true));
    loop {
        match channel.state().map(|state| state.phase()) {
            Some(Phase::Connecting) => match patience.wait(&channel, Interest::Connected) {
                Ok(()) => {}
                Err(Errno::AGAIN) => return Err(Errno::INPROGRESS),
                Err(errno) => return Err(errno),
            },
            // One that has ended since is no connection any more (inet_stream_connect() of the kernel, TCP_CLOSE).
            Some(Phase::Open) if !crate::options::is_over(socket) => {
                socket.unmark(mark::CONNECTING);
                return channel.take_error().map_or(Ok(()), Err);
            }
            Some(Phase::Open | Phase::Failed | Phase::Free) | None => {
                let errno = channel.take_error().unwrap_or(Errno::CONNABORTED);
                socket.unmark(mark::CONNECTING);
                disconnect(fd, socket);
                return Err(errno);
            }
        }
    }
}

/// connect on a socket that has been connected, or is being.
fn again(fd: Fd, socket: &'static Socket, raw: &[u8]) -> Result<(), Errno> {
    match address::family(raw) {
        None => return Err(Errno::INVAL),
        Some(address::AF_UNSPEC) => {
            disconnect(fd, socket);
            reset::end(fd, socket);
            return Ok(());
        }
        Some(_) => {}
    }
    let channel = socket.channel().ok_or(Errno::BADF)?;
    if !socket.marked(mark::CONNECTING) {
        return Err(Errno::ISCONN);
    }
    match channel.state().map(|state| state.phase()) {
        Some(Phase::Connecting) if socket.status() & O_NONBLOCK != 0 => Err(Errno::ALREADY),
        _ => finish(fd, socket),
    }
}

/// Back to a socket without a connection; what there was is reset.
fn disconnect(fd: Fd, socket: &'static Socket) {
    kept::spoil(socket);
    let _changing = table::Changing::begin();
    let Some(channel) = socket.channel() else { return };
    let port = channel.lent_port();
    socket.become_kind(Kind::Fresh);
    if port != 0 && !socket.marked(mark::BOUND | mark::ACCEPTED) {
        socket.leave_port(port);
    }
    // What the next connection has for a name is its own.
    socket.unmark(mark::SHUT_READ | mark::SHUT_WRITE | mark::NAMELESS | mark::MOVED);
    let mut references = 0;
    table::each(0, u32::MAX, |other, of| {
        if core::ptr::eq(of, socket) {
            clear_page(other);
            references += 1;
        }
    });
    if references == 0 {
        clear_page(fd);
    }
    for _ in 0..references.max(1) {
        channel::throw_away(&channel);
    }
    poll::changed(socket);
}

/// `bind(2)` of a connection.
pub(crate) fn bind(fd: Fd, socket: &Socket, address: &[u8]) -> Result<(), Errno> {
    if crate::options::is_over(socket) && !socket.marked(mark::BOUND) {
        // Its port was chosen for it and has gone with the connection (tcp_set_state(), TCP_CLOSE).
        // SO_REUSEADDR of an accepted one is its listener's.
        crate::options::sync(fd, socket);
        let answer = crate::ports::bind(fd, address);
        match answer {
            Ok(()) => socket.mark(mark::BOUND | mark::MOVED),
            // inet_reset_saddr() of the kernel.
            Err(Errno::ADDRINUSE) => socket.mark(mark::NAMELESS),
            Err(_) => {}
        }
        return answer;
    }
    // What is wrong with the address comes before what is wrong with the socket (__inet_bind()): another socket tells.
    let _room = numbers::Room::open();
    let Ok(other) = call::socket(socket.family() as i32, SOCK_STREAM, 0) else {
        // No number is free, which bind(2) of the kernel needs none of.
        return Err(Errno::INVAL);
    };
    let answer = call::bind(other, address);
    // It was never connected: nothing is left to be told.
    let _closed = call::close(other);
    answer.or_else(|errno| if errno == Errno::ADDRINUSE { Ok(()) } else { Err(errno) }).and(Err(Errno::INVAL))
}

/// The attachment page's entry of a number is void.
pub(crate) fn clear_page(fd: Fd) {
    if let Some(attachment) = process::current() {
        attachment.page().clear(fd);
    }
}

/// `shutdown(2)`; `how` as given.
pub fn shutdown(fd: Fd, how: i32) -> Ours<()> {
    let held = table::socket(fd)?;
    let socket = held.unheld();
    if is_own(fd, socket) {
        return Some(Err(Errno::BADF));
    }
    match socket.kind() {
        Kind::Channel => {
            let how = match how {
                0 => Shutdown::Read,
                1 => Shutdown::Write,
                2 => Shutdown::Both,
                _ => return Some(Err(Errno::INVAL)),
            };
            if crate::options::is_over(socket) {
                return Some(Err(socket.channel()?.shut_in_vain()));
            }
            if socket.channel()?.state().is_some_and(|state| state.phase() == Phase::Connecting) {
                // Either direction: there is no connection to be made any more (inet_shutdown() of the kernel, TCP_SYN_SENT).
                disconnect(fd, socket);
                reset::end(fd, socket);
                return Some(Ok(()));
            }
            // inet_shutdown() of the kernel: SS_CONNECTED, though connect(2) has not been called again to be told.
            socket.unmark(mark::CONNECTING);
            let answer = socket.channel()?.shutdown(how);
            poll::changed(socket);
            Some(answer)
        }
        Kind::Listener if !crate::listen::is_shut(socket) => {
            // SHUT_RD, SHUT_RDWR: with SHUT_WR it goes on listening, and all else is EINVAL.
            if matches!(how, 0 | 2) {
                socket.unmark(mark::SHUT_READ | mark::SHUT_WRITE);
                crate::listen::shut(fd, socket);
                // Whom that has reset was told before the listener's own end, which the kernel makes next.
                poll::about_to_end(socket);
            }
            None
        }
        Kind::Fresh | Kind::Listener => {
            kept::spoil(socket);
            // ENOTCONN, which the kernel has.
            socket.mark(match how {
                0 => mark::SHUT_READ,
                1 => mark::SHUT_WRITE,
                2 => mark::SHUT_READ | mark::SHUT_WRITE,
                _ => 0,
            });
            // An edge all the same (inet_shutdown(), net/ipv4/af_inet.c).
            poll::kernel_changes();
            None
        }
        Kind::Kernel => {
            // It is for the caller to see at once what that makes of it.
            poll::kernel_changes();
            None
        }
        Kind::Free | Kind::Epoll | Kind::Internal => None,
    }
}
