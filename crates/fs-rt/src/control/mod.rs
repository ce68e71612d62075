//! The control plane: what the kernel knows about addresses, routes and neighbours, mirrored into every core.
//!
//! One thread waits for the kernel's notices and the cores' questions; a core's stack is only ever touched by its
//! core, which finds the changes in its inbox.

mod mirror;
pub mod netlink;
mod way;

pub(crate) use mirror::Mirror;
pub(crate) use way::{KnownWays, Way, Ways};

use crate::core::CoreStack;
use crate::ports::Addresses;
use crate::runtime::{Control as Message, Shared};
use crate::sys::{EventFd, wait_readable};
use fs_core::{Cidr, IfaceId, Route};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often stale neighbours are refreshed. The kernel keeps an entry fresh for 15 to 45 s
/// (`base_reachable_time`, 30 s) and may forget it 60 s after that (`gc_stale_time`).
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// Stale neighbours refreshed at a time: one ARP or NDISC exchange each.
const REFRESH_MOST: usize = 256;
/// How long after an error the kernel is asked again.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// How late a port may be given back after its cool-down, and a queue that a device has got be opened: nothing tells of those.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// A change of the world, for every core's stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorldChange {
    Addresses {
        iface: IfaceId,
        addrs: Vec<Cidr>,
    },
    Device {
        iface: IfaceId,
        mac: [u8; 6],
        mtu: u16,
    },
    /// The number of a device that is back.
    Index {
        iface: IfaceId,
        index: u32,
    },
    Routes(Vec<Route>),
    Neighbour {
        iface: IfaceId,
        addr: IpAddr,
        mac: Option<[u8; 6]>,
    },
    NeighbourGone {
        iface: IfaceId,
        addr: IpAddr,
    },
}

impl WorldChange {
    pub(crate) fn apply(self, stack: &mut CoreStack) {
        match self {
            WorldChange::Addresses { iface, addrs } => stack.update_interface(iface, |i| i.addrs = addrs),
            WorldChange::Device { iface, mac, mtu } => stack.update_interface(iface, |i| (i.mac, i.mtu) = (mac, mtu)),
            WorldChange::Index { iface, index } => stack.set_scope(iface, index),
            WorldChange::Routes(routes) => stack.set_routes(routes),
            WorldChange::Neighbour { iface, addr, mac } => stack.set_neighbour(iface, addr, mac),
            WorldChange::NeighbourGone { iface, addr } => stack.remove_neighbour(iface, addr),
        }
    }
}

/// The control plane's end that the runtime holds. Without a thread (standalone addressing) there is nobody to ask.
#[derive(Debug)]
pub(crate) struct Control {
    line: Option<Arc<Line>>,
    /// `None`: what connects has asked itself, or has no kernel to ask.
    pub(crate) ways: Option<Arc<Ways>>,
}

#[derive(Debug)]
struct Line {
    questions: Mutex<Vec<(IfaceId, IpAddr)>>,
    bell: EventFd,
    over: AtomicBool,
}

impl Line {
    /// Exchanges what was asked for `empty`. Both buffers stay in use: memory given back would belong to the arena of the core that
    /// asked, whose lock that core takes whenever it allocates.
    fn swap(&self, empty: &mut Vec<(IfaceId, IpAddr)>) {
        debug_assert!(empty.is_empty(), "questions would be asked twice");
        std::mem::swap(&mut *self.questions.lock().unwrap_or_else(PoisonError::into_inner), empty);
    }
}

impl Control {
    /// For standalone addressing.
    pub(crate) fn none() -> Self {
        Self { line: None, ways: None }
    }

    /// Starts with [`Control::start`].
    pub(crate) fn new(ways: Option<Ways>) -> io::Result<Self> {
        let line = Line { questions: Mutex::default(), bell: EventFd::new()?, over: AtomicBool::new(false) };
        Ok(Self { line: Some(Arc::new(line)), ways: ways.map(Arc::new) })
    }

    /// Hands the mirror to a thread of its own. `told`: what the devices' programs know.
    pub(crate) fn start(&self, mirror: Mirror, told: Addresses, shared: Weak<Shared>) -> io::Result<()> {
        let Some(line) = self.line.clone() else { return Ok(()) };
        let ways = self.ways.clone();
        std::thread::Builder::new().name("fs-control".into()).spawn(move || {
            run(&line, ways.as_deref(), mirror, told, &shared);
        })?;
        Ok(())
    }

    /// Asks for a neighbour's MAC address; the answer comes to the inboxes.
    pub(crate) fn neighbour_needed(&self, iface: IfaceId, addr: IpAddr) {
        let Some(line) = &self.line else {
            debug_assert!(false, "a standalone stack asked the kernel for {addr}");
            return;
        };
        line.questions.lock().unwrap_or_else(PoisonError::into_inner).push((iface, addr));
        line.bell.ring();
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        if let Some(line) = &self.line {
            line.over.store(true, Ordering::Release);
            line.bell.ring();
        }
    }
}

