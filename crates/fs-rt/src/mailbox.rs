//! Messages between cores: a bounded ring for every ordered pair, and a doorbell for cores that
//! sleep.
//!
//! Other threads send control messages to a core's [`Inbox`], which may take a lock: no
//! connection's data passes through it.

use crate::sys::EventFd;
use fs_core::CoreMessage;
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Messages that fit between two cores. One turn of the sender makes at most a receive batch (64)
/// for one receiver, so 1024 is the backlog of a receiver that is 16 turns behind. Lower: packets
/// of flows on the wrong core are dropped in bursts. Higher: a stuck core can hold more frames.
const RING: usize = 1024;

/// Wakes one core if it sleeps.
#[derive(Debug)]
pub(crate) struct Doorbell {
    asleep: AtomicBool,
    eventfd: EventFd,
}

impl Doorbell {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { asleep: AtomicBool::new(false), eventfd: EventFd::new()? })
    }

    /// Call after a message was put in. The fence pairs with the one in
    /// [`Doorbell::announce_sleep`]: either the sender sees `asleep`, or the sleeper sees the
    /// message. Returns `true` if it wrote to the eventfd.
    pub(crate) fn notify_if_asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        let asleep = self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed);
        if asleep {
            self.eventfd.notify();
        }
        asleep
    }

    /// Announces that the owner is about to sleep. The owner must check its messages once more
    /// after this.
    pub(crate) fn announce_sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Announces that the owner is awake.
    pub(crate) fn end_sleep(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    pub(crate) fn eventfd(&self) -> &EventFd {
        &self.eventfd
    }
}

/// Control messages for one core, from any thread.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    /// Read once per turn. Its cache line changes only when a message arrives.
    pending: AtomicBool,
    queue: Mutex<Vec<T>>,
    pub(crate) doorbell: Doorbell,
}

impl<T> Inbox<T> {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { pending: AtomicBool::new(false), queue: Mutex::new(Vec::new()), doorbell: Doorbell::new()? })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        // A Vec is consistent even if a holder panicked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send(&self, message: T) {
        let mut queue = self.lock();
        queue.push(message);
        self.pending.store(true, Ordering::Release);
        drop(queue);
        self.doorbell.notify_if_asleep();
    }

    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Exchanges the messages for `empty`. Both buffers stay in use, because freeing one would take
    /// the lock of a sender's malloc arena, which the sender may hold.
    pub(crate) fn swap(&self, empty: &mut Vec<T>) {
        debug_assert!(empty.is_empty(), "messages would be carried out twice");
        let mut queue = self.lock();
        self.pending.store(false, Ordering::Relaxed);
        std::mem::swap(&mut *queue, empty);
    }
}

/// A message between cores' stacks. `Handover` and `Packet` only contain owned data and frame
/// handles.
pub(crate) type Mail = CoreMessage;

/// One core's ends of all its rings. The index is the other core's number (its own is empty).
pub(crate) struct Mailboxes {
    pub(crate) to: Vec<Option<Outbox>>,
    pub(crate) from: Vec<Consumer<Mail>>,
}

/// The sending side to one other core.
pub(crate) struct Outbox {
    ring: Producer<Mail>,
    /// Messages that must not be lost (listen and handover messages) and found the ring full. While
    /// one waits here, nothing overtakes it.
    waiting: VecDeque<Mail>,
    unrung: bool,
    pub(crate) high_water: usize,
}

impl Outbox {
    /// Sends a message, or returns a packet for which the receiver has no room. A path MTU is
    /// dropped instead: the receiver learns it from its own packets, and a waiting message would
    /// stop the packets behind it.
    pub(crate) fn send(&mut self, mail: Mail) -> Result<(), Mail> {
        let back = if self.waiting.is_empty() { self.ring.push(mail) } else { Err(PushError::Full(mail)) };
        match back.map_err(|PushError::Full(mail)| mail) {
            Ok(()) => {
                self.unrung = true;
                Ok(())
            }
            Err(packet @ CoreMessage::Packet(_)) => Err(packet),
            Err(CoreMessage::PathMtu { .. }) => Ok(()),
            Err(precious) => {
                self.waiting.push_back(precious);
                Ok(())
            }
        }
    }

