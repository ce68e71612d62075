//! Simulates loads with the policies in virtual time: the cost and benefit of each preset, and the
//! effect of each heuristic.

use super::{Idle, PollPolicy, Poller};
use crate::sys::Contention;
use fs_core::{Instant, Stats};
use std::time::Duration;

/// Costs: a turn that finds nothing, a packet, sched_yield(2), and a sleep (how late it ends, and
/// its CPU time). Decision 0010.
const TURN: Duration = Duration::from_nanos(200);
const PACKET: Duration = Duration::from_nanos(800);
const YIELD: Duration = Duration::from_nanos(300);
const WAKE_UP: Duration = Duration::from_micros(30);
const SLEEP_CPU: Duration = Duration::from_micros(24);

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// The load of a core.
#[derive(Clone, Copy)]
enum Load {
    /// Connections that send their next request this long after a response.
    Requests { connections: usize, after: Duration },
    /// A stream with a full segment per `each`, and an acknowledgement for each turn that finds
    /// some.
    Stream { each: Duration },
    /// Like `Stream`, from a sender with a small window: slower (`coalesced`) while it waits for
    /// acknowledgements.
    WindowLimited { each: Duration, coalesced: Duration },
}

#[derive(Debug, Default)]
struct Outcome {
    /// Time from a packet's arrival to the turn that takes it, mean and longest.
    wait: Duration,
    longest: Duration,
    packets: u32,
    /// Packets per turn that found some.
    batch: f64,
    /// CPU use of the core, in percent.
    cpu: u128,
    sleeps: u32,
    timed_sleeps: u32,
    yields: u32,
    /// Turns with the links' descriptors out of the epoll set.
    unwatched: u32,
}

const FOR: Duration = Duration::from_millis(200);

/// The host of the core.
#[derive(Clone, Copy, Default)]
struct Host {
    /// More threads are runnable than there are CPUs.
    crowded: bool,
    /// Times per millisecond that another thread takes the CPU.
    preemptions_per_ms: u64,
    /// The core has sources.
    sources: bool,
}

fn play(policy: PollPolicy, load: Load, crowded: bool) -> Outcome {
    play_on(Host { crowded, ..Host::default() }, policy, load)
}

fn play_on(host: Host, policy: PollPolicy, load: Load) -> Outcome {
    let Host { crowded, preemptions_per_ms, sources } = host;
    let start = Instant::ZERO + us(1_000_000);
    let (mut now, mut poller, mut stats) = (start, Poller::new(policy), Stats::default());
    let connections = if let Load::Requests { connections, .. } = load { connections } else { 1 };
    // The arrival of each connection's next packet, at first one after the other.
    let mut next: Vec<Instant> = (0..connections as u64).map(|i| start + us(10 + 5 * i)).collect();
    let (mut waited, mut busy, mut finds, mut outcome) = (Duration::ZERO, Duration::ZERO, 0_u32, Outcome::default());
    while now.since(start) < FOR {
        let turn = now;
        now = now + TURN;
        let mut found = 0;
        if poller.is_poll_due(turn, &stats) {
            for (slot, at) in next.iter_mut().enumerate() {
                while *at <= turn {
                    let wait = turn.since(*at);
                    waited += wait;
                    outcome.longest = outcome.longest.max(wait);
                    found += 1;
                    stats.rx_packets += 1;
                    *at = match load {
                        Load::Requests { after, .. } => {
                            (stats.rx_bytes, stats.tx_packets) = (stats.rx_bytes + 100, stats.tx_packets + 1);
                            now + after
                        }
                        Load::Stream { each } | Load::WindowLimited { each, .. } => {
                            stats.rx_bytes += 1514;
                            let late = if let Load::WindowLimited { coalesced, .. } = load { coalesced } else { each };
                            *at + if wait > us(10) { late } else { each }
                        }
                    };
                    poller.on_event(slot as u32);
                }
            }
        }
        if found > 0 {
            poller.found_packets(turn);
            now = now + PACKET * found;
            finds += 1;
            outcome.packets += found;
            if !matches!(load, Load::Requests { .. }) {
                (stats.tx_packets, stats.acks_sent) = (stats.tx_packets + 1, stats.acks_sent + 1);
            }
        }
        outcome.unwatched += u32::from(poller.leaves_epoll(turn));
        busy += now.since(turn);
        if found > 0 {
            poller.on_work(turn);
            continue;
        }
        let soonest = *next.iter().min().unwrap();
        let preemptions = preemptions_per_ms * turn.since(start).as_millis() as u64;
        match poller.on_idle(
            turn,
            sources,
            || Contention { preemptions, crowded, ..Contention::default() },
            || soonest <= turn,
        ) {
            Idle::Poll => {}
            Idle::Yield => {
                (now, busy) = (now + YIELD, busy + YIELD);
                outcome.yields += 1;
            }
            Idle::TimedSleep(time) => {
                now = now + time;
                outcome.timed_sleeps += 1;
            }
            Idle::Sleep => {
                poller.on_sleep();
                now = now.max(soonest) + WAKE_UP;
                busy += SLEEP_CPU;
                outcome.sleeps += 1;
            }
        }
    }
    outcome.wait = waited / outcome.packets.max(1);
    outcome.batch = f64::from(outcome.packets) / f64::from(finds.max(1));
    outcome.cpu = busy.as_nanos() * 100 / now.since(start).as_nanos();
    outcome
}

