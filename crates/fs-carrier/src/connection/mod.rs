//! The state of promoted connections and of the epoll sets that contain them.
//!
//! A connection knows its membership in a set, a membership its connection and its set, and a set
//! its hot memberships: a receive may make a connection hot, and a wait in a set checks its
//! connections. The types are here, and what they do is in [`pair`] and [`set`].

pub mod pair;
pub mod set;

use std::sync::{Arc, Weak};

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};

use crate::counters::Counters;
use crate::gate::Gate;
use crate::kept::KeptError;
use crate::kernel::Kernel;
use crate::merged::Merged;
use crate::position::Position;
use crate::region::{View, WordRef};
use crate::spin::{Pacing, Spin};
use crate::sync;
use crate::word::Snapshot;

/// One end of a promoted connection.
///
/// Bytes go by the ring while the receiver is awake, and by the kernel's socket otherwise. Every
/// call may be made by several threads at once.
#[derive(Debug)]
pub struct Pair<K: Kernel> {
    kernel: K,
    view: View,
    pacing: Pacing,
    spin: Spin,
    /// Threads that sleep on the socket in the kernel (C8); changed under the receive lock.
    sleepers: sync::AtomicU32,
    /// The kernel has reported the socket readable (C9).
    is_reported: sync::AtomicU32,
    asked_ns: sync::AtomicU64,
    /// The position up to which this end had sent by the ring when it last waited.
    sent_before_wait: sync::AtomicU64,
    kept_error: KeptError,
    /// The epoll set that contains the socket.
    membership: Gate<Weak<Member<K>>>,
    counters: Counters,
}

/// A connection in a set, and the application's registration. The set's gate protects the fields
/// that change.
///
/// The caller keeps it until [`Set::remove`]. Dropping it before that pins its connection, because
/// the set no longer knows it.
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
    /// The kernel's registration may differ from the application's, and the member is in `untold`.
    is_untold: AtomicBool,
    /// The application has removed it from the set, and the kernel's set still has it.
    is_out: AtomicBool,
    /// True while the connection is in the set's hot list, at this index.
    is_hot: AtomicBool,
    place: AtomicUsize,
    is_removed: AtomicBool,
    /// EPOLLONESHOT: the one report was made by the ring, and the kernel would still report an error or hang-up.
    is_spent: AtomicBool,
}

/// The promoted connections of this process in an epoll set.
#[derive(Debug)]
pub struct Set<K: Kernel> {
    gate: Gate<Hot<K>>,
    pacing: Pacing,
    spin: Spin,
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
    /// Number of threads that sleep in the kernel's set, or are about to.
    sleepers: u32,
    /// Number of members that are registered for space to send.
    writers: u32,
    /// Connections whose registration in the kernel may differ from the application's (E6).
    untold: Vec<Arc<Member<K>>>,
    /// The last scan has reported a connection whose peer has ended its stream or is about to. The
    /// kernel may have further events of it.
    has_ends: bool,
    /// A sleeper has to scan the list (E5), until nothing in it has to be reported.
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
