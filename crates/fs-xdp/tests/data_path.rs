//! The cost of the data path: no allocation, and at most one system call per batch.

mod support;

use fs_core::{FramePool, Framing, Protocol, RxFrame, TxFrame};
use fs_xdp::{Link, PacketConfig, PacketLink, QueueConfig, UmemPool, XdpConfig, XdpDevice, XdpMode, memory_pair};
use std::time::{Duration, Instant};
use support::alloc_unsafe::{Counting, allocations};
use support::*;

#[global_allocator]
static COUNTING: Counting = Counting;

const BATCH: usize = 32;
const ROUNDS: u64 = 200;

struct Batch {
    frames: Vec<TxFrame>,
    received: Vec<RxFrame>,
}

/// Sends and receives a batch. Returns how many calls of `rx` it took.
fn round(ends: &mut [(Box<dyn Link>, UmemPool); 2], bytes: &[u8], pieces: usize, batch: &mut Batch) -> u64 {
    let [(sender, sender_pool), (receiver, receiver_pool)] = ends;
    for _ in 0..BATCH {
        let mut rest = bytes;
        for piece in 0..pieces {
            let (now, later) = rest.split_at(if piece + 1 == pieces { rest.len() } else { 54 });
            rest = later;
            let mut frame = sender_pool.alloc().unwrap();
            frame.grow_back(now.len());
            sender_pool.bytes_mut(&mut frame).copy_from_slice(now);
            frame.set_more(piece + 1 < pieces);
            batch.frames.push(TxFrame { frame, checksum: None });
        }
    }
    assert_eq!(sender.tx(sender_pool, &mut batch.frames).unwrap(), BATCH);
    let deadline = Instant::now() + PATIENCE;
    let (mut got, mut calls) = (0, 0);
    while got < BATCH {
        got += receiver.rx(receiver_pool, IFACE, &mut batch.received, BATCH);
        calls += 1;
        assert!(Instant::now() < deadline, "{got} of {BATCH}");
    }
    for part in batch.received.drain(..) {
        receiver_pool.free(part.frame);
    }
    sender.reap(sender_pool);
    calls
}

fn costs_what_it_may(name: &str, mut ends: [(Box<dyn Link>, UmemPool); 2], rx_calls_system: bool) {
    let bytes = packet(Framing::Ethernet, 0, 400, 1);
    let mut batch = Batch { frames: Vec::with_capacity(4 * BATCH), received: Vec::with_capacity(4 * BATCH) };
    for pieces in [1, 2] {
        for _ in 0..50 {
            round(&mut ends, &bytes, pieces, &mut batch);
        }
        let before = allocations();
        let calls_before = [ends[0].0.stats().syscalls, ends[1].0.stats().syscalls];
        let mut rx_calls = 0;
        for _ in 0..ROUNDS {
            rx_calls += round(&mut ends, &bytes, pieces, &mut batch);
        }
        assert_eq!(allocations() - before, 0, "{name}: allocates on the data path");
        let tx = ends[0].0.stats().syscalls - calls_before[0];
        let rx = ends[1].0.stats().syscalls - calls_before[1];
        assert!(tx <= ROUNDS + 2, "{name}: {tx} system calls to send {ROUNDS} batches");
        assert!(rx <= if rx_calls_system { rx_calls } else { 0 }, "{name}: {rx} system calls to receive");
    }
    for (link, mut pool) in ends {
        link.close(&mut pool);
        assert_eq!(pool.in_use(), 0);
    }
}

#[test]
fn no_allocation_and_one_call_per_batch() {
    let with_pool = |link: Box<dyn Link>| (link, umem(4096, 2048).1);
    let (a, b) = memory_pair(Framing::Ethernet, 1500).unwrap();
    costs_what_it_may("memory", [with_pool(Box::new(a)), with_pool(Box::new(b))], false);

    if skipped_without_root("costs of AF_XDP and AF_PACKET") {
        return;
    }
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let veth = Veth::new(1, 1500);
        let mut devices = Vec::new();
        let ends = [0, 1].map(|end| {
            let (ns, name) = veth.ends()[end];
            let (umem, mut pool) = umem(4096, 2048);
            let (device, link) = ns.enter(|| {
                let device = XdpDevice::attach(name, XdpConfig { mode, ..XdpConfig::default() }).unwrap();
                device.port_table().set_addresses(&[address(end)], &[]).unwrap();
                device.port_table().add_local(Protocol::Udp, address(end), OURS).unwrap();
                let config = QueueConfig { rx: 512, tx: 512, fill: 512, lent: 512, completion: 512 };
                let link = device.open_queue(0, &umem, &mut pool, config).unwrap();
                (device, link)
            });
            devices.push(device);
            (Box::new(link) as Box<dyn Link>, pool)
        });
        costs_what_it_may(&format!("AF_XDP {mode:?}"), ends, false);
    }

    let veth = Veth::new(1, 1500);
    // The kernel's own packets would make `rx` return more packets than were sent.
    for (ns, name) in veth.ends() {
        ns.run(&format!("ip link set {name} arp off && ip addr flush dev {name}"));
    }
    std::thread::sleep(Duration::from_millis(50));
    let ends = veth.ends().map(|(ns, name)| {
        let link = ns.enter(|| PacketLink::open(name, PacketConfig::default()).unwrap());
        with_pool(Box::new(link))
    });
    costs_what_it_may("AF_PACKET", ends, true);
}
