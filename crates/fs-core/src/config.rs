//! Configuration of a stack. Each constant names its source and the effects of a lower and a higher
//! value.

use crate::flow::CoreId;
use crate::port_set::PortSet;
use crate::time::Duration;
use alloc::vec::Vec;
use core::net::IpAddr;

/// 256 bits of randomness, equal on all cores of one runtime and new for every start. Hash keys,
/// ISNs, RFD bits and the engine's random numbers derive from it. A run with the same secret,
/// inputs and times is therefore the same run.
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
    /// Ephemeral ports, shared by all cores; Linux's range is 32768..=60999. For each destination,
    /// this core uses the ports that `Stack::set_steering` assigns to it, or the ports whose RFD
    /// bits name it.
    pub ephemeral_ports: PortSet,
    /// Called with the address and size in bytes of each table that is large when there are many
    /// connections, before the table is used. A runtime requests huge pages there: each
    /// connection's next segment touches a page that has not been used for a while.
    pub large_table: Option<fn(*const u8, usize)>,
    /// Sockets may be bound to any unicast address (Linux: `ip_nonlocal_bind`): the runtime has had
    /// the kernel check that it is one of the host's, of another interface or loopback too.
    pub nonlocal_bind: bool,
}

impl StackConfig {
    /// Returns defaults for one core.
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

/// Congestion control that a connection starts with.
///
/// ```
/// let names: Vec<_> = fastsock::CongestionControl::ALL.iter().map(|algorithm| algorithm.name()).collect();
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

    /// Returns linux's name (`TCP_CONGESTION`, net.ipv4.tcp_congestion_control).
    pub const fn name(self) -> &'static str {
        match self {
            CongestionControl::Cubic => "cubic",
            CongestionControl::NewReno => "reno",
            CongestionControl::Bbr => "bbr",
        }
    }

    /// Looks an algorithm up by Linux's name. Returns `None` for a name that the engine does not
    /// implement.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|algorithm| algorithm.name() == name)
    }
}

/// When to use explicit congestion notification (RFC 3168): Linux `tcp_ecn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Never (0).
    Off,
    /// Only when the peer asks for it (2, Linux's default).
    #[default]
    Passive,
    /// Also requested by our SYNs (1).
    Active,
}

/// Use of TCP Fast Open (RFC 7413): Linux `tcp_fastopen`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpen {
    /// Active opens may carry data in the SYN if a cookie is known.
    pub client: bool,
    /// Listeners that request it (`Listen::fast_open`) accept data in a SYN with a valid cookie.
    pub server: bool,
    /// Active opens send data in the SYN without a cookie, too (bit 0x4 of Linux's sysctl). For
    /// networks whose servers are known to accept it (RFC 7413 4.1.3, appendix A).
    pub client_without_cookie: bool,
    /// Listeners accept data in any SYN (bit 0x200). Only for networks where source addresses
    /// cannot be forged.
    pub server_without_cookie: bool,
}

impl FastOpen {
    /// Fast Open disabled.
    pub const OFF: Self =
        Self { client: false, server: false, client_without_cookie: false, server_without_cookie: false };
}

