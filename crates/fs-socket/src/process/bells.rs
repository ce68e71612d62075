//! Bells: how this process wakes who sleeps on a poller.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use fs_shm::{
    Bells,
    control::{self, Fd as OwnedFd},
};
use libc::O_CLOEXEC;
use rustix::io::Errno;

use super::{Attachment, current, drop_internal};
use crate::{
    descriptor::numbers,
    sys::{self, array::Array, signals::Section},
    types::Fd,
};

/// The bells of all arenas of this process.
pub(crate) fn bells() -> &'static dyn Bells {
    &Doorbells
}

struct Doorbells;

impl Bells for Doorbells {
    fn ring(&self, poller: u32) {
        for _ in 0..2 {
            let eventfd = match BELLS.find(poller).unwrap_or_else(|| ask(poller)) {
                Known::Bell(eventfd) => eventfd,
                Known::Gone => return,
                Known::Unreachable => {
                    if let Some(attachment) = current()
                        && let Err(error) = attachment.client.ring(poller)
                    {
                        attachment.failed(&error);
                    }
                    return;
                }
            };
            match sys::call::write(eventfd, &1_u64.to_ne_bytes()) {
                Ok(_) => return,
                // The application closed the number behind our back, or it has been rung 2^64 times: a fresh one.
                Err(_) => BELLS.unlearn(poller),
            }
        }
    }

    fn may_use(&self, bytes: u64) -> bool {
        crate::process::memory::may_use(bytes)
    }

    fn trim(&self, number: u32) -> bool {
        // What goes wrong with the daemon is found out by who needs an answer.
        current().is_some_and(|attachment| attachment.client.trim(number).is_ok())
    }
}

/// How a poller is rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// By this eventfd, which is ours alone.
    Bell(Fd),
    /// Nobody sleeps there any more, or the daemon does not allow it.
    Gone,
    /// By the daemon: a bell cannot come into this process, or there is none.
    Unreachable,
}

/// Asks for the bell of a poller that is not known yet. False: there is no room for a descriptor.
pub(super) fn know(poller: u32) -> bool {
    BELLS.find(poller).is_some() || ask(poller) != Known::Unreachable || BELLS.find(poller).is_some()
}

/// A poller is used no more.
pub(super) fn gone(poller: u32) {
    if let Some(bell) = BELLS.take(poller) {
        drop_internal(bell);
    }
}

/// A new attachment: the old daemon's bells are nobody's.
pub(super) fn forget() {
    BELLS.forget();
}

/// What a bell that is closed has rung, and no sleeper has seen yet, is taken back with it.
fn taken_back(attachment: &Attachment, poller: u32) {
    if poller != NOBODY
        && let Err(error) = attachment.client.ring(poller)
    {
        attachment.failed(&error);
    }
}

/// Gives a bell its number. Where another one has to go for it, that one's: who has just read it there rings this one in vain, and never
/// writes to what the program has opened since. `None`: there is none for it.
fn keep(attachment: &Attachment, poller: u32, bell: OwnedFd) -> Option<Fd> {
    let number = numbers::keep_unless_last(bell)?;
    let Some((other, old)) = BELLS.take_for(poller, number) else { return Some(number) };
    // One of ours may lie at or above the limit, where dup3(2) takes it only while that is raised.
    let room = numbers::Room::open();
    let answer = sys::call::dup3(number, old, O_CLOEXEC);
    drop(room);
    let kept = match answer {
        Ok(_) => {
            drop_internal(number);
            old
        }
        Err(_) => {
            drop_internal(old);
            number
        }
    };
    taken_back(attachment, other);
    Some(kept)
}

fn ask(poller: u32) -> Known {
    let Some(attachment) = current() else { return Known::Gone };
    // A filter may forbid sendmsg(2), and kill for trying.
    if fs_shm::wait::is_confined() {
        return Known::Unreachable;
    }
    // Its number is noted, or it is not asked for, where a handler jumps.
    let _section = Section::begin();
    let known = match numbers::make(|| attachment.client.bell(poller)) {
        // Not for ever: the daemon gives a poller's bell to a process a few times, and says then that it does not.
        Ok(bell) => match keep(attachment, poller, bell) {
            Some(bell) => Known::Bell(bell),
            None => return Known::Unreachable,
        },
        Err(error @ (control::Error::Closed | control::Error::Failed(Errno::NOENT | Errno::ACCESS))) => {
            attachment.failed(&error);
            return Known::Gone;
        }
        // It never has one, and what this process was given it has lost: no use in asking again.
        Err(control::Error::Failed(Errno::OPNOTSUPP | Errno::NOBUFS)) => Known::Unreachable,
        // No room for a descriptor; a signal handler in the middle of a request; a daemon that is slow.
        Err(_) => return Known::Unreachable,
    };
    if let Some((other, Known::Bell(old))) = BELLS.learn(poller, known) {
        // Another thread's, that came meanwhile.
        drop_internal(old);
        taken_back(attachment, other);
    }
    known
}

