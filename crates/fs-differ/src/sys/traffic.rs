//! Steps of many calls each, which signals may interrupt anywhere. Calls that EINTR has ended are
//! repeated, so that each step has one result on the kernel. Nothing is allocated while handlers
//! run ([`storm::Open`]).

use super::calls::{LAST, errno_name, put};
use super::names::{AddressBuffer, address};
use super::{process, storm};
use crate::awake::Watched;
use crate::values::{CHURN_DIAL, CHURN_DUP, CHURN_EPOLL, CHURN_FORK, CHURN_LISTEN, CHURN_NAMES, CHURN_OPEN};
use crate::values::{CHURN_OPTIONS, CHURN_POLL, CHURN_REFUSED, CHURN_SPARE, CHURN_SPAWN};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// A call with a wrong result, and its error; 0: its value was wrong.
struct Wrong(&'static str, i32);

type Done<T> = Result<T, Wrong>;

impl Wrong {
    fn text(&self, after: usize) -> String {
        match self.1 {
            0 => format!("{} after {after}", self.0),
            SPUN => format!("{}:spins after {after}", self.0),
            errno => format!("{}:{} after {after}", self.0, errno_name(errno)),
        }
    }
}

fn errno() -> i32 {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// In place of an error: the call has spun.
const SPUN: i32 = -1;
/// CPU time from which a call counts as spinning: mapping memory in an accept takes some.
const SPINS: Duration = Duration::from_millis(40);

/// Returns a call's value unless it is -1.
fn good(call: &'static str, value: impl Into<i64>) -> Done<i32> {
    let value = value.into();
    if value < 0 { Err(Wrong(call, errno())) } else { Ok(value as i32) }
}

/// Repeats a call that may block until no signal ends it.
fn again(call: &'static str, mut make: impl FnMut() -> i64) -> Done<i32> {
    loop {
        // In this order: a handler between the two then counts as having run since.
        let before = storm::fired();
        let watched = Watched::begin();
        let value = make();
        let by = errno();
        // A handler's work counts for this thread, too. Calls that move bytes also have work:
        // mapping and unmapping memory.
        if !matches!(call, "recv" | "send") && storm::fired() == before && watched.has_spun_for(SPINS) {
            return Err(Wrong(call, SPUN));
        }
        match value {
            0.. => return Ok(value as i32),
            _ if by == libc::EINTR => {}
            _ => return Err(Wrong(call, by)),
        }
    }
}

const IN: i32 = libc::POLLIN as i32;
const OUT: i32 = libc::POLLOUT as i32;

/// How a step waits (`values::WAY`).
#[derive(Clone, Copy)]
struct WaitMethod {
    way: i32,
    /// An epoll set, for one descriptor at a time.
    set: i32,
}

impl WaitMethod {
    fn new(way: i32) -> Done<WaitMethod> {
        if !matches!(way, 4 | 8) {
            return Ok(WaitMethod { way, set: -1 });
        }
        // SAFETY: numbers.
        let set = good("epoll_create", unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(WaitMethod { way, set })
    }

    fn end(self) {
        if self.set >= 0 {
            process::close(self.set);
        }
    }

    fn control(self, operation: i32, descriptor: i32, events: i32) -> Done<()> {
        if self.set >= 0 {
            let mut event = libc::epoll_event { events: events as u32, u64: descriptor as u64 };
            // SAFETY: a valid event.
            good("epoll_ctl", unsafe { libc::epoll_ctl(self.set, operation, descriptor, &raw mut event) })?;
        }
        Ok(())
    }

    /// Prepares a connection's first wait.
    fn begin(self, descriptor: i32, events: i32) -> Done<()> {
        if self.way == 5 {
            let time = libc::timeval { tv_sec: 0, tv_usec: 2000 };
            for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                let (place, size) = ((&raw const time).cast(), size_of::<libc::timeval>() as u32);
                // SAFETY: a time and its size.
                good("timeout", unsafe { libc::setsockopt(descriptor, libc::SOL_SOCKET, option, place, size) })?;
            }
        }
        self.control(libc::EPOLL_CTL_ADD, descriptor, events)
    }

    fn turn(self, descriptor: i32, events: i32) -> Done<()> {
        self.control(libc::EPOLL_CTL_MOD, descriptor, events)
    }

    fn forget(self, descriptor: i32) -> Done<()> {
        self.control(libc::EPOLL_CTL_DEL, descriptor, 0)
    }

    /// Waits until the descriptor is ready, unless the call itself blocks.
    fn wait(self, descriptor: i32, events: i32) -> Done<()> {
        let mut entry = libc::pollfd { fd: descriptor, events: events as i16, revents: 0 };
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        match self.way {
            1 => {
                // SAFETY: one entry.
                again("poll", || unsafe { libc::poll(&raw mut entry, 1, -1) }.into())?;
            }
            2 => {
                // SAFETY: one entry, neither time nor mask.
                again("ppoll", || unsafe { libc::ppoll(&raw mut entry, 1, null(), null()) }.into())?;
            }
            6..=8 => self.wait_once(descriptor, events, || false)?,
            3 if (0..LAST).contains(&descriptor) => {
                again("select", || {
                    // SAFETY: zeros are empty sets, a number below FD_SETSIZE; no time.
                    unsafe {
                        let (mut read, mut write): (libc::fd_set, libc::fd_set) = std::mem::zeroed();
                        libc::FD_SET(descriptor, if events == IN { &raw mut read } else { &raw mut write });
                        libc::select(descriptor + 1, &raw mut read, &raw mut write, null_mut(), null_mut()).into()
                    }
                })?;
            }
            4 => {
                // SAFETY: room for an event.
                again("epoll_wait", || unsafe { libc::epoll_wait(self.set, &raw mut event, 1, -1) }.into())?;
            }
            _ => {}
        }
        Ok(())
    }

    /// As [`WaitMethod::wait`], by the calls whose mask permits signals, possibly only there; ends also if
    /// `is_over`.
    fn wait_once(self, descriptor: i32, events: i32, is_over: impl Fn() -> bool) -> Done<()> {
        let none = storm::no_signals();
        let mask = &raw const none;
        loop {
            if is_over() {
                return Ok(());
            }
            let mut entry = libc::pollfd { fd: descriptor, events: events as i16, revents: 0 };
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: an entry, sets that are empty at first and a number below FD_SETSIZE, or room for an event; a mask and no time.
            let got = unsafe {
                match self.way {
                    7 if (0..LAST).contains(&descriptor) => {
                        let (mut read, mut write): (libc::fd_set, libc::fd_set) = std::mem::zeroed();
                        libc::FD_SET(descriptor, if events == IN { &raw mut read } else { &raw mut write });
                        libc::pselect(descriptor + 1, &raw mut read, &raw mut write, null_mut(), null(), mask)
                    }
                    8 => libc::epoll_pwait(self.set, &raw mut event, 1, -1, mask),
                    _ => libc::ppoll(&raw mut entry, 1, null(), mask),
                }
            };
            match got {
                0.. => return Ok(()),
                _ if errno() == libc::EINTR => {}
                _ => return Err(Wrong("waits", errno())),
            }
        }
    }

    fn flags(self) -> i32 {
        if matches!(self.way, 1..=4 | 6..=8) { libc::MSG_DONTWAIT } else { 0 }
    }

    /// Returns true if a call with this kind of wait is repeated.
    fn may_come_early(self, wrong: &Wrong) -> bool {
        self.way != 0 && wrong.1 == libc::EAGAIN
    }

    fn receive(self, from: i32, buffer: &mut [u8], form: usize) -> Done<usize> {
        loop {
            self.wait(from, IN)?;
            let (data, size, flags) = (buffer.as_mut_ptr().cast(), buffer.len(), self.flags());
            let mut part = libc::iovec { iov_base: data, iov_len: size };
            // SAFETY: the buffer and its length, or a part and a message with it.
            let got = again("recv", || unsafe {
                match form % 4 {
                    0 if flags == 0 => libc::read(from, data, size) as i64,
                    1 if flags == 0 => libc::readv(from, &raw const part, 1) as i64,
                    2 => {
                        let mut message: libc::msghdr = std::mem::zeroed();
                        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
                        libc::recvmsg(from, &raw mut message, flags) as i64
                    }
                    _ => libc::recv(from, data, size, flags) as i64,
                }
            });
            match got {
                Ok(got) => return Ok(got as usize),
                Err(wrong) if self.may_come_early(&wrong) => {}
                Err(wrong) => return Err(wrong),
            }
        }
    }

    fn send(self, to: i32, bytes: &[u8], form: usize) -> Done<()> {
        let mut done = 0;
        while done < bytes.len() {
            self.wait(to, OUT)?;
            let rest = &bytes[done..];
            let (data, size, flags) = (rest.as_ptr().cast(), rest.len(), self.flags() | libc::MSG_NOSIGNAL);
            let mut part = libc::iovec { iov_base: data as *mut libc::c_void, iov_len: size };
            // SAFETY: the buffer and its length, or a part and a message with it; the call only
            // reads them.
            let sent = again("send", || unsafe {
                match form % 4 {
                    0 if self.flags() == 0 => libc::write(to, data, size) as i64,
                    1 if self.flags() == 0 => libc::writev(to, &raw const part, 1) as i64,
                    2 => {
                        let mut message: libc::msghdr = std::mem::zeroed();
                        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
                        libc::sendmsg(to, &raw const message, flags) as i64
                    }
                    _ => libc::send(to, data, size, flags) as i64,
                }
            });
            match sent {
                Ok(sent) => done += sent as usize,
                Err(wrong) if self.may_come_early(&wrong) => {}
                Err(wrong) => return Err(wrong),
            }
        }
        Ok(())
    }
}

/// The content of a connection: its number, the length, and whether a reply is requested; then
/// bytes that depend on the number.
#[derive(Clone, Copy)]
struct Load {
    id: u32,
    length: u32,
    answer: bool,
}

const HEAD: usize = 8;

impl Load {
    fn head(self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&self.id.to_le_bytes());
        head[4..].copy_from_slice(&(self.length | u32::from(self.answer) << 31).to_le_bytes());
        head
    }

    fn of(head: [u8; HEAD]) -> Load {
        let [a, b, c, d, e, f, g, h] = head;
        let length = u32::from_le_bytes([e, f, g, h]);
        Load { id: u32::from_le_bytes([a, b, c, d]), length: length & 0x7fff_ffff, answer: length >> 31 != 0 }
    }

    fn byte(self, at: u32) -> u8 {
        (self.id.wrapping_mul(37).wrapping_add(11) ^ at.wrapping_mul(7).wrapping_add(at >> 8)) as u8
    }
}

/// Maximum number of bytes of one call.
const PIECE: usize = 8192;

/// Reads a connection to its end, and checks each byte.
fn read_load(from: i32, way: WaitMethod, form: usize) -> Done<Load> {
    let mut head = [0; HEAD];
    let mut buffer = [0u8; PIECE];
    let mut at = 0usize;
    // Sizes without alignment.
    let piece = [PIECE, 1000, 77, 4096][form / 4 % 4];
    loop {
        let got = way.receive(from, &mut buffer[..piece], form)?;
        if got == 0 {
            break;
        }
        for (byte, place) in buffer[..got].iter().zip(at..) {
            if place < HEAD {
                head[place] = *byte;
            } else if *byte != Load::of(head).byte((place - HEAD) as u32) {
                return Err(Wrong("other_bytes", 0));
            }
        }
        at += got;
    }
    let load = Load::of(head);
    if at != HEAD + load.length as usize {
        return Err(Wrong(if at < HEAD + load.length as usize { "too_few_bytes" } else { "too_many_bytes" }, 0));
    }
    Ok(load)
}

fn send_load(to: i32, load: Load, way: WaitMethod, form: usize) -> Done<()> {
    let mut buffer = [0u8; PIECE];
    way.send(to, &load.head(), form)?;
    let mut at = 0;
    while at < load.length {
        let size = (load.length - at).min(PIECE as u32);
        for (byte, place) in buffer[..size as usize].iter_mut().zip(at..) {
            *byte = load.byte(place);
        }
        way.send(to, &buffer[..size as usize], form)?;
        at += size;
    }
    Ok(())
}

fn take_one(listener: i32, waits: WaitMethod, form: usize) -> Done<i32> {
    waits.wait(listener, IN)?;
    // SAFETY: no address is requested.
    again("accept", || unsafe {
        if form.is_multiple_of(2) {
            libc::accept4(listener, null_mut(), null_mut(), libc::SOCK_CLOEXEC).into()
        } else {
            libc::accept(listener, null_mut(), null_mut()).into()
        }
    })
}

fn serve_one(connection: i32, way: WaitMethod, form: usize) -> Done<u32> {
    way.begin(connection, IN)?;
    let load = read_load(connection, way, form)?;
    if load.answer {
        way.turn(connection, OUT)?;
        way.send(connection, &load.head(), form)?;
    }
    way.forget(connection)?;
    close(connection)?;
    Ok(load.id)
}

/// Errors in a child, which reports the index.
const OF_CHILDREN: &[&str] = &[
    "",
    "epoll_ctl",
    "epoll_wait",
    "timeout",
    "poll",
    "ppoll",
    "select",
    "waits",
    "recv",
    "send",
    "close",
    "other_bytes",
    "too_few_bytes",
    "too_many_bytes",
];

/// Serves a connection in a child, which reports the connection's number by a pipe.
fn child_serves(connection: i32, way: WaitMethod, form: usize, (told, tells): (i32, i32)) -> Done<u32> {
    let child = process::fork();
    if child.value == 0 {
        let (id, wrong) = match serve_one(connection, way, form) {
            Ok(id) => (id, Wrong("", 0)),
            Err(wrong) => (0, wrong),
        };
        let call = OF_CHILDREN.iter().position(|known| *known == wrong.0).unwrap_or(0) as i32;
        let numbers = [id.to_le_bytes(), call.to_le_bytes(), wrong.1.to_le_bytes()];
        process::write_whole(tells, numbers.as_flattened());
        process::exit(0);
    }
    if !child.is_ok() {
        return Err(Wrong("fork", child.errno));
    }
    close(connection)?;
    if !storm::ended_well(child.value as i32) {
        return Err(Wrong("child", 0));
    }
    let mut numbers = [[0; 4]; 3];
    process::read_whole(told, numbers.as_flattened_mut());
    let [id, call, by] = numbers;
    match OF_CHILDREN.get(i32::from_le_bytes(call) as usize) {
        Some(&"") => Ok(u32::from_le_bytes(id)),
        Some(call) => Err(Wrong(call, i32::from_le_bytes(by))),
        None => Err(Wrong("child", 0)),
    }
}

fn close(descriptor: i32) -> Done<()> {
    // SAFETY: a descriptor of the step.
    good("close", unsafe { libc::close(descriptor) })?;
    Ok(())
}

/// Accepts this many connections one after the other, and reads each to its end. Returns "ok", and
/// the sum of their numbers.
pub fn serve(listener: i32, connections: i32, way: i32, by_child: bool) -> String {
    let pipe = process::own_pipe();
    let mut sum = 0u64;
    let mut done = 0;
    let result: Done<()> = {
        let _open = (way < 6).then(storm::Open::new);
        (|| {
            let (waits, way) = (WaitMethod::new(way)?, WaitMethod::new(way)?);
            waits.control(libc::EPOLL_CTL_ADD, listener, IN)?;
            while done < connections {
                storm::gets_on();
                let form = done as usize;
                let connection = take_one(listener, waits, form)?;
                let id =
                    if by_child { child_serves(connection, way, form, pipe) } else { serve_one(connection, way, form) };
                sum += u64::from(id?);
                done += 1;
            }
            waits.end();
            way.end();
            Ok(())
        })()
    };
    process::close(pipe.0);
    process::close(pipe.1);
    match result {
        Ok(()) => format!("ok {sum}"),
        Err(wrong) => wrong.text(done as usize),
    }
}

/// Connects, also if a signal ends the call, or if it does not block.
fn connect(socket: i32, room: &mut AddressBuffer) -> Done<()> {
    let (name, length) = room.name();
    // SAFETY: an address and its length.
    if unsafe { libc::connect(socket, name.cast(), length) } == 0 {
        return Ok(());
    }
    if !matches!(errno(), libc::EINTR | libc::EINPROGRESS) {
        return Err(Wrong("connect", errno()));
    }
    let mut entry = libc::pollfd { fd: socket, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry.
    again("poll", || unsafe { libc::poll(&raw mut entry, 1, -1) }.into())?;
    match number_of(socket, libc::SO_ERROR)? {
        0 => Ok(()),
        by => Err(Wrong("connect", by)),
    }
}

fn number_of(socket: i32, option: i32) -> Done<i32> {
    let (mut number, mut size) = (0i32, 4u32);
    let place = (&raw mut number).cast();
    // SAFETY: room for a number, and its size.
    good("getsockopt", unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, option, place, &raw mut size) })?;
    Ok(number)
}

