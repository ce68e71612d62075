mod build;
mod sockets;

use super::*;
use crate::frame::{HeapPool, IfaceId, RxChecksum};
use std::vec::Vec;

const IFACE: IfaceId = IfaceId(0);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn table() -> UdpTable {
    UdpTable::new(&Limits { udp_sockets: 8, ..Limits::default() }, 4096)
}

fn bind(table: &mut UdpTable, addr: &str) -> Result<UdpId, Error> {
    table.bind(at(addr), false, |_| panic!("no port to choose"))
}

fn key(local: &str, remote: &str) -> FlowKey {
    FlowKey::new(at(local), at(remote)).unwrap()
}

/// Makes frames that contain `parts`. The first has 42 bytes of headers in front; the last has 6
/// bytes of padding at the end.
fn frames(pool: &mut HeapPool, parts: &[&[u8]]) -> Vec<RxFrame> {
    let mut frames = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let (first, last) = (number == 0, number + 1 == parts.len());
        let bytes = [if first { &[0xaa; 42][..] } else { &[] }, part, if last { &[0xbb; 6] } else { &[] }].concat();
        let mut frame = pool.alloc().unwrap();
        frame.grow_back(bytes.len());
        frame.set_more(!last);
        pool.bytes_mut(&mut frame).copy_from_slice(&bytes);
        frames.push(RxFrame { frame, iface: IfaceId(0), checksum: RxChecksum::Unknown });
    }
    frames
}

fn deliver(
    table: &mut UdpTable,
    pool: &mut HeapPool,
    local: &str,
    remote: &str,
    parts: &[&[u8]],
) -> Result<Option<UdpId>, DropReason> {
    let payload_len = parts.iter().map(|part| part.len() as u32).sum();
    let datagram = Datagram { key: key(local, remote), payload_off: 42, payload_len, tos: 3 };
    let frames = frames(pool, parts);
    table.deliver(pool, &datagram, (IFACE, [0; 2]), frames)
}
