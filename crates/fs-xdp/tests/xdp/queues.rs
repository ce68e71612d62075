//! Queues that are opened, closed and lost, and their chunks.

use super::*;

#[test]
fn two_queues_of_two_devices_share_one_umem() {
    if skipped_without_root("two queues on one UMEM") {
        return;
    }
    let (veth, other) = (Veth::new(2, 1500), Veth::new(2, 1500));
    let (device, second) = (attach(&veth, 0, NATIVE), attach(&other, 0, NATIVE));
    assert_eq!(device.queue_count(), 2);
    let peers = [attach(&veth, 1, NATIVE), attach(&other, 1, NATIVE)];
    let mut peer_ends: Vec<End> = peers.iter().flat_map(|peer| [open(peer, 0), open(peer, 1)]).collect();

    let umem = Umem::new(UmemConfig { chunks: 2048, chunk_size: 2048 }).unwrap();
    let mut pools = [umem.pool(1024).unwrap(), umem.pool(1024).unwrap()];
    let mut links: Vec<XdpLink> = Vec::new();
    for device in [&device, &second] {
        for queue in [0, 1] {
            links.push(device.open_queue(queue, &umem, &mut pools[queue as usize], SMALL).unwrap());
        }
    }
    let joined: Vec<bool> = links.iter().map(XdpLink::has_joined).collect();
    assert_eq!(joined, [false, true, true, true], "one registration for all");
    // The peer sends a packet on each queue of each device, and it is sent back on the next link,
    // from the same chunk.
    for round in 0..200u32 {
        for from in 0..4usize {
            let sent = packet(Framing::Ethernet, 1, 200, round * 4 + from as u32);
            let frames = peer_ends[from].frames(&sent, usize::MAX);
            peer_ends[from].send(frames);
            let mut received = Vec::new();
            let deadline = Instant::now() + PATIENCE;
            while links[from].rx(&mut pools[from % 2], IFACE, &mut received, 8) == 0 {
                assert!(Instant::now() < deadline, "link {from} receives nothing");
            }
            let mut frame = received.pop().unwrap().frame;
            assert_eq!(pools[from % 2].bytes(&frame), sent);
            let turned = packet(Framing::Ethernet, 0, 200, round);
            pools[from % 2].bytes_mut(&mut frame).copy_from_slice(&turned);
            let to = (from + 1) % 4;
            let mut frames = vec![TxFrame { frame, checksum: None }];
            assert_eq!(links[to].tx(&mut pools[to % 2], &mut frames).unwrap(), 1);
            assert!(peer_ends[to].receive(1)[0] == turned);
        }
    }
    for (i, link) in links.into_iter().enumerate() {
        assert!(link.stats().rx_packets >= 200);
        Box::new(link).close(&mut pools[i % 2]);
    }
    assert_eq!(umem.in_use(&pools), 0);
    for end in peer_ends {
        end.close();
    }
}

#[test]
fn queue_can_be_opened_again_at_once() {
    if skipped_without_root("rebind after close") {
        return;
    }
    let veth = Veth::new(1, 1500);
    for round in 0..10 {
        let device = attach(&veth, 1, NATIVE);
        let from = kernel_socket(&veth, 0, 5000 + round);
        for _ in 0..3 {
            let mut end = open(&device, 0);
            from.send_to(b"x", (address(1), OURS)).unwrap();
            wait_readable(end.link.wake_fd().unwrap(), PATIENCE);
            let deadline = Instant::now() + PATIENCE;
            while end.link.stats().rx_packets == 0 {
                end.receive_now();
                assert!(Instant::now() < deadline, "nothing arrives after reopening");
            }
            end.close();
        }
    }
}

