//! TCP segments as the engine builds them, and the segmentation that a device does. Shared with the
//! unit tests of `merge`.

use fs_core::Framing;

pub const ACK: u8 = 0x10;
pub const PSH: u8 = 0x08;
pub const FIN: u8 = 0x01;

/// Offsets in a TCP header.
pub const SEQ: usize = 4;
pub const FLAGS: usize = 13;
pub const WINDOW: usize = 14;
pub const CHECKSUM: usize = 16;
/// The last byte of the timestamp in the option that [`Flow::segment`] writes.
pub const TIMESTAMP: usize = 27;

/// How the headers of a flow's segments look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub framing: Framing,
    pub v6: bool,
    pub vlan: bool,
    pub timestamps: bool,
    /// Low byte of the source port.
    pub port: u8,
    /// Low byte of the window.
    pub window: u8,
    /// Low byte of the timestamp.
    pub timestamp: u8,
}

/// IPv4 over Ethernet with timestamps.
pub const PLAIN: Flow =
    Flow { framing: Framing::Ethernet, v6: false, vlan: false, timestamps: true, port: 1, window: 9, timestamp: 3 };

impl Flow {
    pub fn network(self) -> usize {
        match (self.framing, self.vlan) {
            (Framing::Ip, _) => 0,
            (_, vlan) => 14 + 4 * usize::from(vlan),
        }
    }

    pub fn transport(self) -> usize {
        self.network() + if self.v6 { 40 } else { 20 }
    }

    pub fn payload(self) -> usize {
        self.transport() + if self.timestamps { 32 } else { 20 }
    }

    /// Payload of a full segment.
    pub fn mss(self, mtu: usize) -> usize {
        mtu - (self.payload() - self.network())
    }

    /// A segment with finished checksums.
    pub fn segment(self, seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let (network, transport) = (self.network(), self.transport());
        let mut bytes = vec![0; self.payload()];
        if self.framing == Framing::Ethernet {
            bytes[..12].copy_from_slice(&[2, 0x88, 0, 0, 0, 2, 2, 0x88, 0, 0, 0, 1]);
            if self.vlan {
                bytes[12..16].copy_from_slice(&[0x81, 0, 0x20, 5]);
            }
            bytes[network - 2..network].copy_from_slice(if self.v6 { &[0x86, 0xdd] } else { &[8, 0] });
        }
        let tcp_len = self.payload() - transport + payload.len();
        if self.v6 {
            bytes[network] = 0x60;
            bytes[network + 4..network + 6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
            bytes[network + 6..network + 8].copy_from_slice(&[6, 64]);
            bytes[network + 8..network + 40].fill(0xfd);
        } else {
            bytes[network..network + 2].copy_from_slice(&[0x45, 2]);
            bytes[network + 2..network + 4].copy_from_slice(&(20 + tcp_len as u16).to_be_bytes());
            bytes[network + 6..network + 10].copy_from_slice(&[0x40, 0, 64, 6]);
            bytes[network + 12..network + 20].copy_from_slice(&[10, 88, 0, 1, 10, 88, 0, 2]);
        }
        let tcp = &mut bytes[transport..];
        tcp[..4].copy_from_slice(&[0x30, self.port, 0x1e, 0x61]);
        tcp[SEQ..SEQ + 4].copy_from_slice(&seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&7u32.to_be_bytes());
        tcp[12] = if self.timestamps { 8 << 4 } else { 5 << 4 };
        tcp[FLAGS] = flags;
        tcp[WINDOW + 1] = self.window;
        if self.timestamps {
            tcp[20..32].copy_from_slice(&[1, 1, 8, 10, 0, 0, 3, self.timestamp, 0, 0, 2, 9]);
        }
        bytes.extend_from_slice(payload);
        self.finish(&mut bytes);
        bytes
    }

    /// `lens.len()` segments in order; the last one has `flags` too.
    pub fn segments(self, seq: u32, lens: &[usize], flags: u8) -> Vec<Vec<u8>> {
        let mut at = seq;
        let mut made = Vec::new();
        for (i, &len) in lens.iter().enumerate() {
            let payload: Vec<u8> = (0..len).map(|n| (n as u32 ^ at) as u8).collect();
            let flags = if i + 1 == lens.len() { ACK | flags } else { ACK };
            made.push(self.segment(at, flags, &payload));
            at = at.wrapping_add(len as u32);
        }
        made
    }

    /// Writes both checksums.
    pub fn finish(self, bytes: &mut [u8]) {
        let (network, transport) = (self.network(), self.transport());
        if !self.v6 {
            bytes[network + 10..network + 12].fill(0);
            let sum = !sum(&bytes[network..transport], 0);
            bytes[network + 10..network + 12].copy_from_slice(&sum.to_be_bytes());
        }
        bytes[transport + CHECKSUM..][..2].fill(0);
        let sum = !sum(&bytes[transport..], self.pseudo(bytes, bytes.len() - transport).into());
        bytes[transport + CHECKSUM..][..2].copy_from_slice(&sum.to_be_bytes());
    }

    /// The pseudo header's sum for so many bytes of TCP.
    pub fn pseudo(self, bytes: &[u8], tcp_len: usize) -> u16 {
        let addresses = self.network() + if self.v6 { 8 } else { 12 };
        sum(&bytes[addresses..self.transport()], 6 + tcp_len as u32)
    }

    /// What `tcp_gso_segment` and `inet_gso_segment` make of a packet whose segments have `mss`
    /// bytes, but for the identification of IPv4, which the kernel increments from segment to
    /// segment (RFC 6864: it means nothing with Don't Fragment).
    pub fn cut(self, packet: &[u8], mss: usize) -> Vec<Vec<u8>> {
        let (at, start) = (self.payload(), self.transport());
        let seq = u32::from_be_bytes(packet[start + SEQ..][..4].try_into().unwrap());
        let parts: Vec<&[u8]> = packet[at..].chunks(mss).collect();
        let last = parts.len() - 1;
        let one = |(i, part): (usize, &&[u8])| {
            let mut bytes = [&packet[..at], part].concat();
            let (field, len) = if self.v6 {
                (self.network() + 4, bytes.len() - start)
            } else {
                (self.network() + 2, bytes.len() - self.network())
            };
            bytes[field..field + 2].copy_from_slice(&(len as u16).to_be_bytes());
            bytes[start + SEQ..][..4].copy_from_slice(&seq.wrapping_add((i * mss) as u32).to_be_bytes());
            if i < last {
                bytes[start + FLAGS] &= !(PSH | FIN);
            }
            self.finish(&mut bytes);
            bytes
        };
        parts.iter().enumerate().map(one).collect()
    }
}

/// The sum of 16-bit words (RFC 1071), not inverted.
pub fn sum(bytes: &[u8], mut sum: u32) -> u16 {
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low));
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}
