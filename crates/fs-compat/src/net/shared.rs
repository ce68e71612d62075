//! State that a handle shares with its connection's task on the core: a ring of bytes per
//! direction, and flags.

use super::doorbell::Call;
use atomic_waker::AtomicWaker;
use fs_core::TcpOptions;
use fs_rt::Carrier;
use rtrb::{Consumer, Producer, RingBuffer};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::sync::Notify;
use tokio::task::coop::poll_proceed;

/// Bytes per direction. One wake-up serves all bytes in the ring, so a smaller ring needs more of
/// them. Larger rings fall out of the cache (L2 has 256 KiB to 2 MiB) before they are read.
pub(super) const RING: usize = 64 << 10;

/// Set by the task: no more bytes arrive.
pub(super) const IN_OVER: u8 = 1;
/// Set by the task: no more bytes are sent.
pub(super) const OUT_OVER: u8 = 2;
/// Set by the handle: send FIN after the bytes in the ring.
pub(super) const SHUT: u8 = 4;
/// Set by the task: FIN is queued.
pub(super) const FIN: u8 = 8;
/// Set by the handle: it was dropped.
pub(super) const GONE: u8 = 16;
/// Set by the handle: options have changed.
pub(super) const OPTIONS: u8 = 32;
/// Set by the handle: TCP_QUICKACK was set to [`SharedStream::quickack`].
pub(super) const QUICKACK: u8 = 64;

/// Set by the task: the peer's FIN ended the received bytes, so no error does.
const COMPLETE: u8 = 128;

/// Stored instead of an errno: the runtime ended.
const ENDED: i32 = -1;

/// Waiters on the handle's side: the last task that polled, and any number of `async fn`s.
#[derive(Default)]
pub(super) struct Waiting {
    task: AtomicWaker,
    others: Notify,
    /// The number of `others`. Avoids the lock that `Notify` takes.
    count: AtomicUsize,
}

/// One waiter of [`Waiting::others`].
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Waiting {
    pub(super) fn wake(&self) {
        self.task.wake();
        // Pairs with the fence in `until`: either this sees the waiter, or the waiter sees what was
        // stored before this.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) > 0 {
            self.others.notify_waiters();
        }
    }

    /// For a poll function. Calls `look` again after the waker is registered.
    pub(super) fn poll<R>(&self, cx: &mut Context<'_>, mut look: impl FnMut() -> Option<R>) -> Poll<R> {
        let answer = ready!(within_budget(cx, |cx| {
            look().or_else(|| {
                self.task.register(cx.waker());
                look()
            })
        }));
        answer.map_or(Poll::Pending, Poll::Ready)
    }

    /// Waits until `look` returns a value. Several tasks may wait at the same time.
    pub(super) async fn until<R>(&self, mut look: impl FnMut() -> Option<R>) -> R {
        if let Some(answer) = poll_fn(|cx| within_budget(cx, |_| look())).await {
            return answer;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let _counted = Counted(&self.count);
        loop {
            let mut woken = pin!(self.others.notified());
            woken.as_mut().enable();
            fence(Ordering::SeqCst);
            if let Some(answer) = look() {
                return answer;
            }
            woken.await;
        }
    }
}

/// Calls `look`. A value that it returns uses up a part of the task's budget, as an operation of
/// tokio's sockets does. A task without budget yields first, so that timers and other tasks run.
fn within_budget<R>(cx: &mut Context<'_>, look: impl FnOnce(&Context<'_>) -> Option<R>) -> Poll<Option<R>> {
    let budget = ready!(poll_proceed(cx));
    let answer = look(cx);
    if answer.is_some() {
        budget.made_progress();
    }
    Poll::Ready(answer)
}

/// The state of a connection that its handle and its task share.
pub(super) struct SharedStream {
    pub(super) call: Arc<Call>,
    flags: AtomicU8,
    /// The errno that ended the connection. `take_error` clears it.
    error: AtomicI32,
    /// The task waits for space in the ring of received bytes.
    pub(super) full: AtomicBool,
    pub(super) options: Mutex<TcpOptions>,
    /// The last value that was set.
    pub(super) quickack: AtomicBool,
    pub(super) readers: Waiting,
    pub(super) writers: Waiting,
    /// The handle's ends of the rings. The core takes these locks only at its end.
    incoming: Mutex<Consumer<u8>>,
    outgoing: Mutex<Producer<u8>>,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) carrier: Carrier,
}

