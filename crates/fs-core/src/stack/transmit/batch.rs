//! A turn's packets for one interface, in three lists (mTCP section 4.2): control, ACK, data. Data
//! is sent round robin with a byte quota; an ACK that data carries is not sent on its own.
//! Datagrams come behind control packets, and take at most half of the rest while connections wait.

use crate::frame::{FramePool, IfaceId, TxFrame};
use crate::net::interface_queue::SEND_QUOTA;
use crate::net::neigh::PathState;
use crate::seq::SeqNum;
use crate::socket::event::{Event, Ready};
use crate::stack::{Stack, reroute};
use crate::tcb::Tcb;
use crate::tcb::deadlines::Deadlines;
use crate::tcb::flags::Flags;
use crate::tcb::send::segment::mark;
use crate::tcb::send::segmenter::Next;
use crate::time::Instant;
use crate::tx::build::{self, SegmentSpec};
use crate::tx::emit::emit_segment;
use crate::tx::run::Run;
use crate::wire::tcp::TcpFlags;
use alloc::vec::Vec;

/// Result of visiting a connection.
enum Visit {
    /// The connection has nothing more to send now.
    Done,
    /// The connection has used its quota, or the batch is full.
    Again,
    /// The pool is empty: no connection can send.
    PoolDry,
}

impl<P: FramePool> Stack<P> {
    /// Builds up to `budget` packets for `iface` and pushes them (chains contiguous) to `out`. Returns the
    /// number of packets.
    #[inline]
    pub fn tx_batch(&mut self, iface: IfaceId, budget: usize, out: &mut Vec<TxFrame>) -> usize {
        if self.tx_pending(iface) { self.fill_batch(iface, budget, out) } else { 0 }
    }

    /// A connection may send `bytes` by `iface` before the next one has its turn.
    pub fn set_send_quota(&mut self, iface: IfaceId, bytes: u32) {
        if let Some(queue) = self.net.queue_mut(iface) {
            queue.quota = bytes;
        }
    }

    fn fill_batch(&mut self, iface: IfaceId, budget: usize, out: &mut Vec<TxFrame>) -> usize {
        let mut sent = self.control_packets(iface, budget, out);
        let several = self.net.has_several_interfaces();
        let (acks, quota) = self.net.queue(iface).map_or((0, SEND_QUOTA), |queue| (queue.acks(), queue.quota));
        for _ in 0..acks {
            if sent >= budget {
                break;
            }
            let Some(index) = self.net.queue_mut(iface).and_then(|queue| queue.pop_ack()) else { break };
            if several && self.leaves_elsewhere(index, iface) {
                continue;
            }
            sent += self.visit_ack(index, out);
        }
        // Round robin until the batch is full or no connection can send: a single bulk flow fills
        // it alone.
        while sent < budget {
            let Some(index) = self.net.queue_mut(iface).and_then(|queue| queue.pop_data()) else { break };
            if several && self.leaves_elsewhere(index, iface) {
                continue;
            }
            // A visit may end early if only one packet of the budget is left.
            if sent + 1 < budget && self.send_single(index, out) {
                sent += 1;
                continue;
            }
            match self.visit_data(index, quota, budget, &mut sent, out) {
                Visit::Done => {}
                again => {
                    let Some(queue) = self.net.queue_mut(iface) else { break };
                    if matches!(again, Visit::PoolDry) {
                        queue.push_data_first(index);
                        break;
                    }
                    queue.push_data(index);
                }
            }
        }
        self.stats.tx_packets += sent as u64;
        sent
    }

    /// Returns true for an outdated entry: its connection has ended, and the connection that reuses
    /// the slot leaves by another interface, where it has entries of its own. Sent here, its
    /// packets would get the wrong link header.
    fn leaves_elsewhere(&self, index: u32, iface: IfaceId) -> bool {
        let Some(tcb) = self.slots.open(index) else { return false };
        let path = self.net.path(tcb.path);
        path.state() != PathState::Stale && path.iface() != iface
    }

    /// Returns true if `tx_batch` has work for `iface`.
    #[inline]
    pub fn tx_pending(&self, iface: IfaceId) -> bool {
        self.net.queue(iface).is_some_and(|queue| !queue.is_empty())
    }

    /// Returns true if everything queued for `iface` needs frames, and none is free. The queues are
    /// then polled once frames are freed, which nothing reports, instead of in each turn.
    pub fn tx_starved(&self, iface: IfaceId) -> bool {
        self.pool.available() == 0
            && self.net.queue(iface).is_some_and(|queue| !queue.is_empty() && !queue.has_packets())
    }

