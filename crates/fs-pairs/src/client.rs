//! The half in a preloaded process.
//!
//! No thread, no allocation, no wait, and no function of the C library: each call is a few system
//! calls, or none. Without a service, [`Client::offer`] only tries to connect to one, once a
//! second.
//!
//! The descriptor of the connection is one of the program's. It has a high number, is closed by
//! exec(2), and is checked before each use: a program that closes all of its descriptors ends the
//! connection and nothing else.

#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use fs_carrier::exact::Carried;
use fs_carrier::region::{End, Region};
use fs_carrier::sys::now_ns;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Resource, geteuid, getpid, getrlimit};

use crate::message::{Answer, LEN, Number, Reason, Request};
use crate::sys::{Quiet, Weak, credentials, receive};

/// The time between two attempts to find a service. Longer: connections wait longer for a service
/// that has come back. Shorter: a failed connect(2), about 2 µs, more often.
const ATTEMPT_NS: u64 = 1_000_000_000;
/// Offers that may be unanswered. A service that does not run (SIGSTOP) has their duplicates, so
/// the kernel does not end these connections when the program closes them: about 280 at most, which
/// fill its queue. More: more memory. Fewer: a program that opens many at once has fewer promoted,
/// as its offers miss those of the other ends: with 64, one in 13 of 1,000 connections of
/// redis-benchmark was promoted after 1 s.
const UNANSWERED: u32 = 1024;
/// Numbers of [`Client::forget`] that were not sent to the service yet. Beyond them a number is lost:
/// the service keeps its row, and counts its ends, until the process ends. It takes as many closes by
/// other threads while the lock's holder is off its processor, or a service that does not read
/// (SIGSTOP). More: more memory, and a longer search at each close. Fewer: more rows are left.
const UNTOLD: usize = 64;
/// Processes with a lower descriptor limit get no connection to the service, because it would take
/// a number that they may need.
const FEWEST: u64 = 64;
/// The connection's descriptor number is at least three quarters of the limit, and at most this: a
/// larger number makes the kernel's table of the process larger.
const HIGHEST: u64 = 960;
/// Buffer for /proc/self/status: about 1.5 KiB and a list of groups, whose end is not needed.
const STATUS: usize = 4096;

/// The service's answer to an offer.
#[derive(Debug)]
pub enum Offered {
    /// The process of the other end gets the same region. [`fs_carrier::pair::Pair::promote`] is
    /// next.
    Matched {
        /// Which offer.
        number: Number,
        /// The memory of both ends.
        region: Region,
        /// Which end this is.
        end: End,
    },
    /// The kernel alone carries the connection.
    Refused {
        /// Which offer.
        number: Number,
        /// Why.
        reason: Reason,
    },
    /// The connection to the service is lost. Unanswered offers have no answer. Promoted pairs go
    /// on.
    Lost,
}

/// A process's connection to the match service.
///
/// All calls may be made by several threads at once, and by signal handlers. After fork(2) the
/// child makes a connection of its own. A child of vfork(2), which uses its parent's memory, must
/// not call.
#[derive(Debug)]
pub struct Client {
    path: SocketAddrUnix,
    /// The process whose thread holds the lock, or 0. After fork(2) it may be the parent, if a
    /// thread of the parent held the lock.
    lock: AtomicU32,
    /// The connection's descriptor, or -1. Protected by the lock.
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    /// The process that made the connection.
    owner: AtomicU32,
    attempted_ns: AtomicU64,
    last_number: AtomicU64,
    unanswered: AtomicU32,
    /// Numbers to forget, or 0 for a free entry. Any thread adds a number, and the holder of the
    /// lock sends it. So no thread waits for the lock, not even a signal handler that has
    /// interrupted its holder.
    untold: [AtomicU64; UNTOLD],
    /// Set after a number was added.
    has_untold: AtomicBool,
}

/// Proof that the lock is held.
struct Section<'a>(&'a Client);

