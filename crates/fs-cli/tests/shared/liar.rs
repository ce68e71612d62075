//! A program that writes its own frames, and sends arbitrary requests to the daemon.

use crate::lab::{DEVICE, Lab, noise};
use crate::rings_unsafe::Rings;
use fs_daemon::shared;
use fs_rt::broker::message::{Answer, Request};
use fs_rt::broker::{HELLO, wire};
use fs_xdp::{QueueConfig, Umem, UmemConfig};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

pub(crate) const MEMORY: UmemConfig = UmemConfig { chunks: 1024, chunk_size: 4096 };
pub(crate) const RINGS: QueueConfig = QueueConfig { rx: 256, tx: 256, fill: 256, lent: 64, completion: 256 };

/// A connection to the daemon's broker.
pub(crate) fn greet(lab: &Lab) -> OwnedFd {
    let control = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&control, &SocketAddrUnix::new(lab.control()).unwrap()).unwrap();
    rustix::net::send(&control, &HELLO, SendFlags::NOSIGNAL).unwrap();
    control
}

pub(crate) fn call(control: &OwnedFd, request: &Request, descriptors: &[&OwnedFd]) -> (Answer, Vec<OwnedFd>) {
    let borrowed: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
    wire::send(control.as_fd(), &request.encode(), &borrowed).unwrap();
    let (record, given) = wire::receive(control.as_fd(), |fd| fd).unwrap().unwrap();
    (Answer::decode(&record).unwrap(), given)
}

pub(crate) fn attach() -> Request {
    Request::Attach { name: DEVICE.into(), queues: 1, memory: MEMORY, rings: RINGS, segments: true }
}

pub(crate) struct Liar {
    pub(crate) control: OwnedFd,
    pub(crate) rings: Rings,
    memory: std::fs::File,
    pub(crate) slot: u16,
    token: [u64; 2],
    next: u64,
    segments: OwnedFd,
}

/// `struct virtio_net_hdr`.
#[derive(Clone, Copy)]
pub(crate) struct Offloads {
    /// Where the checksum begins and, from there, where it is written.
    pub(crate) checksum: Option<(u16, u16)>,
    /// `VIRTIO_NET_HDR_GSO_*`.
    pub(crate) kind: u8,
    /// Payload of a segment.
    pub(crate) size: u16,
}

impl Liar {
    pub(crate) fn new(lab: &Lab) -> Self {
        let control = greet(lab);
        let (_, file) = Umem::in_file(MEMORY).unwrap();
        let (_, _) = call(&control, &Request::Device(DEVICE.into()), &[]);
        let (answer, mut given) = call(&control, &attach(), &[&file]);
        let Answer::Attached { slot, token, queues: 1 } = answer else { panic!("{answer:?}") };
        let rings = Rings::map(given.pop().unwrap(), RINGS).unwrap();
        let segments = given.pop().filter(|_| given.len() == 4).expect("a packet socket (needs the kernel's BTF)");
        Self { control, rings, memory: file.into(), slot, token, next: 0, segments }
    }

    /// Shows on another connection that the slot is this program's. That connection replaces the first.
    pub(crate) fn resume(&mut self, lab: &Lab) {
        let next = greet(lab);
        assert_eq!(call(&next, &Request::Resume { slot: self.slot, token: self.token }, &[]).0, Answer::Done);
        self.control = next;
    }

    /// Requests the lease that a socket proves.
    pub(crate) fn lease(&self, socket: impl Into<OwnedFd>) -> Answer {
        call(&self.control, &Request::Lease, &[&socket.into()]).0
    }

    /// Writes bytes into the next chunk, after some space. Returns their position.
    fn place(&mut self, bytes: &[u8]) -> (u64, u32) {
        let chunk = u64::from(MEMORY.chunk_size);
        let at = self.next % u64::from(MEMORY.chunks) * chunk + 256;
        self.next += 1;
        self.memory.write_all_at(bytes, at).unwrap();
        (at, bytes.len() as u32)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.send_with(bytes, 0);
    }