    fn control_packets(&mut self, iface: IfaceId, budget: usize, out: &mut Vec<TxFrame>) -> usize {
        let mut sent = 0;
        let Some(queue) = self.net.queue_mut(iface) else { return 0 };
        let mut send = |frame: TxFrame, sent: &mut usize| {
            self.stats.tx_bytes += frame.frame.len() as u64;
            *sent += !frame.frame.more() as usize;
            out.push(frame);
        };
        while sent < budget
            && let Some(frame) = queue.pop_control()
        {
            send(frame, &mut sent);
        }
        let left = budget - sent;
        let end = sent + if queue.has_connections() { left.div_ceil(2) } else { left };
        while sent < end
            && let Some(frame) = queue.pop_datagram()
        {
            send(frame, &mut sent);
        }
        if self.udp.has_blocked() && !queue.is_crowded() {
            self.wake_datagram_writers(Some(iface));
        }
        sent
    }

    /// Notifies the UDP sockets that wait to send by `iface`, or by any interface.
    #[cold]
    pub(crate) fn wake_datagram_writers(&mut self, iface: Option<IfaceId>) {
        self.udp.unblock(iface).for_each(|id| self.outbox.event(Event::Udp(id, Ready::WRITE)));
    }

    /// Sends the pure ACK that a connection owes, unless data will carry it.
    fn visit_ack(&mut self, index: u32, out: &mut Vec<TxFrame>) -> usize {
        let Some(tcb) = self.slots.open_mut(index) else { return 0 };
        if !tcb.flags.has(Flags::IN_ACK_LIST) {
            return 0;
        }
        if tcb.flags.has(Flags::ACK_NOW) && tcb.flags.has(Flags::IN_DATA_LIST) && tcb.may_carry_ack() {
            // The flag stays set: the data visit sends a pure ACK if no data can leave.
            tcb.flags.clear(Flags::IN_ACK_LIST);
            return 0;
        }
        tcb.flags.clear(Flags::IN_ACK_LIST);
        if !tcb.flags.has(Flags::ACK_NOW) {
            self.stats.acks_piggybacked += 1;
            return 0;
        }
        self.pure_ack(index, out)
    }

    fn pure_ack(&mut self, index: u32, out: &mut Vec<TxFrame>) -> usize {
        let before = out.len();
        if self.emit_bare(index, TcpFlags::ACK, None, Some(out)) {
            self.stats.acks_sent += 1;
        } else if let Some(tcb) = self.slots.open_mut(index) {
            // The pool is empty: the ACK is still owed and is sent when frames are free again.
            tcb.flags.set(Flags::IN_ACK_LIST);
            if let Some(queue) = self.net.queue_of(tcb.path) {
                queue.push_ack(index);
            }
        }
        out.len() - before
    }

    /// Builds a segment without payload for a connection: an ACK, or a probe one byte before
    /// SND.UNA (or at `seq`). It is pushed to `out` if that is given and the neighbour is known,
    /// otherwise to the control list. Returns false if the pool is empty.
    pub(crate) fn emit_bare(
        &mut self,
        index: u32,
        flags: TcpFlags,
        seq: Option<SeqNum>,
        out: Option<&mut Vec<TxFrame>>,
    ) -> bool {
        let ts = self.timestamp();
        let share = self.receive_share();
        let Self { slots, pool, net, stats, now, .. } = self;
        let Some((tcb, conn_stats)) = slots.open_and_stats(index) else { return false };
        let urgent = tcb.urgent_pointer(seq.unwrap_or(tcb.snd.nxt()));
        let seq = seq.unwrap_or(tcb.acceptable_seq());
        let flags = flags | tcb.echo_flags();
        let path = net.path(tcb.path);
        let known = path.state() == PathState::Known;
        let options = tcb.option_bytes(ts, true);
        let key = tcb.key();
        let spec = SegmentSpec {
            key: &key,
            seq,
            ack: tcb.rcv.nxt(),
            flags,
            window: tcb.offer_window(share),
            urgent,
            options: &options,
            ttl: tcb.ttl(),
            tos: tcb.tos(),
            flow_label: tcb.flow_label(),
            payload_len: 0,
            payload_sum: 0,
        };
        let Some(frame) = build::bare(pool, path, &spec) else { return false };
        tcb.blocks_told();
        tcb.ack_sent();
        conn_stats.segments_out = conn_stats.segments_out.wrapping_add(1);
        match out {
            Some(out) if known => {
                stats.tx_bytes += frame.frame.len() as u64;
                out.push(frame);
            }
            _ => net.send(pool, stats, tcb.path, *now, frame),
        }
        true
    }

    /// Sends a connection's data up to its quota.
    #[inline]
    fn visit_data(&mut self, index: u32, quota: u32, budget: usize, sent: &mut usize, out: &mut Vec<TxFrame>) -> Visit {
        let low_water = |tcb: &Tcb| tcb.ext.is_some() && !tcb.below_low_water();
        let was_full = self.slots.open(index).is_some_and(low_water);
        let visit = self.send_data(index, quota, budget, sent, out);
        let now = self.now;
        if was_full
            && let Some(tcb) = self.slots.open_mut(index)
            && tcb.writable()
            && tcb.state.can_send()
        {
            // TCP_NOTSENT_LOWAT: sending has made space.
            tcb.has_room_again(now);
            self.notify(index, crate::socket::event::Ready::WRITE);
        }
        visit
    }

