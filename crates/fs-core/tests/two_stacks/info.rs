//! TCP_INFO of both ends.

use super::*;

/// Returns a host's TCP_INFO of a connection.
fn info(host: &Host, id: TcpId) -> TcpInfo {
    host.stack.tcp_info(id).unwrap()
}

#[test]
fn info_counts_bytes_in_both_directions() {
    for v6 in [false, true] {
        let mut world = World::new(TcpConfig::default());
        let (client, server, _) = connected(&mut world, v6);
        for (host, id) in [(&world.a, client), (&world.b, server)] {
            let i = info(host, id);
            assert_eq!((i.bytes_acked, i.bytes_received, i.bytes_sent, i.notsent_bytes), (0, 0, 0, 0));
            assert_eq!((i.pmtu, i.snd_mss), (1500, if v6 { 1428 } else { 1448 }));
            assert_eq!(i.advmss, i.snd_mss);
            assert_eq!((i.rto_us, i.ato_us, i.reordering), (i.rtt_us + 200_000, 40_000, 3));
            assert!(i.last_data_sent_ms <= 1000 && i.last_data_sent_ms == i.last_data_recv_ms, "since it opened");
            assert_eq!((i.data_segs_in, i.data_segs_out, i.delivered, i.busy_time_us), (0, 0, 1, 0));
        }
        let sent_at = world.now;
        world.a.stack.tcp_send(client, &[1; 5000]).unwrap();
        assert_eq!(info(&world.a, client).notsent_bytes, 5000);
        world.settle(0, &mut never);
        world.b.stack.tcp_send(server, &[2; 700]).unwrap();
        world.b.stack.tcp_shutdown(server, Shutdown::Write).unwrap();
        world.settle(1, &mut never);
        world.now = world.now + Duration::from_secs(5);
        let idle_ms = world.now.since(sent_at).as_millis() as u32;
        world.turn(&mut never);
        let (a, b) = (info(&world.a, client), info(&world.b, server));
        assert_eq!((a.bytes_sent, a.bytes_acked, a.bytes_received), (5000, 5000, 700));
        // The FIN was sent and acknowledged; it does not count as a byte.
        assert_eq!((b.state, b.bytes_sent, b.bytes_acked), (Some(TcpState::FinWait2), 700, 700));
        assert_eq!(b.bytes_received, 5000);
        assert_eq!((a.segs_out, b.segs_out), (b.segs_in, a.segs_in), "nothing was lost");
        assert_eq!((a.data_segs_out, b.data_segs_in, b.data_segs_out, a.data_segs_in), (4, 4, 1, 1));
        // The SYNs were delivered, too.
        assert_eq!((a.delivered, b.delivered), (1 + 4, 1 + 1));
        assert!(b.last_data_recv_ms.abs_diff(idle_ms) <= 3 && a.last_ack_recv_ms <= a.last_data_sent_ms);
        assert_eq!((a.total_retrans, a.bytes_retrans, a.retransmits, a.notsent_bytes), (0, 0, 0, 0));
        assert!(a.last_data_sent_ms.abs_diff(idle_ms) <= 3, "{} instead of {idle_ms}", a.last_data_sent_ms);
        assert_eq!(a.rcv_ssthresh, TcpConfig::default().receive_buffer_initial.next_multiple_of(1024));
    }
}

#[test]
fn info_counts_retransmissions() {
    for sack in [true, false] {
        let mut world = World::new(TcpConfig { sack, ..TcpConfig::default() });
        let (client, server, _) = connected(&mut world, false);
        let mut lost = 0;
        world.a.stack.tcp_send(client, &[1; 8 * 1448]).unwrap();
        let first = world.packets + 1;
        let mut lose_first = |n| {
            lost += u32::from(n == first);
            n == first
        };
        world.settle(4, &mut lose_first);
        assert_eq!(lost, 1);
        let (a, b) = (info(&world.a, client), info(&world.b, server));
        assert_eq!(world.a.stack.stats().retransmits, 1);
        assert_eq!((a.total_retrans, a.bytes_retrans), (1, 1448));
        assert_eq!((a.bytes_acked, a.bytes_sent), (8 * 1448, 9 * 1448));
        assert_eq!((b.bytes_received, b.rcv_ooopack), (8 * 1448, 7));
        assert_eq!((a.retransmits, a.backoff, a.dsack_dups, a.reord_seen), (0, 0, 0, 0));
        assert_eq!((a.unacked, a.sacked, a.lost, a.retrans), (0, 0, 0, 0));
        assert!(a.min_rtt_us > 0 && a.min_rtt_us <= a.rtt_us);
    }
}

