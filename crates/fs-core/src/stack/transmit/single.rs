//! The common visit to a connection with data or a FIN to send: one new segment, which may leave,
//! and nothing else to do. All others are handled by [`super::batch`], which would have the same
//! result.

use crate::frame::{FramePool, TxFrame};
use crate::net::neigh::PathState;
use crate::slab::NIL;
use crate::stack::Stack;
use crate::tcb::extension::FastPath;
use crate::tcb::flags::Flags;
use crate::tcb::send::segment::mark;
use crate::tx::build::{self, OptionBytes, Plain};
use crate::wire::options::{self, TIMESTAMPS_LEN};
use alloc::vec::Vec;

/// Flags that exclude a connection from this path.
const SLOW_PATH: Flags = Flags::RARE_TIMER.with(Flags::PUSH_OUT).with(Flags::HOLD).with(Flags::ECN);

impl<P: FramePool> Stack<P> {
    /// Sends the only unsent segment, if nothing else has to be done. Otherwise returns false
    /// without any effect.
    #[inline(always)]
    pub(crate) fn send_single(&mut self, index: u32, out: &mut Vec<TxFrame>) -> bool {
        #[cfg(any(test, feature = "check"))]
        if self.no_fast_paths {
            return false;
        }
        let ts = self.timestamp();
        let share = self.receive_share();
        // With few connections the store's segments are in the cache. Tests have few connections
        // and must cover this path, too.
        let many = self.has_many_flows() || cfg!(any(test, feature = "check"));
        let Self { slots, pool, net, stats, store, config, now, turn, deadlines, shortest_rto, .. } = self;
        let Some((tcb, conn_stats)) = slots.open_and_stats(index) else { return false };
        if !tcb.flags.are(SLOW_PATH.with(Flags::IN_DATA_LIST), Flags::IN_DATA_LIST)
            || tcb.tx.next == NIL
            || tcb.tx.next != tcb.tx.tail()
            || !tcb.ext.allows(FastPath::SEND_SINGLE)
            || tcb.route_epoch != net.route_epoch()
        {
            return false;
        }
        let path = net.path(tcb.path);
        let segment = &mut store.segments[tcb.tx.next];
        let (len, flight) = (segment.len, tcb.snd.outstanding());
        let nagle = flight > 0 && len < u32::from(tcb.mss) && !tcb.flags.has(Flags::NODELAY) && !segment.has(mark::FIN);
        let room = (tcb.snd.una() + tcb.snd.wnd()).delta(segment.seq).max(0) as u32;
        let v6 = tcb.flags.has(Flags::V6);
        let stamped = tcb.flags.has(Flags::TIMESTAMPS);
        let options = if stamped { TIMESTAMPS_LEN } else { 0 };
        let bare = len == 0;
        let fits = if bare {
            segment.has(mark::FIN) && room > 0
        } else {
            len <= u32::from(tcb.mss).min(room)
                && segment.rest.is_empty()
                && (segment.has(mark::SUMMED) || path.tx_checksum())
                && segment.head.off() >= build::header_len(path, v6, options as u8)
        };
        if !fits || path.state() != PathState::Known || nagle || flight > 0 && flight >= tcb.send_window() {
            return false;
        }
        debug_assert!(bare || !pool.is_shared(&segment.head), "an unsent frame has one handle");
        let idle = tcb.idle_ticks(turn.tick);
        // RFC 5681 4.1 concerns only idle times longer than the shortest timeout.
        if idle.is_some_and(|ticks| ticks as i32 > *shortest_rto) {
            return false;
        }
        // A FIN without data has no frame in the queue.
        let mut own = None;
        if bare {
            own = pool.alloc();
            if own.is_none() {
                return false;
            }
        }
        if idle.is_some() {
            tcb.clear_timer();
        }
        let timer_ran = tcb.timer_runs();

        let window = tcb.offer_window(share);
        let plain = tcb.plain_headers(segment.seq, segment.flags(), window, ts);
        let plain = Plain { payload_len: len, payload_sum: segment.sum, ..plain };
        let headers = segment.head.off();
        let head = own.as_mut().unwrap_or(&mut segment.head);
        let checksum = if v6 {
            let mut bytes = OptionBytes::NONE;
            if let Some(stamps) = plain.ts {
                bytes.len = options::emit_timestamps(stamps, &mut bytes.bytes) as u8;
            }
            let key = tcb.key();
            let spec = plain.over_v6(&key, tcb.flow_label(), &bytes);
            build::write_headers(pool, head, path, &spec)
        } else {
            build::write_plain(pool, head, path, &plain)
        };
        let frame = own.unwrap_or_else(|| {
            let headers = headers - segment.head.off();
            let frame = pool.share(&segment.head);
            segment.head.trim_front(headers);
            frame
        });
        stats.tx_bytes += frame.len() as u64;
        out.push(TxFrame { frame, checksum });

        stats.acks_piggybacked += u64::from(tcb.flags.any(Flags::ACK_NOW | Flags::ACK_DELAYED));
        tcb.ack_carried();
        segment.sent_us = turn.us;
        tcb.snd.sent(segment.end());
        tcb.tx.next = NIL;
        if timer_ran {
            tcb.put_off_probe(store, &config.tcp, *now);
        } else {
            tcb.restart_timer_if(|_| true, &config.tcp, *now);
        }
        // Not quiet: losses may have left marks, or positions in the queue are cached.
        if many && tcb.ext.allows(FastPath::ACK) {
            tcb.tx.store_inline(store);
        }
        conn_stats.busy(turn.tick);
        conn_stats.sent_data(turn.tick);
        tcb.flags.clear(Flags::IN_DATA_LIST);
        let flight = tcb.snd.outstanding();
        if flight <= tcb.window.cwnd / 2 {
            tcb.flags.clear(Flags::WINDOW_LIMITED);
        }
        if flight + u32::from(tcb.mss) > tcb.window.cwnd {
            tcb.flags.set(Flags::WINDOW_LIMITED);
        }
        deadlines.arm(tcb, index, *now);
        #[cfg(any(test, feature = "check"))]
        {
            self.fast_paths += 1;
        }
        true
    }
}
