//! Received bytes that leave by another connection (`Stack::tcp_forward`).

use crate::lab::*;
use fs_core::*;

const MSS: usize = 1448;

/// Options of a SYN with timestamps, for segments of at most `mss` bytes without options.
fn options(mss: u16) -> Vec<u8> {
    let mut options = syn_options(Some(1000), true, Some(7));
    options[2..4].copy_from_slice(&mss.to_be_bytes());
    options
}

/// A connection to forward from, and one to forward to, whose peer takes segments of `mss` bytes.
fn pair(lab: &mut Lab, mss: u16, to: TcpOptions) -> (Conn, Conn) {
    let from = lab.accept_with(4000, options(1460), TcpOptions::default());
    lab.stack.tcp_close_listener(from.listener);
    let to = lab.accept_with(4001, options(mss), TcpOptions { nodelay: true, ..to });
    (from, to)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// The peer sends its next bytes in segments of these lengths.
fn receive(lab: &mut Lab, conn: &mut Conn, data: &[u8], lens: &[usize]) {
    let mut at = 0;
    let segments: Vec<_> = lens
        .iter()
        .map(|len| {
            at += len;
            conn.data_at((at - len) as i32, &data[at - len..at])
        })
        .collect();
    lab.send_together(&segments);
    conn.seq = conn.seq.wrapping_add(at as u32);
    lab.sent();
}

/// The segments with data that were sent to `conn`. Their checksums are right.
#[track_caller]
fn sent_to(lab: &mut Lab, conn: &Conn) -> Vec<Seg> {
    lab.pass(Duration::ZERO);
    for packet in &lab.raw {
        let addresses = if lab.v6 { 8..40 } else { 12..20 };
        let tcp = &packet[addresses.end..];
        let words = packet[addresses].chunks(2).chain(tcp.chunks(2));
        let sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
        let sum = sum + 6 + tcp.len() as u32;
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{:?}", read(packet));
    }
    lab.sent().into_iter().filter(|seg| seg.to == conn.port && !seg.payload.is_empty()).collect()
}

/// The lengths of the segments, which together carry `data`.
#[track_caller]
fn lens_of(segments: &[Seg], data: &[u8]) -> Vec<usize> {
    assert!(joined(segments) == data, "other bytes than those that were received");
    segments.iter().map(|seg| seg.payload.len()).collect()
}

fn joined(segments: &[Seg]) -> Vec<u8> {
    segments.iter().flat_map(|seg| seg.payload.clone()).collect()
}

#[test]
fn full_segments_keep_their_frames() {
    for v6 in [false, true] {
        let mut lab = Lab::new(TcpConfig::default());
        lab.v6 = v6;
        let (mut from, to) = pair(&mut lab, 1460, TcpOptions::default());
        let data = bytes(3 * 1400);
        receive(&mut lab, &mut from, &data, &[1400; 3]);
        let free = lab.stack.pool().available();
        assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Ok(data.len()));
        assert_eq!(lab.stack.pool().available(), free, "frames were needed");
        let sent = sent_to(&mut lab, &to);
        assert_eq!(lens_of(&sent, &data), vec![1400; 3]);
        let pushed: Vec<_> = sent.iter().map(|seg| seg.has(PSH)).collect();
        assert_eq!(pushed, [false, false, true]);
        assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Ok(0));
        // The window of the first connection is open again.
        assert_eq!(lab.stack.tcp_queued(from.id).unwrap().0, 0);
    }
}

/// Large packets arrive in chunks: the last one of a packet and the first one of the next packet make
/// one segment.
#[test]
fn end_and_start_of_packets_share_segment() {
    let mut lab = Lab::new(TcpConfig::default());
    let (mut from, to) = pair(&mut lab, 1460, TcpOptions::default());
    let data = bytes(2 * MSS);
    receive(&mut lab, &mut from, &data, &[20, 1428, MSS]);
    let free = lab.stack.pool().available();
    assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Ok(data.len()));
    assert_eq!(lab.stack.pool().available(), free + 1, "one frame is free");
    let sent = sent_to(&mut lab, &to);
    assert_eq!(lens_of(&sent, &data), vec![MSS; 2]);
}

/// The receive queue has collected the first ones in a frame that is longer than a segment.
#[test]
fn short_segments_are_collected() {
    let mut lab = Lab::new(TcpConfig::default());
    let (mut from, to) = pair(&mut lab, 1460, TcpOptions::default());
    let data = bytes(20 * 100 + 2 * 700);
    receive(&mut lab, &mut from, &data, &[[100; 20].to_vec(), vec![700; 2]].concat());
    lab.stack.tcp_forward(from.id, to.id, usize::MAX).unwrap();
    let sent = sent_to(&mut lab, &to);
    assert_eq!(lens_of(&sent, &data), vec![MSS, 1252, 700]);
}

