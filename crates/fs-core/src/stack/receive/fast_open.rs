//! Server side of TCP Fast Open (RFC 7413): connections that the data of a SYN opens.

use crate::drop_reason::DropReason;
use crate::error::Error;
use crate::flow::FlowKey;
use crate::frame::{FramePool, RxFrame};
use crate::rx::owner::Owner;
use crate::rx::parse::Segment;
use crate::rx::syn::SynEntry;
use crate::socket::options::TcpOptions;
use crate::stack::Stack;
use crate::tcb::Slot;
use crate::tcb::connection_stats::ConnectionStats;
use crate::tcb::deadlines::Token;
use crate::tcb::flags::Flags;
use crate::tcb::open::Opening;
use crate::tcb::timers::handshake_wait;
use crate::wire::options::Cookie;
use crate::wire::tcp::TcpFlags;

impl<P: FramePool> Stack<P> {
    /// Returns the cookie that this client may use next time (RFC 7413 4.1.2). The flow's ports are
    /// ignored.
    pub fn fast_open_cookie(&self, key: &FlowKey) -> Cookie {
        self.fast_open.current(key, self.now)
    }

    /// Returns true while the listener may open connections by data in a SYN. RFC 7413 5.1: bounds
    /// what replayed cookies from spoofed addresses can open.
    pub(crate) fn may_open_fast(&mut self, listener: u32) -> bool {
        self.listeners.at_mut(listener).is_some_and(|l| l.fast_pending < l.fast_open)
    }

    /// Opens a connection by a SYN with a valid cookie: its data is delivered now, and the
    /// handshake ends later.
    pub(crate) fn open_fast(
        &mut self,
        mut syn: SynEntry,
        segment: &Segment,
        hash: u64,
        frames: &mut [RxFrame],
        renew: bool,
    ) {
        let options = TcpOptions { device: syn.device, ..self.listener_options(syn.listener) };
        let opening = Opening {
            key: syn.key,
            generation: 0,
            iss: syn.iss,
            irs: syn.irs,
            peer: syn.options,
            shift: syn.shift,
            window: syn.window,
            path: syn.path,
            route_epoch: syn.route_epoch,
            sample_from_us: None,
            retries: 0,
            ecn: syn.ecn,
            options: &options,
            is_plain: false,
        };
        let mut tcb = opening.tcb(&self.config.tcp, &self.net, self.now, |key| self.fast_open.flow_label(key));
        tcb.flags.set(Flags::UNACCEPTED | Flags::SYN_RECEIVED);
        tcb.ext_mut().recv.syn_data = segment.payload_len > 0;
        let Some(slot) = self.slots.insert(|generation| {
            tcb.set_generation(generation);
            Slot::Open(tcb)
        }) else {
            return self.discard(frames, DropReason::NoSlots);
        };
        *self.slots.conn_stats_mut(slot) = ConnectionStats::new(syn.iss, syn.irs, 1, 0, self.now);
        if self.table.insert(hash, Owner::Connection(slot).value()).is_err() {
            self.slots.remove(slot);
            return self.discard(frames, DropReason::NoSlots);
        }
        syn.slot = slot;
        let listener = syn.listener;
        let index = self.handshakes.insert(syn);
        let generation = self.handshakes.entry(index).generation;
        if let Some(tcb) = self.slots.open_mut(slot) {
            tcb.ext_mut().recv.handshake = Some((index, generation));
        }
        if let Some(listener) = self.listeners.at_mut(listener) {
            listener.fast_pending += 1;
        }
        let wait = handshake_wait(self.config.tcp.rto_initial, 0, self.config.tcp.rto_max);
        self.deadlines.wake(self.now + wait, Token::Handshake { index, generation });
        self.stats.accepted += 1;
        segment.key.probe(|ends| fs_probe::established(ends, true));
        self.enqueue_accept(listener, slot);
        // The SYN itself is processed; the rest is processed like any segment's text.
        let flags = segment.flags.without(TcpFlags::SYN);
        self.on_text(slot, &Segment { seq: segment.seq + 1, flags, ..*segment }, hash, frames);
        let grant = renew.then(|| self.fast_open_cookie(&segment.key));
        self.send_syn_ack(index, grant);
        if let Some(tcb) = self.slots.open_mut(slot) {
            // The SYN-ACK carries this ACK.
            tcb.ack_sent();
        }
    }

    /// Retransmits the SYN-ACK of a connection that Fast Open has opened, or frees its entry.
    pub(crate) fn retry_fast(&mut self, index: u32, slot: u32) {
        let SynEntry { key, retries, generation, listener, iss, .. } = *self.handshakes.entry(index);
        let waits = |t: &crate::tcb::Tcb| {
            t.flags.has(Flags::SYN_RECEIVED)
                && t.is(&key)
                && t.ext.as_ref().is_some_and(|e| e.recv.handshake == Some((index, generation)))
        };
        if !self.slots.open(slot).is_some_and(waits) {
            // Reset since: it was counted until now, so that resets cannot make space (RFC 7413
            // 5.1).
            return self.end_fast(index, listener);
        }
        let tcp = &self.config.tcp;
        if retries >= tcp.syn_ack_retries {
            self.stats.timeouts += 1;
            self.kill(slot, Some(Error::TimedOut), false);
            return self.end_fast(index, listener);
        }
        let wait = handshake_wait(tcp.rto_initial, retries + 1, tcp.rto_max);
        self.handshakes.entry_mut(index).retries += 1;
        self.stats.retransmits += 1;
        key.probe(|ends| fs_probe::retransmit(ends, iss.0, 0));
        self.deadlines.wake(self.now + wait, Token::Handshake { index, generation });
        self.send_syn_ack(index, None);
    }

    fn end_fast(&mut self, index: u32, listener: u32) {
        self.handshakes.release(index);
        if let Some(listener) = self.listeners.at_mut(listener) {
            listener.fast_pending = listener.fast_pending.saturating_sub(1);
        }
    }

    /// Handles a retransmission of the client's SYN.
    pub(crate) fn repeat_fast(&mut self, slot: u32, segment: &Segment) {
        let handshake = self.slots.open(slot).and_then(|t| t.ext.as_ref()).and_then(|e| e.recv.handshake);
        if let Some((index, generation)) = handshake
            && self.handshakes.current(index, generation).is_some_and(|e| e.irs == segment.seq)
            && self.may_challenge()
        {
            self.send_syn_ack(index, None);
        }
    }

    /// Handles the final ACK of the handshake.
    #[cold]
    pub(crate) fn confirm_fast(&mut self, slot: u32) {
        let Some(tcb) = self.slots.open_mut(slot) else { return };
        let Some((index, generation)) = tcb.ext_mut().recv.handshake.take() else { return };
        let Some(entry) = self.handshakes.current(index, generation) else { return };
        let (listener, first, sent_us) = (entry.listener, entry.retries == 0, entry.sent_us);
        if first {
            let now_us = crate::time::micros(self.now);
            tcb.rtt.sample(now_us.wrapping_sub(sent_us));
        }
        self.end_fast(index, listener);
    }
}
