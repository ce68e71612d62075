//! The start of a child process.
//!
//! A child process notices by itself that it is one: a page that the kernel wipes on fork
//! (MADV_WIPEONFORK) reads as zeros. This covers fork(2), clone(2), forkpty(3), daemon(3) and raw
//! system calls, and a child that touches no socket of the library does nothing.

use crate::slot::Kind;
use crate::sys::wiped;
use crate::{confined, process, promotion, set, table};

/// Notices that this process is a new child.
#[inline]
pub(crate) fn notice_fork() {
    if !wiped::has_begun() {
        wiped::begin(begin_child);
    }
}

/// A watched socket now has two holders, so the kernel keeps carrying it. Promoted sockets and sets
/// are older than the child's generation, which their next use notices.
fn begin_child() {
    process::begin_generation();
    // A confined process keeps its thread's id, and has disconnected from the service.
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
