//! Ports without users: they stay ours for a while, and while connections still send from them.

use super::{AllUsed, LeasedAddress, Ports};
use fs_core::Protocol;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Interval between two questions to the cores, each of which reads all slots of its connections.
/// Too low: a host whose ports cool down one after another reads them in every turn of the control
/// thread. Too high: another program waits for longer for a port.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// Ports whose cool-down has ended. Each core is asked whether a connection that its application
/// has closed is still there: a slow peer may take longer than the cool-down.
pub(crate) struct CooledPorts {
    /// By port. For each of the place's ends: a core has a connection there.
    places: Vec<(LeasedAddress, [AtomicBool; 2])>,
    /// Cores that have not answered.
    left: AtomicUsize,
}

impl CooledPorts {
    /// Makes the question about `places` to so many cores. If no place is TCP's, none need answer.
    pub(crate) fn new(mut places: Vec<LeasedAddress>, cores: usize) -> Self {
        let has_tcp = places.iter().any(|place| place.protocol == Protocol::Tcp);
        places.sort_by_key(|place| place.at.port());
        let places = places.into_iter().map(|place| (place, Default::default())).collect();
        Self { places, left: AtomicUsize::new(if has_tcp { cores } else { 0 }) }
    }

    /// Records a core's answer. `locals`: the local addresses of its TCP connections that their
    /// applications have closed.
    pub(crate) fn answer(&self, locals: impl Iterator<Item = SocketAddr>) {
        for local in locals {
            let first = self.places.partition_point(|(place, _)| place.at.port() < local.port());
            let of_port = self.places[first..].iter().take_while(|(place, _)| place.at.port() == local.port());
            for (place, in_use) in of_port {
                let ends = place.ends().zip(in_use).filter(|(end, _)| place.has(*end, local));
                ends.for_each(|(_, in_use)| in_use.store(true, Ordering::Relaxed));
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
    /// Returns true if a TCP connection with this local address belongs to this end of the place.
    pub(super) fn has(self, end: SocketAddr, local: SocketAddr) -> bool {
        let (own, ip) = (end.ip().to_canonical(), local.ip());
        let is_it = own == ip || own.is_unspecified() && own.is_ipv4() == ip.is_ipv4();
        self.protocol == Protocol::Tcp && self.at.port() == local.port() && is_it
    }
}

/// Returns true if a place with users gets the packets for this address, too.
fn is_used_otherwise(used: &AllUsed, protocol: Protocol, end: SocketAddr) -> bool {
    let dual = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    let any = if end.ip().to_canonical().is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { dual };
    let ends = [(end.ip(), false), (any, false), (any, true), (dual, false)];
    ends.into_iter().any(|(ip, v6_only)| {
        let place = LeasedAddress { protocol, at: SocketAddr::new(ip, end.port()), v6_only };
        used.get(&place).is_some_and(|entry| entry.users > 0)
    })
}

/// The questions about cooled ports.
#[derive(Default)]
pub(crate) struct CooledQuestions {
    asked: Option<Arc<CooledPorts>>,
    /// Time of the next one.
    next: Option<Instant>,
}

impl Ports {
    /// Frees the ports that the cores have answered about, and returns the next question if it is
    /// due. Called regularly.
    pub(crate) fn ask(&self, questions: &mut CooledQuestions, cores: usize, now: Instant) -> Option<Arc<CooledPorts>> {
        let CooledQuestions { asked, next } = questions;
        if let Some(answered) = asked.take_if(|asked| asked.is_answered()) {
            self.free_answered(&answered, now);
        }
        if asked.is_some() || next.is_some_and(|next| now < next) {
            return None;
        }
        *next = Some(now + ASK_EVERY);
        let question = Arc::new(CooledPorts::new(self.take_cooled(now), cores));
        if question.is_answered() {
            self.free_answered(&question, now);
            return None;
        }
        *asked = Some(question.clone());
        Some(question)
    }

    /// Returns ports whose cool-down has ended. The caller then calls [`Ports::free_answered`] with
    /// them.
    pub(crate) fn take_cooled(&self, now: Instant) -> Vec<LeasedAddress> {
        self.cooling().extract_if(.., |(until, _)| *until <= now).map(|(_, place)| place).collect()
    }

    /// Frees the ports that no core uses, or whose connections' packets are ours because of another
    /// place, too: a server that listens there would keep them for ever. The others cool down again.
    pub(crate) fn free_answered(&self, asked: &CooledPorts, now: Instant) {
        let mut used = self.lock();
        for (place, in_use) in &asked.places {
            // In use again, or listed twice because it was used in between: the last entry counts.
            let is_cool = |until: Option<Instant>| until.is_none_or(|until| until <= now);
            if !used.get(place).is_some_and(|entry| entry.users == 0 && is_cool(entry.until)) {
                continue;
            }
            let ends = place.ends().zip(in_use).filter(|(_, in_use)| in_use.load(Ordering::Relaxed));
            let mut needed = ends.filter(|(end, _)| !is_used_otherwise(&used, place.protocol, *end));
            if needed.next().is_some() {
                let until = now + self.cool_down;
                if let Some(entry) = used.get_mut(place) {
                    entry.until = Some(until);
                }
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