fn new_socket(family: i32, flags: i32) -> Done<i32> {
    // SAFETY: numbers.
    good("socket", unsafe { libc::socket(family, libc::SOCK_STREAM | flags, 0) })
}

fn dial_one(room: &mut AddressBuffer, family: i32, load: Load, way: WaitMethod, form: usize) -> Done<()> {
    let flags = [0, libc::SOCK_CLOEXEC, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK][form % 3];
    let socket = new_socket(family, flags)?;
    connect(socket, room)?;
    if flags & libc::SOCK_NONBLOCK != 0 {
        // SAFETY: numbers.
        good("fcntl", unsafe { libc::fcntl(socket, libc::F_SETFL, 0) })?;
    }
    way.begin(socket, OUT)?;
    send_load(socket, load, way, form)?;
    if load.answer {
        // SAFETY: numbers.
        good("shutdown", unsafe { libc::shutdown(socket, libc::SHUT_WR) })?;
        way.turn(socket, IN)?;
        let mut answer = [0; HEAD + 1];
        let mut got = 0;
        loop {
            match way.receive(socket, &mut answer[got..], form)? {
                0 => break,
                more => got += more,
            }
            if got > HEAD {
                return Err(Wrong("too_many_bytes", 0));
            }
        }
        if answer[..got] != load.head() {
            return Err(Wrong("other_bytes", 0));
        }
    }
    way.forget(socket)?;
    close(socket)
}