    /// Sends a packet with options in its descriptor.
    pub(crate) fn send_with(&mut self, bytes: &[u8], options: u32) {
        let (at, length) = self.place(bytes);
        self.rings.transmit(&[(at, length, options)]);
    }

    /// Sends one packet in several chunks.
    pub(crate) fn send_in_parts(&mut self, parts: &[&[u8]]) {
        let placed: Vec<_> = parts.iter().map(|part| self.place(part)).collect();
        let last = placed.len() - 1;
        let options = |number| if number == last { 0 } else { crate::rings_unsafe::CONTINUED };
        let all: Vec<_> = placed.iter().enumerate().map(|(n, (at, length))| (*at, *length, options(n))).collect();
        self.rings.transmit(&all);
    }

    /// Writes bytes before the next packet, where metadata of a descriptor lies.
    pub(crate) fn send_with_metadata(&mut self, metadata: &[u8], bytes: &[u8]) {
        let at = self.next % u64::from(MEMORY.chunks) * u64::from(MEMORY.chunk_size) + 256;
        self.memory.write_all_at(metadata, at - metadata.len() as u64).unwrap();
        self.send_with(bytes, crate::rings_unsafe::METADATA);
    }

    /// Sends a frame through the packet socket for super-segments. Returns whether the kernel has
    /// accepted it.
    pub(crate) fn send_segments(&self, offloads: Offloads, bytes: &[u8]) -> bool {
        let (start, offset) = offloads.checksum.unwrap_or_default();
        let mut message = vec![u8::from(offloads.checksum.is_some()), offloads.kind];
        for word in [54, offloads.size, start, offset] {
            message.extend(word.to_ne_bytes());
        }
        message.extend(bytes);
        rustix::net::send(&self.segments, &message, SendFlags::empty()).is_ok()
    }

    pub(crate) fn counters(&self, lab: &Lab) -> BTreeMap<&'static str, u64> {
        let rows = lab.host.enter(|| shared::list(shared::PINS.as_ref()).unwrap());
        let row = rows.iter().find(|row| row.slot == self.slot).expect("its counters");
        row.counters.named().into_iter().collect()
    }
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))).sum()
}

fn folded(mut sum: u32) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// Returns a UDP datagram with its checksum.
pub(crate) fn datagram(from: SocketAddr, to: SocketAddr, payload: usize) -> Vec<u8> {
    let length = |more: usize| ((payload + more) as u16).to_be_bytes();
    let mut bytes = vec![2; 12];
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            bytes.extend([8, 0, 0x45, 0]);
            bytes.extend(length(28));
            bytes.extend([0, 1, 0, 0, 64, 17, 0, 0]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
            let header = folded(sum(&bytes[14..34]));
            bytes[24..26].copy_from_slice(&header);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend(length(8));
            bytes.extend([17, 64]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        _ => panic!("one family"),
    }
    let (addresses, at) = (if from.is_ipv4() { 26 } else { 22 }, bytes.len());
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(length(8));
    bytes.extend([0, 0]);
    bytes.extend(noise(payload));
    let whole = sum(&bytes[addresses..]) + 17 + payload as u32 + 8;
    let whole = folded(whole);
    bytes[at + 6..at + 8].copy_from_slice(&whole);
    bytes
}

/// Leaves the checksum of a datagram to the device: its field has the pseudo header's sum.
pub(crate) fn with_partial_checksum(datagram: &[u8]) -> Vec<u8> {
    let mut bytes = datagram.to_vec();
    let pseudo = sum(&bytes[26..34]) + 17 + sum(&bytes[38..40]);
    let [high, low] = folded(pseudo);
    bytes[40..42].copy_from_slice(&[!high, !low]);
    bytes
}

/// Returns a TCP segment over IPv4 of any length, without a checksum.
pub(crate) fn segment(from: SocketAddr, to: SocketAddr, payload: usize) -> Vec<u8> {
    let mut bytes = datagram(from, to, payload + 12);
    bytes[23] = 6;
    bytes[24..26].fill(0);
    let header = folded(sum(&bytes[14..34]));
    bytes[24..26].copy_from_slice(&header);
    bytes[38..54].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    bytes
}
