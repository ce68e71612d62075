//! How many threads want the machine's processors.

use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;

use rustix::fs::{Mode, OFlags};

use super::guarded::Guarded;
use crate::confined;

/// What is asked: guarded, since a child of fork(2) must not get the file.
static PROCESSORS: Guarded<Processors> = Guarded::new(Processors { online: None });

struct Processors {
    /// How many there are; 0: nobody knows.
    online: Option<u32>,
}

/// Returns by how many the runnable threads of the machine exceed its processors. 0 also if /proc or /sys is not there, or if the process
/// has confined itself.
pub(crate) fn excess_threads() -> u32 {
    let excess = |processors: &mut Processors| {
        let online = *processors
            .online
            .get_or_insert_with(|| read(c"/sys/devices/system/cpu/online", number_of_processors).unwrap_or(0));
        if online == 0 { 0 } else { read(c"/proc/loadavg", runnable).unwrap_or(0).saturating_sub(online) }
    };
    if confined::is_confined() { 0 } else { PROCESSORS.try_with(excess).unwrap_or(0) }
}

/// Acquires the lock that no other thread may hold during a fork.
pub(crate) fn lock() {
    PROCESSORS.lock();
}

/// The fork is over.
pub(crate) fn unlock() {
    PROCESSORS.break_lock();
}

fn read(path: &core::ffi::CStr, parse: impl FnOnce(&str) -> Option<u32>) -> Option<u32> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // Not dropped: the C library's close(2) is this library's.
    let file = ManuallyDrop::new(file);
    let mut text = [0; 128];
    let read = rustix::io::read(&*file, &mut text);
    // SAFETY: the descriptor was opened just now, and this is its last use.
    unsafe { rustix::io::close(file.as_raw_fd()) };
    parse(core::str::from_utf8(text.get(..read.ok()?)?).ok()?)
}

/// The fourth of the numbers of /proc/loadavg, as `0.10 0.05 0.01 3/234 5678` (proc_loadavg(5)).
fn runnable(text: &str) -> Option<u32> {
    text.split_ascii_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// A list such as `0-3,8-11`.
fn number_of_processors(text: &str) -> Option<u32> {
    text.trim().split(',').try_fold(0, |all, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        Some(all + last.checked_sub(first)? + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(runnable("0.10 0.05 0.01 3/234 5678\n"), Some(3));
        assert_eq!(runnable("0.10"), None);
        assert_eq!(number_of_processors("0\n"), Some(1));
        assert_eq!(number_of_processors("0-3,8-11,13\n"), Some(9));
        assert_eq!(number_of_processors("3-0"), None);
        assert!(read(c"/sys/devices/system/cpu/online", number_of_processors).is_some_and(|n| n > 0));
        assert!(read(c"/proc/loadavg", runnable).is_some_and(|n| n > 0));
    }
}
