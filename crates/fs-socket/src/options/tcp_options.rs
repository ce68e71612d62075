//! Options of TCP: what they mean when a socket is a channel.
//!
//! The kernel has taken the value on the placeholder (and says it to getsockopt). If a core of the daemon does TCP for the
//! socket, the value goes to it through the channel's block, and what only it knows (TCP_INFO, the segment size, bytes not
//! acknowledged) is asked of it. Between two processes of this host there is no TCP: a peer that is gone is known at once,
//! so keepalive and user time-out have nothing to do; bytes are in the peer's queue when they are sent, but for those that
//! TCP_CORK and MSG_MORE hold back, so nothing is unacknowledged, paced or marked, or waits for Nagle's algorithm.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::io::IoSlice;
use std::time::Instant;

use fs_shm::{
    Channel, Shutdown,
    channel::{
        Algorithm, Answer, INFO, Options,
        sockopt::{Doer, Matters, SocketOption, matters},
        state::Phase,
    },
};
use libc::{
    SO_LINGER, SO_PEEK_OFF, SOL_SOCKET, SOL_TCP, TCP_CONGESTION, TCP_CORK, TCP_DEFER_ACCEPT, TCP_FASTOPEN, TCP_INFO,
    TCP_MAXSEG, TCP_NODELAY, TCP_QUICKACK,
};
use rustix::io::Errno;

use crate::{
    descriptor::table,
    process,
    socket::{Kind, Socket},
    sys::call,
    types::Fd,
};

/// A socket on which this was set before it was connected stays on the kernel. Turned off (0), it does not matter.
pub(crate) fn is_kernel_only(level: i32, name: i32, value: &[u8]) -> bool {
    matters(level, name, value).is_some()
}

/// Why an option cannot be set on a channel any more that would have kept it on the kernel: as from a kernel that does not
/// have it.
pub(crate) fn too_late(channel: &Channel<'static>, level: i32, name: i32, value: &[u8]) -> Option<Errno> {
    if (level, name) == (SOL_TCP, TCP_CONGESTION) {
        // The core answers, as the kernel for a module that it does not have (`set_first`).
        return None;
    }
    let matters = matters(level, name, value)?;
    let without_it = if (level, name) == (SOL_SOCKET, SO_PEEK_OFF) { Errno::OPNOTSUPP } else { Errno::NOPROTOOPT };
    (channel.is_wire() || matters == Matters::Everywhere).then_some(without_it)
}

/// What may have been set on a socket that was inherited: bits by [`Options::number`].
pub(crate) fn inherited() -> u32 {
    let is_told = |option: &SocketOption| matches!(option.doer, Doer::Core { is_ambiguous: false, .. });
    let numbers = Options::table().iter().enumerate().filter(|(_, option)| is_told(option));
    numbers.fold(0, |bits, (number, _)| bits | 1 << number)
}

/// setsockopt(2) of an option that the kernel does not have to allow; `None`: it goes to the kernel.
pub(crate) fn set_first(socket: &Socket, level: i32, name: i32, value: &[u8]) -> Option<Result<(), Errno>> {
    let channel = socket.channel().filter(Channel::is_wire)?;
    if (level, name) != (SOL_TCP, TCP_CONGESTION) || value.is_empty() {
        return None;
    }
    let known = Algorithm::from_name(value);
    if let Some(algorithm) = known {
        channel.change_options(|options| options.congestion = Some(algorithm));
    }
    // As the kernel answers for a module that it does not have.
    Some(known.map(drop).ok_or(Errno::NOENT))
}

