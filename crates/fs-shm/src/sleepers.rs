//! Who sleeps in accept on one listener, in the order in which they came: the longest sleeper is served first, as on the
//! kernel (inet_csk_wait_for_connect(), which waits exclusively).
//!
//! A poller's epoll set wakes the last to come first. So of all who sleep in accept one, the *first*, sleeps on the poller; the
//! *second* sleeps on a futex until the first leaves, and the others on another futex until the second does. The kernel wakes
//! the sleepers of a futex in the order in which they came, so that no list has to be kept of them.
//!
//! It costs two wake-ups more for each connection: the second becomes the first, and another one the second. So of many
//! sleepers only some stand in this order ([`Sleepers::join`]); who comes after those sleeps on the poller.
//!
//! Nothing but the order depends on it: whoever is in doubt may sleep on the poller as well. So the first may be stopped
//! (SIGSTOP) or dead: the second looks now and then whether something waits that the first does not take, and takes its
//! place then. The daemon takes a dead process's place away ([`Sleepers::release_dead`]).
//!
//! The memory is the daemon's, which gives it to who holds the listener, with the poller.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::arena::sealed_memfd;
use crate::futex::{self, Slept};
use crate::holder;
use crate::region_unsafe::Region;
use crate::word::{AtomicU32, AtomicU64};

const BYTES: usize = 4096;

/// A place is a word: attachment id << 32 | thread number, as that of a lock ([`crate::holder`]); 0: nobody.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Places {
    first: AtomicU64,
    second: AtomicU64,
    /// What the second sleeps on. Changes whenever the first has left.
    first_left: AtomicU32,
    /// What the others sleep on. Changes whenever the second has left.
    second_left: AtomicU32,
    /// How many stand in this order, about: those of a dead process are not counted down.
    joined: AtomicU32,
    _pad0: AtomicU32,
    _pad: [AtomicU64; 4],
}

/// Sleepers that stand in order. More: their wake-ups cost large pools of workers, of which each is like the others, more than
/// the order is worth. Fewer: small programs see another order than the kernel's.
const MOST: u32 = 8;

/// In the place of the second: it is for the sleeper that was just woken. No attachment has the number 0.
const GIVEN: u64 = 1;

