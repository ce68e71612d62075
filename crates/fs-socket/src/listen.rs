//! Names and listeners.
//!
//! A listener listens twice: on the kernel (its placeholder) and, announced to the daemon, in the inboxes of the arenas
//! that the daemon lists on the listener's page. accept takes from both, and must never wait in the kernel's queue alone:
//! it asks whether that has something before it takes from it, under a lock that all processes share which inherited the
//! listener from one that uses this library ([`sys::family`]). One that is not announced is the kernel's alone.

mod accept;
mod announce;
mod inbox;
mod lifecycle;
pub(crate) mod number;
mod wake;

pub use accept::accept4;
pub(crate) use announce::{announce_again, changed, enter_number};
pub use inbox::{arena, refresh};
pub(crate) use inbox::{came, changes, has_news, is_known_ready, is_ready};
pub(crate) use lifecycle::{
    adopt, id, is_open_elsewhere, is_others, is_outliving, is_shut, is_watching, keep_options, last_number_gone,
    leave_to_kernel, let_go, lost, number_gone, object, of_id, orphaned, outlive, recall, resume, shut, stop,
};
pub use lifecycle::{bind, listen};
pub(crate) use wake::{Doze, arm, exclusive, exclusive_poller, is_behind, shared_poller, tell, woken};

use core::sync::atomic::{
    AtomicI32, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use fs_shm::{pages::ListenerPage, sleepers::Sleepers};

use crate::{
    descriptor::table,
    poll::spin::Spin,
    process::arenas::Mapped,
    process::held::{self, Held},
    socket::{Kind, Socket},
    sys::{self, array::Array, pointer::Pointer},
    types::Fd,
};

/// Arenas of one listener at once, as on its page.
const ARENAS: usize = fs_shm::pages::LISTENER_ARENAS;

/// Inboxes that are looked at first. More: each accept looks at more. Fewer: those of more clients are found by going
/// through all.
const HOT: usize = 4;

/// What this process knows of one listener.
#[derive(Debug)]
pub(crate) struct Listener {
    /// 0: free; 1 for the socket, and 1 for each thread that announces it.
    used: AtomicU32,
    /// The daemon's number; 0: not announced.
    id: AtomicU32,
    life: AtomicU32,
    page: Pointer<ListenerPage>,
    /// The page's generation that `arenas` is of.
    seen: AtomicU64,
    /// The thread that brings `arenas` up to date.
    busy: AtomicUsize,
    count: AtomicU32,
    /// Counts changes of `arenas`.
    changes: AtomicU32,
    /// Whose inbox is looked at first.
    turn: AtomicU32,
    /// Places whose inbox had something lately, + 1: looked at before all others.
    hot: [AtomicU32; HOT],
    /// The place of the last connection, and how many in a row came from there.
    last: AtomicU32,
    in_row: AtomicU32,
    /// The poller that all share who sleep in accept, of all processes: id | descriptor + 1 << 32.
    poller: AtomicU64,
    /// The life of the attachment that it is of.
    poller_life: AtomicU32,
    /// The order in which they sleep; it comes with the poller.
    sleepers: Pointer<Sleepers>,
    /// The poller of the epoll sets that watch it with EPOLLEXCLUSIVE, and of which attachment it is; as the two before.
    exclusive: AtomicU64,
    exclusive_life: AtomicU32,
    /// The number that the poller's set has the placeholder under, + 1.
    entered: AtomicU32,
    /// The attachment whose connection the poller's set tells of the end of, and the poller.
    control: AtomicU64,
    /// What the socket's options were, for connections that came before some of them changed; until when that was.
    before: Pointer<Socket>,
    before_until: AtomicU64,
    /// Threads of this process that sleep in accept.
    waiters: AtomicU32,
    /// Those of them that look again after a long time only.
    long: AtomicU32,
    /// Threads of this process that wait in accept, asleep or not.
    accepting: AtomicU32,
    /// A number of our own for those of them that go on though the program has closed its last one; 0: none.
    outlives: AtomicI32,
    /// 1: this process has closed it, and a registration in an epoll set holds it ([`lifecycle::last_number_gone`]). [`REFUSED`]: that
    /// is over, as the daemon has refused an arena.
    watches: AtomicU32,
    /// How long they look at the inboxes before they sleep.
    spin: Spin,
    /// 1: the last such look has ended with a connection, and the kernel's queue has had none since.
    looks_first: AtomicU32,
    /// When an accept that waits has last found the kernel's queue empty.
    empty_at: AtomicU64,
    arenas: Array<Pointer<Mapped>, ARENAS>,
}

const LISTENERS: usize = 4096;

sys::array::zeroed!(Listener);

static ALL: Array<Listener, LISTENERS> = Array::new();

/// See [`Array::grow_to`].
pub(crate) fn grow(count: usize) {
    ALL.grow_to(count);
}

/// What [`Listener::watches`] says where others accept what this process may not see.
const REFUSED: u32 = 2;

/// Places used at least once.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Whether this process has had a listener. Wait-free.
pub(crate) fn is_any() -> bool {
    HIGHEST.load(Relaxed) != 0
}

fn of(socket: &Socket) -> Option<&'static Listener> {
    if socket.kind() == Kind::Listener { ALL.at(socket.listener() as usize) } else { None }
}

/// A number that stands for the socket: `fd`, or another.
pub(crate) fn live(fd: Fd, socket: &'static Socket) -> Option<Fd> {
    let is = |fd| table::find(fd).is_some_and(|now| core::ptr::eq(now, socket));
    // Before the others: where another descriptor takes the last number it is that one's already.
    let outlives = of(socket).map_or(0, |listener| listener.outlives.load(SeqCst));
    if outlives != 0 && is(outlives) {
        return Some(outlives);
    }
    if is(fd) {
        return Some(fd);
    }
    let mut other = None;
    table::each(0, u32::MAX, |fd, of| {
        if core::ptr::eq(of, socket) {
            other = Some(fd);
        }
    });
    other
}

/// In a forked child: of the parent's threads only this one is here. It may be in a handler that has interrupted its accept.
pub(crate) fn forked() {
    let counted = |count: &AtomicU32| held::count(|held| matches!(held, Held::Counted(of) if core::ptr::eq(of, count)));
    for place in 0..HIGHEST.load(Relaxed) {
        let Some(listener) = ALL.at(place) else { return };
        if listener.is_used() {
            listener.used.store(1, Relaxed);
            listener.busy.store(0, Relaxed);
            listener.waiters.store(counted(&listener.waiters), Relaxed);
            listener.long.store(counted(&listener.long), Relaxed);
            let accepts = |held: Held| matches!(held, Held::Accepts(of) if core::ptr::eq(of, listener));
            listener.accepting.store(held::count(accepts), Relaxed);
            listener.forget_looks();
        }
    }
}

/// In a forked child that is attached: what is there for its parent's threads alone goes.
pub(crate) fn forked_attached() {
    for place in 0..HIGHEST.load(Relaxed) {
        let is_left = |listener: &&'static Listener| listener.is_used() && listener.accepting.load(Relaxed) == 0;
        if let Some(listener) = ALL.at(place).filter(is_left) {
            listener.accepted();
        }
    }
}