/// One connection with a request a millisecond after each response.
const RARE: Load = Load::Requests { connections: 1, after: us(1000) };
/// One connection with requests in quick succession.
const PING_PONG: Load = Load::Requests { connections: 1, after: us(10) };
/// Gaps slightly longer than the spin.
const ROUND_TRIPS: Load = Load::Requests { connections: 1, after: us(100) };
/// A load as of a proxy with many clients.
const MANY: Load = Load::Requests { connections: 64, after: us(100) };
const MANY_SLOW: Load = Load::Requests { connections: 64, after: us(400) };
const STREAM: Load = Load::Stream { each: us(2) };

#[test]
fn latency_waits_for_nothing() {
    for load in [RARE, PING_PONG, ROUND_TRIPS, STREAM] {
        let outcome = play(PollPolicy::latency(), load, false);
        assert!(outcome.longest <= us(1), "{outcome:?}");
        assert!(outcome.cpu >= 99, "{outcome:?}");
        assert_eq!((outcome.sleeps, outcome.timed_sleeps, outcome.yields), (0, 0, 0));
    }
    assert!(play(PollPolicy::latency(), MANY, false).batch < 3.0);
}

#[test]
fn throughput_adapts_to_the_load() {
    let play = |load| play(PollPolicy::throughput(), load, false);
    let rare = play(RARE);
    assert!(rare.cpu < 8 && rare.wait < us(31), "{rare:?}");
    let ping_pong = play(PING_PONG);
    assert!(ping_pong.wait < us(1) && ping_pong.sleeps == 0 && ping_pong.yields > 0, "{ping_pong:?}");
    let round_trips = play(ROUND_TRIPS);
    assert!(round_trips.wait < us(2) && round_trips.sleeps < 5, "the spin has grown: {round_trips:?}");
    let many = play(MANY);
    assert!(many.batch > 4.0 && many.wait > us(5) && many.longest < us(150), "{many:?}");
    let slow = play(MANY_SLOW);
    assert!(slow.timed_sleeps > 1000 && slow.cpu < many.cpu, "{slow:?}");
    let stream = play(STREAM);
    assert!(stream.batch > 6.0 && stream.wait > us(5), "{stream:?}");
    assert!(stream.unwatched > 1000);
    // A window-limited stream is coalesced only for short trials.
    let limited = play(Load::WindowLimited { each: us(2), coalesced: us(4) });
    assert!(limited.batch < 1.5, "{limited:?}");
}

#[test]
fn shared_does_not_spin_while_other_threads_want_the_cpu() {
    let outcome = play(PollPolicy::shared(), PING_PONG, false);
    assert!(outcome.sleeps == 0 && outcome.yields == 0, "{outcome:?}");
    let outcome = play(PollPolicy::shared(), PING_PONG, true);
    assert!(outcome.sleeps > 3000 && outcome.cpu < 80 && outcome.yields == 0, "{outcome:?}");
    let outcome = play(PollPolicy::throughput(), PING_PONG, true);
    assert_eq!(outcome.sleeps, 0, "a pinned core counts the time of others, not how often: {outcome:?}");
}

