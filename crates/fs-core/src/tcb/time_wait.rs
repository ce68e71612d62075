//! TIME-WAIT as compact records (RFC 9293 3.3.2): no slot, no buffer, only what is needed to answer a
//! retransmitted FIN and to judge a new SYN (RFC 6191).

use crate::flow::FlowKey;
use crate::seq::SeqNum;
use crate::slab::{Hollow, NIL, Slab};
use crate::time::{Duration, Instant};
use crate::timer::fifo::Fifo;
use alloc::collections::{BTreeMap, BTreeSet};

/// One connection in TIME-WAIT. IPv6 addresses live beside it, so that the common record stays small.
#[derive(Debug)]
pub(crate) struct Record {
    remote: u32,
    local: u32,
    local_port: u16,
    remote_port: u16,
    pub(crate) rcv_nxt: SeqNum,
    pub(crate) snd_nxt: SeqNum,
    /// TS.Recent, if timestamps were agreed.
    ts_recent: u32,
    /// Number of the queue entry that ends it.
    stamp: u32,
    /// Index of the IPv6 addresses, or `NIL`; the free-list link while vacant.
    v6: u32,
    /// Window that we offered last, scaled.
    pub(crate) window: u16,
    /// `TIMESTAMPS`, `RESTARTED`.
    flags: u8,
    /// When a segment without text was last answered, in units of 2^28 ns modulo 256: about 0.27 s and 69 s.
    answered: u8,
}

const _: () = assert!(size_of::<Record>() == 36);

/// Timestamps were agreed.
const TIMESTAMPS: u8 = 1;
/// Its time was started again: when that was last is in `restarts`.
const RESTARTED: u8 = 2;

impl Hollow for Record {
    fn hollow() -> Self {
        Self {
            remote: 0,
            local: 0,
            local_port: 0,
            remote_port: 0,
            rcv_nxt: SeqNum(0),
            snd_nxt: SeqNum(0),
            ts_recent: 0,
            stamp: 0,
            v6: NIL,
            window: 0,
            flags: 0,
            answered: 0,
        }
    }

    fn next_mut(&mut self) -> &mut u32 {
        &mut self.v6
    }
}

#[derive(Debug)]
struct V6 {
    local: [u8; 16],
    remote: [u8; 16],
    next: u32,
}

impl Hollow for V6 {
    fn hollow() -> Self {
        Self { local: [0; 16], remote: [0; 16], next: NIL }
    }

