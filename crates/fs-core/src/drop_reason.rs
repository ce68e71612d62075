//! Reasons for discarded packets. Counters are per core and indexed by the reason.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a packet, or a part of it, was discarded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
pub enum DropReason { $($(#[$doc])* $name,)* }

        impl DropReason {
            /// All reasons, in counter order.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)*];
            /// Returns the name that metrics and the tracepoint `drop` show.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// Shorter than the headers it declares, or contradictory length fields.
    Malformed = "malformed",
    /// EtherType, IP version or protocol that the engine does not own.
    NotOurProtocol = "not_our_protocol",
    /// Destination MAC or IP address is not one of ours.
    NotOurAddress = "not_our_address",
    /// IP fragment (the kernel reassembles fragments).
    Fragment = "fragment",
    /// IPv4 header checksum wrong.
    BadIpChecksum = "bad_ip_checksum",
    /// TCP, UDP or ICMP checksum wrong.
    BadTransportChecksum = "bad_transport_checksum",
    /// Address that must not appear as source or destination (RFC 1122 3.2.1.3, RFC 9293 MUST-57).
    BadAddress = "bad_address",
    /// No socket for the segment; answered with RST where the RFC asks for one.
    NoSocket = "no_socket",
    /// SYN for a listener whose accept queue and SYN cache are full.
    ListenOverflow = "listen_overflow",
    /// ACK that completes no known handshake.
    BadHandshakeAck = "bad_handshake_ack",
    /// Sequence number outside the window (RFC 9293 3.10.7.4 first step).
    OutOfWindow = "out_of_window",
    /// Old timestamp (RFC 7323 PAWS).
    Paws = "paws",
    /// ACK outside SND.UNA..SND.NXT (RFC 5961 section 5).
    BadAck = "bad_ack",
    /// Segment without ACK in a state where every segment must carry it.
    NoAck = "no_ack",
    /// SYN on a synchronized connection (RFC 5961 section 4).
    UnexpectedSyn = "unexpected_syn",
    /// RST inside the window but not at RCV.NXT (RFC 5961 section 3).
    InexactRst = "inexact_rst",
    /// Data after our side was closed. The connection is reset.
    DataAfterClose = "data_after_close",
    /// Data after the peer's FIN.
    DataAfterFin = "data_after_fin",
    /// Data that was received already.
    Duplicate = "duplicate",
    /// Exceeds the receive budget of the connection or the core.
    ReceiveBudget = "receive_budget",
    /// The frame pool is empty.
    NoFrames = "no_frames",
    /// No connection slot left.
    NoSlots = "no_slots",
    /// The owner core's mailbox is full.
    MailboxFull = "mailbox_full",
    /// No route for an outgoing packet.
    NoRoute = "no_route",
    /// The neighbour did not resolve in time, or its packet queue is full.
    NeighbourUnresolved = "neighbour_unresolved",
    /// The receive queue of a UDP socket is full.
    UdpQueueFull = "udp_queue_full",
    /// Challenge ACK suppressed by the rate limit (RFC 5961 section 7).
    ChallengeLimited = "challenge_limited",
    /// ICMP that names no socket of ours, or quotes an impossible sequence number.
    IcmpUnmatched = "icmp_unmatched",
    /// The link failed to send the packet.
    LinkTx = "link_tx",
    /// The flow's RFD bits name another core, and none of the cores knows the flow.
    NobodysFlow = "nobodys_flow",
}

/// Number of reasons.
pub(crate) const DROP_REASONS: usize = DropReason::ALL.len();
