//! The devices of a runtime.

use super::queues::{NamedQueues, QueueOpener};
use fs_core::IfaceId;
use fs_xdp::{NetDevice, PortTable, QueueConfig, QueueCounts, Umem, XdpConfig, XdpDevice, XdpError};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device by its name: its current opener, and how to attach to a device of that name.
pub(crate) struct Taken {
    pub(crate) opener: Option<Arc<QueueOpener>>,
    pub(crate) name: String,
    pub(crate) config: XdpConfig,
    pub(crate) umem: Arc<Umem>,
    pub(crate) rings: QueueConfig,
    pub(crate) named: Option<NamedQueues>,
    /// It was not attached to yet ([`crate::Builder::late_devices`]).
    pub(crate) is_late: bool,
    /// Its index and queues when it last had too few, and its queues with the program attached.
    pub(crate) refused: Option<((u32, QueueCounts), QueueCounts)>,
}

/// Devices in the order of interfaces. Shared with the threads that open queues, and emptied at the
/// runtime's end: the program stays on a device while its opener lives.
#[derive(Clone, Default)]
pub(crate) struct Openers(Arc<Mutex<Vec<Taken>>>);

impl Openers {
    fn lock(&self) -> MutexGuard<'_, Vec<Taken>> {
        // Every change is a single assignment, so a poisoned value is consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the device of the next interface.
    pub(crate) fn add(&self, taken: Taken) {
        self.lock().push(taken);
    }

    /// Returns true if the runtime attaches to devices.
    pub(crate) fn has_any(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Returns the present devices, by interface.
    pub(crate) fn all(&self) -> Vec<(IfaceId, Arc<QueueOpener>)> {
        let taken = self.lock();
        let of = |(n, taken): (usize, &Taken)| Some((IfaceId(n as u8), taken.opener.clone()?));
        taken.iter().enumerate().filter_map(of).collect()
    }

    pub(crate) fn get(&self, IfaceId(n): IfaceId) -> Option<Arc<QueueOpener>> {
        self.lock().get(usize::from(n))?.opener.clone()
    }

    /// Removes a device that is gone. After its queues are closed too, nothing of ours is left on
    /// it.
    pub(crate) fn let_go(&self, IfaceId(n): IfaceId) {
        let opener = self.lock().get_mut(usize::from(n)).and_then(|taken| taken.opener.take());
        // Not under the lock: the drop detaches a program.
        drop(opener);
    }

    /// Returns true if the runtime has not attached to a device yet.
    pub(crate) fn is_late(&self, IfaceId(n): IfaceId) -> bool {
        self.lock().get(usize::from(n)).is_some_and(|taken| taken.is_late)
    }

    /// Attaches to the device that now has an interface's name, if there is one again. `fill` fills
    /// its program's table before the kernel shows the program. Otherwise a tool that waits for the
    /// program and then adds addresses could make the kernel reset connections before the table is
    /// filled. Packets for us are dropped until a queue is open; a late device's go to the kernel, since
    /// none of its connections is ours.
    pub(crate) fn attach_again(
        &self,
        IfaceId(n): IfaceId,
        cores: usize,
        fill: impl FnOnce(PortTable) -> io::Result<()>,
    ) -> Option<Result<QueueOpener, XdpError>> {
        let taken = self.lock();
        let Taken { opener: None, name, config, umem, rings, named, is_late, refused } = taken.get(usize::from(n))?
        else {
            return None;
        };
        let (name, config, umem, named) = (name.clone(), *config, umem.clone(), named.clone());
        let (rings, is_late, refused) = (*rings, *is_late, *refused);
        drop(taken);
        let found = NetDevice::find(&name).ok()?;
        // Most of the time another program has a late device, and asking costs less than trying.
        if is_late && found.xdp_mode().is_some() {
            return None;
        }
        let last = named.as_ref().and_then(|named| named.iter().copied().max()).unwrap_or(cores as u32 - 1);
        // Some core would have no queue to send through.
        let too_few = |QueueCounts { rx, tx, .. }| XdpError::NoSuchQueue { device: name.clone(), queue: last, rx, tx };
        // Attaching interrupts the device, so not while it is as it was.
        let before = (found.index, found.queue_counts());
        if let Some((_, queues)) = refused.filter(|(then, _)| *then == before) {
            return Some(Err(too_few(queues)));
        }
        let guarded = |table: &PortTable| {
            table.guard(!is_late)?;
            fill(table.clone())
        };
        Some(XdpDevice::attach_filled(&name, config, guarded).and_then(|device| {
            let queues = device.queue_counts_now();
            if queues.rx.min(queues.tx) <= last {
                if let Some(taken) = self.lock().get_mut(usize::from(n)) {
                    taken.refused = Some((before, queues));
                }
                return Err(too_few(queues));
            }
            let opener = QueueOpener::new(device, umem, rings, named);
            if is_late {
                opener.guard_when_open();
            } else {
                opener.guard_all()?;
            }
            Ok(opener)
        }))
    }

    /// Sets the device of an interface, after it was attached to again.
    pub(crate) fn put(&self, IfaceId(n): IfaceId, opener: Arc<QueueOpener>) {
        if let Some(taken) = self.lock().get_mut(usize::from(n)) {
            (taken.opener, taken.is_late) = (Some(opener), false);
        }
    }
}

/// Empties them.
pub(crate) struct Emptied(pub(crate) Openers);

impl Drop for Emptied {
    fn drop(&mut self) {
        let taken = std::mem::take(&mut *self.0.lock());
        drop(taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_xdp::UmemConfig;

    #[test]
    fn device_with_too_few_queues_is_not_attached_to_again() {
        let lo = NetDevice::find("lo").unwrap();
        let queues = lo.queue_counts();
        let openers = Openers::default();
        openers.add(Taken {
            opener: None,
            name: lo.name,
            config: XdpConfig::default(),
            umem: Umem::new(UmemConfig { chunks: 64, chunk_size: 2048 }).unwrap(),
            rings: QueueConfig::default(),
            named: None,
            is_late: false,
            refused: Some(((lo.index, queues), queues)),
        });
        let again = openers.attach_again(IfaceId(0), 2, |_| panic!("it is attached to"));
        assert!(matches!(again, Some(Err(XdpError::NoSuchQueue { queue: 1, .. }))));
    }
}