    fn next_mut(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl Record {
    /// TS.Recent, if timestamps were agreed.
    pub(crate) fn ts_recent(&self) -> Option<u32> {
        (self.flags & TIMESTAMPS != 0).then_some(self.ts_recent)
    }
}

/// Time in units of 2^28 ns, modulo 256.
fn quarter(now: Instant) -> u8 {
    (now.as_nanos() >> 28) as u8
}

/// What a connection leaves behind.
pub(crate) struct Entry {
    pub(crate) key: FlowKey,
    pub(crate) rcv_nxt: SeqNum,
    pub(crate) snd_nxt: SeqNum,
    pub(crate) ts_recent: Option<u32>,
    pub(crate) window: u16,
}

/// A core's records, in the order in which they end.
#[derive(Debug)]
pub(crate) struct TimeWaits {
    records: Slab<Record>,
    v6: Slab<V6>,
    /// When each would end that is never started again, one entry a record.
    ends: Fifo<(u32, u32)>,
    /// When the time of a record was last started again. Not another entry of `ends`: a peer that repeats its FIN all the time would
    /// fill it.
    restarts: BTreeMap<u32, Instant>,
    /// When these end, once their entry of `ends` is over.
    restarted: BTreeSet<(Instant, u32, u32)>,
    stamps: u32,
    lifetime: Duration,
    limit: u32,
}

impl TimeWaits {
    pub(crate) fn new(lifetime: Duration, limit: u32) -> Self {
        Self {
            records: Slab::new(),
            v6: Slab::new(),
            ends: Fifo::new(),
            restarts: BTreeMap::new(),
            restarted: BTreeSet::new(),
            stamps: 0,
            lifetime,
            limit,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.records.len() >= self.limit as usize
    }

    pub(crate) fn insert(&mut self, entry: Entry, now: Instant) -> u32 {
        let Entry { key, rcv_nxt, snd_nxt, ts_recent, window } = entry;
        let (local, remote, v6) = match key {
            FlowKey::V4 { local, remote, .. } => (local, remote, NIL),
            FlowKey::V6 { local, remote, .. } => (0, 0, self.v6.insert(V6 { local, remote, next: NIL })),
        };
        let index = self.records.insert(Record {
            remote,
            local,
            local_port: key.local_port(),
            remote_port: key.remote_port(),
            rcv_nxt,
            snd_nxt,
            ts_recent: ts_recent.unwrap_or(0),
            stamp: 0,
            v6,
            window,
            flags: if ts_recent.is_some() { TIMESTAMPS } else { 0 },
            answered: quarter(now).wrapping_sub(128),
        });
        self.stamps = self.stamps.wrapping_add(1);
        self.records[index].stamp = self.stamps;
        self.ends.push(now + self.lifetime, (index, self.stamps));
        index
    }

    /// Starts the 2 MSL again: RFC 9293 3.10.7.4, a retransmitted FIN.
    pub(crate) fn restart(&mut self, index: u32, now: Instant) {
        self.records[index].flags |= RESTARTED;
        self.restarts.insert(index, now);
    }

    /// Whether a segment is to be answered: one with text always, else if the last answer is long enough ago.
    pub(crate) fn may_answer(&mut self, index: u32, text: bool, now: Instant, interval: Duration) -> bool {
        let units = (interval.as_nanos() >> 28).min(127) as u8;
        let record = &mut self.records[index];
        if !text && quarter(now).wrapping_sub(record.answered) <= units && !interval.is_zero() {
            return false;
        }
        record.answered = quarter(now);
        true
    }

    pub(crate) fn record(&self, index: u32) -> &Record {
        &self.records[index]
    }

    pub(crate) fn key(&self, index: u32) -> FlowKey {
        let Record { remote, local, local_port, remote_port, v6, .. } = self.records[index];
        if v6 == NIL {
            FlowKey::V4 { local, remote, local_port, remote_port }
        } else {
            let V6 { local, remote, .. } = self.v6[v6];
            FlowKey::V6 { local, remote, local_port, remote_port }
        }
    }

    /// Entries of the queue.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn queued(&self) -> usize {
        self.ends.len() + self.restarts.len() + self.restarted.len()
    }

    /// Places of all records.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn live(&self) -> impl Iterator<Item = u32> {
        (0..).zip(self.records.entries()).filter(|(_, record)| record.stamp != 0).map(|(index, _)| index)
    }

    pub(crate) fn remove(&mut self, index: u32) {
        let record = self.records.remove(index);
        if record.flags & RESTARTED != 0 {
            self.restarts.remove(&index);
        }
        if record.v6 != NIL {
            self.v6.remove(record.v6);
        }
    }

    /// The next record whose time is over; the caller unmaps and removes it.
    pub(crate) fn pop_ended(&mut self, now: Instant) -> Option<u32> {
        while let Some((index, stamp)) = self.ends.pop_due(now) {
            if self.is_current(index, stamp) && !self.goes_on(index, stamp, now) {
                return Some(index);
            }
        }
        if self.restarted.is_empty() { None } else { self.pop_restarted(now) }
    }

    /// Of those that were started again.
    #[cold]
    fn pop_restarted(&mut self, now: Instant) -> Option<u32> {
        while let Some(&(at, index, stamp)) = self.restarted.first().filter(|end| end.0 <= now) {
            self.restarted.remove(&(at, index, stamp));
            if self.is_current(index, stamp) && !self.goes_on(index, stamp, now) {
                return Some(index);
            }
        }
        None
    }

    /// Its time was started again since, and is not over.
    fn goes_on(&mut self, index: u32, stamp: u32, now: Instant) -> bool {
        if self.records[index].flags & RESTARTED == 0 {
            return false;
        }
        let Some(at) = self.restarts.get(&index).map(|&since| since + self.lifetime) else { return false };
        at > now && self.restarted.insert((at, index, stamp))
    }

    /// The record that would end first, or nearly so, to make room.
    pub(crate) fn pop_oldest(&mut self) -> Option<u32> {
        while let Some((index, stamp)) =
            self.ends.pop().or_else(|| self.restarted.pop_first().map(|(_, index, stamp)| (index, stamp)))
        {
            if self.is_current(index, stamp) {
                return Some(index);
            }
        }
        None
    }

    /// Vacant entries keep stamp 0, which is never issued twice within a queue's length.
    fn is_current(&self, index: u32, stamp: u32) -> bool {
        self.records[index].stamp == stamp
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let end = self.ends.next_deadline();
        if self.restarted.is_empty() { end } else { self.next_restarted(end) }
    }

    #[cold]
    fn next_restarted(&self, end: Option<Instant>) -> Option<Instant> {
        end.into_iter().chain(self.restarted.first().map(|end| end.0)).min()
    }
}
