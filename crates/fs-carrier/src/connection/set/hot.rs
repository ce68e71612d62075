//! The hot connections of a set, guarded by its gate.

use std::sync::Arc;

use core::sync::atomic::Ordering;

use super::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLONESHOT, EPOLLRDHUP, READABLE, WRITABLE};
use crate::connection::{Entry, Hot, Member};
use crate::consumer::Idle;
use crate::kernel::{Errno, Event, Kernel, KernelSet};
use crate::position::Position;
use crate::word::Snapshot;

/// Calls of epoll_wait(2) without bytes after which a hot connection is left to the kernel. More:
/// each scan checks it in vain, 2 ns and a cache line of its sender. Fewer: a connection that is
/// used sometimes goes through the kernel.
const MAX_EMPTY_CALLS: u32 = 1024;
/// Up to this length, scanning a list costs less than keeping it short.
const SHORT_LIST: usize = 64;

/// True if a thread may sleep in the kernel's set (E2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaySleep {
    Yes,
    /// Kernel bytes that precede unread ring bytes have not arrived. They wake the thread, unless
    /// another one takes them (C7).
    Briefly,
    /// A connection has bytes to report.
    No,
}

impl<K: Kernel> Hot<K> {
    pub(super) fn new() -> Self {
        Hot {
            list: Vec::new(),
            next: 0,
            hand: 0,
            calls: 0,
            sleepers: 0,
            writers: 0,
            untold: Vec::new(),
            has_ends: false,
            is_interrupted: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn push(&mut self, member: &Arc<Member<K>>, reported: Option<Position>) {
        let word = member.pair().incoming_word_ref();
        let (events, data) = (member.events(), member.data());
        member.place.store(self.list.len(), Ordering::Relaxed);
        self.list.push(Entry {
            word,
            seen: None,
            reported,
            active: self.calls,
            events,
            data,
            member: Arc::clone(member),
        });
    }

    fn swap(&mut self, i: usize, j: usize) {
        self.list.swap(i, j);
        for place in [i, j] {
            self.list[place].member.place.store(place, Ordering::Relaxed);
        }
    }

    fn take_out(&mut self, i: usize) {
        let entry = self.list.swap_remove(i);
        entry.member.is_hot.store(false, Ordering::Relaxed);
        if let Some(moved) = self.list.get(i) {
            moved.member.place.store(i, Ordering::Relaxed);
        }
    }

    pub(super) fn drop_member(&mut self, member: &Arc<Member<K>>) {
        if member.is_hot.load(Ordering::Relaxed) {
            self.take_out(member.place.load(Ordering::Relaxed));
        }
    }

    /// Updates the entry of a hot member whose registration has changed.
    pub(super) fn renew(&mut self, member: &Member<K>) {
        if !member.is_hot.load(Ordering::Relaxed) {
            return;
        }
        let entry = &mut self.list[member.place.load(Ordering::Relaxed)];
        (entry.events, entry.data, entry.seen) = (member.events(), member.data(), None);
    }

    /// Makes the next scan report unread bytes again.
    pub(super) fn repeat_edge(&mut self, member: &Member<K>) {
        if member.is_hot.load(Ordering::Relaxed) {
            let entry = &mut self.list[member.place.load(Ordering::Relaxed)];
            (entry.reported, entry.seen) = (None, None);
        }
    }

    /// Counts a member whose registration begins or ends.
    pub(super) fn count(&mut self, member: &Member<K>, begins: bool) {
        if member.wants_room() {
            self.writers = if begins { self.writers + 1 } else { self.writers.saturating_sub(1) };
        }
    }

    /// E5: a connection was added to the set, or its registration has changed. A thread that sleeps
    /// in the set must get an event for its bytes.
    pub(super) fn take_in(&mut self, member: &Arc<Member<K>>, kernel: &impl KernelSet) -> Result<(), Errno> {
        if member.pair().is_kernel_only_and_empty() {
            return Ok(());
        }
        self.insert(member, None);
        if self.sleepers == 0 {
            return Ok(());
        }
        // While a thread sleeps, the kernel carries all connections of this set, also those whose
        // bytes another thread will read.
        let tells = member.pair().idle(|_tail| true) == Idle::Behind && member.wants_bytes();
        if tells && !self.is_interrupted {
            kernel.interrupt()?;
            self.is_interrupted = true;
        }
        Ok(())
    }

    /// E1: reports the hot connections that have bytes, and drops those that the kernel carries
    /// again. Returns how many events it wrote.
    pub(super) fn scan(&mut self, kernel: &impl KernelSet, into: &mut [Event]) -> usize {
        self.calls = self.calls.wrapping_add(1);
        self.has_ends = false;
        let start = self.next.min(self.list.len());
        let mut found = self.scan_part(kernel, start, self.list.len(), into);
        if found < into.len() {
            found += self.scan_part(kernel, 0, start, &mut into[found..]);
        }
        if self.list.len() > SHORT_LIST {
            self.drop_one_idle();
        }
        found
    }

    /// E1 for a part of the list. The next scan starts after the last entry that was checked.
    #[inline]
    fn scan_part(&mut self, kernel: &impl KernelSet, mut i: usize, mut end: usize, into: &mut [Event]) -> usize {
        let mut found = 0;
        while i < end && found < into.len() {
            let entry = &mut self.list[i];
            let word = entry.word.load();
            let has_room = entry.has_room(word);
            let is_seen = entry.seen == Some(word);
            if is_seen && !has_room {
                i += 1;
                continue;
            }
            let has_bytes = !is_seen && entry.has_event(word);
            if has_bytes || has_room {
                entry.active = self.calls;
                self.has_ends |= word.is_pinned();
                into[found] = entry.report(kernel, word, has_bytes, has_room);
                found += 1;
                i += 1;
            } else if entry.member.pair().is_kernel_only_and_empty_behind(word) && !entry.member.is_spent() {
                // The part's last entry moves to this place and is checked next. The list's last
                // entry was checked already, or is the same.
                end -= 1;
                self.swap(i, end);
                self.take_out(end);
            } else {
                // Kernel bytes that have not arrived: their arrival does not change the word.
                let is_final = !entry.member.pair().has_late_bytes() || !entry.wants(word);
                entry.seen = is_final.then_some(word);
                i += 1;
            }
        }
        self.next = i;
        found
    }

    /// One connection per call, so that no call takes noticeably longer.
    fn drop_one_idle(&mut self) {
        self.hand = if self.hand + 1 < self.list.len() { self.hand + 1 } else { 0 };
        let entry = &self.list[self.hand];
        if self.calls.wrapping_sub(entry.active) > MAX_EMPTY_CALLS && entry.member.pair().try_idle() {
            self.take_out(self.hand);
        }
    }

    /// E2: makes the kernel the carrier of all hot connections. Returns whether the caller may
    /// sleep: no connection has bytes to report.
    pub(super) fn prepare_sleep(&mut self) -> MaySleep {
        let (mut i, mut may) = (0, MaySleep::Yes);
        while i < self.list.len() {
            let before = self.list.len();
            match self.may_sleep(i) {
                MaySleep::Yes => {}
                MaySleep::Briefly => may = MaySleep::Briefly,
                MaySleep::No => return MaySleep::No,
            }
            i += usize::from(self.list.len() == before);
        }
        may
    }

    /// C4 for one connection, with its receive lock. Returns whether this connection allows the
    /// thread to sleep.
    fn may_sleep(&mut self, i: usize) -> MaySleep {
        let entry = &self.list[i];
        let pair = entry.member.pair();
        match pair.idle(|tail| !entry.wants_ring(tail)) {
            // A spent connection stays, because the kernel's event for it is no report.
            Idle::Kernel if entry.member.is_spent() => MaySleep::Yes,
            Idle::Kernel => {
                self.take_out(i);
                MaySleep::Yes
            }
            Idle::Behind => MaySleep::Yes,
            Idle::Unread if entry.has_event(pair.incoming_word()) => MaySleep::No,
            Idle::Unread => MaySleep::Briefly,
        }
    }

    /// C9: the kernel has reported `events[own..]`. An event of a connection that is in
    /// `events[..own]`, by the ring, is joined with that one. Returns the number of events that are
    /// left.
    pub(super) fn merge(&mut self, events: &mut [Event], own: usize) -> usize {
        if own == events.len() {
            return own;
        }
        // One pass over the list: with 1,000 hot connections, a search for each event would cost more than the scan.
        let reported = &mut events[own..];
        let filter = Filter::of(reported);
        let mut one_shots = false;
        for entry in &mut self.list {
            if filter.may_have(entry.data)
                && let Some(event) = reported.iter_mut().find(|event| { event.data } == entry.data)
            {
                entry.member.pair().report_readable();
                one_shots |= entry.events & EPOLLONESHOT != 0;
                entry.complete(event);
            }
        }
        let left = if one_shots { self.spend_one_shots(events, own) } else { events.len() };
        join(&mut events[..left], own)
    }

    /// The kernel has made the one report of connections with ring bytes: it is theirs too. One
    /// that comes after the ring's own is dropped. Returns how many events are left.
    #[cold]
    fn spend_one_shots(&mut self, events: &mut [Event], own: usize) -> usize {
        let mut left = own;
        for i in own..events.len() {
            let mut event = events[i];
            let is_its = |entry: &&mut Entry<K>| entry.data == event.data && entry.events & EPOLLONESHOT != 0;
            let entry = self.list.iter_mut().find(is_its);
            if entry.as_ref().is_some_and(|entry| entry.member.is_spent()) {
                continue;
            }
            if let Some(entry) = entry {
                if entry.has_event(entry.word.load()) {
                    event.events |= entry.events & READABLE;
                }
                entry.spend();
            }
            events[left] = event;
            left += 1;
        }
        left
    }

    /// Returns whether a connection has bytes to report.
    #[cold]
    pub(super) fn has_event(&self) -> bool {
        self.list.iter().any(|entry| entry.has_event(entry.word.load()))
    }
}

/// Joins events of `events[own..]` with those of the same connections in `events[..own]`. Returns
/// the number of events that are left.
pub(super) fn join(events: &mut [Event], own: usize) -> usize {
    if own == 0 || own == events.len() {
        return events.len();
    }
    let filter = Filter::of(&events[..own]);
    let mut left = own;
    for i in own..events.len() {
        let event = events[i];
        if filter.may_have(event.data)
            && let Some(known) = events[..own].iter_mut().find(|known| { known.data } == event.data)
        {
            known.events |= event.events;
        } else {
            events[left] = event;
            left += 1;
        }
    }
    left
}

/// A Bloom filter of events' data. For hundreds of events, a search in hundreds of others would
/// take longer than the rest of a call.
struct Filter([u64; FILTER_WORDS]);

/// More: more to clear for each call; fewer: with 1,000 events, most searches are in vain.
const FILTER_WORDS: usize = 128;

impl Filter {
    fn of(events: &[Event]) -> Self {
        let mut filter = Filter([0; FILTER_WORDS]);
        for event in events {
            let (word, bit) = Self::place(event.data);
            filter.0[word] |= bit;
        }
        filter
    }

    fn may_have(&self, data: u64) -> bool {
        let (word, bit) = Self::place(data);
        self.0[word] & bit != 0
    }

    fn place(data: u64) -> (usize, u64) {
        let hash = data.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((hash >> 57) as usize % FILTER_WORDS, 1 << (hash >> 51 & 63))
    }
}

impl<K: Kernel> Entry<K> {
    /// Returns whether the connection has to be reported, by one reading of its word: the next receive finds bytes.
    #[inline]
    fn has_event(&self, word: Snapshot) -> bool {
        let pair = self.member.pair();
        self.wants(word)
            && if self.is_edge_triggered() { pair.is_ring_reachable(word) } else { pair.is_ready_by_words(word) }
    }

    /// Records that the one-shot registration has reported.
    fn spend(&mut self) {
        self.events = EPOLLONESHOT;
        self.member.is_spent.store(true, Ordering::Relaxed);
    }

    fn is_edge_triggered(&self) -> bool {
        self.events & EPOLLET != 0
    }

    /// Returns whether bytes that are ready by the words are an event.
    #[inline]
    fn wants(&self, word: Snapshot) -> bool {
        if self.member.pair().has_ring_bytes_behind(word) {
            return self.wants_ring(word.tail());
        }
        // The kernel carried these bytes, so only the kernel knows whether there is an edge.
        !self.is_edge_triggered() && self.events & READABLE != 0 && !word.is_kernel_only()
    }

    /// Returns whether room to send is an event, and the ring has some: a send would not wait,
    /// whatever the kernel's queue is like. Not where the kernel alone knows of bytes, which it
    /// reports together with the room.
    #[inline]
    pub(super) fn has_room(&self, word: Snapshot) -> bool {
        self.events & WRITABLE != 0
            && self.events & EPOLLET == 0
            && !word.is_kernel_only()
            && self.member.pair().ring_has_room()
    }

    /// Returns whether unread ring bytes up to `tail` are an event as soon as they are next: one
    /// per arrival if edge-triggered.
    #[inline]
    fn wants_ring(&self, tail: Position) -> bool {
        self.events & READABLE != 0 && (!self.is_edge_triggered() || self.reported != Some(tail))
    }

    /// The kernel reports all that is ready, with an edge of any kind too: what is unread in the ring joins its event.
    fn complete(&mut self, event: &mut Event) {
        let word = self.word.load();
        let pair = self.member.pair();
        let has_bytes = if self.is_edge_triggered() {
            pair.has_ring_bytes_behind(word) && pair.is_ring_reachable(word)
        } else {
            self.has_event(word)
        };
        if has_bytes {
            self.reported = Some(word.tail());
            event.events |= self.events & READABLE;
        }
    }

    #[inline]
    fn report(&mut self, kernel: &impl KernelSet, word: Snapshot, has_bytes: bool, has_room: bool) -> Event {
        let mut events = 0;
        if has_bytes {
            self.reported = Some(word.tail());
            events = self.events & READABLE;
        }
        // The kernel reports all that is ready together with what it wakes for, edge-triggered too.
        let room = self.events & WRITABLE;
        if room != 0 && (has_room || self.member.pair().has_room()) {
            events |= room;
        }
        let mut event = Event { events, data: self.data };
        if self.events & EPOLLONESHOT != 0 {
            // The next report comes only after the application registers the socket again, so this
            // one has everything that the kernel would report.
            let seen = self.member.pair().kernel().events();
            event.events |= (u32::from(seen.error) * EPOLLERR) | (u32::from(seen.hang_up) * EPOLLHUP);
            event.events |= self.events & (u32::from(seen.peer_closed) * EPOLLRDHUP);
            self.spend();
            kernel.disarm(self.member.pair().kernel().descriptor(), self.data);
        }
        event
    }
}
