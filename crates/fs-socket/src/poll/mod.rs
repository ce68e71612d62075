//! epoll, poll and select over channels and kernel descriptors.
//!
//! | module | holds |
//! |---|---|
//! | `set` | an epoll set: registrations, what it sleeps on |
//! | `sources` | where the readiness of a registration comes from |
//! | `ready` | what is ready, and sleeping without missing anything |
//! | `interest` | its registrations |
//! | `ctl`, `wait` | epoll_ctl, epoll_wait |
//! | `descriptors`, [`select`] | poll, select |
//! | `fired` | one-shots that the kernel has delivered |
//! | `inherit` | the sets of a new image |
//! | `orphan` | waits without a daemon |
//! | `spin` | how long to look before sleeping |
//! | `shared`, `book` | what several processes change of a set that all have, and where that stands |
//! | `registry` | the sets of the process |
//!
//! The functions at the end are called by the rest of the crate.

mod book;
mod ctl;
mod descriptors;
mod fired;
pub(crate) mod inherit;
mod interest;
mod orphan;
mod ready;
mod registry;
mod rest;
mod select;
mod set;
mod shared;
mod sources;
pub(crate) mod spin;
mod sys;
#[cfg(test)]
mod tests;
mod turn;
mod wait;

use std::time::Duration;

use rustix::io::Errno;

use self::interest::Entry;
use crate::{
    descriptor::table,
    listen, process,
    socket::{Socket, mark},
    types::{Fd, Ours},
};

pub use crate::slice::CANCEL as CANCEL_SLICE;
pub(crate) use descriptors::sleep_on_channel;
pub(crate) use registry::grow;
pub(crate) use shared::before_fork;

/// An entry of poll(2), laid out as `struct pollfd`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PollFd {
    /// The descriptor; below 0: ignored.
    pub fd: Fd,
    /// What is asked for (`POLL*`).
    pub events: i16,
    /// What is there.
    pub revents: i16,
}

/// An event of epoll(7), laid out as `struct epoll_event` (packed on x86-64).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[cfg_attr(target_arch = "x86_64", repr(packed))]
pub struct EpollEvent {
    /// `EPOLL*`.
    pub events: u32,
    /// The application's.
    pub data: u64,
}

/// `epoll_ctl(2)`. `None`: nothing of ours is concerned, make the kernel's call.
pub fn epoll_ctl(set: Fd, operation: i32, fd: Fd, event: Option<EpollEvent>) -> Ours<()> {
    ctl::control(set, operation, fd, event)
}

/// `epoll_wait(2)` and its kin. `timeout` `None`: without end. `mask`: the signals blocked meanwhile.
///
/// `None`: the kernel's call is to be made, and its events passed through [`strip`].
pub fn epoll_wait(fd: Fd, events: &mut [EpollEvent], timeout: Option<Duration>, mask: Option<u64>) -> Ours<usize> {
    let Some(index) = table::epoll(fd) else {
        return ctl::is_librarys(fd).then_some(Err(Errno::BADF));
    };
    let set = registry::find(index)?;
    let life = set.life();
    // Closed since, and used for another set of the application's: that one's life is not this call's.
    if table::epoll(fd) != Some(index) {
        return None;
    }
    let deadline = wait::Deadline::new(timeout);
    if !set.is_active() {
        // Without a listener nothing comes to where this set does not look.
        if !listen::is_any() || !process::may_be_attached() || deadline.is_now() {
            return None;
        }
        if let Some(answer) = orphan::wait(fd, set, life, events, &deadline, mask) {
            return Some(answer);
        }
        if !set.is_active() && set.life() == life {
            return None;
        }
    }
    Some(wait::wait(fd, set, life, events, deadline.left_of(timeout), mask))
}

/// What the kernel's epoll_wait has brought: answers how many events are the application's, in front. Fewer than there
/// were: the set has become ours while the call slept; if none is left, call [`epoll_wait`] again.
#[inline]
pub fn strip(set: Fd, events: &mut [EpollEvent]) -> usize {
    if events.iter().all(|event| { event.data } != set::KICK) {
        return events.len();
    }
    match table::epoll(set).and_then(registry::find).and_then(set::Set::lock_unread) {
        Some(mut inner) => wait::strip(&mut inner, events),
        // Another process's kick, in a set that both have.
        None => wait::without_kicks(events),
    }
}

/// `poll(2)`, `ppoll(2)`. `None`: no descriptor is ours.
pub fn poll(fds: &mut [PollFd], timeout: Option<Duration>, mask: Option<u64>) -> Ours<usize> {
    let answer = descriptors::poll(fds, timeout, mask)?;
    fds.iter_mut().for_each(|entry| entry.revents &= !descriptors::GONE);
    Some(answer)
}