impl Drop for Section<'_> {
    fn drop(&mut self) {
        let client = self.0;
        client.unlock();
        // SeqCst, as in `forget`: one thread adds a number and another one unlocks. At least one of
        // them sees the other's store.
        while client.has_untold.load(Ordering::SeqCst) && client.lock() {
            let is_told = self.tell();
            client.unlock();
            if !is_told {
                return;
            }
        }
    }
}

impl Client {
    /// Makes the client of the service at `path`, without a system call.
    ///
    /// # Errors
    /// The path is too long for a Unix socket.
    pub fn new(path: &Path) -> Result<Self, Errno> {
        Ok(Client {
            path: SocketAddrUnix::new(path.as_os_str().as_bytes())?,
            lock: AtomicU32::new(0),
            fd: AtomicI32::new(-1),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            owner: AtomicU32::new(0),
            attempted_ns: AtomicU64::new(0),
            last_number: AtomicU64::new(0),
            unanswered: AtomicU32::new(0),
            untold: [const { AtomicU64::new(0) }; UNTOLD],
            has_untold: AtomicBool::new(false),
        })
    }

    /// Offers a connected TCP socket that has carried `carried` bytes by this process's calls.
    ///
    /// Returns `None` if there is no service, if it has not answered enough earlier offers, or if
    /// another thread is in a call. The caller may try again after some more calls. Otherwise
    /// [`Client::answer`] returns the answer, and [`Client::forget`] must be called before the
    /// close(2) of the socket.
    pub fn offer(&self, socket: BorrowedFd<'_>, carried: Carried) -> Option<Number> {
        if self.unanswered.load(Ordering::Relaxed) >= UNANSWERED && self.owner.load(Ordering::Relaxed) == process() {
            return None;
        }
        let section = self.enter()?;
        let connection = section.connect()?;
        let number = Number(self.last_number.fetch_add(1, Ordering::Relaxed) + 1);
        if !section.send(connection, &Request::Offer { number, carried }, Some(socket)) {
            return None;
        }
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        Some(number)
    }

