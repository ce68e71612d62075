//! What the program must do with any frame, in plain words of Rust: by RFC 9293, RFC 5961, RFC 7323,
//! RFC 2018 and docs/decisions/0040.

use super::LOOPBACK;
use super::packet::{ACK, FIN, RST, SYN};
use crate::entry::{Entry, Key, is_from};

/// What becomes of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The kernel gets it as it is.
    Next,
    Drop,
    /// It is sent on like this. Checksums are the old ones: the sums that they complete must not change.
    Sent(Sent),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) frame: Vec<u8>,
    /// Offset and length of what the checksum of TCP or ICMP is about, and the protocol.
    pub(super) body: (usize, usize),
    pub(super) protocol: u8,
}

pub(super) struct Model {
    pub(super) keys: [Key; 2],
    /// The entries, in the order of the keys, as the map has them.
    pub(super) entries: [Option<Entry>; 2],
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
}

fn add(bytes: &mut [u8], at: usize, more: u32) {
    let sum = word(bytes, at).wrapping_add(more);
    put(bytes, at, sum);
}

/// The bytes of a key: two addresses of 16 bytes, two ports.
fn bytes_of(key: &Key) -> [u8; 36] {
    let mut bytes = [0; 36];
    bytes.chunks_exact_mut(4).zip(key).for_each(|(to, word)| to.copy_from_slice(&word.to_ne_bytes()));
    bytes
}

/// Returns the addresses of an IP header, and ports from elsewhere.
fn addresses(is_v4: bool, ip: &[u8], ports: &[u8]) -> [u8; 36] {
    let mut bytes = [0; 36];
    if is_v4 {
        for (at, from) in [(0, 12), (16, 16)] {
            bytes[at + 10..at + 12].fill(0xff);
            bytes[at + 12..at + 16].copy_from_slice(&ip[from..from + 4]);
        }
    } else {
        bytes[..32].copy_from_slice(&ip[8..40]);
    }
    bytes[32..].copy_from_slice(&ports[..4]);
    bytes
}

/// Writes the addresses of a key into an IP header.
fn set_addresses(is_v4: bool, ip: &mut [u8], key: &[u8; 36]) {
    if is_v4 {
        ip[12..16].copy_from_slice(&key[12..16]);
        ip[16..20].copy_from_slice(&key[28..32]);
    } else {
        ip[8..40].copy_from_slice(&key[..32]);
    }
}

fn reversed(key: [u8; 36]) -> [u8; 36] {
    let mut other = key;
    other[..16].copy_from_slice(&key[16..32]);
    other[16..32].copy_from_slice(&key[..16]);
    other[32..34].copy_from_slice(&key[34..]);
    other[34..].copy_from_slice(&key[32..34]);
    other
}

/// Timestamps and SACK edges are those of the other connection.
fn rewrite_options(options: &mut [u8], entry: &Entry) {
    let mut at = 0;
    while at < options.len() {
        let (kind, size) = (options[at], usize::from(*options.get(at + 1).unwrap_or(&0)));
        match kind {
            0 => return,
            1 => at += 1,
            // What follows makes no sense.
            _ if size < 2 || at + size > options.len() => return,
            8 if size == 10 && entry.stamps => {
                add(options, at + 2, entry.stamp_add);
                add(options, at + 6, entry.stamp_sub.wrapping_neg());
                at += size;
            }
            5 => {
                let edges = (size - 2) / 4;
                (0..edges).for_each(|edge| add(options, at + 2 + 4 * edge, entry.ack_add));
                // As the program: a length that fits no edges ends with the last one.
                at += 2 + 4 * edges;
            }
            _ => at += size,
        }
    }
}

