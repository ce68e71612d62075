//! The control plane: mirrors the kernel's addresses, routes and neighbours into every core.
//!
//! One thread waits for the kernel's notifications and the cores' questions. It sends changes to
//! the cores' inboxes; only a core itself accesses its stack.

mod late_queue;

use crate::kernel::{Line, Mirror, RouteLookup, WorldChange};
use crate::ports::Addresses;
use crate::ports::cooling::CooledQuestions;
use crate::shared::{Message, Shared};
use crate::sys::wait_readable;
use fs_core::IfaceId;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Interval at which stale neighbours are refreshed. The kernel keeps an entry fresh for 15 to 45 s
/// (`base_reachable_time`, 30 s) and may forget it 60 s after that (`gc_stale_time`).
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// Stale neighbours refreshed per round: one ARP or NDISC exchange each.
const REFRESH_MOST: usize = 256;
/// Delay before the kernel is asked again after an error.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Interval of work that no event triggers: returning ports after their cool-down, and opening new
/// queues of devices.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Interval at which the kernel is asked whether it still has connections at ports that are ours now.
/// Shorter: it walks over its table of connections more often. Longer: each packet to these ports costs
/// a look-up there for longer.
const ASK_SOCKETS_EVERY: Duration = Duration::from_secs(10);

/// Starts the thread that owns the mirror. `told`: the addresses that the devices' programs have.
pub(crate) fn start(shared: &Arc<Shared>, mirror: Mirror, told: Addresses) -> io::Result<()> {
    let Some(line) = shared.control.line.clone() else { return Ok(()) };
    let (routes, shared) = (shared.control.routes.clone(), Arc::downgrade(shared));
    std::thread::Builder::new().name("fs-control".into()).spawn(move || {
        run(&line, routes.as_deref(), mirror, told, &shared);
    })?;
    Ok(())
}

