//! What the NIC does: the Toeplitz hash and its indirection table.

use crate::flow::FlowKey;
use alloc::vec::Vec;

/// The Toeplitz hash (Microsoft, "RSS hashing types") over addresses and ports of a packet that comes *in*
/// for this flow: source is the remote side. A key shorter than 16 bytes (IPv4) or 40 (IPv6) is taken as if
/// zeros followed.
pub fn toeplitz(key: &[u8], flow: &FlowKey) -> u32 {
    match *flow {
        FlowKey::V4 { local, remote, local_port, remote_port } => {
            let mut input = [0; 12];
            input[..4].copy_from_slice(&remote.to_be_bytes());
            input[4..8].copy_from_slice(&local.to_be_bytes());
            input[8..10].copy_from_slice(&remote_port.to_be_bytes());
            input[10..].copy_from_slice(&local_port.to_be_bytes());
            hash(key, &input)
        }
        FlowKey::V6 { local, remote, local_port, remote_port } => {
            let mut input = [0; 36];
            input[..16].copy_from_slice(&remote);
            input[16..32].copy_from_slice(&local);
            input[32..34].copy_from_slice(&remote_port.to_be_bytes());
            input[34..].copy_from_slice(&local_port.to_be_bytes());
            hash(key, &input)
        }
    }
}

/// Each set bit i of the input adds (XOR) the 32 bits of the key that begin at bit i.
fn hash(key: &[u8], input: &[u8]) -> u32 {
    let mut following = key.iter().copied().chain(core::iter::repeat(0));
    let mut next = || u64::from(following.next().unwrap_or(0));
    // The top 32 bits are the key at the current bit, the 8 below are what moves in.
    let mut window = next() << 24 | next() << 16 | next() << 8 | next();
    let mut result = 0;
    for byte in input {
        window = window << 8 | next();
        for bit in 0..8 {
            // Bit 7 comes first, under the window's key bits 0..32.
            let chosen = u32::from(byte >> (7 - bit) & 1).wrapping_neg();
            result ^= (window >> (8 - bit)) as u32 & chosen;
        }
    }
    result
}

/// A NIC's receive-side scaling as read from the device: which queue a flow's packets come in on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssView {
    /// The Toeplitz key, usually 40 or 52 bytes.
    pub key: Vec<u8>,
    /// Queue by hash; the length is a power of two on all devices known.
    pub indirection: Vec<u16>,
}

impl RssView {
    /// The queue on which packets of `flow` come in; 0 with an empty indirection table.
    pub fn queue_of(&self, flow: &FlowKey) -> u16 {
        let slots = self.indirection.len();
        if slots == 0 {
            return 0;
        }
        self.indirection[toeplitz(&self.key, flow) as usize % slots]
    }
}
