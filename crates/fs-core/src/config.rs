//! Everything that a stack is told at its start. Each constant says where it comes from and what too
//! low and too high would do.

use crate::flow::CoreId;
use crate::port_set::PortSet;
use crate::time::Duration;
use alloc::vec::Vec;
use core::net::IpAddr;

/// 256 bits of randomness, equal on all cores of one runtime, new for every start. Hash keys, ISNs, RFD
/// bits and the engine's random numbers are derived from it, so a run with the same secret, inputs and
/// times is the same run.
#[derive(Clone, Copy)]
pub struct Secret(pub [u8; 32]);

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A stack's configuration.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// This shard's core.
    pub core: CoreId,
    /// Number of cores (shards) in the runtime, at least 1.
    pub cores: u16,
    /// Randomness; equal on all cores.
    pub secret: Secret,
    /// TCP's constants.
    pub tcp: TcpConfig,
    /// Upper bounds.
    pub limits: Limits,
    /// Ports for active connections, of all cores together; Linux's range is 32768..=60999. Of a destination's, this core uses
    /// those that `Stack::set_steering` gives it, or whose RFD bits name it.
    pub ephemeral_ports: PortSet,
    /// Is told address and bytes of each table that is large when there are many connections, before it is used: a runtime asks
    /// for huge pages there, since each connection's next segment meets a page that was long not needed.
    pub large_table: Option<fn(*const u8, usize)>,
    /// Sockets may be bound to any unicast address (Linux: `ip_nonlocal_bind`): the runtime has had the kernel check that it is one of
    /// the host's, of another interface or loopback too.
    pub nonlocal_bind: bool,
}

impl StackConfig {
    /// Defaults for one core.
    pub fn new(secret: Secret) -> Self {
        Self {
            core: CoreId(0),
            cores: 1,
            secret,
            tcp: TcpConfig::default(),
            limits: Limits::default(),
            ephemeral_ports: PortSet::from_range(32768..=60999),
            large_table: None,
            nonlocal_bind: false,
        }
    }
}

/// Which congestion control a connection starts with.
///
/// ```
/// let names: Vec<_> = fs_core::CongestionControl::ALL.iter().map(|algorithm| algorithm.name()).collect();
/// assert_eq!(names, ["cubic", "reno", "bbr"]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CongestionControl {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681 and 6582.
    NewReno,
    /// BBRv3: draft-ietf-ccwg-bbr.
    Bbr,
}

impl CongestionControl {
    /// All of them.
    pub const ALL: &[CongestionControl] =
        &[CongestionControl::Cubic, CongestionControl::NewReno, CongestionControl::Bbr];

    /// Linux's name (`TCP_CONGESTION`, net.ipv4.tcp_congestion_control).
    pub const fn name(self) -> &'static str {
        match self {
            CongestionControl::Cubic => "cubic",
            CongestionControl::NewReno => "reno",
            CongestionControl::Bbr => "bbr",
        }
    }

    /// By Linux's name; `None`: the engine has none of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|algorithm| algorithm.name() == name)
    }
}

/// When to use explicit congestion notification (RFC 3168): Linux `tcp_ecn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Never (0).
    Off,
    /// When the peer asks for it (2, Linux's default).
    #[default]
    Passive,
    /// Ask for it, and when the peer asks (1).
    Active,
}

/// TCP Fast Open (RFC 7413): Linux `tcp_fastopen`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpen {
    /// Active opens may carry data in the SYN when a cookie is known.
    pub client: bool,
    /// Listeners that ask for it (`Listen::fast_open`) take data in a SYN with a valid cookie.
    pub server: bool,
    /// An active open sends data in the SYN without a cookie too (bit 0x4 of Linux's sysctl): for networks where
    /// servers are known to take it (RFC 7413 4.1.3, appendix A).
    pub client_without_cookie: bool,
    /// Listeners take data in any SYN (bit 0x200): only where source addresses cannot be forged.
    pub server_without_cookie: bool,
}

impl FastOpen {
    /// Nothing of it.
    pub const OFF: Self =
        Self { client: false, server: false, client_without_cookie: false, server_without_cookie: false };
}

