//! The receiving half: bytes stay in the frames that the link delivered, chained to their
//! connection ([`crate::frame_queue`]), until the application copies or takes them.

pub(crate) mod ack;
pub(crate) mod autotune;
mod buffer;
pub(crate) mod reassembly;
pub(crate) mod text;
pub(crate) mod urgent;

use crate::seq::SeqNum;
use crate::time::{Duration, Instant};

/// Receiving state that only unusual connections need; in the extension.
#[derive(Debug, Default)]
pub(crate) struct Recv {
    /// SO_RCVBUF was set: no auto-tuning.
    pub(crate) buffer_fixed: bool,
    /// SO_OOBINLINE.
    pub(crate) oob_inline: bool,
    /// TCP_MAXSEG; 0: not set.
    pub(crate) max_segment: u16,
    /// TCP_WINDOW_CLAMP in bytes; 0: none.
    pub(crate) clamp: u32,
    /// SO_RCVLOWAT in bytes; 0 and 1 are equivalent.
    pub(crate) low: u32,
    /// When a segment outside of the window was last answered, in milliseconds; 0: never.
    last_invalid_ms: u32,
    /// The latest urgent byte that was not read past.
    pub(crate) urgent: Option<Urgent>,
    /// Frames of out-of-order data.
    pub(crate) held_frames: u32,
    /// Number of segments received out of order.
    pub(crate) out_of_order: u32,
    /// The SYN's data was accepted (RFC 7413).
    pub(crate) syn_data: bool,
    /// The pending handshake (index and generation) of a connection that Fast Open has opened.
    pub(crate) handshake: Option<(u32, u32)>,
}

impl Recv {
    /// Returns the upper bound of the window.
    #[inline]
    pub(crate) fn window_clamp(&self) -> u32 {
        if self.clamp == 0 { u32::MAX } else { self.clamp }
    }

    /// Returns true if an invalid segment without data may be answered: the last answer is long
    /// enough ago. Two ends that each reject the other's segments would otherwise reply to each
    /// other endlessly (Linux: `tcp_oow_rate_limited`).
    pub(crate) fn may_answer_invalid(&mut self, now: Instant, interval: Duration) -> bool {
        let now_ms = (now.as_millis() as u32).max(1);
        let since = now_ms.wrapping_sub(self.last_invalid_ms) as u128;
        if self.last_invalid_ms != 0 && since < interval.as_millis() {
            return false;
        }
        self.last_invalid_ms = now_ms;
        true
    }
}

/// The urgent byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Urgent {
    /// The urgent byte's sequence number.
    pub(crate) at: SeqNum,
    /// `tcp_recv_urgent` has returned it.
    pub(crate) taken: bool,
    /// PRIORITY was reported after the byte had arrived.
    told: bool,
}
