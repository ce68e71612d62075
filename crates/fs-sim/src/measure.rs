//! Long flows through one bottleneck: their goodput, and how they share it. For tests of efficiency
//! and fairness, and for the tables that congestion control is tuned against.
//!
//! Each flow has its own sender and receiver. Senders' links are fast, so the only queue is the
//! bottleneck's, which is in a router. Half of the round-trip time is before it, half on the way
//! back. Loss affects the data's direction only. Buffers are large enough never to be the limit.

use crate::conn::Side;
use crate::host::{HostConfig, ipv4};
use crate::link::{Aqm, LinkConfig, LinkStats};
use crate::plan::{Kind, Plan, Step};
use crate::topology::{Pipe, Topology};
use crate::world::{Failure, World, WorldConfig};
use fs_core::{CongestionControl, Duration, Instant, Stats, TcpConfig, TcpInfo, TcpOptions};
use std::path::PathBuf;

const PORT: u16 = 80;
/// Bytes of a full packet.
const PACKET: u64 = 1500;
/// Payload of a full packet in bytes (IPv4, timestamps).
const PAYLOAD: u64 = 1448;
/// Bytes of a full packet in the simulation (Ethernet's header, no preamble).
const ON_WIRE: u64 = 1514;

/// The bottleneck.
#[derive(Clone, Debug)]
pub struct Path {
    /// Bits per second.
    pub rate_bps: u64,
    /// Round-trip time without queues.
    pub rtt: Duration,
    /// Random loss of data packets, parts per million.
    pub loss_ppm: u32,
    /// Maximum number of packets that wait.
    pub queue: usize,
    /// Queue management.
    pub aqm: Aqm,
    /// Jitter in the data's direction.
    pub jitter: Duration,
    /// Random loss of acknowledgements, parts per million.
    pub loss_back_ppm: u32,
}

impl Path {
    /// Makes a path with a drop-tail queue of one bandwidth-delay product and 100 packets.
    pub fn new(rate_bps: u64, rtt: Duration, loss_ppm: u32) -> Self {
        let bdp = bdp_packets(rate_bps, rtt);
        let queue = bdp as usize + 100;
        Self { rate_bps, rtt, loss_ppm, queue, aqm: Aqm::DropTail, jitter: Duration::ZERO, loss_back_ppm: 0 }
    }

    /// Makes the path of the interop bench over veth: a queue of 128 KiB or one bandwidth-delay
    /// product, loss in both directions.
    pub fn veth(rate_bps: u64, rtt: Duration, loss_ppm: u32) -> Self {
        let queue = (bdp_packets(rate_bps, rtt) as usize).max((128 << 10) / PACKET as usize);
        Self { queue, loss_back_ppm: loss_ppm, ..Self::new(rate_bps, rtt, loss_ppm) }
    }

    /// Returns the maximum payload rate, in bits per second.
    pub fn capacity(&self) -> f64 {
        self.rate_bps as f64 * PAYLOAD as f64 / ON_WIRE as f64
    }
}

fn bdp_packets(rate_bps: u64, rtt: Duration) -> u64 {
    (u128::from(rate_bps) * rtt.as_nanos() / 1_000_000_000 / 8) as u64 / PACKET
}

/// One flow.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// The flow's start.
    pub start: Duration,
    /// The flow's congestion control.
    pub control: CongestionControl,
    /// Additional round-trip time of its own links.
    pub extra_rtt: Duration,
    /// The flow's `TcpOptions::pacing_max`.
    pub pacing_max: Option<u64>,
}

impl Flow {
    /// Makes a flow that starts at once, without additional delay.
    pub fn new(control: CongestionControl) -> Self {
        Self { start: Duration::ZERO, control, extra_rtt: Duration::ZERO, pacing_max: None }
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Bits of payload per second that each flow has delivered to its application in the measured
    /// time.
    pub goodput: Vec<f64>,
    /// Each sender's TCP_INFO at the end.
    pub info: Vec<TcpInfo>,
    /// Each sender's counters.
    pub senders: Vec<Stats>,
    /// Counters of the bottleneck.
    pub bottleneck: LinkStats,
}

impl Measured {
    /// Returns Jain's index: 1 if all flows are equal, 1/n if one has everything.
    pub fn jain(&self) -> f64 {
        jain(&self.goodput)
    }

    /// Returns the goodput of all flows together, in bits per second.
    pub fn total(&self) -> f64 {
        self.goodput.iter().sum()
    }
}

/// Returns Jain's fairness index.
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// A configured run.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The bottleneck.
    pub path: Path,
    /// The experiment's flows.
    pub flows: Vec<Flow>,
    /// Time at the beginning that is not measured.
    pub warm_up: Duration,
    /// Measured time.
    pub time: Duration,
    /// TCP's constants of all hosts (including buffer sizes).
    pub tcp: TcpConfig,
    /// The receivers' SO_RCVBUF.
    pub receive_buffer: Option<u32>,
    /// File for all packets.
    pub pcap: Option<PathBuf>,
}