    /// Called after a turn's sends. Sends waiting messages, records the high-water mark, and
    /// returns whether to ring the receiver's doorbell.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(mail) = self.waiting.pop_front() {
            match self.ring.push(mail) {
                Ok(()) => self.unrung = true,
                Err(PushError::Full(back)) => {
                    self.waiting.push_front(back);
                    break;
                }
            }
        }
        if self.unrung {
            self.high_water = self.high_water.max(RING - self.ring.slots());
        }
        std::mem::take(&mut self.unrung)
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// Creates rings between all of `cores`.
pub(crate) fn matrix(cores: usize) -> Vec<Mailboxes> {
    let mut all: Vec<Mailboxes> =
        (0..cores).map(|_| Mailboxes { to: Vec::with_capacity(cores), from: Vec::new() }).collect();
    for from in 0..cores {
        for to in 0..cores {
            if from == to {
                all[from].to.push(None);
                continue;
            }
            let (sender, receiver) = RingBuffer::new(RING);
            all[from].to.push(Some(Outbox { ring: sender, waiting: VecDeque::new(), unrung: false, high_water: 0 }));
            all[to].from.push(receiver);
        }
    }
    all
}

/// The inboxes of all cores.
pub(crate) type Inboxes<T> = Arc<[Inbox<T>]>;

#[cfg(test)]
mod tests {
    use super::*;
    use fs_core::CoreId;
    use std::net::{IpAddr, SocketAddr};

    fn is_notified(doorbell: &Doorbell) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut fds = [PollFd::new(doorbell.eventfd(), PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).unwrap() == 1
    }

    #[test]
    fn doorbell_of_a_sleeper_is_readable() {
        let doorbell = Doorbell::new().unwrap();
        assert!(!doorbell.notify_if_asleep() && !is_notified(&doorbell), "no core sleeps");
        doorbell.announce_sleep();
        assert!(doorbell.notify_if_asleep() && is_notified(&doorbell), "the sleeper is woken");
        assert!(!doorbell.notify_if_asleep(), "once");
    }

    /// A core that is not woken finds the message when its sleep ends, up to a second later, so other
    /// tests do not notice.
    #[test]
    fn message_wakes_a_sleeper() {
        let inbox = Inbox::new().unwrap();
        inbox.send(1);
        assert!(!is_notified(&inbox.doorbell), "it is awake");
        inbox.doorbell.announce_sleep();
        inbox.send(2);
        assert!(inbox.is_pending() && is_notified(&inbox.doorbell));
        let mut messages = Vec::new();
        inbox.swap(&mut messages);
        assert_eq!(messages, [1, 2]);
    }

    #[test]
    fn path_mtus_are_dropped_and_block_no_packets() {
        let mut cores = matrix(2);
        let mut receiver = cores.pop().unwrap();
        let mut sender = cores.pop().unwrap();
        let outbox = sender.to[1].as_mut().unwrap();
        for n in 0..2 * RING as u32 {
            assert!(outbox.send(CoreMessage::PathMtu { to: IpAddr::from(n.to_be_bytes()), mtu: 1400 }).is_ok());
        }
        assert!(!outbox.has_waiting(), "nothing waits for room");
        assert!(outbox.flush());
        let mut taken = 0;
        while receiver.from[0].pop().is_ok() {
            taken += 1;
        }
        assert_eq!(taken, RING);
        // A message that must not be lost waits.
        let at = SocketAddr::from(([0, 0, 0, 0], 80));
        for _ in 0..=RING {
            assert!(outbox.send(CoreMessage::Listen { core: CoreId(0), at, up: true }).is_ok());
        }
        assert!(outbox.has_waiting());
    }
}
