//! What a control block points to: an IPv6 connection's addresses, which are small and always there, and the [`Ext`],
//! which is large and which most connections never need. One pointer for both keeps the control block at two lines.

use super::cc::{self, Control};
use super::recv::Recv;
use super::recv::reassembly::OutOfOrderQueue;
use super::send::loss::Loss;
use super::send::sender::Sender;
use crate::error::Error;
use crate::frame::IfaceId;
use crate::seq::SeqNum;
use crate::socket::options::{Keepalive, Linger};
use crate::time::Instant;
use alloc::boxed::Box;

/// IPv6 addresses of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) local: [u8; 16],
    pub(crate) remote: [u8; 16],
    pub(crate) flow_label: u32,
}

/// Loss recovery's phase (RFC 5681, 6582, 6675).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// No loss known.
    #[default]
    Open,
    /// Fast recovery until `high` is acknowledged.
    Fast { high: SeqNum },
    /// The window was reduced for an ECN echo, until `high` is acknowledged: at most once for each window of data.
    Cwr { high: SeqNum },
    /// After a time-out, until `high` is acknowledged.
    Loss { high: SeqNum },
}

impl Recovery {
    /// What must be acknowledged for it to end.
    #[inline]
    pub(crate) fn high(self) -> Option<SeqNum> {
        match self {
            Recovery::Open => None,
            Recovery::Fast { high } | Recovery::Cwr { high } | Recovery::Loss { high } => Some(high),
        }
    }
}

/// The part of a control block that most connections never need.
#[derive(Debug, Default)]
pub(crate) struct Ext {
    pub(crate) recovery: Recovery,
    /// What loss recovery remembers, once there was something amiss.
    pub(crate) loss: Option<Box<Loss>>,
    /// What sending needs of it.
    pub(crate) sender: Sender,
    /// Bytes of the send queue that the peer has SACKed.
    pub(crate) sacked: u32,
    /// RACK.segs_sacked: the segments that they are in; 0 without SACK.
    pub(crate) sacked_segments: u32,
    /// Bytes taken for lost and not SACKed.
    pub(crate) lost: u32,
    /// Bytes sent again, and neither acknowledged nor taken for lost since.
    pub(crate) retransmitted: u32,
    pub(crate) pacing: cc::pacing::Pacing,
    pub(crate) hystart: cc::hystart::HyStart,
    /// Congestion control state: BBR's from the start, the others' from the first loss on.
    pub(crate) control: Option<cc::Control>,
    /// Received out of order.
    pub(crate) out_of_order: OutOfOrderQueue,
    /// Where the peer's FIN stands, if it came before data that is missing.
    pub(crate) fin_at: Option<SeqNum>,
    /// Bytes in `out_of_order`.
    pub(crate) held: u32,
    /// RFC 2883: the duplicate range to report in the next ACK.
    pub(crate) dsack: Option<(SeqNum, SeqNum)>,
    pub(crate) keepalive: Option<Keepalive>,
    pub(crate) keepalive_probes: u8,
    /// A tick of the wheel with an entry of this connection's that is later than the one that counts, or 0: it can count again.
    pub(crate) later_entry: u32,
    /// Last time anything arrived, for keepalive.
    pub(crate) last_received: Instant,
    pub(crate) linger: Linger,
    /// SO_BINDTODEVICE.
    pub(crate) device: Option<IfaceId>,
    pub(crate) ttl: Option<u8>,
    /// TOS or traffic class; its ECN bits are zero.
    pub(crate) tos: u8,
    /// Segments acknowledged by ACKs with ECE.
    pub(crate) delivered_ce: u32,
    /// Error that ICMP reported, kept until the connection fails (RFC 5461 soft errors).
    pub(crate) soft_error: Option<Error>,
    /// What receiving needs of it.
    pub(crate) recv: Recv,
}

/// Fast paths that may be taken without a look into an [`Ext`]: there is nothing in it that they would have to heed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FastPath(u8);

impl FastPath {
    /// Deadlines, and what is to be sent again.
    pub(crate) const SCHEDULE: FastPath = FastPath(1);
    /// Segments in order that come in, but for keepalive.
    pub(crate) const RECEIVE: FastPath = FastPath(2);
    /// New segments that leave, and their headers.
    pub(crate) const SEND: FastPath = FastPath(4);
    /// The only segment that is unsent: as `SEND`, and what is noted once all has left.
    pub(crate) const SEND_SINGLE: FastPath = FastPath(8);
    /// An ACK of all that is out, by a sender that its window does not hold.
    pub(crate) const ACK: FastPath = FastPath(16);
    /// It was looked at since it could last change.
    const KNOWN: FastPath = FastPath(32);
    const ALL: FastPath = FastPath(63);

    #[inline(always)]
    fn has(self, what: FastPath) -> bool {
        self.0 & what.0 == what.0
    }

