//! The queues of a device.

use fs_xdp::{NetDevice, PortTable, QueueConfig, QueueCounts, Umem, UmemPool, XdpDevice, XdpError, XdpLink};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The queues that a program takes, by their numbers, if not all. Core i serves those at the positions
/// i, i + cores, …
pub(crate) type NamedQueues = Arc<[u32]>;

/// Returns the core of a queue.
pub(crate) fn core_of(queue: u32, named: Option<&NamedQueues>, cores: usize) -> usize {
    let position = named.and_then(|named| named.iter().position(|one| *one == queue));
    position.unwrap_or(queue as usize) % cores
}

/// Opens the queues of a device that has our program, also queues that it gets while the runtime
/// runs (`ethtool -L`).
pub(crate) struct QueueOpener {
    pub(crate) device: XdpDevice,
    umem: Arc<Umem>,
    pub(crate) rings: QueueConfig,
    named: Option<NamedQueues>,
    /// Queues below this number are open, or are being opened.
    known: AtomicU32,
    /// Numbers of receive and send queues when they were last counted.
    counted: Mutex<QueueCounts>,
    /// Queues whose cores lacked frames.
    late: Mutex<Vec<WaitingQueue>>,
    /// Queues that were opened after the start.
    opened: Mutex<BTreeSet<u32>>,
    /// The queues are in zero-copy mode.
    zero_copy: AtomicBool,
    /// Queues to open until the device is guarded; 0: it was guarded from the start.
    unguarded: AtomicU32,
}

/// A queue that waits for frames. `is_new`: the device got it after the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingQueue {
    pub(crate) queue: u32,
    pub(crate) is_new: bool,
}

impl QueueOpener {
    pub(crate) fn new(device: XdpDevice, umem: Arc<Umem>, rings: QueueConfig, named: Option<NamedQueues>) -> Self {
        let known = AtomicU32::new(device.queue_count());
        let counted = Mutex::new(device.queue_counts_now());
        let (late, opened, zero_copy) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Self { device, umem, rings, named, known, counted, late, opened, zero_copy, unguarded: AtomicU32::new(0) }
    }

    /// Returns the queues that the device has got since the last call. The caller must open each.
    pub(crate) fn new_queues(&self) -> Range<u32> {
        if self.named.is_some() {
            return 0..0;
        }
        let now = self.device.queue_counts_now();
        let counted = std::mem::replace(&mut *self.counted.lock().unwrap_or_else(PoisonError::into_inner), now);
        let QueueCounts { rx, tx, .. } = now;
        let before = self.known.fetch_max(rx.min(tx), Ordering::Relaxed);
        if rx > tx && now != counted {
            self.give_up(&format!("the device has {rx} receive queues and {tx} send queues"));
        } else if rx <= tx && counted.rx > counted.tx {
            self.guard(true);
        }
        before..rx.min(tx)
    }

    /// Opens a queue with at most `share` frames of `pool`. Must be called in the device's network
    /// namespace.
    pub(crate) fn open(&self, queue: u32, pool: &mut UmemPool, share: u32) -> Result<XdpLink, XdpError> {
        let rings = QueueConfig { lent: self.rings.lent.min(share), fill: self.rings.fill.min(share), ..self.rings };
        let link = self.device.open_queue(queue, &self.umem, pool, rings)?;
        self.zero_copy.fetch_or(link.is_zero_copy(), Ordering::Relaxed);
        Ok(link)
    }

    /// Returns true if its driver reconfigures queues for our sockets (zero copy).
    pub(crate) fn is_zero_copy(&self) -> bool {
        self.zero_copy.load(Ordering::Relaxed)
    }