/// Poller → how it is rung: a cache by the poller's low bits, of poller << 32 | eventfd + 1.
struct Bell(Array<AtomicU64, KNOWN>);

const KNOWN: usize = 4096;
/// One number in so many of the program's may be a bell, where bells are among them: each client process that has slept when it
/// was rung leaves one, and the program is to have its numbers when it needs them. More: those of clients that are there still are asked
/// for again and again. Fewer: the program has less.
const PART: u64 = 16;
/// The same above [`numbers::USUAL`], where a program has more than most need.
const PART_OF_MANY: u64 = 4;
/// The place in the table of the bell that went last for another one.
static TURN: AtomicUsize = AtomicUsize::new(0);
/// In place of a poller: its bell is one of a daemon that has gone. No poller has this number.
const NOBODY: u32 = 0;
/// In place of an eventfd's number: the daemon rings.
const BY_DAEMON: u32 = u32::MAX;
static BELLS: Bell = Bell(Array::new());

impl Bell {
    fn place(&self, poller: u32) -> Option<&'static AtomicU64> {
        self.0.make(poller as usize % KNOWN)
    }

    fn find(&self, poller: u32) -> Option<Known> {
        let known = self.place(poller)?.load(Acquire);
        if known >> 32 == u64::from(poller) { Self::read(known as u32) } else { None }
    }

    /// Answers what had the place, and of which poller: an eventfd is to be closed.
    fn learn(&self, poller: u32, known: Known) -> Option<(u32, Known)> {
        let word = match known {
            Known::Bell(eventfd) => eventfd as u32 + 1,
            Known::Gone => 0,
            Known::Unreachable => BY_DAEMON,
        };
        let before = self.place(poller)?.swap(u64::from(poller) << 32 | u64::from(word), AcqRel);
        Some(((before >> 32) as u32, Self::read(before as u32)?))
    }

    fn read(word: u32) -> Option<Known> {
        match word {
            0 => None,
            BY_DAEMON => Some(Known::Unreachable),
            eventfd => Some(Known::Bell(eventfd as Fd - 1)),
        }
    }

    fn unlearn(&self, poller: u32) {
        if let Some(place) = self.place(poller) {
            let known = place.load(Acquire);
            if known >> 32 == u64::from(poller) {
                // Lost: somebody else put another there.
                let _ = place.compare_exchange(known, 0, AcqRel, Relaxed);
            }
        }
    }

    /// The bell of a poller, which is the caller's from here on.
    fn take(&self, poller: u32) -> Option<Fd> {
        Self::take_at(self.place(poller)?, |of, _| of == poller).map(|(_, bell)| bell)
    }

    fn take_at(place: &AtomicU64, of: impl Fn(u32, Fd) -> bool) -> Option<(u32, Fd)> {
        let word = place.load(Acquire);
        let Known::Bell(bell) = Self::read(word as u32)? else { return None };
        let poller = (word >> 32) as u32;
        // Lost: another thread has it.
        (of(poller, bell) && place.compare_exchange(word, 0, AcqRel, Relaxed).is_ok()).then_some((poller, bell))
    }

    /// The bell that goes for another one with this number, and whose it was: what has its place, or one of too many that have the
    /// program's numbers, each in turn.
    fn take_for(&self, poller: u32, number: Fd) -> Option<(u32, Fd)> {
        if let Some(taken) = Self::take_at(self.place(poller)?, |_, _| true) {
            return Some(taken);
        }
        // Asked once: it is a system call.
        let soft = numbers::of_programs(number)?;
        let most = if soft > numbers::USUAL { soft / PART_OF_MANY } else { (soft / PART).max(1) };
        if most >= KNOWN as u64 {
            return None;
        }
        let last = TURN.load(Relaxed);
        let turn = (1..=KNOWN).map(|step| (last + step) % KNOWN);
        let bells = turn.filter_map(|at| {
            let word = self.0.at(at)?.load(Acquire);
            let Known::Bell(bell) = Self::read(word as u32)? else { return None };
            ((bell as u64) < soft).then_some((at, (word >> 32) as u32 == NOBODY))
        });
        let (mut first, mut nobodys, mut count) = (None, None, 0);
        for (at, is_nobodys) in bells {
            first = first.or(Some(at));
            nobodys = nobodys.or(is_nobodys.then_some(at));
            count += 1;
        }
        let at = nobodys.or(first).filter(|_| count >= most)?;
        TURN.store(at, Relaxed);
        Self::take_at(self.0.at(at)?, |_, bell| (bell as u64) < soft)
    }

    /// What is there is nobody's ([`NOBODY`]), and leaves its number to the next one.
    fn forget(&self) {
        for place in (0..KNOWN).filter_map(|at| self.0.at(at)) {
            let nobodys = |word: u64| {
                Some(match Self::read(word as u32) {
                    Some(Known::Bell(_)) => u64::from(NOBODY) << 32 | u64::from(word as u32),
                    _ => 0,
                })
            };
            // Whatever another thread puts there meanwhile it has of the old daemon. It always has an answer.
            let _ = place.fetch_update(AcqRel, Acquire, nobodys);
        }
    }
}