impl Model {
    /// `merged`: the kernel has made one packet of several.
    pub(super) fn frame(&mut self, frame: &[u8], merged: bool) -> Fate {
        // For another link address, or a group.
        if frame[..6] != [0; 6] {
            return Fate::Next;
        }
        let ip = &frame[14..];
        let (header, protocol, said) = match half(frame, 12) {
            0x0800 if ip.len() >= 20 => {
                let header = usize::from(ip[0] & 15) * 4;
                // A fragment, or nonsense.
                if ip[0] >> 4 != 4 || header < 20 || half(ip, 6) & 0x3fff != 0 {
                    return Fate::Next;
                }
                (header, ip[9], usize::from(half(ip, 2)).checked_sub(header))
            }
            0x86dd if ip.len() >= 40 && ip[0] >> 4 == 6 => (40, ip[6], Some(usize::from(half(ip, 4)))),
            _ => return Fate::Next,
        };
        let Some(have) = ip.len().checked_sub(header) else { return Fate::Next };
        let is_long = merged && if header == 40 && ip[0] >> 4 == 6 { half(ip, 4) } else { half(ip, 2) } == 0;
        let length = if is_long { have } else { said.unwrap_or(0) };
        if length == 0 || length > have {
            return Fate::Next;
        }
        match (protocol, ip[0] >> 4) {
            (6, _) => self.segment(frame, 14 + header, length),
            (1, 4) if header == 20 => self.error(frame, 34, length),
            (58, 6) => self.error(frame, 54, length),
            _ => Fate::Next,
        }
    }

    fn side(&self, key: &[u8; 36]) -> Option<usize> {
        (0..2).find(|&side| self.entries[side].is_some() && bytes_of(&self.keys[side]) == *key)
    }

    fn segment(&mut self, frame: &[u8], at: usize, length: usize) -> Fate {
        let Some(tcp) = frame.get(at..).filter(|tcp| tcp.len() >= 20) else { return Fate::Next };
        let is_v4 = frame[12] == 8;
        let Some(side) = self.side(&addresses(is_v4, &frame[14..], tcp)) else { return Fate::Next };
        let Some(entry) = &mut self.entries[side] else { return Fate::Next };
        let (header, flags) = (usize::from(tcp[12] >> 4) * 4, tcp[13]);
        if header < 20 || header > length {
            return Fate::Next;
        }
        if !entry.is_spliced {
            entry.arrived = LOOPBACK;
            entry.packets += 1;
            if header >= 32 && word(tcp, 20) == 0x0101_080a {
                entry.stamp = Some(word(tcp, 24));
            }
            return Fate::Next;
        }
        if entry.arrived != LOOPBACK {
            return Fate::Next;
        }
        if flags & SYN != 0 {
            return self.syn(side);
        }
        let (seq, ack, payload) = (word(tcp, 4), word(tcp, 8), (length - header) as u32);
        let acks = flags & ACK != 0;
        let undrained = acks && !entry.drained && !is_from(ack, entry.own_end);
        // What the proxy has taken is acknowledged, and its peer's window ends where it did.
        let (new_ack, behind) = if undrained { (entry.own_end, entry.own_end.wrapping_sub(ack)) } else { (ack, 0) };
        let bytes = (u32::from(half(tcp, 14)) << entry.scale_in).saturating_sub(behind);
        let window = if bytes == 0 { 0 } else { (bytes >> entry.scale_out).clamp(1, 65535) };
        let edge = new_ack.wrapping_add(window << entry.scale_out);
        let end = seq.wrapping_add(payload).wrapping_add(u32::from(flags & FIN != 0));
        self.note(side, flags, [seq, end, ack, edge]);
        let Some(entry) = &mut self.entries[side] else { return Fate::Next };
        if undrained && payload == 0 && flags & (FIN | RST) == 0 {
            return Fate::Next;
        }
        entry.packets += 1;
        let to = bytes_of(&entry.to);
        let mut frame = frame.to_vec();
        set_addresses(is_v4, &mut frame[14..], &to);
        frame[if is_v4 { 22 } else { 21 }] = 64;
        let tcp = &mut frame[at..];
        tcp[..4].copy_from_slice(&to[32..]);
        add(tcp, 4, entry.seq_add);
        if acks {
            put(tcp, 8, new_ack.wrapping_add(entry.ack_add));
            tcp[14..16].copy_from_slice(&(window as u16).to_be_bytes());
        }
        rewrite_options(&mut tcp[20..header], entry);
        Fate::Sent(Sent { frame, body: (at, length), protocol: 6 })
    }

