//! The core that a packet belongs to: Receive Flow Deliver, the NIC's own choice, and the owner's
//! number in timestamps.
//!
//! Receive Flow Deliver is from Lin et al., "Scalable Kernel TCP Design and Implementation for
//! Short-Lived Connections" (Fastsocket), ASPLOS 2016, section 3.3. The core that opens a
//! connection encodes its number in bits of the source port. Every core that receives a reply can
//! then determine the owner without a shared table.

pub(crate) mod delivery;
mod timestamp;

use crate::config::Secret;
use crate::flow::CoreId;
use crate::rx::table::derive_key;

pub(crate) use timestamp::TsClock;

/// Ports below this are well known: only servers use them.
const WELL_KNOWN: u16 = 1024;

/// The core's number is encoded in port bits below this one. The default ephemeral range has 28232
/// ports from 32768 on: thirteen and a half runs of 2^11, so bits 0..=11 divide it evenly to 4 %.
/// With higher bits, a core's share of the range would depend on chance.
const PORT_BITS: u32 = 12;

/// The end that opened a packet's connection, as far as its ports tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// This host: the local port names the owner.
    Active,
    /// The peer: the owner is the core that received the SYN.
    Passive,
}

/// Receive Flow Deliver: encodes a core's number in the source ports of the connections that it
/// opens.
///
/// The port bits of the number, and the value that it is XORed with, derive from the secret at each
/// start, so that an outsider cannot target one core by choosing ports.
#[derive(Clone, Copy)]
pub(crate) struct Rfd {
    cores: u16,
    /// Number of port bits in use: log2 of `cores`, rounded up.
    count: u8,
    /// For each bit of the core's number, its port bit.
    bits: [u8; 16],
    xor: u16,
}

impl core::fmt::Debug for Rfd {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Not the bits: they are as sensitive as the secret.
        write!(f, "Rfd {{ cores: {} }}", self.cores)
    }
}

impl Rfd {
    /// Makes the encoding for `cores` cores (0 is taken as 1) that share `ports` source ports. It
    /// is equal on all cores that share the secret.
    ///
    /// Consecutive ports differ in their low bits only. With fewer ports than 2^[`PORT_BITS`], only
    /// bits in which they differ are used, so that each core has its share.
    pub(crate) fn new(cores: u16, ports: usize, secret: &Secret) -> Self {
        let cores = cores.max(1);
        // 16 at most: 65535 cores need all bits of the port.
        let count = u32::from(cores).next_power_of_two().trailing_zeros();
        let (mut random, xor) = derive_key(secret, b"receive flow deliver");
        let mut bits = core::array::from_fn(|i| i as u8);
        // Fisher-Yates shuffle, as far as needed: 16 draws of less than 4 bits from 64.
        let candidates = ports.max(1).ilog2().min(PORT_BITS).max(count);
        for i in 0..count {
            let left = u64::from(candidates - i);
            bits.swap(i as usize, i as usize + (random % left) as usize);
            random /= left;
        }
        Self { cores, count: count as u8, bits, xor: xor as u16 & ((1u32 << count) - 1) as u16 }
    }

    /// Returns the number of cores.
    pub(crate) fn cores(&self) -> u16 {
        self.cores
    }

    /// Returns the core that a local port of an active connection names. Returns `None` if there is
    /// no such core (the number of cores is not a power of two): such ports are not used for active
    /// connections.
    #[inline]
    pub(crate) fn core_of_port(&self, port: u16) -> Option<CoreId> {
        let mut core = 0;
        for (i, bit) in self.bits[..usize::from(self.count)].iter().enumerate() {
            core |= (port >> bit & 1) << i;
        }
        core ^= self.xor;
        (core < self.cores).then_some(CoreId(core))
    }

    /// Classifies a packet that no connection of this core claims, by the paper's rules in their
    /// order. A packet from a well-known port is a server's reply; one to a well-known port is a
    /// client's request. Otherwise the listen table decides: `listening` returns whether any core
    /// listens on the local port.
    #[inline]
    pub(crate) fn classify(&self, local_port: u16, remote_port: u16, listening: impl FnOnce() -> bool) -> Class {
        if remote_port < WELL_KNOWN {
            Class::Active
        } else if local_port < WELL_KNOWN || listening() {
            Class::Passive
        } else {
            Class::Active
        }
    }
}

#[cfg(test)]
mod tests;
