//! The state machine as visible from outside (review any change of the table), and the activity of
//! an idle connection.

use fs_core::{Duration, Instant, TcpOptions};
use fs_sim::host::{HostConfig, ipv4};
use fs_sim::plan::{Kind, Plan, Step};
use fs_sim::{Scenario, World, WorldConfig};
use std::collections::BTreeSet;

/// Every transition observed when each segment, call and timer is processed on its own. CLOSED also
/// stands for TIME-WAIT.
const SEEN: &str = "\
CloseWait -> Closed
CloseWait -> LastAck
Closing -> Closed
Established -> CloseWait
Established -> Closed
Established -> FinWait1
FinWait1 -> Closed
FinWait1 -> Closing
FinWait1 -> FinWait2
FinWait2 -> Closed
LastAck -> Closed
SynReceived -> CloseWait
SynReceived -> Established
SynSent -> Closed
SynSent -> Established
SynSent -> SynReceived
";

#[test]
fn transitions_follow_figure_5() {
    let mut seen = BTreeSet::new();
    for (name, seeds) in [("small", 4), ("rude", 4), ("open-both", 4), ("spikes", 2)] {
        for seed in 0..seeds {
            let mut config = Scenario::named(name).expect("a scenario").world(seed, None);
            config.one_by_one = true;
            // Handles are kept for a while after both directions are shut down; otherwise LAST-ACK
            // would not be observed.
            for script in config.plans.iter_mut().flat_map(|p| [&mut p.client_script, &mut p.server_script]) {
                if let [.., Step::ShutdownWrite, Step::ExpectEof, Step::Close] = script[..] {
                    script.insert(script.len() - 1, Step::Pause(Duration::from_secs(30)));
                }
            }
            let report = World::new(config).and_then(World::run).unwrap_or_else(|e| panic!("{name} {seed}: {e}"));
            seen.extend(report.transitions);
        }
    }
    let table: String = seen.iter().map(|(from, to)| format!("{from} -> {to}\n")).collect();
    assert_eq!(table, SEEN, "\n{table}");
}

/// RFC 9293 3.8.4: without keepalive an idle connection sends nothing, and no timer wakes its host.
#[test]
fn idle_connection_is_silent() {
    let hour = Duration::from_secs(3600);
    let plan = Plan {
        id: 0,
        kind: Kind::Stream,
        client: 0,
        server: 1,
        to: (ipv4(1), 80).into(),
        from: None,
        options: TcpOptions::default(),
        client_script: vec![
            Step::Exchange(100_000, 100_000),
            Step::Pause(2 * hour),
            Step::Exchange(10, 10),
            Step::Close,
        ],
        server_script: vec![Step::Exchange(100_000, 100_000), Step::Exchange(10, 10), Step::ExpectEof, Step::Close],
        seed: 1,
    };
    let config = WorldConfig {
        listen: vec![(80, TcpOptions::default())],
        plans: vec![plan],
        ..WorldConfig::new(1, vec![HostConfig::plain(), HostConfig::plain()])
    };
    let mut world = World::new(config).unwrap();
    let minute = Instant::ZERO + Duration::from_secs(60);
    world.run_until(minute).unwrap();
    let (packets, turns) = (world.packets(), world.turns());
    assert!(packets > 100);
    world.run_until(minute + hour).unwrap();
    assert_eq!(world.packets(), packets);
    assert!(world.turns() <= turns + 2, "{} turns in an idle hour", world.turns() - turns);
    world.run().unwrap();
}

/// Timers that wake a host without effect stay rare: wheel entries are moved lazily, so there are
/// some.
#[test]
fn turns_without_effect_are_few() {
    for name in ["small", "bulk", "bottleneck", "sleepy", "pressure"] {
        let report = Scenario::named(name).expect("a scenario").run(0, None).unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{name}: {} packets, {} turns without effect", report.packets, report.idle_turns);
        assert!(report.idle_turns < report.packets / 2, "{name}: {} of {} packets", report.idle_turns, report.packets);
    }
}