    /// What an accepted segment says.
    fn note(&mut self, side: usize, flags: u8, [seq, end, ack, edge]: [u32; 4]) {
        let [Some(one), Some(two)] = &mut self.entries else { return };
        let (entry, other) = if side == 0 { (one, two) } else { (two, one) };
        let there = |number: u32| number.wrapping_add(entry.seq_add);
        let fits = is_from(there(end), other.acked) && is_from(other.edge.wrapping_add(1), there(seq));
        if other.is_spliced && !fits {
            return;
        }
        if flags & RST != 0 {
            entry.rst = true;
            entry.rst_exact |= other.acked == there(seq);
        }
        if flags & ACK == 0 || !is_from(entry.edge.wrapping_add(1), ack) {
            return;
        }
        entry.drained |= is_from(ack, entry.own_end);
        let highest = |old: &mut u32, new| {
            if is_from(new, *old) {
                *old = new;
            }
        };
        highest(&mut entry.acked, ack);
        highest(&mut entry.edge, edge);
        if flags & FIN != 0 {
            entry.fin_end = Some(end);
        }
    }

    fn syn(&mut self, side: usize) -> Fate {
        let acked_fin =
            |of: &Entry, by: &Entry| of.fin_end.is_some_and(|end| is_from(by.acked, end.wrapping_add(of.seq_add)));
        let is_over = match &self.entries {
            [Some(one), Some(two)] => one.rst_exact || two.rst_exact || (acked_fin(one, two) && acked_fin(two, one)),
            _ => true,
        };
        if is_over {
            self.entries = [None, None];
            return Fate::Next;
        }
        if let Some(entry) = &mut self.entries[side] {
            entry.syn = true;
        }
        Fate::Drop
    }

    /// An ICMP error about a packet that was sent on goes to the packet's sender, about its own packet.
    fn error(&mut self, frame: &[u8], at: usize, length: usize) -> Fate {
        let (is_v4, inner) = (at == 34, at + 8);
        let ports = inner + if is_v4 { 20 } else { 40 };
        // The first words of TCP: ports and sequence number.
        if length < ports + 8 - at {
            return Fate::Next;
        }
        let ip = &frame[inner..];
        let fits = if is_v4 {
            matches!(frame[at], 3 | 11 | 12) && ip[0] == 0x45 && ip[9] == 6 && half(ip, 6) & 0x1fff == 0
        } else {
            (1..=4).contains(&frame[at]) && ip[6] == 6
        };
        let Some(side) = fits.then(|| self.side(&reversed(addresses(is_v4, ip, &frame[ports..])))).flatten() else {
            return Fate::Next;
        };
        let Some(entry) = self.entries[side].filter(|entry| entry.is_spliced && entry.drained) else {
            return Fate::Next;
        };
        let to = bytes_of(&entry.to);
        let mut frame = frame.to_vec();
        set_addresses(is_v4, &mut frame[14..], &to);
        frame[if is_v4 { 22 } else { 21 }] = 64;
        let back = reversed(to);
        set_addresses(is_v4, &mut frame[inner..], &back);
        if is_v4 {
            // The quoted header's checksum makes up for its addresses.
            frame[inner + 10..inner + 12].fill(0);
        }
        frame[ports..ports + 4].copy_from_slice(&back[32..]);
        add(&mut frame, ports + 4, entry.ack_add);
        Fate::Sent(Sent { frame, body: (at, length), protocol: if is_v4 { 1 } else { 58 } })
    }
}
