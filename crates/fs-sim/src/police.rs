//! What TCP promises on the wire, checked packet by packet from outside: windows never shrink (RFC 9293
//! 3.8.6) and are never overrun, nothing is acknowledged that did not arrive, segments fit the peer's MSS,
//! nothing follows a FIN, timestamps never run backwards and are on every segment once agreed (RFC 7323 3.2),
//! SACK blocks name what is there (RFC 2018).
//!
//! It sees what each host sends, in order, and what reached each host intact. "Reached" is generous (the
//! stack may not have looked yet), so a breach is a breach.

use fs_core::Framing;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// A parsed segment.
#[derive(Clone, Debug, Default)]
struct Segment {
    seq: u32,
    ack: u32,
    flags: u8,
    window: u32,
    payload: u32,
    options: u32,
    mss: Option<u32>,
    scale: Option<u8>,
    sack_ok: bool,
    tsval: Option<u32>,
    sacks: Vec<(u32, u32)>,
}

/// One direction of a flow.
#[derive(Clone, Debug, Default)]
struct Way {
    iss: Option<u32>,
    scale: Option<u8>,
    mss: Option<u32>,
    sack_ok: bool,
    timestamps: bool,
    /// Right edge of the window that this side has offered.
    edge: Option<u32>,
    fin_at: Option<u32>,
    tsval: Option<u32>,
    /// It has sent more than SYNs: the next new SYN begins a new connection.
    used: bool,
    /// Two handshakes are mixed up here (a SYN answered twice, differently): not judged.
    murky: bool,
    /// Right edge of the window that the other side's packets have brought here.
    allowed: Option<u32>,
    /// End of what the other side's packets have brought here.
    arrived: Option<u32>,
}

/// The observer.
#[derive(Debug)]
pub struct Police {
    framing: Framing,
    vlan: bool,
    ways: HashMap<(SocketAddr, SocketAddr), Way>,
}

fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

fn later(old: Option<u32>, new: u32) -> Option<u32> {
    match old {
        Some(old) if !after(new, old) => Some(old),
        _ => Some(new),
    }
}

impl Police {
    /// An observer of packets with this framing.
    pub fn new(framing: Framing, vlan: bool) -> Self {
        Self { framing, vlan, ways: HashMap::new() }
    }

    fn parse(&self, packet: &[u8]) -> Option<(SocketAddr, SocketAddr, Segment)> {
        let ip = match (self.framing, self.vlan) {
            (Framing::Ip, _) => packet,
            (Framing::Ethernet, false) => packet.get(14..)?,
            (Framing::Ethernet, true) => packet.get(18..)?,
        };
        let (from, to, tcp): (IpAddr, IpAddr, &[u8]) = match ip.first()? >> 4 {
            4 if *ip.get(9)? == 6 => {
                let header = usize::from(ip[0] & 15) * 4;
                let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
                let address = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
                (address(12)?, address(16)?, ip.get(header..total)?)
            }
            6 if *ip.get(6)? == 6 => {
                let address = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?));
                (address(8)?, address(24)?, ip.get(40..)?)
            }
            _ => return None,
        };
        let word = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
        let half = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
        let header = usize::from(tcp.get(12)? >> 4) * 4;
        let mut segment = Segment {
            seq: word(4)?,
            ack: word(8)?,
            flags: tcp[13],
            window: half(14)?.into(),
            payload: tcp.len().checked_sub(header)? as u32,
            options: header as u32 - 20,
            ..Segment::default()
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
                8 => segment.tsval = Some(word(at + 2)?),
                _ => {}
            }
            at += len;
        }
        Some((SocketAddr::new(from, half(0)?), SocketAddr::new(to, half(2)?), segment))
    }

    /// A host sends a packet.
    pub fn sent(&mut self, packet: &[u8]) -> Result<(), String> {
        let Some((from, to, segment)) = self.parse(packet) else { return Ok(()) };
        let mut way = self.ways.remove(&(from, to)).unwrap_or_default();
        let mut back = self.ways.remove(&(to, from)).unwrap_or_default();
        let judged = if segment.flags & SYN != 0 {
            way.on_syn(&mut back, &segment);
            Ok(())
        } else {
            way.on_segment(&back, &segment)
        };
        self.ways.insert((from, to), way);
        self.ways.insert((to, from), back);
        judged.map_err(|what| format!("{from} -> {to}: {what}: {segment:?}"))
    }

    /// A packet has reached its host undamaged.
    pub fn arrived(&mut self, packet: &[u8]) {
        let Some((from, to, segment)) = self.parse(packet) else { return };
        let Some(sender) = self.ways.get(&(from, to)) else { return };
        let scale = sender.scale;
        let Some(way) = self.ways.get_mut(&(to, from)) else { return };
        let syn = segment.flags & SYN != 0;
        let shift = if syn { 0 } else { way.scale.and(scale).unwrap_or(0) };
        let spans = segment.payload + u32::from(syn) + u32::from(segment.flags & FIN != 0);
        way.arrived = later(way.arrived, segment.seq.wrapping_add(spans));
        if segment.flags & ACK != 0 {
            way.allowed = later(way.allowed, segment.ack.wrapping_add(segment.window << shift));
        } else if let (true, Some(iss)) = (syn, way.iss) {
            // A crossing SYN offers its window from our first byte on.
            way.allowed = later(way.allowed, iss.wrapping_add(1).wrapping_add(segment.window));
        }
    }
}

