//! A middlebox between two honest ends: rewrites fields, with right checksums, and sends ICMP
//! errors.

use fs_core::internals::Sum;

/// IP protocol numbers.
const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// TCP's URG bit.
const URG: u8 = 0x20;

/// Kind of an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The host is unreachable for now.
    Unreachable,
    /// The packet was too large; this is the maximum size.
    TooLarge(u16),
}

/// A TCP packet, after `link` bytes of link header.
#[derive(Debug)]
pub struct Passing<'a> {
    bytes: &'a mut [u8],
    ip: usize,
    tcp: usize,
}

impl<'a> Passing<'a> {
    /// Returns `None` for other packets, and for those with IP options or extension headers.
    pub fn of(bytes: &'a mut [u8], link: usize) -> Option<Self> {
        let ip = bytes.get(link..)?;
        let (protocol, header) = match ip.first()? {
            0x45 => (*ip.get(9)?, 20),
            0x60..=0x6f => (*ip.get(6)?, 40),
            _ => return None,
        };
        (protocol == TCP && ip.len() >= header + 20).then_some(())?;
        Some(Self { bytes, ip: link, tcp: link + header })
    }

    fn is_v6(&self) -> bool {
        self.bytes[self.ip] >> 4 == 6
    }

    /// Sets an urgent pointer of `pointer`.
    pub fn set_urgent(&mut self, pointer: u16) {
        self.bytes[self.tcp + 13] |= URG;
        self.put(18, pointer);
    }

    /// Sets the acknowledgment number.
    pub fn set_ack(&mut self, ack: u32) {
        let [a, b, c, d] = ack.to_be_bytes();
        self.put(8, u16::from_be_bytes([a, b]));
        self.put(10, u16::from_be_bytes([c, d]));
    }

    /// Returns the sequence number.
    pub fn seq(&self) -> u32 {
        u32::from(self.word(4)) << 16 | u32::from(self.word(6))
    }

    /// Returns true if a router must not fragment it: the DF bit, or IPv6.
    pub fn is_whole(&self) -> bool {
        self.is_v6() || self.bytes[self.ip + 6] & 0x40 != 0
    }

    /// Returns source and destination port.
    pub fn ports(&self) -> (u16, u16) {
        (self.word(0), self.word(2))
    }

    /// Returns the control bits.
    pub fn flags(&self) -> u8 {
        self.bytes[self.tcp + 13]
    }

    /// Returns the size of the IP packet in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len() - self.ip
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[self.tcp + at], self.bytes[self.tcp + at + 1]])
    }

    /// Sets the window field.
    pub fn set_window(&mut self, field: u16) {
        self.put(14, field);
    }

    fn put(&mut self, at: usize, value: u16) {
        let at = self.tcp + at;
        self.bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        self.sum();
    }

    fn sum(&mut self) {
        let at = self.tcp + 16;
        self.bytes[at..at + 2].fill(0);
        let ip = &self.bytes[self.ip..self.tcp];
        let segment = &self.bytes[self.tcp..];
        let len = segment.len() as u32;
        let pseudo = if self.is_v6() {
            let address = |from: usize| std::array::from_fn(|i| ip[from + i]);
            Sum::pseudo_v6(&address(8), &address(24), TCP, len)
        } else {
            let address = |from: usize| u32::from_be_bytes(std::array::from_fn(|i| ip[from + i]));
            Sum::pseudo_v4(address(12), address(16), TCP, len)
        };
        let sum = pseudo.add(Sum::of(segment)).finish();
        self.bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// Makes an ICMP error about it for its sender, from its receiver's address.
    pub fn error(&self, trouble: Trouble) -> Vec<u8> {
        // The IP header and eight bytes are the minimum quote of either version.
        let quoted = &self.bytes[self.ip..self.tcp + 8];
        let ip = &self.bytes[self.ip..self.tcp];
        let mut message = match (trouble, self.is_v6()) {
            (Trouble::Unreachable, false) => vec![3, 1, 0, 0, 0, 0, 0, 0],
            (Trouble::Unreachable, true) => vec![1, 3, 0, 0, 0, 0, 0, 0],
            (Trouble::TooLarge(mtu), v6) => {
                let [a, b] = mtu.to_be_bytes();
                if v6 { vec![2, 0, 0, 0, 0, 0, a, b] } else { vec![3, 4, 0, 0, 0, 0, a, b] }
            }
        };
        message.extend_from_slice(quoted);
        let len = message.len() as u16;
        let mut out = Vec::new();
        if self.ip >= 14 {
            out.extend_from_slice(&self.bytes[6..12]);
            out.extend_from_slice(&self.bytes[..6]);
            out.extend_from_slice(&self.bytes[12..self.ip]);
        }
        if self.is_v6() {
            let address = |from: usize| -> [u8; 16] { std::array::from_fn(|i| ip[from + i]) };
            let (to, from) = (address(8), address(24));
            let sum = Sum::pseudo_v6(&from, &to, ICMPV6, u32::from(len)).add(Sum::of(&message)).finish();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            let [a, b] = len.to_be_bytes();
            out.extend_from_slice(&[0x60, 0, 0, 0, a, b, ICMPV6, 64]);
            out.extend_from_slice(&from);
            out.extend_from_slice(&to);
        } else {
            let sum = Sum::of(&message).finish();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            let [a, b] = (20 + len).to_be_bytes();
            let mut header = vec![0x45, 0, a, b, 0, 0, 0x40, 0, 64, ICMP, 0, 0];
            header.extend_from_slice(&ip[16..20]);
            header.extend_from_slice(&ip[12..16]);
            let sum = Sum::of(&header).finish();
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            out.extend_from_slice(&header);
        }
        out.extend_from_slice(&message);
        out
    }
}
