//! Every discard has a name. Counters are per core and indexed by the reason.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a packet, or a part of it, was thrown away.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
pub enum DropReason { $($(#[$doc])* $name,)* }

        impl DropReason {
            /// All reasons, in counter order.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)*];
            /// The name that metrics and `fastsock stat` show.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// Shorter than the headers it claims, or lengths that contradict each other.
    Malformed = "malformed",
    /// EtherType, IP version or protocol that the engine does not own.
    NotOurProtocol = "not_our_protocol",
    /// Destination MAC or IP address is not ours.
    NotOurAddress = "not_our_address",
    /// IP fragment (fragments are the kernel's).
    Fragment = "fragment",
    /// IPv4 header checksum wrong.
    BadIpChecksum = "bad_ip_checksum",
    /// TCP, UDP or ICMP checksum wrong.
    BadTransportChecksum = "bad_transport_checksum",
    /// Source or destination address that must not appear there (RFC 1122 3.2.1.3, RFC 9293 MUST-57).
    BadAddress = "bad_address",
    /// No socket for the segment; answered with RST where the RFC asks for one.
    NoSocket = "no_socket",
    /// SYN for a listener whose accept queue and SYN cache are full.
    ListenOverflow = "listen_overflow",
    /// ACK that completes no handshake that we know.
    BadHandshakeAck = "bad_handshake_ack",
    /// Sequence number outside the window (RFC 9293 3.10.7.4 first step).
    OutOfWindow = "out_of_window",
    /// Old timestamp (RFC 7323 PAWS).
    Paws = "paws",
    /// ACK outside SND.UNA..SND.NXT (RFC 5961 section 5).
    BadAck = "bad_ack",
    /// Segment without ACK where every segment must carry it.
    NoAck = "no_ack",
    /// SYN on a synchronized connection (RFC 5961 section 4).
    UnexpectedSyn = "unexpected_syn",
    /// RST inside the window but not at RCV.NXT (RFC 5961 section 3).
    InexactRst = "inexact_rst",
    /// Data after our side was closed; the connection is reset.
    DataAfterClose = "data_after_close",
    /// Data behind the peer's FIN.
    DataAfterFin = "data_after_fin",
    /// Data that was received before.
    Duplicate = "duplicate",
    /// Over the connection's or the core's receive budget.
    ReceiveBudget = "receive_budget",
    /// The frame pool is dry.
    NoFrames = "no_frames",
    /// No connection slot left.
    NoSlots = "no_slots",
    /// The owner core's mailbox is full.
    MailboxFull = "mailbox_full",
    /// No route for an outgoing packet.
    NoRoute = "no_route",
    /// The neighbour did not resolve in time, or too many packets wait for it.
    NeighbourUnresolved = "neighbour_unresolved",
    /// Receive queue of a UDP socket is full.
    UdpQueueFull = "udp_queue_full",
    /// Challenge ACK not sent because of its rate limit (RFC 5961 section 7).
    ChallengeLimited = "challenge_limited",
    /// ICMP that names no socket of ours, or quotes an impossible sequence number.
    IcmpUnmatched = "icmp_unmatched",
    /// The link could not send the packet.
    LinkTx = "link_tx",
    /// The frame belongs to another core and none of the cores knew it.
    NobodysFlow = "nobodys_flow",
}

/// Number of reasons.
pub(crate) const DROP_REASONS: usize = DropReason::ALL.len();
