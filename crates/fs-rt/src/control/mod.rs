//! The control plane: what the kernel knows about addresses, routes and neighbours, mirrored into every core.
//!
//! One thread waits for the kernel's notices and the cores' questions; a core's stack is only ever touched by its
//! core, which finds the changes in its inbox.

mod late_queue;

use crate::kernel::{Line, Mirror, Ways, WorldChange};
use crate::ports::Addresses;
use crate::shared::{Message, Shared};
use crate::sys::wait_readable;
use fs_core::IfaceId;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
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

/// Hands the mirror to a thread of its own. `told`: what the devices' programs know.
pub(crate) fn start(shared: &Arc<Shared>, mirror: Mirror, told: Addresses) -> io::Result<()> {
    let Some(line) = shared.control.line.clone() else { return Ok(()) };
    let (ways, shared) = (shared.control.ways.clone(), Arc::downgrade(shared));
    std::thread::Builder::new().name("fs-control".into()).spawn(move || {
        run(&line, ways.as_deref(), mirror, told, &shared);
    })?;
    Ok(())
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
    while !line.is_over() {
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
            late_queue::open_new(&shared);
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