#[test]
fn device_gets_more_chunks_after_it_used_them_up() {
    if skipped_without_root("chunks lent") {
        return;
    }
    let veth = Veth::new(1, 1500);
    let device = attach(&veth, 1, NATIVE);
    let (umem, mut pool) = umem(2048, 2048);
    let config = QueueConfig { rx: 256, tx: 64, fill: 256, lent: 64, completion: 64 };
    let link = device.open_queue(0, &umem, &mut pool, config).unwrap();
    let mut end = End::new(Box::new(link), umem, pool);
    let from = kernel_socket(&veth, 0, OURS);
    let mut all = 0;
    // The first packet waits for the neighbour's address. A single chunk is not replaced.
    for (sent, held) in [(1, 1), (200, 63), (200, 128), (200, 200)] {
        let before = end.link.stats().rx_packets;
        for _ in 0..sent {
            from.send_to(b"x", (address(1), OURS)).unwrap();
        }
        // Until the device has received or lost all of them: packets that are received before make
        // room for others.
        all += sent;
        let deadline = Instant::now() + PATIENCE;
        while device.port_table().counters().unwrap().redirected < all {
            assert!(Instant::now() < deadline, "{:?}", device.port_table().counters());
        }
        wait_readable(end.link.wake_fd().unwrap(), PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
        for _ in 0..4 {
            end.receive_now();
        }
        assert_eq!(end.link.stats().rx_packets - before, held);
    }
    let stats = end.link.stats();
    assert_eq!((stats.rx_ran_out, stats.rx_dropped), (2, 137 + 72));
    end.close();
}

#[test]
fn dropped_link_returns_its_chunks_to_the_umem() {
    if skipped_without_root("drop without close") {
        return;
    }
    let veth = Veth::new(1, 1500);
    let device = attach(&veth, 0, NATIVE);
    let (umem, mut pool) = umem(1024, 2048);
    let link = device.open_queue(0, &umem, &mut pool, SMALL).unwrap();
    assert_eq!(umem.in_use([&pool]), 64);
    drop(link);
    assert_eq!(umem.in_use([&pool]), 0);
}

#[test]
fn removed_device_is_an_error_and_no_chunk_is_lost() {
    if skipped_without_root("device removed") {
        return;
    }
    for config in [NATIVE, GENERIC] {
        let veth = Veth::new(1, 1500);
        let device = attach(&veth, 0, config);
        let mut end = open(&device, 0);
        while !end.link.prepare_sleep(&mut end.pool) {
            end.receive_now();
        }
        veth.a.run("ip link del fsx0");
        let deadline = Instant::now() + PATIENCE;
        while end.link.prepare_sleep(&mut end.pool) {
            assert!(Instant::now() < deadline, "nobody notices that the device is gone");
        }
        let sent = packet(Framing::Ethernet, 0, 100, 1);
        let mut frames = end.frames(&sent, usize::MAX);
        assert!(end.link.tx(&mut end.pool, &mut frames).is_err());
        assert!(end.receive_now().is_empty());
        for part in frames {
            end.pool.free(part.frame);
        }
        end.close();
        // Its port table can still be used.
        device.port_table().set_ephemeral_ports([1]).unwrap();
    }
}

#[test]
fn link_survives_its_device_being_down() {
    if skipped_without_root("device down") {
        return;
    }
    let veth = Veth::new(1, 1500);
    let devices = [attach(&veth, 0, NATIVE), attach(&veth, 1, NATIVE)];
    let (mut a, mut b) = (open(&devices[0], 0), open(&devices[1], 0));
    veth.a.run("ip link set fsx0 down");
    let sent = packet(Framing::Ethernet, 0, 100, 1);
    let mut frames = a.frames(&sent, usize::MAX);
    a.link.tx(&mut a.pool, &mut frames).expect("down is not gone");
    veth.a.run("ip link set fsx0 up");
    let deadline = Instant::now() + PATIENCE;
    loop {
        if frames.is_empty() {
            frames = a.frames(&sent, usize::MAX);
        }
        a.link.tx(&mut a.pool, &mut frames).unwrap();
        if !b.receive_now().is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "nothing arrives after the device came up again");
        std::thread::sleep(Duration::from_millis(5));
    }
    for part in frames {
        a.pool.free(part.frame);
    }
    a.close();
    b.close();
}

/// A device that is down takes nothing. What waits in the ring is sent when the link is asked again.
#[test]
fn packets_that_the_device_has_not_taken_are_unsent() {
    if skipped_without_root("packets of a device that is down") {
        return;
    }
    let veth = Veth::new(1, 1500);
    let devices = [attach(&veth, 0, NATIVE), attach(&veth, 1, NATIVE)];
    let [mut sender, receiver] = [open(&devices[0], 0), open(&devices[1], 0)];
    assert!(!sender.link.has_unsent());
    veth.a.run("ip link set fsx0 down");
    let frames = sender.frames(&packet(Framing::Ethernet, 0, 100, 1), usize::MAX);
    sender.send(frames);
    assert!(sender.link.has_unsent());
    veth.a.run("ip link set fsx0 up");
    sender.settle();
    assert!(!sender.link.has_unsent());
    sender.close();
    receiver.close();
}

#[test]
fn renamed_device_keeps_its_settings_and_queues() {
    if skipped_without_root("a renamed device") {
        return;
    }
    let veth = Veth::new(2, 1500);
    let device = attach(&veth, 0, NATIVE);
    let mut end = open(&device, 0);
    assert!(end.link.merges());
    let counts = veth.a.enter(|| device.queue_counts_now());
    assert_eq!((counts.rx, counts.tx), (2, 2));
    if !veth.a.try_run("ip link set fsx0 name lan0") {
        eprintln!("skipped: a renamed device (this kernel renames only devices that are down)");
        return end.close();
    }
    veth.a.enter(|| device.refresh_offloads());
    assert!(end.link.merges(), "the device still cuts packets");
    assert_eq!(veth.a.enter(|| device.queue_counts_now()), counts);
    open(&device, 1).close();
    // A device that is gone has no settings.
    veth.a.run("ip link delete lan0");
    veth.a.enter(|| device.refresh_offloads());
    assert!(end.link.merges(), "nothing has changed");
    assert_eq!(veth.a.enter(|| device.queue_counts_now()), counts);
    end.settle();
    end.close();
}
