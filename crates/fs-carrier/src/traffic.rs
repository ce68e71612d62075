//! The bytes that a region has carried, read from its file. A matchmaker uses this, because it maps
//! no region.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::layout::{Direction, LineB};
use crate::word::Snapshot;

/// The bytes that one direction has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes by the ring, modulo 2^48.
    pub ring: u64,
    /// Bytes by the kernel since the connection's first, as the sender says. 0: the sender has not joined.
    pub kernel: u64,
    /// The kernel carries for good.
    pub is_pinned: bool,
}

/// Returns what has gone from end A to end B and back. Both ends can write anything there.
///
/// # Errors
/// Those of pread(2). `EIO`: the file is no region's.
pub fn traffic(file: &OwnedFd) -> Result<[Traffic; 2], Errno> {
    let mut words = [0; 2 * size_of::<Direction>()];
    if rustix::io::pread(file, &mut words, 0)? != words.len() {
        return Err(Errno::IO);
    }
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&words[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    Ok([0, size_of::<Direction>()].map(|at| {
        let seen = Snapshot::of_bits(word(at));
        // Line B follows line A.
        Traffic { ring: seen.tail().bits(), kernel: word(at + size_of::<LineB>()), is_pinned: seen.is_pinned() }
    }))
}