/// TCP's constants.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Floor of the retransmission time-out. RFC 6298 says 1 s; Linux and FreeBSD use 200 ms and 230 ms,
    /// which deployed delayed-ACK timers (40 to 200 ms) allow. Lower: spurious retransmissions.
    pub rto_min: Duration,
    /// Ceiling of the retransmission time-out: RFC 6298 2.5 allows 60 s at least; Linux 120 s.
    pub rto_max: Duration,
    /// Initial time-out: RFC 6298 2.1.
    pub rto_initial: Duration,
    /// Delayed ACK: RFC 1122 4.2.3.2 allows up to 500 ms; Linux 40 ms.
    pub delayed_ack: Duration,
    /// TIME-WAIT: 2 MSL is 4 minutes in RFC 9293, 60 s in Linux.
    pub time_wait: Duration,
    /// How long an orphaned FIN-WAIT-2 lives: Linux `tcp_fin_timeout`, 60 s.
    pub fin_wait_2: Duration,
    /// Retransmissions before an established connection is given up: Linux `tcp_retries2`, 15.
    pub retries: u8,
    /// SYN retransmissions before a connect gives up: Linux `tcp_syn_retries`, 6.
    pub syn_retries: u8,
    /// SYN-ACK retransmissions: Linux `tcp_synack_retries`, 5.
    pub syn_ack_retries: u8,
    /// Congestion control of new connections.
    pub congestion_control: CongestionControl,
    /// Largest receive buffer of a connection in bytes (window scale is chosen for it). Linux `tcp_rmem[2]`, 6 MB. Lower: where
    /// segments sent again are lost too, what waits behind the hole fills it (4 MB: 0.7 of the goodput at 5 % loss, 10 ms, 1 Gb/s).
    pub receive_buffer_max: u32,
    /// Receive window offered at first, in bytes. Linux: 64 KiB.
    pub receive_buffer_initial: u32,
    /// Largest send buffer of a connection in bytes, 4 MiB of it where the core's frames are half spent. As for receiving: what was
    /// sent behind a loss waits until that is repaired, so a path needs two or three times its bandwidth-delay product (Linux'
    /// `tcp_wmem[2]`, 4 MB: 0.7 of the goodput at 0.1 % loss, 50 ms, 1 Gb/s).
    pub send_buffer: u32,
    /// Offer window scaling and timestamps (RFC 7323) and SACK (RFC 2018).
    pub window_scaling: bool,
    /// See `window_scaling`.
    pub timestamps: bool,
    /// See `window_scaling`.
    pub sack: bool,
    /// Initial window in segments: RFC 6928.
    pub initial_window: u32,
    /// Explicit congestion notification.
    pub ecn: Ecn,
    /// TCP Fast Open.
    pub fast_open: FastOpen,
    /// RACK and the tail loss probe (RFC 8985); off: RFC 6675 with its DupThresh alone.
    pub rack: bool,
    /// The tail loss probe of RFC 8985 section 7, which needs `rack`: Linux `tcp_early_retrans` 3; false is its 0.
    pub tail_loss_probe: bool,
    /// Shrink the window after an idle time of one RTO (RFC 5681 4.1, RFC 2861): Linux `tcp_slow_start_after_idle`.
    pub idle_restart: bool,
    /// Pace CUBIC's first slow start at twice the window over the round trip, as Linux does under the fq queue discipline;
    /// off: bursts as ACKs come, as Linux does without.
    pub slow_start_pacing: bool,
    /// Smallest segment size that path MTU messages and black-hole detection go down to, in bytes and as MSS options count
    /// it, with the room of timestamps: Linux `tcp_min_snd_mss` is 48; RFC 4821 7.7 suggests a larger one. This is what
    /// fits the smallest IPv4 path that a router is believed of.
    pub mss_floor: u16,
    /// Look for path MTU black holes (RFC 4821, RFC 8899's ideas): Linux `tcp_mtu_probing` 1.
    pub mtu_probing: bool,
    /// Out-of-window segments of a connection are answered at most once in this time: Linux
    /// `tcp_invalid_ratelimit`, 500 ms. Zero: always.
    pub invalid_ack_interval: Duration,
    /// Challenge ACKs a second and core (RFC 5961 section 7): Linux 1000.
    pub challenge_acks: u32,
    /// How long a peer may keep our window closed, answering every probe, before the connection is given up.
    /// `None`: for ever, as RFC 9293 3.8.6.1 wants; an operator may bound it (RFC 6429).
    pub zero_window_timeout: Option<Duration>,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            rto_initial: Duration::from_secs(1),
            delayed_ack: Duration::from_millis(40),
            time_wait: Duration::from_secs(60),
            fin_wait_2: Duration::from_secs(60),
            retries: 15,
            syn_retries: 6,
            syn_ack_retries: 5,
            congestion_control: CongestionControl::Cubic,
            receive_buffer_max: 6 << 20,
            receive_buffer_initial: 64 << 10,
            send_buffer: 6 << 20,
            window_scaling: true,
            timestamps: true,
            sack: true,
            initial_window: 10,
            ecn: Ecn::Passive,
            fast_open: FastOpen { client: true, ..FastOpen::OFF },
            rack: true,
            tail_loss_probe: true,
            idle_restart: true,
            slow_start_pacing: true,
            mss_floor: 512,
            mtu_probing: true,
            invalid_ack_interval: Duration::from_millis(500),
            challenge_acks: 1000,
            zero_window_timeout: None,
        }
    }
}

