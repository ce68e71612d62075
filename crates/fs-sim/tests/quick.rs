//! Every scenario with a few seeds, and properties of the simulation itself.

use fs_core::{DropReason, Duration};
use fs_sim::scenario::{explain, scenarios};
use fs_sim::{Report, Scenario, World, run_or_explain};
use std::path::Path;

/// Seeds per scenario; `make soak` goes on.
const SEEDS: u64 = 2;

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/sim"))
}

fn run(name: &str) -> Vec<Report> {
    run_seeds(name, SEEDS)
}

fn run_seeds(name: &str, seeds: u64) -> Vec<Report> {
    let scenario = Scenario::named(name).expect("a scenario of that name");
    (0..seeds).map(|seed| run_or_explain(scenario, seed, folder()).unwrap_or_else(|what| panic!("{what}"))).collect()
}

/// Returns how often a scenario's own trouble has happened in a world.
fn trouble(name: &str, report: &Report) -> u64 {
    let Report { stats, links, .. } = report;
    match name {
        "small" | "rude" => stats.connect_failed,
        "cores" => stats.packets_forwarded,
        "pressure" => stats.window_probes,
        "flood" | "syn-loss" => stats.syn_cookies_sent,
        "bottleneck" => links.overflowed + links.marked + links.dropped,
        "ecn" => stats.ecn_reductions,
        "bursts" => links.burst_lost,
        "spikes" => stats.rto_fired,
        "flaps" | "user-timeout" => links.down,
        "path-mtu" | "black-hole" => links.too_big,
        "squeeze" => report.rx_dropped,
        "reorder" => links.reordered,
        "sleepy" => stats.keepalive_probes,
        _ => stats.retransmits,
    }
}

macro_rules! scenarios {
    ($($test:ident = $name:literal,)*) => {
        $(#[test] fn $test() {
            let reports = run($name);
            let trouble: u64 = reports.iter().map(|report| trouble($name, report)).sum();
            assert!(trouble > 0, "{} had no trouble", $name);
        })*
        /// A scenario that no test runs proves nothing.
        #[test]
        fn every_scenario_has_a_test() {
            let elsewhere = ["mixed", "clean", "fast-open", "acceptors", "near-readers"];
            for scenario in scenarios() {
                assert!([$($name),*].contains(&scenario.name) || elsewhere.contains(&scenario.name), "{}", scenario.name);
            }
        }
    };
}

/// Worlds that failed once; the comments state the reasons.
#[test]
fn seeds_found_by_soaking() {
    let found = [
        // ACKs of data that the peer had stored until a hole was filled, or of retransmissions
        // after a lost ACK, were taken for round-trip samples: timeouts of minutes.
        ("mixed", 258_941_232_716),
        ("user-timeout", 447_030_609_706),
        ("syn-loss", 518_002_297_047),
        // An ACK of TIME-WAIT has no ECE; a link that is bad for minutes rightly ends an orphan.
        ("ecn", 261_161_125_530),
        ("bursts", 330_337_412_145),
        // The handshake's final ACK, which may be the first with SACK blocks if Fast Open has sent
        // before it.
        ("fast-open", 303_387_087_586),
        // A late segment of the previous connection is reported by D-SACK, below this one's first
        // byte.
        ("timestamps-reuse", 75_062_918_097),
        // A packet searched its owner and had passed the new core before the connection arrived
        // there from a core that stopped listening: no core knew it, and it was answered with a
        // reset.
        ("acceptors", 343_707_894_099),
        ("acceptors", 734_258_056_187),
        ("acceptors", 694_733_265_385),
        // A peer without SACK also got an ACK for each change of a range.
        ("bursts", 216_323_437_801),
        ("urgent", 358_872_541_746),
        // Without SACK no tail loss probe ended the limit of what is in flight to a near slow reader, whose
        // ACKs were late.
        ("near-readers", 7),
    ];
    for (name, seed) in found {
        let scenario = Scenario::named(name).expect("a scenario of that name");
        run_or_explain(scenario, seed, folder()).unwrap_or_else(|what| panic!("{what}"));
    }
}

