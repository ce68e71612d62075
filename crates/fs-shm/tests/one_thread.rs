//! Short messages, with the locks taken by a compare-exchange and without: what is left out may not be missed. One test
//! in a program of its own, as it says of the whole process that it has one thread.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use fs_shm::layout::INLINE;
use fs_shm::{Arena, Channel, Errno, Geometry, NoBells, OpenArgs, Side, holder};

fn recv(channel: &Channel, len: usize) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; len];
    let n = channel.recv_one(&mut buf)?;
    buf.truncate(n);
    Ok(buf)
}

#[test]
fn short_messages_of_every_length() {
    static ONE_THREAD: AtomicU8 = AtomicU8::new(0);
    holder::tell_threads(&ONE_THREAD);
    let fd = Arena::create("test", Geometry::SMALL).unwrap();
    let map = |side| Arena::map(fd.of(side), Geometry::SMALL, side, &NoBells).unwrap();
    let (arena_a, arena_b) = (map(Side::A), map(Side::B));
    let a = Channel::open(&arena_a, &OpenArgs::default()).unwrap();
    let b = Channel::accept(&arena_b).unwrap();
    for (one_thread, several) in [(0, false), (1, false), (1, true)] {
        ONE_THREAD.store(one_thread, SeqCst);
        if several {
            a.retain_for_other();
            b.retain_for_other();
        }
        for len in 1..=INLINE + 2 {
            let message: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            for (from, to) in [(a, b), (b, a)] {
                assert_eq!(from.send_one(&message), Ok(len));
                assert_eq!(recv(&to, 100).unwrap(), message);
                // In two pieces.
                assert_eq!(from.send_one(&message), Ok(len));
                assert_eq!(recv(&to, len / 2).unwrap(), message[..len / 2]);
                assert_eq!(recv(&to, 100).unwrap(), message[len / 2..]);
                // Two of them, the second in the ring.
                assert_eq!((from.send_one(&message), from.send_one(&message)), (Ok(len), Ok(len)));
                assert_eq!(recv(&to, 2 * len).unwrap(), [message.as_slice(), &message].concat());
                assert_eq!(recv(&to, 1), Err(Errno::AGAIN));
            }
        }
    }
}
