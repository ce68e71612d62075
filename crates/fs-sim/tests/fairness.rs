//! Long flows through one bottleneck share it and fill it. In virtual time and from fixed seeds, so
//! nothing depends on the machine. The bounds leave margin for changes of the engine that do not
//! concern fairness.

use fs_core::Ecn;
use fs_core::{CongestionControl, Duration, Instant, TcpOptions};
use fs_sim::conn::Side;
use fs_sim::host::{HostConfig, ipv4};
use fs_sim::measure::{Experiment, Flow, Measured, Path, jain};
use fs_sim::plan::{Kind, Plan, Step};
use fs_sim::{Aqm, Failure, LinkConfig, World, WorldConfig};

/// Enough for windows of some dozens of segments, with few enough packets for a test.
const MBPS: u64 = 40;

fn path(rtt_ms: u64) -> Path {
    Path::new(MBPS * 1_000_000, Duration::from_millis(rtt_ms), 0)
}

fn run(name: &str, experiment: &Experiment, seed: u64) -> Measured {
    let measured = experiment.run(seed).unwrap_or_else(|e: Failure| panic!("{name}, seed {seed}: {e}"));
    let share: Vec<_> = measured.goodput.iter().map(|bps| format!("{:.2}", bps / 1e6)).collect();
    println!(
        "{name}, seed {seed}: Jain {:.4}, {} Mb/s, {:.1} % of the capacity, {} retransmits, {} time-outs, {:?}",
        measured.jain(),
        share.join(" + "),
        measured.total() / experiment.path.capacity() * 100.0,
        measured.senders.iter().map(|s| s.retransmits).sum::<u64>(),
        measured.senders.iter().map(|s| s.rto_fired).sum::<u64>(),
        measured.bottleneck,
    );
    measured
}

/// Makes an experiment with flows that begin 100 ms apart, measured after `warm_up`.
fn same(control: CongestionControl, flows: usize, path: Path, warm_up: u64, time: u64) -> Experiment {
    let flow = |i| Flow { start: Duration::from_millis(100 * i as u64), ..Flow::new(control) };
    let flows = (0..flows).map(flow).collect();
    let warm_up = Duration::from_secs(warm_up);
    Experiment { warm_up, ..Experiment::new(path, flows, Duration::from_secs(time)) }
}

fn fair_and_full(name: &str, experiment: &Experiment, jain: f64, full: f64) {
    for seed in 0..2 {
        let measured = run(name, experiment, seed);
        assert!(measured.jain() >= jain, "{name}: Jain's index is {:.4}", measured.jain());
        let share = measured.total() / experiment.path.capacity();
        assert!(share >= full, "{name}: {:.1} % of the bottleneck are used", share * 100.0);
    }
}

#[test]
#[ignore = "long: make proof"]
fn cubic_flows_share_equally() {
    fair_and_full("cubic", &same(CongestionControl::Cubic, 4, path(20), 15, 60), 0.95, 0.95);
}

#[test]
#[ignore = "long: make proof"]
fn newreno_flows_share_equally() {
    fair_and_full("newreno", &same(CongestionControl::NewReno, 4, path(20), 15, 60), 0.95, 0.95);
}

#[test]
#[ignore = "long: make proof"]
fn late_flow_gets_its_share() {
    let mut experiment = same(CongestionControl::Cubic, 2, path(20), 25, 25);
    experiment.flows[1].start = Duration::from_secs(10);
    fair_and_full("latecomer", &experiment, 0.90, 0.95);
}

#[test]
#[ignore = "long: make proof"]
fn marked_flows_share_equally() {
    let path =
        Path { aqm: Aqm::CoDel { target: Duration::from_millis(5), interval: Duration::from_millis(100) }, ..path(20) };
    let mut experiment = same(CongestionControl::Cubic, 4, path, 10, 30);
    experiment.tcp.ecn = Ecn::Active;
    fair_and_full("codel", &experiment, 0.95, 0.90);
}

