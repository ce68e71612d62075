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
    /// The window scale that our SYNs offer. Later changes of options do not affect it.
    pub(crate) shift: u8,
    /// Route epoch in which `path` was looked up.
    pub(crate) route_epoch: u8,
    /// Our last SYN requested ECN. Retransmissions do not, in case the path drops such SYNs (RFC
    /// 3168 6.1.1.1, Linux `tcp_ecn_fallback`).
    pub(crate) ecn: bool,
    /// Number of retransmitted SYNs.
    pub(crate) retries: u8,
    pub(crate) retry_at: Instant,
    /// When the first SYN was sent: the start of the first RTT sample, unless it was retransmitted.
    pub(crate) sent_us: u32,
    /// Start of the open, for the histogram of connect times.
    pub(crate) began: Instant,
    /// The peer's SYN, if it crossed ours: the state is SYN-RECEIVED.
    pub(crate) crossed: Option<PeerSyn>,
    /// An old incarnation has answered our SYN and was reset; the SYN was retransmitted at once.
    /// Happens at most once.
    pub(crate) hurried: bool,
    /// TCP Fast Open, until the SYN has to be retransmitted.
    pub(crate) fast: Option<FastSyn>,
    /// The application has closed its handle, or shut down writing.
    pub(crate) fin_wanted: bool,
    /// The application has closed its handle in SYN-RECEIVED.
    pub(crate) orphan: bool,
}

/// Contents of the peer's SYN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSyn {
    pub(crate) irs: SeqNum,
    pub(crate) window: u16,
    pub(crate) options: SynOptions,
    /// The peer agrees to ECN.
    pub(crate) ecn: bool,
}

/// A pending Fast Open. Its data stays queued until the server has acknowledged it.
#[derive(Debug)]
pub(crate) struct FastSyn {
    /// The next SYN carries option and data.
    pub(crate) carried: bool,
    /// The option; `None` for data without a cookie.
    pub(crate) cookie: Option<Cookie>,
    /// The SYN's data: one segment of the queue.
    pub(crate) data: TxQueue,
    /// Number of its bytes in the first SYN.
    pub(crate) sent: u32,
}
