//! Times of ACKs, and the windows that they offer.

use crate::lab::*;
use fs_core::*;

fn slow(lab: &mut Lab) -> Conn {
    let conn = lab.accept();
    lab.stack.tcp_set_quickack(conn.id, false).unwrap();
    conn
}

#[test]
fn first_sixteen_acks_are_not_delayed() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept();
    for i in 0..16 {
        lab.send(&conn.data(&[1; 10]));
        conn.seq = conn.seq.wrapping_add(10);
        assert_eq!(lab.one().ack, conn.seq, "{i}");
    }
    lab.send(&conn.data(&[1; 10]));
    lab.silence();
    lab.pass(Duration::from_millis(41));
    assert_eq!(lab.one().ack, conn.seq.wrapping_add(10));
}

#[test]
fn acks_every_second_segment_within_half_a_second() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = slow(&mut lab);
    for _ in 0..2 {
        lab.send(&conn.data(&[1; 1448]));
        conn.seq = conn.seq.wrapping_add(1448);
        lab.sent();
    }
    for _ in 0..3 {
        lab.send(&conn.data(&[1; 1448]));
        lab.silence();
        lab.send(&conn.data_at(1448, &[1; 1448]));
        conn.seq = conn.seq.wrapping_add(2896);
        assert_eq!(lab.one().ack, conn.seq);
    }
    lab.send(&conn.data(&[1; 1448]));
    lab.silence();
    lab.pass(Duration::from_millis(39));
    lab.silence();
    lab.pass(Duration::from_millis(2));
    assert_eq!(lab.one().ack, conn.seq.wrapping_add(1448));
}

/// RFC 9293 MUST-59: one ACK for everything that was queued when it is sent, even if each of the
/// segments would cause one at once, because it is old or fills a gap.
#[test]
fn processes_batch_before_ack() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept();
    let at = |conn: &Conn, i: i32| conn.data_at(1448 * i, &[i as u8; 1448]);
    for order in [&[0, 1, 2, 3, 4][..], &[2, 1, 0], &[1, 0, 2, 0, 3, 4], &[0, 0]] {
        let batch: Vec<_> = order.iter().map(|&i| at(&conn, i)).collect();
        lab.send_together(&batch);
        let all = 1 + *order.iter().max().unwrap() as u32;
        conn.seq = conn.seq.wrapping_add(1448 * all);
        let ack = lab.one();
        assert_eq!((ack.ack, ack.payload.len()), (conn.seq, 0), "{order:?}");
    }
    // Including the FIN after them: one ACK, and the application sees everything at once.
    lab.send_together(&[Seg { flags: FIN | ACK, ..at(&conn, 1) }, at(&conn, 0)]);
    assert_eq!(lab.one().ack, conn.seq.wrapping_add(2 * 1448 + 1));
    lab.silence();
}