    /// Returns true if offers are unanswered. Costs one load.
    #[inline]
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) != 0
    }

    /// Returns the next answer. Any thread gets the answers of all threads' offers.
    pub fn answer(&self) -> Option<Offered> {
        let section = self.enter()?;
        let Some(connection) = section.connection() else {
            return self.is_waiting().then(|| section.lose());
        };
        let mut bytes = [0; LEN];
        let Some(socket) = connection.get() else { return Some(section.lose()) };
        let received = match receive(socket, &mut bytes, |fd| fd) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(_) => return Some(section.lose()),
        };
        let answer = bytes.get(..received.len).and_then(Answer::decode);
        let answered = match (answer, received.fd) {
            (Some(Answer::Matched { number, end, ring }), Some(file)) => match Region::map(file.owned(), ring) {
                Ok(region) => Offered::Matched { number, region, end },
                // No address space (RLIMIT_AS), or the file is no region.
                Err(_) => self.give_back(number),
            },
            // The process has no descriptor for the file.
            (Some(Answer::Matched { number, .. }), None) => self.give_back(number),
            (Some(Answer::Refused { number, reason }), None) => Offered::Refused { number, reason },
            _ => return Some(section.lose()),
        };
        let unanswered = self.unanswered.load(Ordering::Relaxed);
        self.unanswered.store(unanswered.saturating_sub(1), Ordering::Relaxed);
        Some(answered)
    }

    /// Handles a match whose region this process cannot take. Without the message, the service
    /// would keep the pair until the process ends.
    fn give_back(&self, number: Number) -> Offered {
        self.forget(number);
        Offered::Refused { number, reason: Reason::Failed }
    }

    /// Tells the service that the socket of this offer is about to be closed, or that its pair has
    /// ended. Must be called before the close(2), whether the offer is answered or not. If another
    /// thread is in a call, or the service's queue is full, a later call on this client sends the
    /// message.
    pub fn forget(&self, number: Number) {
        let is_added =
            |place: &AtomicU64| place.compare_exchange(0, number.0, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        let _lost_if_full = self.untold.iter().any(is_added);
        self.has_untold.store(true, Ordering::SeqCst);
        // Dropping the section sends the numbers.
        drop(self.enter());
    }

    /// Returns the number of the connection's descriptor, which the program must neither use nor see.
    #[must_use]
    pub fn descriptor(&self) -> Option<RawFd> {
        Some(self.fd.load(Ordering::Relaxed)).filter(|number| *number >= 0)
    }

    /// Must be called in a child of fork(2). Closes the inherited descriptor, so that the service
    /// notices the parent's exit.
    pub fn after_fork(&self) {
        // In a new pid namespace (CLONE_NEWPID), the child may have the number of its parent.
        self.owner.store(0, Ordering::Relaxed);
        self.lock.store(0, Ordering::SeqCst);
        // The parent sends its own numbers.
        for place in &self.untold {
            place.store(0, Ordering::Relaxed);
        }
        self.has_untold.store(false, Ordering::Relaxed);
        if let Some(section) = self.enter() {
            section.connection();
        }
    }

    /// Closes the connection to the service. Promoted pairs go on.
    pub fn disconnect(&self) {
        if let Some(section) = self.enter()
            && let Some(connection) = section.connection()
        {
            section.drop_connection(connection);
        }
    }

    fn enter(&self) -> Option<Section<'_>> {
        self.lock().then(|| Section(self))
    }

    /// Acquires the lock. Returns false if a thread of this process holds it.
    fn lock(&self) -> bool {
        let process = process();
        match self.lock.compare_exchange(0, process, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            // A thread of the parent held the lock at the fork(2).
            Err(other) if other != process => {
                self.lock.compare_exchange(other, process, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            }
            Err(_) => false,
        }
    }

    fn unlock(&self) {
        self.lock.swap(0, Ordering::SeqCst);
    }
}

fn process() -> u32 {
    getpid().as_raw_nonzero().get().cast_unsigned()
}

