//! Forwarding: received bytes leave by another connection without a copy.

use crate::error::Error;
use crate::frame::FramePool;
use crate::frame_queue::FrameNodes;
use crate::slab::NIL;
use crate::socket::event::{Ready, TcpId};
use crate::stack::Stack;
use crate::tcb::Slot;
use crate::tcb::send::buffer::Cut;
use crate::tcb::send::forwarded::frames_to_forward;
use crate::tcb::send::store::TxStore;
use crate::tcb::slots::Slots;

impl<P: FramePool> Stack<P> {
    /// Moves up to `most` received bytes of `from` into the send queue of `to`, in the frames in
    /// which they arrived where these fit. Returns the number of bytes moved. The send buffer of `to`
    /// may be exceeded by less than a frame.
    ///
    /// `Ok(0)`: `from` has nothing that can be forwarded, or a connection has ended. `tcp_recv` and
    /// `tcp_send` then report the reason.
    ///
    /// # Errors
    /// `WouldBlock` if `to` has no room.
    pub fn tcp_forward(&mut self, from: TcpId, to: TcpId, most: usize) -> Result<usize, Error> {
        let (Ok(source), Ok(target)) = (self.slot_of(from), self.slot_of(to)) else { return Ok(0) };
        let wanted = match self.slots.slot(source) {
            Slot::Open(tcb) if tcb.urgent_limit().is_none() => most.min(tcb.rx.bytes as usize),
            _ => 0,
        };
        if wanted == 0 {
            return Ok(0);
        }
        let room = match self.send_room(target, wanted) {
            Ok(room) => room,
            Err(Error::WouldBlock) => return Err(Error::WouldBlock),
            Err(_) => return Ok(0),
        };
        let Self { slots, store, nodes, pool, net, frame_waiters, now, .. } = self;
        let Some(tcb) = slots.open_mut(target) else { return Ok(0) };
        tcb.check_app_limited();
        let on_trial = tcb.raise_mss(*now);
        tcb.hold_for_more(false);
        let limit = wanted.min(room as usize);
        let most = limit.min(frame_waiters.room(store, pool, tcb));
        let summed = !net.path(tcb.path).tx_checksum();
        let cut = Cut { mss: tcb.mss.into(), summed, push_at_end: true, push_every: tcb.max_snd_wnd() / 2 };
        let before = if tcb.tx.next == NIL { NIL } else { tcb.tx.tail() };
        let snd_nxt = tcb.snd.nxt();
        let frames = frames_to_forward(pool, cut.mss);
        let (mut done, mut pushed) = (0, 0);
        while done < most && !store.is_full() {
            if pool.available() < frames {
                let few = copy_some(slots, (source, target), nodes, store, pool, (most - done, cut));
                done += few;
                if few == 0 {
                    break;
                }
                continue;
            }
            let left = (wanted - done) as u32;
            let part = slots.open_mut(source).and_then(|tcb| tcb.rx.pop_part(nodes, pool, left));
            let Some(frame) = part else { break };
            let Some(tcb) = slots.open_mut(target) else {
                pool.free(frame);
                break;
            };
            done += frame.len();
            tcb.tx.forward(store, pool, snd_nxt, frame, cut);
            tcb.tx.push_now_and_then(store, done, &mut pushed, cut);
        }
        let Some(tcb) = slots.open_mut(target) else { return Ok(done) };
        if done > 0 {
            tcb.tx.move_push(store, before);
        }
        if on_trial {
            tcb.record_trial(store);
        }
        if done < wanted {
            tcb.refused_room();
        } else {
            tcb.has_room_again(*now);
        }
        // As for a short write.
        if done < limit {
            frame_waiters.wait(target, tcb, *now);
        }
        if done == 0 {
            return Err(Error::WouldBlock);
        }
        self.schedule(target, Ready::default());
        self.after_read(source, done as u32);
        Ok(done)
    }
}

/// Copies up to `most` bytes from one connection's receive queue to another's send queue, as far as the
/// frames of the pool suffice. A relay must not be refused while a frame is free: it would be notified
/// at once, turn after turn. Returns the number of bytes.
#[cold]
fn copy_some<P: FramePool>(
    slots: &mut Slots,
    (source, target): (u32, u32),
    nodes: &mut FrameNodes,
    store: &mut TxStore,
    pool: &mut P,
    (most, cut): (usize, Cut),
) -> usize {
    let mut bytes = [0; 2048];
    let most = most.min(bytes.len());
    let Some(tcb) = slots.open(source) else { return 0 };
    let n = tcb.rx.peek(nodes, pool, &mut bytes[..most]);
    let Some(tcb) = slots.open_mut(target) else { return 0 };
    let snd_nxt = tcb.snd.nxt();
    let copied = tcb.tx.write(store, pool, snd_nxt, &bytes[..n], Cut { push_at_end: false, ..cut });
    if let Some(tcb) = slots.open_mut(source) {
        tcb.rx.trim_front(nodes, pool, copied);
    }
    copied
}
