//! Builds packets of a hostile peer, and parses the stack's replies.

use fs_core::internals::Sum;
use fs_core::internals::{Parsed, View, parse};
use fs_core::{Frame, FramePool, Framing, IfaceId, RxFrame};
use fs_core::{RxChecksum, TxFrame};

/// The stack's address in every target.
pub const LOCAL: [u8; 4] = [10, 0, 0, 2];
/// The hostile peer's address.
pub const PEER: [u8; 4] = [10, 0, 0, 1];

/// A TCP segment to the stack.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp<'a> {
    /// Source port.
    pub from: u16,
    /// Destination port.
    pub to: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// Control bits.
    pub flags: u8,
    /// Window field.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options, padded here.
    pub options: &'a [u8],
    /// Text.
    pub payload: &'a [u8],
    /// ECN bits of the IP header.
    pub ecn: u8,
    /// Source address; [`PEER`] by default.
    pub source: Option<[u8; 4]>,
}

/// Control bits.
pub const FIN: u8 = 1;
/// Control bits.
pub const SYN: u8 = 2;
/// Control bits.
pub const RST: u8 = 4;
/// Control bits.
pub const PSH: u8 = 8;
/// Control bits.
pub const ACK: u8 = 16;

/// Writes an IPv4 header from the peer with its checksum, for `len` bytes of payload.
pub fn ipv4(out: &mut Vec<u8>, protocol: u8, ecn: u8, len: usize) {
    ipv4_from(PEER, out, protocol, ecn, len);
}

/// Like [`ipv4`], from any source.
pub fn ipv4_from(source: [u8; 4], out: &mut Vec<u8>, protocol: u8, ecn: u8, len: usize) {
    let start = out.len();
    let [t0, t1] = (20 + len as u16).to_be_bytes();
    out.extend_from_slice(&[0x45, ecn, t0, t1, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
    out.extend_from_slice(&source);
    out.extend_from_slice(&LOCAL);
    let sum = Sum::of(&out[start..start + 20]).finish();
    out[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
}

impl Tcp<'_> {
    /// Writes the packet. The TCP checksum is left to the "device" unless `summed`.
    pub fn write(&self, out: &mut Vec<u8>, summed: bool) {
        let options = &self.options[..self.options.len().min(40)];
        let padded = options.len().div_ceil(4) * 4;
        let len = 20 + padded + self.payload.len();
        let source = self.source.unwrap_or(PEER);
        ipv4_from(source, out, 6, self.ecn & 3, len);
        let start = out.len();
        out.extend_from_slice(&self.from.to_be_bytes());
        out.extend_from_slice(&self.to.to_be_bytes());
        out.extend_from_slice(&self.seq.to_be_bytes());
        out.extend_from_slice(&self.ack.to_be_bytes());
        out.extend_from_slice(&[(20 + padded as u8) << 2, self.flags]);
        out.extend_from_slice(&self.window.to_be_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&self.urgent.to_be_bytes());
        out.extend_from_slice(options);
        out.resize(start + 20 + padded, 0);
        out.extend_from_slice(self.payload);
        if summed {
            let pseudo = Sum::pseudo_v4(u32::from_be_bytes(source), u32::from_be_bytes(LOCAL), 6, len as u32);
            let sum = pseudo.add(Sum::of(&out[start..])).finish();
            out[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

/// Returns a timestamps option with two NOPs.
pub fn timestamps(val: u32, ecr: u32) -> [u8; 12] {
    let mut out = [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];
    out[4..8].copy_from_slice(&val.to_be_bytes());
    out[8..].copy_from_slice(&ecr.to_be_bytes());
    out
}

/// Puts `bytes` into a chain of frames. Returns `None`, holding no frame, if the pool is empty.
pub fn frames<P: FramePool>(pool: &mut P, bytes: &[u8], verified: bool, into: &mut Vec<RxFrame>) -> Option<()> {
    let checksum = if verified { RxChecksum::Verified } else { RxChecksum::Unknown };
    let first = into.len();
    // All headers must be in the first frame: links use the chunk from its start.
    let room = pool.chunk_size() - 256;
    for (i, part) in bytes.chunks(room).enumerate() {
        let Some(frame) = pool.alloc() else {
            into.drain(first..).for_each(|rx| pool.free(rx.frame));
            return None;
        };
        let (chunk, ..) = frame.into_raw();
        let mut frame = Frame::from_raw(chunk, 64, part.len() as u16);
        pool.bytes_mut(&mut frame).copy_from_slice(part);
        frame.set_more((i + 1) * room < bytes.len());
        into.push(RxFrame { frame, iface: IfaceId(0), checksum });
    }
    Some(())
}

/// Copies the first packet of `batch` to `out`. Returns its number of frames.
pub fn gather<P: FramePool>(pool: &P, batch: &[TxFrame], out: &mut Vec<u8>) -> usize {
    out.clear();
    let mut n = 0;
    loop {
        out.extend_from_slice(pool.bytes(&batch[n].frame));
        n += 1;
        if !batch[n - 1].frame.more() {
            return n;
        }
        assert!(n < batch.len(), "a chain without an end");
    }
}

/// Parses a packet of the stack as its receiver does. Panics if it is not well-formed.
pub fn read(packet: &[u8]) -> Parsed {
    let view = View { framing: Framing::Ip, vlan: None, accept_partial_checksum: false, mac: [0; 6] };
    match parse(&view, packet, 0, RxChecksum::Unknown, || Sum::ZERO) {
        Ok(parsed) => parsed,
        Err(reason) => panic!("the stack sent a packet that is {reason:?}: {packet:02x?}"),
    }
}
