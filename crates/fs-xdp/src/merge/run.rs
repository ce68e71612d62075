//! Recognises a run: consecutive full segments of one flow that the kernel, or the device, can cut
//! out of one packet again (TSO; `tcp_gso_segment` of `net/ipv4/tcp_offload.c`).

use super::segment::{ACK, FIN, FLAGS, Layout, PSH, SEQ, URGENT, WINDOW};
use fs_core::Framing;

/// Segments from which a run is merged. Lower: a message on the packet socket costs more than it saves (a kick carries
/// others too); higher: flows with small windows are not merged.
pub(crate) const SEGMENTS_MIN: usize = 8;
/// Bytes from which a run is merged with fewer segments: at MTU 9000 seven fill a packet.
pub(crate) const BYTES_MIN: usize = 24 << 10;
/// Most bytes of a merged packet, link-layer header included. A device takes fewer than
/// `GSO_LEGACY_MAX_SIZE` (65,536) unless it is told otherwise; a longer one the kernel cuts by
/// itself (`gso_features_check`).
const PACKET_MAX: usize = 65_535;
/// Maximum number of frames of a run: each frame is one vector of a system call, next to the
/// header's (`UIO_MAXIOV` is 1024). Lower: runs of segments that lie in many frames are cut off;
/// higher: the kernel refuses the call.
pub(crate) const FRAMES_MAX: usize = 1000;
/// Shortest packet that is looked at, in bytes: runs of shorter ones are no bulk transfer, and
/// short answers of many flows shall cost one comparison each.
const PACKET_MIN: usize = 512;

/// A packet of a batch, which may be a chain of frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    /// Bytes of its first frame.
    pub(crate) head: &'a [u8],
    /// Bytes of all its frames.
    pub(crate) len: usize,
    /// Number of its frames.
    pub(crate) frames: usize,
}

/// A run at the front of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Segments: at least 1.
    pub(crate) segments: usize,
    /// Frames of all its segments.
    pub(crate) frames: usize,
    /// Frames of the last segment.
    pub(crate) last_frames: usize,
    /// Bytes of the merged packet, headers included.
    pub(crate) bytes: usize,
    /// Position of the headers of each segment.
    pub(crate) layout: Layout,
    /// Bytes of payload in every segment but the last, which may have fewer.
    pub(crate) segment_len: usize,
}

impl Run {
    /// Returns the longest run that `first` and the packets after it make. Returns `None` if
    /// `first` is not the full segment of a bulk transfer. The headers of a segment lie in its
    /// first frame; a packet with other headers ends the run.
    #[inline]
    pub(crate) fn of<'a>(framing: Framing, first: Packet<'a>, rest: impl Iterator<Item = Packet<'a>>) -> Option<Run> {
        if first.len < PACKET_MIN {
            return None;
        }
        let layout = Layout::of(framing, first.head, first.len)?;
        let segment_len = first.len - layout.payload;
        // PSH and FIN end a run; other flags (CWR, URG, SYN, RST) are not for every segment of one.
        if segment_len == 0 || first.head[layout.transport + FLAGS] != ACK {
            return None;
        }
        let mut run =
            Run { segments: 1, frames: first.frames, last_frames: first.frames, bytes: first.len, layout, segment_len };
        let mut seq = sequence(first.head, layout);
        for packet in rest {
            seq = seq.wrapping_add(segment_len as u32);
            let Some(payload) = packet.len.checked_sub(layout.payload).filter(|&len| len > 0) else { break };
            if packet.head.len() < layout.payload {
                break;
            }
            let flags = packet.head[layout.transport + FLAGS];
            if payload > segment_len
                || run.bytes + payload > PACKET_MAX
                || run.frames + packet.frames > FRAMES_MAX
                || sequence(packet.head, layout) != seq
                || flags & !(PSH | FIN) != ACK
                || !same_headers(first.head, packet, layout)
            {
                break;
            }
            run.segments += 1;
            run.frames += packet.frames;
            run.last_frames = packet.frames;
            run.bytes += payload;
            if payload < segment_len || flags != ACK {
                break;
            }
        }
        Some(run)
    }

    /// Merging it saves more than it costs.
    #[inline]
    pub(crate) fn is_worth_it(&self) -> bool {
        self.segments >= SEGMENTS_MIN || self.segments > 1 && self.bytes >= BYTES_MIN
    }
}

#[inline]
fn sequence(packet: &[u8], layout: Layout) -> u32 {
    let at = layout.transport + SEQ;
    u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
}

/// Returns true if the headers of two packets differ only in the IP length and checksum, and in
/// TCP's sequence number, flags and checksum. The first frame of `packet` has at least
/// `layout.payload` bytes. The IP length of `packet` must equal the number of its bytes.
#[inline]
fn same_headers(first: &[u8], packet: Packet<'_>, layout: Layout) -> bool {
    let other = packet.head;
    let Layout { network, transport, payload } = layout;
    let same = |from: usize, to: usize| first[from..to] == other[from..to];
    let ip = if layout.is_v6() {
        same(0, network + 4) && same(network + 6, transport)
    } else {
        same(0, network + 2) && same(network + 4, network + 10) && same(network + 12, transport)
    };
    let length = layout.length_field();
    let told = usize::from(u16::from_be_bytes([other[length], other[length + 1]]));
    let begins = if layout.is_v6() { transport } else { network };
    ip && told == packet.len - begins
        && same(transport, transport + SEQ)
        && same(transport + SEQ + 4, transport + FLAGS)
        && same(transport + WINDOW, transport + WINDOW + 2)
        && same(transport + URGENT, payload)
}
