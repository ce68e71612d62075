//! Effects of time: timers, delayed ACKs, the end of TIME-WAIT, neighbours.

use crate::error::Error;
use crate::frame::FramePool;
use crate::socket::event::Ready;
use crate::stack::Stack;
use crate::tcb::deadlines::{Id, Token};
use crate::tcb::flags::Flags;
use crate::tcb::send::path::R1;
use crate::tcb::timer_kind::TimerKind;
use crate::tcb::timers::{Due, give_up_after};
use crate::tcb::{Slot, Tcb};
use crate::time::Instant;
use crate::timer::tick::{current_tick, tick_before};
use crate::wire::tcp::TcpFlags;

/// Number of connections whose cache misses overlap: as many as packets in a batch.
const TOGETHER: usize = 64;

impl<P: FramePool> Stack<P> {
    /// Runs what is due at `now`.
    pub fn tick(&mut self) {
        self.end_delays();
        self.end_pacing_waits();
        self.end_time_waits();
        let mut due = core::mem::take(&mut self.due);
        self.deadlines.expire(self.now, &mut due);
        if !due.is_empty() {
            self.run_timers(&due);
            due.clear();
        }
        self.due = due;
        if self.net.next_deadline(self.now).is_some_and(|at| at <= self.now) {
            self.request_neighbours();
        }
        if !self.frame_waiters.is_empty() {
            self.wake_frame_waiters();
        }
    }

    fn run_timers(&mut self, due: &[Token]) {
        for tokens in due.chunks(TOGETHER) {
            for token in tokens {
                if let Token::Connection { index, .. } = token {
                    self.slots.prefetch_slot(*index);
                }
            }
            for token in tokens {
                match *token {
                    Token::Connection { index, generation } => self.on_wheel_entry(index, generation),
                    Token::Handshake { index, generation } => self.retry_handshake(index, generation),
                }
            }
        }
    }

