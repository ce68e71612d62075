//! Runs a threading model with a thread per core and the clock, or with all cores' turns one after
//! another on one thread. The second is for counts, also of more cores than the machine has.

use crate::lock::{CLASSES, Counters};
use crate::organisation::{Kind, Protocol, Shared, Worker};
use crate::wire::Load;
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The threading model.
    pub kind: Kind,
    /// Number of cores.
    pub cores: usize,
    /// Connections, all of them busy.
    pub connections: usize,
    /// The load of the connections.
    pub load: Load,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Measured seconds; 0 if only counts are valid.
    pub seconds: f64,
    /// Counters of all threads.
    pub counters: Counters,
    /// Packets that engines dropped.
    pub drops: u64,
}

impl Outcome {
    /// Returns the number of packets in and out.
    pub fn packets(&self) -> f64 {
        (self.counters.packets_in + self.counters.packets_out).max(1) as f64
    }

    /// Returns gigabits of payload per second.
    pub fn gigabits(&self) -> f64 {
        self.counters.bytes as f64 * 8.0 / self.seconds / 1e9
    }

    /// Returns responses per second.
    pub fn responses(&self) -> f64 {
        self.counters.responses as f64 / self.seconds
    }

    /// Returns locks per packet.
    pub fn locks(&self) -> f64 {
        self.counters.taken.iter().sum::<u64>() as f64 / self.packets()
    }

    /// Returns the percentage of contended locks, of one class or of all.
    pub fn waited(&self, class: Option<usize>) -> f64 {
        let of = |counts: &[u64; CLASSES.len()]| match class {
            Some(class) => counts[class],
            None => counts.iter().sum(),
        };
        100.0 * of(&self.counters.waited) as f64 / of(&self.counters.taken).max(1) as f64
    }
}

/// Virtual time of a turn.
const TURN: Duration = Duration::from_micros(50);
const MEASURE: u32 = 1;
const STOP: u32 = 2;

/// Returns the engine's time: its clock begins here, since a time of 0 would be a special case.
fn engine_time(since: Duration) -> fs_core::Instant {
    fs_core::Instant::from_millis(1000) + since
}

/// The phase of a run, and the number of threads that measure.
#[derive(Default)]
struct Phase {
    at: AtomicU32,
    begun: AtomicU32,
}

fn opened(setting: Setting) -> Result<(Shared, Vec<Worker>, Vec<Protocol>)> {
    let Setting { kind, cores, connections, load } = setting;
    ensure!(kind != Kind::Up || cores == 1, "UP has one core");
    ensure!(connections >= cores, "fewer connections than cores");
    let shared = Shared::new(kind, cores, connections, load);
    let mut workers: Vec<Worker> = (0..cores).map(|core| Worker::new(&shared, core, connections)).collect();
    for worker in &mut workers {
        worker.open(&shared, connections, engine_time(Duration::ZERO));
    }
    let alone: usize = workers.iter().map(|worker| worker.connections().0).sum();
    let open = alone + shared.connections().0;
    ensure!(open == connections, "{open} of {connections} connections opened");
    let protocols = if kind == Kind::ConnPT { (0..cores).map(Protocol::new).collect() } else { Vec::new() };
    Ok((shared, workers, protocols))
}