/// Each heuristic has its own switch.
#[test]
fn each_heuristic_has_a_switch() {
    let all = PollPolicy::throughput();
    let off = |change: fn(&mut PollPolicy), load| {
        let mut policy = all;
        change(&mut policy);
        play(policy, load, false)
    };
    let outcome = off(|p| p.adapt_spin = false, ROUND_TRIPS);
    assert!(outcome.sleeps > 1000, "each round trip pays for a wake-up: {outcome:?}");
    let outcome = off(|p| p.yield_cpu = false, PING_PONG);
    assert!(outcome.yields == 0 && outcome.wait < us(1), "{outcome:?}");
    let outcome = off(|p| p.coalesce_connections = false, MANY);
    assert!(outcome.batch < 3.0 && outcome.wait < us(5), "{outcome:?}");
    let outcome = off(|p| p.coalesce_connections = false, STREAM);
    assert!(outcome.batch > 6.0, "{outcome:?}");
    let outcome = off(|p| p.coalesce_streams = false, STREAM);
    assert!(outcome.batch < 2.0, "{outcome:?}");
    let outcome = off(|p| p.coalesce_streams = false, MANY);
    assert!(outcome.batch > 4.0, "{outcome:?}");
    let outcome = off(|p| p.timed_sleeps = false, MANY_SLOW);
    assert!(outcome.timed_sleeps == 0 && outcome.batch > 2.0, "{outcome:?}");
    let outcome = off(|p| p.leave_epoll = false, STREAM);
    assert!(outcome.unwatched == 0, "{outcome:?}");
    let outcome = off(|p| p.spin = Duration::ZERO, PING_PONG);
    assert!(outcome.sleeps > 3000, "{outcome:?}");
    let outcome = off(|p| p.sleep = false, RARE);
    assert!(outcome.sleeps == 0 && outcome.cpu >= 99, "{outcome:?}");
    let shared = PollPolicy { give_way: false, ..PollPolicy::shared() };
    assert_eq!(play(shared, PING_PONG, true).sleeps, 0);
}

#[test]
fn preempted_core_gives_way_without_runnable_threads_too() {
    let host = Host { preemptions_per_ms: 5, ..Host::default() };
    let outcome = play_on(host, PollPolicy::shared(), PING_PONG);
    assert!(outcome.sleeps > 2000 && outcome.cpu < 80, "{outcome:?}");
    let outcome = play_on(host, PollPolicy::throughput(), PING_PONG);
    assert_eq!(outcome.sleeps, 0, "a pinned core counts the time of others, not how often: {outcome:?}");
}

/// A timed sleep ends by the clock alone, and a source could not ring the core in it.
#[test]
fn core_with_sources_takes_no_timed_sleep() {
    let host = Host { sources: true, ..Host::default() };
    let outcome = play_on(host, PollPolicy::throughput(), MANY_SLOW);
    assert!(outcome.timed_sleeps == 0 && outcome.packets > 10_000, "{outcome:?}");
}

#[test]
fn refused_sleep_begins_idle_time_again_and_keeps_descriptors() {
    let mut poller = Poller::new(PollPolicy::throughput());
    let idle = |poller: &mut Poller, at| poller.on_idle(at, false, Contention::default, || false);
    let start = Instant::ZERO + us(1_000_000);
    assert_eq!(idle(&mut poller, start), Idle::Poll);
    assert_eq!(idle(&mut poller, start + us(40)), Idle::Sleep);
    poller.on_sleep_refused(start + us(40));
    assert_eq!(idle(&mut poller, start + us(41)), Idle::Poll, "it spins again first");
    assert!(!poller.leaves_epoll(start + us(1000)));
    assert!(poller.leaves_epoll(start + us(1040)));
}

#[test]
fn sleep_is_short_where_no_event_may_end_it() {
    let poller = Poller::new(PollPolicy::throughput());
    assert_eq!([true, false].map(|without| poller.longest_sleep(without)), [us(1_000), us(1_000_000)]);
}