/// The kernel has taken an option of this value.
pub(crate) fn was_set(fd: Fd, socket: &'static Socket, level: i32, name: i32, value: &[u8]) {
    if (level, name) == (SOL_TCP, TCP_QUICKACK)
        && let (Some(channel), Ok(on)) = (socket.channel(), call::int_option(fd, level, name))
    {
        return channel.set_quickack(on != 0);
    }
    let number = Options::number(level, name);
    match (socket.kind(), number) {
        (Kind::Channel, Some(number)) => {
            if let Some(channel) = socket.channel() {
                channel.change_options(|options| match (level, name) {
                    // Kept as it is given, as far as anybody looks: no question to the kernel for each connection that sets it.
                    // Of two threads that set it at once the note may keep the one's value and the kernel the other's.
                    (SOL_SOCKET, SO_LINGER) => {
                        let _known = options.note(number, &value[..value.len().min(Options::VALUE_MAX)]);
                    }
                    _ => read(fd, number, options),
                });
                limit_unsent(&channel);
                if level == SOL_TCP && matches!(name, TCP_NODELAY | TCP_CORK) {
                    set_cork(fd, &channel, name);
                }
            }
        }
        (Kind::Listener, _)
            if number.is_some() || matches!((level, name), (SOL_TCP, TCP_DEFER_ACCEPT | TCP_FASTOPEN)) =>
        {
            crate::listen::changed(fd, socket);
        }
        (Kind::Fresh, Some(number)) => {
            socket.wishes().fetch_or(1 << number, Relaxed);
        }
        _ => {}
    }
}

/// Reads an option's value as the kernel has it: it clamps some.
fn read(fd: Fd, number: usize, options: &mut Options) {
    let mut value = [0; Options::VALUE_MAX];
    let Some(&SocketOption { level, name, .. }) = Options::table().get(number) else { return };
    if let Ok(len) = call::getsockopt(fd, level, name, &mut value) {
        // A value that the stack has nothing for: refused before (`set_first`), or the socket stays on the kernel.
        let _known = options.note(number, &value[..len.min(Options::VALUE_MAX)]);
    }
}

/// What was set on a socket that is about to be connected.
pub(crate) fn gather(fd: Fd, socket: &Socket) -> Options {
    let mut options = Options::default();
    let wishes = socket.wishes().load(Relaxed);
    for number in (0..Options::table().len()).filter(|number| wishes >> number & 1 != 0) {
        read(fd, number, &mut options);
    }
    options
}

/// TCP_NOTSENT_LOWAT: what is in the ring is not sent either, so the ring does not grow beyond it.
pub(crate) fn limit_unsent(channel: &Channel<'static>) {
    let low = channel.options().not_sent_low;
    if low != 0 && channel.is_wire() {
        channel.set_buffer(true, low);
    }
}

/// How long the core may take to answer a question. It takes microseconds; one that is stopped must not hang the program.
const PATIENCE: Duration = Duration::from_millis(200);

/// Asks the core. `None`: there is none behind this channel (yet), or it does not answer.
pub(crate) fn ask(channel: &Channel<'static>) -> Option<Answer> {
    let open = channel.state().is_some_and(|state| state.phase() == Phase::Open);
    (open && channel.is_wire()).then(|| channel.ask(PATIENCE))?
}

/// Place of `tcpi_notsent_bytes` in `struct tcp_info`.
const NOT_SENT: usize = 144;

/// getsockopt(2) of what only the core knows; `None`: the placeholder's value is the answer.
pub(crate) fn get(socket: &Socket, level: i32, name: i32, value: &mut [u8]) -> Option<usize> {
    if level != SOL_TCP || !matches!(name, TCP_INFO | TCP_MAXSEG | TCP_CONGESTION) {
        return None;
    }
    let channel = socket.channel()?;
    let Answer { info, congestion, .. } = ask(&channel)?;
    let mut bytes = [0; INFO];
    let len = match name {
        TCP_INFO => {
            bytes = info;
            if let Some(unsent) = bytes[NOT_SENT..].first_chunk_mut::<4>() {
                let all = u32::from_ne_bytes(*unsent).saturating_add(channel.queued_out() as u32);
                *unsent = all.to_ne_bytes();
            }
            INFO
        }
        TCP_MAXSEG => {
            // tcpi_snd_mss.
            bytes[..4].copy_from_slice(&info[16..20]);
            4
        }
        _ => {
            let name = congestion?.name().as_bytes();
            bytes[..name.len()].copy_from_slice(name);
            // TCP_CA_NAME_MAX of include/net/tcp.h.
            16
        }
    };
    let len = len.min(value.len());
    value[..len].copy_from_slice(&bytes[..len]);
    Some(len)
}