impl Way {
    fn on_syn(&mut self, back: &mut Way, segment: &Segment) {
        let is_answer = segment.flags & ACK != 0;
        if self.iss != Some(segment.seq) {
            if !is_answer && self.iss.is_some() && back.used || self.used && !is_answer {
                *back = Way::default();
            }
            let murky = is_answer && self.iss.is_some() && !self.used;
            let (allowed, arrived) = (self.allowed, self.arrived);
            *self = Way { iss: Some(segment.seq), murky, ..Way::default() };
            if is_answer {
                // The SYN that it answers has arrived already.
                (self.allowed, self.arrived) = (allowed, arrived);
            }
        }
        self.scale = segment.scale;
        self.mss = segment.mss;
        self.sack_ok = segment.sack_ok;
        self.timestamps = segment.tsval.is_some();
        self.edge = None;
    }

    fn on_segment(&mut self, back: &Way, segment: &Segment) -> Result<(), String> {
        let Segment { seq, ack, flags, window, payload, options, .. } = *segment;
        self.used = true;
        let (Some(_), Some(_), false, false) = (self.iss, back.iss, self.murky || back.murky, flags & RST != 0) else {
            return Ok(());
        };
        if flags & ACK == 0 {
            return Err("a segment without ACK".into());
        }
        let shift = back.scale.and(self.scale).unwrap_or(0);
        let edge = ack.wrapping_add(window << shift);
        if let Some(old) = self.edge
            && after(old, edge)
        {
            return Err(format!("the offered window's edge moves back by {}", old.wrapping_sub(edge)));
        }
        self.edge = Some(edge);
        if self.arrived.is_some_and(|end| after(ack, end)) {
            return Err(format!("acknowledges what never arrived: {:?}", self.arrived));
        }
        let end = seq.wrapping_add(payload);
        if payload > 0 && self.allowed.is_none_or(|allowed| after(end, allowed)) {
            return Err(format!("sends beyond the peer's window, which ends at {:?}", self.allowed));
        }
        let mss = back.mss.unwrap_or(536);
        if payload + options > mss && payload > 0 {
            return Err(format!("{payload} bytes and {options} of options over the peer's MSS of {mss}"));
        }
        if payload > 0
            && let Some(fin) = self.fin_at
            && after(end, fin)
        {
            return Err(format!("data after the FIN at {fin}"));
        }
        if flags & FIN != 0 {
            if self.fin_at.is_some_and(|fin| fin != end) {
                return Err(format!("FIN at {end}, and before at {:?}", self.fin_at));
            }
            self.fin_at = Some(end);
        }
        self.on_options(back, segment)
    }

