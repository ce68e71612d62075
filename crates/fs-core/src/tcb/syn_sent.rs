//! SYN-SENT, and SYN-RECEIVED after a simultaneous open (RFC 9293 3.5, figure 7).

use crate::flow::FlowKey;
use crate::net::neigh::PathId;
use crate::seq::SeqNum;
use crate::socket::options::TcpOptions;
use crate::tcb::send::buffer::TxQueue;
use crate::time::Instant;
use crate::wire::options::{Cookie, SynOptions};

/// An active open that is not established yet.
#[derive(Debug)]
pub(crate) struct SynSent {
    pub(crate) key: FlowKey,
    pub(crate) generation: u32,
    pub(crate) iss: SeqNum,
    pub(crate) path: PathId,
    pub(crate) options: TcpOptions,
    /// The window scale that our SYNs offer: an option that is set meanwhile does not change it.
    pub(crate) shift: u8,
    /// As of which routes `path` is.
    pub(crate) route_epoch: u8,
    /// Our last SYN asked for ECN: one that is sent again does not, in case the path drops such SYNs (RFC 3168
    /// 6.1.1.1, Linux `tcp_ecn_fallback`).
    pub(crate) ecn: bool,
    /// SYNs sent again so far.
    pub(crate) retries: u8,
    pub(crate) retry_at: Instant,
    /// When the first SYN left: the first RTT sample, if it was not sent again.
    pub(crate) sent_us: u32,
    /// When it began, for the time that connects take.
    pub(crate) began: Instant,
    /// The peer's SYN, if it crossed ours: we are in SYN-RECEIVED.
    pub(crate) crossed: Option<PeerSyn>,
    /// What ICMP said, for the error if the open fails.
    pub(crate) soft_error: Option<crate::error::Error>,
    /// An old incarnation has answered our SYN and was reset; the SYN went again at once. Only once.
    pub(crate) hurried: bool,
    /// TCP Fast Open, until the SYN has to be sent again.
    pub(crate) fast: Option<FastSyn>,
    /// The application closed its handle, or shut down writing, meanwhile.
    pub(crate) fin_wanted: bool,
    /// It closed its handle, in SYN-RECEIVED.
    pub(crate) orphan: bool,
}

/// What the peer's SYN told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSyn {
    pub(crate) irs: SeqNum,
    pub(crate) window: u16,
    pub(crate) options: SynOptions,
    /// It agrees to ECN.
    pub(crate) ecn: bool,
}

/// A fast open under way. Its data stays queued until the server has acknowledged it.
#[derive(Debug)]
pub(crate) struct FastSyn {
    /// The next SYN carries option and data.
    pub(crate) carried: bool,
    /// The option; none where data goes without.
    pub(crate) cookie: Option<Cookie>,
    /// The data that the SYN carries: one segment of the queue.
    pub(crate) data: TxQueue,
    /// Bytes of it in the first SYN.
    pub(crate) sent: u32,
}