/// For mixtures and flows with different round-trip times nothing is guaranteed (RFC 5166 2.3);
/// they are printed for inspection, and no flow may starve.
#[test]
#[ignore = "long: make proof"]
fn no_flow_starves_in_a_mixture() {
    let controls = [CongestionControl::Cubic, CongestionControl::NewReno];
    let mut experiment = same(CongestionControl::Cubic, 4, path(20), 10, 20);
    experiment.flows.iter_mut().enumerate().for_each(|(i, f)| f.control = controls[i % 2]);
    let mixed = run("cubic, newreno, cubic, newreno", &experiment, 0);
    let mut experiment = same(CongestionControl::Cubic, 2, path(20), 10, 20);
    experiment.flows[1].extra_rtt = Duration::from_millis(60);
    let far = run("cubic over 20 ms and 80 ms", &experiment, 0);
    for measured in [mixed, far] {
        let fair = measured.total() / measured.goodput.len() as f64;
        assert!(measured.goodput.iter().all(|&g| g > fair / 20.0), "{:?}", measured.goodput);
    }
}

/// Returns the bytes that `flows` flows of one host deliver in the second second, with so few
/// frames on its core that they cannot all fill their windows.
fn beyond_the_frames(flows: usize, frames: usize) -> Vec<f64> {
    const PORT: u16 = 80;
    let link = LinkConfig::bottleneck(1_000_000_000, Duration::from_micros(50), 1 << 14);
    let host = |frames| HostConfig { frames, link: link.clone(), ..HostConfig::plain() };
    let plan = |id| Plan {
        id: id as u32,
        kind: Kind::Stream,
        client: 0,
        server: 1,
        to: (ipv4(1), PORT).into(),
        from: None,
        options: TcpOptions::default(),
        client_script: vec![Step::Exchange(u64::MAX / 2, 0), Step::Close],
        server_script: vec![Step::Exchange(0, u64::MAX / 2), Step::Close],
        seed: 0,
    };
    let config = WorldConfig {
        listen: vec![(PORT, TcpOptions::default())],
        plans: (0..flows).map(plan).collect(),
        ..WorldConfig::new(0, vec![host(frames), host(1 << 15)])
    };
    let read = |world: &World| -> Vec<u64> {
        (0..flows).map(|flow| world.flow(flow, Side::Server).map_or(0, |(_, read, _)| read)).collect()
    };
    let run = || -> Result<Vec<f64>, Failure> {
        let mut world = World::new(config)?;
        world.run_until(Instant::ZERO + Duration::from_secs(1))?;
        let before = read(&world);
        world.run_until(Instant::ZERO + Duration::from_secs(2))?;
        Ok(read(&world).iter().zip(before).map(|(after, before)| (after - before) as f64).collect())
    };
    run().unwrap_or_else(|failure| panic!("{flows} flows, {frames} frames: {failure}"))
}

/// Flows that hold the frames when they run out must share them: 100 flows with 4 frames each, and
/// 600 with fewer than they need.
#[test]
#[ignore = "long: make proof"]
fn flows_share_scarce_frames() {
    for (flows, frames) in [(100, 1000), (600, 1000)] {
        let shares = beyond_the_frames(flows, frames);
        let rate = shares.iter().sum::<f64>() * 8.0 / 1e6;
        println!("{flows} flows, {frames} frames: Jain {:.4}, {rate:.0} Mb/s", jain(&shares));
        assert!(jain(&shares) >= 0.95, "{flows} flows, {frames} frames: Jain's index is {:.4}", jain(&shares));
        assert!(rate >= 800.0, "{flows} flows, {frames} frames: {rate:.0} Mb/s of 1,000");
    }
}

/// Half a segment per flow: they take turns.
#[test]
fn flows_share_a_handful_of_frames() {
    let shares = beyond_the_frames(12, 16);
    println!("12 flows, 16 frames: Jain {:.4}, {shares:?}", jain(&shares));
    assert!(shares.iter().all(|&bytes| bytes > 0.0), "somebody got nothing: {shares:?}");
    assert!(jain(&shares) >= 0.9, "Jain's index is {:.4}: {shares:?}", jain(&shares));
}
