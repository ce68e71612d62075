//! A kernel socket in memory: two queues of bytes.

#[cfg(loom)]
use loom::{sync::Condvar, sync::Mutex, thread};
#[cfg(not(loom))]
use std::{sync::Condvar, sync::Mutex, thread};

use std::collections::VecDeque;
use std::sync::Arc;

use crate::kernel::{Errno, Events, Kernel, Machine, RecvMode, TcpInfo};

struct Queue {
    bytes: VecDeque<u8>,
    arrived: u64,
    is_ended: bool,
    /// Receives that have returned the end.
    ends: u32,
    /// The next receive fails.
    error: Option<Errno>,
    /// Bytes that send(2) has accepted and that have not arrived: the network stack processes them,
    /// or the window is full.
    late: VecDeque<u8>,
    is_late: bool,
    /// send(2) does not return.
    is_held: bool,
    /// The next send fails.
    refusal: Option<Errno>,
    /// Bytes have arrived since the last report of an edge.
    has_edge: bool,
}

impl Queue {
    fn arrive(&mut self, bytes: impl IntoIterator<Item = u8>) {
        let before = self.bytes.len();
        self.bytes.extend(bytes);
        let n = self.bytes.len() - before;
        self.arrived += n as u64;
        self.has_edge |= n > 0;
    }
}

/// One direction in the kernel.
pub(super) struct Pipe {
    queue: Mutex<Queue>,
    readable: Condvar,
    /// The clock of the end that reads.
    pub(super) now_ns: std::sync::atomic::AtomicU64,
    /// SO_RCVTIMEO of that end, or 0.
    pub(super) limit_ns: std::sync::atomic::AtomicU64,
    /// A signal handler ends the next wait of that end.
    pub(super) has_signal: std::sync::atomic::AtomicBool,
    /// How often that end has asked for the socket's events.
    pub(super) polls: std::sync::atomic::AtomicU32,
    /// Called when that end asks for the number of unread bytes.
    #[cfg(not(loom))]
    pub(super) on_unread: std::sync::OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Pipe {
    pub(super) fn new() -> Arc<Self> {
        let queue = Queue {
            bytes: VecDeque::new(),
            arrived: 0,
            is_ended: false,
            ends: 0,
            error: None,
            late: VecDeque::new(),
            is_late: false,
            is_held: false,
            refusal: None,
            has_edge: false,
        };
        Arc::new(Pipe {
            queue: Mutex::new(queue),
            readable: Condvar::new(),
            now_ns: std::sync::atomic::AtomicU64::new(0),
            limit_ns: std::sync::atomic::AtomicU64::new(0),
            has_signal: std::sync::atomic::AtomicBool::new(false),
            polls: std::sync::atomic::AtomicU32::new(0),
            #[cfg(not(loom))]
            on_unread: std::sync::OnceLock::new(),
        })
    }

    pub(super) fn end(&self) {
        self.queue.lock().unwrap().is_ended = true;
        self.readable.notify_all();
    }

    #[cfg(loom)]
    pub(super) fn wait_readable(&self) -> bool {
        let mut queue = self.queue.lock().unwrap();
        while queue.bytes.is_empty() && !queue.is_ended {
            queue = self.readable.wait(queue).unwrap();
        }
        true
    }

    pub(super) fn is_readable(&self) -> bool {
        let queue = self.queue.lock().unwrap();
        !queue.bytes.is_empty() || queue.is_ended
    }

    #[cfg(not(loom))]
    pub(super) fn fail(&self, error: Errno) {
        self.queue.lock().unwrap().error = Some(error);
    }

    /// Makes the next send fail.
    #[cfg(not(loom))]
    pub(super) fn refuse(&self, error: Errno) {
        self.queue.lock().unwrap().refusal = Some(error);
    }

    /// Makes sends wait in send(2), after their bytes were accepted, until this is taken back.
    #[cfg(not(loom))]
    pub(super) fn set_held(&self, is_held: bool) {
        self.queue.lock().unwrap().is_held = is_held;
        self.readable.notify_all();
    }

    /// A read or a write that does not go through the library.
    #[cfg(not(loom))]
    pub(super) fn steal(&self) -> Option<u8> {
        self.queue.lock().unwrap().bytes.pop_front()
    }

    #[cfg(not(loom))]
    pub(super) fn inject(&self, byte: u8) {
        self.queue.lock().unwrap().arrive([byte]);
    }

    /// Delays bytes that are sent from here on ([`Pipe::deliver`]).
    #[cfg(not(loom))]
    pub(super) fn set_late(&self, is_late: bool) {
        self.queue.lock().unwrap().is_late = is_late;
    }

    /// At most `n` bytes that were late arrive.
    #[cfg(not(loom))]
    pub(super) fn deliver(&self, n: usize) {
        let mut queue = self.queue.lock().unwrap();
        let n = n.min(queue.late.len());
        let bytes: Vec<u8> = queue.late.drain(..n).collect();
        queue.arrive(bytes);
    }

    /// Takes the edge, if bytes have arrived and are still there.
    #[cfg(not(loom))]
    pub(super) fn take_edge(&self) -> bool {
        let mut queue = self.queue.lock().unwrap();
        std::mem::take(&mut queue.has_edge) && !queue.bytes.is_empty()
    }
}

/// One end's socket. `thread` is the id of the thread that uses it.
pub(super) struct Fake {
    pub(super) outgoing: Arc<Pipe>,
    pub(super) incoming: Arc<Pipe>,
    pub(super) thread: u32,
}

impl std::fmt::Debug for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fake")
    }
}

