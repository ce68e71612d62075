//! Connections that move between cores: an established connection that no listener of this core will
//! accept goes to a core that has one.

use crate::drop_reason::DropReason;
use crate::error::Error;
use crate::flow::Protocol;
use crate::frame::FramePool;
use crate::outbox::CoreMessage;
use crate::rx::owner::Owner;
use crate::socket::event::Ready;
use crate::stack::Stack;
use crate::tcb::Slot;
use crate::tcb::flags::Flags;
use crate::tcb::handover::Handover;
use alloc::boxed::Box;
use alloc::vec::Vec;

impl<P: FramePool> Stack<P> {
    /// Moves a connection that no listener of this core will accept to a core whose listener will,
    /// or resets it as the kernel would. `inherits`: it takes that listener's options.
    pub(crate) fn pass_on(&mut self, index: u32, inherits: bool) {
        let Some(tcb) = self.slots.open_mut(index) else {
            // The connection ended in the queue, so no application holds a handle.
            if matches!(self.slots.slot(index), Slot::Dead(_)) {
                let Self { slots, nodes, pool, .. } = self;
                if let Slot::Dead(mut dead) = slots.remove(index) {
                    dead.rx.clear(nodes, pool);
                }
            }
            return;
        };
        let key = tcb.key();
        // The rest of its handshake is on this core.
        let stays = tcb.flags.has(Flags::SYN_RECEIVED);
        let hash = self.hasher.hash(Protocol::Tcp, &key);
        if let Some(listener) = self.listeners.find(key.local_ip(), key.local_port()) {
            return self.enqueue_accept(listener, index);
        }
        let to = self.listeners.find_elsewhere(key.local_ip(), key.local_port(), hash).filter(|_| !stays);
        let Some(to) = to else {
            if let Some(tcb) = self.slots.open_mut(index) {
                tcb.flags.set(Flags::ORPHAN);
            }
            return self.kill(index, Some(Error::ConnectionReset), true);
        };
        let Self { slots, table, nodes, pool, store, .. } = self;
        let conn_stats = *slots.conn_stats(index);
        table.remove(hash, Owner::Connection(index).value());
        let Slot::Open(mut tcb) = slots.remove(index) else { return };
        // Nothing was written yet, and out-of-order data will be retransmitted.
        tcb.tx.clear(store, pool);
        if let Some(ext) = tcb.ext.as_mut() {
            ext.out_of_order.clear(nodes, pool);
            (ext.held, ext.recv.held_frames) = (0, 0);
        }
        let mut received = Vec::new();
        while let Some(frame) = tcb.rx.pop(nodes) {
            received.push(frame);
        }
        self.stats.handovers += 1;
        key.probe(|ends| fs_probe::handover(ends, to.0));
        self.handovers.note(hash, to, self.now);
        let handover = Handover { key, tcb, conn_stats, received, inherits };
        self.outbox.send(to, CoreMessage::Handover(Box::new(handover)));
    }

    /// Takes over a connection from another core.
    pub(crate) fn take_over(&mut self, handover: Handover) {
        let Handover { key, mut tcb, conn_stats, received, inherits } = handover;
        tcb.flags.clear(Flags::IN_ACK_LIST | Flags::IN_DATA_LIST | Flags::IN_DELAY_QUEUE);
        tcb.disarm();
        if let Some(ext) = tcb.ext.as_mut() {
            ext.pacing.queued = false;
            // The entry is in the other core's wheel.
            ext.later_entry = 0;
        }
        // Path ids are local to a core.
        tcb.route_epoch = self.net.route_epoch().wrapping_sub(1);
        if tcb.device().is_some() {
            self.net.note_bound_to(key.remote_ip());
        }
        let path = self.net.way_to(key.remote_ip(), tcb.device());
        let hash = self.hasher.hash(Protocol::Tcp, &key);
        // What this core still has between these ports is older than an established connection.
        match self.owner_by_hash(hash, &key) {
            Some(Owner::TimeWait(record)) => self.forget_time_wait(record),
            Some(Owner::Handshake(index)) => self.forget_handshake(index),
            Some(Owner::Connection(index)) => self.kill(index, Some(Error::ConnectionReset), false),
            None => {}
        }
        let listener = self.listeners.find(key.local_ip(), key.local_port());
        if inherits && let Some(next) = listener.and_then(|listener| self.listeners.at(listener)) {
            tcb.inherit(&next.options, next.is_plain, self.now);
        }
        let slot = path.and_then(|path| {
            self.slots.insert(|generation| {
                tcb.set_generation(generation);
                tcb.path = path;
                Slot::Open(tcb)
            })
        });
        let Some(slot) = slot.filter(|slot| self.enter_moved(*slot, hash)) else {
            received.into_iter().for_each(|frame| self.pool.free(frame));
            return self.stats.drop(DropReason::NoSlots);
        };
        *self.slots.conn_stats_mut(slot) = conn_stats;
        if let Some(tcb) = self.slots.open_mut(slot) {
            for frame in received {
                tcb.rx.push(&mut self.nodes, frame);
            }
        }
        match listener {
            Some(listener) => {
                self.enqueue_accept(listener, slot);
                self.schedule(slot, Ready::default());
            }
            // The listener here was closed, too.
            None => self.pass_on(slot, inherits),
        }
    }

    /// Adds a connection that has moved here to the flow table. Returns false if the table is full;
    /// the slot is then freed.
    fn enter_moved(&mut self, slot: u32, hash: u64) -> bool {
        let entered = self.table.insert(hash, Owner::Connection(slot).value()).is_ok();
        if !entered {
            self.slots.vacate(slot);
        }
        entered
    }
}
