//! Limits per client address: connections, and requests in a second. All cores and configurations
//! share the counts. A connection finds its address once, so a request takes no lock.

use crate::config::Limits;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

/// Parts of the table, each with a lock. Fewer: cores that accept wait for each other.
const PARTS: usize = 16;
/// Addresses in a part before old ones are removed.
const SWEEP: usize = 256;

/// The addresses of all clients.
struct Addresses {
    hasher: RandomState,
    parts: [Mutex<Part>; PARTS],
    started: Instant,
}

#[derive(Default)]
struct Part {
    addresses: HashMap<IpAddr, Arc<Address>>,
    /// Number of addresses at which old ones are removed.
    sweep_at: usize,
}

/// One address.
#[derive(Default)]
struct Address {
    connections: AtomicU32,
    /// The time at which its bucket is full again, in nanoseconds (GCRA's theoretical arrival time).
    full_at: AtomicU64,
}

/// A connection of an address.
pub(crate) struct OfAddress(Arc<Address>);

impl Drop for OfAddress {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

static ADDRESSES: LazyLock<Addresses> =
    LazyLock::new(|| Addresses { hasher: RandomState::new(), parts: Default::default(), started: Instant::now() });

/// Returns what counts as one client: an address, or the /64 of an IPv6 address, of which a client
/// can use each.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
    }
}

/// Counts a connection from `address`. Returns `None` if it has as many as it may.
pub(crate) fn enter(address: IpAddr, limits: &Limits) -> Option<OfAddress> {
    ADDRESSES.enter(address, limits.client_connections.map(std::num::NonZeroU32::get))
}

impl Addresses {
    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn enter(&self, address: IpAddr, most: Option<u32>) -> Option<OfAddress> {
        let client = client_of(address);
        let part = &self.parts[self.hasher.hash_one(client) as usize % PARTS];
        let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
        if part.addresses.len() >= part.sweep_at {
            let now = self.now();
            part.addresses.retain(|_, address| {
                address.connections.load(Ordering::Relaxed) > 0 || address.full_at.load(Ordering::Relaxed) > now
            });
            part.sweep_at = (2 * part.addresses.len()).max(SWEEP);
        }
        let address = part.addresses.entry(client).or_default();
        // Only holders of the lock add, so the count cannot exceed the limit.
        if most.is_some_and(|most| address.connections.load(Ordering::Relaxed) >= most) {
            return None;
        }
        address.connections.fetch_add(1, Ordering::Relaxed);
        Some(OfAddress(address.clone()))
    }
}

impl OfAddress {
    /// Returns true if its client may send a request now.
    pub(crate) fn may_ask(&self, limits: &Limits) -> bool {
        let Some(rate) = limits.client_requests else { return true };
        let burst = limits.client_burst.as_ref().map_or(rate, |burst| *burst.get_ref());
        self.0.take(ADDRESSES.now(), rate.get(), burst.get())
    }
}

impl Address {
    /// Takes a token of a bucket with `burst` tokens, which gets `rate` in a second.
    fn take(&self, now: u64, rate: u32, burst: u32) -> bool {
        let token = 1_000_000_000 / u64::from(rate);
        let room = token * u64::from(burst);
        let taken = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
            let next = full_at.max(now) + token;
            (next - now <= room).then_some(next)
        });
        taken.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_has_a_burst_and_a_rate() {
        let address = Address::default();
        let taken = |now, times: u32| (0..times).filter(|_| address.take(now, 10, 3)).count();
        assert_eq!(taken(0, 10), 3);
        assert_eq!(taken(99_999_999, 10), 0);
        assert_eq!(taken(100_000_000, 10), 1);
        assert_eq!(taken(350_000_000, 10), 2);
        assert_eq!(taken(10_000_000_000, 10), 3);
    }

    #[test]
    fn connections_are_counted_and_old_addresses_removed() {
        let addresses = Addresses { hasher: RandomState::new(), parts: Default::default(), started: Instant::now() };
        let own: IpAddr = "192.0.2.1".parse().unwrap();
        let open: Vec<OfAddress> = (0..3).map_while(|_| addresses.enter(own, Some(2))).collect();
        assert_eq!(open.len(), 2);
        // The same address in IPv6's form, another one, and a network of one client.
        assert!(addresses.enter("::ffff:192.0.2.1".parse().unwrap(), Some(2)).is_none());
        let other = addresses.enter("2001:db8::1".parse().unwrap(), Some(1));
        assert!(other.is_some() && addresses.enter("2001:db8::2".parse().unwrap(), Some(1)).is_none());
        drop(open);
        assert!(addresses.enter(own, Some(1)).is_some());
        for number in 0..100_000_u32 {
            drop(addresses.enter(IpAddr::from(number.to_be_bytes()), None));
        }
        let known: usize = addresses.parts.iter().map(|part| part.lock().unwrap().addresses.len()).sum();
        assert!(known <= PARTS * (SWEEP + 2), "{known}");
    }
}
