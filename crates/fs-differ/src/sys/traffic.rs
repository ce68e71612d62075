//! Steps of many calls each, which signals may interrupt anywhere. Calls that EINTR has ended are
//! repeated, so that each step has one result on the kernel. Nothing is allocated while handlers
//! run ([`storm::Open`]).

mod churn;
mod event_loop;
mod load;
mod outcome;
mod sockets;
mod wait_method;

pub use churn::churn;
pub use event_loop::{dial_loop, serve_loop};

use super::calls::put;
use super::names::{AddressBuffer, address};
use super::{process, progress, storm};
use load::{HEAD, Load, read_load, send_load};
use outcome::{Done, Wrong, again, good};
use sockets::{close, connect, listener_of_its_own, name_of, new_socket};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use wait_method::{IN, OUT, WaitMethod};

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

/// Errors of a child process, which reports the index.
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
                progress::report();
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
                progress::report();
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
    let Some(waker) = storm::waker::Waker::new() else { return "no timer".into() };
    let mut done = 0;
    let result: Done<()> = WaitMethod::new(way).and_then(|way| {
        // It never becomes readable: a connection without data.
        way.control(libc::EPOLL_CTL_ADD, on, IN)?;
        while done < rounds {
            progress::report();
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
