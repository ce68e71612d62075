//! Pinning a thread to a CPU.

use std::io;

/// Pins the calling thread to `cpu` (numbers as in `/proc/cpuinfo`).
pub(crate) fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: an all-zero cpu_set_t is the empty set; CPU_SET writes inside it because `cpu < CPU_SETSIZE`.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        set
    };
    // SAFETY: `set` outlives the call and the size is its own; 0 means the calling thread.
    let answer = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// CPUs that the calling thread may run on.
pub(crate) fn online_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: an all-zero cpu_set_t is valid, and the call fills at most its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Err(io::Error::last_os_error());
        }
        set
    };
    // SAFETY: every index is below CPU_SETSIZE.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}
