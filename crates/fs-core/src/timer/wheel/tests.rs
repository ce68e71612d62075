use super::super::fifo::Fifo;
use super::*;
use crate::time::Duration;
use alloc::collections::BTreeMap;
use alloc::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// Insert a token that is due this many nanoseconds from now (negative: overdue).
    Insert(i64),
    /// Advance the time and expire.
    Pass(u64),
    /// Sleep until the wheel's next deadline.
    Sleep,
}

/// Nanoseconds on every scale from less than a tick to weeks.
fn scale() -> impl Strategy<Value = u64> {
    (0u32..51, any::<u64>()).prop_map(|(bits, x)| x & ((1 << bits) - 1))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => scale().prop_map(|delay| Op::Insert(delay as i64)),
        1 => (0i64..1 << 32).prop_map(|late| Op::Insert(-late)),
        3 => scale().prop_map(Op::Pass),
        2 => Just(Op::Sleep),
    ]
}

/// The wheel and a reference model, an ordered map of deadlines.
struct Pair {
    now: u64,
    wheel: Wheel<u32>,
    model: BTreeMap<u32, u64>,
    next: u32,
}

impl Pair {
    fn new(now: u64) -> Self {
        Self { now, wheel: Wheel::new(Instant(now)), model: BTreeMap::new(), next: 0 }
    }

    fn insert(&mut self, at: u64) {
        self.wheel.insert(Instant(at), self.next);
        self.model.insert(self.next, at);
        self.next += 1;
    }

    fn expire(&mut self) -> usize {
        let mut out = vec![];
        self.wheel.expire(Instant(self.now), &mut out);
        for token in &out {
            let at = self.model.remove(token).expect("delivered twice, or never inserted");
            assert!(at <= self.now, "token due at {at} came at {}", self.now);
        }
        for at in self.model.values() {
            assert!(
                at.saturating_add(GRANULE.as_nanos() as u64) > self.now,
                "token due at {at} has not come at {}",
                self.now
            );
        }
        assert_eq!(self.wheel.len(), self.model.len());
        self.check_deadline();
        out.len()
    }