fn run(line: &Line, routes: Option<&RouteLookup>, mut mirror: Mirror, mut told: Addresses, shared: &Weak<Shared>) {
    let mut refreshed = Instant::now();
    let mut counted = refreshed;
    let mut failing = false;
    let mut questions = Vec::new();
    // The last addresses that the host had. The program of a device that comes back needs them.
    let mut known: VecDeque<IpAddr> = told.ours.iter().copied().collect();
    let mut asked_sockets = refreshed;
    let mut cooled = CooledQuestions::default();
    // The reason why a device that came back could not be attached, to log it once, and the time of
    // the attempt. Attaching itself causes notifications, and a card may reset its rings for it.
    let mut refusals: HashMap<usize, (String, Instant)> = HashMap::new();
    while !line.is_over() {
        let mut changes = Vec::new();
        let waited = wait_readable(&[mirror.netlink.as_fd(), line.doorbell.as_fd()], SWEEP_EVERY);
        let Some(shared) = shared.upgrade() else { return };
        // Connections continue after an error: the cores use their last state until the kernel
        // answers again.
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
            if let Some(routes) = routes {
                routes.changed(mirror.devices.iter().map(|device| device.index));
            }
        }
        line.doorbell.clear();
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
        let mut is_swept = false;
        if now.duration_since(refreshed) >= REFRESH_EVERY {
            refreshed = now;
            if let Err(error) = mirror.refresh_stale(REFRESH_MOST) {
                tracing::warn!(%error, "cannot refresh neighbours");
            }
        }
        shared.free_ports(&mut cooled, now);
        // Not after each notification, because the kernel replies under its RTNL lock.
        if now.duration_since(counted) >= SWEEP_EVERY {
            counted = now;
            late_queue::open_new(&shared);
            shared.ports.tend();
            is_swept = true;
        }
        if now.duration_since(asked_sockets) >= ASK_SOCKETS_EVERY {
            asked_sockets = now;
            end_sharing(&shared, &mirror);
        }
        for (n, _) in mirror.devices.iter().enumerate().filter(|(_, device)| device.gone) {
            shared.device_gone(n as u8, io::Error::from_raw_os_error(libc::ENODEV));
        }
        // Before the addresses, so that packets for a returned address of ours are recognized by
        // the new link address.
        for change in &changes {
            if let WorldChange::Device { iface, mac, .. } = change {
                shared.ports.set_mac(usize::from(iface.0), *mac);
            }
        }
        tell_addresses(&mirror, &mut told, &mut known, &shared);
        // No notification tells when another program leaves a device.
        let waits = |n| {
            let is_refused = refusals.get(&n).is_some_and(|(_, at)| now.duration_since(*at) < TAKE_AGAIN_EVERY);
            is_refused || (shared.openers.is_late(IfaceId(n as u8)) && !is_swept)
        };
        let gone = mirror.devices.iter().enumerate().filter(|(n, device)| device.gone && !waits(*n));
        let gone: Vec<usize> = gone.map(|(n, _)| n).collect();
        let mut taken = Vec::new();
        for n in gone {
            match shared.take_again(n, known.make_contiguous(), &told) {
                Some(Ok(opener)) => {
                    refusals.remove(&n);
                    let (iface, index) = (IfaceId(n as u8), opener.index());
                    mirror.adopt(n, index);
                    changes.push(WorldChange::Index { iface, index });
                    taken.push((iface, opener.queues()));
                    // Without waiting for the next notification.
                    line.doorbell.notify();
                }
                Some(Err(error)) => {
                    if refusals.get(&n).is_none_or(|(said, _)| *said != error) {
                        tracing::error!(
                            device = n,
                            error,
                            "the device cannot be opened, so the kernel has its packets"
                        );
                    }
                    refusals.insert(n, (error, now));
                }
                None => {}
            }
        }
        // The cores must know the addresses before they get packets. After an error they are read in
        // the next round.
        if !taken.is_empty() && mirror.follow(&mut changes).is_ok() {
            tell_addresses(&mirror, &mut told, &mut known, &shared);
        }
        for change in changes {
            tracing::debug!(?change, "the kernel's tables changed");
            for inbox in shared.inboxes.iter() {
                inbox.send(Message::World(change.clone()));
            }
        }
        for (iface, queues) in taken {
            queues.into_iter().for_each(|queue| shared.open_queue(iface, queue, false));
        }
    }
}

/// Ends the sharing of ports at which the kernel has no connections through devices any more.
fn end_sharing(shared: &Shared, mirror: &Mirror) {
    for port in shared.ports.shared_with_kernel() {
        match mirror.has_connection(port) {
            Ok(true) => {}
            Ok(false) => {
                tracing::debug!(port, "the kernel has no connections at this port any more");
                shared.ports.end_sharing(port);
            }
            Err(error) => tracing::debug!(port, %error, "cannot ask for the kernel's connections"),
        }
    }
}

/// Tells the devices' programs the host's addresses, if they are other ones than `told`.
fn tell_addresses(mirror: &Mirror, told: &mut Addresses, known: &mut VecDeque<IpAddr>, shared: &Shared) {
    let addresses = mirror.addresses();
    if addresses != *told {
        remember(known, &addresses.ours);
        shared.ports.set_addresses(&addresses);
        *told = addresses;
    }
}

/// Interval between attempts to attach to a device that came back and failed. Smaller: a program is
/// attached and detached all the time.
const TAKE_AGAIN_EVERY: Duration = Duration::from_secs(10);

/// Number of former addresses to remember: as many as an XDP program's table of absent addresses
/// holds.
const MAX_FORMER_ADDRESSES: usize = 1024;

fn remember(known: &mut VecDeque<IpAddr>, ours: &[IpAddr]) {
    known.retain(|address| !ours.contains(address));
    known.extend(ours);
    let too_many = known.len().saturating_sub(MAX_FORMER_ADDRESSES);
    known.drain(..too_many);
}
