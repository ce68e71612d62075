//! State that all cores, handles and the control thread share. No connection's data path uses it.

use crate::carrier::Carriers;
use crate::device::openers::Openers;
use crate::device::queues::{NamedQueues, QueueOpener, core_of};
use crate::error::RunError;
use crate::kernel::{ControlPlane, WorldChange};
use crate::mailbox::Inboxes;
use crate::ports::cooling::{CooledPorts, CooledQuestions};
use crate::ports::{Addresses, Ports};
use crate::stats::CoreStats;
use fs_core::IfaceId;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::watch;

/// The phase of a runtime's life.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    Running,
    /// A graceful shutdown.
    Draining {
        until: Instant,
    },
    Ended,
}

impl Phase {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self, Phase::Running)
    }
}

/// A message from another thread to a core.
pub(crate) enum Message {
    Spawn(Box<dyn FnOnce() + Send>),
    World(WorldChange),
    /// The core must open this queue of the device. `is_new`: the device got the queue after the
    /// start; else the device has come back.
    NewQueue {
        iface: IfaceId,
        queue: u32,
        is_new: bool,
    },
    /// The device does not work with this new queue: the core must close it and keep its frames. A
    /// second such message returns them.
    CloseQueue {
        iface: IfaceId,
        queue: u32,
    },
    /// The device is gone: the core must close its queues.
    LetGo(IfaceId),
    /// Are there closed connections at these ports that still send?
    CooledPorts(Arc<CooledPorts>),
}