/// Runs a pinned thread per core (in ConnP-T also a protocol thread) for `time` after `warm_up`.
pub fn timed(setting: Setting, warm_up: Duration, time: Duration) -> Result<Outcome> {
    let start = Instant::now();
    let (mut shared, mut workers, mut protocols) = opened(setting)?;
    // Transfers each connection's first bytes before threads compete.
    for _ in 0..16 + setting.connections / 16 {
        turns(&shared, &mut workers, &mut protocols, engine_time(start.elapsed()));
    }
    shared.sleeps = setting.kind == Kind::ConnPT;
    let shared = &shared;
    let phase = &Phase::default();
    let mut all = Counters::default();
    let mut seconds: f64 = 0.0;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (core, worker) in workers.iter_mut().enumerate() {
            threads.push(scope.spawn(move || {
                pin(core);
                measured(phase, start, |now, phase_now| {
                    if phase_now != STOP && !worker.turn(shared, now) {
                        worker.rest(shared);
                    }
                    worker.counters.clone()
                })
            }));
        }
        for (core, protocol) in protocols.iter_mut().enumerate() {
            threads.push(scope.spawn(move || {
                pin(core);
                measured(phase, start, |now, phase_now| {
                    if phase_now != STOP && !protocol.turn(shared, now) {
                        protocol.rest(shared);
                    }
                    protocol.counters.clone()
                })
            }));
        }
        std::thread::sleep(warm_up);
        phase.at.store(MEASURE, Ordering::Release);
        while (phase.begun.load(Ordering::Acquire) as usize) < threads.len() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(time);
        phase.at.store(STOP, Ordering::Release);
        for thread in threads {
            if let Ok((counters, took)) = thread.join() {
                all.add(&counters);
                seconds = seconds.max(took.as_secs_f64());
            }
        }
    });
    ensure!(all.packets_in > 0, "no packet in the measured time");
    let drops = workers.iter().map(|worker| worker.connections().1).sum::<u64>() + shared.connections().1;
    Ok(Outcome { seconds, counters: all, drops })
}

/// Calls `turn` until the end. Returns the counters of the time in which all threads measured, and
/// its length.
fn measured(
    phase: &Phase,
    start: Instant,
    mut turn: impl FnMut(fs_core::Instant, u32) -> Counters,
) -> (Counters, Duration) {
    let mut began: Option<(Counters, Instant)> = None;
    loop {
        let at = phase.at.load(Ordering::Acquire);
        let now = Instant::now();
        let counters = turn(engine_time(now - start), at);
        match (at, &began) {
            (MEASURE, None) => {
                began = Some((counters, Instant::now()));
                phase.begun.fetch_add(1, Ordering::AcqRel);
            }
            (STOP, Some((before, since))) => return (counters.since(before), since.elapsed()),
            (STOP, None) => return (Counters::default(), Duration::ZERO),
            _ => {}
        }
    }
}

/// Runs all cores' turns one after another on this thread, in virtual time, until `packets` packets
/// were received. callgrind counts what runs within `counted_turns`.
pub fn counted(setting: Setting, packets: u64) -> Result<Outcome> {
    let (shared, mut workers, mut protocols) = opened(setting)?;
    let mut clock = Duration::ZERO;
    let mut before = Counters::default();
    for _ in 0..256 {
        clock += TURN;
        turns(&shared, &mut workers, &mut protocols, engine_time(clock));
    }
    workers.iter().for_each(|worker| before.add(&worker.counters));
    protocols.iter().for_each(|protocol| before.add(&protocol.counters));
    let total = |workers: &[Worker], protocols: &[Protocol]| {
        let mut all = Counters::default();
        workers.iter().for_each(|worker| all.add(&worker.counters));
        protocols.iter().for_each(|protocol| all.add(&protocol.counters));
        all
    };
    let mut turns = 0;
    loop {
        clock += TURN;
        counted_turns(&shared, &mut workers, &mut protocols, engine_time(clock));
        turns += 1;
        let all = total(&workers, &protocols).since(&before);
        ensure!(turns < 1000 + packets, "{} of {packets} packets in {turns} turns", all.packets_in);
        if all.packets_in >= packets {
            let drops = workers.iter().map(|worker| worker.connections().1).sum::<u64>() + shared.connections().1;
            return Ok(Outcome { seconds: 0.0, counters: all, drops });
        }
    }
}

/// Runs [`turns`] under the name by which callgrind counts.
#[inline(never)]
fn counted_turns(shared: &Shared, workers: &mut [Worker], protocols: &mut [Protocol], now: fs_core::Instant) {
    turns(shared, workers, protocols, now);
}

/// Runs all cores' turns, one after another.
fn turns(shared: &Shared, workers: &mut [Worker], protocols: &mut [Protocol], now: fs_core::Instant) {
    for worker in workers {
        worker.turn(shared, now);
    }
    for protocol in protocols {
        protocol.turn(shared, now);
    }
}

/// Pins the thread to this CPU if it exists. A run is also valid where the system refuses.
fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _unpinned = rustix::thread::sched_setaffinity(None, &set);
}
