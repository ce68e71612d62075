//! Who sleeps in accept on one listener, in the order in which they came: the longest sleeper is served first, as on the
//! kernel (inet_csk_wait_for_connect(), which waits exclusively).
//!
//! A poller's epoll set wakes the last to come first. So of all who sleep in accept one, the *first*, sleeps on the poller, and
//! each of the others on a futex of its own place until it is the first. A place has a ticket, drawn when its thread came: the
//! lowest is the first's. Who leaves wakes whoever is the first then.
//!
//! It costs one wake-up more for each connection. So of many sleepers only some have places ([`Sleepers::join`]); who comes
//! after those sleeps on the poller.
//!
//! Nothing but the order depends on it: whoever is in doubt may sleep on the poller as well. So the first may be stopped
//! (SIGSTOP) or dead: the others look now and then whether something waits that the first does not take, and take its ticket
//! from it then. The daemon takes a dead process's places away ([`Sleepers::release_dead`]).
//!
//! The memory is the daemon's, which gives it to who holds the listener, with the poller.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::arena::sealed_memfd;
use crate::futex;
use crate::holder;
use crate::region_unsafe::Region;
use crate::word::{AtomicU32, AtomicU64};

const BYTES: usize = 4096;

/// Sleepers that have places. More: their wake-ups cost large pools of workers, of which each is like the others, more than
/// the order is worth. Fewer: small programs see another order than the kernel's.
const MOST: usize = 8;

/// One sleeper's.
#[repr(C, align(64))]
#[derive(Debug)]
struct Place {
    /// attachment id << 32 | thread number, as in the word of a lock ([`crate::holder`]); 0: free.
    whose: AtomicU64,
    /// 0: none: its sleeper is in no order, and sleeps on the poller.
    ticket: AtomicU64,
    /// What the sleeper sleeps on. Changes whenever it has to look.
    bell: AtomicU32,
    _pad: AtomicU32,
    _pads: [AtomicU64; 5],
}

#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Places {
    /// The last ticket that was drawn.
    drawn: AtomicU64,
    _pads: [AtomicU64; 7],
    all: [Place; MOST],
}

/// How often the one behind the first looks whether that is stopped: at first, and when for long it was not. Longer: connections wait
/// longer behind one that is stopped. Shorter: idle servers use their CPU.
pub const LOOK: Duration = Duration::from_millis(50);
const LOOK_IDLE: Duration = Duration::from_secs(5);
/// The same for those behind that one.
const LOOK_BEHIND: Duration = Duration::from_secs(10);
/// Something waits: how long the first has for it. Shorter: on a busy machine one that was woken loses its place.
const GRACE: Duration = Duration::from_millis(10);

/// A thread's place.
#[derive(Clone, Copy, Debug)]
pub struct Mine {
    place: usize,
    whose: u64,
}

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// This thread is the first. What it waits for may be there already.
    First,
    /// All were woken: look whether there is a reason not to go on.
    Look,
    /// The time is over.
    Over,
    /// A signal handler ran.
    Signal,
}

/// The sleepers of one listener, of all processes that hold it.
#[derive(Debug)]
pub struct Sleepers {
    region: Region,
    /// What tells the memory from other such: a child that was forked is given its parent's again.
    inode: AtomicU64,
}