    fn on_options(&mut self, back: &Way, segment: &Segment) -> Result<(), String> {
        match (segment.tsval, self.timestamps && back.timestamps) {
            (None, true) => return Err("no timestamp although both agreed".into()),
            (Some(_), false) => return Err("a timestamp although nobody agreed".into()),
            (Some(new), true) => {
                if self.tsval.is_some_and(|old| after(old, new)) {
                    return Err(format!("the timestamp runs backwards from {:?}", self.tsval));
                }
                self.tsval = Some(new);
            }
            (None, false) => {}
        }
        let agreed = self.sack_ok && back.sack_ok;
        if !agreed && !segment.sacks.is_empty() {
            return Err("SACK blocks although nobody agreed".into());
        }
        for &(start, end) in &segment.sacks {
            if !after(end, start) || self.arrived.is_some_and(|arrived| after(end, arrived)) {
                return Err(format!("SACK block {start}..{end} names what never arrived"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: ([u8; 4], u16) = ([10, 77, 0, 1], 1000);
    const SERVER: ([u8; 4], u16) = ([10, 77, 0, 2], 80);

    /// A TCP/IPv4 packet; checksums are not the police's business.
    fn packet(
        from: ([u8; 4], u16),
        seq: u32,
        ack: u32,
        flags: u8,
        window: u16,
        options: &[u8],
        payload: usize,
    ) -> Vec<u8> {
        let to = if from == CLIENT { SERVER } else { CLIENT };
        let total = (40 + options.len() + payload) as u16;
        let mut p = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0];
        p[2..4].copy_from_slice(&total.to_be_bytes());
        p.extend(from.0.iter().chain(&to.0));
        p.extend(from.1.to_be_bytes().iter().chain(&to.1.to_be_bytes()));
        p.extend(seq.to_be_bytes().iter().chain(&ack.to_be_bytes()));
        p.extend([(5 + options.len() as u8 / 4) << 4, flags]);
        p.extend(window.to_be_bytes());
        p.extend([0; 4]);
        p.extend(options);
        p.extend(vec![0; payload]);
        p
    }

    /// Client 100, server 500: handshake done, windows of 1000 bytes, MSS 536, nothing else agreed.
    fn established() -> Police {
        let mut police = Police::new(Framing::Ip, false);
        for p in [
            packet(CLIENT, 99, 0, SYN, 1000, &[], 0),
            packet(SERVER, 499, 100, SYN | ACK, 1000, &[], 0),
            packet(CLIENT, 100, 500, ACK, 1000, &[], 0),
        ] {
            police.sent(&p).unwrap();
            police.arrived(&p);
        }
        police
    }

    #[test]
    fn an_honest_exchange_passes() {
        let mut police = established();
        let data = packet(CLIENT, 100, 500, ACK, 1000, &[], 500);
        police.sent(&data).unwrap();
        police.sent(&data).unwrap();
        police.arrived(&data);
        police.sent(&packet(SERVER, 500, 600, ACK, 500, &[], 0)).unwrap();
        police.sent(&packet(CLIENT, 600, 500, FIN | ACK, 1000, &[], 500)).unwrap();
        police.sent(&packet(CLIENT, 1101, 500, ACK, 1000, &[], 0)).unwrap();
    }

    #[test]
    fn every_breach_is_seen() {
        let timestamp = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0];
        let block = [1, 1, 5, 10, 0, 0, 1, 0, 0, 0, 1, 10];
        for (what, breach) in [
            ("moves back", packet(CLIENT, 100, 500, ACK, 999, &[], 0)),
            ("never arrived", packet(CLIENT, 100, 501, ACK, 1000, &[], 0)),
            ("beyond the peer's window", packet(CLIENT, 600, 500, ACK, 1000, &[], 501)),
            ("over the peer's MSS", packet(CLIENT, 100, 500, ACK, 1000, &[], 537)),
            ("without ACK", packet(CLIENT, 100, 500, 0, 1000, &[], 0)),
            ("a timestamp although", packet(CLIENT, 100, 500, ACK, 1000, &timestamp, 0)),
            ("SACK blocks although", packet(CLIENT, 100, 500, ACK, 1000, &block, 0)),
        ] {
            let seen = established().sent(&breach).expect_err(what);
            assert!(seen.contains(what), "{what}: {seen}");
        }
        let mut police = established();
        police.sent(&packet(CLIENT, 100, 500, FIN | ACK, 1000, &[], 10)).unwrap();
        let seen = police.sent(&packet(CLIENT, 111, 500, ACK, 1000, &[], 1)).expect_err("data after FIN");
        assert!(seen.contains("data after the FIN"), "{seen}");
    }
}