/// RFC 2018 section 4 and RFC 5681 section 4.2: data that a turn brings after several holes is
/// reported in the order of its arrival, each block in three ACKs, with no more ACKs than that
/// requires.
#[test]
fn each_range_of_a_turn_gets_an_ack() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    let at = |i: i32| conn.data_at(1000 * i, &[i as u8; 1000]);
    let told = |lab: &mut Lab, came: &[i32]| -> Vec<(u32, Vec<(u32, u32)>)> {
        lab.send_together(&came.iter().map(|&i| at(i)).collect::<Vec<_>>());
        let place = |word: &[u8]| u32::from_be_bytes(word.try_into().unwrap()).wrapping_sub(conn.seq) / 1000;
        let blocks = |seg: &Seg| {
            let option = seg.option(5).unwrap_or_default();
            option.chunks(8).map(|b| (place(&b[..4]), place(&b[4..]))).collect()
        };
        lab.sent().iter().map(|seg| (seg.ack.wrapping_sub(conn.seq) / 1000, blocks(seg))).collect()
    };
    let acks = told(&mut lab, &[1, 3, 5, 6, 8]);
    let three = (0, vec![(5, 7), (3, 4), (1, 2)]);
    assert_eq!(acks, [(0, vec![(1, 2)]), (0, vec![(3, 4), (1, 2)]), three, (0, vec![(8, 9), (5, 7), (3, 4)])]);
    // A range that grows is one range. A segment that fills a hole between ranges changes another,
    // and so does the next one at the end.
    assert_eq!(told(&mut lab, &[9, 10, 11]), [(0, vec![(8, 12), (5, 7), (3, 4)])]);
    let acks =
        [(0, vec![(8, 13), (5, 7), (3, 4)]), (0, vec![(3, 7), (8, 13), (1, 2)]), (0, vec![(8, 14), (3, 7), (1, 2)])];
    assert_eq!(told(&mut lab, &[12, 4, 13]), acks);
    // Duplicates are reported each time (RFC 2883 section 4).
    let again = |from| (0, vec![(from, from + 1), (8, 14), (3, 7)]);
    assert_eq!(told(&mut lab, &[8, 10]), [again(8), again(10)]);
    // Rejected segments are not reported.
    let beyond = 65_536 / 1000 + 2;
    assert_eq!(told(&mut lab, &[beyond, beyond + 2, beyond + 4]).len(), 1);
    // For in-order data only the end is reported.
    assert_eq!(told(&mut lab, &[0, 2, 7]), [(14, vec![])]);
    // To a peer without SACK, duplicate ACKs only report a hole.
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept_with(4000, syn_options(Some(1000), false, Some(0)), TcpOptions::default());
    lab.send_together(&[1, 3, 5, 2, 7].map(|i| conn.data_at(1000 * i, &[i as u8; 1000])));
    assert_eq!(lab.one().ack, conn.seq);
}

#[test]
fn learns_smaller_segments_of_peer() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = slow(&mut lab);
    // 600 is more than the size assumed at first; from then on it is the peer's full segment.
    for _ in 0..3 {
        lab.send(&conn.data(&[1; 600]));
        conn.seq = conn.seq.wrapping_add(600);
    }
    lab.sent();
    lab.send(&conn.data(&[1; 600]));
    lab.silence();
    lab.send(&conn.data_at(600, &[1; 600]));
    lab.one();
}

#[test]
fn response_carries_ack_and_makes_interactive() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    lab.send(&conn.data(b"ask"));
    lab.stack.tcp_send(conn.id, b"answer").unwrap();
    assert_eq!(lab.one().payload, b"answer");
    assert_eq!(lab.stack.tcp_quickack(conn.id), Ok(false));
    lab.send(&conn.data_at(3, b"ask"));
    lab.read(&conn);
    lab.silence();
    // TCP_QUICKACK sends it now, and the next ACK at once.
    lab.stack.tcp_set_quickack(conn.id, true).unwrap();
    assert_eq!(lab.one().ack, conn.seq.wrapping_add(6));
    lab.send(&conn.data_at(6, b"ask"));
    assert_eq!(lab.one().ack, conn.seq.wrapping_add(9));
}