#[test]
fn info_counts_consecutive_timeouts() {
    let mut world = World::new(TcpConfig::default());
    let (client, _, _) = connected(&mut world, false);
    let before = info(&world.a, client);
    world.a.stack.tcp_send(client, &[1; 1000]).unwrap();
    while info(&world.a, client).retransmits < 3 {
        world.settle(1, &mut |_| true);
    }
    let a = info(&world.a, client);
    assert_eq!((a.retransmits, a.backoff, a.ca_state), (3, 3, CaState::Loss));
    assert_eq!(a.rto_us, before.rto_us * 8);
    assert_eq!((a.bytes_acked, a.unacked, a.last_data_sent_ms), (0, 1, 0));
    assert_eq!(a.bytes_sent, 1000 + a.bytes_retrans);
    world.settle(1, &mut never);
    let a = info(&world.a, client);
    assert_eq!((a.retransmits, a.bytes_acked, a.bytes_sent), (0, 1000, 1000 + a.bytes_retrans));
}

#[test]
fn info_reports_limits_of_sender() {
    let mut world =
        World::new(TcpConfig { receive_buffer_initial: 8 << 10, receive_buffer_max: 8 << 10, ..TcpConfig::default() });
    let (client, server, _) = connected(&mut world, false);
    let options = world.a.stack.tcp_options(client).unwrap();
    // The peer does not read: only its window delays the rest.
    world.a.stack.tcp_send(client, &[1; 20_000]).unwrap();
    world.settle(0, &mut never);
    world.turn(&mut never);
    let before = info(&world.a, client).rwnd_limited_us;
    world.now = world.now + Duration::from_millis(150);
    world.turn(&mut never);
    let a = info(&world.a, client);
    assert!((a.rwnd_limited_us - before).abs_diff(150_000) <= 3000, "{before} to {}", a.rwnd_limited_us);
    assert!(a.busy_time_us >= a.rwnd_limited_us && a.sndbuf_limited_us == 0);
    let mut buf = [0; 20_000];
    while world.b.stack.tcp_queued(server).unwrap().0 > 0 || world.a.stack.tcp_queued(client).unwrap().1 > 0 {
        let _ = world.b.stack.tcp_recv(server, &mut buf);
        world.settle(1, &mut never);
    }
    let done = info(&world.a, client);
    // The send buffer is smaller than the window: the application waits.
    world.a.stack.tcp_set_options(client, TcpOptions { send_buffer: Some(4096), ..options }).unwrap();
    assert_eq!(world.a.stack.tcp_send(client, &[1; 6000]), Ok(4096));
    world.turn(&mut |_| true);
    world.now = world.now + Duration::from_millis(50);
    world.a.stack.set_now(world.now);
    let a = info(&world.a, client);
    assert!(a.sndbuf_limited_us.abs_diff(50_000) <= 3000, "{}", a.sndbuf_limited_us);
    assert_eq!(a.rwnd_limited_us, done.rwnd_limited_us);
}

/// The rest of a piece that is not taken is copied again by the application, and ends a run.
#[test]
fn write_is_taken_whole_unless_buffer_is_fixed() {
    const PIECE: usize = 60_000;
    let mut world = World::new(TcpConfig::default());
    let (client, _, _) = connected(&mut world, false);
    // Nothing is acknowledged: the buffer fills.
    let mut queued = 0;
    loop {
        match world.a.stack.tcp_send(client, &[1; PIECE]) {
            Ok(n) => {
                assert_eq!(n, PIECE, "after {queued} bytes");
                queued += n;
            }
            Err(error) => break assert_eq!(error, Error::WouldBlock),
        }
        assert!(queued < 2 << 20, "there is no limit");
    }
    assert!(queued >= PIECE);
    let options = TcpOptions { send_buffer: Some(100_000), ..TcpOptions::default() };
    let mut world = World::new(TcpConfig::default());
    let (client, _, _) = connected(&mut world, false);
    world.a.stack.tcp_set_options(client, options).unwrap();
    let taken: Vec<_> = (0..3).map(|_| world.a.stack.tcp_send(client, &[1; PIECE])).collect();
    let buffer = world.a.stack.tcp_options(client).unwrap().send_buffer.unwrap() as usize;
    assert_eq!(taken, [Ok(PIECE), Ok(buffer - PIECE), Err(Error::WouldBlock)]);
}

#[test]
fn info_outlives_connection() {
    let mut world = World::new(TcpConfig::default());
    let (client, server, _) = connected(&mut world, false);
    world.a.stack.tcp_send(client, &[1; 5000]).unwrap();
    world.settle(1, &mut never);
    world.b.stack.tcp_abort(server);
    world.settle(0, &mut never);
    let a = info(&world.a, client);
    assert_eq!((a.state, a.bytes_acked, a.data_segs_out), (Some(TcpState::Closed), 5000, 4));
    assert!(a.sack && a.timestamps);
}