/// Makes this many connections one after the other, and sends this many bytes over each. With
/// `answer` it waits for the reply.
pub fn dial([host, port]: [i32; 2], connections: i32, length: i32, way: i32, answer: bool, step: usize) -> String {
    let mut done = 0;
    let mut room = address(host, port);
    let family = if matches!(host, 3..=5) { libc::AF_INET6 } else { libc::AF_INET };
    let result: Done<()> = {
        let _open = (way < 6).then(storm::Open::new);
        (|| {
            let way = WaitMethod::new(way)?;
            while done < connections {
                storm::gets_on();
                let load = Load { id: (step as u32) << 12 | done as u32, length: length.max(0) as u32, answer };
                dial_one(&mut room, family, load, way, done as usize)?;
                done += 1;
            }
            way.end();
            Ok(())
        })()
    };
    match result {
        Ok(()) => "ok".into(),
        Err(wrong) => wrong.text(done as usize),
    }
}

/// Waits repeatedly for an event that never happens, until a timer's signal, which only the call's
/// mask permits, ends the call. Any instant is suitable for the signal.
pub fn doze(on: i32, rounds: i32, way: i32) -> String {
    let Some(waker) = storm::Waker::new() else { return "no timer".into() };
    let mut done = 0;
    let result: Done<()> = WaitMethod::new(way).and_then(|way| {
        // It never becomes readable: a connection without data.
        way.control(libc::EPOLL_CTL_ADD, on, IN)?;
        while done < rounds {
            storm::gets_on();
            waker.set(2_000 + i64::from(done) * 1_700 % 60_000);
            way.wait_once(on, IN, || waker.flag.load(SeqCst))?;
            if !waker.flag.load(SeqCst) {
                return Err(Wrong("woke", 0));
            }
            done += 1;
        }
        way.end();
        Ok(())
    });
    drop(waker);
    match result {
        Ok(()) => "ok".into(),
        Err(wrong) => wrong.text(done as usize),
    }
}

