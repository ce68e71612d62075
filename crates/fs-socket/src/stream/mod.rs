//! Bytes.

pub(crate) mod ancillary;
pub(crate) mod buffers;
pub mod channel;
pub mod connect;
mod reset;

use std::{
    io::{IoSlice, IoSliceMut},
    time::{Duration, Instant},
};

use fs_shm::{Channel, Interest, RecvFlags, Wait, WaitEnd};
use rustix::io::Errno;

use crate::{
    descriptor::{is_own, kept, table},
    options::{AT_ONCE, tcp_options},
    socket::{Kind, Socket, mark},
    stream::channel::Patience,
    sys::iovec,
    types::{Fd, IoVec, IoVecMut, Ours, Received, flags},
};

/// The send family: `send`, `sendto` (`destination`), `sendmsg` (`control`: the raw ancillary data), `write`, `writev`.
/// `flags`: see [`crate::flags`]. Where it answers EPIPE the caller raises SIGPIPE in the calling thread unless
/// `flags::NOSIGNAL` was given. A connected stream takes no notice of `destination` (tcp_sendmsg() of the kernel) nor of
/// ancillary data.
#[inline]
pub fn send(fd: Fd, bufs: &[IoVec<'_>], flags: u32, _destination: Option<&[u8]>, _control: &[u8]) -> Ours<usize> {
    let (socket, channel) = connection(fd)?;
    let Some(channel) = channel else {
        // MSG_FASTOPEN connects.
        kept::spoil(socket);
        return disconnected(fd, socket);
    };
    let mut room = iovec::Room::new();
    Some(iovec::to_send(bufs, &mut room).and_then(|(bufs, total)| send_on(fd, socket, &channel, bufs, total, flags)))
}

fn send_on(
    fd: Fd,
    socket: &'static Socket,
    channel: &Channel<'static>,
    bufs: &[IoSlice<'_>],
    total: usize,
    flags: u32,
) -> Result<usize, Errno> {
    if flags & flags::OOB != 0 {
        return send_urgent(fd, socket, channel, bufs, flags);
    }
    let answer =
        if flags & flags::MORE != 0 { tcp_options::send_more(channel, bufs, total) } else { channel.send_near(bufs) };
    match answer {
        Ok(sent) if sent == total => {
            if channel.is_holding() {
                tcp_options::record_held(channel);
            }
            Ok(sent)
        }
        Ok(sent) => send_rest(fd, socket, channel, bufs, total, flags, sent),
        Err(Errno::AGAIN) => send_rest(fd, socket, channel, bufs, total, flags, 0),
        Err(errno) => Err(errno),
    }
}

/// The socket behind a number, and its channel if it is one.
#[inline]
fn connection(fd: Fd) -> Option<(&'static Socket, Option<Channel<'static>>)> {
    let entry = table::entry(fd)?;
    loop {
        let socket = entry.load()?;
        let channel = socket.channel();
        // Closed in between, its memory may be another connection's by now. The entry went before that.
        if core::ptr::eq(entry.load()?, socket) {
            return Some((socket, channel));
        }
    }
}

/// Not a channel: the kernel's, but for the error that a disconnect left.
#[cold]
fn disconnected<T>(fd: Fd, socket: &Socket) -> Ours<T> {
    if is_own(fd, socket) {
        return Some(Err(Errno::BADF));
    }
    (socket.kind() == Kind::Fresh && socket.unmark(mark::DISCONNECTED)).then_some(Err(Errno::CONNRESET))
}

/// How long a blocking send waits for a reader that may be about to read, before what it does not read goes into a large ring.
/// Longer: programs that send first, and read later, are slower. Shorter: a stream whose reader is put off the CPU now and then
/// leaves the caches.
const NEAR: Duration = Duration::from_millis(1);

/// Sends what is behind the first `sent` bytes, waiting for room if the socket blocks.
#[cold]
fn send_rest(
    fd: Fd,
    socket: &'static Socket,
    channel: &Channel<'static>,
    bufs: &[IoSlice<'_>],
    total: usize,
    flags: u32,
    mut sent: usize,
) -> Result<usize, Errno> {
    let mut waits = blocks(channel, flags);
    let mut held = None;
    let mut near = waits;
    // For a reader that may be about to read; for longer than that.
    let (mut waited_near, mut waited) = (false, false);
    let mut patience = Patience::new(socket.timeout(true));
    if sent != 0 && channel.is_reset() {
        // The error is for the next call.
        return Ok(if waits { channel.taken_in_vain(sent, total) } else { sent });
    }
    if total == 0 {
        // Not connected yet: that is waited for before there is a look at the bytes (tcp_sendmsg_locked()).
        if !waits {
            return Err(Errno::AGAIN);
        }
        let _held = channel::hold(fd, socket).ok_or(Errno::BADF)?;
        patience.wait(channel, Interest::Connected)?;
        return channel.send_near(bufs);
    }
    while sent < total {
        let piece = behind(bufs, sent);
        let answer = if near { channel.send_near(&[IoSlice::new(piece)]) } else { channel.send_one(piece) };
        let full = match answer {
            Ok(more) => {
                sent += more;
                more < piece.len()
            }
            Err(Errno::AGAIN) => true,
            Err(errno) => {
                // One that was there before the call is this call's.
                if (sent != 0 || waited_near) && !waited {
                    sent = channel.taken_in_vain(sent, total);
                }
                if sent != 0 {
                    channel::keep_error(channel, errno);
                }
                return channel::part(sent, errno);
            }
        };
        if !full {
            continue;
        }
        if patience.begins_again() {
            waits = blocks(channel, flags);
        }
        if !waits {
            return channel::part(sent, Errno::AGAIN);
        }
        if held.is_none() {
            held = channel::hold(fd, socket);
            if held.is_none() {
                return channel::part(sent, Errno::BADF);
            }
        }
        if near {
            let deadline = Instant::now().checked_add(NEAR);
            // However it ends: the kernel would have taken the bytes.
            waited_near = true;
            near = channel.wait(Interest::Room, Wait { deadline, ..Wait::default() }) == WaitEnd::Ready;
        } else {
            waited = true;
            if let Err(errno) = patience.moved(sent).wait(channel, Interest::Write) {
                return channel::part(sent, errno);
            }
            near = true;
        }
    }
    Ok(sent)
}

/// MSG_OOB: the last byte is urgent.
#[cold]
fn send_urgent(
    fd: Fd,
    socket: &'static Socket,
    channel: &Channel<'static>,
    bufs: &[IoSlice<'_>],
    flags: u32,
) -> Result<usize, Errno> {
    let mut patience = Patience::new(socket.timeout(true));
    let mut waits = blocks(channel, flags);
    loop {
        match channel.send_urgent(bufs) {
            Err(Errno::AGAIN) if waits => {
                let _held = channel::hold(fd, socket).ok_or(Errno::BADF)?;
                patience.wait(channel, Interest::Write)?;
                if patience.begins_again() {
                    waits = blocks(channel, flags);
                }
            }
            answer => return answer,
        }
    }
}

/// The first piece of what lies behind `skip` bytes.
fn behind<'a>(bufs: &'a [IoSlice<'_>], mut skip: usize) -> &'a [u8] {
    for buf in bufs {
        if skip < buf.len() {
            return &buf[skip..];
        }
        skip -= buf.len();
    }
    &[]
}

/// The receive family: `recv`, `recvfrom`, `recvmsg`, and with [`flags::FILE`] `read` and `readv`.
#[inline]
pub fn recv(fd: Fd, bufs: &mut [IoVecMut<'_>], flags: u32) -> Ours<Received> {
    let (socket, channel) = connection(fd)?;
    let Some(channel) = channel else { return disconnected(fd, socket) };
    let mut room = iovec::Room::new();
    Some(
        iovec::to_receive(bufs, flags & flags::TRUNC != 0, &mut room)
            .and_then(|(bufs, total)| recv_on(fd, socket, &channel, bufs, total, flags)),
    )
}

/// Flags that leave the fast path.
const SPECIAL: u32 = flags::OOB | flags::ERRQUEUE | flags::WAITALL | flags::PEEK | flags::TRUNC;

#[inline]
fn recv_on(
    fd: Fd,
    socket: &'static Socket,
    channel: &Channel<'static>,
    bufs: &mut [IoSliceMut<'_>],
    total: usize,
    flags: u32,
) -> Result<Received, Errno> {
    if flags & SPECIAL == 0 && total != 0 {
        match channel.recv(bufs, RecvFlags::default()) {
            // SO_RCVLOWAT above 1 is looked after below.
            Ok(bytes) if bytes == 0 || bytes >= channel.rcvlowat().min(total) || !blocks(channel, flags) => {
                return Ok(Received { bytes, flags: 0 });
            }
            Ok(bytes) => return recv_more(fd, socket, channel, bufs, total, flags, bytes),
            Err(Errno::AGAIN) if blocks(channel, flags) => {}
            Err(errno) => return Err(errno),
        }
    }
    if total == 0 && flags & flags::FILE != 0 {
        // read(2) of nothing does not look at the socket (sock_read_iter() of the kernel).
        return Ok(Received::default());
    }
    if flags & flags::ERRQUEUE != 0 {
        return Err(Errno::AGAIN);
    }
    if flags & flags::OOB != 0 {
        return recv_urgent(channel, bufs, total, flags);
    }
    recv_more(fd, socket, channel, bufs, total, flags, 0)
}

/// The slow path: waits, and collects until there is enough. `bytes` are in `bufs` already.
#[cold]
fn recv_more(
    fd: Fd,
    socket: &'static Socket,
    channel: &Channel<'static>,
    bufs: &mut [IoSliceMut<'_>],
    total: usize,
    flags: u32,
    mut bytes: usize,
) -> Result<Received, Errno> {
    let how = RecvFlags { peek: flags & flags::PEEK != 0, discard: flags & flags::TRUNC != 0 };
    let all = flags & flags::WAITALL != 0;
    // sock_rcvlowat() of the kernel.
    let target = if all { total } else { channel.rcvlowat().min(total) }.max(1);
    let mut patience = Patience::new(socket.timeout(false));
    let mut waits = blocks(channel, flags);
    let mut held = None;
    let done = |bytes: usize, errno: Errno| channel::part(bytes, errno).map(|bytes| Received { bytes, flags: 0 });
    loop {
        let answer = if how.peek || bytes == 0 {
            // A peek begins from the front again each time.
            receive_pieces(channel, bufs, if how.peek { 0 } else { bytes }, total, how)
        } else {
            receive_pieces(channel, bufs, bytes, total, how)
        };
        match answer {
            Ok(0) => return Ok(Received { bytes, flags: 0 }),
            Ok(more) => {
                bytes = if how.peek { more } else { bytes + more };
                if bytes >= target || total == 0 {
                    return Ok(Received { bytes, flags: 0 });
                }
            }
            Err(Errno::AGAIN) => {}
            Err(errno) => {
                if bytes != 0 {
                    channel::keep_error(channel, errno);
                }
                return done(bytes, errno);
            }
        }
        if patience.begins_again() {
            waits = blocks(channel, flags);
        }
        if !waits {
            return done(bytes, Errno::AGAIN);
        }
        let seen = match (how.peek, channel.at_mark()) {
            _ if bytes == 0 => Some(0),
            (true, _) => channel.peeked(bytes),
            (false, at_mark) => (!at_mark).then_some(bytes),
        };
        let Some(seen) = seen else {
            // A read ends at the urgent mark.
            return Ok(Received { bytes, flags: 0 });
        };
        if held.is_none() {
            held = channel::hold(fd, socket);
            if held.is_none() {
                return done(bytes, Errno::BADF);
            }
        }
        // What asks for nothing waits once, and a signal is the end of that too.
        patience.moved(if total == 0 { 1 } else { bytes });
        let waited = if how.peek && bytes != 0 {
            patience.wait_for_more(channel, seen)
        } else if bytes != 0 && channel.rcvlowat() > 1 {
            // What is there is taken as it comes, until it is enough.
            patience.wait(channel, Interest::More(0))
        } else {
            patience.wait(channel, Interest::Read)
        };
        match waited {
            // Nothing was asked for: it waits once (the loop of tcp_recvmsg_locked() ends by its length), unless it may not wait at all.
            Err(Errno::AGAIN) if total == 0 && socket.timeout(false) == AT_ONCE => return Err(Errno::AGAIN),
            Err(Errno::AGAIN | Errno::INTR) if total == 0 => return Ok(Received::default()),
            Ok(()) if total == 0 && channel.is_ready(Interest::Read) => return Ok(Received::default()),
            // For bytes, or to look again: the daemon wakes all when one that shares the connection ends.
            Ok(()) => {}
            // Nothing has been taken: the call is made again.
            Err(errno @ channel::CANCELLED) if how.peek => return Err(errno),
            Err(errno) => return done(bytes, errno),
        }
    }
}

/// Bytes that one call may count: those in front of the urgent one, or behind it if that is next.
pub(super) fn to_mark(channel: &Channel<'static>) -> usize {
    match channel.queued_to_mark() {
        0 => channel.queued_in().saturating_sub(1),
        some => some,
    }
}

/// MSG_TRUNC: `want` bytes leave the queue (or are counted, with `peek`), and no buffer is looked at.
fn discard(channel: &Channel<'static>, want: usize, peek: bool) -> Result<usize, Errno> {
    let mut scratch = [0; 4096];
    let mut dropped = 0;
    loop {
        let room = &mut scratch[..(want - dropped).min(4096)];
        match channel.recv(&mut [IoSliceMut::new(room)], RecvFlags { peek, discard: true }) {
            Ok(some) if peek && some != 0 => return Ok(to_mark(channel).min(want)),
            Ok(some) => {
                dropped += some;
                // A read ends at the urgent mark.
                if some == 0 || dropped == want || channel.at_mark() {
                    return Ok(dropped);
                }
            }
            Err(errno) if dropped != 0 => {
                channel::keep_error(channel, errno);
                return Ok(dropped);
            }
            Err(errno) => return Err(errno),
        }
    }
}

/// Receives behind the first `skip` bytes of the buffers; 0: the end.
fn receive_pieces(
    channel: &Channel<'static>,
    bufs: &mut [IoSliceMut<'_>],
    mut skip: usize,
    total: usize,
    how: RecvFlags,
) -> Result<usize, Errno> {
    if how.discard {
        return discard(channel, total - skip, how.peek);
    }
    if skip == 0 {
        return match channel.recv(bufs, how) {
            // Nothing was asked for, and something is there: the loop above is to end.
            Ok(0) if total == 0 => Ok(0),
            answer => answer,
        };
    }
    for buf in bufs {
        if skip < buf.len() {
            return channel.recv(&mut [IoSliceMut::new(&mut buf[skip..])], how);
        }
        skip -= buf.len();
    }
    Ok(0)
}

/// MSG_OOB (tcp_recv_urg() of the kernel).
#[cold]
fn recv_urgent(
    channel: &Channel<'static>,
    bufs: &mut [IoSliceMut<'_>],
    total: usize,
    flags: u32,
) -> Result<Received, Errno> {
    let byte = channel.recv_urgent(flags & flags::PEEK != 0)?;
    if total == 0 {
        return Ok(Received { bytes: 0, flags: flags::OOB | flags::TRUNC });
    }
    // With MSG_TRUNC it is counted and goes nowhere.
    if let Some(first) = bufs.iter_mut().find(|buf| !buf.is_empty() && flags & flags::TRUNC == 0) {
        first[0] = byte;
    }
    Ok(Received { bytes: 1, flags: flags::OOB })
}

/// Whether a call that begins now waits. One that has begun goes by what it was then (sock_rcvtimeo(), sock_sndtimeo() of the kernel).
#[inline]
fn blocks(channel: &Channel<'static>, flags: u32) -> bool {
    flags & flags::DONTWAIT == 0 && channel.status() & channel::O_NONBLOCK == 0
}

/// How many bytes would be taken now, at least; waits for some if the socket blocks (for splice).
pub(crate) fn room(fd: Fd, flags: u32) -> Result<usize, Errno> {
    let (socket, channel) = connection(fd).ok_or(Errno::BADF)?;
    let channel = channel.ok_or(Errno::BADF)?;
    let mut patience = Patience::new(socket.timeout(true));
    let mut waits = blocks(&channel, flags);
    loop {
        if channel.takes_in_vain() {
            return Ok(usize::MAX);
        }
        match channel.writing() {
            Ok(mut writing) => match writing.chunk(1) {
                Ok(chunk) => return Ok(chunk.len()),
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            },
            Err(Errno::AGAIN) => {}
            Err(errno) => return Err(errno),
        }
        if patience.begins_again() {
            waits = blocks(&channel, flags);
        }
        if !waits {
            return Err(Errno::AGAIN);
        }
        let _held = channel::hold(fd, socket).ok_or(Errno::BADF)?;
        patience.wait(&channel, Interest::Write)?;
    }
}

/// What splice(2) answers that begins at the urgent mark, which it cannot pass, whether the byte was read or not (tcp_splice_read(),
/// tcp_read_sock() of the kernel). `None`: it does not begin there.
pub(crate) fn splice_at_mark(fd: Fd) -> Option<Result<usize, Errno>> {
    let channel = table::find(fd)?.channel()?;
    if !channel.at_mark() {
        return None;
    }
    Some(match channel.take_error() {
        Some(errno) => Err(errno),
        None if blocks(&channel, 0) || channel::at_end(&channel) => Ok(0),
        None => Err(Errno::AGAIN),
    })
}

/// The pending error of a connection, as SO_ERROR takes it.
pub fn take_error(fd: Fd) -> Option<Errno> {
    connection(fd)?.1?.take_error()
}

/// Whether bytes go through us (for sendfile and splice).
pub fn is_channel(fd: Fd) -> bool {
    table::find(fd).is_some_and(|socket| socket.kind() == Kind::Channel)
}