    fn and(self, what: FastPath, holds: bool) -> FastPath {
        if holds { FastPath(self.0 | what.0) } else { self }
    }
}

/// The pointer of a control block. Its methods speak of the [`Ext`], as `Option<Box<Ext>>` would.
#[derive(Debug, Default)]
pub(crate) struct Extension(Option<Box<Parts>>);

#[derive(Debug, Default)]
struct Parts {
    addresses: Addresses,
    rare: Option<Box<Ext>>,
    /// Those that `rare` allows; none once it may have changed.
    fast_paths: FastPath,
}

impl Parts {
    #[cold]
    #[inline(never)]
    fn look(&mut self) {
        self.fast_paths = self.rare.as_ref().map_or(FastPath::ALL, |rare| rare.fast_paths());
    }
}

impl Extension {
    /// Of a connection without anything rare; `addresses` if it is IPv6.
    pub(crate) fn new(addresses: Option<Addresses>) -> Self {
        Self(addresses.map(|addresses| Box::new(Parts { addresses, ..Parts::default() })))
    }

    /// What is behind the pointer will be needed soon.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let Some(parts) = &self.0 {
            fs_prefetch::line(&parts.addresses);
            fs_prefetch::line(&parts.fast_paths);
        }
    }

    /// Zeros for IPv4.
    #[inline]
    pub(crate) fn addresses(&self) -> Addresses {
        self.0.as_ref().map_or_else(Addresses::default, |parts| parts.addresses)
    }

    /// RFC 6437's label; zero for IPv4.
    #[inline]
    pub(crate) fn flow_label(&self) -> u32 {
        self.0.as_ref().map_or(0, |parts| parts.addresses.flow_label)
    }

    #[inline]
    pub(crate) fn as_ref(&self) -> Option<&Ext> {
        self.0.as_ref()?.rare.as_deref()
    }

    #[inline]
    pub(crate) fn as_mut(&mut self) -> Option<&mut Ext> {
        let parts = self.0.as_mut()?;
        parts.fast_paths = FastPath::default();
        parts.rare.as_deref_mut()
    }

    /// The fast path `what` may be taken, as it may without an [`Ext`].
    #[inline(always)]
    pub(crate) fn allows(&mut self, what: FastPath) -> bool {
        let Some(parts) = self.0.as_mut() else { return true };
        if !parts.fast_paths.has(FastPath::KNOWN) {
            parts.look();
        }
        parts.fast_paths.has(what)
    }

    /// [`Extension::allows`] as far as it is known: false when it must be looked at.
    #[inline(always)]
    pub(crate) fn is_known_to_allow(&self, what: FastPath) -> bool {
        self.0.as_ref().is_none_or(|parts| parts.fast_paths.has(what))
    }

    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.as_ref().is_some()
    }

    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.as_ref().is_none()
    }

    /// The extension, made now if there is none.
    #[inline]
    pub(crate) fn get_or_make(&mut self) -> &mut Ext {
        let parts = self.0.get_or_insert_default();
        parts.fast_paths = FastPath::default();
        parts.rare.get_or_insert_default()
    }

    /// Takes the extension out; addresses stay.
    pub(crate) fn take(&mut self) -> Option<Box<Ext>> {
        let parts = self.0.as_mut()?;
        parts.fast_paths = FastPath::default();
        parts.rare.take()
    }
}

impl Ext {
    /// Those that need not look into it: see each fast path for what it would have to heed.
    fn fast_paths(&self) -> FastPath {
        let Self { sender, recv, pacing, .. } = self;
        let bbr = matches!(self.control, Some(Control::Bbr(_)));
        let loss = self.loss.as_deref();
        let sent_once = loss.is_none_or(|l| l.resend.is_none() && !l.probe.due);
        let schedule = self.keepalive.is_none() && sent_once;
        let in_order = self.out_of_order.is_empty() && self.fin_at.is_none();
        let no_probe = loss.is_none_or(|l| l.probe.end.is_none());
        let receive = in_order && recv.low <= 1 && recv.urgent.is_none() && sender.closed_since.is_none() && no_probe;
        let write =
            !bbr && sender.not_sent_low == 0 && !sender.cork && !sender.limited.refused && sender.path.is_sure();
        let clean = self.recovery == Recovery::Open && self.sacked | self.lost | self.retransmitted == 0;
        let send = sent_once
            && clean
            && !bbr
            && in_order
            && self.dsack.is_none()
            && pacing.rate() == 0
            && self.ttl.is_none()
            && self.tos == 0
            && sender.urgent.is_none();
        let ack = clean && loss.is_none() && self.control.is_none() && !pacing.is_wanted() && self.soft_error.is_none();
        FastPath::KNOWN
            .and(FastPath::SCHEDULE, schedule)
            .and(FastPath::RECEIVE, receive)
            .and(FastPath::SEND, send)
            .and(FastPath::SEND_SINGLE, send && write && !sender.limited.counts())
            .and(FastPath::ACK, ack)
    }
}
