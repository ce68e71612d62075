//! Steps of an event loop with many connections at once: an echo server and its clients. The set is
//! edge-triggered, as tokio, nginx and Go use it, so a lost event is a connection that stops.

use super::super::names::address;
use super::super::{process, progress};
use super::load::PIECE;
use super::outcome::{Done, Wrong, again, errno, good};
use super::sockets::{close, new_socket};
use crate::values::*;
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
/// Data of the listener's events, and of the descriptor that ends all waits.
const LISTENER: u64 = u64::MAX;
const WAKER: u64 = u64::MAX - 1;

/// What an end of a connection does with its bytes.
enum Role {
    /// Sends back what it receives: the bytes that were not sent yet.
    Server(VecDeque<u8>),
    /// Sends `total` bytes of a pattern, at most `window` ahead of those that came back.
    Client { id: u32, total: u64, window: u64, sent: u64, received: u64 },
}

/// One end of a connection.
struct Connection {
    fd: i32,
    role: Role,
    /// No receive has found nothing since the last event.
    may_read: bool,
    may_write: bool,
    /// The peer has ended its stream.
    has_ended: bool,
    /// The registration.
    events: u32,
}

/// What is left to do for a connection.
#[derive(PartialEq, Eq)]
enum Next {
    /// An event has to come.
    Wait,
    /// More can be read at once.
    Again,
    Over,
}

/// An epoll set and the connections in it.
struct EventLoop {
    set: i32,
    how: i32,
    connections: Vec<Mutex<Option<Connection>>>,
    /// Connections that are to be accepted.
    left: Mutex<usize>,
    /// Connections that have not come to their end.
    open: AtomicUsize,
    is_over: AtomicBool,
    wrong: Mutex<Option<Wrong>>,
    waker: i32,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets TCP_CORK.
fn set_corked(fd: i32, is_corked: bool) -> Done<()> {
    let value = i32::from(is_corked);
    // SAFETY: an int, and its length.
    let set = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, (&raw const value).cast(), 4) };
    good("setsockopt", set)?;
    Ok(())
}

/// Returns the byte at this position of a client's stream.
fn byte(id: u32, at: u64) -> u8 {
    (id.wrapping_mul(37).wrapping_add(11) as u64 ^ at.wrapping_mul(7).wrapping_add(at >> 8)) as u8
}

