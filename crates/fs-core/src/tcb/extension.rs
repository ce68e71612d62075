//! Extension of a control block: an IPv6 connection's addresses, which are small and always
//! present, and the [`Ext`], which is large and which most connections never need. One pointer for
//! both keeps the control block at two cache lines.

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
    /// The window was reduced for an ECN echo, until `high` is acknowledged: at most once for each
    /// window of data.
    Cwr { high: SeqNum },
    /// After a timeout, until `high` is acknowledged.
    Loss { high: SeqNum },
}

impl Recovery {
    /// Returns the sequence number whose acknowledgment ends the phase.
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
    /// State of loss recovery, allocated at the first sign of loss.
    pub(crate) loss: Option<Box<Loss>>,
    /// Sender's part.
    pub(crate) sender: Sender,
    /// Bytes of the send queue that the peer has SACKed.
    pub(crate) sacked: u32,
    /// RACK.segs_sacked: the number of SACKed segments; 0 without SACK.
    pub(crate) sacked_segments: u32,
    /// Bytes marked lost and not SACKed.
    pub(crate) lost: u32,
    /// Bytes retransmitted, and neither acknowledged nor marked lost since.
    pub(crate) retransmitted: u32,
    pub(crate) pacing: cc::pacing::Pacing,
    pub(crate) hystart: cc::hystart::HyStart,
    /// Congestion control state: BBR's from the start, other algorithms' from the first loss on.
    pub(crate) control: Option<cc::Control>,
    /// Data received out of order.
    pub(crate) out_of_order: OutOfOrderQueue,
    /// Position of the peer's FIN, if it arrived before missing data.
    pub(crate) fin_at: Option<SeqNum>,
    /// Bytes in `out_of_order`.
    pub(crate) held: u32,
    /// RFC 2883: the duplicate range to report in the next ACK.
    pub(crate) dsack: Option<(SeqNum, SeqNum)>,
    pub(crate) keepalive: Option<Keepalive>,
    /// Unanswered probes. With TCP_USER_TIMEOUT there is no limit to their number.
    pub(crate) keepalive_probes: u32,
    /// Tick of a wheel entry of this connection that is later than the armed one, or 0: it can be
    /// armed again.
    pub(crate) later_entry: u32,
    /// Time of the last received segment, for keepalive.
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
    /// Receiver's part.
    pub(crate) recv: Recv,
}

/// Fast paths that need no access to the [`Ext`], since nothing in it affects them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FastPath(u8);

impl FastPath {
    /// Deadlines, and retransmission.
    pub(crate) const SCHEDULE: FastPath = FastPath(1);
    /// Receiving in-order segments, except for keepalive.
    pub(crate) const RECEIVE: FastPath = FastPath(2);
    /// Sending new segments, and building their headers.
    pub(crate) const SEND: FastPath = FastPath(4);
    /// Sending the only unsent segment: as `SEND`, and the notes made once everything has been
    /// sent.
    pub(crate) const SEND_SINGLE: FastPath = FastPath(8);
    /// An ACK of all outstanding data, for a sender that is not limited by its window.
    pub(crate) const ACK: FastPath = FastPath(16);
    /// The bits are valid: the [`Ext`] has not changed since they were computed.
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

/// The pointer of a control block. Its methods behave like those of an `Option<Box<Ext>>`.
#[derive(Debug, Default)]
pub(crate) struct Extension(Option<Box<Parts>>);

#[derive(Debug, Default)]
struct Parts {
    addresses: Addresses,
    rare: Option<Box<Ext>>,
    /// Fast paths that `rare` allows; none once it may have changed.
    fast_paths: FastPath,
}

impl Parts {
    #[cold]
    #[inline(never)]
    fn look(&mut self) {
        self.fast_paths = self.now();
    }

    fn now(&self) -> FastPath {
        self.rare.as_ref().map_or(FastPath::ALL, |rare| rare.fast_paths())
    }
}

impl Extension {
    /// Makes the extension of a new connection; `addresses` for IPv6.
    pub(crate) fn new(addresses: Option<Addresses>) -> Self {
        Self(addresses.map(|addresses| Box::new(Parts { addresses, ..Parts::default() })))
    }

    /// Prefetches the data behind the pointer.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let Some(parts) = &self.0 {
            fs_prefetch::line(&parts.addresses);
            fs_prefetch::line(&parts.fast_paths);
        }
    }

    /// Returns the IPv6 addresses; zeros for IPv4.
    #[inline]
    pub(crate) fn addresses(&self) -> Addresses {
        self.0.as_ref().map_or_else(Addresses::default, |parts| parts.addresses)
    }

    /// Returns the flow label of RFC 6437; zero for IPv4.
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

    /// Like [`Extension::as_mut`], for a change on which no fast path depends.
    #[inline]
    pub(crate) fn as_mut_beside_fast_paths(&mut self) -> Option<&mut Ext> {
        self.0.as_mut()?.rare.as_deref_mut()
    }

    /// Returns true if the fast path `what` may be taken, as it may without an [`Ext`].
    #[inline(always)]
    pub(crate) fn allows(&mut self, what: FastPath) -> bool {
        let Some(parts) = self.0.as_mut() else { return true };
        if !parts.fast_paths.has(FastPath::KNOWN) {
            parts.look();
        }
        debug_assert_eq!(parts.fast_paths, parts.now(), "the extension has changed");
        parts.fast_paths.has(what)
    }

    /// Like [`Extension::allows`], but returns false if the result is not cached.
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

    /// Returns the [`Ext`], and allocates it if there is none.
    #[inline]
    pub(crate) fn get_or_make(&mut self) -> &mut Ext {
        let parts = self.0.get_or_insert_default();
        parts.fast_paths = FastPath::default();
        parts.rare.get_or_insert_default()
    }

    /// Removes and returns the [`Ext`]; addresses stay.
    pub(crate) fn take(&mut self) -> Option<Box<Ext>> {
        let parts = self.0.as_mut()?;
        parts.fast_paths = FastPath::default();
        parts.rare.take()
    }
}

impl Ext {
    /// Returns the fast paths that this extension does not affect: see each fast path's conditions.
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