scenarios! {
    urgent = "urgent",
    user_timeout = "user-timeout",
    timestamps_reuse = "timestamps-reuse",
    small = "small",
    rude = "rude",
    time_wait = "time-wait",
    reuse = "reuse",
    bulk = "bulk",
    open_both = "open-both",
    cores = "cores",
    pressure = "pressure",
    jumbo = "jumbo",
    mtu = "mtu",
    raw_ip = "raw-ip",
    vlan = "vlan",
    standalone = "standalone",
    hosts = "hosts",
    flood = "flood",
    plain_tcp = "plain-tcp",
    bottleneck = "bottleneck",
    ecn = "ecn",
    bbr = "bbr",
    bursts = "bursts",
    reorder = "reorder",
    spikes = "spikes",
    flaps = "flaps",
    path_mtu = "path-mtu",
    black_hole = "black-hole",
    clocks = "clocks",
    squeeze = "squeeze",
    long_fat = "long-fat",
    asymmetric = "asymmetric",
    hops = "hops",
    sleepy = "sleepy",
    syn_loss = "syn-loss",
}

#[test]
fn clean_link_has_no_duplicates() {
    for report in run("clean") {
        let stats = &report.stats;
        assert_eq!((stats.retransmits, stats.rto_fired, stats.out_of_order), (0, 0, 0), "{stats:?}");
        // Window probes and keepalive probes are before the window on purpose.
        let probes = stats.window_probes + stats.keepalive_probes;
        assert_eq!(stats.drops.iter().sum::<u64>(), probes, "{stats:?}");
        assert_eq!(stats.dropped(DropReason::OutOfWindow), probes, "{stats:?}");
        assert_eq!(stats.resets_sent, 0, "{stats:?}");
        assert!(stats.accepted as usize == report.connections && stats.connected as usize == report.connections);
    }
}

#[test]
fn fast_open_carries_data_in_syns() {
    for report in run("fast-open") {
        assert!(report.syn_data > report.connections as u64 / 4, "{} SYNs with data", report.syn_data);
    }
}

/// The senders of near peers that read slowly are held back (decision 0044), and nobody waits for it: the oracle
/// checks `LongestWaits`.
#[test]
fn near_slow_readers_get_little_in_a_round_trip() {
    let turns: u64 = run_seeds("near-readers", 6).iter().map(|report| report.held_back).sum();
    assert!(turns > 100, "in {turns} turns less was in flight than cwnd allows");
}

/// Connections whose listener closes while they open move to a core that listens, and keep their
/// counters: the oracle checks TCP_INFO.
#[test]
fn connections_move_between_cores() {
    let moved: u64 = run("acceptors").iter().map(|report| report.stats.handovers).sum();
    assert!(moved > 10, "{moved} connections moved");
}

#[test]
fn same_seed_is_same_run() {
    for name in ["small", "cores", "bottleneck", "clocks"] {
        let scenario = Scenario::named(name).unwrap();
        let run = |seed| scenario.run(seed, None).unwrap_or_else(|e| panic!("{name} {seed}: {e}"));
        let (a, b, other) = (run(1), run(1), run(2));
        assert_eq!((a.digest, a.packets, a.took), (b.digest, b.packets, b.took));
        assert_ne!(a.digest, other.digest);
    }
}

#[test]
fn failure_reports_replay_command_and_packets() {
    let folder = folder().join("expected-failure");
    let scenario = Scenario::named("small").unwrap();
    let run = |pcap| {
        let mut config = scenario.world(7, pcap);
        config.time_max = Duration::from_millis(20);
        World::new(config)?.run()
    };
    let what = explain("small", 7, &folder, run).expect_err("20 ms are not enough");
    assert!(what.starts_with("replay: cargo run -p fs-sim -- --scenario small --seed 7\n"), "{what}");
    assert!(what.contains("plans are not done"), "{what}");
    let pcap = std::fs::read(folder.join("small-7.pcap")).expect("the packets");
    assert!(pcap.len() > 24 && pcap[..4] == [0x4d, 0x3c, 0xb2, 0xa1], "{} bytes", pcap.len());
}
