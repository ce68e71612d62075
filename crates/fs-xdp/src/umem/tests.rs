use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn umem(chunks: u32) -> Arc<Umem> {
    Umem::new(UmemConfig { chunks, chunk_size: 2048 }).unwrap()
}

#[test]
fn frame_starts_after_the_headroom() {
    let umem = umem(4);
    let mut pool = umem.pool(4).unwrap();
    let mut frame = pool.alloc().unwrap();
    assert_eq!((frame.off(), frame.len()), (HEADROOM as usize, 0));
    frame.grow_back(5);
    pool.bytes_mut(&mut frame).copy_from_slice(b"hello");
    assert_eq!(pool.bytes(&frame), b"hello");
    pool.free(frame);
    assert_eq!(umem.in_use([&pool]), 0);
}

#[test]
fn most_recently_freed_chunk_is_taken_first() {
    let umem = umem(8);
    let mut pool = umem.pool(8).unwrap();
    let (a, b) = (pool.alloc().unwrap(), pool.alloc().unwrap());
    let last = a.chunk();
    pool.free(b);
    pool.free(a);
    let again = pool.alloc().unwrap();
    assert_eq!(again.chunk(), last);
    pool.free(again);
}

#[test]
fn chunk_returns_with_its_last_handle() {
    let umem = umem(1);
    let mut pool = umem.pool(1).unwrap();
    let frame = pool.alloc().unwrap();
    assert!(!pool.is_shared(&frame));
    let twin = pool.share(&frame);
    assert!(pool.is_shared(&frame));
    pool.free(frame);
    assert!(!pool.is_shared(&twin));
    assert_eq!((pool.available(), pool.in_use()), (0, 1));
    pool.free(twin);
    assert_eq!((pool.available(), pool.in_use()), (1, 0));
}

#[test]
#[should_panic(expected = "freed twice")]
fn second_free_is_detected() {
    let umem = umem(1);
    let mut pool = umem.pool(1).unwrap();
    let frame = pool.alloc().unwrap();
    let forged = Frame::from_raw(frame.chunk(), 0, 0);
    pool.free(frame);
    pool.free(forged);
}

#[test]
#[should_panic(expected = "chunk")]
fn frame_cannot_exceed_its_chunk() {
    let umem = umem(2);
    let mut pool = umem.pool(2).unwrap();
    let mut frame = pool.alloc().unwrap();
    frame.grow_back(2048);
    pool.bytes_mut(&mut frame);
}

#[test]
fn pools_take_unassigned_chunks_and_return_them() {
    let umem = umem(100);
    let a = umem.pool(60).unwrap();
    let error = umem.pool(41).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("40 of 100"), "{error}");
    drop(a);
    assert_eq!(umem.pool(100).unwrap().available(), 100);
}

