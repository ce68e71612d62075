//! Finds out whether other threads want the CPU.

use super::affinity::Cpus;
use super::preempted::preemptions;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The kernel's answers. The first two are asked for a thread that may run on several CPUs, the
/// third for one that is pinned; the others stay zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contention {
    /// Number of times that the calling thread was preempted.
    pub(crate) preemptions: u64,
    /// More threads of the machine are runnable than it has CPUs, so a thread that only polls takes
    /// time from one with work.
    pub(crate) crowded: bool,
    /// Time for which other threads have used the CPU, without interrupts.
    pub(crate) others: Duration,
}

/// Reads [`Contention`] from the kernel.
#[derive(Debug)]
pub(crate) enum ContentionProbe {
    /// `/proc/loadavg`: its fourth field starts with the number of runnable threads. If it cannot be
    /// read, only preemptions count.
    Anywhere { runnable: Option<File>, cpus: u32 },
    /// `/proc/stat` says how long the CPU was busy, the thread's `schedstat` for how long of it this
    /// thread ran.
    Pinned { cpu: usize, busy: File, own: File },
}

impl ContentionProbe {
    /// For the calling thread. `pinned`: asks about its CPU, if it has only one.
    pub(crate) fn new(pinned: bool) -> Self {
        if pinned && let Some(probe) = Self::pinned() {
            return probe;
        }
        // SAFETY: takes no pointers. If it returned -1, `crowded` would never be true.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        Self::Anywhere { runnable: File::open("/proc/loadavg").ok(), cpus: cpus as u32 }
    }

    fn pinned() -> Option<Self> {
        let cpu = Cpus::of_this_thread().ok()?.only()?;
        let own = File::open("/proc/thread-self/schedstat").ok()?;
        Some(Self::Pinned { cpu, busy: File::open("/proc/stat").ok()?, own })
    }

    /// Two system calls. Of a pinned thread they take 8 µs on a machine of two CPUs; `/proc/stat` is
    /// longer with each CPU and each interrupt.
    pub(crate) fn read(&self) -> Contention {
        match self {
            Self::Anywhere { runnable: file, cpus } => {
                let mut text = [0; 64];
                let crowded = runnable(beginning(file.as_ref(), &mut text)).is_some_and(|runnable| runnable > *cpus);
                Contention { preemptions: preemptions(), crowded, ..Contention::default() }
            }
            Self::Pinned { cpu, busy: stat, own } => {
                // A line has ten numbers of at most 20 digits, and usually 60 bytes.
                let (mut text, mut lines) = ([0; 64], vec![0; (cpu + 2) * 220]);
                let ran = own_time(beginning(Some(own), &mut text));
                let others =
                    busy(beginning(Some(stat), &mut lines), *cpu).zip(ran).map(|(busy, ran)| busy.saturating_sub(ran));
                Contention { others: others.unwrap_or_default(), ..Contention::default() }
            }
        }
    }
}

/// Reads the beginning of a file.
fn beginning<'a>(file: Option<&File>, into: &'a mut [u8]) -> &'a [u8] {
    let len = file.and_then(|file| file.read_at(into, 0).ok()).unwrap_or(0);
    &into[..len]
}

/// Parses the 2 of `0.20 0.18 0.12 2/380 11206`.
fn runnable(text: &[u8]) -> Option<u32> {
    let field = text.split(|&byte| byte == b' ').nth(3)?;
    let number = field.split(|&byte| byte == b'/').next()?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Parses the time on the CPU of `2063719 51 7` (proc(5), `schedstat`: nanoseconds).
fn own_time(text: &[u8]) -> Option<Duration> {
    Some(Duration::from_nanos(numbers(text).next()?))
}

/// Returns the time that threads have used CPU `cpu`: the first three numbers of its line (proc(5),
/// `/proc/stat`: user, nice, system). The line may lack: a container can have a `/proc/stat` of its
/// own.
fn busy(text: &[u8], cpu: usize) -> Option<Duration> {
    let name = format!("cpu{cpu} ");
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()))?;
    let ticks: u64 = numbers(line).take(3).sum();
    Some(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1)))
}

fn numbers(text: &[u8]) -> impl Iterator<Item = u64> {
    text.split(u8::is_ascii_whitespace).filter_map(|field| std::str::from_utf8(field).ok()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::pin_to_cpu;

    #[test]
    fn number_of_runnable_threads_is_parsed() {
        assert_eq!(runnable(b"0.20 0.18 0.12 12/380 11206\n"), Some(12));
        assert_eq!(runnable(b"0.20 0.18"), None);
        assert_eq!(runnable(b""), None);
        // This thread is runnable.
        let mut text = [0; 64];
        let loads = File::open("/proc/loadavg").unwrap();
        assert!(runnable(beginning(Some(&loads), &mut text)).unwrap() >= 1);
    }

    #[test]
    fn times_of_a_cpu_are_parsed() {
        let text = b"cpu  900 90 9 1 1 1 1 0 0 0\ncpu1 100 20 3 400 5 6 7 8 9 10\ncpu11 7 7 7 7 7 7 7 0 0 0\n";
        let ticks = rustix::param::clock_ticks_per_second();
        assert_eq!(busy(text, 1), Some(Duration::from_millis(123 * 1000 / ticks)));
        assert_eq!(busy(text, 11), Some(Duration::from_millis(21 * 1000 / ticks)));
        assert_eq!(busy(text, 0), None);
        assert_eq!(own_time(b"2063719 51 7\n"), Some(Duration::from_nanos(2_063_719)));
    }

    #[test]
    fn times_of_a_pinned_thread_are_read() {
        let cpu = crate::sys::online_cpus().unwrap()[0];
        std::thread::spawn(move || {
            pin_to_cpu(cpu).unwrap();
            let ContentionProbe::Pinned { cpu: of, busy: stat, own } = ContentionProbe::new(true) else {
                panic!("pinned")
            };
            assert_eq!(of, cpu);
            let (mut text, mut lines) = ([0; 64], vec![0; (cpu + 2) * 220]);
            assert!(own_time(beginning(Some(&own), &mut text)).unwrap() > Duration::ZERO);
            assert!(busy(beginning(Some(&stat), &mut lines), cpu).unwrap() > Duration::ZERO);
        })
        .join()
        .unwrap();
    }
}
