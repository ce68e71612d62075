//! Both ends of a shared-memory connection in one thread: what a message costs writer and reader, without a wait.

use fs_shm::{Arena, Channel, Geometry, NoBells, OpenArgs, Side};

/// `n` exchanges of `len` bytes there and back.
pub(crate) fn exchanges(n: u64, len: usize) -> u64 {
    let memory = Arena::create("icount", Geometry::SMALL).expect("memory for an arena");
    let map = |side| Arena::map(memory.of(side), Geometry::SMALL, side, &NoBells).expect("the arena is mapped");
    let (near, far) = (map(Side::A), map(Side::B));
    let client = Channel::open(&near, &OpenArgs::default()).expect("a new arena has a free channel");
    let server = Channel::accept(&far).expect("one has been opened");
    let mut message = vec![7; len];
    for _ in 0..n {
        counted_turn(&client, &server, &mut message);
    }
    n
}

/// Its name is what `icount` counts by.
#[inline(never)]
fn counted_turn(client: &Channel, server: &Channel, message: &mut [u8]) {
    for (from, to) in [(client, server), (server, client)] {
        assert_eq!(from.send_one(message), Ok(message.len()), "there is room");
        assert_eq!(to.recv_one(message), Ok(message.len()), "it is all there");
    }
}
