//! Forks of this process, and the first moment of a child.
//!
//! A child process notices by itself that it is one: a page that the kernel wipes on fork (MADV_WIPEONFORK) reads as zeros. This covers
//! fork(2), clone(2), forkpty(3), daemon(3) and raw system calls, and a child that touches no socket of the library does nothing.
//! A parent learns of its forks by a handler of pthread_atfork(3), and by the library's own `clone` and `syscall`.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::slot::Kind;
use crate::sys::wiped;
use crate::{confined, promotion, set, table};

static FORKS: AtomicU32 = AtomicU32::new(0);
static CHILD: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks so far. A socket that is older than the last one may have a second holder.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// A fork is about to happen, or has happened.
pub(crate) fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the generation of this process: it differs between a parent and its child.
#[inline]
pub(crate) fn generation() -> u32 {
    CHILD.load(Ordering::Relaxed)
}

/// Notices that this process is a new child.
#[inline]
pub(crate) fn notice_fork() {
    if wiped::is_wiped() {
        begin_child();
    }
}

/// A watched socket has two holders now, and stays the kernel's. Promoted sockets and sets are older than the child's generation, which
/// their next use notices.
#[cold]
fn begin_child() {
    wiped::mark();
    CHILD.fetch_add(1, Ordering::Relaxed);
    count_fork();
    // A confined process keeps its thread's id, and has left the service.
    if !confined::is_confined() {
        fs_carrier::sys::after_fork();
        promotion::begin_child();
    }
    table::for_each(|_, slot| match slot.state().kind() {
        Kind::Watched | Kind::Offered | Kind::Promoting => {
            slot.end();
        }
        Kind::Socket | Kind::Set | Kind::Plain => {}
    });
    set::begin_child();
}
