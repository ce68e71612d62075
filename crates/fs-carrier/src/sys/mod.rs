//! The real kernel: a TCP socket, the clock, threads.
#![allow(unsafe_code)]

mod epoll;
mod machine;
mod syscall;

pub use epoll::{Epoll, Interrupter, is_set_empty};
pub use machine::{after_fork, coarse_ns, nap, now_ns};

use std::os::fd::{AsFd, AsRawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags};
use rustix::time::Timespec;

use machine::{is_gone, thread};

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

    fn wait_readable(&self, ms: u32) -> Result<(), Errno> {
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(ms) * 1_000_000 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&time)).map(|_| ())
    }

    fn receive_limit_ns(&self) -> Result<Option<u64>, Errno> {
        let limit = rustix::net::sockopt::socket_timeout(&self.0, rustix::net::sockopt::Timeout::Recv)?;
        Ok(limit.map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)))
    }

    fn wait_for_more(&self, start_ns: u64) -> Result<(), Errno> {
        let spent = self.now_ns().saturating_sub(start_ns);
        let time = self
            .receive_limit_ns()?
            .and_then(|limit| Timespec::try_from(core::time::Duration::from_nanos(limit.saturating_sub(spent))).ok());
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
    fn coarse_ns(&self) -> u64 {
        coarse_ns()
    }

    #[inline]
    fn pause(&self) {
        core::hint::spin_loop();
    }

    fn yield_now(&self) {
        rustix::thread::sched_yield();
    }

    fn nap(&self) {
        nap();
    }

    #[inline]
    fn thread(&self) -> u32 {
        thread()
    }

    fn is_gone(&self, thread: u32) -> bool {
        is_gone(thread)
    }
}