/// SIOCOUTQ: bytes that were sent and not acknowledged; SIOCOUTQNSD: those of them that were not sent yet.
pub(crate) fn queued_out(channel: &Channel<'static>, only_unsent: bool) -> usize {
    if !channel.is_wire() {
        // They are in the peer's queue, where TCP would have acknowledged them.
        return channel.held();
    }
    let ring = channel.queued_out();
    let answer = ask(channel);
    ring + answer.map_or(0, |answer| if only_unsent { answer.unsent } else { answer.unacknowledged }) as usize
}

/// SO_LINGER with a time: the last close waits until the peer has acknowledged everything, as the kernel does. Between
/// two processes it has.
pub(crate) fn linger(socket: &'static Socket) {
    let seconds = socket.linger().load(Relaxed);
    let Some(channel) = socket.channel().filter(Channel::is_wire) else { return };
    if seconds <= 1 || socket.descriptors() != 1 || channel.refs() > 1 || channel.queued_in() != 0 {
        return;
    }
    let until = Instant::now() + Duration::from_secs(u64::from(seconds) - 1);
    // Not connected (any more): there is nothing to wait for, as below.
    let _shut = channel.shutdown(Shutdown::Write);
    let mut pause = Duration::from_micros(100);
    while let Some(answer) = ask(&channel) {
        // TCP_FIN_WAIT1, TCP_LAST_ACK, TCP_CLOSING: the FIN is not acknowledged.
        let done =
            channel.queued_out() == 0 && answer.unacknowledged == 0 && !matches!(answer.info[0], 1 | 4 | 8 | 9 | 11);
        if done || Instant::now() >= until {
            return;
        }
        let nap = rustix::thread::Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
        if let rustix::thread::NanosleepRelativeResult::Interrupted(_) = rustix::thread::nanosleep(&nap) {
            // A signal ends the wait (sk_stream_wait_close() of the kernel).
            return;
        }
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Whether a descriptor's close may wait.
pub(crate) fn before_close(fd: Fd) {
    if let Some(held) = table::socket(fd)
        && held.unheld().linger().load(Relaxed) > 1
    {
        linger(held.unheld());
    }
}

/// MSG_MORE: what does not fill a segment waits for the next bytes.
#[cold]
pub(crate) fn send_more(channel: &Channel<'static>, bufs: &[IoSlice<'_>], total: usize) -> Result<usize, Errno> {
    if channel.is_wire() {
        channel.more_after(total);
        return channel.send_near(bufs);
    }
    channel.send_more(bufs)
}

/// Bytes that are held back are so for 200 ms at most: the kernel's timer for them is that of a retransmission
/// (tcp_check_probe_timer(), TCP_RTO_MIN).
#[cold]
pub(crate) fn record_held(channel: &Channel<'static>) {
    const MOST: Duration = Duration::from_millis(200);
    if channel.due() != 0 {
        return;
    }
    if !process::due(channel, MOST) {
        // Nobody would let them go.
        channel.let_go();
    }
}

/// TCP_CORK was set or taken off, or TCP_NODELAY was set, which pushes what is there.
fn set_cork(fd: Fd, channel: &Channel<'static>, name: i32) {
    if channel.is_wire() {
        return;
    }
    match call::int_option(fd, SOL_TCP, name) {
        Ok(on) if name == TCP_CORK => channel.set_cork(on != 0),
        Ok(on) if on != 0 => channel.let_go(),
        _ => {}
    }
}

/// What an accepted or opened channel has to know of SO_LINGER for the case that the process is killed.
pub(crate) fn record_linger(socket: &Socket, channel: &Channel<'static>) {
    let resets = socket.linger().load(Relaxed) == 1;
    if resets != channel.options().reset_on_close {
        channel.change_options(|options| options.reset_on_close = resets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherited_sockets_carry_what_can_be_told() {
        let number = |level, name| Options::number(level, name).unwrap();
        let has = |level, name| inherited() >> number(level, name) & 1 != 0;
        assert!(has(SOL_TCP, TCP_NODELAY) && has(SOL_SOCKET, libc::SO_KEEPALIVE) && has(SOL_TCP, libc::TCP_KEEPIDLE));
        assert!(!has(SOL_SOCKET, libc::SO_RCVBUF) && !has(SOL_TCP, TCP_MAXSEG));
    }
}
