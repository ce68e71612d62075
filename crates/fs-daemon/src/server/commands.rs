//! What other threads of the daemon tell the control thread.

use crate::config::Config;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// One of them.
#[derive(Debug)]
pub(crate) enum Command {
    /// Take nothing new, and end when nothing is left or the time is over.
    Drain(Duration),
    /// End now.
    Stop,
    /// Rules, policies and limits are these from here on.
    Reload(Box<Config>),
    /// A core could not listen: the port stays the kernel's alone.
    ListenFailed { listener: u32, errno: i32 },
    /// Something was freed in an arena.
    Trim { arena: u32 },
    /// Whether a core may connect as an arena's process wants it.
    Judge { arena: u32, from: Option<SocketAddr>, to: SocketAddr, answer: oneshot::Sender<Verdict> },
}

/// What a core may: the socket that holds the port where it connects from, if there is one.
pub(crate) type Verdict = Result<Option<OwnedFd>, Errno>;

/// The way to the control thread.
#[derive(Debug)]
pub(crate) struct Commands {
    queue: Mutex<VecDeque<Command>>,
    wake: OwnedFd,
    /// Changes whenever another verdict may be given.
    generation: AtomicU64,
}

impl Commands {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { queue: Mutex::default(), wake, generation: AtomicU64::new(0) })
    }

    pub(crate) fn send(&self, command: Command) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
        // Fails only when it is full, and then the thread is awake already.
        let _full = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Another verdict may be given from here on.
    pub(super) fn bump(&self) {
        self.generation.fetch_add(1, Release);
    }

    /// Readable when something was sent.
    pub(super) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// What was sent, in its order.
    pub(super) fn take(&self) -> VecDeque<Command> {
        let mut count = [0; 8];
        // Fails only when nothing was sent, and then there is nothing to take.
        let _empty = rustix::io::read(&self.wake, &mut count);
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_awake(commands: &Commands) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&commands.wake(), PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn commands_are_taken_in_their_order_and_once() {
        let commands = Commands::new().unwrap();
        assert!(!is_awake(&commands) && commands.take().is_empty());
        (1..4).for_each(|arena| commands.send(Command::Trim { arena }));
        assert!(is_awake(&commands));
        let arenas = commands.take().into_iter().map(|command| match command {
            Command::Trim { arena } => arena,
            other => panic!("{other:?}"),
        });
        assert_eq!(arenas.collect::<Vec<u32>>(), [1, 2, 3]);
        assert!(!is_awake(&commands) && commands.take().is_empty());
    }

    #[test]
    fn a_verdict_that_may_be_another_has_another_generation() {
        let commands = Commands::new().unwrap();
        let before = commands.generation();
        commands.bump();
        assert_ne!(commands.generation(), before);
    }
}