fn run(line: &Line, ways: Option<&Ways>, mut mirror: Mirror, mut told: Addresses, shared: &Weak<Shared>) {
    let mut refreshed = Instant::now();
    let mut counted = refreshed;
    let mut failing = false;
    let mut questions = Vec::new();
    // Addresses that the host has had, the last ones: a device that comes back is to know them.
    let mut known: VecDeque<IpAddr> = told.ours.iter().copied().collect();
    // Why a device that is there again could not be taken, said once, and when: attaching makes news of the device, and a card may
    // set its rings up anew for it.
    let mut refusals: HashMap<usize, (String, Instant)> = HashMap::new();
    while !line.over.load(Ordering::Acquire) {
        let mut changes = Vec::new();
        let waited = wait_readable(&[mirror.netlink.as_fd(), line.bell.as_fd()], SWEEP_EVERY);
        let Some(shared) = shared.upgrade() else { return };
        // Connections do not end for it: the cores go on with what they know, until the kernel answers again.
        match waited.and_then(|()| mirror.follow(&mut changes)) {
            Ok(()) => failing = false,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "cannot read the kernel's addresses, routes and neighbours: retrying");
                }
                std::thread::sleep(RETRY_AFTER);
                if let Err(error) = mirror.reopen() {
                    tracing::debug!(%error, "no netlink socket");
                }
            }
        }
        if std::mem::take(&mut mirror.news) {
            shared.refresh_offloads();
            if let Some(ways) = ways {
                ways.changed(mirror.devices.iter().map(|device| device.index));
            }
        }
        line.bell.clear();
        line.swap(&mut questions);
        for (iface, addr) in questions.drain(..) {
            match mirror.need(iface, addr) {
                Ok(answer) => changes.extend(answer),
                Err(error) => {
                    tracing::warn!(%addr, %error, "the kernel refuses to resolve a neighbour");
                    changes.push(WorldChange::Neighbour { iface, addr, mac: None });
                }
            }
        }
        let now = Instant::now();
        if now.duration_since(refreshed) >= REFRESH_EVERY {
            refreshed = now;
            if let Err(error) = mirror.refresh_stale(REFRESH_MOST) {
                tracing::warn!(%error, "cannot refresh neighbours");
            }
        }
        shared.ports.free_cooled(now);
        // Not with each notice: the kernel answers under its RTNL lock.
        if now.duration_since(counted) >= SWEEP_EVERY {
            counted = now;
            shared.open_new_queues();
        }
        for (n, _) in mirror.devices.iter().enumerate().filter(|(_, device)| device.gone) {
            shared.device_gone(n as u8, io::Error::from_raw_os_error(libc::ENODEV));
        }
        // Before the addresses: what is for an address of ours that is back is known as ours by the new link address.
        for change in &changes {
            if let WorldChange::Device { iface, mac, .. } = change {
                shared.ports.set_mac(usize::from(iface.0), *mac);
            }
        }
        let addresses = mirror.addresses();
        if addresses != told {
            remember(&mut known, &addresses.ours);
            shared.ports.set_addresses(&addresses);
            told = addresses;
        }
        let waits = |n| refusals.get(&n).is_some_and(|(_, at)| now.duration_since(*at) < TAKE_AGAIN_EVERY);
        let gone = mirror.devices.iter().enumerate().filter(|(n, device)| device.gone && !waits(*n));
        let gone: Vec<usize> = gone.map(|(n, _)| n).collect();
        for n in gone {
            match shared.take_again(n, known.make_contiguous(), &told) {
                Some(Ok(index)) => {
                    refusals.remove(&n);
                    mirror.adopt(n, index);
                    changes.push(WorldChange::Index { iface: IfaceId(n as u8), index });
                    // Without waiting for news of it.
                    line.bell.ring();
                }
                Some(Err(error)) => {
                    if refusals.get(&n).is_none_or(|(said, _)| *said != error) {
                        tracing::error!(
                            device = n,
                            error,
                            "the device is back but cannot be opened, so the kernel has its packets"
                        );
                    }
                    refusals.insert(n, (error, now));
                }
                None => {}
            }
        }
        for change in changes {
            tracing::debug!(?change, "the kernel's tables changed");
            for inbox in shared.inboxes.iter() {
                inbox.send(Message::World(change.clone()));
            }
        }
    }
}

/// How often a device that is back, and was refused, is tried again. Smaller: a program attached and detached all the time.
const TAKE_AGAIN_EVERY: Duration = Duration::from_secs(10);

/// Addresses that are remembered of those that the host has had: as many as an XDP program has away.
const KNOWN_MOST: usize = 1024;

fn remember(known: &mut VecDeque<IpAddr>, ours: &[IpAddr]) {
    known.retain(|address| !ours.contains(address));
    known.extend(ours);
    let too_many = known.len().saturating_sub(KNOWN_MOST);
    known.drain(..too_many);
}

#[cfg(test)]
mod tests;
