//! Descriptors that came with a message and that nobody asked for.
//!
//! close(2) of a file asks its file system (flush), and a FUSE file system is any user's program, which answers when it
//! likes. Sockets and eventfds have none; everything else is closed by a thread of its user's, and who fills that is hung up on.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Descriptors of one user that may wait to be closed. Only who means harm passes any.
const WAITING: usize = 64;

/// By user.
#[derive(Debug, Default)]
pub(super) struct Strangers(HashMap<u32, Arc<Mutex<Waiting>>>);

#[derive(Debug, Default)]
struct Waiting {
    fds: Vec<OwnedFd>,
    /// Those that a thread is closing, too.
    closing: usize,
}

impl Strangers {
    /// Closes descriptors of a user, some time.
    pub(super) fn close(&mut self, uid: u32, fds: Vec<OwnedFd>) {
        self.forget_closed();
        let waiting = self.0.entry(uid).or_default();
        let mut held = lock(waiting);
        held.fds.extend(fds);
        if held.closing != 0 {
            return;
        }
        held.closing = held.fds.len();
        drop(held);
        let of_thread = waiting.clone();
        let started = std::thread::Builder::new().name("strangers".into()).spawn(move || close_all(&of_thread));
        if let Err(error) = started {
            tracing::warn!(%error, "cannot start the thread that closes received descriptors: they stay open until \
                                    it starts");
            lock(waiting).closing = 0;
        }
    }

    /// Those whose thread has ended. What no thread could be had for stays: to drop it is to close it here.
    fn forget_closed(&mut self) {
        self.0.retain(|_, waiting| {
            let held = lock(waiting);
            held.closing != 0 || !held.fds.is_empty()
        });
    }

    /// Whether a user has so many that nothing more is taken from him.
    pub(super) fn is_full(&self, uid: u32) -> bool {
        self.0.get(&uid).is_some_and(|waiting| {
            let held = lock(waiting);
            held.fds.len() + held.closing >= WAITING
        })
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn close_all(waiting: &Mutex<Waiting>) {
    loop {
        let fds = std::mem::take(&mut lock(waiting).fds);
        // This is what may take as long as its owner likes.
        drop(fds);
        let mut held = lock(waiting);
        held.closing = held.fds.len();
        if held.closing == 0 {
            return;
        }
    }
}

/// What requests come with; its close asks nobody.
pub(super) fn is_expected(fd: &OwnedFd) -> bool {
    rustix::net::sockopt::socket_type(fd).is_ok() || is_eventfd(fd)
}

/// By its name, which no file system makes up.
pub(super) fn is_eventfd(fd: &OwnedFd) -> bool {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    name.is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> OwnedFd {
        std::fs::File::open("/proc/self/stat").unwrap().into()
    }

    #[test]
    fn who_is_expected() {
        assert!(!is_expected(&file()));
        assert!(is_expected(&std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()));
        assert!(is_expected(&rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()));
    }

    #[test]
    fn without_a_thread_nothing_is_closed_here() {
        let mut strangers = Strangers::default();
        let waiting = Waiting { fds: vec![file()], closing: 0 };
        strangers.0.insert(7, Arc::new(Mutex::new(waiting)));
        strangers.close(8, vec![file()]);
        assert_eq!(strangers.0.get(&7).map(|waiting| lock(waiting).fds.len()), Some(1));
        // The user's next ones take them along.
        strangers.close(7, vec![file()]);
        assert!(strangers.0.get(&7).is_some_and(|waiting| lock(waiting).closing != 1));
    }

    #[test]
    fn all_are_closed_in_the_end() {
        let mut strangers = Strangers::default();
        for _ in 0..WAITING {
            strangers.close(7, vec![file()]);
        }
        let begun = std::time::Instant::now();
        while strangers.0.get(&7).is_some_and(|waiting| lock(waiting).closing != 0) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(20));
            std::thread::yield_now();
        }
        assert!(!strangers.is_full(7) && !strangers.is_full(8));
        lock(strangers.0.entry(8).or_default()).closing = WAITING;
        assert!(strangers.is_full(8) && !strangers.is_full(7));
    }
}
