//! Builds headers from a connection's state.

use crate::flow::FlowKey;
use crate::frame::{Frame, FramePool, TxChecksum, TxFrame};
use crate::net::neigh::Path;
use crate::seq::SeqNum;
use crate::wire::checksum::{Sum, copy_and_sum};
use crate::wire::eth;
use crate::wire::ipv4::{self, Ipv4Header};
use crate::wire::ipv6::{self, Ipv6Header};
use crate::wire::options::{self, SynOptions, SynWords, Timestamps};
use crate::wire::tcp::{self, TcpFlags, TcpHeader};

/// IP protocol number.
const TCP: u8 = 6;
/// Hop limit unless the socket sets one (RFC 1700's recommendation, as Linux).
pub(crate) const DEFAULT_TTL: u8 = 64;

/// TCP options of one segment, padded to 4 bytes.
#[derive(Clone, Copy)]
pub(crate) struct OptionBytes {
    pub(crate) bytes: [u8; tcp::OPTIONS_MAX],
    pub(crate) len: u8,
}

impl OptionBytes {
    pub(crate) const NONE: Self = Self { bytes: [0; tcp::OPTIONS_MAX], len: 0 };
}

/// A segment to build.
pub(crate) struct SegmentSpec<'a> {
    pub(crate) key: &'a FlowKey,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) flags: TcpFlags,
    pub(crate) window: u16,
    /// The urgent pointer: sets URG unless it is zero.
    pub(crate) urgent: u16,
    pub(crate) options: &'a OptionBytes,
    pub(crate) ttl: u8,
    /// TOS or traffic class, including ECN bits.
    pub(crate) tos: u8,
    /// IPv6: one label for all packets of a connection (RFC 6437). IPv4: 0.
    pub(crate) flow_label: u32,
    pub(crate) payload_len: u32,
    /// The payload's folded sum; unused if the device completes checksums.
    pub(crate) payload_sum: u16,
}

/// Returns the number of bytes in front of the payload.
#[inline]
pub(crate) fn header_len(path: &Path, v6: bool, options: u8) -> usize {
    let ip = if v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
    path.link_header().len() + ip + tcp::HEADER_LEN + options as usize
}

/// Writes all headers into the headroom of `head` (which grows to include them). Returns the
/// checksum request if the device is to complete it.
#[inline]
pub(crate) fn write_headers<P: FramePool>(
    pool: &mut P,
    head: &mut Frame,
    path: &Path,
    spec: &SegmentSpec<'_>,
) -> Option<TxChecksum> {
    let v6 = spec.key.is_v6();
    let link = path.link_header();
    let ip_len = if v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
    let tcp_len = tcp::HEADER_LEN + spec.options.len as usize;
    let total = link.len() + ip_len + tcp_len;
    head.grow_front(total);
    let bytes = &mut pool.bytes_mut(head)[..total];
    let (link_bytes, rest) = bytes.split_at_mut(link.len());
    link_bytes.copy_from_slice(link);
    let (ip, tcp_bytes) = rest.split_at_mut(ip_len);
    let transport = tcp_len as u32 + spec.payload_len;
    let pseudo = match *spec.key {
        FlowKey::V4 { local, remote, .. } => {
            let header = Ipv4Header {
                src: local,
                dst: remote,
                protocol: TCP,
                ttl: spec.ttl,
                tos: spec.tos,
                total_len: (ip_len as u32 + transport) as u16,
            };
            if let Some(out) = ip.first_chunk_mut() {
                header.emit(out);
            }
            Sum::pseudo_v4(local, remote, TCP, transport)
        }
        FlowKey::V6 { local, remote, .. } => {
            let header = Ipv6Header {
                src: local,
                dst: remote,
                protocol: TCP,
                hop_limit: spec.ttl,
                traffic_class: spec.tos,
                payload_len: transport as u16,
            };
            if let Some(out) = ip.first_chunk_mut() {
                header.emit(out);
                ipv6::set_flow_label(out, spec.flow_label);
            }
            Sum::pseudo_v6(&local, &remote, TCP, transport)
        }
    };
    let header = TcpHeader {
        src_port: spec.key.local_port(),
        dst_port: spec.key.remote_port(),
        seq: spec.seq,
        ack: spec.ack,
        flags: if spec.urgent == 0 { spec.flags } else { spec.flags.with(TcpFlags::URG) },
        window: spec.window,
        urgent: spec.urgent,
        options_len: spec.options.len,
    };
    tcp_bytes[tcp::HEADER_LEN..].copy_from_slice(&spec.options.bytes[..spec.options.len as usize]);
    let sum = {
        let fixed = tcp_bytes.first_chunk_mut()?;
        header.emit(fixed);
        if path.tx_checksum() {
            pseudo.fold()
        } else {
            pseudo.add(Sum::of_short(tcp_bytes)).add(Sum::word(spec.payload_sum)).finish()
        }
    };
    if let Some(fixed) = tcp_bytes.first_chunk_mut() {
        tcp::set_checksum(fixed, sum);
    }
    path.tx_checksum().then_some(TxChecksum { start: (link.len() + ip_len) as u16, offset: tcp::CHECKSUM_OFFSET })
}