/// A core whose connections have all been answered is not woken for their delayed ACKs.
#[test]
fn response_in_time_leaves_no_ack_deadline() {
    let mut lab = Lab::new(TcpConfig::default());
    let listener = lab.listen(TcpOptions::default(), 0);
    let mut conn = lab.accept_on(listener, 4000, syn_options(None, true, None));
    for i in 0..3 {
        lab.send(&conn.data(b"ask"));
        let waits = lab.stack.next_deadline().map(|at| at.since(lab.now));
        assert!(i == 0 || waits == Some(TcpConfig::default().delayed_ack), "{i}: {waits:?}");
        lab.stack.tcp_send(conn.id, b"answer").unwrap();
        let answer = lab.one();
        (conn.seq, conn.ack) = (conn.seq.wrapping_add(3), answer.seq.wrapping_add(6));
        let next = |lab: &Lab| lab.stack.next_deadline().map(|at| at.since(lab.now));
        assert!(next(&lab).is_some_and(|wait| wait > Duration::from_millis(150)), "{i}: {:?}", next(&lab));
        lab.pass(Duration::from_millis(1));
        assert!(next(&lab).is_some_and(|wait| wait > Duration::from_millis(150)), "{i}: {:?}", next(&lab));
    }
    // Two connections in one turn, of which one is answered.
    let mut other = lab.accept_on(listener, 4001, syn_options(None, true, None));
    for _ in 0..16 {
        lab.send(&other.data(b"ask"));
        other.seq = other.seq.wrapping_add(3);
        lab.one();
    }
    lab.send_together(&[conn.data(b"ask"), other.data(b"ask")]);
    lab.stack.tcp_send(conn.id, b"answer").unwrap();
    assert_eq!(lab.one().payload, b"answer");
    lab.pass(Duration::from_millis(39));
    lab.silence();
    lab.pass(Duration::from_millis(2));
    let ack = lab.one();
    assert_eq!((ack.to, ack.ack), (4001, other.seq.wrapping_add(3)));
}

#[test]
fn response_after_ack_makes_interactive_until_one_is_missing() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept();
    for _ in 0..16 {
        lab.send(&conn.data(&[1; 10]));
        conn.seq = conn.seq.wrapping_add(10);
        lab.one();
    }
    lab.read(&conn);
    // Read in one turn: acknowledged. Answered in the next turn.
    lab.send(&conn.data(b"ask"));
    lab.read(&conn);
    assert_eq!(lab.one().ack, conn.seq.wrapping_add(3));
    lab.pass(Duration::from_millis(5));
    lab.stack.tcp_send(conn.id, b"answer").unwrap();
    let answer = lab.one();
    (conn.seq, conn.ack) = (conn.seq.wrapping_add(3), answer.seq.wrapping_add(6));
    // From here on the answers carry the ACKs.
    for i in 0..20 {
        lab.send(&conn.data(b"ask"));
        lab.read(&conn);
        lab.silence();
        lab.stack.tcp_send(conn.id, b"answer").unwrap();
        let answer = lab.one();
        (conn.seq, conn.ack) = (conn.seq.wrapping_add(3), answer.seq.wrapping_add(6));
        assert_eq!((&answer.payload[..], answer.ack), (&b"answer"[..], conn.seq), "{i}");
    }
    // No answer: the ACK is late, and the next ones are not delayed.
    lab.pass(Duration::from_millis(50));
    lab.send(&conn.data(b"ask"));
    lab.read(&conn);
    lab.silence();
    lab.pass(Duration::from_millis(41));
    conn.seq = conn.seq.wrapping_add(3);
    assert_eq!(lab.one().ack, conn.seq);
    lab.send(&conn.data(b"ask"));
    lab.read(&conn);
    assert_eq!(lab.one().ack, conn.seq.wrapping_add(3));
}

#[test]
fn reading_everything_sends_delayed_ack_of_one_way_flow() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept();
    for _ in 0..16 {
        lab.send(&conn.data(&[1; 10]));
        conn.seq = conn.seq.wrapping_add(10);
        lab.one();
    }
    lab.read(&conn);
    lab.send(&conn.data(&[1; 10]));
    lab.silence();
    lab.read(&conn);
    assert_eq!(lab.one().ack, conn.seq.wrapping_add(10));
}