impl Experiment {
    /// Makes an experiment with one or more flows, measured from the beginning.
    pub fn new(path: Path, flows: Vec<Flow>, time: Duration) -> Self {
        let (warm_up, tcp) = (Duration::ZERO, TcpConfig::default());
        Self { path, flows, warm_up, time, tcp, receive_buffer: None, pcap: None }
    }

    fn world(&self, seed: u64) -> WorldConfig {
        let n = self.flows.len();
        let Path { rate_bps, rtt, loss_ppm, queue, aqm, jitter, loss_back_ppm } = self.path;
        // Three windows of a full path: in flight, queued, and waiting for acknowledgements.
        let window = bdp_packets(rate_bps, rtt + self.longest_extra()) as usize + queue.min(20_000) + 500;
        let mut host = HostConfig {
            // Half of the send share (40 % of the frames) suffices: no buffer is limited by the
            // others.
            frames: window * 6,
            tx_ring: 64,
            latency: Duration::from_micros(2),
            tcp: TcpConfig { send_buffer: 32 << 20, receive_buffer_max: 32 << 20, ..self.tcp.clone() },
            ..HostConfig::plain()
        };
        host.limits.connections = 16;
        host.limits.receive_pool_percent = 60;
        // Without noise of a packet's transmission time, flows synchronize with the queue, and some
        // are locked out (Floyd and Jacobson 1992, "On traffic phase effects"); real hosts have
        // that noise.
        let noise = Duration::from_nanos(ON_WIRE * 8 * 1_000_000_000 / rate_bps.max(1));
        let own = |extra: Duration| LinkConfig {
            jitter: noise,
            ..LinkConfig::bottleneck(rate_bps.saturating_mul(10), extra / 2, 1 << 20)
        };
        let hosts = (0..2 * n).map(|h| HostConfig { link: own(self.flows[h % n].extra_rtt), ..host.clone() }).collect();
        let there = LinkConfig { loss_ppm, aqm, jitter, ..LinkConfig::bottleneck(rate_bps, rtt / 2, queue) };
        let back = LinkConfig { loss_ppm: loss_back_ppm, ..LinkConfig::clean(rtt / 2) };
        let topology = Topology::dumbbell(n, n, there, back);
        debug_assert!(matches!(topology.pipes[..], [Pipe { from: 0, .. }, _]));
        let plan = |(id, flow): (usize, &Flow)| Plan {
            id: id as u32,
            kind: Kind::Stream,
            client: id,
            server: n + id,
            to: (ipv4(n + id), PORT).into(),
            from: None,
            options: TcpOptions {
                congestion_control: Some(flow.control),
                pacing_max: flow.pacing_max,
                ..TcpOptions::default()
            },
            // Never ends.
            client_script: vec![Step::Pause(flow.start), Step::Exchange(u64::MAX / 2, 0), Step::Close],
            server_script: vec![Step::Exchange(0, u64::MAX / 2), Step::Close],
            seed,
        };
        let plans = self.flows.iter().enumerate().map(plan).collect();
        WorldConfig {
            listen: vec![(PORT, TcpOptions { receive_buffer: self.receive_buffer, ..TcpOptions::default() })],
            topology,
            plans,
            pcap: self.pcap.clone(),
            ..WorldConfig::new(seed, hosts)
        }
    }

    fn longest_extra(&self) -> Duration {
        self.flows.iter().map(|f| f.extra_rtt).max().unwrap_or_default()
    }

    /// Runs the experiment.
    ///
    /// # Errors
    /// The error that the oracle has detected.
    pub fn run(&self, seed: u64) -> Result<Measured, Failure> {
        let n = self.flows.len();
        let mut world = World::new(self.world(seed))?;
        let read = |world: &World, flow| world.flow(flow, Side::Server).map_or(0, |(_, read, _)| read);
        world.run_until(Instant::ZERO + self.warm_up)?;
        let before: Vec<u64> = (0..n).map(|f| read(&world, f)).collect();
        world.run_until(Instant::ZERO + self.warm_up + self.time)?;
        let rate = |f: usize| (read(&world, f) - before[f]) as f64 * 8.0 / self.time.as_secs_f64();
        Ok(Measured {
            goodput: (0..n).map(rate).collect(),
            info: (0..n).map(|f| world.flow(f, Side::Client).map(|(.., info)| info).unwrap_or_default()).collect(),
            senders: (0..n).map(|host| world.host_stats(host)).collect(),
            bottleneck: world.link_stats()[2 * n],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_at_extremes() {
        assert!((jain(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-9);
        assert!((jain(&[5.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-9);
    }
}