impl Sleepers {
    /// Makes the memory (the daemon).
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2), mmap(2).
    pub fn create() -> Result<(OwnedFd, Self), Errno> {
        let fd = sealed_memfd("fastsock-sleepers", BYTES, &[])?;
        let sleepers = Self::map(std::os::fd::AsFd::as_fd(&fd))?;
        Ok((fd, sleepers))
    }

    /// Maps it.
    ///
    /// # Errors
    /// As [`crate::Arena::map`].
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        let inode = rustix::fs::fstat(fd)?.st_ino;
        Ok(Sleepers { region: Region::map(fd, BYTES, true)?, inode: AtomicU64::new(inode) })
    }

    /// Puts it in place of another listener's: that one's memory is let go, and who looks at it sees this one.
    ///
    /// # Errors
    /// This memory: the kernel refuses, or the process has confined itself.
    pub fn put_over(self, other: &Sleepers) -> Result<(), Self> {
        if crate::wait::is_confined() {
            return Err(self);
        }
        let inode = self.inode.load(Relaxed);
        if inode == other.inode.load(Relaxed) {
            return Ok(());
        }
        // Who sleeps there sleeps on the old memory, which nobody here sees from now on.
        other.wake_all();
        let Sleepers { region, inode: own } = self;
        match region.put_over(&other.region) {
            Ok(()) => {
                other.inode.store(inode, Relaxed);
                Ok(())
            }
            Err((region, _)) => Err(Sleepers { region, inode: own }),
        }
    }

    /// A thread is about to sleep: its place, which it has to [`Sleepers::leave`]. `None`: so many have one already that it sleeps
    /// on the poller beside the first.
    pub fn join(&self) -> Option<Mine> {
        let (places, whose) = (self.places(), holder::me());
        let place = places.all.iter().position(|place| {
            place.whose.load(Relaxed) == 0 && place.whose.compare_exchange(0, whose, SeqCst, SeqCst).is_ok()
        })?;
        let ticket = places.drawn.fetch_add(1, SeqCst).wrapping_add(1);
        places.all[place].ticket.store(ticket, SeqCst);
        Some(Mine { place, whose })
    }

    /// Nobody is before this place: its thread sleeps on the poller.
    pub fn is_first(&self, mine: Mine) -> bool {
        self.before(mine).is_none()
    }

    /// Somebody sleeps, before who comes now.
    pub fn is_taken(&self) -> bool {
        let all = &self.places().all;
        all.iter().any(|place| place.ticket().is_some()) && all.iter().any(|place| place.whose.load(Relaxed) == 0)
    }

    /// Waits to be the first, at most this long. `look`: when it looks whether the first is stopped, [`LOOK`] for a thread that
    /// begins to sleep; it is given on to its next wait. `is_left`: whether something is there that the first has not taken.
    pub fn wait(&self, mine: Mine, most: Duration, look: &mut Duration, is_left: impl Fn() -> bool) -> Turn {
        let Some(place) = self.places().all.get(mine.place) else { return Turn::First };
        let end = Instant::now().checked_add(most);
        let mut late = None;
        loop {
            let seen = place.bell.load(SeqCst);
            let Some((first, ticket, others)) = self.before(mine) else { return Turn::First };
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Turn::Over;
            }
            let next = match late {
                Some(_) => GRACE,
                None if others == 0 => *look,
                None => LOOK_BEHIND,
            };
            match futex::wait(&place.bell, seen, next.min(left)) {
                futex::Woken::Wake if self.is_first(mine) => return Turn::First,
                futex::Woken::Wake => return Turn::Look,
                futex::Woken::Signal => return Turn::Signal,
                // Who has called looks itself.
                futex::Woken::Timeout if left <= next => return Turn::Over,
                futex::Woken::Timeout if is_left() => {
                    if late.replace(ticket) == Some(ticket) {
                        late = None;
                        // It may have left meanwhile.
                        let _ = first.ticket.compare_exchange(ticket, 0, SeqCst, SeqCst);
                        self.wake_first(place);
                    }
                }
                futex::Woken::Timeout => (late, *look) = (None, (*look * 10).min(LOOK_IDLE)),
            }
        }
    }

    /// This thread sleeps no more.
    pub fn leave(&self, mine: Mine) {
        let Some(place) = self.places().all.get(mine.place) else { return };
        // One in no order is followed by nobody: who is the first sleeps on the poller, and has not to be woken.
        let was_first = place.ticket().is_some() && self.is_first(mine);
        if place.free(mine.whose) && was_first {
            self.wake_first(place);
        }
    }

    /// Ends all waits: [`Turn::Look`].
    pub fn wake_all(&self) {
        for place in &self.places().all {
            place.wake();
        }
    }

    /// Takes their places from the threads of an attachment that are gone (the daemon).
    pub fn release_dead(&self, attachment: u32) {
        let all = &self.places().all;
        let first = all.iter().filter_map(Place::ticket).min();
        for place in all.iter().filter(|place| holder::is_of(&place.whose, attachment)) {
            let was_first = first.is_some() && place.ticket() == first;
            if place.free(place.whose.load(SeqCst)) && was_first {
                self.wake_first(place);
            }
        }
    }

    /// The first of those before a place, its ticket, and how many are between the two. Whose ticket was taken is in no order.
    /// Nor is a thread behind itself: it was waiting here when a handler of its own came to wait.
    fn before(&self, mine: Mine) -> Option<(&Place, u64, usize)> {
        let all = &self.places().all;
        let own = all.get(mine.place)?.ticket()?;
        let (mut first, mut before) = (None, 0);
        for place in all.iter().filter(|place| place.whose.load(SeqCst) != mine.whose) {
            let Some(ticket) = place.ticket().filter(|&ticket| ticket < own) else { continue };
            before += 1;
            if first.is_none_or(|(_, lowest)| ticket < lowest) {
                first = Some((place, ticket));
            }
        }
        first.map(|(place, ticket)| (place, ticket, before - 1))
    }

    /// The place of the first is free: who is the first now is woken. One that draws its ticket just now sees by itself that it is.
    /// One that does not sleep is in no order from then on: it may be stopped, or dead. `but`: the caller's own.
    fn wake_first(&self, but: &Place) {
        loop {
            let tickets = self.places().all.iter().filter_map(|place| Some((place.ticket()?, place)));
            let Some((ticket, first)) = tickets.min_by_key(|&(ticket, _)| ticket) else { return };
            if std::ptr::eq(first, but) || first.wake() {
                return;
            }
            if first.ticket.compare_exchange(ticket, 0, SeqCst, SeqCst).is_err() {
                return;
            }
        }
    }

    fn places(&self) -> &Places {
        self.region.at(0)
    }
}