/// An ACK for which no frame is free waits, and reports it: a core need not stay awake for it.
#[test]
fn ack_waits_for_free_frame() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = slow(&mut lab);
    lab.send(&conn.data(&[1; 10]));
    lab.silence();
    assert!(!lab.stack.tx_starved(IfaceId(0)), "nothing waits");
    lab.without_frames(|lab| {
        assert!(!lab.stack.tx_starved(IfaceId(0)), "nothing waits yet");
        lab.now = lab.now + Duration::from_millis(300);
        lab.stack.set_now(lab.now);
        lab.stack.tick();
        assert_eq!(lab.stack.tx_batch(IfaceId(0), 10, &mut Vec::new()), 0);
        assert!(lab.stack.tx_pending(IfaceId(0)) && lab.stack.tx_starved(IfaceId(0)));
        assert!(lab.stack.next_deadline().is_none_or(|at| at > lab.now), "nothing is due at once");
    });
    assert!(lab.stack.tx_pending(IfaceId(0)) && !lab.stack.tx_starved(IfaceId(0)));
    assert_eq!(lab.one().ack, conn.seq.wrapping_add(10));
    assert!(!lab.stack.tx_pending(IfaceId(0)));
}

#[test]
fn acks_gaps_duplicates_and_filled_gaps_at_once() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = slow(&mut lab);
    lab.send(&conn.data_at(100, &[2; 100]));
    let ack = lab.one();
    assert_eq!(ack.ack, conn.seq);
    let block: Vec<u8> = [100u32, 200].iter().flat_map(|o| conn.seq.wrapping_add(*o).to_be_bytes()).collect();
    assert_eq!(ack.option(5), Some(block.clone()));
    lab.send(&conn.data_at(100, &[2; 100]));
    assert_eq!(lab.one().option(5).unwrap()[..8], block, "D-SACK first");
    lab.send(&conn.data(&[1; 100]));
    assert_eq!(lab.one().ack, conn.seq.wrapping_add(200));
    lab.send(&conn.data(&[1; 100]));
    lab.one();
}

#[test]
fn ack_contents_wait_for_free_frame() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = slow(&mut lab);
    lab.send(&conn.data_at(100, &[2; 100]));
    lab.one();
    let block: Vec<u8> = [100u32, 200].iter().flat_map(|o| conn.seq.wrapping_add(*o).to_be_bytes()).collect();
    lab.send(&conn.data_at(100, &[2; 100]));
    lab.without_frames(|lab| lab.silence());
    assert_eq!(lab.one().option(5).unwrap(), [block.clone(), block.clone()].concat(), "D-SACK first");
    // By a FIN without data.
    lab.send(&conn.data_at(100, &[2; 100]));
    lab.stack.tcp_shutdown(conn.id, Shutdown::Write).unwrap();
    lab.without_frames(|lab| lab.silence());
    let fin = lab.one();
    assert!(fin.has(FIN), "{fin:?}");
    assert_eq!(fin.option(5).unwrap(), [block.clone(), block].concat(), "D-SACK first");
}

#[test]
fn full_segment_leaves_duplicate_report_to_ack() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = slow(&mut lab);
    lab.send(&conn.data(&[1; 100]));
    lab.read(&conn);
    lab.sent();
    lab.send(&conn.data(&[1; 100]));
    let block: Vec<u8> = [0u32, 100].iter().flat_map(|o| conn.seq.wrapping_add(*o).to_be_bytes()).collect();
    lab.stack.tcp_send(conn.id, &[3; 1448]).unwrap();
    let sent = lab.sent();
    assert!(sent.iter().any(|s| s.payload.len() == 1448), "{sent:#?}");
    assert_eq!(sent.iter().filter_map(|s| s.option(5)).collect::<Vec<_>>(), [block], "{sent:#?}");
}

#[test]
fn the_first_bytes_win() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = slow(&mut lab);
    lab.send(&conn.data_at(4, b"BBBB"));
    lab.send(&conn.data_at(2, b"xxxxxxxx"));
    lab.send(&Seg { flags: FIN | ACK, ..conn.data(b"AAAAAAAAAAA") });
    assert_eq!(lab.read(&conn), b"AAxxBBBBAAA");
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::CloseWait));
}