impl Kernel for Fake {
    fn send(&self, bytes: &[u8], _dont_wait: bool) -> Result<usize, Errno> {
        let mut queue = self.outgoing.queue.lock().unwrap();
        if let Some(error) = queue.refusal.take() {
            return Err(error);
        }
        // Late bytes precede new ones.
        if queue.is_late || !queue.late.is_empty() {
            queue.late.extend(bytes);
        } else {
            queue.arrive(bytes.iter().copied());
        }
        while queue.is_held {
            queue = self.outgoing.readable.wait(queue).unwrap();
        }
        drop(queue);
        self.outgoing.readable.notify_all();
        Ok(bytes.len())
    }

    fn recv(&self, into: &mut [u8], mode: RecvMode) -> Result<usize, Errno> {
        let mut queue = self.incoming.queue.lock().unwrap();
        if let Some(error) = queue.error.take() {
            return Err(error);
        }
        while queue.bytes.is_empty() {
            if queue.is_ended {
                queue.ends += 1;
                assert!(queue.ends < 1000, "one call receives again and again");
                return Ok(0);
            }
            if mode.dont_wait {
                return Err(Errno::AGAIN);
            }
            queue = self.incoming.readable.wait(queue).unwrap();
        }
        let n = into.len().min(queue.bytes.len());
        for (i, byte) in into[..n].iter_mut().enumerate() {
            *byte = if mode.peek { queue.bytes[i] } else { queue.bytes.pop_front().unwrap() };
        }
        Ok(n)
    }

    fn wait_for_more(&self, _start_ns: u64) -> Result<(), Errno> {
        let mut queue = self.incoming.queue.lock().unwrap();
        while queue.bytes.is_empty() && !queue.is_ended && queue.error.is_none() {
            queue = self.incoming.readable.wait(queue).unwrap();
        }
        Ok(())
    }

    fn unread(&self) -> Result<u64, Errno> {
        #[cfg(not(loom))]
        if let Some(call) = self.incoming.on_unread.get() {
            call();
        }
        Ok(self.incoming.queue.lock().unwrap().bytes.len() as u64)
    }

    fn descriptor(&self) -> i32 {
        0
    }

    fn tcp_info(&self) -> Result<TcpInfo, Errno> {
        let queue = self.incoming.queue.lock().unwrap();
        let (state, fin) = if queue.is_ended { (8, 1) } else { (1, 0) };
        Ok(TcpInfo { bytes_received: queue.arrived + fin, bytes_sent: 0, bytes_not_sent: 0, state })
    }

    fn events(&self) -> Events {
        self.incoming.polls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Events { has_room: true, peer_closed: self.incoming.queue.lock().unwrap().is_ended, ..Events::default() }
    }

    fn receive_limit_ns(&self) -> Result<Option<u64>, Errno> {
        let limit = self.incoming.limit_ns.load(std::sync::atomic::Ordering::Relaxed);
        Ok((limit != 0).then_some(limit))
    }

    fn wait_readable(&self, ms: u32) -> Result<(), Errno> {
        let now = self.incoming.now_ns.fetch_add(u64::from(ms) * 1_000_000, std::sync::atomic::Ordering::Relaxed);
        let limit = self.incoming.limit_ns.load(std::sync::atomic::Ordering::Relaxed);
        assert!(limit == 0 || now <= limit, "one call waits on after its time-out");
        thread::yield_now();
        let has_signal = self.incoming.has_signal.swap(false, std::sync::atomic::Ordering::Relaxed);
        if has_signal { Err(Errno::INTR) } else { Ok(()) }
    }
}

impl Machine for Fake {
    fn now_ns(&self) -> u64 {
        self.incoming.now_ns.load(std::sync::atomic::Ordering::Relaxed)
    }

    // Time passes, or a wait would not end.
    fn pause(&self) {
        self.incoming.now_ns.fetch_add(100, std::sync::atomic::Ordering::Relaxed);
        thread::yield_now();
    }

    fn yield_now(&self) {
        self.pause();
    }

    fn thread(&self) -> u32 {
        self.thread
    }

    fn is_gone(&self, _thread: u32) -> bool {
        false
    }
}
