//! Sets that a new image inherits. The kernel's sets survive an exec and hold what is the kernel's; which sockets of ours are in
//! them is written into a memory file, whose number the new image is told.
//!
//! A record is six words. Each set is its numbers, then its registrations, those that are ready first, in their order.

use fs_shm::{Channel, Side, control::Fd as OwnedFd};
use rustix::{
    fd::{AsFd, AsRawFd, BorrowedFd},
    fs::MemfdFlags,
};

use super::{
    EpollEvent, ctl,
    interest::{Candidate, ET, Entry, Source},
    registry,
    set::{ADD, Inner},
    sys::kernel,
};
use crate::{
    descriptor::{numbers, table},
    listen,
    process::{self, arenas, exec::cookie},
    socket::Socket,
    stream::connect,
    sys::call,
    types::Fd,
};

type Record = [u64; 6];
const WORDS: usize = 6;
const BYTES: usize = 8 * WORDS;

/// A number of a set: the number, the set's index.
const SET: u64 = 1;
/// A socket: number, SO_COOKIE, events and [`SPENT`] or [`WAITS`], data, what it had.
const SOCKET: u64 = 2;
/// Another set: number, its index, events and flags, data.
const NESTED: u64 = 3;
/// A connection that this process has closed and another holds, by its side: number, arena << 32 | slot, events and flags, data,
/// generation.
const ELSEWHERE: [u64; 2] = [4, 5];

/// A one-shot registration that has fired.
const SPENT: u64 = 1 << 32;
/// It has been reported since it last changed.
const WAITS: u64 = 1 << 33;
/// That a one-shot has fired is a guess.
const GUESS: u64 = 1 << 34;

/// Writes down what the sets hold that survive; `None`: nothing of ours, or there is no room for it.
pub(crate) fn leave(survives: impl Fn(Fd) -> bool) -> Option<OwnedFd> {
    let mut file = None;
    table::each(0, u32::MAX, |fd, socket| {
        let Some(index) = table::index_of(socket).filter(|_| survives(fd)) else { return };
        let mut is_first = true;
        if fd > 0 {
            table::each(0, fd as u32 - 1, |other, of| is_first &= !(core::ptr::eq(of, socket) && survives(other)));
        }
        let Some(set) = registry::find(index).filter(|set| is_first && set.is_active()) else { return };
        // `None`: this is a signal handler, and its thread in the middle of the set.
        let Some(mut inner) = set.lock_as_it_is() else { return };
        if file.is_none() {
            file = new_file();
        }
        let Some(file) = &file else { return };
        table::each(fd as u32, u32::MAX, |number, of| {
            if core::ptr::eq(of, socket) && survives(number) {
                write(file.as_fd(), [SET, number as u64, u64::from(index), 0, 0, 0]);
            }
        });
        inner.leave(file.as_fd(), &survives);
    });
    file
}

fn new_file() -> Option<OwnedFd> {
    let _room = numbers::Room::open();
    let file = rustix::fs::memfd_create(c"epoll", MemfdFlags::CLOEXEC).ok()?;
    let number = numbers::duplicate(file.as_raw_fd()).ok()?;
    Some(crate::sys::owned(number))
}

fn write(file: BorrowedFd<'_>, record: Record) {
    let mut bytes = [0; BYTES];
    bytes.chunks_exact_mut(8).zip(record).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_ne_bytes()));
    // No memory: the new image does not know of that one.
    let _ = call::write(file.as_raw_fd(), &bytes);
}

/// What an entry's socket has, in one word: new bytes change it, new connections that of a listener.
pub(super) fn had(entry: &Entry) -> u64 {
    if entry.source == Source::Listener {
        return listen::came(entry.socket);
    }
    let unread = entry.socket.channel().map_or(0, |channel| channel.queued_to_mark() as u64);
    u64::from(entry.socket.readiness().0) | unread << 16
}

impl Inner {
    fn leave(&mut self, file: BorrowedFd<'_>, survives: &impl Fn(Fd) -> bool) {
        if !self.stale {
            self.collect();
        }
        for i in 0..self.ready.len() {
            let candidate = self.ready[i];
            if let Some(entry) = self.interest.of(candidate) {
                leave_one(file, entry, 0, survives);
            }
        }
        for at in self.interest.places() {
            if let Some(entry) = self.interest.get(at).filter(|entry| !entry.queued) {
                leave_one(file, entry, WAITS, survives);
            }
        }
    }

    /// A registration that the set had before the exec.
    fn resume(&mut self, fd: Fd, socket: &'static Socket, event: EpollEvent, flags: u64, before: u64) {
        if self.interest.find(fd, socket.identity()).is_some() {
            return;
        }
        let at = self.interest.add(fd, socket, event);
        self.attach(at);
        // In the order in which they were left.
        self.unsettled = 0;
        let Some(entry) = self.interest.get_mut(at) else { return };
        (entry.spent, entry.is_guess) = (flags & SPENT != 0, flags & GUESS != 0);
        let is_told = event.events & ET != 0
            && flags & WAITS != 0
            && matches!(entry.source, Source::Channel { .. } | Source::Listener)
            && had(entry) == before;
        if entry.spent || is_told {
            entry.queued = false;
            self.ready.retain(|candidate: &Candidate| candidate.at != at);
        }
    }
}