#[test]
fn closed_window_accepts_only_acks_resets_and_probes() {
    let mut lab =
        Lab::new(TcpConfig { receive_buffer_max: 8192, receive_buffer_initial: 8192, ..TcpConfig::default() });
    let mut conn = lab.accept();
    let mut window = 8192;
    while window > 0 {
        let n = window.min(1000);
        lab.send(&conn.data(&vec![1; n]));
        conn.seq = conn.seq.wrapping_add(n as u32);
        window = usize::from(lab.sent().last().unwrap().window);
    }
    lab.pass(Duration::from_secs(1));
    lab.send(&conn.data(b"x"));
    let answer = lab.one();
    assert_eq!((answer.ack, answer.window), (conn.seq, 0));
    // A probe before the window.
    lab.pass(Duration::from_secs(1));
    lab.send(&Seg { seq: conn.seq.wrapping_sub(1), ..conn.seg(ACK) });
    assert_eq!(lab.one().window, 0);
    // An ACK is accepted (MUST-66).
    lab.stack.tcp_send(conn.id, b"out").unwrap();
    lab.one();
    conn.ack = conn.ack.wrapping_add(3);
    lab.send(&conn.seg(ACK));
    assert_eq!(lab.stack.tcp_queued(conn.id).unwrap().1, 0);
    // Reading a little opens no window (silly window), reading more does.
    lab.stack.tcp_recv(conn.id, &mut [0; 100]).unwrap();
    lab.silence();
    // A segment that is sent anyway does not open it either.
    lab.stack.tcp_send(conn.id, b"out").unwrap();
    assert_eq!(lab.one().window, 0);
    conn.ack = conn.ack.wrapping_add(3);
    lab.send(&conn.seg(ACK));
    lab.stack.tcp_recv(conn.id, &mut [0; 3000]).unwrap();
    assert!(lab.one().window >= 1460);
    lab.send(&conn.seg(RST));
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Closed));
}

#[test]
fn readable_from_low_water_mark() {
    let mut lab = Lab::new(TcpConfig::default());
    let options = TcpOptions { receive_low: 100, ..TcpOptions::default() };
    let conn = lab.accept_with(4000, syn_options(None, false, None), options);
    lab.events.clear();
    let read = |lab: &Lab| lab.events.iter().any(|e| matches!(e, Event::Tcp(_, r) if r.contains(Ready::READ)));
    lab.send(&conn.data(&[1; 99]));
    assert!(!read(&lab) && !lab.stack.tcp_ready(conn.id).unwrap().contains(Ready::READ));
    lab.send(&conn.data_at(99, &[1; 1]));
    assert!(read(&lab) && lab.stack.tcp_ready(conn.id).unwrap().contains(Ready::READ));
    lab.read(&conn);
    lab.events.clear();
    lab.send(&Seg { flags: FIN | ACK, ..conn.data_at(100, &[1; 5]) });
    assert!(read(&lab), "the end counts, too");
}

#[test]
fn receive_buffer_grows_with_reads() {
    let fill = |read_all: bool| {
        let mut lab = Lab::new(TcpConfig::default());
        let mut conn = lab.accept_with(4000, syn_options(Some(1000), true, Some(7)), TcpOptions::default());
        for _ in 0..40 {
            // A window of 30 segments each 20 ms.
            for _ in 0..30 {
                let (val, ecr) = conn.ts.unwrap();
                lab.send(&Seg { options: ts(val, ecr), ..conn.data(&[1; 1448]) });
                conn.seq = conn.seq.wrapping_add(1448);
                if read_all {
                    lab.read(&conn);
                } else {
                    lab.stack.tcp_recv(conn.id, &mut [0; 100]).unwrap_or(0);
                }
                if let Some(ours) = lab.sent().last().and_then(Seg::timestamps) {
                    conn.ts = Some((val + 1, ours.0));
                }
                if !read_all && lab.stack.tcp_info(conn.id).unwrap().rcv_wnd < 1448 {
                    return lab.stack.tcp_options(conn.id).unwrap().receive_buffer.unwrap();
                }
            }
            lab.pass(Duration::from_millis(20));
        }
        lab.stack.tcp_options(conn.id).unwrap().receive_buffer.unwrap()
    };
    let (busy, idle) = (fill(true), fill(false));
    assert!(busy >= 2 * 30 * 1448, "{busy}");
    assert_eq!(idle, 65536, "the buffer grows only with reads");
}

