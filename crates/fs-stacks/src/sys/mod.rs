//! System calls that neither std nor tokio has.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Pins the calling thread to one CPU.
///
/// # Errors
/// EINVAL if the machine has no such CPU, or this process may not use it.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: an all-zero cpu_set_t is an empty set, `cpu` is within it, and the kernel only reads
    // it.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Raises the soft limit of open descriptors to the hard limit (for root also the hard limit, up to
/// `wanted`), and returns the new limit. Kernel sockets need one descriptor each; distributions
/// start programs with 1024.
///
/// # Errors
/// As `getrlimit(2)`. A limit that cannot be raised is no error.
pub fn raise_open_files(wanted: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes to `limit`, which is valid for writes.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    for hard in [limit.rlim_max.max(wanted), limit.rlim_max] {
        let raised = libc::rlimit { rlim_cur: hard, rlim_max: hard };
        // SAFETY: the kernel only reads `raised`.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } == 0 {
            return Ok(hard);
        }
    }
    Ok(limit.rlim_cur)
}

/// Makes the kernel choose the port at `connect` instead of `bind` (IP_BIND_ADDRESS_NO_PORT). It
/// then knows the whole flow, so a source address can use each port once *per destination*.
///
/// # Errors
/// The errors of `setsockopt(2)`.
pub fn set_bind_address_no_port(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open while borrowed, and the value is an int that the kernel only
    // reads.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Chooses a TCP socket's congestion control by its kernel name (TCP_CONGESTION).
///
/// # Errors
/// The errors of `setsockopt(2)`: ENOENT if the kernel does not have it.
pub fn set_congestion(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    // SAFETY: the descriptor is open while borrowed, and the kernel only reads the name, whose
    // length it is told.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes close send RST and discard queued data (SO_LINGER with time 0).
///
/// # Errors
/// The errors of `setsockopt(2)`.
pub fn set_zero_linger(socket: BorrowedFd<'_>) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the descriptor is open while borrowed, and the kernel only reads the struct, whose
    // size it is told.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the bytes that the peer of a TCP socket has acknowledged (`tcpi_bytes_acked` of
/// TCP_INFO, Linux 4.1).
///
/// # Errors
/// The errors of `getsockopt(2)`; `Unsupported` on an older kernel.
pub fn bytes_acked(socket: BorrowedFd<'_>) -> io::Result<u64> {
    /// Offset of `tcpi_bytes_acked` in the kernel's `struct tcp_info`.
    const AT: usize = 120;
    let mut info = [0u8; 256];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the descriptor is open while borrowed, and the kernel writes at most `length` bytes
    // into `info`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    match info[..length as usize].get(AT..AT + 8) {
        Some(bytes) => Ok(u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))),
        None => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Resources that this process has used since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourceUsage {
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel on behalf of this process.
    pub system: Duration,
    /// Largest resident set until now, in bytes.
    pub peak_rss: u64,
}

/// Reads this process's resource usage (`getrusage(2)`).
pub fn resource_usage() -> ResourceUsage {
    // SAFETY: an all-zero rusage is valid, and the kernel fills it. RUSAGE_SELF with a valid
    // pointer cannot fail.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    ResourceUsage { user: time(usage.ru_utime), system: time(usage.ru_stime), peak_rss: usage.ru_maxrss as u64 * 1024 }
}

/// Returns the page size in bytes.
pub fn page_size() -> u64 {
    // SAFETY: sysconf takes and returns plain numbers.
    (unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) as u64
}

/// A signal that tests send.
#[cfg(feature = "testing")]
#[derive(Clone, Copy, Debug)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGQUIT.
    Quit,
    /// SIGHUP.
    HangUp,
    /// SIGUSR1.
    User1,
    /// SIGUSR2.
    User2,
}

/// Sends a signal to a process.
///
/// # Errors
/// The errors of `kill(2)`.
#[cfg(feature = "testing")]
pub fn send_signal(process: u32, signal: Signal) -> io::Result<()> {
    let number = match signal {
        Signal::Terminate => libc::SIGTERM,
        Signal::Quit => libc::SIGQUIT,
        Signal::HangUp => libc::SIGHUP,
        Signal::User1 => libc::SIGUSR1,
        Signal::User2 => libc::SIGUSR2,
    };
    // SAFETY: kill takes plain numbers.
    let result = unsafe { libc::kill(process as libc::pid_t, number) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
