//! Messages of other threads to a core: spawn tasks, apply changes of the kernel's tables, open and
//! close queues.

use super::state::CoreShared;
use crate::device::queues::{FRAMES_OF_QUEUE, WaitingQueue, share};
use crate::kernel::WorldChange;
use crate::shared::Message;
use fs_core::{FramePool as _, IfaceId};
use fs_xdp::{Link as _, XdpError};
use std::rc::Rc;

impl CoreShared {
    /// Carries out messages of other threads.
    pub(crate) fn read_inbox(self: &Rc<Self>) {
        let mut arrived = self.arrived.take();
        self.shared.inboxes[self.index].swap(&mut arrived);
        for message in arrived.drain(..) {
            match message {
                // Outside tokio (in the last turns of a run) tasks cannot be spawned.
                Message::Spawn(spawn) if tokio::runtime::Handle::try_current().is_ok() => spawn(),
                Message::Spawn(dropped) => drop(dropped),
                Message::World(mut change) => {
                    self.limit_mtu(&mut change);
                    change.apply(&mut self.stack.borrow_mut());
                }
                Message::NewQueue { iface, queue, is_new } => self.open_queue(iface, queue, is_new),
                Message::CloseQueue { iface, queue } => {
                    if let Some(opener) = self.shared.openers.get(iface) {
                        opener.forget_late(queue);
                    }
                    self.io.borrow_mut().close_queue(iface, queue, &mut self.stack.borrow_mut());
                    self.divide_frames(0);
                    self.links_changed.set(true);
                }
                Message::CooledPorts(asked) => asked.answer(self.stack.borrow().tcp_orphan_locals()),
                Message::LetGo(iface) => {
                    self.io.borrow_mut().let_go(iface, &mut self.stack.borrow_mut());
                    self.links_changed.set(true);
                }
            }
        }
        self.arrived.replace(arrived);
    }

    /// Open queues carry no longer packets than the device did when they were opened. A larger
    /// segment would be dropped each time it is sent.
    fn limit_mtu(&self, change: &mut WorldChange) {
        let WorldChange::Device { iface, mtu, .. } = change else { return };
        let Some(most) = self.io.borrow().mtu(*iface).filter(|most| *most < *mtu) else { return };
        if self.index == 0 {
            tracing::warn!(iface = iface.0, mtu, most, "the device's MTU was raised: its open queues carry `most`");
        }
        *mtu = most;
    }

    fn open_queue(&self, iface: IfaceId, queue: u32, is_new: bool) {
        // The device may be gone again.
        let Some(opener) = self.shared.openers.get(iface) else { return };
        // Also before a queue that the device got later: it may be the first that is opened again, and
        // then takes the place of what kept the frames.
        self.io.borrow_mut().give_spare(iface, &mut self.stack.borrow_mut());
        let share = self.divide_frames(self.shared.queues_of_a_core());
        let opened = opener.open(queue, self.stack.borrow_mut().pool_mut(), share);
        match opened {
            Ok(link) => {
                if is_new {
                    opener.tell_new(queue, self.index);
                }
                if !is_new {
                    // Unknown before the first queue of a late device was open.
                    let tx_checksum = link.caps().tx_checksum;
                    self.stack.borrow_mut().update_interface(iface, |interface| interface.tx_checksum = tx_checksum);
                }
                self.io.borrow_mut().add(Box::new(link), iface, is_new.then_some(queue));
                self.links_changed.set(true);
                if is_new {
                    opener.note_open(queue);
                } else {
                    opener.note_attached();
                }
            }
            // Connections hold the frames and will return them. Until then the queue's packets are
            // dropped.
            Err(XdpError::PoolTooSmall { available, .. }) => {
                opener.try_later(WaitingQueue { queue, is_new }, available)
            }
            // The device is gone again, and the core will be told.
            Err(XdpError::NoSuchDevice { .. }) => {}
            Err(error) => {
                self.divide_frames(0);
                opener.give_up(&error.to_string());
            }
        }
    }

    /// Divides half of this core's frames among its queues, the open ones and those to come, `all`
    /// together. Returns the limit of each.
    fn divide_frames(&self, all: u32) -> u32 {
        let mut io = self.io.borrow_mut();
        let frames = self.stack.borrow_mut().pool_mut().capacity() as u32;
        // A queue with fewer frames does not receive, so the sum may exceed half.
        let share = share(frames, all.max(io.queues())).max(FRAMES_OF_QUEUE / 2);
        io.limit_lent(share);
        share
    }
}
