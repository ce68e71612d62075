//! Descriptors: closed, duplicated, asked.

pub mod adopt;
pub mod file;
pub(crate) mod ioctl_unsafe;
pub(crate) mod kept;
pub(crate) mod numbers;
pub mod pass;
pub mod table;

use libc::{CLOSE_RANGE_CLOEXEC, F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_SETFD, F_SETFL, FD_CLOEXEC, O_CLOEXEC};
use rustix::io::Errno;

use crate::{
    descriptor::{kept::Closing, table::Changing},
    poll, ports,
    process::{self, enter_page},
    socket::{Kind, Socket, mark},
    stream::{
        channel::{self, O_NONBLOCK},
        connect,
    },
    sys::call,
    types::{Fd, Ours},
};

/// `close(2)`. `None`: nothing of ours; close it.
pub fn close(fd: Fd) -> Ours<()> {
    match table::find(fd) {
        None => {
            poll::kernel_closed(fd);
            return None;
        }
        Some(socket) if is_own(fd, socket) => return Some(Err(Errno::BADF)),
        Some(_) => {}
    }
    crate::options::tcp_options::before_close(fd);
    crate::listen::outlive(fd);
    let changing = Changing::begin();
    let is_clean = table::find(fd).is_some_and(|socket| socket.marked(mark::CLEAN));
    let held = if is_clean { table::socket(fd) } else { None };
    let taken = take(fd);
    let closing = held.filter(|held| taken.is_some_and(|taken| core::ptr::eq(taken, held.unheld())));
    let closing = closing.and_then(|held| Closing::begin(fd, held));
    let answer = call::close(fd);
    if let Some(closing) = closing {
        closing.end();
    }
    drop(changing);
    ports::closed();
    Some(answer)
}

/// Whether the number is ours and the application must not touch it: EBADF.
pub(crate) fn is_own(fd: Fd, socket: &Socket) -> bool {
    match socket.kind() {
        Kind::Internal => true,
        Kind::Listener => crate::listen::is_outliving(fd, socket),
        _ => false,
    }
}

/// Takes a number out of the table and the attachment page, with what hangs on it. The kernel's side is the caller's.
pub(crate) fn forget(fd: Fd) {
    if let Some(socket) = table::find(fd) {
        kept::give_up(socket);
    }
    let _socket = take(fd);
}

/// The same; answers what was behind the number, which is not held.
fn take(fd: Fd) -> Option<&'static Socket> {
    let socket = table::take(fd)?;
    // First: should the process die in between, a reference is left over until the arena goes, rather than one too few.
    connect::clear_page(fd);
    crate::listen::number_gone(fd, socket);
    socket.forget_descriptor(fd);
    Some(socket)
}

fn close_in_range(fd: Fd, socket: &'static Socket) {
    if !is_own(fd, socket) {
        crate::listen::outlive(fd);
        forget(fd);
    }
}

/// `close_range(2)`: what is ours in the range is let go (or marked); the answer is the kernel's.
pub fn close_range(first: u32, last: u32, flags: u32) -> Ours<()> {
    if flags & CLOSE_RANGE_CLOEXEC != 0 || first > last {
        return None;
    }
    let _changing = Changing::begin();
    // From the highest number down, as the kernel ends what one call has closed (task_work_run()). A file with several numbers in the
    // range ends by the highest: that one's reference was the last.
    table::each_down(first, last, |fd, socket| {
        let has_others = socket.descriptors() > 1;
        close_in_range(fd, socket);
        if has_others {
            table::each_down(first, fd as u32, |other, of| {
                if core::ptr::eq(of, socket) {
                    close_in_range(other, of);
                }
            });
        }
    });
    let mut next = first;
    let mut kept = false;
    let mut failed = None;
    table::each(first, last, |fd, socket| {
        if !is_own(fd, socket) {
            return;
        }
        kept = true;
        if fd as u32 > next
            && let Err(errno) = call::close_range(next, fd as u32 - 1, flags)
        {
            failed = Some(errno);
        }
        next = fd as u32 + 1;
    });
    poll::kernel_range_closed(first, last);
    if !kept && !ports::is_close_due() {
        return None;
    }
    if let Some(errno) = failed {
        return Some(Err(errno));
    }
    let answer = if next > last { Ok(()) } else { call::close_range(next, last, flags) };
    ports::closed();
    Some(answer)
}

