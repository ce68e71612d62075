//! Common code of the link tests: namespaces, veth pairs, ends with a pool, and distinguishable
//! packets.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary uses its part")]

pub mod alloc_unsafe;
pub mod netns_unsafe;
pub mod segments;
pub mod suite;

use fs_core::HEADROOM;
use fs_core::{Frame, FramePool, Framing, IfaceId, RxFrame, TxFrame};
use fs_xdp::{Link, Umem, UmemConfig, UmemPool};
use netns_unsafe::NetNs;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Our port, and one of the kernel's.
pub const OURS: u16 = 7777;
pub const KERNELS: u16 = 9999;
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 88, 0, 1), Ipv4Addr::new(10, 88, 0, 2)];
pub const MACS: [[u8; 6]; 2] = [[2, 0x88, 0, 0, 0, 1], [2, 0x88, 0, 0, 0, 2]];
pub const IFACE: IfaceId = IfaceId(3);

/// Prints that a test is skipped, and why. Returns whether it is.
pub fn skipped_without_root(what: &str) -> bool {
    let skipped = !netns_unsafe::is_root();
    if skipped {
        eprintln!("skipped: {what} (needs root)");
    }
    skipped
}

/// Two namespaces joined by a veth pair: `fsx0` in the first, `fsx1` in the second.
pub struct Veth {
    pub a: NetNs,
    pub b: NetNs,
}

