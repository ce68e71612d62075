//! Locks that count, and what else is counted.

use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// What a lock is for.
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
    /// The sockets of one core's application that are ready.
    Sockets,
    /// A protocol thread's messages (ConnP-T).
    Messages,
}

/// Names of [`Class`], in its order.
pub const CLASSES: [&str; 7] = ["table", "connection", "group", "timers", "device", "sockets", "messages"];

/// What a thread has counted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Locks taken, by class.
    pub taken: [u64; CLASSES.len()],
    /// Of these, those that somebody held.
    pub waited: [u64; CLASSES.len()],
    /// Packets that the engine took in.
    pub packets_in: u64,
    /// Packets that it sent.
    pub packets_out: u64,
    /// Bytes of payload that were sent for the first time.
    pub bytes: u64,
    /// Responses that have come.
    pub responses: u64,
    /// Times that an instance of the engine was touched by another core than before: its lines move.
    pub moves: u64,
    /// Messages to protocol threads.
    pub messages: u64,
    /// Threads that were woken.
    pub wakes: u64,
    /// Turns that found work.
    pub turns: u64,
    /// Packets sent again: a pause of the machine longer than the time-out.
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

    /// Adds what another thread counted.
    pub fn add(&mut self, other: &Counters) {
        self.zip(other, |mine, its| *mine += its);
    }

    /// What was counted since `before`.
    pub fn since(mut self, before: &Counters) -> Counters {
        self.zip(before, |mine, its| *mine -= its);
        self
    }
}

/// A mutex that counts how often it is taken and how often somebody held it.
#[derive(Debug)]
pub struct Lock<T> {
    class: Class,
    value: Mutex<T>,
}

impl<T> Lock<T> {
    /// For this purpose.
    pub fn new(class: Class, value: T) -> Lock<T> {
        Lock { class, value: Mutex::new(value) }
    }

    /// Takes it.
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

    /// Takes it where nobody measures.
    pub fn take_uncounted(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