/// State that all cores and handles share. No connection's data path uses it.
pub(crate) struct Shared {
    pub(crate) inboxes: Inboxes<Message>,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) ports: Ports,
    pub(crate) control: ControlPlane,
    pub(crate) carriers: Carriers,
    pub(crate) openers: Openers,
    /// The devices' names, by interface.
    devices: Vec<String>,
    named: Option<NamedQueues>,
    pub(crate) published: Box<[Mutex<CoreStats>]>,
    /// Cores whose application's future has not finished.
    pub(crate) apps_left: AtomicUsize,
    /// Cores that have connections left in a graceful shutdown.
    pub(crate) drains_left: AtomicUsize,
    /// By core: at the end of the run it has nothing left to send, or has failed.
    drained: Box<[AtomicBool]>,
    /// Interfaces whose devices are gone, or not attached to yet.
    gone: Mutex<BTreeSet<u8>>,
    /// Devices that the runtime has not attached to yet are left to other programs.
    pub(crate) forgoes_devices: AtomicBool,
    /// Number of times that cores were told to close the queues of a lost device. A core that has
    /// not yet handled all of these may report a link of a device that is already known to be gone.
    let_go: AtomicUsize,
    pub(crate) failure: Mutex<Option<RunError>>,
    /// Set with `failure`, which `Runtime::run` takes.
    pub(crate) has_failed: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        inboxes: Inboxes<Message>,
        ports: Ports,
        control: ControlPlane,
        openers: Openers,
        (devices, named): (Vec<String>, Option<NamedQueues>),
        carriers: Carriers,
    ) -> Self {
        let cores = inboxes.len();
        let gone = (0..devices.len() as u8).filter(|&n| openers.is_late(IfaceId(n))).collect();
        Self {
            inboxes,
            phase: watch::Sender::new(Phase::Running),
            ports,
            control,
            carriers,
            openers,
            devices,
            named,
            published: (0..cores).map(|core| Mutex::new(CoreStats { core, ..CoreStats::default() })).collect(),
            apps_left: AtomicUsize::new(cores),
            drains_left: AtomicUsize::new(cores),
            drained: (0..cores).map(|_| AtomicBool::new(false)).collect(),
            gone: Mutex::new(gone),
            forgoes_devices: AtomicBool::new(false),
            let_go: AtomicUsize::new(0),
            failure: Mutex::new(None),
            has_failed: AtomicBool::new(false),
        }
    }

    /// The kernel has changed a device: it may now segment packets, or no longer.
    pub(crate) fn refresh_offloads(&self) {
        self.openers.all().iter().for_each(|(_, opener)| opener.refresh_offloads());
    }

    /// Returns the devices' names, by interface.
    pub(crate) fn devices(&self) -> &[String] {
        &self.devices
    }

    /// Returns the opener of an interface's queues; `None` while its device is gone.
    pub(crate) fn opener(&self, iface: IfaceId) -> Option<Arc<QueueOpener>> {
        self.openers.get(iface)
    }

    /// Returns the largest number of queues of a core when all known queues are open.
    pub(crate) fn queues_of_a_core(&self) -> u32 {
        let cores = self.inboxes.len();
        self.openers.all().iter().map(|(_, opener)| opener.queues().len().div_ceil(cores) as u32).sum()
    }

    /// Makes the core of a new queue close it, and if called again, use its frames again.
    pub(crate) fn close_queue(&self, iface: IfaceId, queue: u32) {
        self.inboxes[self.core_of(queue)].send(Message::CloseQueue { iface, queue });
    }

    pub(crate) fn open_queue(&self, iface: IfaceId, queue: u32, is_new: bool) {
        self.inboxes[self.core_of(queue)].send(Message::NewQueue { iface, queue, is_new });
    }

    fn core_of(&self, queue: u32) -> usize {
        core_of(queue, self.named.as_ref(), self.inboxes.len())
    }

    /// Attaches to a device that has come back under its name, or that another program had. Returns
    /// its opener, whose queues are not open yet. `known` are addresses that the host has or had,
    /// `addresses` those that it has now.
    pub(crate) fn take_again(
        &self,
        n: usize,
        known: &[IpAddr],
        addresses: &Addresses,
    ) -> Option<Result<Arc<QueueOpener>, String>> {
        let iface = IfaceId(n as u8);
        let is_late = self.openers.is_late(iface);
        if is_late && self.forgoes_devices.load(Ordering::Relaxed) {
            return None;
        }
        let fill = |table| self.ports.take_again(n, Box::new(table), (known, is_late), addresses);
        let opener = match self.openers.attach_again(iface, self.inboxes.len(), fill)? {
            Ok(opener) => Arc::new(opener),
            Err(error) => {
                self.ports.let_go(n);
                return Some(Err(error.to_string()));
            }
        };
        self.openers.put(iface, opener.clone());
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).remove(&iface.0);
        let (device, queues) = (self.devices.get(n), opener.queues());
        if is_late {
            tracing::info!(device, ?queues, "this program has the device now: new connections are its own");
        } else {
            tracing::info!(device, ?queues, "the device is back");
        }
        Some(Ok(opener))
    }

    /// Frees ports whose cool-down has ended, unless a core has closed connections there that still
    /// send. Called regularly.
    pub(crate) fn free_ports(&self, questions: &mut CooledQuestions, now: Instant) {
        if let Some(question) = self.ports.ask(questions, self.inboxes.len(), now) {
            self.inboxes.iter().for_each(|inbox| inbox.send(Message::CooledPorts(question.clone())));
        }
    }

    /// Records that this core has nothing left to send, or has failed. May be called again.
    pub(crate) fn set_drained(&self, core: usize) {
        self.drained[core].store(true, Ordering::Release);
    }

    /// Returns true if no core has anything left to send. Until then each core serves its queues,
    /// which receive packets for connections of the others.
    pub(crate) fn all_drained(&self) -> bool {
        self.drained.iter().all(|drained| drained.load(Ordering::Acquire))
    }

    /// Ends the run at once. The first failure is the one that is reported.
    pub(crate) fn fail(&self, error: RunError) {
        // The program may not look at the result of `Runtime::run`, which it gets later.
        tracing::error!(%error, "the runtime ends");
        self.has_failed.store(true, Ordering::Release);
        self.failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
        self.phase.send_replace(Phase::Ended);
    }

    /// Handles a core's report of a dead link; the core has handled `let_go` lost devices. Returns
    /// `false` if it must first handle another one and then report again.
    pub(crate) fn link_down(&self, IfaceId(interface): IfaceId, source: std::io::Error, let_go: usize) -> bool {
        if let_go != self.let_go.load(Ordering::Acquire) {
            return false;
        }
        if self.apps_left.load(Ordering::Acquire) == 0 {
            // Every application has finished, so only the last packets of closing connections are
            // lost.
            self.phase.send_replace(Phase::Ended);
            return true;
        }
        let known_gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner).contains(&interface);
        // A device of the same name may be a new device: compare the interface index.
        let index = self.openers.get(IfaceId(interface)).map(|opener| opener.index());
        if let Some(device) = self.devices.get(usize::from(interface)).filter(|_| !known_gone)
            && fs_xdp::NetDevice::find(device).is_ok_and(|now| index.is_none_or(|index| index == now.index))
        {
            // The device exists but its queue is dead, so its packets would be lost.
            self.fail(RunError::Link { device: device.clone(), interface, source });
        } else {
            self.device_gone(interface, source);
        }
        true
    }

    /// Continues the run with the remaining devices, or ends it without any.
    pub(crate) fn device_gone(&self, interface: u8, source: std::io::Error) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        if !gone.insert(interface) {
            return;
        }
        // There is one link in memory, without a name.
        let left = self.devices.len().max(1).saturating_sub(gone.len());
        drop(gone);
        let device = self.devices.get(usize::from(interface)).cloned().unwrap_or_else(|| format!("link {interface}"));
        if left == 0 {
            return self.fail(RunError::Link { device, interface, source });
        }
        tracing::error!(
            device,
            %source,
            left,
            "the device is gone: its connections continue if a device of this name comes back before they time out"
        );
        self.ports.let_go(usize::from(interface));
        self.let_go.fetch_add(1, Ordering::AcqRel);
        self.inboxes.iter().for_each(|inbox| inbox.send(Message::LetGo(IfaceId(interface))));
        // Last: without an opener, another thread may attach to the device again.
        self.openers.let_go(IfaceId(interface));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.control.stop();
    }
}
