//! The real kernel: a TCP socket, the clock, threads.
#![allow(unsafe_code)]

mod epoll;
mod syscall;
mod wake;

pub use epoll::{Epoll, Interrupter};
pub use wake::wake_up_ns;

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::os::fd::{AsFd, AsRawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::kernel::{Errno, Events, Kernel, Machine, RecvMode, TcpInfo};

/// A TCP socket of the kernel's.
#[derive(Debug)]
pub struct Socket<F>(pub F);

impl<F: AsFd> Kernel for Socket<F> {
    fn send(&self, bytes: &[u8], dont_wait: bool) -> Result<usize, Errno> {
        let flags = if dont_wait { SendFlags::NOSIGNAL | SendFlags::DONTWAIT } else { SendFlags::NOSIGNAL };
        rustix::net::send(&self.0, bytes, flags)
    }

    fn recv(&self, into: &mut [u8], mode: RecvMode) -> Result<usize, Errno> {
        let mut flags = RecvFlags::empty();
        flags.set(RecvFlags::DONTWAIT, mode.dont_wait);
        flags.set(RecvFlags::PEEK, mode.peek);
        flags.set(RecvFlags::WAITALL, mode.all);
        rustix::net::recv(&self.0, into, flags).map(|(n, _)| n)
    }

    fn unread(&self) -> Result<u64, Errno> {
        rustix::io::ioctl_fionread(&self.0)
    }

    fn descriptor(&self) -> i32 {
        self.0.as_fd().as_raw_fd()
    }

    fn tcp_info(&self) -> Result<TcpInfo, Errno> {
        syscall::tcp_info(self.0.as_fd())
    }

    fn events(&self) -> Events {
        let mut fds = [PollFd::new(&self.0, PollFlags::RDHUP | PollFlags::OUT)];
        // An error of the call itself: nothing is known, and the next check comes.
        if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_err() {
            return Events::default();
        }
        let got = fds[0].revents();
        Events {
            error: got.contains(PollFlags::ERR),
            hang_up: got.contains(PollFlags::HUP),
            peer_closed: got.contains(PollFlags::RDHUP),
            has_room: got.contains(PollFlags::OUT),
        }
    }

    fn wait_readable(&self, ms: u32) {
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(ms) * 1_000_000 };
        // EINTR: the caller looks again.
        let _ready = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&time));
    }

    fn wait_for_more(&self) -> Result<(), Errno> {
        let limit = rustix::net::sockopt::socket_timeout(&self.0, rustix::net::sockopt::Timeout::Recv)?;
        let time = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], time.as_ref())? {
            0 => Err(Errno::AGAIN),
            _ => Ok(()),
        }
    }
}

impl<F> Machine for Socket<F> {
    #[inline]
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    #[inline]
    fn pause(&self) {
        core::hint::spin_loop();
    }

    fn yield_now(&self) {
        rustix::thread::sched_yield();
    }

    #[inline]
    fn thread(&self) -> u32 {
        thread()
    }

    fn is_gone(&self, thread: u32) -> bool {
        is_gone(thread)
    }

    #[inline]
    fn is_only_thread(&self) -> bool {
        ONLY_THREAD.load(Ordering::Relaxed)
    }
}

/// Whether [`set_only_thread`] has said so.
static ONLY_THREAD: AtomicBool = AtomicBool::new(false);

/// Says whether each connection of this process is used by one thread of one process only. The caller takes it back before it makes a thread
/// and before it forks; at that moment no other thread is there.
pub fn set_only_thread(is_only: bool) {
    ONLY_THREAD.store(is_only, Ordering::SeqCst);
}

fn is_gone(thread: u32) -> bool {
    let Some(pid) = i32::try_from(thread).ok().and_then(rustix::process::Pid::from_raw) else { return true };
    // A thread id is a process id to kill(2), too.
    rustix::process::test_kill_process(pid) == Err(Errno::SRCH)
}

/// Returns CLOCK_MONOTONIC in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Changes with each fork that [`after_fork`] was told of.
static FORKS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The thread's id, and the value of [`FORKS`] that it belongs to.
    static THREAD: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

/// The calling thread is the only one of a new child process: its id is another one.
pub fn after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[inline]
fn thread() -> u32 {
    let forks = FORKS.load(Ordering::Relaxed);
    let (id, of) = THREAD.get();
    if id != 0 && of == forks { id } else { ask_thread(forks) }
}

#[cold]
fn ask_thread(forks: u64) -> u32 {
    let id = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    THREAD.set((id, forks));
    id
}
