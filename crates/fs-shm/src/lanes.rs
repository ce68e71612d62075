//! Lanes: how a poller (an epoll instance, a thread in poll, a core of the daemon) learns which channels of an arena
//! changed, and how it sleeps.
//!
//! Whoever changes a channel publishes first, then a full fence, then looks at the other side's watch mask; for each
//! lane: set the slot's dirty bit, and if the lane sleeps, take the flag and ring the poller. A poller drains its
//! lanes, looks at the channels named, and when nothing is ready: [`Arena::prepare_sleep`] on each lane, sleep in the
//! kernel, [`Arena::awake`]. Dirty bits are hints: a slot may be free or reused by then.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::fence;

use crate::arena::Arena;
use crate::channel::state::{Phase, State};
use crate::instant_unsafe::now;
use crate::layout::{LANES, LaneHead, Marks, Side};
use crate::sleep;
use crate::word::AtomicU32;

/// A lane of the mapping's own side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane(u8);

impl Lane {
    /// 0 .. 32, the bit of the watch masks.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The lane of this number.
    pub fn at(index: usize) -> Option<Lane> {
        (index < LANES).then_some(Lane(index as u8))
    }

    pub(crate) fn bit(self) -> u32 {
        1 << self.0
    }
}

/// What changed of a channel, as the kernel's wake-ups say it (EPOLLIN, EPOLLOUT, or neither, which is for all).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Changes(u8);

impl Changes {
    /// Something to read.
    pub const READ: Changes = Changes(1);
    /// Room to write.
    pub const WRITE: Changes = Changes(2);
    /// What is no more of one than of the other: an end, an error.
    pub const ALL: Changes = Changes(3);
    const KINDS: [Changes; 2] = [Changes::READ, Changes::WRITE];

    /// From what a change is for; what is for nobody in particular is for all.
    pub fn new(readers: bool, writers: bool) -> Changes {
        if readers == writers { Changes::ALL } else { Changes(u8::from(readers) | (u8::from(writers) << 1)) }
    }

    /// What of these one hears of that asks for `asked`; `None`: nothing. An end or an error is for everybody.
    pub fn of(self, asked: Changes) -> Option<Changes> {
        match Changes(self.0 & asked.0) {
            Changes(0) => (self == Changes::ALL).then_some(self),
            some => Some(some),
        }
    }

    /// For one that asks for neither.
    pub const NONE: Changes = Changes(0);

    /// As a number below 4.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// The reverse; what is no such number is all.
    pub fn from_bits(bits: u8) -> Changes {
        if bits < 4 { Changes(bits) } else { Changes::ALL }
    }

    fn has(self, other: Changes) -> bool {
        self.0 & other.0 != 0
    }

    /// Which of a lane's bitmaps one of the kinds has.
    pub(crate) fn index(self) -> usize {
        usize::from((self.0 >> 1) & 1)
    }
}

impl Arena {
    /// Joins a free lane of this side in the name of `poller` (not 0), or finds the one that `poller` has already.
    /// `None`: all 32 are taken.
    pub fn join(&self, poller: u32) -> Option<Lane> {
        if poller == 0 {
            return None;
        }
        let heads = || (0..LANES as u8).map(|i| (i, self.lane_head(self.side(), usize::from(i))));
        if let Some((i, _)) = heads().find(|(_, lane)| lane.poller.load(Acquire) == poller) {
            return Some(Lane(i));
        }
        let (i, lane) = heads().find(|(_, lane)| lane.poller.compare_exchange(0, poller, AcqRel, Relaxed).is_ok())?;
        lane.sleeping.store(0, SeqCst);
        lane.ordered.store(0, Relaxed);
        let lane = Lane(i);
        self.drain(lane, |_| {});
        Some(lane)
    }

    /// Leaves a lane, and takes it out of the inbox's masks: they would have the lane's next poller take rings that are for
    /// others. The caller took it out of the watch masks of its channels before; bits left there cost the next poller a look in
    /// vain.
    pub fn leave(&self, lane: Lane) {
        if self.side() == Side::B {
            self.watch_inbox(lane, false);
        }
        let head = self.lane_head(self.side(), lane.index());
        head.sleeping.store(0, SeqCst);
        head.poller.store(0, SeqCst);
    }