/// The headers of a segment over IPv4 whose only options are timestamps.
pub(crate) struct Plain {
    pub(crate) local: u32,
    pub(crate) remote: u32,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) flags: TcpFlags,
    pub(crate) window: u16,
    /// The urgent pointer: sets URG unless it is zero.
    pub(crate) urgent: u16,
    pub(crate) ts: Option<Timestamps>,
    pub(crate) ttl: u8,
    pub(crate) tos: u8,
    pub(crate) payload_len: u32,
    pub(crate) payload_sum: u16,
}

impl Plain {
    /// Returns the same segment over IPv6.
    #[inline(always)]
    pub(crate) fn over_v6<'a>(&self, key: &'a FlowKey, flow_label: u32, options: &'a OptionBytes) -> SegmentSpec<'a> {
        SegmentSpec {
            key,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            urgent: self.urgent,
            options,
            ttl: self.ttl,
            tos: self.tos,
            flow_label,
            payload_len: self.payload_len,
            payload_sum: self.payload_sum,
        }
    }
}

/// Like [`write_headers`], for IPv4 with no options but timestamps. The sums are computed from the
/// values, not from the bytes afterwards; big-endian words have the same sum (RFC 1071 section 2
/// (B)).
#[inline(always)]
pub(crate) fn write_plain<P: FramePool>(
    pool: &mut P,
    head: &mut Frame,
    path: &Path,
    plain: &Plain,
) -> Option<TxChecksum> {
    let options = if plain.ts.is_some() { options::TIMESTAMPS_LEN } else { 0 };
    write_v4(pool, head, path, plain, options, |out| {
        let Some(ts) = plain.ts else { return Some(0) };
        let out = out.first_chunk_mut::<{ options::TIMESTAMPS_LEN }>()?;
        out[..4].copy_from_slice(&options::TIMESTAMPS_HEAD.to_be_bytes());
        out[4..8].copy_from_slice(&ts.val.to_be_bytes());
        out[8..].copy_from_slice(&ts.ecr.to_be_bytes());
        Some(u64::from(options::TIMESTAMPS_HEAD) + u64::from(ts.val) + u64::from(ts.ecr))
    })
}