/// Constants of TCP.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Minimum retransmission timeout. RFC 6298 specifies 1 s. Linux and FreeBSD use 200 ms and 230
    /// ms, which deployed delayed-ACK timers (40 to 200 ms) allow. Too low: spurious
    /// retransmissions.
    pub rto_min: Duration,
    /// Maximum retransmission timeout: RFC 6298 2.5 allows 60 s or more; Linux uses 120 s.
    pub rto_max: Duration,
    /// Initial retransmission timeout: RFC 6298 2.1.
    pub rto_initial: Duration,
    /// Delayed-ACK timeout: RFC 1122 4.2.3.2 allows up to 500 ms; Linux uses 40 ms.
    pub delayed_ack: Duration,
    /// Length of TIME-WAIT: 2 MSL is 4 minutes in RFC 9293, 60 s in Linux.
    pub time_wait: Duration,
    /// Lifetime of an orphaned connection in FIN-WAIT-2: Linux `tcp_fin_timeout`, 60 s.
    pub fin_wait_2: Duration,
    /// Retransmissions before an established connection is aborted: Linux `tcp_retries2`, 15.
    pub retries: u8,
    /// SYN retransmissions before an active open fails: Linux `tcp_syn_retries`, 6.
    pub syn_retries: u8,
    /// SYN-ACK retransmissions: Linux `tcp_synack_retries`, 5.
    pub syn_ack_retries: u8,
    /// Congestion control of new connections.
    pub congestion_control: CongestionControl,
    /// Largest receive buffer of a connection in bytes; determines the window scale. Linux
    /// `tcp_rmem[2]`, 6 MB. Too low: if retransmissions are lost as well, out-of-order data behind
    /// the hole fills the buffer (4 MB: 0.7 of the goodput at 5 % loss, 10 ms, 1 Gb/s).
    pub receive_buffer_max: u32,
    /// Initial receive window in bytes. Linux: 64 KiB.
    pub receive_buffer_initial: u32,
    /// Largest send buffer of a connection in bytes; at most 4 MiB while half of the core's frames
    /// are in use. Data sent after a loss stays buffered until the loss is repaired, so a path
    /// needs two or three times its bandwidth-delay product (Linux `tcp_wmem[2]`, 4 MB: 0.7 of the
    /// goodput at 0.1 % loss, 50 ms, 1 Gb/s).
    pub send_buffer: u32,
    /// Offers window scaling and timestamps (RFC 7323) and SACK (RFC 2018).
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
    /// Enables RACK (RFC 8985). If false, RFC 6675 detects losses with its DupThresh alone.
    pub rack: bool,
    /// Enables the tail loss probe of RFC 8985 section 7, which requires `rack`: Linux
    /// `tcp_early_retrans` 3; false is its 0.
    pub tail_loss_probe: bool,
    /// Reduces the congestion window after an idle time of one RTO (RFC 5681 4.1, RFC 2861): Linux
    /// `tcp_slow_start_after_idle`.
    pub idle_restart: bool,
    /// Paces CUBIC's first slow start at twice the window per round trip, as Linux does under the
    /// fq queue discipline. If false, segments leave in bursts as ACKs arrive, as on Linux without
    /// fq.
    pub slow_start_pacing: bool,
    /// Smallest MSS, in bytes, that path MTU messages and black-hole detection may reduce a
    /// connection to. Counted as MSS options count it, including the space of timestamps. Linux
    /// `tcp_min_snd_mss` is 48; RFC 4821 7.7 suggests a larger one. The default fits the smallest
    /// IPv4 path MTU that a router is believed about.
    pub mss_floor: u16,
    /// Enables detection of path MTU black holes (RFC 4821, ideas of RFC 8899): Linux
    /// `tcp_mtu_probing` 1.
    pub mtu_probing: bool,
    /// Minimum interval between replies to out-of-window segments of one connection: Linux
    /// `tcp_invalid_ratelimit`, 500 ms. Zero: every such segment gets a reply.
    pub invalid_ack_interval: Duration,
    /// Challenge ACKs per second and core (RFC 5961 section 7): Linux 1000.
    pub challenge_acks: u32,
    /// Time after which a connection is aborted if its peer keeps its window closed but
    /// acknowledges every probe. `None`: never, as RFC 9293 3.8.6.1 requires; an operator may bound
    /// it (RFC 6429).
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

/// Upper bounds of one core. Exceeding one is an error for the caller or a counted drop, never
/// growth.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections (TCBs) that exist at once.
    pub connections: u32,
    /// SYN cache entries (handshakes under way).
    pub syn_cache: u32,
    /// TIME-WAIT records.
    pub time_wait: u32,
    /// UDP sockets.
    pub udp_sockets: u32,
    /// Frames that receive queues of this core may hold, as a percentage of the pool. Above half of
    /// it, small payloads are merged by copying, and connections that hold more than the others get
    /// no further window. A sixteenth is added for connections that have nothing unread.
    pub receive_pool_percent: u8,
    /// Frames that send queues of this core may hold, as a percentage of the pool. The last eighth of
    /// them is for connections that have nothing queued.
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

/// Framing of packets on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Ethernet II, with one VLAN tag where `Interface::vlan` says so.
    Ethernet,
    /// Bare IP packets, as on TUN and WireGuard devices.
    Ip,
}

/// The party that answers ARP, NDISC and ICMP echo, and resolves neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// The host's kernel. Its tables are mirrored into the stack, and `Event::NeighbourNeeded` asks
    /// it to resolve a neighbour.
    Host,
    /// The stack itself: it owns the address.
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
    /// Framing of packets.
    pub framing: Framing,
    /// Our MAC address (ignored on raw IP links).
    pub mac: [u8; 6],
    /// VLAN id of transmitted packets, and the only id that is accepted besides untagged.
    pub vlan: Option<u16>,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Addresses of the stack on this interface.
    pub addrs: Vec<Cidr>,
    /// The party that resolves neighbours and answers for the addresses.
    pub addressing: Addressing,
    /// True if the link can complete TCP and UDP checksums of transmitted packets.
    pub tx_checksum: bool,
    /// True if the peer is known to be virtual and sends packets whose checksum field contains only
    /// the pseudo-header's sum: exactly that value is accepted. See `RxChecksum`.
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
    /// Among routes of equal prefix length, the lowest metric wins.
    pub metric: u32,
    /// Source address of packets, unless a socket has its own (`ip route … src`).
    pub source: Option<IpAddr>,
    /// Makes the route refuse its destinations with this error. Gateway and interface are then
    /// unused.
    pub refusal: Option<Refusal>,
}

/// Why a route refuses its destinations: the route types of Linux (`ip route add unreachable …`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `unreachable`: EHOSTUNREACH.
    Unreachable,
    /// `blackhole`: EINVAL.
    Blackhole,
    /// `prohibit`: EACCES.
    Prohibit,
    /// `throw`: as if no route existed, ENETUNREACH.
    Throw,
}
