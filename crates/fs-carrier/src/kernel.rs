//! The operations that the rules need from the kernel and from the machine, as traits. A socket
//! implements them, and so does a model in tests.

pub use rustix::io::Errno;

/// The mode of [`Kernel::recv`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvMode {
    /// MSG_DONTWAIT: `EAGAIN` instead of a wait. Without it the socket's own mode decides.
    pub dont_wait: bool,
    /// MSG_PEEK: the bytes stay unread.
    pub peek: bool,
    /// MSG_WAITALL: a wait in the kernel ends when the buffer is full.
    pub all: bool,
    /// The caller has bytes of an earlier receive of the same call (MSG_WAITALL), which began at
    /// this time ([`Machine::now_ns`]): a signal ends the wait, with SA_RESTART too.
    pub continues: Option<u64>,
}

impl RecvMode {
    /// Receives, and waits as the socket's mode says.
    pub const WAIT: RecvMode = RecvMode { dont_wait: false, peek: false, all: false, continues: None };
    /// Receives bytes that are available.
    pub const NOW: RecvMode = RecvMode { dont_wait: true, ..RecvMode::WAIT };
    /// Copies bytes that are available, and leaves them in the queue.
    pub const PEEK: RecvMode = RecvMode { peek: true, ..RecvMode::NOW };
}

/// The fields of TCP_INFO that C6 needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// `tcpi_bytes_received`: payload that arrived; a FIN counts as one more.
    pub bytes_received: u64,
    /// `tcpi_bytes_sent` without retransmissions: payload that was sent.
    pub bytes_sent: u64,
    /// `tcpi_notsent_bytes`: payload in the send queue that was not sent yet.
    pub bytes_not_sent: u64,
    /// `tcpi_state`, `TCP_ESTABLISHED` is 1.
    pub state: u8,
}

/// The result of poll(2) for a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// POLLERR.
    pub error: bool,
    /// POLLHUP.
    pub hang_up: bool,
    /// POLLRDHUP: the peer has ended its direction, or has died.
    pub peer_closed: bool,
    /// POLLOUT: a send would not wait.
    pub has_room: bool,
}

/// The processor and the threads of the caller.
pub trait Machine {
    /// Returns a monotonic time in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Returns a time of the same clock that may be some milliseconds old, where that costs less:
    /// each send needs one (P5).
    fn coarse_ns(&self) -> u64 {
        self.now_ns()
    }

    /// Waits for a moment in a loop that spins: a few nanoseconds.
    fn pause(&self);

    /// Gives the processor to another thread (sched_yield(2)).
    fn yield_now(&self);

    /// Sleeps for some 50 µs: yields only pass the processor to threads of the same or a higher priority.
    fn nap(&self) {
        self.yield_now();
    }

    /// Returns the caller's thread id, never 0.
    fn thread(&self) -> u32;

    /// Returns whether the thread of that id has ended for certain.
    fn is_gone(&self, thread: u32) -> bool;
}

/// A kernel socket.
pub trait Kernel: Machine {
    /// Calls send(2) with MSG_NOSIGNAL.
    ///
    /// # Errors
    /// The errors of send(2).
    fn send(&self, bytes: &[u8], dont_wait: bool) -> Result<usize, Errno>;

    /// Sets options that the kernel does not know yet and that concern bytes. The carrier calls it
    /// before each send by the kernel.
    fn before_send(&self) {}

    /// Calls recv(2). 0 is the end of the stream, since `into` is not empty.
    ///
    /// # Errors
    /// The errors of recv(2).
    fn recv(&self, into: &mut [u8], mode: RecvMode) -> Result<usize, Errno>;

    /// Returns the bytes that recv(2) would return (FIONREAD).
    ///
    /// # Errors
    /// The errors of ioctl(2).
    fn unread(&self) -> Result<u64, Errno>;

    /// Asks for TCP_INFO.
    ///
    /// # Errors
    /// The errors of getsockopt(2).
    fn tcp_info(&self) -> Result<TcpInfo, Errno>;

    /// Asks poll(2) for errors and for room to send, without a wait.
    fn events(&self) -> Events;

    /// Waits until the socket is readable, at most for `ms` milliseconds.
    ///
    /// # Errors
    /// `EINTR` after any signal handler.
    fn wait_readable(&self, ms: u32) -> Result<(), Errno>;

    /// Returns the receive time-out (SO_RCVTIMEO) in nanoseconds, or nothing without one.
    ///
    /// # Errors
    /// The errors of getsockopt(2).
    fn receive_limit_ns(&self) -> Result<Option<u64>, Errno>;

    /// Returns the application's number for the socket.
    fn descriptor(&self) -> i32;

    /// Waits until the socket is readable, as long as its receive time-out allows a call that began at `start_ns`.
    ///
    /// # Errors
    /// `EINTR` after any signal handler, `EAGAIN` if the time is over.
    fn wait_for_more(&self, start_ns: u64) -> Result<(), Errno>;

    /// Returns whether the process may ask the kernel. False: it has confined itself (seccomp), the
    /// connection is pinned, and what this end has counted is all that is known.
    #[inline]
    fn may_ask(&self) -> bool {
        true
    }

    /// Returns whether the mark of urgent data is next (SIOCATMARK): a receive that has bytes ends there.
    fn is_at_mark(&self) -> bool {
        false
    }
}

/// One event of an epoll set, laid out as the kernel's `struct epoll_event`, so that a caller's
/// array can be used as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
pub struct Event {
    /// EPOLLIN and its like.
    pub events: u32,
    /// The application's registration.
    pub data: u64,
}

/// A change of the kernel's set for a descriptor that is registered in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The descriptor.
    pub fd: i32,
    /// EPOLL_CTL_MOD with this event; `None`: EPOLL_CTL_DEL.
    pub event: Option<Event>,
}

/// The application's own epoll set in the kernel, for one call of epoll_wait(2), epoll_pwait(2) or epoll_pwait2(2).
pub trait KernelSet: Machine {
    /// Calls the application's epoll_wait(2) with the application's signal mask. `timeout_ns`: the
    /// maximum time; `None`: no limit.
    ///
    /// # Errors
    /// The errors of epoll_wait(2).
    fn wait(&self, into: &mut [Event], timeout_ns: Option<u64>) -> Result<usize, Errno>;

    /// E5: makes a thread that sleeps in the set return with an event whose data
    /// [`KernelSet::is_interrupt`] knows, until [`KernelSet::end_interrupt`]. Calls of both are
    /// never concurrent.
    ///
    /// # Errors
    /// The errors of eventfd(2) and epoll_ctl(2).
    fn interrupt(&self) -> Result<(), Errno>;

    /// E5: takes the interruption back.
    fn end_interrupt(&self);

    /// Disarms the one-shot registration of a socket, whose one report was made by its ring.
    fn disarm(&self, descriptor: i32, data: u64);

    /// Calls the application's epoll_ctl(2) for a descriptor that is registered. An error means
    /// that it is registered no more.
    fn register(&self, registration: Registration);

    /// Returns whether the set certainly has nothing to report, without a report: poll(2) on the set takes no edge.
    fn has_nothing(&self) -> bool;

    /// Returns whether `data` belongs to an interruption and not to the application.
    fn is_interrupt(&self, data: u64) -> bool;
}
