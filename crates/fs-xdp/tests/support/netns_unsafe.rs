//! Network namespaces without a name. They disappear with the test, however it ends.
#![allow(unsafe_code)]

use rustix::thread::CapabilitySet;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

/// A network namespace.
pub struct NetNs {
    fd: OwnedFd,
}

impl NetNs {
    /// Creates a namespace with loopback up. Needs root.
    pub fn new() -> NetNs {
        let thread = std::thread::spawn(|| -> io::Result<OwnedFd> {
            // SAFETY: changes only this short-lived thread's namespace.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(File::open("/proc/thread-self/ns/net")?.into())
        });
        let ns = NetNs { fd: thread.join().unwrap().expect("unshare(CLONE_NEWNET)") };
        ns.run("ip link set lo up");
        ns
    }

    /// Runs `f` on a thread in the namespace.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    // SAFETY: changes only this scoped thread's namespace; the descriptor is open.
                    let result = unsafe { libc::setns(self.fd.as_raw_fd(), libc::CLONE_NEWNET) };
                    assert_eq!(result, 0, "setns: {}", io::Error::last_os_error());
                    f()
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs a shell command in the namespace.
    pub fn run(&self, command: &str) {
        assert!(self.try_run(command), "failed: {command}");
    }

    /// Like [`NetNs::run`]. Returns whether it succeeded.
    pub fn try_run(&self, command: &str) -> bool {
        self.enter(|| Command::new("sh").args(["-c", command]).status().expect("sh").success())
    }

    /// Returns a path for `ip link … netns`.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }
}

/// Returns true for root in the initial user namespace, as far as network devices and BPF are
/// concerned.
pub fn is_root() -> bool {
    // SAFETY: a system call without arguments.
    unsafe { libc::geteuid() == 0 }
}

/// Waits until `fd` is readable. Returns whether it is.
pub fn wait_readable(fd: std::os::fd::BorrowedFd<'_>, most: std::time::Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live `pollfd`.
    unsafe { libc::poll(&raw mut poll, 1, most.as_millis() as i32) == 1 }
}

/// Drops capabilities of the calling thread.
pub fn drop_capabilities(dropped: CapabilitySet) {
    let mut sets = rustix::thread::capabilities(None).unwrap();
    sets.effective -= dropped;
    sets.permitted -= dropped;
    rustix::thread::set_capabilities(None, sets).unwrap();
}

/// A child of this process that has copies of all our descriptors and does nothing. Dropping the
/// value ends it.
pub struct PausedChild(libc::pid_t);

impl PausedChild {
    pub fn fork() -> Self {
        // SAFETY: the child calls nothing but pause(2), which is async-signal-safe.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", io::Error::last_os_error()),
            0 => loop {
                // SAFETY: no arguments.
                unsafe { libc::pause() };
            },
            child => Self(child),
        }
    }
}

impl Drop for PausedChild {
    fn drop(&mut self) {
        // SAFETY: our own child, not waited for yet; waitpid(2) takes a null status.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Sets the length of the header in front of each packet of the existing TAP device called `name`, as QEMU
/// does, and closes the device again.
pub fn set_tap_header(name: &str, len: libc::c_int) {
    let tap = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: an `ifreq` is integers and a pointer that null suits.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: a live `ifreq` and a live integer, as these requests want them.
    let set = unsafe {
        libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) == 0
            && libc::ioctl(tap.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) == 0
    };
    assert!(set, "{}", io::Error::last_os_error());
}