/// `dup(2)`.
pub fn dup(fd: Fd) -> Ours<Fd> {
    let socket = table::socket(fd)?;
    duplicate(socket.unheld(), || call::dup(fd))
}

/// Enters the number that `make` answers.
fn duplicate(socket: &'static Socket, make: impl FnOnce() -> Result<Fd, Errno>) -> Ours<Fd> {
    if socket.kind() == Kind::Internal {
        return Some(Err(Errno::BADF));
    }
    let _changing = Changing::begin();
    kept::spoil(socket);
    let new = match make() {
        Ok(new) => new,
        Err(errno) => return Some(Err(errno)),
    };
    table::displaced(new);
    enter(new, socket);
    Some(Ok(new))
}

/// One more number for a socket. The caller holds [`Changing`].
pub(crate) fn enter(fd: Fd, socket: &'static Socket) {
    socket.add_descriptor(fd);
    if !table::set(fd, socket) {
        // Beyond the table: an unconnected placeholder is behind that number.
        socket.forget_descriptor(fd);
        return;
    }
    let Some(attachment) = process::current() else { return };
    match (socket.kind(), socket.mapped()) {
        (Kind::Channel, Some(mapped)) => {
            if let Some(channel) = socket.channel() {
                channel.retain();
                if !enter_page(attachment, fd, mapped.object(channel.slot())) {
                    // The page is as large as the table.
                    channel::give_back(&channel);
                }
            }
        }
        (Kind::Listener, _) => crate::listen::enter_number(attachment, socket, fd),
        _ => {}
    }
}

/// `dup2(2)`: ours when either number is.
pub fn dup2(old: Fd, new: Fd) -> Ours<Fd> {
    if old == new {
        return None;
    }
    dup3(old, new, 0)
}

/// `dup3(2)`: ours when either number is.
pub fn dup3(old: Fd, new: Fd, flags: i32) -> Ours<Fd> {
    let socket = table::socket(old);
    if table::find(new).is_some_and(|socket| is_own(new, socket)) {
        // do_dup2() of the kernel: EBUSY for a number that an accept has taken and not filled yet.
        return Some(Err(if crate::listen::number::is_taken(new) { Errno::BUSY } else { Errno::BADF }));
    }
    if socket.is_none() && table::find(new).is_none() {
        if old != new {
            poll::kernel_closed(new);
        }
        return None;
    }
    if socket.as_ref().is_some_and(|socket| socket.kind() == Kind::Internal) {
        return Some(Err(Errno::BADF));
    }
    if old == new || flags & !O_CLOEXEC != 0 {
        return Some(Err(Errno::INVAL));
    }
    let _changing = Changing::begin();
    if table::find(new).is_none() {
        poll::kernel_closed(new);
    }
    crate::listen::outlive(new);
    if let Some(socket) = &socket {
        kept::spoil(socket);
    }
    if let Err(errno) = call::dup3(old, new, flags) {
        return Some(Err(errno));
    }
    forget(new);
    ports::closed();
    if let Some(socket) = socket {
        enter(new, socket.unheld());
    }
    Some(Ok(new))
}

/// `fcntl(2)`: `argument` as passed (an int, or a pointer for the lock commands, which stay the kernel's).
pub fn fcntl(fd: Fd, command: i32, argument: usize) -> Ours<i32> {
    let socket = table::socket(fd)?;
    let socket = socket.unheld();
    let stays_close_on_exec = command == F_SETFD && argument & FD_CLOEXEC as usize != 0;
    if !matches!(command, F_GETFD | F_GETFL) && !stays_close_on_exec {
        kept::spoil(socket);
    }
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => duplicate(socket, || call::fcntl(fd, command, argument)),
        F_SETFL => Some(call::fcntl(fd, F_SETFL, argument).inspect(|_| {
            socket.set_status(argument as u32 & O_NONBLOCK);
        })),
        _ => None,
    }
}

/// FIONBIO.
pub(crate) fn set_nonblocking(fd: Fd, socket: &Socket, on: bool) -> Result<(), Errno> {
    let flags = call::fcntl(fd, F_GETFL, 0)? as u32;
    let wanted = if on { flags | O_NONBLOCK } else { flags & !O_NONBLOCK };
    if wanted != flags {
        kept::spoil(socket);
        call::fcntl(fd, F_SETFL, wanted as usize)?;
    }
    socket.set_status(if on { O_NONBLOCK } else { 0 });
    Ok(())
}