impl Veth {
    pub fn new(queues: u32, mtu: u32) -> Veth {
        let (a, b) = (NetNs::new(), NetNs::new());
        a.run(&format!(
            "ip link add fsx0 numtxqueues {queues} numrxqueues {queues} type veth \
             peer name fsx1 numtxqueues {queues} numrxqueues {queues} netns {}",
            b.path()
        ));
        let veth = Veth { a, b };
        for (i, (ns, name)) in veth.ends().into_iter().enumerate() {
            let mac = MACS[i].map(|byte| format!("{byte:02x}")).join(":");
            ns.run(&format!(
                "ip link set {name} address {mac} mtu {mtu} && ip addr add {}/24 dev {name} && ip link set {name} up && \
                 ip neigh add {} lladdr {} dev {name}",
                ADDRESSES[i],
                ADDRESSES[1 - i],
                MACS[1 - i].map(|byte| format!("{byte:02x}")).join(":")
            ));
        }
        // The kernel's link watch enables the queues of a link with a carrier in a kernel thread,
        // later on a busy machine. Until then packets are dropped silently, and some tests send
        // packets that are not sent again.
        for (ns, name) in veth.ends() {
            let deadline = Instant::now() + PATIENCE;
            while !ns.try_run(&format!("ip -o link show dev {name} | grep -q 'state UP'")) {
                assert!(Instant::now() < deadline, "{name} has no carrier after {PATIENCE:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        veth
    }

    pub fn ends(&self) -> [(&NetNs, &'static str); 2] {
        [(&self.a, "fsx0"), (&self.b, "fsx1")]
    }
}

/// Limit for each wait: on a busy machine a thread may have to wait for its CPU.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A link with the pool that serves it.
pub struct End {
    pub link: Box<dyn Link>,
    pub umem: Arc<Umem>,
    pub pool: UmemPool,
    received: Vec<RxFrame>,
}

/// Creates a UMEM with one pool that has all its chunks.
pub fn umem(chunks: u32, chunk_size: u32) -> (Arc<Umem>, UmemPool) {
    let umem = Umem::new(UmemConfig { chunks, chunk_size }).unwrap();
    let pool = umem.pool(chunks).unwrap();
    (umem, pool)
}

impl End {
    pub fn new(link: Box<dyn Link>, umem: Arc<Umem>, pool: UmemPool) -> End {
        End { link, umem, pool, received: Vec::new() }
    }

    /// Returns the longest packet that the link takes, including the link-layer header.
    pub fn longest(&self) -> usize {
        let header = if self.link.caps().framing == Framing::Ethernet { 14 } else { 0 };
        self.link.caps().mtu as usize + header
    }

    /// Puts the packet into as few frames as possible, or into frames of at most `piece` bytes.
    pub fn frames(&mut self, packet: &[u8], piece: usize) -> Vec<TxFrame> {
        let room = (self.pool.chunk_size() - HEADROOM as usize).min(piece);
        let count = packet.len().div_ceil(room);
        let mut frames = Vec::new();
        for (i, bytes) in packet.chunks(room).enumerate() {
            let mut frame = self.frame(bytes);
            frame.set_more(i + 1 < count);
            frames.push(TxFrame { frame, checksum: None });
        }
        frames
    }

    pub fn frame(&mut self, bytes: &[u8]) -> Frame {
        let mut frame = self.pool.alloc().expect("the pool is large enough");
        frame.grow_back(bytes.len());
        self.pool.bytes_mut(&mut frame).copy_from_slice(bytes);
        frame
    }

    /// Sends all of `frames`, as fast as the link takes them.
    pub fn send(&mut self, mut frames: Vec<TxFrame>) {
        let deadline = Instant::now() + PATIENCE;
        while !frames.is_empty() {
            self.link.tx(&mut self.pool, &mut frames).expect("the link lives");
            assert!(Instant::now() < deadline, "{} frames were not taken", frames.len());
        }
    }

    /// Returns the test's packets that have arrived. Others (the kernel's own) are dropped.
    pub fn receive_now(&mut self) -> Vec<Vec<u8>> {
        let said = self.link.rx(&mut self.pool, IFACE, &mut self.received, 64);
        let mut packets = Vec::new();
        let mut heads = 0;
        let mut packet = Vec::new();
        for part in self.received.drain(..) {
            assert_eq!(part.iface, IFACE);
            packet.extend_from_slice(self.pool.bytes(&part.frame));
            let more = part.frame.more();
            self.pool.free(part.frame);
            if !more {
                heads += 1;
                let whole = std::mem::take(&mut packet);
                if is_test_packet(&whole) {
                    packets.push(whole);
                }
            }
        }
        assert_eq!(said, heads, "rx told another number of packets");
        assert!(packet.is_empty(), "a chain without an end");
        packets
    }

    /// Waits for `count` packets and returns them.
    pub fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        let mut packets = Vec::new();
        while packets.len() < count {
            packets.extend(self.receive_now());
            if Instant::now() > deadline {
                panic!("{} of {count} packets came; {:?}", packets.len(), self.link.stats());
            }
        }
        packets
    }

    /// Takes sent frames back, so that only receiving holds chunks.
    pub fn settle(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.link.reap(&mut self.pool) {
            assert!(Instant::now() < deadline, "sending never ends");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Closes the link and checks that no chunk is missing.
    pub fn close(self) {
        let End { link, umem, mut pool, received } = self;
        assert!(received.is_empty());
        link.close(&mut pool);
        assert_eq!(umem.in_use([&pool]), 0, "chunks have leaked");
    }
}

/// Builds a UDP packet of `len` bytes in total from end `from` to the other, with contents derived
/// from `seed`.
pub fn packet(framing: Framing, from: usize, len: usize, seed: u32) -> Vec<u8> {
    packet_to(framing, from, OURS, len, seed)
}

pub fn packet_to(framing: Framing, from: usize, port: u16, len: usize, seed: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    if framing == Framing::Ethernet {
        bytes.extend_from_slice(&MACS[1 - from]);
        bytes.extend_from_slice(&MACS[from]);
        bytes.extend_from_slice(&[8, 0]);
    }
    let ip = bytes.len();
    let total = (len - ip) as u16;
    bytes.extend_from_slice(&[0x45, 0]);
    bytes.extend_from_slice(&total.to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0]);
    bytes.extend_from_slice(&ADDRESSES[from].octets());
    bytes.extend_from_slice(&ADDRESSES[1 - from].octets());
    let sum = !bytes[ip..].chunks(2).fold(0u32, |sum, pair| {
        let sum = sum + u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        (sum & 0xffff) + (sum >> 16)
    }) as u16;
    bytes[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend_from_slice(&OURS.to_be_bytes());
    bytes.extend_from_slice(&port.to_be_bytes());
    bytes.extend_from_slice(&(total - 20).to_be_bytes());
    // No UDP checksum: IPv4 allows that.
    bytes.extend_from_slice(&[0, 0]);
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        bytes.push(state as u8);
    }
    bytes
}

fn is_test_packet(bytes: &[u8]) -> bool {
    let ip = if bytes.get(12..14) == Some(&[8, 0]) && bytes.get(14) == Some(&0x45) { 14 } else { 0 };
    bytes.get(ip) == Some(&0x45)
        && bytes.get(ip + 9) == Some(&17)
        && bytes.get(ip + 20..ip + 24).is_some_and(|ports| ports.chunks(2).any(|port| port == OURS.to_be_bytes()))
}

/// An address of an end.
pub fn address(end: usize) -> IpAddr {
    ADDRESSES[end].into()
}
