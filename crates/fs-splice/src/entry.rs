//! Keys and values of the program's map: `struct key` and `struct entry` of splice.bpf.c.

use crate::address::Ends;
use std::net::{IpAddr, SocketAddr};

/// The addresses of a packet.
pub(crate) type Key = [u32; 9];
pub(crate) type Words = [u32; 27];

/// Returns the key of packets from one address to another.
pub(crate) fn key(from: SocketAddr, to: SocketAddr) -> Key {
    let mut words = [0; 9];
    for (at, address) in [(0, from), (4, to)] {
        let octets = match address.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        for (word, bytes) in words[at..].iter_mut().zip(octets.chunks_exact(4)) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }
    let ([a, b], [c, d]) = (from.port().to_be_bytes(), to.port().to_be_bytes());
    words[8] = u32::from_ne_bytes([a, b, c, d]);
    words
}

impl Ends {
    /// Returns the key of packets that arrive.
    pub(crate) fn key(&self) -> Key {
        key(self.peer, self.local)
    }

    /// Returns the addresses of packets that are sent.
    pub(crate) fn out(&self) -> Key {
        key(self.local, self.peer)
    }
}

/// One direction of a flow: how the packets of one peer are rewritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) to: Key,
    pub(crate) seq_add: u32,
    pub(crate) ack_add: u32,
    pub(crate) stamp_add: u32,
    pub(crate) stamp_sub: u32,
    /// The end of what the proxy itself has sent to this peer. [`settlement`] changes it.
    pub(crate) own_end: u32,
    /// The device by which packets leave.
    pub(crate) device: u32,
    pub(crate) is_spliced: bool,
    /// Both connections have timestamps.
    pub(crate) stamps: bool,
    /// The window scale of this peer.
    pub(crate) scale_in: u8,
    /// The window scale that the other peer expects.
    pub(crate) scale_out: u8,
    pub(crate) id: u64,
    // The fields that the BPF program writes.
    pub(crate) packets: u32,
    /// The highest acknowledgment of this peer.
    pub(crate) acked: u32,
    /// The timestamp of its last packet, if it has one.
    pub(crate) stamp: Option<u32>,
    /// The device by which its packets come.
    pub(crate) arrived: u32,
    /// The end of what its window allows. Nothing beyond it can be acknowledged.
    pub(crate) edge: u32,
    /// A packet has acknowledged `own_end`.
    pub(crate) drained: bool,
    /// The sequence number behind its FIN, if there was one.
    pub(crate) fin_end: Option<u32>,
    /// It has sent a RST.
    pub(crate) rst: bool,
    /// It has sent a RST that the other peer accepts.
    pub(crate) rst_exact: bool,
    /// A SYN with the addresses of the flow was dropped.
    pub(crate) syn: bool,
    pub(crate) encrypted: bool,
}

impl Entry {
    pub(crate) fn words(&self) -> Words {
        let mut words = [0; 27];
        words[..9].copy_from_slice(&self.to);
        let bytes = |bytes: [bool; 4]| u32::from_ne_bytes(bytes.map(u8::from));
        let flags = [u8::from(self.is_spliced), u8::from(self.stamps), self.scale_in, self.scale_out];
        words[9..].copy_from_slice(&[
            self.seq_add,
            self.ack_add,
            self.stamp_add,
            self.stamp_sub,
            self.own_end,
            self.device,
            u32::from_ne_bytes(flags),
            self.id as u32,
            (self.id >> 32) as u32,
            self.packets,
            self.acked,
            self.stamp.unwrap_or_default(),
            self.arrived,
            self.edge,
            // Not drained: any other number.
            if self.drained { self.own_end } else { self.own_end.wrapping_sub(1) },
            self.fin_end.unwrap_or_default(),
            bytes([self.fin_end.is_some(), self.rst, self.rst_exact, self.syn]),
            bytes([self.stamp.is_some(), self.encrypted, false, false]),
        ]);
        words
    }

    pub(crate) fn of(words: &Words) -> Self {
        let (mut to, mut rest) = ([0; 9], [0; 18]);
        to.copy_from_slice(&words[..9]);
        rest.copy_from_slice(&words[9..]);
        let [
            seq_add,
            ack_add,
            stamp_add,
            stamp_sub,
            own_end,
            device,
            flags,
            id_low,
            id_high,
            packets,
            acked,
            stamp,
            arrived,
            edge,
            drained_end,
            fin_end,
            first,
            second,
        ] = rest;
        let [is_spliced, stamps, scale_in, scale_out] = flags.to_ne_bytes();
        let [fin, rst, rst_exact, syn] = first.to_ne_bytes().map(|byte| byte != 0);
        let [stamped, encrypted, _, _] = second.to_ne_bytes().map(|byte| byte != 0);
        Self {
            to,
            seq_add,
            ack_add,
            stamp_add,
            stamp_sub,
            own_end,
            device,
            is_spliced: is_spliced != 0,
            stamps: stamps != 0,
            scale_in,
            scale_out,
            id: u64::from(id_low) | u64::from(id_high) << 32,
            packets,
            acked,
            stamp: stamped.then_some(stamp),
            arrived,
            edge,
            drained: drained_end == own_end,
            fin_end: fin.then_some(fin_end),
            rst,
            rst_exact,
            syn,
            encrypted,
        }
    }

    /// Returns true if the peer has acknowledged `own_end`, at most 2 GiB ago.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained || is_from(self.acked, self.own_end)
    }
}

/// Returns true if a sequence number is another one or behind it.
pub(crate) fn is_from(number: u32, other: u32) -> bool {
    number.wrapping_sub(other).cast_signed() >= 0
}

/// `struct settlement` of splice.bpf.c, behind an Ethernet header: a new `own_end`.
pub(crate) fn settlement(key: &Key, id: u64, own_end: u32) -> Vec<u8> {
    let words = key.iter().copied().chain([id as u32, (id >> 32) as u32, own_end]);
    let mut bytes = vec![0; 14];
    bytes.extend(words.flat_map(u32::to_ne_bytes));
    bytes
}
