//! The headers of a merged packet in the form that the kernel needs for segmentation:
//! `CHECKSUM_PARTIAL` with the pseudo header's sum of the whole packet, and a `virtio_net_hdr` in
//! front (`virtio_net_hdr_to_skb` of `include/linux/virtio_net.h`).

use super::run::Run;
use super::segment::{CHECKSUM, FLAGS};
use crate::sys::packet_io::VNET_LEN;

/// Longest headers: Ethernet with a VLAN tag, IPv6, TCP with all options.
const HEADERS_MAX: usize = 18 + 40 + 60;

const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;

/// Both, in one piece of memory.
#[derive(Clone, Copy)]
pub(crate) struct MergedHeader {
    bytes: [u8; VNET_LEN + HEADERS_MAX],
    len: usize,
}

impl MergedHeader {
    /// For the segments of `run`. `first` and `last` are the first frames of its first and its last segment.
    pub(crate) fn new(run: &Run, first: &[u8], last: &[u8]) -> MergedHeader {
        let layout = run.layout;
        let mut bytes = [0; VNET_LEN + HEADERS_MAX];
        let (vnet, headers) = bytes.split_at_mut(VNET_LEN);
        let headers = &mut headers[..layout.payload];
        headers.copy_from_slice(&first[..layout.payload]);
        // The kernel takes PSH and FIN out of all segments but the last.
        headers[layout.transport + FLAGS] |= last[layout.transport + FLAGS];

        let transport_len = run.bytes - layout.transport;
        let length = if layout.is_v6() { transport_len } else { run.bytes - layout.network } as u16;
        headers[layout.length_field()..][..2].copy_from_slice(&length.to_be_bytes());
        let addresses = if layout.is_v6() {
            layout.network + 8
        } else {
            let checksum = layout.network + 10;
            headers[checksum..checksum + 2].fill(0);
            let sum = !fold(words(&headers[layout.network..layout.transport]));
            headers[checksum..checksum + 2].copy_from_slice(&sum.to_be_bytes());
            layout.network + 12
        };
        let pseudo = words(&headers[addresses..layout.transport]) + 6 + transport_len as u32;
        headers[layout.transport + CHECKSUM..][..2].copy_from_slice(&fold(pseudo).to_be_bytes());

        vnet[0] = NEEDS_CSUM;
        vnet[1] = if layout.is_v6() { GSO_TCPV6 } else { GSO_TCPV4 };
        vnet[2..4].copy_from_slice(&(layout.payload as u16).to_ne_bytes());
        vnet[4..6].copy_from_slice(&(run.segment_len as u16).to_ne_bytes());
        vnet[6..8].copy_from_slice(&(layout.transport as u16).to_ne_bytes());
        vnet[8..10].copy_from_slice(&(CHECKSUM as u16).to_ne_bytes());
        MergedHeader { bytes, len: VNET_LEN + layout.payload }
    }

    /// The `virtio_net_hdr` and the packet's headers behind it.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The sum of big-endian 16-bit words; `bytes` are an even number, and at most `HEADERS_MAX`.
fn words(bytes: &[u8]) -> u32 {
    bytes.as_chunks::<2>().0.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}