/// The size is twice the bytes read in a round trip plus sixteen segments, plus twice the share of
/// growth over the previous round trip (Linux `tcp_rcv_space_adjust`). The first measurement
/// compares with an initial window.
#[test]
fn receive_buffer_size_equals_linuxs() {
    const MSS: u32 = 1448;
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept_with(4000, syn_options(Some(1000), true, Some(7)), TcpOptions::default());
    let (_, ours) = conn.ts.unwrap();
    let at = lab.now;
    // A segment with a transit time of 40 ms, read in pieces of `piece`.
    let arrives = |lab: &mut Lab, conn: &mut Conn, piece: usize| {
        let now_ts = ours.wrapping_add(lab.now.since(at).as_millis() as u32);
        lab.send(&Seg { options: ts(1000, now_ts.wrapping_sub(40)), ..conn.data(&[1; MSS as usize]) });
        conn.seq = conn.seq.wrapping_add(MSS);
        let mut buf = vec![0; piece];
        while lab.stack.tcp_recv(conn.id, &mut buf).is_ok() {}
        lab.sent();
    };
    let buffer = |lab: &Lab, conn: &Conn| lab.stack.tcp_options(conn.id).unwrap().receive_buffer.unwrap();
    let linuxs = |copied: u32, before: u32| {
        let window = u64::from(2 * copied + 16 * MSS);
        (window + 2 * (window * u64::from(copied - before) / u64::from(before))) as u32
    };
    let about = |buffer: u32, wanted: u32| assert!((wanted..wanted + 1024).contains(&buffer), "{buffer} for {wanted}");
    arrives(&mut lab, &mut conn, MSS as usize);
    (1..19).for_each(|_| arrives(&mut lab, &mut conn, 500));
    assert_eq!(buffer(&lab, &conn), 65536, "the round trip is not over");
    lab.pass(Duration::from_millis(40));
    arrives(&mut lab, &mut conn, MSS as usize);
    about(buffer(&lab, &conn), linuxs(20 * MSS, 10 * MSS));
    // The same amount again causes no growth; a tenth more asks for less than the current buffer;
    // half more causes growth.
    for (segments, wanted) in
        [(20, linuxs(20 * MSS, 10 * MSS)), (22, linuxs(20 * MSS, 10 * MSS)), (44, linuxs(44 * MSS, 22 * MSS))]
    {
        (1..segments).for_each(|_| arrives(&mut lab, &mut conn, 500));
        lab.pass(Duration::from_millis(40));
        arrives(&mut lab, &mut conn, MSS as usize);
        about(buffer(&lab, &conn), wanted);
    }
}

#[test]
fn tiny_segments_do_not_pin_pool() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept();
    for _ in 0..5000 {
        lab.send(&conn.data(b"x"));
        conn.seq = conn.seq.wrapping_add(1);
    }
    assert!(lab.stack.pool().in_use() < 16, "{}", lab.stack.pool().in_use());
    assert_eq!(lab.read(&conn).len(), 5000);
    // Out of order, in both directions.
    for i in 1..3000 {
        lab.send(&conn.data_at(i, b"y"));
    }
    for i in (3500..6000).rev() {
        lab.send(&conn.data_at(i, b"y"));
    }
    assert!(lab.stack.pool().in_use() < 200, "{}", lab.stack.pool().in_use());
    // The connection still works.
    lab.send(&conn.data(&[7; 1000]));
    assert!(lab.read(&conn).len() >= 3000);
}
