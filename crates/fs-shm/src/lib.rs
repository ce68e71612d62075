//! Shared-memory sockets: arenas, channels, rings, lanes, and the control protocol between a process and the daemon.
//!
//! A **channel** is a connection: two byte rings in memory that two sides share. Side A opened it, side B accepts
//! it; a side is a process, several processes that share the descriptor, or a core of the daemon. Channels live in
//! the slots of an [`Arena`], one sealed memfd for each pair (opener, acceptor group). `docs/SHM.md` has the layout,
//! the ordering arguments and the threat model.
//!
//! | module | what it does |
//! |---|---|
//! | [`layout`] | every structure in shared memory, as `repr(C)` of atomics |
//! | `arena` | mapping, slots, closing; `inbox`: connections that wait for accept |
//! | [`lanes`] | one poller's view of an arena: which channels changed, and whether to ring it |
//! | [`channel`] | the socket calls: open, accept, send, recv, shutdown, close, readiness |
//! | [`wait`] | blocking: spin, yield, futex |
//! | `bell` | how a process rings the eventfd of a poller of another process |
//! | [`follow`] | what connections carry, for who only watches |
//! | [`pages`] | attachment, listener and directory pages |
//! | [`word`] | what shared memory is made of; kill points of tests |
//! | [`holder`] | who holds a lock: attachment and thread |
//!
//! ```
//! use fs_shm::{Arena, Channel, Geometry, NoBells, OpenArgs, Readiness, Side};
//!
//! let geometry = Geometry::SMALL;
//! let memory = Arena::create("example", geometry)?; // the daemon
//! let a = Arena::map(memory.of(Side::A), geometry, Side::A, &NoBells)?; // the client
//! let b = Arena::map(memory.of(Side::B), geometry, Side::B, &NoBells)?; // the server
//!
//! let lane = b.join(7).unwrap(); // poller 7 watches the listener and, below, a channel
//! b.watch_inbox(lane, true);
//!
//! let client = Channel::open(&a, &OpenArgs::default()).unwrap(); // refs = 1, OPEN, in the inbox
//! client.send_one(b"GET")?; // may precede accept
//!
//! let server = Channel::accept(&b).unwrap();
//! server.watch(lane);
//! assert!(server.readiness().contains(Readiness::IN));
//! let mut buf = [0; 16];
//! assert_eq!(server.recv_one(&mut buf)?, 3);
//!
//! b.drain(lane, |_slot| {}); // what changed until now
//! assert!(b.prepare_sleep(lane)); // false: something changed meanwhile, drain again
//! client.send_one(b"more")?; // rings poller 7's bell (Bells::ring), as it sleeps
//! b.awake(lane);
//! let mut changed = vec![];
//! b.drain(lane, |slot| changed.push(slot));
//! assert_eq!(changed, [server.slot()]);
//!
//! client.close(false)?; // last reference: FIN
//! assert_eq!(server.recv_one(&mut buf)?, 4);
//! assert_eq!(server.recv_one(&mut buf)?, 0);
//! server.close(false)?; // both closed: the slot is free again
//! # Ok::<(), fs_shm::Errno>(())
//! ```

#![allow(unexpected_cfgs, reason = "cfg(loom): sleep.rs and owner_lock.rs are model-checked")]

mod addr;
pub mod addresses;
mod arena;
mod bell;
pub mod channel;
pub mod control;
mod copy_unsafe;
#[cfg(test)]
#[path = "../tests/common/emulated.rs"]
mod emulated;
pub mod follow;
mod futex;
pub mod holder;
mod inbox;
mod instant_unsafe;
pub mod lanes;
mod large;
pub mod layout;
pub mod owner_lock;
pub mod pages;
mod reap;
mod region_unsafe;
mod ring;
mod sleep;
pub mod sleepers;
mod trim;
pub mod wait;
pub mod word;

pub use addr::Addr;
pub use arena::{Arena, LOWEST_PORT, Memory};
pub use bell::{Bells, NoBells};
pub use channel::{Channel, OpenArgs, Readiness, RecvFlags, Shutdown};
pub use inbox::Waiting;
pub use instant_unsafe::now;
pub use layout::{Geometry, Side};
pub use reap::Totals;
pub use rustix::io::Errno;
pub use wait::{Ends, Interest, Wait, WaitEnd};