/// The task's ends of the rings.
pub(super) struct TaskEnds {
    pub(super) incoming: Producer<u8>,
    pub(super) outgoing: Consumer<u8>,
}

/// Ignores poisoning: a holder that panicked has left consistent values.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn runtime_ended() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the fastsock runtime has ended, and its sockets are closed")
}

impl SharedStream {
    pub(super) fn new(
        call: Arc<Call>,
        local: SocketAddr,
        peer: SocketAddr,
        carrier: Carrier,
        options: TcpOptions,
    ) -> (Arc<Self>, TaskEnds) {
        let (to_handle, incoming) = RingBuffer::new(RING);
        let (outgoing, from_handle) = RingBuffer::new(RING);
        let shared = Self {
            call,
            flags: AtomicU8::new(0),
            error: AtomicI32::new(0),
            full: AtomicBool::new(false),
            options: Mutex::new(options),
            quickack: AtomicBool::new(true),
            readers: Waiting::default(),
            writers: Waiting::default(),
            incoming: Mutex::new(incoming),
            outgoing: Mutex::new(outgoing),
            local,
            peer,
            carrier,
        };
        (Arc::new(shared), TaskEnds { incoming: to_handle, outgoing: from_handle })
    }

    pub(super) fn has(&self, flags: u8) -> bool {
        self.flags.load(Ordering::Acquire) & flags != 0
    }

    // ---- the task

    /// Returns the flags and clears those for options.
    pub(super) fn flags(&self) -> u8 {
        let flags = self.flags.load(Ordering::Acquire);
        if flags & (OPTIONS | QUICKACK) != 0 {
            // A set flag implies that its new value is visible, so clear the flags before the
            // values are read.
            return self.flags.fetch_and(!(OPTIONS | QUICKACK), Ordering::AcqRel);
        }
        flags
    }

    /// Call after bytes have arrived, or the end of the stream.
    pub(super) fn wake_readers(&self) {
        self.readers.wake();
    }

    /// Call after space was freed, or the connection cannot send any more.
    pub(super) fn wake_writers(&self) {
        self.writers.wake();
    }

    pub(super) fn say(&self, flags: u8) {
        self.flags.fetch_or(flags, Ordering::AcqRel);
        if flags & IN_OVER != 0 {
            self.wake_readers();
        }
        if flags & (OUT_OVER | FIN) != 0 {
            self.wake_writers();
        }
    }

    /// Call when the last byte has been received. As by SOCK_DONE in tcp_recvmsg, readers then see the end
    /// of the stream before an error that writing has found since.
    pub(super) fn end_of_stream(&self) {
        let is_complete = match self.error.load(Ordering::Acquire) {
            // A reset that came after the FIN.
            0 | libc::EPIPE => COMPLETE,
            // A write has taken the error of a connection that a reset cut off.
            _ => 0,
        };
        self.say(IN_OVER | is_complete);
    }

    /// Stores the error. The first one is the one that is reported.
    pub(super) fn fail(&self, error: &io::Error) {
        let code = error.raw_os_error().unwrap_or(libc::EIO);
        let _ = self.error.compare_exchange(0, code, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Marks the core as ended. When this returns, no write is in progress, and later ones fail.
    pub(super) fn end(&self) {
        let _ = self.error.compare_exchange(0, ENDED, Ordering::AcqRel, Ordering::Relaxed);
        self.say(IN_OVER | OUT_OVER);
        drop(lock(&self.outgoing));
    }

    // ---- the handle

    /// Returns the error that ended the connection, once. The end of the runtime is returned each
    /// time.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        match self.error.load(Ordering::Acquire) {
            0 => None,
            ENDED => Some(runtime_ended()),
            _ => match self.error.swap(0, Ordering::AcqRel) {
                0 => None,
                code => Some(io::Error::from_raw_os_error(code)),
            },
        }
    }

    /// Fails if the end of the runtime has ended the connection.
    pub(super) fn check_runs(&self) -> io::Result<()> {
        if self.error.load(Ordering::Acquire) == ENDED { Err(runtime_ended()) } else { Ok(()) }
    }

