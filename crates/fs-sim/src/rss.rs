//! The shard whose queue receives a packet. Real devices hash the flow; they are also reconfigured,
//! and some do not hash at all. The engine must handle all of these.

use crate::rng::{Rng, mix};
use fs_core::{FlowKey, Framing};
use std::net::IpAddr;

/// Distribution of packets over a device's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rss {
    /// By a hash of the flow, unrelated to the ports that the engine chooses.
    Flow,
    /// By a hash of the flow whose key changes from time to time (a new indirection table).
    Changing,
    /// At random, packet by packet. SYNs by a hash of the flow whose key changes from time to time,
    /// though: two copies at the same moment on two cores would be two handshakes with one ISN,
    /// which no device causes.
    Random,
    /// All packets on queue 0.
    One,
}

impl Rss {
    /// Returns the queue of a packet. `epoch` counts changes of the indirection table.
    pub fn queue(self, packet: &[u8], framing: Framing, queues: usize, epoch: u64, rng: &mut Rng) -> usize {
        let hash = match self {
            Rss::One => 0,
            Rss::Random if is_syn(packet, framing) => flow_hash(packet, framing, epoch),
            Rss::Random => rng.next(),
            Rss::Flow => flow_hash(packet, framing, 0),
            Rss::Changing => flow_hash(packet, framing, epoch),
        };
        (hash % queues as u64) as usize
    }
}

/// Returns true for TCP with SYN and without ACK.
fn is_syn(packet: &[u8], framing: Framing) -> bool {
    let ip = match framing {
        Framing::Ip => packet,
        Framing::Ethernet => packet.get(14..).unwrap_or_default(),
    };
    let flags = match ip.first() {
        Some(0x45) if ip.get(9) == Some(&6) => ip.get(33),
        Some(b) if b >> 4 == 6 && ip.get(6) == Some(&6) => ip.get(53),
        _ => None,
    };
    flags.is_some_and(|f| f & 0b1_0010 == 0b0_0010)
}

/// Returns a hash of addresses and ports; 0 for anything but TCP over IP without options, as
/// devices do.
fn flow_hash(packet: &[u8], framing: Framing, key: u64) -> u64 {
    let ip = match framing {
        Framing::Ip => packet,
        Framing::Ethernet => match packet.get(12..14) {
            Some([0x08, 0x00] | [0x86, 0xdd]) => &packet[14..],
            _ => return 0,
        },
    };
    let tuple = match ip.first() {
        Some(0x45) if ip.len() >= 24 => &ip[12..24],
        Some(b) if b >> 4 == 6 && ip.len() >= 44 => &ip[8..44],
        _ => return 0,
    };
    tuple_hash(tuple, key)
}

fn tuple_hash(tuple: &[u8], key: u64) -> u64 {
    tuple.chunks(4).fold(key, |h, w| mix(h ^ u64::from(u32::from_be_bytes([w[0], w[1], w[2], w[3]]))))
}

/// Returns the queue on which [`Rss::Flow`] puts packets from the remote end of `flow`, for a host
/// whose device reports its key and table.
pub fn queue_of(flow: &FlowKey, queues: usize) -> usize {
    let mut tuple = Vec::with_capacity(36);
    for ip in [flow.remote_ip(), flow.local_ip()] {
        match ip {
            IpAddr::V4(ip) => tuple.extend(ip.octets()),
            IpAddr::V6(ip) => tuple.extend(ip.octets()),
        }
    }
    tuple.extend(flow.remote_port().to_be_bytes());
    tuple.extend(flow.local_port().to_be_bytes());
    (tuple_hash(&tuple, 0) % queues as u64) as usize
}