/// Like [`write_plain`] with `options` bytes of options. `put` writes them to the start of its
/// argument and returns the sum of their words.
#[inline(always)]
fn write_v4<P: FramePool>(
    pool: &mut P,
    head: &mut Frame,
    path: &Path,
    plain: &Plain,
    options: usize,
    put: impl FnOnce(&mut [u8]) -> Option<u64>,
) -> Option<TxChecksum> {
    const FIXED: usize = ipv4::HEADER_LEN + tcp::HEADER_LEN;
    let link = path.link_header();
    head.grow_front(link.len() + FIXED + options);
    let (link_bytes, rest) = pool.bytes_mut(head).split_at_mut(link.len());
    match (link_bytes.first_chunk_mut::<{ eth::HEADER_LEN }>(), link.first_chunk()) {
        // A copy of constant length.
        (Some(to), Some(from)) if link.len() == eth::HEADER_LEN => *to = *from,
        _ => link_bytes.copy_from_slice(link),
    }
    let (fixed, rest) = rest.split_first_chunk_mut::<FIXED>()?;
    let transport = (tcp::HEADER_LEN + options) as u32 + plain.payload_len;
    let addresses = u64::from(plain.local) + u64::from(plain.remote);

    let version_and_len = 0x4500 << 16 | u32::from(plain.tos) << 16 | (ipv4::HEADER_LEN as u32 + transport) & 0xffff;
    let fragment = 0x4000; // Don't Fragment.
    let ttl = u32::from(plain.ttl) << 24 | u32::from(TCP) << 16;
    let sum = addresses + u64::from(version_and_len) + fragment + u64::from(ttl);

    let ports = u32::from(plain.local_port) << 16 | u32::from(plain.remote_port);
    let offset = (tcp::HEADER_LEN + options) as u32 / 4;
    let flags = if plain.urgent == 0 { plain.flags } else { plain.flags.with(TcpFlags::URG) };
    let control = offset << 28 | u32::from(flags.0) << 16 | u32::from(plain.window);
    let pseudo = addresses + u64::from(TCP) + u64::from(transport);
    let mut check = pseudo + u64::from(plain.urgent);
    check += u64::from(ports) + u64::from(plain.seq.0) + u64::from(plain.ack.0) + u64::from(control);
    check += put(rest)?;
    let check = if path.tx_checksum() { fold(pseudo) } else { !fold(check + u64::from(plain.payload_sum)) };
    let words = [
        version_and_len,
        fragment as u32,
        ttl | u32::from(!fold(sum)),
        plain.local,
        plain.remote,
        ports,
        plain.seq.0,
        plain.ack.0,
        control,
        u32::from(check) << 16 | u32::from(plain.urgent),
    ];
    for (out, word) in fixed.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *out = word.to_be_bytes();
    }
    let start = (link.len() + ipv4::HEADER_LEN) as u16;
    path.tx_checksum().then_some(TxChecksum { start, offset: tcp::CHECKSUM_OFFSET })
}

/// Like [`bare`], over IPv4, for a SYN or SYN-ACK with these options; `plain` has none.
pub(crate) fn bare_syn<P: FramePool>(pool: &mut P, path: &Path, plain: &Plain, offer: &SynOptions) -> Option<TxFrame> {
    let mut frame = pool.alloc()?;
    let words = SynWords::of(offer);
    let checksum = write_v4(pool, &mut frame, path, plain, 4 * words.as_slice().len(), |out| {
        words.emit(out);
        Some(words.as_slice().iter().map(|word| u64::from(*word)).sum())
    });
    Some(TxFrame { frame, checksum })
}

/// Folds a sum of big-endian words to 16 bits.
#[inline(always)]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum + (sum >> 16)) as u16
}

/// Builds a segment with a copy of `payload`, which must fit a frame. Its length and sum are filled
/// in here.
pub(crate) fn with_payload<P: FramePool>(
    pool: &mut P,
    path: &Path,
    spec: &SegmentSpec<'_>,
    payload: &[u8],
) -> Option<TxFrame> {
    let mut frame = pool.alloc()?;
    frame.grow_back(payload.len());
    let payload_sum = copy_and_sum(pool.bytes_mut(&mut frame), payload).fold();
    let spec = SegmentSpec { payload_len: payload.len() as u32, payload_sum, ..*spec };
    let checksum = write_headers(pool, &mut frame, path, &spec);
    Some(TxFrame { frame, checksum })
}

/// Builds a segment without payload, in a frame of its own. Returns `None` if the pool is empty.
pub(crate) fn bare<P: FramePool>(pool: &mut P, path: &Path, spec: &SegmentSpec<'_>) -> Option<TxFrame> {
    let mut frame = pool.alloc()?;
    let checksum = write_headers(pool, &mut frame, path, spec);
    Some(TxFrame { frame, checksum })
}