fn listener_of_its_own() -> Done<i32> {
    let listener = new_socket(libc::AF_INET, libc::SOCK_CLOEXEC)?;
    // SAFETY: numbers.
    good("listen", unsafe { libc::listen(listener, 4) })?;
    Ok(listener)
}

fn name_of(socket: i32) -> Done<AddressBuffer> {
    let mut room = AddressBuffer::new();
    let (name, length) = room.pointers();
    // SAFETY: room for an address, and its length.
    good("getsockname", unsafe { libc::getsockname(socket, name, length) })?;
    Ok(room)
}

/// Connects this process to itself, for handlers.
pub fn hand(near: i32, far: i32) -> String {
    let make = || -> Done<(i32, i32)> {
        let listener = listener_of_its_own()?;
        let client = new_socket(libc::AF_INET, 0)?;
        connect(client, &mut name_of(listener)?)?;
        // SAFETY: no address is requested.
        let server = again("accept", || unsafe { libc::accept(listener, null_mut(), null_mut()) }.into())?;
        close(listener)?;
        Ok((client, server))
    };
    match make() {
        Ok((client, server)) => {
            put(near, client);
            put(far, server);
            "ok".into()
        }
        Err(wrong) => wrong.text(0),
    }
}

/// Makes one of the calls that `values::CHURN` names.
fn churn_one(what: i32, with: i32, round: usize) -> Done<()> {
    match what {
        CHURN_OPEN => close(new_socket([libc::AF_INET, libc::AF_INET6][round % 2], 0)?),
        CHURN_OPTIONS => {
            let socket = new_socket(libc::AF_INET, libc::SOCK_CLOEXEC)?;
            let on = 1i32;
            let place = (&raw const on).cast();
            // SAFETY: a number and its size.
            good("setsockopt", unsafe { libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, place, 4) })?;
            if number_of(socket, libc::SO_TYPE)? != libc::SOCK_STREAM || number_of(socket, libc::SO_ERROR)? != 0 {
                return Err(Wrong("getsockopt", 0));
            }
            close(socket)
        }
        CHURN_NAMES => {
            name_of(with)?;
            let mut room = AddressBuffer::new();
            let (name, length) = room.pointers();
            // SAFETY: room for an address, and its length.
            match good("getpeername", unsafe { libc::getpeername(with, name, length) }) {
                Ok(_) => Err(Wrong("getpeername", 0)),
                Err(Wrong(_, libc::ENOTCONN)) => Ok(()),
                Err(wrong) => Err(wrong),
            }
        }
        CHURN_DUP => {
            // SAFETY: numbers.
            let copy = good("dup", unsafe { libc::dup(with) })?;
            // SAFETY: numbers.
            if good("dup2", unsafe { libc::dup2(with, copy) })? != copy {
                return Err(Wrong("dup2", 0));
            }
            close(copy)
        }
        CHURN_EPOLL => {
            let way = WaitMethod::new(4)?;
            way.control(libc::EPOLL_CTL_ADD, with, IN)?;
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: room for an event.
            again("epoll_wait", || unsafe { libc::epoll_wait(way.set, &raw mut event, 1, 0) }.into())?;
            way.forget(with)?;
            close(way.set)
        }
        CHURN_POLL => {
            let mut entry = libc::pollfd { fd: with, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry.
            again("poll", || unsafe { libc::poll(&raw mut entry, 1, 0) }.into())?;
            if entry.revents & !libc::POLLIN != 0 { Err(Wrong("poll", 0)) } else { Ok(()) }
        }
        CHURN_FORK => {
            let child = process::fork();
            if child.value == 0 {
                process::exit(0);
            }
            if !child.is_ok() {
                return Err(Wrong("fork", child.errno));
            }
            if storm::ended_well(child.value as i32) { Ok(()) } else { Err(Wrong("child", 0)) }
        }
        CHURN_LISTEN => {
            let listener = listener_of_its_own()?;
            name_of(listener)?;
            close(listener)
        }
        CHURN_REFUSED => {
            let socket = new_socket(libc::AF_INET, 0)?;
            match connect(socket, &mut address(1, 3)) {
                Ok(()) => return Err(Wrong("connect", 0)),
                Err(Wrong(_, libc::ECONNREFUSED)) => {}
                Err(wrong) => return Err(wrong),
            }
            close(socket)
        }
        CHURN_DIAL => {
            let listener = listener_of_its_own()?;
            let mut room = name_of(listener)?;
            let client = new_socket(libc::AF_INET, 0)?;
            connect(client, &mut room)?;
            // SAFETY: no address is requested.
            let server = again("accept", || unsafe { libc::accept(listener, null_mut(), null_mut()) }.into())?;
            let way = WaitMethod::new(0)?;
            let load = Load { id: round as u32, length: 100, answer: false };
            send_load(client, load, way, round)?;
            close(client)?;
            if read_load(server, way, round)?.id != load.id {
                return Err(Wrong("other_bytes", 0));
            }
            close(server)?;
            close(listener)
        }
        CHURN_SPAWN => match storm::spawn() {
            0 => Ok(()),
            by => Err(Wrong("spawn", by)),
        },
        CHURN_SPARE => storm::add_spares(with).map_err(|by| Wrong("dup", by)),
        _ => Ok(()),
    }
}

/// Makes rounds of calls (`values::CHURN`) that never block, with a listener for those that need
/// one.
pub fn churn(with: i32, rounds: i32, what: i32) -> String {
    let mut done = 0;
    let result: Done<()> = {
        let _open = storm::Open::new();
        (|| {
            while done < rounds {
                storm::gets_on();
                for bit in (0..31).map(|place| 1 << place).filter(|bit| what & bit != 0) {
                    churn_one(bit, with, done as usize)?;
                }
                done += 1;
            }
            Ok(())
        })()
    };
    match result {
        Ok(()) => "ok".into(),
        Err(wrong) => wrong.text(done as usize),
    }
}