    /// Frees the lanes of a poller that is gone, on this side (the daemon, for a dead process).
    pub fn evict(&self, poller: u32) {
        for i in 0..LANES {
            let head = self.lane_head(self.side(), i);
            if head.poller.load(Acquire) == poller {
                self.leave(Lane(i as u8));
            }
        }
    }

    /// The pollers that have a lane of the other side: whom this side may have to ring.
    pub fn peer_pollers(&self) -> impl Iterator<Item = u32> {
        self.pollers(self.side().other())
    }

    /// The pollers that have a lane of `side`.
    pub fn pollers(&self, side: Side) -> impl Iterator<Item = u32> {
        let poller = move |lane| self.lane_head(side, lane).poller.load(Acquire);
        (0..LANES).map(poller).filter(|&poller| poller != 0)
    }

    /// The lane of a poller is not asleep any more (the daemon: a process that slept on it has ended, and who else sleeps on
    /// it is rung afterwards). While the flag stood, who looks for one sleeper would take it for one.
    pub fn disarm(&self, poller: u32) {
        let lanes = (0..LANES).map(|i| self.lane_head(self.side(), i));
        lanes.filter(|lane| lane.poller.load(Acquire) == poller).for_each(|lane| lane.sleeping.store(0, SeqCst));
    }

    /// Takes the dirty bits: calls `look` for each slot that changed since.
    pub fn drain(&self, lane: Lane, mut look: impl FnMut(u32)) {
        self.drain_changes(lane, |slot, _| look(slot));
    }

    /// The same, with what changed.
    pub fn drain_changes(&self, lane: Lane, mut look: impl FnMut(u32, Changes)) {
        let head = self.lane_head(self.side(), lane.index());
        for (s, summary) in head.summary.iter().take(self.geometry().words().div_ceil(64)).enumerate() {
            if summary.load(Relaxed) == 0 {
                continue;
            }
            for word in bits(summary.swap(0, SeqCst)) {
                let index = s * 64 + word;
                let Some(Marks { dirty: [read, write], .. }) = self.marks(self.side(), lane.index(), index) else {
                    continue;
                };
                // Seldom is there room to tell of, and a swap costs more than a look.
                let room = if write.load(SeqCst) == 0 { 0 } else { write.swap(0, SeqCst) };
                let read = read.swap(0, SeqCst);
                // Who publishes from here on finds its bit clear, or what it published before is seen by who looks now.
                sleep::barrier_after_swap();
                for bit in bits(read | room) {
                    let changes = ((read >> bit) & 1) | (((room >> bit) & 1) << 1);
                    look((index * 64 + bit) as u32, Changes(changes as u8));
                }
            }
        }
    }

    /// The lane's poller wants to know in which order channels changed: [`Arena::changed`].
    pub fn set_ordered(&self, lane: Lane) {
        self.lane_head(self.side(), lane.index()).ordered.store(1, SeqCst);
    }

    /// When the first of these changes came to the channel in a slot that [`Arena::drain_changes`] named, after the drain before,
    /// on the clock of [`now`](crate::now()); of ordered lanes only.
    pub fn changed(&self, lane: Lane, slot: u32, changes: Changes) -> u64 {
        let Some(marks) = self.marks(self.side(), lane.index(), (slot / 64) as usize) else { return 0 };
        let time = |kind: Changes| marks.since[kind.index()][(slot % 64) as usize].load(Relaxed);
        Changes::KINDS.into_iter().filter(|&kind| changes.has(kind)).map(time).min().unwrap_or(0)
    }

    /// Whether the first of the changes that [`Arena::drain_changes`] named was that the connection in this slot came into the inbox,
    /// also if it was accepted since; of ordered lanes only. Good for order only, as [`Arena::changed`].
    pub fn has_come(&self, lane: Lane, slot: u32) -> bool {
        let came = self.came(slot);
        came != 0 && self.changed(lane, slot, Changes::READ) == came
    }

