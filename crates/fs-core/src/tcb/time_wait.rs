//! TIME-WAIT as compact records (RFC 9293 3.3.2): no slot, no buffer, only the data needed to
//! answer a retransmitted FIN and to judge a new SYN (RFC 6191).

use crate::flow::FlowKey;
use crate::seq::SeqNum;
use crate::slab::{Hollow, NIL, Slab};
use crate::time::{Duration, Instant};
use crate::timer::fifo::Fifo;
use alloc::collections::{BTreeMap, BTreeSet};

/// One connection in TIME-WAIT. IPv6 addresses are stored separately, so that the common record
/// stays small.
#[derive(Debug)]
pub(crate) struct Record {
    remote: u32,
    local: u32,
    local_port: u16,
    remote_port: u16,
    pub(crate) rcv_nxt: SeqNum,
    pub(crate) snd_nxt: SeqNum,
    /// TS.Recent, if timestamps were negotiated.
    ts_recent: u32,
    /// Number of the queue entry that ends it.
    stamp: u32,
    /// Index of the IPv6 addresses, or `NIL`; the free-list link while vacant.
    v6: u32,
    /// Last offered window, scaled.
    pub(crate) window: u16,
    /// `TIMESTAMPS`, `RESTARTED`.
    flags: u8,
    /// When a segment without text was last answered, in units of 2^28 ns modulo 256: about 0.27 s and 69 s.
    answered: u8,
}

const _: () = assert!(size_of::<Record>() == 36);

/// Timestamps were negotiated.
const TIMESTAMPS: u8 = 1;
/// The 2 MSL were restarted: `restarts` contains the last restart.
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
    /// Returns TS.Recent, if timestamps were negotiated.
    pub(crate) fn ts_recent(&self) -> Option<u32> {
        (self.flags & TIMESTAMPS != 0).then_some(self.ts_recent)
    }
}

/// Returns the time in units of 2^28 ns, modulo 256.
fn quarter(now: Instant) -> u8 {
    (now.as_nanos() >> 28) as u8
}

/// Final state of a connection.
pub(crate) struct Entry {
    pub(crate) key: FlowKey,
    pub(crate) rcv_nxt: SeqNum,
    pub(crate) snd_nxt: SeqNum,
    pub(crate) ts_recent: Option<u32>,
    pub(crate) window: u16,
}

/// A core's records, in the order of their ends.
#[derive(Debug)]
pub(crate) struct TimeWaits {
    records: Slab<Record>,
    v6: Slab<V6>,
    /// End of each record that is never restarted. The entry of a record that was removed earlier,
    /// as its ports are used again, stays: at most twice `limit` entries.
    ends: Fifo<(u32, u32)>,
    /// Last restart of each restarted record. Not a second entry of `ends`: a peer that repeats its
    /// FIN continuously would fill it.
    restarts: BTreeMap<u32, Instant>,
    /// Ends of restarted records, once their entry of `ends` has passed.
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

    /// Returns true if [`TimeWaits::pop_oldest`] must make space for the next record, or for its
    /// entry of `ends`.
    pub(crate) fn is_full(&self) -> bool {
        self.records.len() >= self.limit as usize || self.ends.len() >= 2 * self.limit as usize
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
        if self.ends.len() > self.records.len() {
            self.drop_outdated();
        }
        index
    }

    /// Drops entries of removed records from the front of `ends`. Two for each new entry: the queue
    /// becomes shorter, and no call takes long.
    #[cold]
    fn drop_outdated(&mut self) {
        for _ in 0..2 {
            if self.ends.front().is_none_or(|&(index, stamp)| self.is_current(index, stamp)) {
                return;
            }
            self.ends.pop();
        }
    }

    /// Restarts the 2 MSL: RFC 9293 3.10.7.4, a retransmitted FIN.
    pub(crate) fn restart(&mut self, index: u32, now: Instant) {
        self.records[index].flags |= RESTARTED;
        self.restarts.insert(index, now);
    }

    /// Returns true if a segment may be answered: one with text always, others if the last answer
    /// is long enough ago.
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

    /// Returns the number of queue entries.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn queued(&self) -> usize {
        self.ends.len() + self.restarts.len() + self.restarted.len()
    }

    /// Returns the indexes of all records.
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

    /// Returns the next record whose time has passed; the caller unmaps and removes it.
    pub(crate) fn pop_ended(&mut self, now: Instant) -> Option<u32> {
        while let Some((index, stamp)) = self.ends.pop_due(now) {
            if self.is_current(index, stamp) && !self.goes_on(index, stamp, now) {
                return Some(index);
            }
        }
        if self.restarted.is_empty() { None } else { self.pop_restarted(now) }
    }

    /// Returns the next restarted record whose time has passed.
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

    /// Returns true if the record was restarted and its time has not passed.
    fn goes_on(&mut self, index: u32, stamp: u32, now: Instant) -> bool {
        if self.records[index].flags & RESTARTED == 0 {
            return false;
        }
        let Some(at) = self.restarts.get(&index).map(|&since| since + self.lifetime) else { return false };
        at > now && self.restarted.insert((at, index, stamp))
    }

    /// Returns the record that would end first, or nearly so, to make space.
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

    /// Returns true if the record still has this stamp. Vacant entries keep stamp 0, which is never
    /// issued twice within a queue's length.
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