/// How often the second looks whether the first is stopped: at first, and when for long it was not. Longer: connections wait
/// longer behind one that is stopped. Shorter: idle servers use their CPU.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_IDLE: Duration = Duration::from_secs(5);
/// How often the others look whether the second is stopped, too (all threads of a process are at once): one takes its place when
/// something waited at two looks, [`TAKE`] apart. As above, for all of [`MOST`].
const LOOK_BEHIND: Duration = Duration::from_secs(10);
/// How long a place that is [`GIVEN`] is left to the sleeper that it was given to, by one that comes then. It may be in a handler.
const TAKE: Duration = Duration::from_millis(50);
/// Something waits: how long the first has for it. Shorter: on a busy machine one that was woken loses its place.
const GRACE: Duration = Duration::from_millis(10);

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

    /// A thread is about to sleep. False: so many stand in order already that it sleeps on the poller beside the first. Else
    /// [`Sleepers::leave`] is due.
    pub fn join(&self) -> bool {
        let joined = &self.places().joined;
        joined.load(Relaxed) < MOST && {
            joined.fetch_add(1, Relaxed);
            true
        }
    }

    /// Takes the first place, if nobody is before this thread; true also where it has it already.
    pub fn enter(&self) -> bool {
        let (places, me) = (self.places(), holder::me());
        places.first.load(SeqCst) == me
            || places.second.load(SeqCst) == 0 && places.first.compare_exchange(0, me, SeqCst, SeqCst).is_ok()
    }

    /// Somebody else is the first, and before who comes now.
    pub fn is_taken(&self) -> bool {
        let (places, me) = (self.places(), holder::me());
        let first = places.first.load(Relaxed);
        first != 0 && first != me && places.joined.load(Relaxed) < MOST
    }

    /// Waits to be the first, at most this long. `is_left`: whether something is there that the first has not taken.
    pub fn wait(&self, most: Duration, is_left: impl Fn() -> bool) -> Turn {
        let (places, me, end) = (self.places(), holder::me(), Instant::now().checked_add(most));
        let left = || end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        let (mut is_given, mut stopped) = (false, 0);
        while places.second.load(SeqCst) != me {
            let seen = places.second_left.load(SeqCst);
            let second = places.second.load(SeqCst);
            let is_stopped = stopped == second && stopped != 0 && is_left();
            if second == 0 || second == GIVEN && is_given || is_stopped {
                if places.second.compare_exchange(second, me, SeqCst, SeqCst).is_ok() {
                    break;
                }
                (is_given, stopped) = (false, 0);
                continue;
            }
            if is_given {
                return Turn::Look;
            }
            let left = left();
            if left.is_zero() {
                return Turn::Over;
            }
            let look = if second == GIVEN || stopped != 0 { TAKE } else { LOOK_BEHIND };
            match futex::sleep(&places.second_left, seen, look.min(left)) {
                // Where it was given to one that died then it is for whoever has waited longest.
                Slept::Woken => is_given = true,
                Slept::Timeout if places.second.load(SeqCst) == GIVEN => is_given = true,
                Slept::Timeout if is_left() => stopped = places.second.load(SeqCst),
                Slept::Moved | Slept::Timeout => stopped = 0,
                Slept::Signal => return Turn::Signal,
            }
        }
        let (mut look, mut late) = (LOOK, 0);
        loop {
            let seen = places.first_left.load(SeqCst);
            let first = places.first.load(SeqCst);
            let is_stuck = late == first && late != 0 && is_left();
            if (first == 0 || is_stuck) && places.first.compare_exchange(first, me, SeqCst, SeqCst).is_ok() {
                self.pass_second(me);
                return Turn::First;
            }
            if places.second.load(SeqCst) != me {
                return Turn::Look;
            }
            let left = left();
            if left.is_zero() {
                return Turn::Over;
            }
            match futex::sleep(&places.first_left, seen, look.min(left)) {
                Slept::Woken if places.first.load(SeqCst) != 0 => return Turn::Look,
                Slept::Woken | Slept::Moved => {}
                Slept::Timeout if is_left() => (late, look) = (places.first.load(SeqCst), GRACE),
                Slept::Timeout => (late, look) = (0, (look.max(LOOK) * 4).min(LOOK_IDLE)),
                Slept::Signal => return Turn::Signal,
            }
        }
    }

    /// This thread sleeps no more: its place is the next one's.
    pub fn leave(&self) {
        let (places, me) = (self.places(), holder::me());
        // None: they were all forgotten with a dead process.
        let _none = places.joined.fetch_update(Relaxed, Relaxed, |joined| joined.checked_sub(1));
        if places.first.compare_exchange(me, 0, SeqCst, SeqCst).is_ok() {
            self.first_left();
        } else if !self.pass_second(me) && places.second.load(SeqCst) == GIVEN {
            // It may have been given to this thread, which a handler has taken out of its wait.
            self.wake_another();
        }
    }

    /// Ends all waits: [`Turn::Look`].
    pub fn wake_all(&self) {
        for word in [&self.places().first_left, &self.places().second_left] {
            word.fetch_add(1, SeqCst);
            futex::wake_all(word);
        }
    }

    /// Takes their places from the threads of an attachment that are gone (the daemon).
    pub fn release_dead(&self, attachment: u32) {
        let places = self.places();
        // Which of them were its own is not known. The others count as none from here on.
        places.joined.store(0, Relaxed);
        holder::break_lock(&places.first, attachment);
        // Who was woken for it may be the dead one.
        let second = places.second.load(SeqCst);
        if second == GIVEN || holder::is_of(&places.second, attachment) {
            self.pass_second(second);
        } else if second == 0 {
            self.wake_another();
        }
        if places.first.load(SeqCst) == 0 {
            self.first_left();
        }
    }

    /// The first place is free: the second is told.
    fn first_left(&self) {
        let places = self.places();
        let second = places.second.load(SeqCst);
        match second {
            0 => return,
            // Whom it was given to looks by itself, if it is not in a handler, or stopped.
            GIVEN => return self.wake_another(),
            _ => {}
        }
        places.first_left.fetch_add(1, SeqCst);
        if !futex::wake_one(&places.first_left) {
            // It does not sleep there: awake, then it sees by itself that it may be the first; or stopped, or dead.
            self.pass_second(second);
        }
    }

    /// Who is second gives its place to the one that has waited longest. False: another one is second.
    fn pass_second(&self, from: u64) -> bool {
        let places = self.places();
        if places.second.compare_exchange(from, GIVEN, SeqCst, SeqCst).is_err() {
            return false;
        }
        places.second_left.fetch_add(1, SeqCst);
        if futex::wake_one(&places.second_left) {
            return true;
        }
        // Nobody slept. Who was about to sees the word that has changed, or is woken here.
        if places.second.compare_exchange(GIVEN, 0, SeqCst, SeqCst).is_ok() {
            self.wake_another();
        }
        true
    }

    /// Of those that wait to be the second the longest sleeper looks.
    fn wake_another(&self) {
        let places = self.places();
        places.second_left.fetch_add(1, SeqCst);
        futex::wake_one(&places.second_left);
    }

    fn places(&self) -> &Places {
        self.region.at(0)
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Arc, Mutex};
    use std::thread;

    const LONG: Duration = Duration::from_secs(30);

    fn sleepers() -> Arc<Sleepers> {
        Arc::new(Sleepers::create().unwrap().1)
    }

    /// The thread has this state in /proc (a letter).
    fn wait_until_asleep(thread: i32) {
        let path = format!("/proc/self/task/{thread}/stat");
        loop {
            let stat = std::fs::read_to_string(&path).unwrap();
            let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap();
            // futex(2) of x86-64 and of the generic table.
            let number = if cfg!(target_arch = "x86_64") { "202 " } else { "98 " };
            if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
                && call.starts_with(number)
            {
                return;
            }
            thread::yield_now();
        }
    }

    /// A thread that waits to be the first, says so, and leaves when it is told.
    fn sleeper(of: &Arc<Sleepers>, name: usize, told: Sender<usize>) -> (Sender<()>, thread::JoinHandle<()>) {
        let (of, (go, gone), (id, its)) = (of.clone(), channel(), channel());
        let handle = thread::spawn(move || {
            id.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            while !of.enter() && of.wait(LONG, || false) != Turn::First {}
            told.send(name).unwrap();
            gone.recv().unwrap();
            of.leave();
        });
        wait_until_asleep(its.recv().unwrap());
        (go, handle)
    }

    #[test]
    fn the_longest_sleeper_is_first() {
        let sleepers = sleepers();
        assert!(sleepers.enter());
        let (tell, told) = channel();
        let waiting: Vec<_> = (0..5).map(|i| sleeper(&sleepers, i, tell.clone())).collect();
        sleepers.leave();
        for (i, (go, handle)) in waiting.into_iter().enumerate() {
            assert_eq!(told.recv_timeout(LONG), Ok(i));
            go.send(()).unwrap();
            handle.join().unwrap();
        }
        assert!(sleepers.enter(), "nobody is left");
    }

    #[test]
    fn many_do_not_stand_in_order() {
        let sleepers = sleepers();
        assert!((0..MOST).all(|_| sleepers.join()));
        assert!(!sleepers.join());
        sleepers.leave();
        assert!(sleepers.join());
        sleepers.release_dead(3);
        assert!(sleepers.join());
        (0..MOST).for_each(|_| sleepers.leave());
        assert!((0..MOST).all(|_| sleepers.join()), "not below none");
    }

    #[test]
    fn who_leaves_from_the_middle_keeps_nobody() {
        let sleepers = sleepers();
        assert!(sleepers.enter());
        let (tell, told) = channel();
        let short: Vec<_> = (0..3)
            .map(|_| {
                let sleepers = sleepers.clone();
                thread::spawn(move || {
                    assert_eq!(sleepers.wait(Duration::from_millis(20), || false), Turn::Over);
                    sleepers.leave();
                })
            })
            .collect();
        let (go, handle) = sleeper(&sleepers, 7, tell);
        short.into_iter().for_each(|thread| thread.join().unwrap());
        sleepers.leave();
        assert_eq!(told.recv_timeout(LONG), Ok(7));
        go.send(()).unwrap();
        handle.join().unwrap();
    }

    #[test]
    fn who_does_not_take_what_is_there_loses_its_place() {
        let sleepers = sleepers();
        let there = Arc::new(AtomicBool::new(false));
        // The first, which never looks.
        let other = sleepers.clone();
        thread::spawn(move || assert!(other.enter())).join().unwrap();
        assert_eq!(sleepers.wait(Duration::from_millis(200), || there.load(SeqCst)), Turn::Over);
        there.store(true, SeqCst);
        assert_eq!(sleepers.wait(LONG, || there.load(SeqCst)), Turn::First);
        sleepers.leave();
    }

    #[test]
    fn first_and_second_that_are_stopped_lose_their_places() {
        let sleepers = sleepers();
        for second in [5_u64 << 32 | 2, GIVEN] {
            sleepers.places().first.store(5 << 32 | 1, SeqCst);
            sleepers.places().second.store(second, SeqCst);
            let nothing = sleepers.wait(Duration::from_millis(200), || false);
            assert_eq!(nothing, Turn::Over, "{second:#x}");
            sleepers.leave();
            sleepers.places().second.store(second, SeqCst);
            assert_eq!(sleepers.wait(LONG, || true), Turn::First, "{second:#x}");
            sleepers.leave();
        }
    }

    /// A child that was forked is given the memory that it has from its parent, on which that one's threads sleep.
    #[test]
    fn the_same_memory_is_put_over_itself_without_a_word() {
        let (fd, own) = Sleepers::create().unwrap();
        let own = Arc::new(own);
        assert!(own.enter());
        let seen = own.places().first_left.load(SeqCst);
        let again = Sleepers::map(std::os::fd::AsFd::as_fd(&fd)).unwrap();
        assert!(again.put_over(&own).is_ok());
        assert_eq!(own.places().first_left.load(SeqCst), seen);
        let (_fd, other) = Sleepers::create().unwrap();
        assert!(other.put_over(&own).is_ok());
        assert_eq!(own.places().first.load(SeqCst), 0, "the other's");
    }

    #[test]
    fn the_places_of_a_dead_process_are_free() {
        let sleepers = sleepers();
        let dead = 77_u64 << 32;
        for (first, second) in [(dead | 1, 0), (dead | 1, dead | 2), (dead | 1, GIVEN), (0, dead | 2), (0, GIVEN)] {
            sleepers.places().first.store(first, SeqCst);
            sleepers.places().second.store(second, SeqCst);
            sleepers.release_dead(76);
            sleepers.release_dead(77);
            assert!(sleepers.enter(), "{first:#x} {second:#x}");
            sleepers.leave();
        }
        // A sleeper behind them takes over at once, long before it would look by itself.
        sleepers.places().first.store(dead | 1, SeqCst);
        sleepers.places().second.store(dead | 2, SeqCst);
        let (tell, told) = channel();
        let (go, handle) = sleeper(&sleepers, 1, tell);
        sleepers.release_dead(77);
        assert_eq!(told.recv_timeout(LONG), Ok(1));
        go.send(()).unwrap();
        handle.join().unwrap();
    }

    #[test]
    fn all_who_come_and_go_are_first_in_the_end() {
        let sleepers = sleepers();
        let inside = Arc::new(Mutex::new(()));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (sleepers, inside) = (sleepers.clone(), inside.clone());
                thread::spawn(move || {
                    for _ in 0..2000 {
                        // Nobody looks by time here: what was lost would last for ever.
                        while !sleepers.enter() && sleepers.wait(Duration::from_secs(3600), || false) != Turn::First {}
                        drop(inside.try_lock().expect("two are the first"));
                        sleepers.leave();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
