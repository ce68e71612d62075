//! The result of a step's call.

use super::super::calls::errno_name;
use super::super::storm;
use crate::awake::Watched;
use std::time::Duration;

/// A call with a wrong result, and its error; 0: its value was wrong.
pub(super) struct Wrong(pub(super) &'static str, pub(super) i32);

pub(super) type Done<T> = Result<T, Wrong>;

impl Wrong {
    pub(super) fn text(&self, after: usize) -> String {
        match self.1 {
            0 => format!("{} after {after}", self.0),
            SPUN => format!("{}:spins after {after}", self.0),
            errno => format!("{}:{} after {after}", self.0, errno_name(errno)),
        }
    }
}

pub(super) fn errno() -> i32 {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// In place of an error: the call has spun.
const SPUN: i32 = -1;
/// CPU time from which a call counts as spinning: mapping memory in an accept takes some.
const SPINS: Duration = Duration::from_millis(40);

/// Returns a call's value unless it is -1.
pub(super) fn good(call: &'static str, value: impl Into<i64>) -> Done<i32> {
    let value = value.into();
    if value < 0 { Err(Wrong(call, errno())) } else { Ok(value as i32) }
}

/// Repeats a call that may block until no signal ends it.
pub(super) fn again(call: &'static str, mut make: impl FnMut() -> i64) -> Done<i32> {
    loop {
        // In this order: a handler between the two then counts as having run since.
        let before = storm::fired();
        let watched = Watched::begin();
        let value = make();
        let by = errno();
        // A handler's work counts for this thread, too. Calls that move bytes also have work:
        // mapping and unmapping memory.
        if !matches!(call, "recv" | "send") && storm::fired() == before && watched.has_spun_for(SPINS) {
            return Err(Wrong(call, SPUN));
        }
        match value {
            0.. => return Ok(value as i32),
            _ if by == libc::EINTR => {}
            _ => return Err(Wrong(call, by)),
        }
    }
}