    /// Returns the earliest time at which `tick` has something to do; `None` if only other calls
    /// can cause work.
    pub fn next_deadline(&self) -> Option<Instant> {
        let now = |waits: bool| waits.then_some(self.now);
        let [timer, delay, burst] = self.deadlines.next();
        [
            timer,
            delay,
            burst,
            self.waits_for_answer().then(|| self.delay_end()),
            self.time_waits.next_deadline(),
            self.net.next_deadline(self.now),
            now(self.frame_waiters.is_due(&self.store) && self.pool.available() > 0),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns the time at which an ACK delayed at `now` is sent.
    fn delay_end(&self) -> Instant {
        self.now + self.config.tcp.delayed_ack
    }

    /// Returns true if an ACK was delayed in this turn, and no data has carried it.
    fn waits_for_answer(&self) -> bool {
        let open = |&(index, generation): &Id| self.slots.open(index).filter(|t| t.generation() == generation);
        self.deadlines.new_delays().iter().any(|id| open(id).is_some_and(Tcb::delay_counts))
    }

    /// Ends the turn in which ACKs were delayed.
    #[inline(never)]
    pub(super) fn keep_delays(&mut self) {
        let until = self.delay_end();
        let Self { slots, deadlines, .. } = self;
        deadlines.keep_delays(until, |(index, generation)| {
            let Some(tcb) = slots.open_mut(index).filter(|tcb| tcb.generation() == generation) else { return false };
            let counts = tcb.delay_counts();
            if !counts {
                tcb.flags.clear(Flags::IN_DELAY_QUEUE);
            }
            counts
        });
    }

    fn end_delays(&mut self) {
        while self.deadlines.has_ended_delay(self.now) {
            let ended = self.deadlines.ended_delays(self.now, TOGETHER);
            let count = ended.inspect(|(index, _)| self.slots.prefetch_slot(*index)).count();
            for _ in 0..count {
                let Some((index, generation)) = self.deadlines.pop_delay(self.now) else { return };
                let Some(tcb) = self.slots.open_mut(index).filter(|t| t.generation() == generation) else { continue };
                tcb.flags.clear(Flags::IN_DELAY_QUEUE);
                if tcb.flags.has(Flags::ACK_DELAYED) {
                    tcb.delay_over();
                    self.schedule(index, Ready::default());
                }
            }
        }
    }

    /// Resumes connections whose next burst may leave.
    fn end_pacing_waits(&mut self) {
        while let Some((index, generation)) = self.deadlines.pop_paced(self.now) {
            let now = self.now;
            let Some(tcb) = self.slots.open_mut(index).filter(|t| t.generation() == generation) else { continue };
            tcb.pacing_wake(now);
            self.schedule(index, Ready::default());
        }
    }

    fn end_time_waits(&mut self) {
        while let Some(index) = self.time_waits.pop_ended(self.now) {
            self.forget_time_wait(index);
        }
    }

    /// Handles a connection's due wheel entry. Its deadline may have moved since.
    fn on_wheel_entry(&mut self, index: u32, generation: u32) {
        if self.slots.generation(index) != generation {
            return;
        }
        let now = self.now;
        let tcb = match self.slots.slot_mut(index) {
            Slot::Open(tcb) => tcb,
            Slot::SynSent(_) => return self.retry_connect(index),
            Slot::Dead(_) | Slot::Free { .. } => return,
        };
        if tcb.armed_at() == 0 || tick_before(current_tick(now), tcb.armed_at()) {
            // A later entry than the armed one.
            return;
        }
        tcb.disarm();
        match tcb.due(now) {
            None => self.deadlines.arm(tcb, index, now),
            Some(Due::Keepalive) => self.on_keepalive(index),
            Some(Due::Timer(kind)) => self.on_timer(index, kind),
        }
    }

    fn on_timer(&mut self, index: u32, kind: TimerKind) {
        let Self { slots, store, stats, config, now, .. } = self;
        let Some(tcb) = slots.open_mut(index) else { return };
        tcb.tx.spill(store, tcb.snd.nxt());
        match kind {
            TimerKind::FinWait2 => {
                // The peer never closed; all our data was sent.
                stats.timeouts += 1;
                return self.kill(index, None, false);
            }
            TimerKind::Persist => return self.on_persist_timer(index),
            _ if tcb.snd.una() == tcb.snd.nxt() => tcb.clear_timer(),
            TimerKind::Probe => tcb.on_probe_timeout(store, &config.tcp, *now),
            TimerKind::Reorder => tcb.on_reorder_timeout(store, stats, &config.tcp, *now),
            TimerKind::Retransmit | TimerKind::Idle => return self.on_retransmission_timer(index),
        }
        self.schedule(index, Ready::default());
    }

    fn on_persist_timer(&mut self, index: u32) {
        let Self { slots, stats, config, now, .. } = self;
        let Some(tcb) = slots.open_mut(index) else { return };
        let orphan = tcb.flags.has(Flags::ORPHAN);
        // A peer that answers probes indefinitely occupies memory that no application waits for. An
        // orphan is therefore ended once the interval between probes has reached its maximum, after
        // some minutes (Linux: `tcp_probe_timer`, `alive`).
        let held = orphan && tcb.rto(&config.tcp) >= config.tcp.rto_max;
        let unanswered = tcb.window_probes() >= give_up_after(config.tcp.retries, orphan);
        if unanswered || held || tcb.closed_too_long(&config.tcp, *now) {
            return self.time_out(index);
        }
        if tcb.on_persist_timeout(&config.tcp, *now) {
            stats.window_probes += 1;
            let probe = tcb.snd.una() - 1;
            self.emit_bare(index, TcpFlags::ACK, Some(probe), None);
        }
        self.schedule(index, Ready::default());
    }

    fn on_retransmission_timer(&mut self, index: u32) {
        let Self { slots, store, stats, config, now, net, frame_waiters, .. } = self;
        let denies_service = store.is_scarce() && frame_waiters.starve_for_long(slots, *now);
        let Some(tcb) = slots.open_mut(index) else { return };
        let limit = give_up_after(config.tcp.retries, tcb.flags.has(Flags::ORPHAN) || denies_service);
        if tcb.gives_up(&config.tcp, limit, *now) || tcb.window_gone_too_long(&config.tcp, *now) {
            return self.time_out(index);
        }
        tcb.on_retransmission_timeout(store, stats, &config.tcp, *now);
        if tcb.loss().is_some_and(|l| l.time_outs == R1) {
            // RFC 1122 4.2.3.5 (a): the network layer looks for another path, first the route and
            // then the neighbour.
            tcb.route_epoch = net.route_epoch().wrapping_sub(1);
            net.want(tcb.path);
        }
        self.schedule(index, Ready::default());
    }

    fn time_out(&mut self, index: u32) {
        self.stats.timeouts += 1;
        let soft = self.slots.open(index).and_then(|t| t.ext.as_ref()).and_then(|e| e.soft_error);
        self.kill(index, Some(soft.unwrap_or(Error::TimedOut)), false);
    }

    fn on_keepalive(&mut self, index: u32) {
        let Some(tcb) = self.slots.open_mut(index) else { return };
        let Some(keepalive) = tcb.ext.as_ref().and_then(|e| e.keepalive) else { return };
        let ext = tcb.ext_mut();
        // TCP_USER_TIMEOUT replaces the count, as on Linux, measured from the last received
        // segment.
        let over = match ext.sender.user_timeout {
            Some(limit) => ext.keepalive_probes > 0 && self.now.since(ext.last_received) >= limit,
            None => ext.keepalive_probes >= keepalive.count.into(),
        };
        if over {
            // The peer may only have lost its path to us: notify it by a reset (RFC 9293 3.8.4, as
            // Linux).
            self.send_reset_of(index);
            return self.time_out(index);
        }
        // A late probe (nothing ran for a while, or the clock jumped) postpones the next ones: sent
        // all at once, they would all be unanswered.
        let waits = keepalive.idle.saturating_add(keepalive.interval.saturating_mul(ext.keepalive_probes));
        ext.last_received = ext.last_received.max(self.now - waits);
        ext.keepalive_probes += 1;
        let probe = tcb.snd.una() - 1;
        self.stats.keepalive_probes += 1;
        self.emit_bare(index, TcpFlags::ACK, Some(probe), None);
        self.schedule(index, Ready::default());
    }

    /// Notifies as many connections as there are frames for, each for its share. A connection that
    /// holds its share keeps waiting.
    fn wake_frame_waiters(&mut self) {
        self.frame_waiters.begin_turn();
        let mut look = self.frame_waiters.look(&self.store, self.pool.available(), self.pool.payload_room());
        while let Some(index) = self.frame_waiters.next(&mut look, &self.store, &mut self.slots) {
            self.notify(index, Ready::WRITE);
        }
    }
}
