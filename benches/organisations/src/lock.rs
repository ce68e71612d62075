//! Locks with counters, and the other counters.

use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The purpose of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The table of all connections (MsgP).
    Table,
    /// One connection (MsgP).
    Connection,
    /// A group of connections (ConnP-L).
    Group,
    /// Timers of all connections (MsgP).
    Timers,
    /// A device's transmit queue.
    Device,
    /// Ready sockets of one core's application.
    Sockets,
    /// A protocol thread's messages (ConnP-T).
    Messages,
}

/// Names of [`Class`], in its order.
pub const CLASSES: [&str; 7] = ["table", "connection", "group", "timers", "device", "sockets", "messages"];

/// Counters of a thread.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Locks taken, by class.
    pub taken: [u64; CLASSES.len()],
    /// Number of those that were contended.
    pub waited: [u64; CLASSES.len()],
    /// Packets that the engine received.
    pub packets_in: u64,
    /// Packets that the engine sent.
    pub packets_out: u64,
    /// Bytes of payload, without retransmissions.
    pub bytes: u64,
    /// Responses received.
    pub responses: u64,
    /// Number of times that another core accessed an instance of the engine: its cache lines move.
    pub moves: u64,
    /// Messages to protocol threads.
    pub messages: u64,
    /// Threads that were woken.
    pub wakes: u64,
    /// Turns with work.
    pub turns: u64,
    /// Retransmitted packets: the machine paused for longer than the timeout.
    pub retransmits: u64,
}

impl Counters {
    /// Applies `f` to each number of this and of `other`.
    fn zip(&mut self, other: &Counters, f: fn(&mut u64, u64)) {
        let Counters {
            taken,
            waited,
            packets_in,
            packets_out,
            bytes,
            responses,
            moves,
            messages,
            wakes,
            turns,
            retransmits,
        } = self;
        for (mine, its) in taken.iter_mut().chain(waited).zip(other.taken.iter().chain(&other.waited)) {
            f(mine, *its);
        }
        f(packets_in, other.packets_in);
        f(packets_out, other.packets_out);
        f(bytes, other.bytes);
        f(responses, other.responses);
        f(moves, other.moves);
        f(messages, other.messages);
        f(wakes, other.wakes);
        f(turns, other.turns);
        f(retransmits, other.retransmits);
    }

    /// Adds another thread's counters.
    pub fn add(&mut self, other: &Counters) {
        self.zip(other, |mine, its| *mine += its);
    }

    /// Returns the difference from `before`.
    pub fn since(mut self, before: &Counters) -> Counters {
        self.zip(before, |mine, its| *mine -= its);
        self
    }
}

/// A mutex that counts acquisitions and contention.
#[derive(Debug)]
pub struct Lock<T> {
    class: Class,
    value: Mutex<T>,
}

impl<T> Lock<T> {
    /// Creates a lock of this class.
    pub fn new(class: Class, value: T) -> Lock<T> {
        Lock { class, value: Mutex::new(value) }
    }

    /// Acquires the lock and counts it.
    pub fn take(&self, counters: &mut Counters) -> MutexGuard<'_, T> {
        let class = self.class as usize;
        counters.taken[class] += 1;
        match self.value.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                counters.waited[class] += 1;
                self.value.lock().unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    /// Acquires the lock without counting.
    pub fn take_uncounted(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
