//! Descriptors that come from, and go to, code that makes the kernel's calls on them: std's types, other libraries.
//! (Under libfastsock.so there is no such code.)

use libc::{IPPROTO_TCP, SO_ACCEPTCONN, SO_PROTOCOL, SO_TYPE, SOCK_STREAM, SOL_SOCKET, SOL_TCP, TCP_INFO};
use rustix::io::Errno;

use crate::{
    address,
    descriptor::{
        kept,
        table::{self, Changing},
    },
    listen,
    process::{self, exec},
    socket::{Kind, Socket, mark},
    sys::call,
    types::Fd,
};

/// `tcpi_state` of a socket that is neither connected nor connecting (tcp_states.h).
const TCP_CLOSE: u8 = 7;

/// The number goes to code that makes real calls. What can be the kernel's alone becomes so: false when it cannot, as a
/// connection lives in shared memory (real calls on the number answer ENOTCONN), or a listener has other descriptors.
///
/// The entry then stays, so that the number may come back ([`adopt`]), with the cookie by which a number that was closed
/// meanwhile is known.
pub fn hand_over(fd: Fd) -> bool {
    let Some(held) = table::socket(fd) else { return true };
    let socket = held.unheld();
    kept::spoil(socket);
    let stays = match socket.kind() {
        Kind::Channel => true,
        Kind::Listener => socket.descriptors() > 1,
        Kind::Free | Kind::Fresh | Kind::Kernel | Kind::Epoll | Kind::Internal => false,
    };
    if stays {
        let object = match socket.channel() {
            Some(channel) => socket.mapped().map(|mapped| mapped.object(channel.slot())),
            None => listen::object(socket),
        };
        if let (Some(object), Some(cookie), Some(attachment)) = (object, exec::cookie(fd), process::current()) {
            // False: another thread has closed the number, or it has no place in the page.
            let _ = attachment.page().set_cookie(fd, object, cookie);
        }
        return false;
    }
    if socket.kind() == Kind::Listener {
        listen::stop(fd, socket);
    }
    let _changing = Changing::begin();
    crate::descriptor::forget(fd);
    true
}

/// Forgets what the table has of a number that was handed over and closed since.
pub fn confirm(fd: Fd) {
    if table::find(fd).is_none() {
        return;
    }
    let known = process::current().and_then(|attachment| attachment.page().entry(fd)).map_or(0, |(_, cookie)| cookie);
    if known != 0 && exec::cookie(fd) != Some(known) {
        let _changing = Changing::begin();
        table::displaced(fd);
    }
}

/// The number came from code that makes real calls: a TCP socket that is not connected yet becomes one of ours, a
/// listener is announced. One that is connected stays what it is.
pub fn adopt(fd: Fd) {
    confirm(fd);
    if table::find(fd).is_some() || !is_tcp(fd) {
        return;
    }
    let listens = call::int_option(fd, SOL_SOCKET, SO_ACCEPTCONN) == Ok(1);
    if !listens && !is_unconnected(fd) {
        return;
    }
    let changing = Changing::begin();
    let Some(socket) = enter(fd) else { return };
    drop(changing);
    if listens {
        listen::adopt(fd, socket);
    }
}

/// A socket for a number that is neither connected nor known. The caller holds [`Changing`].
pub(crate) fn enter(fd: Fd) -> Option<&'static Socket> {
    let socket = exec::enter(fd)?;
    let bound = call::getsockname(fd).ok().and_then(|name| address::parse(name.as_bytes(), socket.family()));
    if bound.is_some_and(|name| name.port() != 0 || !name.ip().is_unspecified()) {
        socket.mark(mark::BOUND);
    }
    Some(socket)
}

/// Whether the kernel's socket is neither connected nor connecting, nor listens.
pub(crate) fn is_unconnected(fd: Fd) -> bool {
    state(fd) == Ok(TCP_CLOSE)
}

fn is_tcp(fd: Fd) -> bool {
    call::int_option(fd, SOL_SOCKET, SO_TYPE) == Ok(SOCK_STREAM)
        && call::int_option(fd, SOL_SOCKET, SO_PROTOCOL) == Ok(IPPROTO_TCP)
}

/// `tcpi_state`.
fn state(fd: Fd) -> Result<u8, Errno> {
    let mut first = [0; 1];
    call::getsockopt(fd, SOL_TCP, TCP_INFO, &mut first)?;
    Ok(first[0])
}
