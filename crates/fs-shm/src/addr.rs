//! Addresses as they lie in a block: 32 bytes, four words.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::atomic::Ordering::Relaxed;

use crate::word::AtomicU64;

/// An address and port of one side: word 0 = port | family (4 or 6, 0 = none) << 16 | IPv6 flow label << 32,
/// word 1 = IPv6 scope, words 2 and 3 = the address in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Addr(pub [u64; 4]);

impl Addr {
    pub(crate) fn load(words: &[AtomicU64; 4]) -> Self {
        Addr([words[0].load(Relaxed), words[1].load(Relaxed), words[2].load(Relaxed), words[3].load(Relaxed)])
    }

    pub(crate) fn store(self, words: &[AtomicU64; 4]) {
        for (place, word) in words.iter().zip(self.0) {
            place.store(word, Relaxed);
        }
    }

    pub(crate) fn with_port(self, port: u16) -> Self {
        let [first, rest @ ..] = self.0;
        let [scope, high, low] = rest;
        Addr([first & !0xffff | u64::from(port), scope, high, low])
    }

    /// `None` if unset or not an address (a hostile peer wrote it).
    pub fn to_std(self) -> Option<SocketAddr> {
        let port = self.0[0] as u16;
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&self.0[2].to_ne_bytes());
        octets[8..].copy_from_slice(&self.0[3].to_ne_bytes());
        match (self.0[0] >> 16) as u16 {
            4 => {
                let v4 = Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]);
                Some(SocketAddrV4::new(v4, port).into())
            }
            6 => {
                let (flow, scope) = ((self.0[0] >> 32) as u32, self.0[1] as u32);
                Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, flow, scope).into())
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for Addr {
    fn from(addr: SocketAddr) -> Self {
        let mut octets = [0; 16];
        let (family, flow, scope) = match addr {
            SocketAddr::V4(_) => (4, 0, 0),
            SocketAddr::V6(v6) => (6, v6.flowinfo(), v6.scope_id()),
        };
        match addr.ip() {
            IpAddr::V4(v4) => octets[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => octets.copy_from_slice(&v6.octets()),
        }
        let half = |i: usize| u64::from_ne_bytes(std::array::from_fn(|k| octets[i + k]));
        let word0 = u64::from(addr.port()) | family << 16 | u64::from(flow) << 32;
        Addr([word0, u64::from(scope), half(0), half(8)])
    }
}