    /// When the connection in this slot came into the inbox.
    pub(crate) fn came(&self, slot: u32) -> u64 {
        let is_one = slot < self.geometry().slots;
        if is_one { self.block(slot).inn[Side::B.index()].wake.came.load(Relaxed) } else { 0 }
    }

    /// Whether [`Arena::drain`] will name this slot.
    pub fn is_marked(&self, lane: Lane, slot: u32) -> bool {
        let marks = self.marks(self.side(), lane.index(), (slot / 64) as usize);
        marks.is_some_and(|marks| marks.dirty.iter().any(|word| word.load(Relaxed) & 1 << (slot % 64) != 0))
    }

    /// Whether the connection in this slot waits for accept, as far as anyone knows who has not taken it.
    pub fn is_waiting(&self, slot: u32) -> bool {
        let is_one = slot < self.geometry().slots;
        is_one && {
            let state = State(self.block(slot).state.load(Acquire));
            state.phase() != Phase::Free && !state.is_accepted()
        }
    }

    /// Whether something changed since the last drain, without taking it.
    pub fn is_dirty(&self, lane: Lane) -> bool {
        let head = self.lane_head(self.side(), lane.index());
        head.summary.iter().any(|word| word.load(Relaxed) != 0)
    }

    /// Announces that the lane's poller is about to sleep. `false`: something changed meanwhile; the announcement is
    /// withdrawn, drain and look again.
    #[must_use]
    pub fn prepare_sleep(&self, lane: Lane) -> bool {
        let head = self.lane_head(self.side(), lane.index());
        let nothing = sleep::announce(&head.sleeping, || self.is_dirty(lane));
        if !nothing {
            head.sleeping.store(0, SeqCst);
        }
        nothing
    }

    /// Has the lane's poller rung by the next who changes something, for one that has many lanes: a full fence, and a look
    /// for what was there before, have to follow the last of them. `false`: the lane was so already.
    pub fn arm(&self, lane: Lane) -> bool {
        let sleeping = &self.lane_head(self.side(), lane.index()).sleeping;
        let is_new = sleeping.load(Relaxed) == 0;
        if is_new {
            sleeping.store(1, Relaxed);
        }
        is_new
    }

    /// The poller is awake again: no more bells.
    pub fn awake(&self, lane: Lane) {
        self.lane_head(self.side(), lane.index()).sleeping.store(0, SeqCst);
    }

    /// Adds the lane to, or takes it out of, those that hear of the inbox (side B).
    pub fn watch_inbox(&self, lane: Lane, watch: bool) {
        set_bit(&self.head().inbox_one_of, lane, false);
        set_bit(&self.head().inbox_last, lane, false);
        set_bit(&self.head().inbox_watch, lane, watch);
        fence(SeqCst);
    }

    /// The lane is one of those of which one is rung for each entry of the inbox, if it sleeps; the `last` ones if no other
    /// does. It watches the inbox already.
    pub fn share_inbox(&self, lane: Lane, last: bool) {
        set_bit(&self.head().inbox_last, lane, last);
        set_bit(&self.head().inbox_one_of, lane, true);
        fence(SeqCst);
    }

    /// Marks `slot` dirty in every lane of `side` that `mask` names, and rings those that sleep. The caller published
    /// and fenced before it read `mask`.
    pub(crate) fn mark(&self, side: Side, mask: u32, slot: u32, changes: Changes) {
        self.mark_since(side, mask, slot, changes, &mut 0);
    }

    /// The same of a change of this time.
    #[inline]
    fn mark_since(&self, side: Side, mask: u32, slot: u32, changes: Changes, time: &mut u64) {
        for lane in bits(u64::from(mask)) {
            let head = self.lane_head(side, lane);
            self.mark_dirty(head, (side, lane), slot, changes, time);
            self.wake(head);
        }
    }

    /// Rings the lane's poller if it sleeps; whether it did.
    #[inline]
    fn wake(&self, head: &LaneHead) -> bool {
        let slept = sleep::claim(&head.sleeping);
        if slept {
            let poller = head.poller.load(Relaxed);
            if poller != 0 {
                self.bells().ring(poller);
            }
        }
        slept
    }

