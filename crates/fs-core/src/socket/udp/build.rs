//! Builds datagrams to send.

use crate::error::Error;
use crate::flow::FlowKey;
use crate::frame::{Frame, FramePool, TxChecksum, TxFrame};
use crate::net::neigh::{Path, PathState};
use crate::wire::checksum::{RunningSum, Sum, copy_and_sum};
use crate::wire::udp::{CHECKSUM_OFFSET, UdpHeader, nonzero};
use crate::wire::{ipv4, ipv6, udp};
use alloc::vec::Vec;

/// Largest IPv4 packet, and largest IPv6 payload, in bytes.
const LENGTH_MAX: usize = 65_535;

/// Builds the packet for `payload` and pushes its frames to `out`: one, or a chain if it does not
/// fit a chunk (MTUs beyond the chunk size). If `path` is `Known`, the packet begins with the link
/// header; otherwise with the IP header, to wait for its neighbour. The checksum is left to the
/// link if it supports that. `tos` is all 8 bits of IPv4's type of service, or of IPv6's traffic
/// class.
///
/// # Errors
/// `MessageSize` if the packet would exceed the path's MTU (there is no IP fragmentation),
/// `NoBuffers` if the pool is empty. In both cases `out` is unchanged, and all frames are freed.
pub(crate) fn build_udp<P: FramePool>(
    pool: &mut P,
    path: &Path,
    key: &FlowKey,
    (ttl, tos): (u8, u8),
    payload: &[u8],
    out: &mut Vec<TxFrame>,
) -> Result<(), Error> {
    let ip_len = if key.is_v6() { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
    let total_len = ip_len + udp::HEADER_LEN + payload.len();
    if total_len > usize::from(path.mtu()).min(LENGTH_MAX) {
        return Err(Error::MessageSize);
    }
    let before = out.len();
    let Some(payload_sum) = push_payload(pool, payload, out) else {
        out.drain(before..).for_each(|part| pool.free(part.frame));
        return Err(Error::NoBuffers);
    };
    let head = &mut out[before];
    head.frame.grow_front(ip_len + udp::HEADER_LEN);
    let bytes = &mut pool.bytes_mut(&mut head.frame)[..ip_len + udp::HEADER_LEN];
    let transport = write_headers(bytes, ip_len, key, (ttl, tos), total_len);
    let pseudo = Sum::pseudo(key, ipv4::UDP, (total_len - ip_len) as u32);
    let checksum = if path.tx_checksum() {
        head.checksum = Some(TxChecksum { start: ip_len as u16, offset: CHECKSUM_OFFSET });
        pseudo.fold()
    } else {
        nonzero(pseudo.add(Sum::of_short(transport)).add(payload_sum).finish())
    };
    transport[usize::from(CHECKSUM_OFFSET)..].copy_from_slice(&checksum.to_be_bytes());
    if path.state() == PathState::Known {
        path.prepend(pool, head);
    }
    Ok(())
}

/// Copies the payload into at least one frame. Returns `None` if the pool is empty; the frames so
/// far are in `out`.
fn push_payload<P: FramePool>(pool: &mut P, payload: &[u8], out: &mut Vec<TxFrame>) -> Option<Sum> {
    let mut sum = RunningSum::default();
    let mut rest = payload;
    loop {
        let mut frame: Frame = pool.alloc()?;
        let (here, behind) = rest.split_at(rest.len().min(pool.payload_room()));
        frame.grow_back(here.len());
        sum.push_sum(copy_and_sum(pool.bytes_mut(&mut frame), here), here.len());
        frame.set_more(!behind.is_empty());
        out.push(TxFrame { frame, checksum: None });
        if behind.is_empty() {
            return Some(sum.sum());
        }
        rest = behind;
    }
}

/// Writes the IP and UDP headers. Returns the UDP header, its checksum zero.
fn write_headers<'a>(
    bytes: &'a mut [u8],
    ip_len: usize,
    key: &FlowKey,
    (ttl, tos): (u8, u8),
    total_len: usize,
) -> &'a mut [u8] {
    let (ip, transport) = bytes.split_at_mut(ip_len);
    let len = (total_len - ip_len) as u16;
    match *key {
        FlowKey::V4 { local, remote, .. } => {
            if let Some(out) = ip.first_chunk_mut() {
                let total_len = total_len as u16;
                let header = ipv4::Ipv4Header { src: local, dst: remote, protocol: ipv4::UDP, ttl, tos, total_len };
                header.emit(out);
            }
        }
        FlowKey::V6 { local, remote, .. } => {
            if let Some(out) = ip.first_chunk_mut() {
                let (protocol, hop_limit) = (ipv4::UDP, ttl);
                let (src, dst) = (local, remote);
                ipv6::Ipv6Header { src, dst, protocol, hop_limit, traffic_class: tos, payload_len: len }.emit(out);
            }
        }
    }
    if let Some(out) = transport.first_chunk_mut() {
        UdpHeader { src_port: key.local_port(), dst_port: key.remote_port(), len, checksum: 0 }.emit(out);
    }
    transport
}