    /// Sets flags and calls the task.
    pub(super) fn ask(&self, flags: u8) {
        self.flags.fetch_or(flags, Ordering::AcqRel);
        self.call.call();
        // Writes fail from now on, also while the ring is full.
        if flags & SHUT != 0 {
            self.wake_writers();
        }
    }

    /// Reads received bytes: `take` returns how many of them it used. Returns `None` if there are
    /// none yet.
    pub(super) fn read<R>(&self, take: impl FnOnce(&[u8], &[u8]) -> (usize, R)) -> Option<io::Result<R>> {
        let mut ring = lock(&self.incoming);
        // Checked before the ring, so that the ring then contains all bytes that arrived before the
        // end.
        let over = self.has(IN_OVER);
        let available = ring.slots();
        // An error is not possible: only this thread takes bytes out.
        let chunk = ring.read_chunk(available).ok()?;
        let (first, second) = chunk.as_slices();
        if first.is_empty() && !over {
            return None;
        }
        if first.is_empty()
            && !self.has(COMPLETE)
            && let Some(error) = self.take_error()
        {
            return Some(Err(error));
        }
        let (n, answer) = take(first, second);
        chunk.commit(n);
        drop(ring);
        // Pairs with the fence in `Task::take_in`: either this sees that the ring was full, or the
        // task sees that it is not.
        fence(Ordering::SeqCst);
        if n > 0 && self.full.load(Ordering::Acquire) && self.full.swap(false, Ordering::AcqRel) {
            self.call.call();
        }
        Some(Ok(answer))
    }

    pub(super) fn is_readable(&self) -> bool {
        self.has(IN_OVER) || lock(&self.incoming).slots() > 0
    }

    /// Returns true if the task has received all bytes up to the end. They may be unread.
    pub(super) fn has_read_end(&self) -> bool {
        self.has(IN_OVER)
    }

    /// Returns true if the connection is over: as on tokio's socket, not by the end of this direction alone.
    pub(super) fn has_write_end(&self) -> bool {
        self.has(OUT_OVER) || self.has(SHUT) && self.has(IN_OVER)
    }

    pub(super) fn is_writable(&self) -> bool {
        self.has(OUT_OVER | SHUT) || lock(&self.outgoing).slots() > 0
    }

    /// Writes as much of `bufs` as fits. Returns `None` if nothing fits.
    pub(super) fn write<'a>(&self, bufs: impl Iterator<Item = &'a [u8]>) -> Option<io::Result<usize>> {
        let mut ring = lock(&self.outgoing);
        if self.has(SHUT | OUT_OVER) {
            let error = if self.has(SHUT) { None } else { self.take_error() };
            return Some(Err(error.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EPIPE))));
        }
        let mut total = 0;
        for buf in bufs.filter(|buf| !buf.is_empty()) {
            let n = ring.push_partial_slice(buf).0.len();
            total += n;
            if n < buf.len() {
                if total == 0 {
                    return None;
                }
                break;
            }
        }
        drop(ring);
        if total > 0 {
            self.call.call();
        }
        Some(Ok(total))
    }
}

#[cfg(test)]
mod tests {
    use super::super::task;
    use super::*;
    use crate::local;
    use fs_rt::{LinkChoice, Runtime};
    use std::sync::mpsc;
    use tokio::io::AsyncReadExt;

    /// Bytes of a write that has found the connection open must not be lost behind a FIN.
    #[test]
    fn write_while_the_runtime_ends_is_sent() {
        let runtime = Runtime::builder().cores([0]).pin(false).link(LinkChoice::Kernel).build().unwrap();
        let sent = runtime.run(|_| async {
            let listener = local::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let (shared, task) = task::serve(stream).unwrap();
            let (locked, is_locked) = mpsc::channel();
            let writer = std::thread::spawn(move || {
                let mut ring = lock(&shared.outgoing);
                locked.send(()).unwrap();
                while !shared.has(OUT_OVER) {
                    std::thread::yield_now();
                }
                let rest = ring.push_partial_slice(b"late").1;
                assert!(rest.is_empty());
            });
            is_locked.recv().unwrap();
            drop(task);
            writer.join().unwrap();
            let mut bytes = Vec::new();
            client.read_to_end(&mut bytes).await.map(|_| bytes).map_err(|error| error.kind())
        });
        assert_eq!(sent.unwrap(), [Ok(b"late".to_vec())]);
    }
}