fn leave_one(file: BorrowedFd<'_>, entry: &Entry, flags: u64, survives: &impl Fn(Fd) -> bool) {
    if !entry.is_valid() {
        return;
    }
    let spent = if entry.spent { SPENT } else { 0 } | if entry.is_guess { GUESS } else { 0 };
    let flags = u64::from(entry.event.events) | flags | spent;
    let (number, data) = (entry.fd as u64, { entry.event.data });
    match entry.source {
        Source::Kernel => {}
        Source::Channel { .. } if entry.outlives || is_left_to_others(entry.socket, survives) => {
            if let (Some(mapped), Some(channel)) = (entry.socket.mapped(), entry.socket.channel()) {
                let which = u64::from(mapped.id()) << 32 | u64::from(channel.slot());
                let kind = ELSEWHERE[channel.side().index()];
                write(file, [kind, number, which, flags, data, channel.generation().into()]);
            }
        }
        Source::Nested(index) => write(file, [NESTED, number, u64::from(index), flags, data, 0]),
        Source::Channel { .. } | Source::Listener => {
            if let Some(cookie) = listen::live(entry.socket.number(), entry.socket).and_then(cookie) {
                write(file, [SOCKET, number, cookie, flags, data, had(entry)]);
            }
        }
    }
}

/// Whether the exec closes the last number of a connection here that other processes hold: it stays in the sets, as when it is closed.
fn is_left_to_others(socket: &Socket, survives: &impl Fn(Fd) -> bool) -> bool {
    if socket.channel().is_none_or(|channel| channel.refs() <= socket.descriptors()) {
        return false;
    }
    let mut any = false;
    table::each(0, u32::MAX, |fd, of| any |= core::ptr::eq(of, socket) && survives(fd));
    !any
}

/// In the new image, when its sockets are known: its sets hold what was left in the file.
pub(crate) fn resume(file: BorrowedFd<'_>) {
    let mut sets: Vec<(u64, u32, Fd)> = Vec::new();
    each(file, |record| {
        let [SET, number, index, ..] = record else { return };
        let Some(fd) = Fd::try_from(number).ok().filter(|&fd| kernel::is_epoll(fd).is_ok()) else { return };
        match sets.iter().find(|(old, ..)| *old == index).and_then(|(.., first)| table::find(*first)) {
            Some(socket) => connect::enter_again(fd, socket),
            None => {
                if let Ok(new) = ctl::instance(fd) {
                    sets.push((index, new, fd));
                }
            }
        }
    });
    let new_of = |index: u64| sets.iter().find(|(old, ..)| *old == index).map(|&(_, new, fd)| (new, fd));
    for kind in [SOCKET, NESTED].into_iter().chain(ELSEWHERE) {
        let mut current = None;
        each(file, |[what, number, which, flags, data, before]| {
            if what == SET {
                current = new_of(which).map(|(new, _)| new);
            }
            let (Some(index), Ok(fd), true) = (current, Fd::try_from(number), what == kind) else { return };
            let event = EpollEvent { events: flags as u32, data };
            let outlives = ELSEWHERE.contains(&kind);
            let socket = match kind {
                SOCKET => socket_of(fd, which),
                NESTED => new_of(which)
                    .and_then(|(_, inner)| table::find(inner))
                    .filter(|_| Some(index) != new_of(which).map(|(new, _)| new)),
                _ => elsewhere(kind, which, before),
            };
            let (Some(socket), Some(set)) = (socket, registry::find(index)) else { return };
            let was_active = set.is_active();
            let Some(mut inner) = set.lock() else { return };
            if kind == NESTED && registry::active(socket).is_none() {
                // Nothing of ours is left in it: it is the kernel's again.
                let _ = kernel::epoll_ctl(inner.number, ADD, fd, Some(event));
            }
            inner.resume(fd, socket, event, flags, if outlives { u64::MAX } else { before });
            if outlives
                && let Some(at) = inner.interest.find(fd, socket.identity())
                && let Some(entry) = inner.interest.get_mut(at)
            {
                entry.outlives = true;
            }
            drop(inner);
            if !was_active && kind == NESTED {
                registry::follow_active(set);
            }
        });
    }
}

/// What [`ELSEWHERE`] names, if it is there still, and this process has a part in its arena.
fn elsewhere(kind: u64, which: u64, generation: u64) -> Option<&'static Socket> {
    let side = if kind == ELSEWHERE[Side::A.index()] { Side::A } else { Side::B };
    let attachment = process::current()?;
    let mapped = arenas::ask(attachment, (which >> 32) as u32, side)?;
    let channel = mapped.channel(which as u32, generation as u32).filter(Channel::is_held)?;
    Socket::image_of(attachment.life(), mapped, &channel)
}

/// The socket of this cookie, of which `fd` was a number once.
fn socket_of(fd: Fd, wanted: u64) -> Option<&'static Socket> {
    let is_it = |fd| cookie(fd) == Some(wanted);
    if let Some(socket) = table::find(fd).filter(|_| is_it(fd)) {
        return Some(socket);
    }
    let mut found = None;
    table::each(0, u32::MAX, |fd, socket| {
        if found.is_none() && is_it(fd) {
            found = Some(socket);
        }
    });
    found
}

fn each(file: BorrowedFd<'_>, mut visit: impl FnMut(Record)) {
    let mut bytes = [0; BYTES];
    let mut offset = 0;
    while rustix::io::pread(file, &mut bytes, offset) == Ok(BYTES) {
        let mut record = [0; WORDS];
        let words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
        record.iter_mut().zip(words).for_each(|(place, word)| *place = word);
        visit(record);
        offset += BYTES as u64;
    }
}
