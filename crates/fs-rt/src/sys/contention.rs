//! Finds out whether other threads want the CPU.

use super::preempted::preemptions;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The kernel's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contention {
    /// Number of times that the calling thread was preempted.
    pub(crate) preemptions: u64,
    /// More threads of the machine are runnable than it has CPUs, so a thread that only polls takes
    /// time from one with work.
    pub(crate) crowded: bool,
}

/// Reads [`Contention`] from the kernel.
#[derive(Debug)]
pub(crate) struct ContentionProbe {
    /// `/proc/loadavg`: its fourth field starts with the number of runnable threads.
    runnable: Option<File>,
    cpus: u32,
}

impl ContentionProbe {
    pub(crate) fn new() -> Self {
        // If it cannot be read, only preemptions count. SAFETY: takes no pointers. If it returned
        // -1, `crowded` would never be true.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        Self { runnable: File::open("/proc/loadavg").ok(), cpus: cpus as u32 }
    }

    /// Reads both: two system calls.
    pub(crate) fn read(&self) -> Contention {
        let mut text = [0; 64];
        let len = self.runnable.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let crowded = runnable(&text[..len]).is_some_and(|runnable| runnable > self.cpus);
        Contention { preemptions: preemptions(), crowded }
    }
}

/// Parses the 2 of `0.20 0.18 0.12 2/380 11206`.
fn runnable(text: &[u8]) -> Option<u32> {
    let field = text.split(|&byte| byte == b' ').nth(3)?;
    let number = field.split(|&byte| byte == b'/').next()?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_runnable_threads_is_parsed() {
        assert_eq!(runnable(b"0.20 0.18 0.12 12/380 11206\n"), Some(12));
        assert_eq!(runnable(b"0.20 0.18"), None);
        assert_eq!(runnable(b""), None);
        // This thread is runnable.
        let mut text = [0; 64];
        let len = ContentionProbe::new().runnable.unwrap().read_at(&mut text, 0).unwrap();
        assert!(runnable(&text[..len]).unwrap() >= 1);
    }
}
