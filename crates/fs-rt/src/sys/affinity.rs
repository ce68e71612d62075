//! Pinning a thread to a CPU.

use std::io;

/// Pins the calling thread to `cpu` (numbers as in `/proc/cpuinfo`).
pub(crate) fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: an all-zero cpu_set_t is the empty set; CPU_SET writes inside it because `cpu <
    // CPU_SETSIZE`.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        set
    };
    Cpus(set).allow()
}

/// CPUs that a thread may run on.
#[derive(Clone, Copy)]
pub(crate) struct Cpus(libc::cpu_set_t);

impl Cpus {
    /// Returns the CPUs of the calling thread.
    pub(crate) fn of_this_thread() -> io::Result<Self> {
        // SAFETY: an all-zero cpu_set_t is valid, and the call fills at most its size.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(set))
        }
    }

    /// Returns the number of the only one.
    pub(crate) fn only(&self) -> Option<usize> {
        // SAFETY: the set is valid; every index is below CPU_SETSIZE.
        let mut all = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &self.0) });
        all.next().filter(|_| all.next().is_none())
    }

    /// Lets the calling thread run on these CPUs.
    pub(crate) fn allow(&self) -> io::Result<()> {
        // SAFETY: the set outlives the call and the size is its own; 0 means the calling thread.
        let answer = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &self.0) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Returns the numbers of the CPUs that the calling thread may run on.
pub(crate) fn online_cpus() -> io::Result<Vec<usize>> {
    let Cpus(set) = Cpus::of_this_thread()?;
    // SAFETY: every index is below CPU_SETSIZE.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}