#[test]
fn larger_segments_are_cut() {
    let mut lab = Lab::new(TcpConfig::default());
    let (mut from, to) = pair(&mut lab, 512, TcpOptions::default());
    let data = bytes(3 * MSS);
    receive(&mut lab, &mut from, &data, &[MSS; 3]);
    assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Ok(data.len()));
    let sent = sent_to(&mut lab, &to);
    assert_eq!(lens_of(&sent, &data), [vec![500; 8], vec![344]].concat());
}

#[test]
fn part_of_a_frame_leaves_the_rest() {
    let mut lab = Lab::new(TcpConfig::default());
    let (mut from, to) = pair(&mut lab, 1460, TcpOptions::default());
    let data = bytes(MSS);
    receive(&mut lab, &mut from, &data, &[MSS]);
    assert_eq!(lab.stack.tcp_forward(from.id, to.id, 1000), Ok(1000));
    assert_eq!(joined(&sent_to(&mut lab, &to)), data[..1000]);
    assert_eq!(lab.read(&from), data[1000..]);
    assert_eq!(lab.stack.tcp_recv(from.id, &mut [0; 9]), Err(Error::WouldBlock));
}

#[test]
fn full_send_buffer_blocks() {
    let mut lab = Lab::new(TcpConfig::default());
    let (mut from, mut to) = pair(&mut lab, 1460, TcpOptions { send_buffer: Some(4096), ..TcpOptions::default() });
    let data = bytes(5 * MSS);
    receive(&mut lab, &mut from, &data, &[MSS; 5]);
    assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Ok(3 * MSS), "less than a frame too much");
    assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Err(Error::WouldBlock));
    let sent = sent_to(&mut lab, &to);
    to.ack = to.ack.wrapping_add(joined(&sent).len() as u32);
    lab.events.clear();
    lab.send(&to.seg(ACK));
    lab.pass(Duration::ZERO);
    assert!(lab.events.contains(&Event::Tcp(to.id, Ready::WRITE)), "{:?}", lab.events);
    assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Ok(2 * MSS));
    assert_eq!([joined(&sent), joined(&sent_to(&mut lab, &to))].concat(), data);
}

#[test]
fn empty_pool_blocks() {
    let mut lab = Lab::new(TcpConfig::default());
    let (mut from, to) = pair(&mut lab, 1460, TcpOptions::default());
    let data = bytes(MSS);
    receive(&mut lab, &mut from, &data, &[MSS]);
    lab.without_frames(|lab| {
        assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Err(Error::WouldBlock));
    });
    assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Ok(MSS));
    assert_eq!(joined(&sent_to(&mut lab, &to)), data);
}

/// A relay that were refused while frames are free would be notified again in each turn.
#[test]
fn few_free_frames_suffice() {
    for (mss, free) in [(1460, 1), (1460, 2), (512, 1), (512, 3)] {
        let mut lab = Lab::new(TcpConfig::default());
        let (mut from, to) = pair(&mut lab, mss, TcpOptions::default());
        let data = bytes(2 * MSS + 100);
        receive(&mut lab, &mut from, &data, &[MSS, 100, MSS]);
        let case = format!("MSS {mss}, {free} free frames");
        let taken = lab.stack.pool().available() - free;
        let held: Vec<_> = (0..taken).filter_map(|_| lab.stack.pool_mut().alloc()).collect();
        let mut done = lab.stack.tcp_forward(from.id, to.id, usize::MAX).unwrap_or_else(|e| panic!("{case}: {e:?}"));
        lab.stack.tick();
        let next = lab.stack.next_deadline();
        held.into_iter().for_each(|frame| lab.stack.pool_mut().free(frame));
        assert!(done == data.len() || next.is_none_or(|at| at > lab.now), "{case}: the next turn is due, for nothing");
        while done < data.len() {
            done += lab.stack.tcp_forward(from.id, to.id, usize::MAX).unwrap();
        }
        assert!(joined(&sent_to(&mut lab, &to)) == data, "{case}");
    }
}

/// Another connection has the frames for sending, and waits for more. A relay gets the least that each
/// connection may send, and is notified like a writer when there are more.
#[test]
fn spent_share_blocks_and_notifies() {
    let mut lab = Lab::new(TcpConfig::default());
    let (mut from, mut to) = pair(&mut lab, 1460, TcpOptions::default());
    lab.stack.tcp_close_listener(to.listener);
    let large = TcpOptions { send_buffer: Some(16 << 20), ..TcpOptions::default() };
    let mut other = lab.accept_with(4002, options(1460), large);
    let written = lab.stack.tcp_send(other.id, &vec![1; 16 << 20]).unwrap();
    let data = bytes(3 * MSS);
    receive(&mut lab, &mut from, &data, &[MSS; 3]);
    assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Ok(2 * MSS));
    assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Err(Error::WouldBlock));
    assert!(joined(&sent_to(&mut lab, &to)) == data[..2 * MSS]);
    lab.events.clear();
    let written = other.ack.wrapping_add(written as u32);
    while other.ack != written {
        // It is paced.
        lab.pass(Duration::from_millis(10));
        other.ack = other.ack.wrapping_add(joined(&sent_to(&mut lab, &other)).len() as u32);
        lab.send(&other.seg(ACK));
    }
    lab.pass(Duration::ZERO);
    assert!(lab.events.contains(&Event::Tcp(to.id, Ready::WRITE)), "nobody tells the relay");
    assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Ok(MSS));
    to.ack = to.ack.wrapping_add(2 * MSS as u32);
    lab.send(&to.seg(ACK));
    assert!(joined(&sent_to(&mut lab, &to)) == data[2 * MSS..]);
}

