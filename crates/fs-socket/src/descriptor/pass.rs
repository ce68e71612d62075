//! Descriptors passed over Unix sockets (SCM_RIGHTS).

use std::time::Duration;

use fs_shm::{
    Channel,
    control::{Claimed, Object},
    pages::ListenerPage,
};
use libc::{SO_ACCEPTCONN, SO_DOMAIN, SO_TYPE, SOCK_STREAM, SOL_SOCKET};
use rustix::fd::AsFd;

use crate::{
    address,
    descriptor::{kept, numbers, table},
    listen,
    process::{self, Attachment, arenas, exec},
    socket::{Kind, mark},
    stream::{channel, connect},
    sys::{self, call},
    types::Fd,
};

/// Before a `sendmsg` that carries these descriptors: sockets of ours among them are held by the daemon until the receiver
/// claims them. Costs a table look-up each when none is ours.
pub fn share(fds: &[Fd]) {
    for &fd in fds {
        let Some(socket) = table::socket(fd) else { continue };
        socket.mark(mark::SHARED);
        kept::spoil(&socket);
        let object = match socket.kind() {
            Kind::Channel => {
                socket.mapped().zip(socket.channel()).map(|(mapped, channel)| mapped.object(channel.slot()))
            }
            Kind::Listener => listen::object(&socket),
            _ => None,
        };
        let (Some(object), Some(cookie), Some(attachment)) = (object, exec::cookie(fd), process::current()) else {
            continue;
        };
        // By the page the daemon sees that this process holds it: what the number stands for is there since it is held, and another
        // thread may have closed it by now.
        if !attachment.page().set_cookie(fd, object, cookie) {
            continue;
        }
        if let Err(error) = attachment.client().share(object, cookie, fd, sys::borrowed(fd)) {
            attachment.failed(&error);
        }
    }
}

/// The message with these descriptors was not sent: what [`share`] did is undone.
pub fn unshare(fds: &[Fd]) {
    for &fd in fds {
        let Some(socket) = table::socket(fd) else { continue };
        if !matches!(socket.kind(), Kind::Channel | Kind::Listener) {
            continue;
        }
        if let (Some(cookie), Some(attachment)) = (exec::cookie(fd), process::current())
            && let Err(error) = attachment.client().unshare(cookie)
        {
            attachment.failed(&error);
        }
    }
}

/// After a `recvmsg` that brought these descriptors: those that are sockets of ours in the sender become ours here. If they
/// were only `peeked` at (MSG_PEEK), the message brings them once more, whatever becomes of these meanwhile.
pub fn claim(fds: &[Fd], peeked: bool) {
    for &fd in fds {
        let _changing = table::Changing::begin();
        table::displaced(fd);
        let family = call::int_option(fd, SOL_SOCKET, SO_DOMAIN).unwrap_or(0) as u32;
        let stream = call::int_option(fd, SOL_SOCKET, SO_TYPE) == Ok(SOCK_STREAM);
        if !stream || (family != address::AF_INET && family != address::AF_INET6) {
            continue;
        }
        let Some(attachment) = process::attached() else { continue };
        let was_bound = is_bound_only(fd);
        let mut claimed = claim_one(attachment, fd);
        for _ in 0..LATE_TRIES {
            // Who else has it may be in listen(2) just now: the kernel has it listen already, and the daemon has not heard.
            if claimed.is_some() || !listens(fd) {
                break;
            }
            std::thread::sleep(LATE);
            claimed = claim_one(attachment, fd);
        }
        if claimed.is_none() && was_bound {
            // It may be made to listen here and in the process that it comes from.
            crate::descriptor::adopt::enter(fd);
        }
    }
    if peeked {
        share(fds);
    }
}

/// Between the looks for a listener that nobody has announced, and how many there are. More: who is given the kernel's listeners waits.
/// Fewer: one that is being announced is taken for the kernel's, for good.
const LATE: Duration = Duration::from_millis(1);
const LATE_TRIES: u32 = 4;

fn listens(fd: Fd) -> bool {
    call::int_option(fd, SOL_SOCKET, SO_ACCEPTCONN) == Ok(1)
}

/// Whether it is a socket that has been given an address, and has done nothing with it.
fn is_bound_only(fd: Fd) -> bool {
    !listens(fd)
        && call::getsockname(fd).is_ok_and(|name| matches!(name.as_bytes(), [_, _, high, low, ..] if high | low != 0))
        && crate::descriptor::adopt::is_unconnected(fd)
}

fn claim_one(attachment: &Attachment, fd: Fd) -> Option<()> {
    let placeholder = sys::borrowed(fd)?;
    let claimed =
        numbers::make(|| attachment.client().claim(placeholder)).inspect_err(|error| attachment.failed(error));
    let (object, memory) = claimed.ok()??;
    match (object, memory) {
        (Object::Channel { arena, slot, side }, Claimed::Arena(memory)) => {
            let mapped = arenas::map(attachment, arena, side, &memory)?;
            let channel = Channel::at(mapped.arena(), slot)?;
            let Some(socket) = exec::enter(fd).filter(|_| process::enter_page(attachment, fd, object)) else {
                // The reference that came with the answer.
                channel::give_back(&channel);
                return None;
            };
            socket.resume_channel(attachment.life(), mapped, &channel);
        }
        (Object::Listener(id), Claimed::Page(memory)) => {
            // One socket for all its numbers: it is closed with the last of them.
            if let Some(known) = listen::of_id(attachment, id)
                && connect::enter_another(fd, known.unheld())
            {
                listen::enter_number(attachment, known.unheld(), fd);
                return Some(());
            }
            let page = ListenerPage::map(memory.as_fd()).ok()?;
            let socket = exec::enter(fd)?;
            listen::resume(attachment, socket, id, page);
        }
        _ => {}
    }
    Some(())
}
