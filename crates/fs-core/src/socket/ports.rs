//! Choice of local ports for active connections.

use crate::config::Secret;
use crate::flow::CoreId;
use crate::rx::steer::Rfd;
use crate::rx::table::derive_key;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};
use siphasher::sip::SipHasher13;

pub(crate) use crate::port_set::PortSet;

/// Counters that destinations share by hash (TABLE_LENGTH of RFC 6056 3.3.4). Too low: a
/// destination learns more about how often we connect to others. Too high: more memory than 4 KiB.
const COUNTERS: usize = 1024;

/// Number of a core's own ports that are tried in order. Under steady churn the first one is free,
/// since it was released longest ago. Ports in long use may be consecutive, however.
const TRIES_IN_ORDER: u32 = 512;
/// Number of ports that are tried at random after that. With one port in 50 free, all tries fail in
/// 3 of 100,000 calls.
const TRIES_AT_RANDOM: u32 = 512;

/// The set of candidate ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Ports whose RFD bits name the core.
    Named,
    /// All ports. `free` knows by other means which are this core's, so that no other core takes
    /// them.
    All,
}

/// Chooses source ports of active connections on one core: the double-hash algorithm of RFC 6056
/// (3.3.4).
///
/// A port is reused for one destination as late as possible, so that the peer's TIME-WAIT is over.
/// Without the secret the sequence looks random. A port can serve many destinations at once: `free`
/// decides by the full flow.
#[derive(Clone)]
pub(crate) struct PortAllocator {
    core: CoreId,
    rfd: Rfd,
    keys: (u64, u64),
    /// Ports whose RFD bits name this core.
    ports: Vec<u16>,
    /// Ports of all cores.
    all: Vec<u16>,
    counters: Box<[u32]>,
    random: u64,
}

impl core::fmt::Debug for PortAllocator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PortAllocator {{ core: {:?}, ports: {} }}", self.core, self.ports.len())
    }
}

impl PortAllocator {
    /// Makes the allocator for the ports of `ports` that name `core`.
    pub(crate) fn new(secret: &Secret, core: CoreId, rfd: Rfd, ports: &PortSet) -> Self {
        // The sequences start differently on each core; otherwise two cores would use their ports
        // in the same order.
        let mut label = *b"ephemeral ports ..";
        label[16..].copy_from_slice(&core.0.to_be_bytes());
        let (random, _) = derive_key(secret, b"ephemeral port noise");
        let mut allocator = Self {
            core,
            rfd,
            keys: derive_key(secret, &label),
            ports: Vec::new(),
            all: Vec::new(),
            counters: alloc::vec![0; COUNTERS].into_boxed_slice(),
            random,
        };
        allocator.set_ports(ports);
        allocator
    }

    fn set_ports(&mut self, ports: &PortSet) {
        let Self { core, rfd, ports: mine, all, .. } = self;
        *all = ports.iter().filter(|&port| port != 0).collect();
        *mine = all.iter().copied().filter(|&port| rfd.core_of_port(port) == Some(*core)).collect();
    }

    /// Returns the ports that this core can use.
    #[cfg(test)]
    pub(crate) fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Returns a port for a connection from `local_ip` to `remote` that `free` accepts. Returns
    /// `None` if `free` rejects a bounded number of candidates (1024 of this core's).
    pub(crate) fn pick(
        &mut self,
        local_ip: IpAddr,
        remote: SocketAddr,
        choice: Choice,
        mut free: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        // On average, one of `cores` ports belongs to this core.
        let (len, cores) = match choice {
            Choice::Named => (self.ports.len() as u32, 1),
            Choice::All => (self.all.len() as u32, u32::from(self.rfd.cores())),
        };
        if len == 0 {
            return None;
        }
        let in_order = TRIES_IN_ORDER * cores;
        // F and G of RFC 6056 are the two halves of one hash.
        let hash = self.hash(local_ip, remote);
        let offset = (hash >> 32) as u32;
        let counter = hash as usize % COUNTERS;
        for step in 0..in_order.min(len) {
            let at = self.counters[counter].wrapping_add(step);
            let port = self.port_at(choice, offset, at);
            if free(port) {
                // Sometimes one more, so that a destination with the same counter cannot count our
                // connections exactly.
                let noise = u32::from(self.next_random().is_multiple_of(16));
                self.counters[counter] = at.wrapping_add(1 + noise);
                return Some(port);
            }
        }
        if len <= in_order {
            return None;
        }
        for _ in 0..TRIES_AT_RANDOM * cores {
            let at = self.next_random();
            let port = self.port_at(choice, offset, at);
            if free(port) {
                self.counters[counter] = at.wrapping_add(1);
                return Some(port);
            }
        }
        None
    }

    /// Returns element `counter` of a destination's sequence: all ports in turn, starting at
    /// `offset`.
    #[inline]
    fn port_at(&self, choice: Choice, offset: u32, counter: u32) -> u16 {
        let ports = match choice {
            Choice::Named => &self.ports,
            Choice::All => &self.all,
        };
        // In 64 bits: a sum that wrapped at 2^32 would jump back in the sequence.
        ports[((u64::from(offset) + u64::from(counter)) % ports.len() as u64) as usize]
    }

    fn hash(&self, local_ip: IpAddr, remote: SocketAddr) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        for ip in [local_ip, remote.ip()] {
            match ip.to_canonical() {
                IpAddr::V4(ip) => hasher.write(&ip.octets()),
                IpAddr::V6(ip) => hasher.write(&ip.octets()),
            }
        }
        hasher.write(&remote.port().to_be_bytes());
        hasher.finish()
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): noise, not a secret.
    fn next_random(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 32) as u32
    }
}

#[cfg(test)]
mod tests;
