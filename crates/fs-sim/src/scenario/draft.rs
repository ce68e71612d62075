//! A scenario, and what it is before its connections are drawn.

use crate::change::Change;
use crate::host::HostConfig;
use crate::link::LinkConfig;
use crate::plan::{self, Kind, Sizes, Step};
use crate::reading::Reading;
use crate::rng::Rng;
use crate::topology::Topology;
use crate::world::LongestWaits;
use fs_core::{CongestionControl, Duration, Framing, TcpConfig, TcpOptions};

/// Maximum rate of loss, reordering, duplication and corruption: 5 %.
pub const BAD_PPM: u32 = 50_000;

/// A named world.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The scenario's name on the command line.
    pub name: &'static str,
    /// The purpose of the scenario, in one line.
    pub about: &'static str,
    pub(super) build: fn(&mut Rng) -> Draft,
}

/// A scenario before its connections are drawn.
pub(super) struct Draft {
    pub(super) framing: Framing,
    pub(super) vlan: Option<u16>,
    pub(super) mtu: u16,
    pub(super) hosts: Vec<HostConfig>,
    pub(super) short: usize,
    pub(super) bulk: usize,
    /// Clients use keepalive, for every kind of connection.
    pub(super) keepalive: bool,
    /// Kinds of the short connections.
    pub(super) kinds: Vec<Kind>,
    pub(super) sizes: Sizes,
    pub(super) concurrency: usize,
    pub(super) gap: Duration,
    pub(super) v4: bool,
    pub(super) v6: bool,
    pub(super) topology: Topology,
    pub(super) changes: Vec<(Duration, Change)>,
    /// Urgent bytes stay in the stream; both ends send some, and ends of records.
    pub(super) oob_inline: bool,
    /// All ends read slowly, with receive buffers of 512 KiB or more.
    pub(super) slow_readers: bool,
    /// See `WorldConfig`.
    pub(super) longest_waits: Option<LongestWaits>,
    /// TCP_USER_TIMEOUT of all connections.
    pub(super) user_timeout: Option<Duration>,
}

impl Draft {
    /// Makes a draft with two hosts, both address families, 200 short and 8 bulk connections.
    pub(super) fn two(link: impl FnMut() -> LinkConfig) -> Self {
        let mut link = link;
        let host = |link| HostConfig { link, ..HostConfig::plain() };
        Self {
            framing: Framing::Ethernet,
            vlan: None,
            mtu: 1500,
            hosts: vec![host(link()), host(link())],
            short: 200,
            bulk: 8,
            keepalive: false,
            kinds: Kind::ORDERLY.to_vec(),
            sizes: Sizes::default(),
            concurrency: 32,
            gap: Duration::from_millis(2),
            v4: true,
            v6: true,
            topology: Topology::switch(),
            changes: Vec::new(),
            oob_inline: false,
            slow_readers: false,
            longest_waits: None,
            user_timeout: None,
        }
    }

    /// Draws options of one end.
    pub(super) fn options(&self, rng: &mut Rng, keepalive: bool) -> TcpOptions {
        let drawn = self.mark(plan::options(rng, keepalive));
        if !self.slow_readers {
            return drawn;
        }
        let mut buffer = |least| if rng.chance(500_000) { Some(rng.log_size(least, 6 << 20) as u32) } else { None };
        TcpOptions { receive_buffer: buffer(512 << 10), send_buffer: buffer(256 << 10), ..drawn }
    }

    /// Draws both scripts of a connection: (client, server).
    pub(super) fn scripts(&self, kind: Kind, rng: &mut Rng) -> (Vec<Step>, Vec<Step>) {
        let (mut client, mut server) = kind.scripts(rng, &self.sizes);
        if self.slow_readers {
            client.insert(0, Step::ReadLike(Reading::draw_slow(rng)));
            server.insert(0, Step::ReadLike(Reading::draw_slow(rng)));
        }
        (client, server)
    }

    /// Adds the options that all its connections share.
    fn mark(&self, options: TcpOptions) -> TcpOptions {
        TcpOptions { oob_inline: self.oob_inline, user_timeout: self.user_timeout, ..options }
    }

    pub(super) fn bad(rng: &mut Rng) -> Self {
        Self::two(|| LinkConfig::draw(rng, BAD_PPM))
    }

    pub(super) fn each_host(mut self, mut change: impl FnMut(&mut HostConfig)) -> Self {
        self.hosts.iter_mut().for_each(&mut change);
        self
    }
}

/// Draws a host's TCP constants.
pub(super) fn draw_tcp(host: &mut HostConfig, rng: &mut Rng) {
    let TcpConfig { congestion_control, window_scaling, timestamps, sack, time_wait, .. } = &mut host.tcp;
    *congestion_control = rng.pick(CongestionControl::ALL);
    *window_scaling = rng.chance(800_000);
    *timestamps = rng.chance(800_000);
    *sack = rng.chance(800_000);
    *time_wait = rng.pick(&[Duration::from_secs(1), Duration::from_secs(60), Duration::from_secs(36_000)]);
    host.latency = rng.duration(Duration::ZERO, Duration::from_micros(200));
}