    /// Records that a queue is open that the device got after the start.
    pub(crate) fn note_open(&self, queue: u32) {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).insert(queue);
    }

    /// Returns true if all these queues, which the device got after the start, are open.
    pub(crate) fn are_open(&self, mut queues: Range<u32>) -> bool {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        queues.all(|queue| opened.contains(&queue))
    }

    /// See [`XdpDevice::refresh_offloads`].
    pub(crate) fn refresh_offloads(&self) {
        self.device.refresh_offloads();
    }

    /// Returns the device as it was found.
    pub(crate) fn net_device(&self) -> &NetDevice {
        self.device.device()
    }

    /// Returns the device's index in the kernel. Another device of the same name has another index.
    pub(crate) fn index(&self) -> u32 {
        self.device.device().index
    }

    /// Returns the queues that are open, or are being opened.
    pub(crate) fn queues(&self) -> Vec<u32> {
        let all = || (0..self.known.load(Ordering::Relaxed)).collect();
        self.named.as_ref().map_or_else(all, |named| named.to_vec())
    }

    /// Returns the program's port table.
    pub(crate) fn table(&self) -> PortTable {
        self.device.port_table()
    }

    /// Guards the device's queues, if each can be opened, and is to be.
    pub(crate) fn guard_all(&self) -> Result<(), XdpError> {
        let counts = self.device.queue_counts_now();
        self.device.port_table().guard(self.named.is_none() && counts.rx <= counts.tx)
    }

    /// Guards the device's queues once all that it has now are open.
    pub(crate) fn guard_when_open(&self) {
        self.unguarded.store(self.queues().len() as u32, Ordering::Relaxed);
    }

    /// Records that a queue is open that the device had when the program was attached.
    pub(crate) fn note_attached(&self) {
        let less = |left: u32| left.checked_sub(1);
        if self.unguarded.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) == Ok(1)
            && let Err(error) = self.guard_all()
        {
            tracing::error!(%error, "cannot set the queue guard in the XDP program's table");
        }
    }

    /// Logs that a new queue of the device is open.
    pub(crate) fn tell_new(&self, queue: u32, core: usize) {
        let NetDevice { name: device, driver, .. } = self.device.device();
        tracing::info!(device, queue, core, "opened a new queue of the device");
        // Seen on Linux 6.18: veth_enable_range_safe() gives the program to no queue.
        if driver == "veth" {
            tracing::warn!(
                device,
                queue,
                "veth runs the XDP program on a new queue only after the device was down, so the kernel gets this \
                 queue's packets and resets our connections: `ip link set {device} down && ip link set {device} up`"
            );
        }
    }

    /// Queues a retry: the core has too few free frames.
    pub(crate) fn try_later(&self, WaitingQueue { queue, is_new }: WaitingQueue, available: usize) {
        let device = &self.device.device().name;
        tracing::warn!(device, queue, available, "too few frames are free to open a queue: retrying");
        self.late.lock().unwrap_or_else(PoisonError::into_inner).push(WaitingQueue { queue, is_new });
    }

    /// Returns the queues to retry now.
    pub(crate) fn late_queues(&self) -> Vec<WaitingQueue> {
        std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes a queue that is to be closed from the retries.
    pub(crate) fn forget_late(&self, queue: u32) {
        self.late.lock().unwrap_or_else(PoisonError::into_inner).retain(|late| late.queue != queue);
    }

    /// Logs that a queue has no socket and will not get one.
    pub(crate) fn give_up(&self, reason: &str) {
        tracing::error!(
            device = self.device.device().name,
            reason,
            "cannot open a queue of the device, so the kernel gets its packets and resets our connections: restore \
             the former number of queues (ethtool -L), or build the runtime again"
        );
        self.guard(false);
    }

    fn guard(&self, on: bool) {
        if let Err(error) = self.device.port_table().guard(on) {
            tracing::error!(%error, "cannot set the queue guard in the XDP program's table");
        }
    }
}

/// Chunks that a queue's device needs at least to receive into. As many again are in flight.
pub(crate) const FRAMES_OF_QUEUE: u32 = 128;

/// Returns the limit of receive frames for each of a core's `queues` queues. They divide half of
/// its frames; the other half is for packets in flight. A power of two, as rings are, or 0.
pub(crate) fn share(frames: u32, queues: u32) -> u32 {
    let share = frames / 2 / queues.max(1);
    if share == 0 { 0 } else { 1 << share.ilog2() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_divide_the_queues_in_turn() {
        let of = |named: Option<&NamedQueues>, queues: [u32; 3]| queues.map(|queue| core_of(queue, named, 2));
        assert_eq!(of(None, [0, 1, 2]), [0, 1, 0]);
        assert_eq!(of(Some(&[6, 4, 2].into()), [6, 4, 2]), [0, 1, 0]);
    }
}