impl Section<'_> {
    /// Returns this process's connection. Closes an inherited one.
    fn connection(&self) -> Option<Weak> {
        let client = self.0;
        let number = client.fd.load(Ordering::Relaxed);
        if number < 0 {
            return None;
        }
        let (device, inode) = (client.device.load(Ordering::Relaxed), client.inode.load(Ordering::Relaxed));
        let connection = Weak::of_parts(number, device, inode);
        if client.owner.load(Ordering::Relaxed) == process() {
            return Some(connection);
        }
        self.drop_connection(connection);
        // The answers are the parent's.
        client.unanswered.store(0, Ordering::Relaxed);
        client.attempted_ns.store(0, Ordering::Relaxed);
        None
    }

    /// Sends the numbers to forget. A new service does not know them, so they are dropped without a
    /// connection. Returns false if the service's queue is full.
    fn tell(&self) -> bool {
        let client = self.0;
        client.has_untold.store(false, Ordering::SeqCst);
        for place in &client.untold {
            let number = place.load(Ordering::SeqCst);
            if number == 0 {
                continue;
            }
            if let Some(connection) = self.connection()
                && !self.send(connection, &Request::Forget(Number(number)), None)
                && self.connection().is_some()
            {
                client.has_untold.store(true, Ordering::SeqCst);
                return false;
            }
            place.store(0, Ordering::SeqCst);
        }
        true
    }

    fn drop_connection(&self, connection: Weak) {
        connection.close();
        self.0.fd.store(-1, Ordering::Relaxed);
    }

    /// Handles the loss of the connection: the offers that are unanswered will not be answered.
    fn lose(&self) -> Offered {
        if let Some(connection) = self.connection() {
            self.drop_connection(connection);
        }
        self.0.unanswered.store(0, Ordering::Relaxed);
        Offered::Lost
    }

    /// Returns the connection, or makes one, at most once a second, and not before the loss of an earlier one was told.
    fn connect(&self) -> Option<Weak> {
        if let Some(connection) = self.connection() {
            return Some(connection);
        }
        let client = self.0;
        if client.is_waiting() {
            return None;
        }
        let now = now_ns().max(1);
        let attempted = client.attempted_ns.load(Ordering::Relaxed);
        if attempted != 0 && now.wrapping_sub(attempted) < ATTEMPT_NS {
            return None;
        }
        client.attempted_ns.store(now, Ordering::Relaxed);
        if descriptors() < FEWEST {
            return None;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        let socket = Quiet::new(socket);
        rustix::net::connect(socket.owned(), &client.path).ok()?;
        if !is_trusted(socket.as_fd()) {
            return None;
        }
        let connection = Weak::new(high(socket)).ok()?;
        let (number, device, inode) = connection.parts();
        client.device.store(device, Ordering::Relaxed);
        client.inode.store(inode, Ordering::Relaxed);
        client.owner.store(process(), Ordering::Relaxed);
        client.unanswered.store(0, Ordering::Relaxed);
        client.fd.store(number, Ordering::Relaxed);
        Some(connection)
    }

    /// Sends a message without blocking. Returns false if it was not sent.
    fn send(&self, connection: Weak, request: &Request, socket: Option<BorrowedFd<'_>>) -> bool {
        let Some(to) = connection.get() else {
            self.drop_connection(connection);
            return false;
        };
        let bytes = request.encode();
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Option<[BorrowedFd<'_>; 1]> = socket.map(|socket| [socket]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::sendmsg(to, &[IoSlice::new(&bytes)], &mut control, flags) {
            Ok(_) => true,
            // The service is busy, the user has too many descriptors in flight, or the descriptor
            // is no socket.
            Err(Errno::AGAIN | Errno::INTR | Errno::TOOMANYREFS | Errno::BADF | Errno::NOBUFS | Errno::NOMEM) => false,
            Err(_) => {
                self.drop_connection(connection);
                false
            }
        }
    }
}

/// Returns the process's descriptor limit.
fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns true if the service belongs to root or to this process's user. Offers are duplicates of
/// the program's sockets, so no other service may get them. rustix's `socket_peercred` cannot be
/// used: it rejects process number 0, which a service in another pid namespace has.
fn is_trusted(service: BorrowedFd<'_>) -> bool {
    credentials(service).is_ok_and(|of| of.uid == 0 || of.uid == geteuid().as_raw())
}

/// Moves the descriptor to a high number, because programs expect the lowest numbers for their own
/// files.
fn high(socket: Quiet) -> Quiet {
    let limit = shared_table().map_or(descriptors(), |size| size.min(descriptors()));
    let least = (limit / 4).saturating_mul(3).min(HIGHEST);
    let Ok(least) = RawFd::try_from(least) else { return socket };
    match rustix::io::fcntl_dupfd_cloexec(socket.as_fd(), least) {
        Ok(moved) => Quiet::new(moved),
        Err(_) => socket,
    }
}

/// Returns the size of the kernel's descriptor table if several threads share it. To enlarge such a
/// table, the kernel waits until no CPU uses the old one (`synchronize_rcu()` in
/// `expand_fdtable()`, fs/file.c): 10 ms and more in the caller's send(2).
fn shared_table() -> Option<u64> {
    let file = rustix::fs::open(c"/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0; STATUS];
    let read = rustix::io::read(Quiet::new(file).as_fd(), &mut bytes).ok()?;
    let number = |name: &[u8]| -> Option<u64> {
        let value = bytes[..read].split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
        core::str::from_utf8(value).ok()?.trim().parse().ok()
    };
    if number(b"Threads:")? > 1 { number(b"FDSize:") } else { None }
}