/// `select(2)`, `pselect(2)`: sets of descriptors below `n` as bits. `None`: no descriptor in them is ours.
/// `left` is the time that is left afterwards.
pub fn select(
    n: usize,
    sets: [Option<&mut [u64]>; 3],
    timeout: Option<Duration>,
    mask: Option<u64>,
    left: &mut Option<Duration>,
) -> Ours<usize> {
    select::select(n, sets, timeout, mask, left)
}

/// With the bits that the kernel's TCP reports beside IN and OUT (tcp_poll(), net/ipv4/tcp.c).
fn expand(ready: u32) -> u32 {
    const IN: u32 = 0x1;
    const OUT: u32 = 0x4;
    const RDNORM: u32 = 0x40;
    const WRNORM: u32 = 0x100;
    ready | if ready & IN != 0 { RDNORM } else { 0 } | if ready & OUT != 0 { WRNORM } else { 0 }
}

/// Closes a descriptor of our own.
fn forget(fd: Fd) {
    table::unset_internal(fd);
    // It can only be bad if the application closed it behind our back.
    let _ = crate::sys::call::close(fd);
}

/// A descriptor of a socket is being closed (or replaced by dup2); `last`: it was the last of this socket in this process.
/// Called before the number can be reused. Answers whether a registration holds the socket from here on: that of a listener which
/// other processes have open.
pub(crate) fn closed(fd: Fd, socket: &Socket, last: bool) -> bool {
    let mut is_registered = false;
    if last {
        // As on the kernel, where a registration ends with the open file, not with a descriptor of it.
        let is_held_elsewhere =
            socket.channel().is_some_and(|channel| channel.refs() > 1) || crate::listen::is_others(socket);
        each_entry(socket, is_held_elsewhere || socket.marked(mark::SEVERAL), |inner, at| {
            if is_held_elsewhere {
                inner.keep_file(at, fd);
            }
            if inner.interest.get_mut(at).is_some_and(Entry::outlive) {
                is_registered |= inner.interest.get(at).is_some_and(|entry| entry.holds);
                return;
            }
            inner.count_edges();
            inner.drop_entry(at);
        });
    }
    is_registered
}

/// The registrations of a listener that this process has closed are over.
pub(crate) fn ended(socket: &Socket) {
    each_entry(socket, true, |inner, at| {
        if inner.interest.get(at).is_some_and(|entry| entry.holds) {
            inner.count_edges();
            inner.drop_entry(at);
        }
    });
}

/// What has to be watched for this socket has changed (connect made it a channel, listen a listener, a fall back to the
/// kernel), or this process has changed what is ready (shutdown, an error).
pub(crate) fn changed(socket: &Socket) {
    each_entry(socket, socket.descriptors() == 0 || socket.marked(mark::SEVERAL), |inner, at| {
        if inner.interest.get(at).is_some_and(|entry| entry.holds && !entry.is_valid()) {
            return inner.drop_entry(at);
        }
        inner.moved(at);
        if inner.sleepers > 0 {
            inner.ring();
        }
    });
}

/// A call of this process has those told that wait for data ([`Readiness::IN`]) or space ([`Readiness::OUT`]), if there is some,
/// more than before or not (sk_data_ready, sk_write_space of the kernel).
pub(crate) fn tell(socket: &Socket, what: u32) {
    if socket.readiness().0 & what == 0 {
        return;
    }
    each_entry(socket, true, |inner, at| {
        if inner.interest.get(at).is_some_and(|entry| entry.event.events & what != 0) {
            inner.moved(at);
            if inner.sleepers > 0 {
                inner.ring();
            }
        }
    });
}

/// This process is about to have the kernel end a listener: what of ours is ready in its sets was so before that.
pub(crate) fn about_to_end(socket: &Socket) {
    each_entry(socket, true, |inner, _| {
        inner.look_before();
        inner.waits = wait::LOOK;
    });
}

/// This process is about to change what a descriptor of the kernel's has: the sets that it may be in look there next time.
pub(crate) fn kernel_changes() {
    wait::KERNEL_CHANGES.fetch_add(1, core::sync::atomic::Ordering::Release);
}

/// A kernel descriptor that is no socket of ours is being closed or replaced. The kernel's set drops it by itself; what it was an
/// end of may be in the set too.
pub(crate) fn kernel_closed(_fd: Fd) {
    kernel_changes();
}

/// As [`kernel_closed`], a range of numbers.
pub(crate) fn kernel_range_closed(_first: u32, _last: u32) {
    kernel_changes();
}

/// The last descriptor of an epoll set in this process is gone.
pub(crate) fn epoll_closed(index: u32) {
    if registry::find(index).is_some_and(set::Set::close) {
        registry::give_back(index);
    }
}