/// Upper bounds of one core. Reaching one is an error to the caller or a named drop, never growth.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections (TCBs) alive at once.
    pub connections: u32,
    /// SYN cache entries (handshakes under way).
    pub syn_cache: u32,
    /// TIME-WAIT records.
    pub time_wait: u32,
    /// UDP sockets.
    pub udp_sockets: u32,
    /// Frames that receive queues of this core may hold, as a share of the pool in percent. From half of them on payloads are
    /// copied together, and connections that hold more than others are promised nothing more. A sixteenth of them comes on
    /// top, for connections that have nothing unread.
    pub receive_pool_percent: u8,
    /// Frames that send queues of this core may hold, as a share of the pool in percent.
    pub send_pool_percent: u8,
    /// Packets that wait for one neighbour's address.
    pub neighbour_queue: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1 << 20,
            syn_cache: 1 << 14,
            time_wait: 1 << 18,
            udp_sockets: 1 << 16,
            receive_pool_percent: 50,
            send_pool_percent: 40,
            neighbour_queue: 16,
        }
    }
}

/// How packets are framed on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Ethernet II, with one VLAN tag where `Interface::vlan` says so.
    Ethernet,
    /// Bare IP packets, as on TUN and WireGuard devices.
    Ip,
}

/// Who answers ARP, NDISC and ICMP echo, and resolves neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// The host's kernel does; its tables are mirrored into the stack, and `Event::NeighbourNeeded` asks it.
    Host,
    /// The stack does: the address is its own.
    Standalone,
}

/// An address with its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub addr: IpAddr,
    /// Length of the network prefix in bits.
    pub prefix: u8,
}

/// An interface as the stack sees it.
#[derive(Clone, Debug)]
pub struct Interface {
    /// How packets are framed.
    pub framing: Framing,
    /// Our MAC address (ignored on raw IP links).
    pub mac: [u8; 6],
    /// VLAN id for what we send, and the only one that we accept besides untagged.
    pub vlan: Option<u16>,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Our addresses there.
    pub addrs: Vec<Cidr>,
    /// Who resolves and answers.
    pub addressing: Addressing,
    /// The link can finish TCP and UDP checksums of what we send.
    pub tx_checksum: bool,
    /// The peer is known to be virtual and hands over packets whose checksum field holds only the
    /// pseudo-header's sum: accept exactly that value. See `RxChecksum`.
    pub accept_partial_checksum: bool,
}

/// A route: packets for `to` leave by `iface`, through `gateway` or directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination network.
    pub to: Cidr,
    /// Next hop; `None` when the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Outgoing interface.
    pub iface: crate::frame::IfaceId,
    /// Lower wins among equal prefixes.
    pub metric: u32,
    /// The address of ours that packets come from, unless a socket has its own (`ip route … src`).
    pub source: Option<IpAddr>,
    /// Nothing goes there, for this reason; gateway and interface say nothing then.
    pub refusal: Option<Refusal>,
}

/// Why a route leads nowhere: a route of one of these types (`ip route add unreachable …`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `unreachable`: EHOSTUNREACH.
    Unreachable,
    /// `blackhole`: EINVAL.
    Blackhole,
    /// `prohibit`: EACCES.
    Prohibit,
    /// `throw`: as if there were no route, ENETUNREACH.
    Throw,
}
