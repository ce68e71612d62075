//! epoll_ctl.

use rustix::{fd::AsRawFd, io::Errno};

use super::{
    EpollEvent,
    interest::{ET, EXCLUSIVE, WAKEUP},
    registry,
    set::{ADD, DEL, MOD, own_number},
    sys::kernel,
    wait::LOOK,
};
use crate::{
    descriptor::{is_own, kept, table},
    process,
    socket::{Kind, Socket},
    types::{Fd, Ours},
};

/// What may stand beside EPOLLEXCLUSIVE: IN, OUT, ERR, HUP (epoll_ctl(2)).
const WITH_EXCLUSIVE: u32 = EXCLUSIVE | ET | WAKEUP | 0x1 | 0x4 | 0x8 | 0x10;

/// Deepest nesting of sets (EP_MAX_NESTS, fs/eventpoll.c).
const NESTS_MAX: u32 = 4;

/// epoll_ctl(2). `None`: neither the set nor the descriptor is ours.
pub(super) fn control(set_fd: Fd, operation: i32, fd: Fd, event: Option<EpollEvent>) -> Ours<()> {
    // Another set is remembered as a kernel descriptor as long as it has nothing of ours: that may come later.
    let Some(held) = table::socket(fd) else {
        if is_librarys(set_fd) {
            // What is passed is read first (epoll_ctl() of the kernel).
            return Some(Err(if operation != DEL && event.is_none() { Errno::FAULT } else { Errno::BADF }));
        }
        let set = registry::find(table::epoll(set_fd)?)?;
        if operation == MOD || operation == ADD {
            // A kernel descriptor: the set that everybody sleeps in, or under, has it.
            if let Some(mut inner) = set.lock() {
                inner.look_before();
                inner.waits = LOOK;
            }
        }
        return None;
    };
    let socket = held.unheld();
    // A registration with the kernel stays with the open file.
    kept::spoil(socket);
    let is_never_ours = match socket.kind() {
        Kind::Kernel => true,
        Kind::Epoll => operation != ADD || set_fd == fd,
        Kind::Free | Kind::Fresh | Kind::Channel | Kind::Listener | Kind::Internal => false,
    };
    if is_never_ours && table::epoll(set_fd).is_none() && !is_librarys(set_fd) {
        return None;
    }
    Some(apply(set_fd, operation, fd, socket, event))
}

fn apply(set_fd: Fd, operation: i32, fd: Fd, socket: &'static Socket, event: Option<EpollEvent>) -> Result<(), Errno> {
    let event = match (operation, event) {
        (DEL, _) => EpollEvent::default(),
        (_, Some(event)) => event,
        (_, None) => return Err(Errno::FAULT),
    };
    if is_own(fd, socket) {
        return Err(Errno::BADF);
    }
    if set_fd == fd {
        return Err(Errno::INVAL);
    }
    let index = instance(set_fd)?;
    if event.events & EXCLUSIVE != 0 {
        let fits = event.events & !WITH_EXCLUSIVE == 0 && socket.kind() != Kind::Epoll;
        if operation == MOD || operation == ADD && !fits {
            return Err(Errno::INVAL);
        }
    }
    if let (ADD, Some(inner)) = (operation, table::index_of(socket))
        && (inner == index || depth(inner, index, 0)? >= NESTS_MAX)
    {
        return Err(if inner == index { Errno::INVAL } else { Errno::LOOP });
    }
    let set = registry::find(index).ok_or(Errno::BADF)?;
    let was_active = set.is_active();
    // A signal handler on top of this very call: the kernel would have waited for the set too.
    let mut inner = set.lock().ok_or(Errno::AGAIN)?;
    inner.used_as(set_fd);
    let found = inner.interest.find(fd, socket.identity());
    let answer = match (operation, found) {
        (ADD, None) => inner.add(fd, socket, event),
        (ADD, Some(at)) if inner.is_kernels(at) => inner.add_again(at, event),
        (ADD, Some(_)) => Err(Errno::EXIST),
        (MOD, Some(at)) => {
            let exclusive = inner.interest.get(at).is_some_and(|entry| entry.event.events & EXCLUSIVE != 0);
            if exclusive { Err(Errno::INVAL) } else { inner.modify(at, event) }
        }
        (DEL, Some(at)) => inner.delete(at),
        // The kernel's from before the set was ours, or in no set at all: it knows.
        (MOD | DEL, None) => kernel::epoll_ctl(inner.number, operation, fd, Some(event)),
        _ => Err(Errno::INVAL),
    };
    // What the kernel's set holds of it may be ready at once.
    inner.waits = LOOK;
    if inner.sleepers > 0 && answer.is_ok() && operation != DEL {
        inner.ring();
    }
    drop(inner);
    if !was_active {
        registry::follow_active(set);
    }
    answer
}

/// The instance behind the application's epoll descriptor, made now if there is none.
pub(super) fn instance(set_fd: Fd) -> Result<u32, Errno> {
    if let Some(index) = table::epoll(set_fd) {
        return Ok(index);
    }
    if is_librarys(set_fd) {
        return Err(Errno::BADF);
    }
    // Asks the kernel for an epoll set's own error: ENOENT is the answer of one, for a descriptor that it cannot hold. Without
    // a daemon there is none such: the socket may become ours later, when there is one.
    let answer = match process::current() {
        Some(attachment) => kernel::epoll_ctl(set_fd, DEL, attachment.client().fd().as_raw_fd(), None),
        None => kernel::is_epoll(set_fd).and(Err(Errno::NOENT)),
    };
    match answer {
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
        Ok(()) => return Err(Errno::INVAL),
    }
    let own = own_number(set_fd);
    let index = registry::make(own.unwrap_or(set_fd)).ok_or(Errno::NOMEM)?;
    if own.is_none()
        && let Some(mut inner) = registry::find(index).and_then(|set| set.lock())
    {
        inner.borrowed = true;
    }
    if !table::set_epoll(set_fd, index) {
        return Err(Errno::NOMEM);
    }
    Ok(index)
}

/// Whether a number is the library's own: for the application it is no set, nor anything else.
pub(super) fn is_librarys(fd: Fd) -> bool {
    table::find(fd).is_some_and(|socket| is_own(fd, socket))
}

/// How deep sets are nested below `index`.
///
/// # Errors
/// `ELOOP`: `target` is among them, or they are too deep.
fn depth(index: u32, target: u32, level: u32) -> Result<u32, Errno> {
    if index == target || level > NESTS_MAX {
        return Err(Errno::LOOP);
    }
    let Some(inner) = registry::find(index).and_then(|set| set.lock()) else { return Ok(0) };
    let nested: Vec<u32> = inner.nested().collect();
    drop(inner);
    let mut deepest = 0;
    for below in nested {
        deepest = deepest.max(depth(below, target, level + 1)?);
    }
    Ok(deepest + 1)
}
