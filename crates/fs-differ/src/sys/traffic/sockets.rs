//! Sockets of a step.

use super::super::names::AddressBuffer;
use super::outcome::{Done, Wrong, again, errno, good};

/// Connects, also if a signal ends the call, or if it does not block.
pub(super) fn connect(socket: i32, room: &mut AddressBuffer) -> Done<()> {
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

pub(super) fn number_of(socket: i32, option: i32) -> Done<i32> {
    let (mut number, mut size) = (0i32, 4u32);
    let place = (&raw mut number).cast();
    // SAFETY: room for a number, and its size.
    good("getsockopt", unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, option, place, &raw mut size) })?;
    Ok(number)
}

pub(super) fn new_socket(family: i32, flags: i32) -> Done<i32> {
    // SAFETY: numbers.
    good("socket", unsafe { libc::socket(family, libc::SOCK_STREAM | flags, 0) })
}

pub(super) fn listener_of_its_own() -> Done<i32> {
    let listener = new_socket(libc::AF_INET, libc::SOCK_CLOEXEC)?;
    // SAFETY: numbers.
    good("listen", unsafe { libc::listen(listener, 4) })?;
    Ok(listener)
}

pub(super) fn name_of(socket: i32) -> Done<AddressBuffer> {
    let mut room = AddressBuffer::new();
    let (name, length) = room.pointers();
    // SAFETY: room for an address, and its length.
    good("getsockname", unsafe { libc::getsockname(socket, name, length) })?;
    Ok(room)
}

pub(super) fn close(descriptor: i32) -> Done<()> {
    // SAFETY: a descriptor of the step.
    good("close", unsafe { libc::close(descriptor) })?;
    Ok(())
}
