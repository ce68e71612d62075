//! Threads that make system calls for descriptors that processes have sent, instead of the service's
//! own thread.
//!
//! close(2) may block: for the bytes of a socket with SO_LINGER, for the file system (FUSE) of a
//! file, and for the descriptors in a Unix socket. getsockname(2) and TCP_INFO may block too, because
//! they take the socket's lock (`lock_sock`, net/core/sock.c). A thread of the process has that lock
//! while it waits for a page of its send(2), for example a page of a FUSE file. In both cases the
//! process that sent the descriptor can choose how long. So each user has its own threads, and delays
//! only its own processes.
//!
//! The match service and the broker each have their own [`Users`].

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::ipproto;
use rustix::net::sockopt::{socket_linger, socket_protocol};
use rustix::process::geteuid;

/// Threads per user and purpose. More: hostile processes can occupy more threads. Fewer: one socket
/// with SO_LINGER delays the closing of more others.
const THREADS: usize = 4;
/// Jobs of a user that may wait for a thread. Beyond this, the service disconnects the user's processes
/// ([`User::is_stuck`], descriptors to close) or refuses their offers ([`User::may_ask`], sockets to read).
/// The broker answers before it has closed what the request has given up.
const WAITING: usize = 1024;
/// Time after which a thread without work ends.
const IDLE: Duration = Duration::from_secs(5);

/// Time between two attempts to start threads for descriptors that wait without one. Longer: a peer
/// gets the end of its connection later. Shorter: more failed clone(2) calls.
const RETRY: Duration = Duration::from_secs(1);

/// Returns false if close(2) of this descriptor does not block.
fn may_block(fd: &OwnedFd) -> bool {
    // A Unix socket may contain descriptors.
    let is_tcp = matches!(socket_protocol(fd), Ok(Some(ipproto::TCP)));
    !is_tcp || !matches!(socket_linger(fd), Ok(None | Some(Duration::ZERO)))
}

/// All users.
#[derive(Debug, Default)]
pub struct Users {
    users: HashMap<u32, Arc<User>>,
    lacks_threads: Arc<AtomicBool>,
    /// The last attempt of [`Users::start_threads`].
    attempted: Option<Instant>,
}

/// One user's descriptors, and the threads that use them.
#[derive(Debug, Default)]
pub struct User {
    /// True for the service's own user and root, which could end the service anyway. Their
    /// descriptors are closed at once if close(2) cannot block, so that a port is free when its
    /// process has closed its socket.
    is_trusted: bool,
    held: AtomicUsize,
    /// [`Users::lacks_threads`]: descriptors wait, and no thread could be started for them.
    lacks_threads: Arc<AtomicBool>,
    closing: Threads,
    /// Separate, so that sockets with SO_LINGER delay no offer.
    asking: Threads,
}

/// Some threads and their jobs.
#[derive(Default)]
struct Threads {
    state: Mutex<State>,
    wake: Condvar,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// A descriptor that a process of this user has sent, or that is connected to such a process. A
/// thread of this user closes it.
#[derive(Debug)]
pub struct Foreign {
    /// Always present, except while it is dropped.
    fd: Option<OwnedFd>,
    user: Arc<User>,
}

impl Foreign {
    /// Returns the user of the process that has sent it.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// Closes it in this thread, which must be one of [`User::ask`].
    pub fn close(mut self) {
        drop(self.fd.take());
        self.user.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// Like [`Foreign::close`], unless that may block: then another thread closes it.
    pub(crate) fn close_quickly(self) {
        if !self.fd.as_ref().is_some_and(may_block) {
            self.close();
        }
    }

    /// Gives the descriptor to the caller, which closes it.
    pub fn into_owned(mut self) -> Option<OwnedFd> {
        self.user.held.fetch_sub(1, Ordering::Relaxed);
        self.fd.take()
    }
}

impl Users {
    /// Returns a user. Removes users that hold nothing.
    pub fn get(&mut self, uid: u32) -> Arc<User> {
        if !self.users.contains_key(&uid) {
            self.users.retain(|_, user| Arc::strong_count(user) > 1);
        }
        let is_trusted = uid == 0 || uid == geteuid().as_raw();
        let lacks_threads = &self.lacks_threads;
        let new = || Arc::new(User { is_trusted, lacks_threads: Arc::clone(lacks_threads), ..User::default() });
        Arc::clone(self.users.entry(uid).or_insert_with(new))
    }

