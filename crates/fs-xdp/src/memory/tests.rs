use super::*;
use crate::config::UmemConfig;
use crate::umem::Umem;
use fs_core::TxChecksum;

fn pool() -> (Arc<Umem>, UmemPool) {
    let umem = Umem::new(UmemConfig { chunks: 256, chunk_size: 2048 }).unwrap();
    let pool = umem.pool(256).unwrap();
    (umem, pool)
}

fn frame(pool: &mut UmemPool, bytes: &[u8], checksum: Option<TxChecksum>) -> TxFrame {
    let mut frame = pool.alloc().unwrap();
    frame.grow_back(bytes.len());
    pool.bytes_mut(&mut frame).copy_from_slice(bytes);
    TxFrame { frame, checksum }
}

/// A packet whose checksum belongs at byte 36 (with a pseudo-header whose sum is 0).
fn unfinished() -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..40).collect();
    bytes[36..38].fill(0);
    bytes
}

/// Sends one packet with a checksum request. Returns the received bytes and checksum state.
fn over(tx_checksum: bool) -> (Vec<u8>, RxChecksum) {
    let config = MemoryConfig { tx_checksum, ..MemoryConfig::new(Framing::Ip, 1500) };
    let (mut a, mut b) = pair_with(config).unwrap();
    let (_umem, mut pool) = pool();
    let bytes = unfinished();
    let mut frames = vec![frame(&mut pool, &bytes, Some(TxChecksum { start: 20, offset: 16 }))];
    assert_eq!(a.tx(&mut pool, &mut frames).unwrap(), 1);
    let mut received = Vec::new();
    assert_eq!(b.rx(&mut pool, IfaceId(0), &mut received, 9), 1);
    let part = received.pop().unwrap();
    let bytes = pool.bytes(&part.frame).to_vec();
    pool.free(part.frame);
    assert_eq!(pool.in_use(), 0);
    (bytes, part.checksum)
}

#[test]
fn checksums_are_finished_or_marked_as_verified() {
    let (bytes, checksum) = over(true);
    assert_eq!((checksum, &bytes[..]), (RxChecksum::Verified, &unfinished()[..]));
    let (bytes, checksum) = over(false);
    assert_eq!(checksum, RxChecksum::Unknown);
    assert_eq!(crate::checksum::of_parts([&bytes[..]].into_iter(), 20), 0);
}

#[test]
fn empty_pool_drops_and_counts() {
    let (mut a, mut b) = pair(Framing::Ip, 9000).unwrap();
    let (_umem, mut sender) = pool();
    let small = Umem::new(UmemConfig { chunks: 2, chunk_size: 2048 }).unwrap();
    let mut receiver = small.pool(2).unwrap();
    let mut frames: Vec<TxFrame> = (0..3).map(|_| frame(&mut sender, &[7; 1800], None)).collect();
    for part in &mut frames[..2] {
        part.frame.set_more(true);
    }
    frames.push(frame(&mut sender, &[8; 100], None));
    assert_eq!(a.tx(&mut sender, &mut frames).unwrap(), 2);
    let mut received = Vec::new();
    assert_eq!(b.rx(&mut receiver, IfaceId(0), &mut received, 9), 1, "three chunks are not there, one is");
    assert_eq!(b.stats().rx_dropped, 1);
    receiver.free(received.pop().unwrap().frame);
    assert_eq!(receiver.in_use(), 0);
}

#[test]
fn full_queue_keeps_the_rest() {
    let (mut a, _b) = pair_with(MemoryConfig { depth: 4, ..MemoryConfig::new(Framing::Ip, 1500) }).unwrap();
    let (_umem, mut pool) = pool();
    let mut frames: Vec<TxFrame> = (0..6).map(|i| frame(&mut pool, &[i; 20], None)).collect();
    assert_eq!(a.tx(&mut pool, &mut frames).unwrap(), 4);
    assert_eq!(frames.len(), 2);
    assert_eq!(pool.bytes(&frames[0].frame), [4; 20], "what does not fit stays, in order");
    for part in frames {
        pool.free(part.frame);
    }
    assert_eq!(pool.in_use(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "the interpreter has no poll")]
fn closed_end_is_an_error_and_wakes_the_other() {
    let (mut a, b) = pair(Framing::Ip, 1500).unwrap();
    let (_umem, mut pool) = pool();
    assert!(a.prepare_sleep(&mut pool));
    Box::new(b).close(&mut pool);
    assert!(crate::sys::packet::is_readable(a.wake_fd().unwrap()));
    assert!(!a.prepare_sleep(&mut pool));
    assert_eq!(a.tx(&mut pool, &mut Vec::new()).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

/// Both ends sleep whenever they may. A lost wake-up would make the test hang.
#[test]
#[cfg_attr(miri, ignore = "the interpreter has no poll")]
fn no_wake_up_is_lost() {
    let rounds = 20_000;
    let (a, b) = pair(Framing::Ip, 1500).unwrap();
    let run = move |mut link: MemoryLink, first: bool| {
        let (_umem, mut pool) = pool();
        let mut received = Vec::new();
        let mut frames = Vec::new();
        if first {
            frames.push(frame(&mut pool, &[1; 20], None));
        }
        for _ in 0..rounds {
            link.tx(&mut pool, &mut frames).unwrap();
            while link.rx(&mut pool, IfaceId(0), &mut received, 1) == 0 {
                if link.prepare_sleep(&mut pool) {
                    let mut waited = 0;
                    while !crate::sys::packet::is_readable(link.wake_fd().unwrap()) {
                        std::thread::yield_now();
                        waited += 1;
                        assert!(waited < 50_000_000, "nobody has woken us");
                    }
                }
            }
            frames.extend(received.drain(..).map(|part| TxFrame { frame: part.frame, checksum: None }));
        }
        if !first {
            link.tx(&mut pool, &mut frames).unwrap();
        }
        for part in frames {
            pool.free(part.frame);
        }
        assert_eq!(pool.in_use(), 0);
        link
    };
    let other = std::thread::spawn(move || run(b, false));
    let ours = run(a, true);
    // Closed only when both are finished.
    drop((ours, other.join().unwrap()));
}
