//! Loss detection by segment, from the ACKs of a handmade peer.

use crate::lab::*;
use fs_core::*;

const MSS: u32 = 1460;
const SEGMENTS: usize = 10;

/// Returns a connection with a full window in flight, and the first byte's sequence number.
fn full(lab: &mut Lab) -> (Conn, u32) {
    let conn = lab.accept_with(4000, syn_options(None, true, Some(0)), TcpOptions::default());
    let all = vec![3; SEGMENTS * MSS as usize];
    assert_eq!(lab.stack.tcp_send(conn.id, &all), Ok(all.len()));
    let sent = lab.sent();
    assert_eq!(sent.len(), SEGMENTS);
    lab.pass(Duration::from_millis(1));
    assert!(lab.sent().is_empty());
    (conn, sent[0].seq)
}

/// Makes an ACK of the first `acked` segments that SACKs the others of `held`: the run of `newest`
/// first.
fn sack(conn: &Conn, first: u32, acked: usize, held: &[bool], newest: usize) -> Seg {
    let mut runs = Vec::new();
    let mut at = acked;
    while at < held.len() {
        let end = held[at..].iter().position(|h| !h).map_or(held.len(), |n| at + n);
        if end > at {
            runs.push((at, end));
        }
        at = end.max(at) + 1;
    }
    runs.sort_by_key(|&(start, end)| (!(start..end).contains(&newest), start));
    runs.truncate(4);
    let mut seg = Seg { ack: first + acked as u32 * MSS, ..conn.seg(ACK) };
    if !runs.is_empty() {
        seg.options = vec![1, 1, 5, 2 + 8 * runs.len() as u8];
        for (start, end) in runs {
            seg.options.extend((first + start as u32 * MSS).to_be_bytes());
            seg.options.extend((first + end as u32 * MSS).to_be_bytes());
        }
    }
    seg
}

/// RFC 6675's IsLost: more than two segments' worth is SACKed above. A lost segment stays lost
/// until it arrives; it is retransmitted once, and no other segment is.
#[test]
fn without_rack_three_sacked_segments_mark_lost() {
    let mut random = 1u32;
    let mut below = |n: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) as usize % n
    };
    for _ in 0..300 {
        let mut lab = Lab::new(TcpConfig { rack: false, ..TcpConfig::default() });
        let (conn, first) = full(&mut lab);
        let (mut held, mut lost, mut again) = ([false; SEGMENTS], [false; SEGMENTS], [false; SEGMENTS]);
        for _ in 0..SEGMENTS - 2 {
            // The first segment never arrives.
            let open: Vec<_> = (1..SEGMENTS).filter(|&i| !held[i]).collect();
            let newest = open[below(open.len())];
            held[newest] = true;
            lab.send(&sack(&conn, first, 0, &held, newest));
            for i in 0..SEGMENTS {
                let above = held[i..].iter().filter(|h| **h).count();
                lost[i] = !held[i] && (lost[i] || above > 2);
            }
            for seg in lab.sent() {
                let i = (seg.seq.wrapping_sub(first) / MSS) as usize;
                assert!(lost[i] && !again[i], "segment {i} is sent again: {held:?} {lost:?} {again:?}");
                again[i] = true;
            }
            let told = lab.stack.tcp_info(conn.id).unwrap().lost;
            let expected = lost.iter().filter(|l| **l).count();
            assert_eq!(told as usize, expected, "{held:?} {lost:?}");
        }
        assert!(again[0], "three duplicate ACKs have sent the first again");
    }
}

/// RFC 2018 section 8: an ACK that stops before SACKed data shows that the peer dropped it. After a
/// short wait all of it is retransmitted as ACKs arrive, without a later timeout.
#[test]
fn retransmits_reneged_data() {
    let mut lab = Lab::new(TcpConfig::default());
    let (conn, first) = full(&mut lab);
    let mut held = [true; SEGMENTS];
    held[0] = false;
    lab.send(&sack(&conn, first, 0, &held, 1));
    let segment = |seg: &Seg| (seg.seq.wrapping_sub(first) / MSS) as usize;
    assert_eq!(lab.sent().iter().map(segment).collect::<Vec<_>>(), [0]);
    lab.pass(Duration::from_micros(500));
    // The hole is filled, and the rest is dropped.
    let (mut acked, mut again) = (1, [false; SEGMENTS]);
    for _ in 0..SEGMENTS {
        lab.send(&sack(&conn, first, acked, &[false; SEGMENTS], 0));
        assert_eq!(lab.stack.sending(conn.id).unwrap().una, first + acked as u32 * MSS);
        lab.pass(Duration::from_millis(20));
        for seg in lab.sent() {
            assert!(!std::mem::replace(&mut again[segment(&seg)], true), "{seg:?} more than once");
        }
        acked = again.iter().rposition(|a| *a).expect("the first of them at least") + 1;
        assert!(again[1..acked].iter().all(|a| *a), "{again:?}");
        if acked == SEGMENTS {
            lab.send(&sack(&conn, first, acked, &[false; SEGMENTS], 0));
            lab.pass(Duration::from_secs(10));
            lab.silence();
            assert_eq!(lab.stack.tcp_info(conn.id).unwrap().sacked, 0);
            return;
        }
    }
    panic!("{again:?}");
}
