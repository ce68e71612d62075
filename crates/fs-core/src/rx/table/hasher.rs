//! Keyed hash of a flow.

use crate::config::Secret;
use crate::flow::{FlowKey, Protocol};
use core::hash::Hasher;
use siphasher::sip::SipHasher24;

/// Derives two 64-bit keys for one purpose, so that no two purposes share a key. `label` names the
/// purpose.
pub(crate) fn derive_key(secret: &Secret, label: &[u8]) -> (u64, u64) {
    let (key, rest) = secret.0.split_at(16);
    let half = |i: u8| {
        let mut hasher = SipHasher24::new_with_key(key.try_into().unwrap_or(&[0; 16]));
        hasher.write(rest);
        hasher.write(&[i, label.len() as u8]);
        hasher.write(label);
        hasher.finish()
    };
    (half(0), half(1))
}

/// SipHash-1-3 of a flow under a secret key, so that nobody can choose flows that collide in one
/// bucket.
///
/// The message is local address, remote address, local port, remote port (all big-endian) and the
/// IP protocol number: 13 bytes for IPv4, 37 for IPv6. The lengths are known, so nothing is
/// buffered; the result equals that of any SipHash-1-3 for those bytes.
#[derive(Clone, Copy)]
pub(crate) struct FlowHasher {
    /// SipHash's initial state under the keys.
    initial: Sip13,
}

impl core::fmt::Debug for FlowHasher {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FlowHasher(..)")
    }
}

impl FlowHasher {
    /// Makes the hasher. It is equal on all cores that share the secret.
    pub(crate) fn new(secret: &Secret) -> Self {
        Self { initial: Sip13::new(derive_key(secret, b"flow table")) }
    }

    /// Returns the flow's hash.
    #[inline]
    pub(crate) fn hash(&self, protocol: Protocol, key: &FlowKey) -> u64 {
        let protocol = match protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        };
        let mut sip = self.initial;
        match *key {
            FlowKey::V4 { local, remote, local_port, remote_port } => {
                // SipHash reads little-endian words; the message's fields are big-endian.
                sip.word(u64::from(local.swap_bytes()) | u64::from(remote.swap_bytes()) << 32);
                sip.finish(tail(local_port, remote_port, protocol, 13))
            }
            FlowKey::V6 { local, remote, local_port, remote_port } => {
                for half in local.as_chunks::<8>().0.iter().chain(remote.as_chunks::<8>().0) {
                    sip.word(u64::from_le_bytes(*half));
                }
                sip.finish(tail(local_port, remote_port, protocol, 37))
            }
        }
    }
}

/// Returns the last word: ports, protocol, and in the top byte the message's length.
#[inline]
fn tail(local_port: u16, remote_port: u16, protocol: u8, len: u8) -> u64 {
    u64::from(local_port.swap_bytes())
        | u64::from(remote_port.swap_bytes()) << 16
        | u64::from(protocol) << 32
        | u64::from(len) << 56
}

/// SipHash (Aumasson, Bernstein 2012) with one round per word and three at the end.
#[derive(Clone, Copy)]
struct Sip13([u64; 4]);

impl Sip13 {
    fn new((k0, k1): (u64, u64)) -> Self {
        Self([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    #[inline]
    fn word(&mut self, m: u64) {
        self.0[3] ^= m;
        self.round();
        self.0[0] ^= m;
    }

    #[inline]
    fn finish(mut self, last: u64) -> u64 {
        self.word(last);
        self.0[2] ^= 0xff;
        self.round();
        self.round();
        self.round();
        self.0[0] ^ self.0[1] ^ self.0[2] ^ self.0[3]
    }

    #[inline]
    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.0 = [a, b, c, d];
    }
}
