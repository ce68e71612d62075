//! One engine, five organisations: who may touch which connection's state, and what keeps two cores from doing it at once
//! (Willmann, Rixner, Cox, "An Evaluation of Network Stack Parallelization Strategies in Modern Operating Systems", USENIX
//! ATC 2006; RR-TR06-872). The engine is `fs-core`'s in all of them, and so are the application and the wire; what differs is
//! the partition around it.
//!
//! | organisation | state | who works on it |
//! |---|---|---|
//! | UP | one instance | one thread, no lock |
//! | MsgP | one instance a connection, each with its lock; a table of connections, timers and devices' queues that all share, each with a lock | any core, packet by packet |
//! | ConnP-T | one instance a core | that core's protocol thread; others send it messages |
//! | ConnP-L(n) | n instances, each with its lock | any core |
//! | ours | one instance a core | that core, no lock: RSS and RFD bring a connection's packets and its application there |
//!
//! `fs-core` does no I/O and takes itself by `&mut`, so fine-grained locks cannot be put into it: MsgP's connection is an
//! instance of its own, and what the paper's stack shares stands around the instances. So MsgP looks a connection up twice, in
//! the shared table and in the instance's own, which has one entry; and its frames are the connection's own, where FreeBSD's
//! came from a pool of all. Beyond 1,024 connections, some share an instance and its lock: an instance has tables for many.
//!
//! Each core has a queue of the device. A connection's packets come in on one core's; its application runs on a core that is as
//! often another as the same, but in UP and ours.

pub mod lock;
pub mod organisation;
pub mod run;
pub mod shard;
pub mod wire;
