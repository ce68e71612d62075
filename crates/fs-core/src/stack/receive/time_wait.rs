//! TIME-WAIT: entry, segments, exit.

use crate::drop_reason::DropReason;
use crate::flow::Protocol;
use crate::frame::{FramePool, RxFrame};
use crate::rx::owner::Owner;
use crate::rx::parse::Segment;
use crate::stack::Stack;
use crate::stack::receive::unowned::TooMany;
use crate::tcb::flags::Flags;
use crate::tcb::recv::ack::Share;
use crate::tcb::time_wait::Entry;
use crate::tx::build::{DEFAULT_TTL, OptionBytes, SegmentSpec};
use crate::wire::options::{self, Timestamps};
use crate::wire::tcp::TcpFlags;

impl<P: FramePool> Stack<P> {
    /// Replaces the control block by a record after both FINs, of which ours was first. The last
    /// ACK leaves at once. `hash` is of the connection's key.
    pub(crate) fn enter_time_wait(&mut self, index: u32, hash: u64) {
        // The ACK may move the window's edge, which never moves back, so it is sent before the
        // record is made. Only the peer's FIN requires an ACK, not its ACK of ours.
        if self.slots.open(index).is_some_and(|t| t.flags.has(Flags::ACK_NOW)) {
            self.emit_bare(index, TcpFlags::ACK, None, None);
        }
        let Some(tcb) = self.slots.open_mut(index) else { return };
        let key = tcb.key();
        let entry = Entry {
            key,
            rcv_nxt: tcb.rcv.nxt(),
            snd_nxt: tcb.snd.nxt(),
            ts_recent: tcb.flags.has(Flags::TIMESTAMPS).then_some(tcb.ts_recent.get()),
            window: tcb.offer_window(Share::Over),
        };
        self.forget(index, hash, None);
        if self.time_waits.is_full()
            && let Some(oldest) = self.time_waits.pop_oldest()
        {
            self.forget_time_wait(oldest);
        }
        let record = self.time_waits.insert(entry, self.now);
        if self.table.insert(hash, Owner::TimeWait(record).value()).is_err() {
            self.time_waits.remove(record);
        }
    }

    /// Handles a segment for a connection in TIME-WAIT: RFC 9293 3.10.7.4, RFC 6191, RFC 1337.
    pub(crate) fn on_time_wait(&mut self, index: u32, segment: &Segment, hash: u64, frames: &mut [RxFrame], hops: u16) {
        let record = self.time_waits.record(index);
        let (rcv_nxt, ts_recent) = (record.rcv_nxt, record.ts_recent());
        if self.is_of_newer_elsewhere(index, segment, hops) {
            match self.steer(segment, hash, hops) {
                Ok(Some((to, hops))) if to != self.config.core => return self.forward(to, frames, hops),
                Ok(_) => {}
                Err(TooMany) => return self.discard(frames, DropReason::NobodysFlow),
            }
        }
        if segment.flags.rst() {
            // RFC 1337: a stray RST must not end TIME-WAIT. An exact one (RFC 5961 3.2) answers our
            // ACK: the peer has forgotten the connection and needs its ports again (as Linux with
            // tcp_rfc1337 = 0).
            if segment.seq == rcv_nxt {
                self.forget_time_wait(index);
            }
            return self.discard(frames, DropReason::NoSocket);
        }
        // RFC 6191: compared by timestamps if both have them, else (or if they are equal) by
        // sequence number (RFC 1122 4.2.2.13).
        let age = match (ts_recent, segment.ts) {
            (Some(old), Some(ts)) => ts.val.wrapping_sub(old) as i32,
            _ => 0,
        };
        let newer = age > 0 || age == 0 && segment.seq.after(rcv_nxt);
        let listens = || self.listeners.port_in_use(segment.key.local_port());
        if segment.flags.syn() && !segment.flags.ack() && newer && listens() {
            // RFC 6191: a new incarnation, for the current listener. Without one the SYN gets an ACK
            // (as Linux, `tcp_v4_timewait_ack`): it may be forged.
            self.reuse_time_wait(index);
            self.on_unowned(segment, hash, frames, hops);
            self.isn.follow_none();
            return;
        }
        if segment.flags.fin() && segment.seq + segment.payload_len + 1 == rcv_nxt {
            self.time_waits.restart(index, self.now);
        }
        // A retransmitted FIN restarts the timer. Any other segment gets an ACK, one without text
        // at a limited rate: two ends in TIME-WAIT would otherwise reply to each other endlessly
        // (Linux: `tw_last_oow_ack_time`).
        let text = segment.seq_len() > 0;
        if text || segment.seq != rcv_nxt {
            let interval = self.config.tcp.invalid_ack_interval;
            if self.time_waits.may_answer(index, text && !segment.flags.syn(), self.now, interval) {
                self.ack_from_time_wait(index);
            } else {
                self.stats.invalid_unanswered += 1;
            }
        }
        self.discard(frames, DropReason::Duplicate);
    }

    /// Returns true if the segment may belong to a newer connection between the same ports, on
    /// another core. A device that chooses the queue by the sender's CPU (veth) can bring the new
    /// connection's SYN to one core and the rest to this one.
    fn is_of_newer_elsewhere(&self, index: u32, segment: &Segment, hops: u16) -> bool {
        let (me, cores, record) = (self.config.core, self.config.cores, self.time_waits.record(index));
        if cores == 1 || self.delivery.is_over(hops) || segment.flags.syn() {
            return false;
        }
        let of_record = match segment.ts.filter(|ts| ts.ecr != 0) {
            Some(ts) => self.ts_clock.owner(ts.ecr) == me,
            None if segment.flags.rst() => segment.seq == record.rcv_nxt,
            None => segment.ack == record.snd_nxt,
        };
        !of_record
    }

    fn ack_from_time_wait(&mut self, index: u32) {
        let key = self.time_waits.key(index);
        let record = self.time_waits.record(index);
        let (seq, ack, window, ts_recent) = (record.snd_nxt, record.rcv_nxt, record.window, record.ts_recent());
        let mut bytes = OptionBytes::NONE;
        if let Some(ecr) = ts_recent {
            let pair = Timestamps { val: self.timestamp(), ecr };
            bytes.len = options::emit_timestamps(pair, &mut bytes.bytes) as u8;
        }
        let Ok(path) = self.net.path_to(key.remote_ip(), self.net.link_of(&key)) else { return };
        let spec = SegmentSpec {
            key: &key,
            seq,
            ack,
            flags: TcpFlags::ACK,
            window,
            urgent: 0,
            options: &bytes,
            ttl: DEFAULT_TTL,
            tos: 0,
            flow_label: self.fast_open.flow_label(&key),
            payload_len: 0,
            payload_sum: 0,
        };
        self.stats.acks_sent += 1;
        self.send_bare(path, &spec);
    }

    /// Ends TIME-WAIT for a new connection between the same ports.
    pub(crate) fn reuse_time_wait(&mut self, index: u32) {
        self.isn.follow(self.time_waits.record(index).snd_nxt);
        self.forget_time_wait(index);
    }

    /// Removes a record and its flow.
    pub(crate) fn forget_time_wait(&mut self, index: u32) {
        let hash = self.hasher.hash(Protocol::Tcp, &self.time_waits.key(index));
        self.table.remove(hash, Owner::TimeWait(index).value());
        self.time_waits.remove(index);
    }
}