impl EventLoop {
    fn new(how: i32, places: usize, connections: usize) -> Done<EventLoop> {
        // SAFETY: numbers.
        let set = good("epoll_create", unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: numbers.
        let waker = good("eventfd", unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let all = EventLoop {
            set,
            how,
            connections: (0..places).map(|_| Mutex::new(None)).collect(),
            left: Mutex::new(connections),
            open: AtomicUsize::new(connections),
            is_over: AtomicBool::new(connections == 0),
            wrong: Mutex::new(None),
            waker,
        };
        all.control(libc::EPOLL_CTL_ADD, waker, IN, WAKER)?;
        Ok(all)
    }

    fn control(&self, operation: i32, fd: i32, events: u32, data: u64) -> Done<()> {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: a valid event.
        good("epoll_ctl", unsafe { libc::epoll_ctl(self.set, operation, fd, &raw mut event) })?;
        Ok(())
    }

    fn has(&self, flag: i32) -> bool {
        self.how & flag != 0
    }

    /// Ends all waits, with an error or without.
    fn end(&self, wrong: Option<Wrong>) {
        if let Some(wrong) = wrong {
            lock(&self.wrong).get_or_insert(wrong);
        }
        self.is_over.store(true, SeqCst);
        // SAFETY: eight bytes.
        unsafe { libc::write(self.waker, (&raw const WAKER_COUNT).cast(), 8) };
    }

    /// Returns what a connection registers for.
    fn interest(&self, connection: &Connection) -> u32 {
        let mut events = IN;
        let is_writing = !connection.may_write || self.has(LOOP_OUT) && !self.has(LOOP_LEVEL);
        if is_writing {
            events |= OUT;
        }
        for (flag, event) in [(LOOP_HANG_UP, libc::EPOLLRDHUP), (LOOP_ONCE, libc::EPOLLONESHOT)] {
            if self.has(flag) {
                events |= event as u32;
            }
        }
        if self.has(LOOP_LEVEL) { events } else { events | libc::EPOLLET as u32 }
    }

    /// Puts a connection at a free place.
    fn begin(&self, mut connection: Connection) -> Done<()> {
        let free = self.connections.iter().position(|place| lock(place).is_none());
        let at = free.ok_or(Wrong("no_place", 0))?;
        let mut place = lock(&self.connections[at]);
        connection.events = self.interest(&connection);
        self.control(libc::EPOLL_CTL_ADD, connection.fd, connection.events, at as u64)?;
        *place = Some(connection);
        Ok(())
    }

    /// Handles the events of a connection. Returns true if it has to be called again without an event.
    fn handle(&self, at: usize, events: u32) -> Done<bool> {
        let mut place = lock(&self.connections[at]);
        // Reported to another thread before it ended the connection.
        let Some(connection) = place.as_mut() else { return Ok(false) };
        let ended = (libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP) as u32;
        connection.may_read |= events & (IN | ended) != 0;
        connection.may_write |= events & (OUT | ended) != 0;
        match self.drive(connection)? {
            Next::Over => {
                let connection = place.take();
                self.finish(connection.map_or(-1, |connection| connection.fd))?;
                return Ok(false);
            }
            Next::Again => return Ok(true),
            Next::Wait => {}
        }
        let interest = self.interest(connection);
        let is_missing = interest & !connection.events != 0 || self.has(LOOP_LEVEL) && interest != connection.events;
        if is_missing || self.has(LOOP_ONCE) {
            self.control(libc::EPOLL_CTL_MOD, connection.fd, interest, at as u64)?;
            connection.events = interest;
        }
        Ok(false)
    }

    fn finish(&self, fd: i32) -> Done<()> {
        if self.has(LOOP_DELETE) {
            self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)?;
        }
        close(fd)?;
        if self.open.fetch_sub(1, SeqCst) == 1 {
            self.end(None);
        }
        Ok(())
    }

    /// Sends and receives until both would block.
    fn drive(&self, connection: &mut Connection) -> Done<Next> {
        let piece = if self.has(LOOP_SMALL) { 77 } else { PIECE };
        let mut buffer = [0u8; PIECE];
        loop {
            let has_sent = self.send(connection, &mut buffer)?;
            if matches!(&connection.role, Role::Server(rest) if rest.is_empty()) && connection.has_ended
                || matches!(&connection.role, Role::Client { total, received, .. } if received == total)
            {
                return Ok(Next::Over);
            }
            // A server that cannot send does not read on.
            let is_full = matches!(&connection.role, Role::Server(rest) if !rest.is_empty());
            if !connection.may_read || is_full {
                if !has_sent {
                    return Ok(Next::Wait);
                }
                continue;
            }
            let room = &mut buffer[..piece];
            // SAFETY: the buffer and its length.
            let got =
                again("recv", || unsafe { libc::recv(connection.fd, room.as_mut_ptr().cast(), room.len(), 0) as i64 });
            match got {
                Ok(0) => connection.has_ended = true,
                Ok(got) => {
                    let got = got as usize;
                    progress::report();
                    connection.may_read = !(self.has(LOOP_SHORT) && got < room.len());
                    connection.role.take(&room[..got])?;
                }
                Err(wrong) if wrong.1 == libc::EAGAIN => connection.may_read = false,
                Err(wrong) => return Err(wrong),
            }
            match &connection.role {
                Role::Client { received, total, .. } if connection.has_ended && received < total => {
                    return Err(Wrong("too_few_bytes", 0));
                }
                // An end is read once.
                _ if connection.has_ended => connection.may_read = false,
                _ if self.has(LOOP_PART) && connection.may_read => return Ok(Next::Again),
                _ => {}
            }
        }
    }

    /// Sends what can be sent. Returns true if something was.
    fn send(&self, connection: &mut Connection, buffer: &mut [u8]) -> Done<bool> {
        let mut has_sent = false;
        while connection.may_write {
            let length = connection.role.next(buffer);
            if length == 0 {
                break;
            }
            let (mut length, mut flags) = (length, libc::MSG_NOSIGNAL);
            if self.has(LOOP_CORK) && !has_sent {
                set_corked(connection.fd, true)?;
                (length, flags) = (length.div_ceil(2), flags | libc::MSG_MORE);
            }
            // SAFETY: the buffer and its length.
            let sent =
                again("send", || unsafe { libc::send(connection.fd, buffer.as_ptr().cast(), length, flags) as i64 });
            match sent {
                Ok(sent) => {
                    connection.role.sent(sent as usize);
                    has_sent = true;
                }
                Err(wrong) if wrong.1 == libc::EAGAIN => connection.may_write = false,
                Err(wrong) => return Err(wrong),
            }
        }
        if self.has(LOOP_CORK) && has_sent {
            set_corked(connection.fd, false)?;
        }
        Ok(has_sent)
    }

    /// Waits for events and handles them, until all connections have ended. `handles`: other threads
    /// handle the events of connections.
    fn poll(&self, handles: Option<&Sender<(usize, u32)>>, accepts: &dyn Fn() -> Done<()>) -> Done<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        let most = if self.has(LOOP_FEW) { 1 } else { events.len() };
        let mut ready: VecDeque<usize> = VecDeque::new();
        while !self.is_over.load(SeqCst) {
            let time = match () {
                () if !ready.is_empty() || self.has(LOOP_SPIN) => 0,
                () if self.has(LOOP_TIMED) => 2,
                () => -1,
            };
            // SAFETY: room for this many events.
            let got = unsafe { libc::epoll_wait(self.set, events.as_mut_ptr(), most as i32, time) };
            if got < 0 && errno() != libc::EINTR {
                return Err(Wrong("epoll_wait", errno()));
            }
            let posted: Vec<usize> = ready.drain(..).collect();
            for event in &events[..got.max(0) as usize] {
                let (flags, data) = (event.events, event.u64);
                match (data, handles) {
                    (WAKER, _) => {}
                    (LISTENER, _) => accepts()?,
                    (at, Some(others)) => others.send((at as usize, flags)).map_err(|_| Wrong("thread", 0))?,
                    (at, None) if self.handle(at as usize, flags)? => ready.push_back(at as usize),
                    _ => {}
                }
            }
            for at in posted {
                if self.handle(at, 0)? {
                    ready.push_back(at);
                }
            }
        }
        Ok(())
    }