/// The receiving calls know of an urgent byte; and only they report an end.
#[test]
fn urgent_data_and_ends_are_left_to_reads() {
    let mut lab = Lab::new(TcpConfig::default());
    let (mut from, to) = pair(&mut lab, 1460, TcpOptions::default());
    lab.send(&Seg { flags: ACK | URG, urgent: 5, ..from.data(b"12345") });
    assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Ok(0));
    from.seq = from.seq.wrapping_add(5);
    assert_eq!(lab.read(&from), b"1234");
    lab.send(&from.data(b"6"));
    from.seq = from.seq.wrapping_add(1);
    lab.send(&from.seg(FIN | ACK));
    lab.read_all(from.id);
    assert_eq!(lab.stack.tcp_forward(from.id, to.id, usize::MAX), Ok(0));
    assert_eq!(lab.stack.tcp_recv(from.id, &mut [0; 9]), Ok(0));
    lab.stack.tcp_shutdown(to.id, Shutdown::Write).unwrap();
    receive(&mut lab, &mut from, b"", &[]);
    assert_eq!(lab.stack.tcp_forward(to.id, to.id, 1), Ok(0));
    lab.stack.tcp_close(to.id);
    assert_eq!(lab.stack.tcp_forward(from.id, to.id, 1), Ok(0));
}

/// Pieces of all sizes, losses on the way out, and writes of the application in between: the peer has
/// each byte once, in order.
#[test]
fn stream_stays_whole() {
    for seed in 0..40u64 {
        let mut state = seed;
        let mut below = |most: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % most
        };
        let mut lab = Lab::new(TcpConfig::default());
        lab.v6 = seed % 4 == 3;
        let mss = [1460, 1440, 700, 1460][seed as usize % 4];
        let before = lab.stack.pool().available();
        let (mut from, mut to) = pair(&mut lab, mss, TcpOptions::default());
        let (mut expected, mut got, mut queued) = (Vec::new(), Vec::<u8>::new(), Vec::new());
        for _ in 0..300 {
            let start = to.ack.wrapping_sub(got.len() as u32);
            match below(4) {
                0 => {
                    let sizes: Vec<usize> = (0..below(6) + 1).map(|_| [1428, 66, 1 + below(1428)][below(3)]).collect();
                    let data: Vec<u8> = (0..sizes.iter().sum()).map(|_| below(256) as u8).collect();
                    receive(&mut lab, &mut from, &data, &sizes);
                    queued.extend(data);
                }
                1 => {
                    let most = [usize::MAX, below(5000) + 1][below(2)];
                    let moved = lab.stack.tcp_forward(from.id, to.id, most).unwrap_or(0);
                    expected.extend(queued.drain(..moved));
                }
                2 => {
                    let data: Vec<u8> = (0..below(300) + 1).map(|_| below(256) as u8).collect();
                    let n = lab.stack.tcp_send(to.id, &data).unwrap_or(0);
                    expected.extend(&data[..n]);
                }
                _ => {
                    lab.pass(Duration::from_millis(below(30) as u64));
                }
            }
            for seg in sent_to(&mut lab, &to) {
                let at = seg.seq.wrapping_sub(start) as usize;
                if below(8) == 0 {
                    continue;
                }
                if at <= got.len() && at + seg.payload.len() > got.len() {
                    got.extend(&seg.payload[got.len() - at..]);
                    // Times of round trips are taken from it.
                    to.ts = seg.timestamps().map(|(val, _)| (1000, val));
                }
                to.ack = start.wrapping_add(got.len() as u32);
                lab.send(&to.seg(ACK));
            }
        }
        for _ in 0..3000 {
            if got.len() == expected.len() {
                break;
            }
            let start = to.ack.wrapping_sub(got.len() as u32);
            for seg in sent_to(&mut lab, &to) {
                let at = seg.seq.wrapping_sub(start) as usize;
                if at <= got.len() && at + seg.payload.len() > got.len() {
                    got.extend(&seg.payload[got.len() - at..]);
                    to.ts = seg.timestamps().map(|(val, _)| (1000, val));
                }
            }
            to.ack = start.wrapping_add(got.len() as u32);
            lab.send(&to.seg(ACK));
            lab.pass(Duration::from_millis(10));
        }
        assert!(got == expected, "seed {seed}: {} of {} bytes", got.len(), expected.len());
        // What exceeded the window of `from` may have left a hole in front of early data.
        for id in [from.id, to.id] {
            lab.stack.tcp_abort(id);
        }
        lab.pass(Duration::ZERO);
        assert_eq!(lab.stack.pool().available(), before, "seed {seed}: frames are missing");
    }
}
