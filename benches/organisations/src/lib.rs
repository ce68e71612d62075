//! One engine, five threading models. A threading model states which thread may access a connection's
//! state, and how two cores exclude each other (Willmann, Rixner, Cox, "An Evaluation of Network Stack
//! Parallelization Strategies in Modern Operating Systems", USENIX ATC 2006; RR-TR06-872). All of them
//! use the engine `fs-core`, the same application and the same wire. Only the partition around them
//! differs.
//!
//! | model | state | threads with access |
//! |---|---|---|
//! | UP | one instance | one thread, no lock |
//! | MsgP | one instance per connection, each with its lock; a shared table of connections, shared timers and device queues, each with a lock | any core, for each packet |
//! | ConnP-T | one instance per core | that core's protocol thread; others send it messages |
//! | ConnP-L(n) | n instances, each with its lock | any core |
//! | ours | one instance per core | that core, no lock: RSS and RFD steer a connection's packets to the core of its application |
//!
//! `fs-core` does no I/O and its methods take `&mut self`, so it cannot contain fine-grained locks. A
//! connection of MsgP is therefore an instance, and the shared structures of the paper's stack are
//! outside the instances. MsgP looks a connection up twice: in the shared table, and in the instance's
//! table of one entry. Its frames belong to the connection, where FreeBSD's came from a shared pool.
//! Beyond 1,024 connections, some share an instance and its lock: an instance has tables for many.
//!
//! Each core has a queue of the device. A connection's packets arrive on one core's queue. Its
//! application runs on another core as often as on the same, except in UP and in ours.

pub mod lock;
pub mod organisation;
pub mod run;
pub mod shard;
pub mod wire;