    /// `time`: of this change; 0: not read yet.
    #[inline]
    fn mark_dirty(&self, head: &LaneHead, at: (Side, usize), slot: u32, changes: Changes, time: &mut u64) {
        let (word, place) = ((slot / 64) as usize, (slot % 64) as usize);
        let bit = 1u64 << place;
        let Some(marks) = self.marks(at.0, at.1, word) else { return };
        for (kind, dirty) in marks.dirty.iter().enumerate().filter(|&(kind, _)| changes.0 & 1 << kind != 0) {
            // Set already and not taken yet: the poller will look after this fence-ordered load.
            if dirty.load(SeqCst) & bit == 0 {
                // Before the bit, so that who takes that finds it. Only with a new bit: the kernel's list has a descriptor at the
                // place of its first event too.
                if head.ordered.load(Relaxed) != 0 {
                    if *time == 0 {
                        *time = now();
                    }
                    marks.since[kind][place].store(*time, Relaxed);
                }
                dirty.fetch_or(bit, SeqCst);
            }
        }
        let (summary, bit) = (&head.summary[word / 64], 1u64 << (word % 64));
        if summary.load(SeqCst) & bit == 0 {
            summary.fetch_or(bit, SeqCst);
        }
    }

    /// What [`Arena::came`] answers from here on.
    pub(crate) fn record_time(&self, slot: u32) {
        self.block(slot).inn[Side::B.index()].wake.came.store(now(), Relaxed);
    }

    /// Tells of the connection in this slot, which has come into the inbox ([`Arena::record_time`]).
    pub(crate) fn notify_arrival(&self, slot: u32) {
        self.notify_inbox(slot, self.came(slot));
    }

    /// Tells who watches the inbox that nothing more comes, and nothing of a connection.
    pub(crate) fn notify_end(&self) {
        fence(SeqCst);
        self.wake_accepting();
        for lane in bits(u64::from(self.head().inbox_watch.load(Relaxed))) {
            let head = self.lane_head(Side::B, lane);
            // Without a mark behind it: who is about to sleep looks once more.
            head.summary[0].fetch_or(1, SeqCst);
            self.wake(head);
        }
    }

    /// Wakes who sleeps in accept(2).
    fn wake_accepting(&self) {
        let head = self.head();
        if sleep::claim(&head.inbox_sleep) {
            head.inbox_word.fetch_add(1, SeqCst);
            crate::futex::wake_all(&head.inbox_word);
        }
    }

    /// Tells who watches the inbox to look. `time`: of what there is to see; 0: now.
    pub(crate) fn notify_inbox(&self, slot: u32, mut time: u64) {
        fence(SeqCst);
        self.wake_accepting();
        let head = self.head();
        let watch = head.inbox_watch.load(Relaxed);
        let one_of = head.inbox_one_of.load(Relaxed) & watch;
        self.mark_since(Side::B, watch & !one_of, slot, Changes::READ, &mut time);
        if one_of == 0 {
            return;
        }
        // All of them look when they are awake next.
        for lane in bits(u64::from(one_of)) {
            self.mark_dirty(self.lane_head(Side::B, lane), (Side::B, lane), slot, Changes::READ, &mut time);
        }
        // As after any publication: who announces its sleep from here on finds the bit.
        fence(SeqCst);
        let last = head.inbox_last.load(Relaxed) & one_of;
        if !bits(u64::from(one_of & !last)).any(|lane| self.wake(self.lane_head(Side::B, lane))) {
            // Whether anybody sleeps on a poller that several share is not known here.
            bits(u64::from(last)).for_each(|lane| {
                self.wake(self.lane_head(Side::B, lane));
            });
        }
    }
}

pub(crate) fn set_bit(mask: &AtomicU32, lane: Lane, on: bool) {
    if on {
        mask.fetch_or(lane.bit(), SeqCst);
    } else {
        mask.fetch_and(!lane.bit(), SeqCst);
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}