    fn check_deadline(&self) {
        match (self.wheel.next_deadline(), self.model.values().min()) {
            (None, None) => {}
            (Some(deadline), Some(&earliest)) => {
                assert!(
                    deadline.0 <= earliest.max(self.now).saturating_add(GRANULE.as_nanos() as u64),
                    "would sleep too long"
                );
            }
            (deadline, earliest) => panic!("next_deadline {deadline:?}, model {earliest:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn agrees_with_an_ordered_map(start in scale(), ops in proptest::collection::vec(op(), 1..200)) {
        let mut pair = Pair::new(start);
        for op in ops {
            match op {
                Op::Insert(delay) => pair.insert(pair.now.saturating_add_signed(delay)),
                Op::Pass(time) => {
                    pair.now += time;
                    pair.expire();
                }
                Op::Sleep => {
                    if let Some(deadline) = pair.wheel.next_deadline() {
                        pair.now = pair.now.max(deadline.0);
                        pair.expire();
                    }
                }
            }
            pair.check_deadline();
        }
        // A loop that only sleeps until the next deadline gets every token: 2^51 ns is 2050 turns
        // of the far level, and each token is visited at most once per turn.
        let mut steps = 0;
        while let Some(deadline) = pair.wheel.next_deadline() {
            pair.now = pair.now.max(deadline.0);
            pair.expire();
            steps += 1;
            prop_assert!(steps < 200 * 2100);
        }
        prop_assert!(pair.model.is_empty());
    }
}

#[test]
fn boundaries_of_levels() {
    // One before, at and after each power of two of a tick, from unaligned starts.
    for start in [0, 1, (1 << 20) - 1, 1 << 32, (1 << 32) - 1, (1 << 40) + 12345, (4095 << 20) + 1] {
        let mut pair = Pair::new(start);
        for bits in 0..48 {
            for delay in [(1u64 << bits) - 1, 1 << bits, (1 << bits) + 1] {
                pair.insert(start + delay);
            }
        }
        while !pair.model.is_empty() {
            let earliest = *pair.model.values().min().unwrap();
            pair.now = pair.now.max(earliest.saturating_sub(1));
            pair.expire();
            pair.now = pair.now.max(earliest.next_multiple_of(1 << 20));
            pair.expire();
            assert!(pair.model.values().all(|at| *at > pair.now), "late");
        }
    }
}

#[test]
fn jump_of_centuries_is_one_step() {
    let mut pair = Pair::new(0);
    for i in 0..10_000u64 {
        pair.insert(i << 40);
    }
    pair.now = u64::MAX >> 4;
    assert_eq!(pair.expire(), 10_000);
    // Tokens further away survive it.
    pair.insert(u64::MAX >> 2);
    pair.insert(u64::MAX);
    pair.now = (u64::MAX >> 2) - (1 << 21);
    assert_eq!(pair.expire(), 0);
    pair.now = u64::MAX >> 2;
    pair.now += 1;
    assert_eq!(pair.expire(), 1);
    assert!(pair.wheel.next_deadline().is_some());
}

#[test]
fn ignores_time_going_back() {
    let mut wheel = Wheel::new(Instant::from_millis(100));
    wheel.insert(Instant::from_millis(200), 1);
    wheel.insert(Instant::from_millis(50), 2);
    let mut out = vec![];
    wheel.expire(Instant::from_millis(10), &mut out);
    assert_eq!(out, [2], "overdue at once");
    wheel.expire(Instant::from_millis(300), &mut out);
    assert_eq!(out, [2, 1]);
    assert!(wheel.is_empty() && wheel.next_deadline().is_none());
}

/// Returns the total capacity of all arrays, in tokens.
fn room<T: Copy>(wheel: &Wheel<T>) -> usize {
    let near = wheel.near.iter().chain(&wheel.near_spare.arrays).map(Vec::capacity).sum::<usize>();
    let far = wheel.far.iter().chain(&wheel.far_spare.arrays).map(Vec::capacity).sum::<usize>();
    near + far + wheel.due.capacity()
}

#[test]
fn steady_load_does_not_allocate() {
    let mut load = Load::new();
    (0..60_000).for_each(|_| load.millisecond(40));
    let (len, before) = (load.wheel.len(), room(&load.wheel));
    (0..60_000).for_each(|_| load.millisecond(40));
    let grown = room(&load.wheel).abs_diff(before);
    assert!(grown * 100 < before, "{before} tokens of room changed by {grown} in 4.8 million insertions");
    assert!(before < 8 * len, "room for {before} tokens of which {len} are used");
}

#[test]
fn frees_memory_of_burst() {
    let mut load = Load::new();
    for at in [10, 20, 30, 60_000] {
        (0..100_000).for_each(|i| load.wheel.insert(Instant::from_millis(at), i));
    }
    for at in 0..4_000_000 {
        load.wheel.insert(Instant::from_micros(at), at);
    }
    assert!(room(&load.wheel) >= 4_400_000);
    (0..100_000).for_each(|_| load.millisecond(1));
    let (len, room) = (load.wheel.len(), room(&load.wheel));
    assert!(room < 20 * len, "room for {room} tokens of which {len} are used");
}

/// A number of short and as many long timers per millisecond.
struct Load {
    wheel: Wheel<u64>,
    now: Instant,
    x: u64,
    out: Vec<u64>,
}

impl Load {
    fn new() -> Self {
        Self { wheel: Wheel::new(Instant::ZERO), now: Instant::ZERO, x: 1, out: vec![] }
    }

    fn millisecond(&mut self, timers: u32) {
        for _ in 0..timers {
            self.x = self.x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            self.wheel.insert(self.now + Duration::from_micros(200_000 + (self.x >> 44)), self.x);
            self.wheel.insert(self.now + Duration::from_micros(5_000_000 + (self.x >> 42)), self.x);
        }
        self.now = self.now + Duration::from_millis(1);
        self.out.clear();
        self.wheel.expire(self.now, &mut self.out);
    }
}

#[test]
fn fifo_is_in_order_and_never_early() {
    let mut fifo = Fifo::new();
    assert!(fifo.is_empty() && fifo.next_deadline().is_none());
    for i in 0..10_000u64 {
        fifo.push(Instant::from_millis(40 + i), i);
    }
    assert_eq!(fifo.next_deadline(), Some(Instant::from_millis(40)));
    assert_eq!(fifo.pop_due(Instant(39_999_999)), None);
    for i in 0..10_000u64 {
        assert_eq!(fifo.peek(), Some(&(Instant::from_millis(40 + i), i)));
        assert_eq!(fifo.pop_due(Instant::from_millis(40 + i)), Some(i));
        assert_eq!(fifo.pop_due(Instant::from_millis(40 + i)), None);
    }
    assert_eq!((fifo.len(), fifo.pop()), (0, None));
}

#[test]
fn fifo_out_of_order_is_late_and_never_early() {
    let mut fifo = Fifo::new();
    fifo.push(Instant::from_millis(50), 'a');
    fifo.push(Instant::from_millis(10), 'b');
    assert_eq!(fifo.pop_due(Instant::from_millis(20)), None);
    assert_eq!(fifo.pop_due(Instant::from_millis(50)), Some('a'));
    assert_eq!(fifo.pop_due(Instant::from_millis(50)), Some('b'));
}
