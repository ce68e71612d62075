//! What a thread holds in calls that a signal handler may jump out of (siglongjmp(3)): noted as it is taken, so that it can be
//! let go although nothing of the call runs on.
//!
//! Noted is what would be missed for ever: holds of sockets, changes of the tables, places among sleepers. Locks name their
//! holder and are looked for ([`jumped`]); what a lock guards in shared memory is whole at each instant.

use core::{
    cell::Cell,
    sync::atomic::{AtomicU32, Ordering::SeqCst, compiler_fence},
};

use fs_shm::sleepers::{self, Sleepers};

use crate::{
    descriptor::table,
    listen, poll,
    process::{self, Attachment, arenas, fork},
    socket::{Kind, Socket},
    sys::signals,
    types::Fd,
};

/// One thing that is held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    /// A socket: [`Socket::hold`].
    Socket(&'static Socket),
    /// A change of the tables, and of this attachment's page.
    Changing(Option<&'static Attachment>),
    /// A place among those who sleep on a listener: one is counted here.
    Counted(&'static AtomicU32),
    /// A wait in accept.
    Accepts(&'static listen::Listener),
    /// A place in the order of those who sleep in accept.
    Place(&'static Sleepers, sleepers::Mine),
    /// A poller, and with it lanes.
    Poller(process::Poller),
    /// The number of an accept that waits.
    Number(Fd),
    /// A child that is about to be forked, by the daemon's number and its connection's.
    Child(u32, Fd),
}

/// A call holds two or three things; handlers in the middle of it as many more.
const MOST: usize = 16;

struct Notes {
    len: Cell<usize>,
    of: [Cell<Option<Held>>; MOST],
}

thread_local! {
    static NOTES: Notes = const { Notes { len: Cell::new(0), of: [const { Cell::new(None) }; MOST] } };
}

/// Stands while the thing is held.
#[derive(Debug)]
#[must_use]
pub(crate) struct Note(usize);

impl Note {
    pub(crate) fn new(held: Held) -> Self {
        NOTES.with(|notes| {
            let place = notes.len.get();
            // The place first: a handler that comes now takes the next one.
            notes.len.set(place + 1);
            compiler_fence(SeqCst);
            // Beyond the last: not let go after a jump.
            if let Some(of) = notes.of.get(place) {
                of.set(Some(held));
            }
            compiler_fence(SeqCst);
            Note(place)
        })
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        NOTES.with(|notes| {
            if let Some(of) = notes.of.get(self.0) {
                of.set(None);
            }
            compiler_fence(SeqCst);
            let end = notes.len.get().min(MOST);
            let is_last = notes.of.get(self.0..end).is_none_or(|above| above.iter().all(|of| of.get().is_none()));
            if is_last {
                let mut len = self.0;
                // Those that went before their turn. Within a handler one may be a place that is about to be written.
                while !signals::in_handler() && len > 0 && notes.of.get(len - 1).is_none_or(|of| of.get().is_none()) {
                    len -= 1;
                }
                notes.len.set(len);
            }
            compiler_fence(SeqCst);
        });
    }
}

/// One is counted while it stands: counted and noted, or neither, for a handler that jumps.
#[derive(Debug)]
#[must_use]
pub(crate) struct Counted(&'static AtomicU32, Option<Note>);

impl Counted {
    pub(crate) fn begin(count: &'static AtomicU32) -> Self {
        let _section = signals::Section::begin();
        count.fetch_add(1, SeqCst);
        Counted(count, Some(Note::new(Held::Counted(count))))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _section = signals::Section::begin();
        self.1 = None;
        self.0.fetch_sub(1, SeqCst);
    }
}

/// This thread is about to jump to a place that it was at before (longjmp). If it comes from a signal handler, the calls that
/// the handler interrupted do not go on: what they hold is let go. (A jump within a handler is taken for one out of it.)
pub fn jumped() {
    if !signals::leave_handlers() {
        return;
    }
    while let Some(held) = NOTES.with(last) {
        match held {
            Held::Socket(socket) => socket.release(),
            Held::Changing(attachment) => table::end_change(attachment),
            Held::Counted(count) => {
                count.fetch_sub(1, SeqCst);
            }
            Held::Accepts(listener) => listener.waits_no_more(),
            Held::Place(sleepers, place) => sleepers.leave(place),
            Held::Poller(poller) => poll::abandon(poller),
            Held::Number(number) => listen::number::let_go(number),
            Held::Child(child, connection) => fork::abandoned(child, connection),
        }
    }
    Socket::each(|socket| {
        if socket.kind() == Kind::Channel
            && let Some(channel) = socket.channel()
        {
            channel.break_own_locks();
        }
    });
    arenas::all().for_each(fs_shm::Arena::break_own_lock);
    poll::jumped();
    process::jumped();
    signals::after_jump();
}

/// How many such things this thread holds.
pub(crate) fn count(is: impl Fn(Held) -> bool) -> u32 {
    NOTES.with(|notes| notes.of.iter().filter(|of| of.get().is_some_and(&is)).count() as u32)
}

/// Takes the last note.
fn last(notes: &Notes) -> Option<Held> {
    loop {
        let place = notes.len.get().checked_sub(1)?;
        notes.len.set(place);
        if let Some(held) = notes.of.get(place).and_then(Cell::take) {
            return Some(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count() -> usize {
        NOTES.with(|notes| notes.of.iter().filter(|of| of.get().is_some()).count())
    }

    #[test]
    fn notes_go_in_any_order() {
        let notes: Vec<Note> = (0..3).map(|_| Note::new(Held::Changing(None))).collect();
        assert_eq!(count(), 3);
        let mut notes = notes.into_iter();
        drop(notes.next());
        assert_eq!(count(), 2);
        drop(notes);
        assert_eq!((count(), NOTES.with(|notes| notes.len.get())), (0, 0));
        // More than there is room for.
        let many: Vec<Note> = (0..MOST + 3).map(|_| Note::new(Held::Changing(None))).collect();
        assert_eq!(count(), MOST);
        many.into_iter().rev().for_each(drop);
        assert_eq!((count(), NOTES.with(|notes| notes.len.get())), (0, 0));
    }
}
