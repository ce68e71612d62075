//! Header prediction: the next segment of an open connection is nearly always the expected one.
//! Each unusual property is compared once, and an expected segment is accepted without the single
//! steps of RFC 9293 3.10.7.4 (Jacobson 1990; Linux `tcp_rcv_established`). All others take the
//! slow path of [`crate::tcb::input`], which would have the same result.

use crate::frame::{FramePool, RxFrame};
use crate::rx::parse::Segment;
use crate::seq::SeqNum;
use crate::slab::NIL;
use crate::socket::event::Ready;
use crate::stack::Stack;
use crate::tcb::extension::FastPath;
use crate::tcb::flags::Flags;
use crate::tcb::recv::text::COALESCE;
use crate::tcb::send::recovery::AckInput;
use crate::tcb::send::store::TxStore;
use crate::tcb::{State, Tcb};
use crate::timer::tick::Turn;
use crate::wire::options::TIMESTAMPS_LEN;
use crate::wire::tcp::TcpFlags;

/// Flags that exclude a connection from prediction.
const SLOW_PATH: Flags = Flags::ORPHAN.with(Flags::RARE_TIMER).with(Flags::ECN).with(Flags::SYN_RECEIVED);

impl<P: FramePool> Stack<P> {
    /// Accepts a segment if it is the expected one. Otherwise returns false without any effect.
    #[inline(always)]
    pub(crate) fn predicted(&mut self, index: u32, segment: &Segment, frames: &mut [RxFrame]) -> bool {
        #[cfg(any(test, feature = "check"))]
        if self.no_fast_paths {
            return false;
        }
        let [rx] = frames else { return false };
        let held = self.nodes.len();
        let Self {
            slots, pool, nodes, store, stats, config, net, receive_frames, turn, now, ts_clock, ts_offset, ..
        } = self;
        let Some((tcb, conn_stats)) = slots.open_and_stats(index) else { return false };
        let (len, queued) = (segment.payload_len, tcb.rx.bytes);
        let acked = segment.ack.since(tcb.snd.una());
        let stamped = tcb.flags.has(Flags::TIMESTAMPS);
        let expected = segment.flags.without(TcpFlags::PSH.with(TcpFlags::FIN)) == TcpFlags::ACK
            && segment.seq == tcb.rcv.nxt()
            && usize::from(segment.opt_len) == if stamped { TIMESTAMPS_LEN } else { 0 }
            && tcb.state == State::Established
            && !tcb.flags.any(SLOW_PATH)
            && tcb.ext.allows(FastPath::RECEIVE)
            && acked <= tcb.snd.outstanding()
            && len <= tcb.rcv_wnd()
            // A duplicate ACK requires outstanding data.
            && (len | acked != 0 || segment.flags.fin() || tcb.snd.una() == tcb.snd.nxt())
            && tcb.route_epoch == net.route_epoch();
        if !expected {
            return false;
        }
        let fin = segment.flags.fin();
        // Requires enough free frames for one per segment, without waste. A FIN with payload is
        // rare.
        if len > 0 && (fin || held >= *receive_frames / 2 || queued > 0 && len <= COALESCE) {
            return false;
        }
        if stamped {
            match segment.ts {
                Some(ts) if !tcb.ts_recent.is_after(ts.val) => {
                    // RFC 7323 4.3 (2).
                    if tcb.owes_no_bytes() {
                        tcb.ts_recent.set(ts.val);
                    }
                }
                _ => return false,
            }
        }
        let was_writable = tcb.writable();
        if !tcb.ext.is_known_to_allow(FastPath::SCHEDULE) {
            tcb.record_activity(*now);
        }
        let window = u32::from(segment.window) << tcb.snd_shift();
        let whole = acked > 0 && tcb.take_whole_ack(store, pool, segment.ack, *turn);
        conn_stats.received(len, turn.tick);
        if whole {
            conn_stats.delivered = conn_stats.delivered.wrapping_add(1);
        } else if acked > 0 {
            let echo = segment.ts.map(|ts| ts.ecr);
            let bare = len == 0 && !fin && window == tcb.snd.wnd();
            let input = AckInput { ack: segment.ack, bare, sack: &[], ece: false, echo, now: *now };
            tcb.on_ack(store, pool, stats, &config.tcp, &mut conn_stats.delivered, input);
        }
        conn_stats.idle_if(tcb.tx.is_empty(), turn.tick);
        if let Some(ts) = segment.ts
            && (len > 0 || fin)
        {
            conn_stats.tune.sample(ts_clock, || ts_clock.value(*now, *ts_offset), ts.ecr);
        }
        if acked > 0 || tcb.snd.is_window_newer(segment.seq, window) {
            tcb.snd.set_window(segment.seq, window, segment.window);
        }
        let mut ready = if len > 0 && queued == 0 { Ready::READ } else { Ready::default() };
        if !was_writable {
            tcb.grow_send_buffer(store, config.tcp.send_buffer);
            if tcb.writable() {
                tcb.has_room_again(*now);
                ready |= Ready::WRITE;
            }
        }
        let mut frame = rx.frame.take();
        if len == 0 {
            pool.free(frame);
            if fin {
                tcb.take_fin(&mut ready);
            }
        } else {
            frame.trim_front(usize::from(segment.payload_off));
            frame.truncate(len as usize);
            tcb.rx.push(nodes, frame);
            tcb.rcv.advance(len);
            tcb.owe_ack(len);
        }
        #[cfg(any(test, feature = "check"))]
        {
            self.fast_paths += 1;
        }
        self.schedule(index, ready);
        true
    }
}

impl Tcb {
    /// Like [`Tcb::on_ack`], for request and response: a single segment is outstanding, was sent
    /// once and is acknowledged, and the congestion window was not limiting. Otherwise returns
    /// false without any effect.
    #[inline(always)]
    fn take_whole_ack<P: FramePool>(&mut self, store: &mut TxStore, pool: &mut P, ack: SeqNum, turn: Turn) -> bool {
        let out = self.snd.outstanding();
        let unused = self.window.in_slow_start()
            && out.saturating_mul(2) <= self.window.cwnd
            && !self.flags.has(Flags::WINDOW_LIMITED);
        if !self.ext.allows(FastPath::ACK) || ack != self.snd.nxt() || self.tx.next != NIL || !unused {
            return false;
        }
        let Some((frame, sent_us)) = self.tx.take_only(store) else { return false };
        pool.free(frame);
        self.snd.acknowledge(ack);
        let rtt_us = turn.us.wrapping_sub(sent_us);
        self.rtt.sample(rtt_us);
        self.no_trouble();
        self.stop_timer_at(turn, rtt_us);
        true
    }
}
