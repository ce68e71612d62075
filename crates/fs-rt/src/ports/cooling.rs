//! Ports without users: they stay ours for a while, and while connections still send from them.

use super::{LeasedAddress, Ports};
use fs_core::Protocol;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Ports whose cool-down has ended. Each core is asked whether a connection that its application
/// has closed is still there: a slow peer may take longer than the cool-down.
pub(crate) struct CooledPorts {
    /// By port. True: a core has a connection there.
    places: Vec<(LeasedAddress, AtomicBool)>,
    /// Cores that have not answered.
    left: AtomicUsize,
}

impl CooledPorts {
    /// Makes the question about `places` to so many cores.
    pub(crate) fn new(mut places: Vec<LeasedAddress>, cores: usize) -> Self {
        places.sort_by_key(|place| place.at.port());
        let places = places.into_iter().map(|place| (place, AtomicBool::new(false))).collect();
        Self { places, left: AtomicUsize::new(cores) }
    }

    /// Records a core's answer. `locals`: the local addresses of its TCP connections.
    pub(crate) fn answer(&self, locals: impl Iterator<Item = SocketAddr>) {
        for local in locals {
            let first = self.places.partition_point(|(place, _)| place.at.port() < local.port());
            let of_port = self.places[first..].iter().take_while(|(place, _)| place.at.port() == local.port());
            for (_, in_use) in of_port.filter(|(place, _)| place.has(local)) {
                in_use.store(true, Ordering::Relaxed);
            }
        }
        self.left.fetch_sub(1, Ordering::Release);
    }

    /// Returns true if all cores have answered.
    pub(crate) fn is_answered(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }
}

impl LeasedAddress {
    /// Returns true if a TCP connection with this local address belongs to the place.
    pub(super) fn has(self, local: SocketAddr) -> bool {
        let ip = local.ip();
        let is_it = |end: SocketAddr| {
            let own = end.ip().to_canonical();
            own == ip || own.is_unspecified() && own.is_ipv4() == ip.is_ipv4()
        };
        self.protocol == Protocol::Tcp && self.at.port() == local.port() && self.ends().any(is_it)
    }
}

impl Ports {
    /// Returns ports whose cool-down has ended. The caller then calls [`Ports::free_answered`] with
    /// them.
    pub(crate) fn take_cooled(&self, now: Instant) -> Vec<LeasedAddress> {
        self.cooling().extract_if(.., |(until, _)| *until <= now).map(|(_, place)| place).collect()
    }

    /// Frees the ports that no core uses. The others cool down again.
    pub(crate) fn free_answered(&self, asked: &CooledPorts, now: Instant) {
        let mut used = self.lock();
        for (place, in_use) in &asked.places {
            // In use again, or listed twice because it was used in between: the last entry counts.
            let is_cool = |until: Option<Instant>| until.is_none_or(|until| until <= now);
            let Some(entry) = used.get_mut(place).filter(|entry| entry.users == 0 && is_cool(entry.until)) else {
                continue;
            };
            if in_use.load(Ordering::Relaxed) {
                let until = now + self.cool_down;
                entry.until = Some(until);
                self.cooling().push((until, *place));
            } else {
                self.free(&mut used, *place);
            }
        }
    }

    /// Frees ports whose cool-down has ended, without asking the cores.
    pub(crate) fn free_cooled(&self, now: Instant) {
        self.free_answered(&CooledPorts::new(self.take_cooled(now), 0), now);
    }
}