    /// Returns when [`Users::start_threads`] must be called next, if descriptors wait without a thread.
    #[must_use]
    pub fn next_attempt(&self, now: Instant) -> Option<Instant> {
        let is_needed = self.lacks_threads.load(Ordering::Relaxed);
        is_needed.then(|| self.attempted.map_or(now, |attempted| attempted + RETRY))
    }

    /// Starts threads for descriptors that wait without one, at most once a second.
    pub fn start_threads(&mut self, now: Instant) {
        if self.next_attempt(now).is_none_or(|at| now < at) {
            return;
        }
        self.attempted = Some(now);
        self.lacks_threads.store(false, Ordering::Relaxed);
        for user in self.users.values() {
            user.start_closing();
        }
    }
}

impl User {
    /// Takes ownership of a descriptor.
    pub fn own(self: &Arc<Self>, fd: OwnedFd) -> Foreign {
        self.held.fetch_add(1, Ordering::Relaxed);
        Foreign { fd: Some(fd), user: Arc::clone(self) }
    }

    /// Returns how many descriptors are owned, or wait to be closed.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns true if too many descriptors wait, so that the user's processes are not served.
    pub(crate) fn is_stuck(&self) -> bool {
        self.closing.waiting() >= WAITING
    }

    /// Returns false if too many jobs of [`User::ask`] wait.
    #[must_use]
    pub fn may_ask(&self) -> bool {
        self.asking.waiting() < WAITING
    }

    /// Runs `job`, which asks the kernel about descriptors of this user and of no other, or closes them, in a
    /// thread. Returns false if the user has no thread and none can be started.
    #[must_use]
    pub fn ask(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) -> bool {
        self.asking.lock().queue.push_back(Box::new(job));
        let has_threads = self.start(|user| &user.asking);
        if !has_threads {
            self.asking.lock().queue.clear();
        }
        has_threads
    }

    fn close(self: &Arc<Self>, fd: OwnedFd) {
        if self.is_trusted && !may_block(&fd) {
            drop(fd);
            self.held.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let user = Arc::clone(self);
        let job = move || {
            drop(fd);
            user.held.fetch_sub(1, Ordering::Relaxed);
        };
        self.closing.lock().queue.push_back(Box::new(job));
        self.start_closing();
    }

    /// If no thread can be started, the next descriptor tries again, and [`Users::start_threads`].
    fn start_closing(self: &Arc<Self>) {
        if !self.start(|user| &user.closing) {
            self.lacks_threads.store(true, Ordering::Relaxed);
        }
    }

    /// Wakes or starts a thread. Returns false if jobs wait and there is no thread.
    fn start(self: &Arc<Self>, of: fn(&User) -> &Threads) -> bool {
        let threads = of(self);
        let mut state = threads.lock();
        if state.idle >= state.queue.len() {
            threads.wake.notify_one();
        } else if state.threads < THREADS {
            let user = Arc::clone(self);
            let thread = std::thread::Builder::new().name("foreign".into());
            state.threads += usize::from(thread.spawn(move || of(&user).run()).is_ok());
        }
        state.threads > 0 || state.queue.is_empty()
    }
}

impl Threads {
    fn waiting(&self) -> usize {
        self.lock().queue.len()
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            while let Some(job) = state.queue.pop_front() {
                drop(state);
                job();
                state = self.lock();
            }
            state.idle += 1;
            let waited = self.wake.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            state.idle -= 1;
            if waited.1.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl core::fmt::Debug for Threads {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let state = self.lock();
        let (waiting, threads) = (state.queue.len(), state.threads);
        drop(state);
        f.debug_struct("Threads").field("waiting", &waiting).field("threads", &threads).finish_non_exhaustive()
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is not dropped yet").as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.user.close(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_are_closed_by_threads_that_end() {
        let mut users = Users::default();
        let user = users.get(7);
        let mut others = Vec::new();
        for _ in 0..100 {
            let (own, other) = UnixStream::pair().expect("sockets");
            drop(user.own(own.into()));
            others.push(other);
        }
        for mut other in others {
            assert_eq!(other.read(&mut [0]).expect("its end"), 0);
        }
        let end = Instant::now() + Duration::from_secs(60);
        while user.held() > 0 {
            assert!(Instant::now() < end, "{} are held", user.held());
            std::thread::yield_now();
        }
        assert!(user.closing.lock().threads <= THREADS);
        assert!(!user.is_stuck());
    }

    #[test]
    fn users_that_hold_nothing_are_forgotten() {
        let mut users = Users::default();
        let kept = users.get(1);
        users.get(2);
        users.get(3);
        assert_eq!(users.users.len(), 2, "the kept one and the new one");
        assert!(Arc::ptr_eq(&kept, &users.get(1)));
    }
}
