//! The police's own packet parser, which shares no code with the engine.

use crate::wire;
use fs_core::Framing;
use std::net::{IpAddr, SocketAddr};

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;
pub(super) const ECE: u8 = 64;
pub(super) const CWR: u8 = 128;

/// A TCP segment with its addresses.
#[derive(Clone)]
pub(super) struct Segment<'a> {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// The IP header's ECN field: 0 not capable, 1 and 2 capable, 3 congestion experienced.
    pub(super) ecn: u8,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u32,
    pub(super) payload: &'a [u8],
    /// Length of the options in bytes.
    pub(super) options: u32,
    pub(super) mss: Option<u32>,
    pub(super) scale: Option<u8>,
    pub(super) sack_ok: bool,
    /// TSval and TSecr.
    pub(super) timestamps: Option<(u32, u32)>,
    pub(super) sacks: Vec<(u32, u32)>,
}

impl std::fmt::Debug for Segment<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { from, to, ecn, seq, ack, flags, window, payload, mss, scale, sack_ok, timestamps, sacks, .. } = self;
        let names: String =
            "FSRPAUEC".chars().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1).map(|n| n.1).collect();
        write!(f, "{from} > {to} [{names}] {seq}+{} ack {ack} win {window} ecn {ecn}", payload.len())?;
        if *flags & SYN != 0 {
            write!(f, " mss {mss:?} scale {scale:?} sackOK {sack_ok}")?;
        }
        write!(f, " ts {timestamps:?} sack {sacks:?}")
    }
}

/// Parses the segment in a packet; `None` if it is not TCP, or not complete.
pub(super) fn parse(packet: &[u8], framing: Framing) -> Option<Segment<'_>> {
    let ip = packet.get(wire::ip_offset(packet, framing)?..)?;
    let (from, to, ecn, tcp): (IpAddr, IpAddr, u8, &[u8]) = match ip.first()? >> 4 {
        4 if *ip.get(9)? == 6 => {
            let header = usize::from(ip[0] & 15) * 4;
            let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
            let address = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
            (address(12)?, address(16)?, ip[1] & 3, ip.get(header..total)?)
        }
        6 if *ip.get(6)? == 6 => {
            let address = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?));
            (address(8)?, address(24)?, ip[1] >> 4 & 3, ip.get(40..)?)
        }
        _ => return None,
    };
    let word = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
    let header = usize::from(tcp.get(12)? >> 4) * 4;
    let mut segment = Segment {
        from: SocketAddr::new(from, half(0)?),
        to: SocketAddr::new(to, half(2)?),
        ecn,
        seq: word(4)?,
        ack: word(8)?,
        flags: tcp[13],
        window: half(14)?.into(),
        payload: tcp.get(header..)?,
        options: header as u32 - 20,
        mss: None,
        scale: None,
        sack_ok: false,
        timestamps: None,
        sacks: Vec::new(),
    };
    let mut at = 20;
    while at < header {
        let len = match tcp[at] {
            0 => break,
            1 => 1,
            _ => usize::from(*tcp.get(at + 1)?).max(2),
        };
        match tcp[at] {
            2 => segment.mss = Some(half(at + 2)?.into()),
            3 => segment.scale = Some(*tcp.get(at + 2)?),
            4 => segment.sack_ok = true,
            5 => {
                for block in (at + 2..at + len).step_by(8) {
                    segment.sacks.push((word(block)?, word(block + 4)?));
                }
            }
            8 => segment.timestamps = Some((word(at + 2)?, word(at + 6)?)),
            _ => {}
        }
        at += len;
    }
    Some(segment)
}

impl Segment<'_> {
    pub(super) fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Returns the sequence numbers that it takes.
    pub(super) fn span(&self) -> i64 {
        self.payload.len() as i64 + i64::from(self.has(SYN)) + i64::from(self.has(FIN))
    }
}