/// What [`sleep_on`] answers for a descriptor of [`watch_edges`].
pub(crate) const EDGE: u64 = 1;
/// EPOLLIN, EPOLLET.
const EDGES: u32 = 0x1 | 1 << 31;
/// The same for a connection of [`watch_end`].
pub(crate) const END: u64 = 2;
/// EPOLLHUP, EPOLLET.
const ENDS: u32 = 0x10 | 1 << 31;

/// Has a poller's set tell of a kernel descriptor's edges, one sleeper for each.
pub(crate) fn watch_edges(set: Fd, fd: Fd) {
    // EEXIST: another process that shares the set was first.
    let _ = sys::kernel::epoll_ctl(set, set::ADD, fd, Some(EpollEvent { events: EDGES, data: EDGE }));
}

/// Has a poller's set tell of a connection's end, one sleeper. False: it cannot.
pub(crate) fn watch_end(set: Fd, fd: Fd) -> bool {
    let added = sys::kernel::epoll_ctl(set, set::ADD, fd, Some(EpollEvent { events: ENDS, data: END }));
    matches!(added, Ok(()) | Err(Errno::EXIST))
}

/// One sleeper knows of the end: the next one is told.
pub(crate) fn renew_end(set: Fd, fd: Fd) {
    // EBADF, ENOENT: the attachment has been replaced; who sleeps on looks by himself, later.
    let _ = sys::kernel::epoll_ctl(set, set::MOD, fd, Some(EpollEvent { events: ENDS, data: END }));
}

/// If the descriptor is readable, that is a new edge. In a set that has it under another process's number: it is told of
/// under this one too.
pub(crate) fn renew_edge(set: Fd, fd: Fd) {
    if sys::kernel::epoll_ctl(set, set::MOD, fd, Some(EpollEvent { events: EDGES, data: EDGE })).is_err() {
        watch_edges(set, fd);
    }
}

/// Sleeps on a poller's set, as one of many; takes one event. `None`: the time is over.
pub(crate) fn sleep_on(set: Fd, time: core::time::Duration) -> Result<Option<u64>, Errno> {
    let mut event = [EpollEvent::default()];
    let n = sys::kernel::epoll_wait(set, &mut event, Some(time), None)?;
    Ok((n != 0).then_some(event[0].data))
}

/// Whether a poller's set has an event that nobody has taken.
pub(crate) fn is_readable(set: Fd) -> bool {
    let mut one = [PollFd { fd: set, events: 1, revents: 0 }];
    sys::kernel::ppoll(&mut one, Some(Duration::ZERO), None).is_ok_and(|ready| ready != 0)
}

/// Takes the events of a poller's set, whose descriptor is `set`.
pub(crate) fn take_events(set: Fd) {
    // At most one: the set has one member. EBADF: the application closed it behind our back.
    let _ = sys::kernel::epoll_wait(set, &mut [EpollEvent::default()], Some(core::time::Duration::ZERO), None);
}

/// This process is about to confine itself.
pub(crate) fn confine() {
    // What the filter forbids this process must not do by memory, nor look for in /proc.
    registry::each(|set| {
        if let Some(mut inner) = set.lock_unread() {
            inner.end_shared();
        }
    });
    rest::prepare();
}

/// Threads are cancelled from now on: who sleeps without end looks after that.
pub(crate) fn recall() {
    ring_sleepers();
    rest::recall();
}

/// Wakes a thread of each set that has sleepers.
fn ring_sleepers() {
    registry::each(|set| {
        // `None`: held by this very thread, which does not sleep.
        if let Some(inner) = set.lock_unread().filter(|inner| inner.sleepers > 0) {
            inner.ring();
        }
    });
}

/// This thread has jumped out of what it was in the middle of.
pub(crate) fn jumped() {
    registry::jumped();
}

pub(crate) use rest::abandon;

/// In a forked child, when its attachment stands.
pub(crate) fn forked() {
    registry::forked();
    Socket::each(Socket::end_unregistered);
    rest::forked();
}

/// The registrations of a socket. Sets that this very thread holds (a signal handler) are passed over: they find dead
/// entries themselves. Of a socket that has had several numbers there may be some under another than the one it has (`all`).
fn each_entry(socket: &Socket, all: bool, mut visit: impl FnMut(&mut set::Inner, u32)) {
    let identity = socket.identity();
    registry::each(|set| {
        let was_active = set.is_active();
        // What others have taken out is found by the next look: until then a closed socket's entry keeps its file in mind.
        let Some(mut inner) = set.lock_unread() else { return };
        let number = inner.interest.find(socket.number(), identity);
        if let Some(at) = number {
            visit(&mut inner, at);
        }
        if all {
            for at in inner.interest.places() {
                if inner.interest.get(at).is_some_and(|entry| entry.identity == identity) && Some(at) != number {
                    visit(&mut inner, at);
                }
            }
        }
        drop(inner);
        if !was_active {
            registry::follow_active(set);
        }
    });
}