    /// Handles what another thread has polled.
    fn work(&self, events: &Receiver<(usize, u32)>) -> Done<()> {
        while let Ok((at, mut flags)) = events.recv() {
            while self.handle(at, flags)? {
                flags = 0;
            }
        }
        Ok(())
    }

    /// Runs the loop with its threads.
    fn run(self, accepts: impl Fn(&EventLoop) -> Done<()> + Sync) -> Done<()> {
        let (sender, receiver) = channel();
        let all = &self;
        let accepts = || accepts(all);
        let report = |result: Done<()>| {
            if let Err(wrong) = result {
                all.end(Some(wrong));
            }
        };
        std::thread::scope(|scope| {
            if self.has(LOOP_WORKER) {
                scope.spawn(move || report(all.work(&receiver)));
                report(self.poll(Some(&sender), &accepts));
            } else {
                if self.has(LOOP_TWO) {
                    scope.spawn(|| report(all.poll(None, &accepts)));
                }
                report(self.poll(None, &accepts));
            }
            drop(sender);
        });
        for place in &self.connections {
            if let Some(connection) = lock(place).take() {
                process::close(connection.fd);
            }
        }
        process::close(self.set);
        process::close(self.waker);
        match lock(&self.wrong).take() {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }
}

static WAKER_COUNT: u64 = 1;

impl Role {
    /// Takes received bytes.
    fn take(&mut self, bytes: &[u8]) -> Done<()> {
        match self {
            Role::Server(rest) => rest.extend(bytes),
            Role::Client { id, sent, received, .. } => {
                if *received + bytes.len() as u64 > *sent {
                    return Err(Wrong("too_many_bytes", 0));
                }
                for got in bytes {
                    if *got != byte(*id, *received) {
                        return Err(Wrong("other_bytes", 0));
                    }
                    *received += 1;
                }
            }
        }
        Ok(())
    }

