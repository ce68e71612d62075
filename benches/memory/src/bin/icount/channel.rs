//! Both ends of a shared-memory connection in one thread: the cost of a message for writer and
//! reader, without a wait.

use std::io::IoSlice;

use fs_shm::{Arena, Channel, Geometry, NoBells, OpenArgs, Side};

/// Performs `n` exchanges of `len` bytes each way.
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

/// `icount` counts by this function's name.
#[inline(never)]
fn counted_turn(client: &Channel, server: &Channel, message: &mut [u8]) {
    for (from, to) in [(client, server), (server, client)] {
        assert_eq!(from.send_one(message), Ok(message.len()), "there is room");
        assert_eq!(to.recv_one(message), Ok(message.len()), "it is all there");
    }
}

/// Messages that are sent before the reader reads. All but the first use the ring. Their length
/// divides its size, so that no message is split.
const BURST: usize = 64;

/// Sends `n` messages of 8 bytes one way, [`BURST`] for each receive.
pub(crate) fn stream(n: u64) -> u64 {
    let memory = Arena::create("icount", Geometry::SMALL).expect("memory for an arena");
    let map = |side| Arena::map(memory.of(side), Geometry::SMALL, side, &NoBells).expect("the arena is mapped");
    let (near, far) = (map(Side::A), map(Side::B));
    let client = Channel::open(&near, &OpenArgs::default()).expect("a new arena has a free channel");
    let server = Channel::accept(&far).expect("one has been opened");
    let mut messages = [7; 8 * BURST];
    let bursts = n.div_ceil(BURST as u64);
    for _ in 0..bursts {
        counted_turn_stream(&client, &server, &mut messages);
    }
    bursts * BURST as u64
}

#[inline(never)]
fn counted_turn_stream(client: &Channel, server: &Channel, messages: &mut [u8; 8 * BURST]) {
    for message in messages.chunks(8) {
        assert_eq!(client.send_near(&[IoSlice::new(message)]), Ok(8), "there is room");
    }
    let mut received = 0;
    while received < messages.len() {
        received += server.recv_one(messages).expect("the rest is there");
    }
}
