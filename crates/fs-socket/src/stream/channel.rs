//! What the calls on a channel have in common: waiting, signals, letting go.

use core::{
    sync::atomic::{
        AtomicBool, AtomicU32,
        Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};
use std::{sync::OnceLock, time::Instant};

use fs_shm::{Channel, Ends, Interest, Wait, WaitEnd};
use rustix::io::Errno;

use crate::{
    descriptor::table::{self, SocketRef},
    poll,
    process::{self, Attachment},
    slice,
    socket::Socket,
    sys::signals,
    types::Fd,
};

/// O_NONBLOCK, as `fcntl` has it.
pub(crate) const O_NONBLOCK: u32 = 0o4000;

/// Set by who may cancel threads (libfastsock, when the process first calls pthread_cancel): waits then look every 100 ms
/// whether their thread is to end, and come back with [`CANCELLED`] if it is. All others wait on: the time of a call and
/// what it has moved are its own.
pub static CANCELS: AtomicBool = AtomicBool::new(false);

/// The same for those who sleep without end.
pub(crate) static RECALLED: AtomicU32 = AtomicU32::new(0);

/// Tells whether the calling thread is to end.
static IS_CANCELLED: OnceLock<fn() -> bool> = OnceLock::new();

/// Whether the calling thread is to end: its call comes back for it.
pub(crate) fn is_cancelled() -> bool {
    CANCELS.load(Relaxed) && IS_CANCELLED.get().is_none_or(|ask| ask())
}

/// A thread is about to be cancelled: from the first time on waits look for it. `is_cancelled` tells of the thread that calls
/// it; what is called between two looks of a thread that waits must be quick.
pub fn begin_cancelling(is_cancelled: fn() -> bool) {
    IS_CANCELLED.get_or_init(|| is_cancelled);
    if !CANCELS.swap(true, SeqCst) {
        Ends::recall(&RECALLED);
        poll::recall();
        crate::listen::recall();
    }
}

/// Not an errno of the kernel's: test for cancellation, then call again.
pub const CANCELLED: Errno = Errno::from_raw_os_error(4095);

/// How long one call waits.
pub(crate) struct Patience {
    timeout: u64,
    deadline: Option<Instant>,
    moved: bool,
    /// A signal ends the call, with what there is.
    is_cut: bool,
    /// A handler with SA_RESTART has run since the last look.
    restarts: bool,
    /// What handlers had done when the call began.
    handlers: signals::Seen,
}

impl Patience {
    /// `timeout`: SO_RCVTIMEO or SO_SNDTIMEO in nanoseconds; 0: for ever. Time runs from the first wait on.
    pub(crate) fn new(timeout: u64) -> Self {
        Patience {
            timeout,
            deadline: None,
            moved: false,
            is_cut: false,
            restarts: false,
            handlers: signals::Seen::now(),
        }
    }

    /// Before the first wait.
    pub(crate) fn set_timeout(&mut self, timeout: u64) {
        self.timeout = timeout;
    }

    /// So many bytes have been moved: a signal then ends the call with them.
    pub(crate) fn moved(&mut self, bytes: usize) -> &mut Self {
        self.moved = bytes != 0;
        self
    }

    /// When it ends.
    pub(crate) fn deadline(&mut self) -> Option<Instant> {
        if self.timeout != 0 && self.deadline.is_none() {
            self.deadline = Instant::now().checked_add(Duration::from_nanos(self.timeout));
        }
        self.deadline
    }

    /// Waits until the call is worth another try.
    ///
    /// # Errors
    /// `EAGAIN`: the time is over. `EINTR`: a signal handler ran, and the call is not restarted (signal(7)). [`CANCELLED`].
    pub(crate) fn wait(&mut self, channel: &Channel<'static>, interest: Interest) -> Result<(), Errno> {
        let mut how = Wait { deadline: self.deadline(), ..Wait::default() };
        loop {
            if self.is_cut || self.handlers.has_ended() {
                // One that came before the sleep does not interrupt that.
                return Err(Errno::INTR);
            }
            how.slice = slice::of(slice::UNTOLD);
            match channel.wait(interest, how) {
                // In slices: see below.
                WaitEnd::Ready if self.is_early(channel, interest) => how.ends = None,
                WaitEnd::Ready => return Ok(()),
                // What has come by then is enough.
                WaitEnd::TimedOut if self.has_few(channel, interest) => return Ok(()),
                WaitEnd::TimedOut => return Err(Errno::AGAIN),
                // The kernel has taken them before it sleeps, and a signal is the end of the call then.
                WaitEnd::Interrupted if self.has_few(channel, interest) => {
                    self.is_cut = true;
                    return Ok(());
                }
                WaitEnd::Interrupted => self.interrupted()?,
                WaitEnd::Slice => {
                    if let Some(attachment) = process::current() {
                        attachment.check();
                    }
                    if how.slice == slice::CANCEL {
                        if is_cancelled() {
                            return Err(CANCELLED);
                        }
                        continue;
                    }
                    // Where a signal ends the call, handlers with SA_RESTART or not, futex_waitv(2) would not do, but poll(2).
                    // With SO_RCVLOWAT it goes on in slices: a peer that only asks whether there is room tells nobody that it has none.
                    if channel.rcvlowat() > 1 && interest == Interest::Read {
                        how.ends = None;
                    } else if self.timeout == 0 && !self.moved {
                        how.ends = process::current().map(Attachment::ends);
                    } else if !matches!(interest, Interest::More(_))
                        && let Some(slept) = poll::sleep_on_channel(channel, interest, how.deadline)
                    {
                        match slept {
                            Err(errno) => return self.interrupted_by(errno),
                            Ok(()) => return Ok(()),
                        }
                    }
                }
            }
        }
    }

    /// Woken by fewer bytes than SO_RCVLOWAT, which whoever sends does not know: they stay where they are until there are enough
    /// (tcp_data_ready() of the kernel wakes nobody before).
    fn is_early(&self, channel: &Channel<'static>, interest: Interest) -> bool {
        !self.moved && interest == Interest::Read && channel.rcvlowat() > 1 && !channel.is_ready(interest)
    }

    /// Bytes are there, fewer than SO_RCVLOWAT.
    fn has_few(&self, channel: &Channel<'static>, interest: Interest) -> bool {
        self.is_early(channel, interest) && super::to_mark(channel) != 0
    }

    /// Waits for more than `seen` unread bytes (MSG_PEEK with MSG_WAITALL, which leaves the bytes where they are).
    ///
    /// # Errors
    /// As [`Patience::wait`]; `EAGAIN` also where no more will come.
    pub(crate) fn wait_for_more(&mut self, channel: &Channel<'static>, seen: usize) -> Result<(), Errno> {
        if channel.queued_in() <= seen && at_end(channel) {
            return Err(Errno::AGAIN);
        }
        self.wait(channel, Interest::More(seen))
    }

    /// Whether the call has begun again (ERESTARTSYS of the kernel, which may have done so by itself): it reads O_NONBLOCK anew then,
    /// and at no other time, whoever sets it while the call sleeps.
    pub(crate) fn begins_again(&mut self) -> bool {
        core::mem::take(&mut self.restarts) || self.handlers.has_any()
    }

    /// A sleep in the kernel ended with this.
    pub(crate) fn interrupted_by(&mut self, errno: Errno) -> Result<(), Errno> {
        if errno == Errno::INTR { self.interrupted() } else { Err(errno) }
    }

    /// A signal handler ran in the middle.
    pub(crate) fn interrupted(&mut self) -> Result<(), Errno> {
        // With a timeout never restarted (sock_intr_errno() of the kernel).
        if self.timeout == 0 && !self.moved && self.handlers.restarted() {
            self.restarts = true;
            Ok(())
        } else {
            Err(Errno::INTR)
        }
    }
}

/// Holds the socket behind `fd`, if it is still `socket`.
pub(crate) fn hold(fd: Fd, socket: &'static Socket) -> Option<SocketRef> {
    table::socket(fd).filter(|held| core::ptr::eq(held.unheld(), socket))
}

/// What a call answers that has moved `bytes` when `errno` came.
pub(crate) fn part(bytes: usize, errno: Errno) -> Result<usize, Errno> {
    if bytes == 0 { Err(errno) } else { Ok(bytes) }
}

/// An error met after some bytes were moved is told by the next call.
pub(crate) fn keep_error(channel: &Channel<'static>, errno: Errno) {
    if !matches!(errno, Errno::AGAIN | Errno::PIPE | Errno::BADF | Errno::INTR) {
        channel.set_error(errno);
    }
}

/// Gives one reference back. SO_LINGER is the open file's: what any of its processes has set counts.
pub(crate) fn give_back(channel: &Channel<'static>) {
    // EINTR: a signal handler closes what its own thread is in the middle of. The side stays open until the daemon sees
    // that nobody holds it.
    let _ = channel.close_as_set();
}

/// The same for a connection that the program never gets: its peer is reset.
pub(crate) fn throw_away(channel: &Channel<'static>) {
    // As above.
    let _ = channel.close(true);
}

/// The last hold of this process is gone.
pub(crate) fn let_go(socket: &'static Socket) {
    if let Some(channel) = socket.channel() {
        // One reference for each descriptor was given back as it closed; what is left is the last one's.
        give_back(&channel);
    }
}

/// The daemon is gone, and with it what would tell of the peer's death.
pub(crate) fn lost(socket: &'static Socket) {
    if let Some(channel) = socket.channel() {
        channel.reset_both(Errno::CONNRESET);
    }
}

/// No more bytes will come.
pub(crate) fn at_end(channel: &Channel<'static>) -> bool {
    channel.readiness().intersects(fs_shm::Readiness::RDHUP | fs_shm::Readiness::ERR)
}
