//! Rounds of calls that never block.

use super::super::names::{AddressBuffer, address};
use super::super::{process, progress, storm};
use super::load::{Load, read_load, send_load};
use super::outcome::{Done, Wrong, again, good};
use super::sockets::{close, connect, listener_of_its_own, name_of, new_socket, number_of};
use super::wait_method::{IN, WaitMethod};
use crate::values::{CHURN_DIAL, CHURN_DUP, CHURN_EPOLL, CHURN_FORK, CHURN_LISTEN, CHURN_NAMES, CHURN_OPEN};
use crate::values::{CHURN_OPTIONS, CHURN_POLL, CHURN_REFUSED, CHURN_SPARE, CHURN_SPAWN};
use std::ptr::null_mut;

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
                progress::report();
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
