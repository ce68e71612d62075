//! SACK blocks of an ACK below SND.UNA, which was overtaken by a later one.

use super::recovery::Acknowledged;
use super::sack::duplicate_block;
use super::store::TxStore;
use crate::config::TcpConfig;
use crate::seq::SeqNum;
use crate::stats::Stats;
use crate::tcb::Tcb;
use crate::tcb::extension::Recovery;
use crate::time::{Instant, micros};

impl Tcb {
    /// Like [`Tcb::on_ack`]'s slow path, for an `ack` below SND.UNA. It yields no round-trip
    /// sample: it was in transit for longer than ACKs sent after it.
    #[cold]
    #[allow(clippy::too_many_arguments, reason = "the connection's core, and the ACK")]
    pub(crate) fn on_old_ack(
        &mut self,
        store: &mut TxStore,
        stats: &mut Stats,
        config: &TcpConfig,
        delivered: &mut u32,
        ack: SeqNum,
        sack: &[(SeqNum, SeqNum)],
        now: Instant,
    ) {
        self.tx.spill(store, self.snd.nxt());
        let duplicate = duplicate_block(sack, ack);
        let mut facts = Acknowledged { duplicate, ..Acknowledged::default() };
        self.model_begin(store, self.snd.una(), now);
        let sacked = self.mark_sacked(store, sack, None, micros(now));
        *delivered = delivered.wrapping_add(sacked.segments);
        self.account_sacked(&sacked, &mut facts, stats);
        self.take_duplicate(&facts);
        let began = self.may_begin();
        let wait_us = self.update_recovery(store, stats, config, &facts, now);
        if matches!(self.recovery(), Recovery::Fast { .. }) {
            if began {
                self.apply_prr(facts.delivered, false);
            } else if let Some(loss) = self.loss_if_any() {
                // The window stays: bytes that have left the network make space in it.
                loss.prr.delivered = loss.prr.delivered.saturating_add(facts.delivered);
            }
        }
        self.model_end(now);
        self.time_after_ack(store, config, now, false, None, wait_us);
    }
}