    fn send_data(&mut self, index: u32, quota: u32, budget: usize, sent: &mut usize, out: &mut Vec<TxFrame>) -> Visit {
        let ts = self.timestamp();
        let share = self.receive_share();
        let Self { slots, net, store, now, .. } = self;
        if let Some(tcb) = slots.open_mut(index)
            && tcb.flags.has(Flags::IN_DATA_LIST)
            && (tcb.route_epoch != net.route_epoch() || net.path(tcb.path).state() == PathState::Stale)
        {
            tcb.flags.clear(Flags::IN_DATA_LIST);
            reroute(tcb, net, store, *now, index);
            if net.path(tcb.path).state() != PathState::Stale {
                self.schedule(index, crate::socket::event::Ready::default());
                return Visit::Done;
            }
            // No route to the destination. Segments are dropped and the timer retransmits them. If
            // the connection returned to the list without having sent, it would be visited
            // endlessly.
            tcb.flags.set(Flags::IN_DATA_LIST);
        }
        let Self { slots, pool, net, stats, store, config, now, turn, deadlines, .. } = self;
        let Some((tcb, conn_stats)) = slots.open_and_stats(index) else { return Visit::Done };
        if !tcb.flags.has(Flags::IN_DATA_LIST) {
            return Visit::Done;
        }
        tcb.tx.spill(store, tcb.snd.nxt());
        if !tcb.tx.is_empty() {
            conn_stats.busy(turn.tick);
        }
        tcb.end_idle(&config.tcp, config.tcp.initial_window, *now);
        // A turn ends in front of a segment for which the quota has no room: a link that merges gets whole runs.
        let mss = u32::from(tcb.mss);
        let mut left = quota.max(mss);
        let mut waits = false;
        let (timer_ran, mut segments) = (tcb.timer_runs(), 0u32);
        // Bytes since the end of the last burst.
        let mut run = 0;
        let mut bulk = Run::of(tcb, net.path(tcb.path), ts, turn.us, share);
        #[cfg(any(test, feature = "check"))]
        if self.no_fast_paths {
            bulk = None;
        }
        while let Some(bulk) = &mut bulk
            && *sent < budget
            && left >= mss
            && let Some(gone) = bulk.send(tcb, store, pool, stats, run, out)
        {
            if !tcb.timer_runs() {
                tcb.restart_timer(store, &config.tcp, *now);
            }
            conn_stats.sent_data(turn.tick);
            #[cfg(any(test, feature = "check"))]
            {
                self.fast_paths += 1;
            }
            run = if gone.ends { 0 } else { run + gone.len };
            *sent += 1;
            segments += 1;
            left = left.saturating_sub(gone.len);
        }
        let visit = loop {
            if *sent >= budget || left < mss {
                break Visit::Again;
            }
            let next = tcb.next_segment(store, pool);
            let segment_index = match next {
                Next::Nothing => break Visit::Done,
                Next::New(i) | Next::Again(i) => i,
            };
            if let Some(at) = tcb.pacing_wait(*now) {
                waits = true;
                queue_paced(tcb, deadlines, index, at);
                break Visit::Done;
            }
            let before = out.len();
            let len = store.segments[segment_index].len;
            let ends = matches!(next, Next::New(_)) && tcb.ends_burst(store, segment_index, run, *now);
            if ends && run > 0 {
                store.segments[segment_index].marks |= mark::PUSH;
            }
            run = if ends || matches!(next, Next::Again(_)) { 0 } else { run + len };
            if !emit_segment(tcb, store, pool, net, stats, segment_index, ts, share, *now, out) {
                break Visit::PoolDry;
            }
            tcb.sent(store, stats, &config.tcp, next, ts, turn.us, *now);
            conn_stats.sent_data(turn.tick);
            *sent += (out.len() > before) as usize;
            segments += 1;
            left = left.saturating_sub(len.max(1));
        };
        // A single segment has just started the timer itself; without any the probe's time is
        // unchanged.
        if segments > 1 || segments == 1 && timer_ran {
            tcb.put_off_probe(store, &config.tcp, *now);
        }
        if !matches!(visit, Visit::Done) {
            return visit;
        }
        tcb.flags.clear(Flags::IN_DATA_LIST);
        if !waits {
            tcb.record_limit(store, *now);
            tcb.persist_if_stuck(&config.tcp, *now);
        }
        self.deadlines.arm(tcb, index, self.now);
        if tcb.flags.has(Flags::ACK_NOW) && !tcb.flags.has(Flags::IN_ACK_LIST) {
            *sent += self.pure_ack(index, out);
        }
        Visit::Done
    }
}

/// Schedules the connection's next burst for `at`.
#[cold]
fn queue_paced(tcb: &mut Tcb, deadlines: &mut Deadlines, index: u32, at: Instant) {
    if let Some(ext) = tcb.ext.as_mut()
        && !core::mem::replace(&mut ext.pacing.queued, true)
    {
        deadlines.pace(at, index, tcb.generation());
    }
}