impl Place {
    /// `None`: its sleeper is in no order, or there is none.
    fn ticket(&self) -> Option<u64> {
        let ticket = self.ticket.load(SeqCst);
        (ticket != 0 && self.whose.load(SeqCst) != 0).then_some(ticket)
    }

    /// Whether its thread slept.
    fn wake(&self) -> bool {
        self.bell.fetch_add(1, SeqCst);
        futex::wake_all(&self.bell)
    }

    /// False: it was not this one's (any more).
    fn free(&self, whose: u64) -> bool {
        let ticket = self.ticket.load(SeqCst);
        let was = whose != 0 && self.whose.compare_exchange(whose, 0, SeqCst, SeqCst).is_ok();
        if was {
            // Else the next one's, who has drawn it by now.
            let _ = self.ticket.compare_exchange(ticket, 0, SeqCst, SeqCst);
        }
        was
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{Sender, channel};
    use std::thread;

    const LONG: Duration = Duration::from_secs(30);

    fn sleepers() -> Arc<Sleepers> {
        Arc::new(Sleepers::create().unwrap().1)
    }

    fn waits(sleepers: &Sleepers, mine: Mine, most: Duration, is_left: impl Fn() -> bool) -> Turn {
        sleepers.wait(mine, most, &mut LOOK.clone(), is_left)
    }

    /// A thread that waits to be the first, says so, and leaves when it is told. It has its place when this returns.
    fn sleeper(of: &Arc<Sleepers>, name: usize, told: Sender<usize>) -> (Sender<()>, thread::JoinHandle<()>) {
        let (of, (go, gone), (here, is_here)) = (of.clone(), channel(), channel());
        let handle = thread::spawn(move || {
            let mine = of.join().unwrap();
            here.send(()).unwrap();
            while !of.is_first(mine) && waits(&of, mine, LONG, || false) != Turn::First {}
            told.send(name).unwrap();
            gone.recv().unwrap();
            of.leave(mine);
        });
        is_here.recv().unwrap();
        (go, handle)
    }

    /// Writes places as a process has left them: whose, and tickets.
    fn left_by(attachment: u64, sleepers: &Sleepers, tickets: &[u64]) {
        for (place, &ticket) in sleepers.places().all.iter().zip(tickets) {
            place.whose.store(attachment << 32 | 1, SeqCst);
            place.ticket.store(ticket, SeqCst);
            sleepers.places().drawn.fetch_max(ticket, SeqCst);
        }
    }

    #[test]
    fn the_longest_sleeper_is_first() {
        let sleepers = sleepers();
        let mine = sleepers.join().unwrap();
        assert!(sleepers.is_first(mine));
        let (tell, told) = channel();
        let waiting: Vec<_> = (0..5).map(|i| sleeper(&sleepers, i, tell.clone())).collect();
        assert!(sleepers.is_taken());
        sleepers.leave(mine);
        for (i, (go, handle)) in waiting.into_iter().enumerate() {
            assert_eq!(told.recv_timeout(LONG), Ok(i));
            assert!(told.try_recv().is_err(), "two are the first");
            go.send(()).unwrap();
            handle.join().unwrap();
        }
        assert!(!sleepers.is_taken());
    }

    #[test]
    fn many_have_no_places() {
        let sleepers = sleepers();
        left_by(5, &sleepers, &[4, 2, 7, 1, 3, 5, 6]);
        let last = sleepers.join().unwrap();
        let (first, ticket, others) = sleepers.before(last).unwrap();
        assert!(std::ptr::eq(first, &sleepers.places().all[3]));
        assert_eq!((ticket, others), (1, MOST - 2));
        assert!(sleepers.join().is_none());
        assert!(!sleepers.is_taken(), "who comes now sleeps beside the first");
        sleepers.leave(last);
        assert!(sleepers.is_taken());
        assert!(sleepers.join().is_some());
    }

    #[test]
    fn who_leaves_from_the_middle_keeps_nobody() {
        let sleepers = sleepers();
        let mine = sleepers.join().unwrap();
        let (tell, told) = channel();
        let short: Vec<_> = (0..3)
            .map(|_| {
                let sleepers = sleepers.clone();
                thread::spawn(move || {
                    let mine = sleepers.join().unwrap();
                    let short = || waits(&sleepers, mine, Duration::from_millis(20), || false);
                    // Another one that leaves wakes one that is about to be the first, and is not.
                    while short() == Turn::Look {}
                    sleepers.leave(mine);
                })
            })
            .collect();
        let (go, handle) = sleeper(&sleepers, 7, tell);
        short.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(told.try_recv().is_err());
        sleepers.leave(mine);
        assert_eq!(told.recv_timeout(LONG), Ok(7));
        go.send(()).unwrap();
        handle.join().unwrap();
    }

    #[test]
    fn who_does_not_take_what_is_there_loses_its_place() {
        let sleepers = sleepers();
        let there = AtomicBool::new(false);
        let is_left = || there.load(SeqCst);
        // Two that never look.
        left_by(5, &sleepers, &[1, 2]);
        let mine = sleepers.join().unwrap();
        assert_eq!(waits(&sleepers, mine, Duration::from_millis(200), is_left), Turn::Over);
        there.store(true, SeqCst);
        assert_eq!(waits(&sleepers, mine, LONG, is_left), Turn::First);
        sleepers.leave(mine);
        // They are before nobody from then on, so that who takes the next connection takes those after it at once, too.
        let again = sleepers.join().unwrap();
        assert!(sleepers.is_first(again));
    }

    /// It was woken, and does not run yet.
    #[test]
    fn the_first_has_a_while_to_take_what_is_there() {
        let sleepers = sleepers();
        left_by(5, &sleepers, &[1]);
        let mine = sleepers.join().unwrap();
        let looks = AtomicU32::new(0);
        // There when it is looked at for the first time, and taken at the second.
        let is_left = || looks.fetch_add(1, SeqCst) == 0;
        assert_eq!(waits(&sleepers, mine, Duration::from_secs(2), is_left), Turn::Over);
        assert!(looks.load(SeqCst) > 1);
        assert!(!sleepers.is_first(mine));
    }

    #[test]
    fn who_is_in_no_order_leaves_the_first_where_it_is() {
        let sleepers = sleepers();
        let mine = sleepers.join().unwrap();
        sleepers.places().all[mine.place].ticket.store(0, SeqCst);
        sleepers.places().all[1].whose.store(5 << 32 | 1, SeqCst);
        sleepers.places().all[1].ticket.store(9, SeqCst);
        sleepers.leave(mine);
        assert_eq!(sleepers.places().all[1].ticket(), Some(9));
    }

    /// A handler that has interrupted a thread in accept calls accept on the same listener.
    #[test]
    fn nobody_is_behind_itself() {
        let sleepers = sleepers();
        let outer = sleepers.join().unwrap();
        let inner = sleepers.join().unwrap();
        assert!(sleepers.is_first(outer) && sleepers.is_first(inner));
    }

    #[test]
    fn who_looks_in_vain_looks_less_often_the_longer_it_sleeps() {
        let sleepers = sleepers();
        left_by(5, &sleepers, &[1]);
        let mine = sleepers.join().unwrap();
        let mut look = LOOK;
        for _ in 0..2 {
            assert_eq!(sleepers.wait(mine, LOOK * 10, &mut look, || false), Turn::Over);
        }
        assert!(look > LOOK);
    }

    /// A child that was forked is given the memory that it has from its parent, on which that one's threads sleep.
    #[test]
    fn the_same_memory_is_put_over_itself_without_a_word() {
        let (fd, own) = Sleepers::create().unwrap();
        let own = Arc::new(own);
        let mine = own.join().unwrap();
        let bell = || own.places().all[mine.place].bell.load(SeqCst);
        let seen = bell();
        let again = Sleepers::map(std::os::fd::AsFd::as_fd(&fd)).unwrap();
        assert!(again.put_over(&own).is_ok());
        assert_eq!(bell(), seen);
        let (_fd, other) = Sleepers::create().unwrap();
        assert!(other.put_over(&own).is_ok());
        assert!(!own.is_taken(), "the other's");
        // Its place of before is nobody's there.
        assert_eq!(waits(&own, mine, LONG, || false), Turn::First);
        own.leave(mine);
    }

    #[test]
    fn the_places_of_a_dead_process_are_free() {
        let sleepers = sleepers();
        left_by(77, &sleepers, &[1, 0, 2]);
        let (tell, told) = channel();
        // Takes over at once, long before it would look by itself.
        let (go, handle) = sleeper(&sleepers, 1, tell);
        sleepers.release_dead(76);
        assert!(told.try_recv().is_err());
        sleepers.release_dead(77);
        assert_eq!(told.recv_timeout(LONG), Ok(1));
        go.send(()).unwrap();
        handle.join().unwrap();
        assert!((0..MOST).all(|_| sleepers.join().is_some()));
    }

    #[test]
    fn all_who_come_and_go_are_first_in_the_end() {
        let sleepers = sleepers();
        let threads: Vec<_> = (0..MOST)
            .map(|_| {
                let sleepers = sleepers.clone();
                thread::spawn(move || {
                    for _ in 0..2000 {
                        let mine = sleepers.join().unwrap();
                        let hour = Duration::from_secs(3600);
                        while !sleepers.is_first(mine) && waits(&sleepers, mine, hour, || false) != Turn::First {}
                        sleepers.leave(mine);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