    /// Writes what is to be sent next, and returns how much.
    fn next(&self, into: &mut [u8]) -> usize {
        match self {
            Role::Server(rest) => {
                let first = rest.as_slices().0;
                let length = first.len().min(into.len());
                into[..length].copy_from_slice(&first[..length]);
                length
            }
            Role::Client { id, total, window, sent, received } => {
                let most = (received + window).min(*total);
                let length = (most.saturating_sub(*sent) as usize).min(into.len());
                for (place, at) in into[..length].iter_mut().zip(*sent..) {
                    *place = byte(*id, at);
                }
                length
            }
        }
    }

    fn sent(&mut self, length: usize) {
        match self {
            Role::Server(rest) => drop(rest.drain(..length)),
            Role::Client { sent, .. } => *sent += length as u64,
        }
    }
}

fn result(of: Done<()>) -> String {
    of.map_or_else(|wrong| wrong.text(0), |()| "ok".into())
}

/// Accepts this many connections and sends back all that comes, until each has ended.
pub fn serve_loop(listener: i32, connections: i32, how: i32) -> String {
    let accepts = |all: &EventLoop| {
        // One quota for all threads.
        let mut left = lock(&all.left);
        while *left > 0 {
            // SAFETY: no address is requested.
            let got = again("accept", || unsafe {
                libc::accept4(listener, null_mut(), null_mut(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).into()
            });
            match got {
                Ok(fd) => {
                    *left -= 1;
                    progress::report();
                    let role = Role::Server(VecDeque::new());
                    all.begin(Connection { fd, role, may_read: false, may_write: true, has_ended: false, events: 0 })?;
                }
                Err(wrong) if wrong.1 == libc::EAGAIN => return Ok(()),
                Err(wrong) => return Err(wrong),
            }
        }
        // Another thread may have removed it already.
        let _ = all.control(libc::EPOLL_CTL_DEL, listener, 0, 0);
        Ok(())
    };
    let count = connections.clamp(0, 1000) as usize;
    result((|| {
        let all = EventLoop::new(how, count, count)?;
        // SAFETY: numbers.
        good("fcntl", unsafe { libc::fcntl(listener, libc::F_SETFL, libc::O_NONBLOCK) })?;
        all.control(libc::EPOLL_CTL_ADD, listener, IN, LISTENER)?;
        all.run(accepts)
    })())
}

/// Makes this many connections, all at once, sends this many messages of a length over each, and
/// wants them back. At most `ahead` messages are on their way.
pub fn dial_loop(
    [host, port]: [i32; 2],
    connections: i32,
    [messages, length, ahead]: [i32; 3],
    how: i32,
    step: usize,
) -> String {
    let mut room = address(host, port);
    let family = if matches!(host, 3..=5) { libc::AF_INET6 } else { libc::AF_INET };
    let count = connections.clamp(0, 1000) as usize;
    let mut dial = || -> Done<()> {
        let all = EventLoop::new(how, count, count)?;
        for number in 0..count {
            progress::report();
            let fd = new_socket(family, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)?;
            let on = 1i32;
            let (place, size) = ((&raw const on).cast(), size_of::<i32>() as u32);
            // SAFETY: a number and its size.
            good("setsockopt", unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, place, size) })?;
            let (name, length_of_name) = room.name();
            // SAFETY: an address and its length.
            let may_write = unsafe { libc::connect(fd, name.cast(), length_of_name) } == 0;
            if !may_write && errno() != libc::EINPROGRESS {
                return Err(Wrong("connect", errno()));
            }
            let id = (step as u32) << 12 | number as u32;
            // Connections of different lengths, so that some end while others begin.
            let messages = 1 + (messages.max(1) as u64 - 1) * (1 + u64::from(id) * 7 % 8) / 8;
            let (length, ahead) = (length.max(1) as u64, ahead.max(1) as u64);
            let role = Role::Client { id, total: messages * length, window: ahead * length, sent: 0, received: 0 };
            all.begin(Connection { fd, role, may_read: false, may_write, has_ended: false, events: 0 })?;
            if may_write {
                // No event comes for room that was there before the registration.
                all.handle(number, OUT)?;
            }
        }
        all.run(|_| Ok(()))
    };
    result(dial())
}
