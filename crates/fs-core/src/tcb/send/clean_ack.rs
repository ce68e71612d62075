//! ACKs after trouble: the connection remembers what it has learnt of losses, but nothing is SACKed, lost or sent again, so
//! that the slow path of [`super::recovery`] would only find that out.

use super::recovery::{AckInput, Acknowledged, Trace};
use super::sack::Sacked;
use super::store::TxStore;
use crate::config::TcpConfig;
use crate::frame::FramePool;
use crate::tcb::Tcb;
use crate::tcb::extension::{Ext, Recovery};
use crate::tcb::flags::Flags;
use crate::tcb::timer_kind::TimerKind;
use crate::time::micros;

impl Ext {
    /// Nothing is being repaired, and no verdict is open.
    fn is_clean(&self) -> bool {
        self.recovery == Recovery::Open
            && self.sacked | self.lost | self.retransmitted == 0
            && self.loss.as_deref().is_none_or(|l| !l.probe.due && l.probe.end.is_none())
    }
}

impl Tcb {
    /// The ACK moves SND.UNA and says nothing else, and nothing is amiss.
    #[inline]
    pub(super) fn is_clean(&self, input: &AckInput<'_>) -> bool {
        let behind = |e: &Ext| e.loss.as_deref().and_then(|l| l.fack).is_none_or(|f| f.at_or_before(self.snd.una()));
        input.ack != self.snd.una()
            && input.sack.is_empty()
            && !input.ece
            && self.flags.has(Flags::SACK)
            && !self.flags.timer_is(TimerKind::Reorder)
            && self.ext.as_ref().is_some_and(|e| e.is_clean() && behind(e))
    }

    /// As `on_ack_slow_path`, where [`Tcb::is_clean`].
    #[inline(never)]
    pub(super) fn on_clean_ack<P: FramePool>(
        &mut self,
        store: &mut TxStore,
        pool: &mut P,
        config: &TcpConfig,
        delivered: &mut u32,
        input: &AckInput<'_>,
    ) -> bool {
        let (now_us, flight_before) = (micros(input.now), self.flight());
        let advance = input.ack.since(self.snd.una());
        if let Some(ext) = self.ext.as_mut() {
            ext.soft_error = None;
            if let Some(loss) = ext.loss.as_deref_mut() {
                (loss.time_outs, loss.first_time_out) = (0, None);
                // Places of segments that are gone must not seem to hold again when sequence numbers have gone round.
                if loss.fack.is_some() || loss.resend.is_some() || loss.rack.has_cursors() {
                    ext.clear_board();
                }
            }
        }
        let mut trace = Trace::default();
        self.model_begin(store, input.ack, input.now);
        let acked = self.tx.acknowledge(store, pool, input.ack, |segment| trace.see(segment));
        *delivered = delivered.wrapping_add(acked.segments);
        self.snd.acknowledge(input.ack);
        self.dup_acks = 0;
        self.follow_trace(&trace, now_us, &mut Acknowledged { echo: input.echo, ..Acknowledged::default() });
        let rtt_us = self.sample_round_trip(&trace, &Sacked::default(), input.echo, now_us);
        self.grow_window(config, advance, flight_before, rtt_us, input.now);
        self.model_end(input.now);
        self.time_after_ack(store, config, input.now, true, acked.sample_us, None);
        acked.fin
    }
}

#[cfg(test)]
pub(crate) mod tests;