#[test]
fn unsupported_sizes_are_refused() {
    for (chunks, chunk_size) in [(0, 2048), (1, 1024), (1, 8192), (1 << 25, 2048)] {
        let error = Umem::new(UmemConfig { chunks, chunk_size }).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}

/// One core only allocates, another only frees. The depot must return every chunk, also if the
/// other core's devices have most of its own.
#[test]
fn chunks_move_through_the_depot() {
    for lent in [0, 200] {
        let umem = umem(512);
        let mut receiver = umem.pool(256).unwrap();
        let mut sender = umem.pool(256).unwrap();
        let with_its_devices: Vec<Frame> = (0..lent).map(|_| sender.alloc().unwrap()).collect();
        for round in 0..5_000 {
            let frame = receiver.alloc().unwrap_or_else(|| panic!("dry in round {round}, {lent} lent"));
            receiver.pass_on(1);
            sender.take_over(1);
            sender.free(frame);
            assert!(sender.held < 256 + 2 * DEPOT_BATCH, "it keeps {} of another one's", sender.held - 256);
        }
        with_its_devices.into_iter().for_each(|frame| sender.free(frame));
        assert_eq!(umem.in_use([&receiver, &sender]), 0);
        assert!(sender.available() <= 256 + DEPOT_BATCH);
    }
}

/// A core that has used up its share does not take chunks in the depot that another core lacks.
#[test]
fn core_with_its_share_takes_none_from_the_depot() {
    let umem = umem(1024);
    let (mut a, mut b) = (umem.pool(512).unwrap(), umem.pool(512).unwrap());
    for frame in (0..512).map(|_| a.alloc().unwrap()).collect::<Vec<_>>() {
        a.pass_on(1);
        b.take_over(1);
        b.free(frame);
    }
    let all: Vec<Frame> = std::iter::from_fn(|| b.alloc()).collect();
    assert!(all.len() < 512 + DEPOT_BATCH, "{}", all.len());
    let rest: Vec<Frame> = std::iter::from_fn(|| a.alloc()).collect();
    assert!(rest.len() > 512 - DEPOT_BATCH, "{}", rest.len());
    all.into_iter().for_each(|frame| b.free(frame));
    rest.into_iter().for_each(|frame| a.free(frame));
    assert_eq!(umem.in_use([&a, &b]), 0);
}

proptest! {
    /// For any actions of three cores: the chunks that they hold, in the depot and in flight are
    /// all chunks, and no core keeps more than two batches of other cores' free chunks.
    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn cores_hold_their_shares(steps in vec((0usize..3, 0usize..3, 1usize..80, 0u8..3), 1..400)) {
        let umem = umem(3 * 128);
        let mut pools: Vec<UmemPool> = (0..3).map(|_| umem.pool(128).unwrap()).collect();
        let mut stacks: [Vec<Frame>; 3] = Default::default();
        for (from, to, count, what) in steps {
            for _ in 0..count {
                match what {
                    0 => stacks[from].extend(pools[from].alloc()),
                    1 => if let Some(frame) = stacks[from].pop() { pools[from].free(frame) },
                    _ if from != to => if let Some(frame) = stacks[from].pop() {
                        pools[from].pass_on(1);
                        pools[to].take_over(1);
                        stacks[to].push(frame);
                    },
                    _ => {}
                }
            }
            for (pool, stack) in pools.iter().zip(&stacks) {
                prop_assert_eq!(pool.held, pool.free.len() + stack.len());
                prop_assert_eq!(pool.in_use(), stack.len());
            }
            let held: usize = pools.iter().map(|pool| pool.held).sum();
            prop_assert_eq!(held + umem.depot_chunks(), 3 * 128);
            prop_assert!(stacks.iter().flatten().count() == umem.in_use(&pools));
        }
        for (pool, stack) in pools.iter_mut().zip(stacks) {
            stack.into_iter().for_each(|frame| pool.free(frame));
            prop_assert!(pool.free.len() < 128 + 2 * DEPOT_BATCH);
        }
    }
}

#[test]
fn two_threads_lose_no_chunk() {
    let rounds = if cfg!(miri) { 200 } else { 100_000 };
    let umem = umem(512);
    let mut a = umem.pool(256).unwrap();
    let mut b = umem.pool(256).unwrap();
    let (to_b, from_a) = crossbeam::channel::bounded::<Frame>(128);
    let sender = std::thread::spawn(move || {
        let mut sent = 0u32;
        while sent < rounds {
            let Some(mut frame) = a.alloc() else {
                std::thread::yield_now();
                continue;
            };
            frame.grow_back(4);
            a.bytes_mut(&mut frame).copy_from_slice(&sent.to_be_bytes());
            a.pass_on(1);
            to_b.send(frame).unwrap();
            sent += 1;
        }
        a
    });
    for (expected, frame) in from_a.into_iter().enumerate() {
        b.take_over(1);
        assert_eq!(b.bytes(&frame), (expected as u32).to_be_bytes());
        b.free(frame);
    }
    let a = sender.join().unwrap();
    assert_eq!(umem.in_use([&a, &b]), 0);
}
