//! The state of promoted connections and of the epoll sets that contain them.
//!
//! A connection knows its membership in a set, a membership its connection and its set, and a set its hot memberships: a receive may make
//! a connection hot, and a wait in a set checks its connections. The types are here, and what they do is in [`pair`] and [`set`].

pub mod pair;
pub mod set;

use std::sync::{Arc, Weak};

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};

use crate::counters::Counters;
use crate::gate::Gate;
use crate::kernel::Kernel;
use crate::look::{Look, Pacing};
use crate::merged::Merged;
use crate::position::Position;
use crate::region::{View, WordRef};
use crate::sync;
use crate::word::Snapshot;

/// One end of a promoted connection.
///
/// Bytes go by the ring while the receiver is awake, and by the kernel's socket otherwise. Every call may be made by several threads
/// at once.
#[derive(Debug)]
pub struct Pair<K: Kernel> {
    kernel: K,
    view: View,
    pacing: Pacing,
    look: Look,
    /// Threads that sleep on the socket in the kernel (C8); changed under the receive lock.
    sleepers: sync::AtomicU32,
    /// The kernel has reported the socket readable (C9).
    is_reported: sync::AtomicU32,
    asked_ns: sync::AtomicU64,
    /// An error that the kernel gave to a receive that had bytes already; changed under the receive lock.
    kept_error: sync::AtomicU32,
    /// The epoll set that contains the socket.
    membership: Gate<Weak<Member<K>>>,
    counters: Counters,
}

/// A connection in a set, with what the application has registered. The set's gate guards what changes.
///
/// The caller keeps it until [`Set::remove`]. One that is dropped before that pins its connection: the set does not know of it any more.
#[derive(Debug)]
#[must_use = "a dropped member pins its connection"]
pub struct Member<K: Kernel> {
    pair: Arc<Pair<K>>,
    set: Weak<Set<K>>,
    events: AtomicU32,
    data: AtomicU64,
    /// The registration in the kernel's set.
    told_events: AtomicU32,
    told_data: AtomicU64,
    /// The descriptor that is registered in the kernel's set.
    fd: AtomicI32,
    /// The kernel's set may have something else than the application has registered: it is in the list of these.
    is_untold: AtomicBool,
    /// The application has taken it out of the set, and the kernel has not been told.
    is_out: AtomicBool,
    /// True while the connection is in the set's hot list, at this index.
    is_hot: AtomicBool,
    place: AtomicUsize,
    is_removed: AtomicBool,
    /// EPOLLONESHOT: the one report was made by the ring, and the kernel would still report an error or hang-up.
    is_spent: AtomicBool,
}

/// An epoll set, as far as promoted connections of this process are in it.
#[derive(Debug)]
pub struct Set<K: Kernel> {
    gate: Gate<Hot<K>>,
    pacing: Pacing,
    look: Look,
    merged: Merged,
}

/// The hot list, and the number of sleepers.
#[derive(Debug)]
pub(crate) struct Hot<K: Kernel> {
    list: Vec<Entry<K>>,
    /// Index at which the next scan starts, so that the first connections do not starve the others.
    next: usize,
    /// The connection whose age is checked next.
    hand: usize,
    calls: u32,
    /// Threads that sleep in the kernel's set, or are about to.
    sleepers: u32,
    /// Members that are registered for room to send.
    writers: u32,
    /// Connections of which the kernel's set may have something else than the application has registered (E6).
    untold: Vec<Arc<Member<K>>>,
    /// The last scan has reported a connection whose peer has ended its stream, or is about to: the kernel may have more to say of it.
    has_ends: bool,
    /// A sleeper is to look at the list (E5), until nothing in it is to be reported.
    is_interrupted: bool,
}

/// A connection that uses its ring, has asked for it, or has unread bytes.
#[derive(Debug)]
struct Entry<K: Kernel> {
    word: WordRef,
    /// The reading of the word that had nothing to report.
    seen: Option<Snapshot>,
    /// Edge-triggered: the position up to which bytes were reported.
    reported: Option<Position>,
    /// The call in which it last had bytes.
    active: u32,
    /// The application's registration. Changing it creates a new entry.
    events: u32,
    data: u64,
    member: Arc<Member<K>>,
}
