//! What happens when a descriptor number is opened, closed, duplicated, or inherited by another program.

use std::os::fd::RawFd;

use crate::child;
use crate::confined;
use crate::object::{Body, Held};
use crate::process;
use crate::promotion;
use crate::set::{self, Polled};
use crate::slot::{Kind, Slot, Visit};
use crate::socket::Socket;
use crate::sys::heap;
use crate::sys::kernel::{Fd, SetCall};
use crate::sys::start;
use crate::table;

/// The highest number of a standard stream.
const LAST_STANDARD: RawFd = 2;

/// The result of a look-up.
pub(crate) enum Found {
    /// A number that the library does not handle.
    Plain,
    /// A watched socket. [`Slot::leave`] has to follow the call.
    Watched(&'static Slot, Visit),
    /// A promoted socket or a set. [`Held::release`] has to follow the call.
    Object(Held),
}

/// Looks a number up for a call on it.
#[inline]
pub(crate) fn find(fd: RawFd) -> Found {
    match table::slot(fd) {
        None => Found::Plain,
        Some(slot) if slot.state().kind() == Kind::Plain => Found::Plain,
        Some(slot) => find_known(slot),
    }
}

#[inline]
fn find_known(slot: &'static Slot) -> Found {
    child::notice_fork();
    loop {
        match slot.state().kind() {
            Kind::Plain => return Found::Plain,
            Kind::Socket | Kind::Set => {
                if let Some(held) = slot.object.hold() {
                    return Found::Object(held);
                }
                if matches!(slot.state().kind(), Kind::Socket | Kind::Set) {
                    std::hint::spin_loop();
                }
            }
            Kind::Watched | Kind::Offered | Kind::Promoting => {
                if let Some(visit) = slot.enter() {
                    return Found::Watched(slot, visit);
                }
            }
        }
    }
}

/// Handles a socket that accept(2) has returned, or that is about to connect(2).
pub(crate) fn begin(fd: RawFd) {
    if fd < 0 || !promotion::is_enabled() {
        return;
    }
    let Some(slot) = table::make_slot(fd) else { return };
    // Called first, so that a child drops its parent's watched sockets and not its own first one.
    child::notice_fork();
    finish(fd, false);
    // Standard streams read and write by calls that no symbol replaces.
    if fd > LAST_STANDARD {
        slot.begin(Kind::Watched, process::forks());
    }
}

/// With FASTSOCK_CALLS=0 (tests), offers a socket as soon as it may be connected.
pub(crate) fn at_birth(fd: RawFd) {
    if fd < 0 || !process::waits_for_service() {
        return;
    }
    match find(fd) {
        Found::Plain => {}
        Found::Watched(slot, visit) => {
            promotion::offer(fd, slot, visit);
            slot.leave(visit);
        }
        Found::Object(held) => held.release(),
    }
}

/// Handles a new epoll set.
pub(crate) fn begin_set(fd: RawFd) {
    if !promotion::concerns_sets() || !heap::has_spare() {
        return;
    }
    let Some(slot) = table::make_slot(fd) else { return };
    child::notice_fork();
    finish(fd, false);
    if slot.object.put(Body::Set(Polled::new())) {
        slot.begin(Kind::Set, process::forks());
    }
}

/// Returns true if the number is not known to be a connection: at the first connect(2) of a socket,
/// also if the library has missed the close of an earlier one.
pub(crate) fn is_new(fd: RawFd) -> bool {
    let kind = table::slot(fd).map_or(Kind::Plain, |slot| slot.state().kind());
    kind == Kind::Plain || rustix::net::getpeername(Fd::new(fd).borrow()).is_err()
}

/// Returns true if the library handles the number.
pub(crate) fn is_known(fd: RawFd) -> bool {
    table::slot(fd).is_some_and(|slot| slot.state().kind() != Kind::Plain)
}

/// Handles a number that is about to be closed.
pub(crate) fn end(fd: RawFd) {
    finish(fd, true);
}

/// Handles a number that is about to be closed or, if `is_closing` is false, refers to another socket by now.
/// Without a close(2), no reset is requested from the kernel.
fn finish(fd: RawFd, is_closing: bool) {
    let Some(slot) = table::slot(fd) else { return };
    if slot.state().kind() == Kind::Plain {
        return;
    }
    child::notice_fork();
    match slot.state().kind() {
        _ if confined::is_confined() => {}
        Kind::Watched | Kind::Offered => {
            set::leave_registered(fd, slot);
            promotion::forget(slot);
        }
        Kind::Socket => end_socket(fd, slot.object.hold(), is_closing),
        Kind::Set => end_set(fd, slot.object.hold(), is_closing),
        Kind::Promoting | Kind::Plain => {}
    }
    slot.end();
    if let Some(held) = slot.object.take() {
        held.release();
    }
}

/// Ends a set whose last number is closed. Its sockets may join another set.
fn end_set(fd: RawFd, held: Option<Held>, is_closing: bool) {
    let Some(held) = held else { return };
    if let (Body::Set(polled), 1) = (held.body(), held.numbers()) {
        polled.end(if is_closing { SetCall::new(fd) } else { SetCall::NONE });
    }
    held.release();
}

fn end_socket(fd: RawFd, held: Option<Held>, is_closing: bool) {
    let Some(held) = held else { return };
    if let Some(socket) = held.socket()
        && held.numbers() == 1
        // A child that closes an inherited socket without using it does not affect the parent.
        && !socket.is_inherited()
    {
        set::tell(socket);
        socket.leave_sets();
        // A socket that was sent by SCM_RIGHTS has no unread bytes in its ring.
        if socket.pair().before_close() && is_closing && !socket.is_shared() {
            reset_at_close(fd);
        }
        promotion::end_pair(socket);
    }
    held.release();
}

/// Makes the kernel reset the connection at close(2), as it does for its own unread bytes.
fn reset_at_close(fd: RawFd) {
    // If this fails, the peer gets the end of the stream instead of a reset.
    let _set = rustix::net::sockopt::set_socket_linger(Fd::new(fd).borrow(), Some(std::time::Duration::ZERO));
}

/// Drops a pinned socket whose ring is empty, unless a set has to drop the kernel's events for it.
/// Its close(2) will not be noticed, so its pair ends here.
#[cold]
pub(crate) fn retire(fd: RawFd, held: Held) {
    let Some(slot) = table::slot(fd) else { return };
    if !slot.object.is(held) {
        return;
    }
    if let Some(socket) = held.socket() {
        if socket.is_spent() {
            return;
        }
        set::tell(socket);
        socket.leave_sets();
        if held.numbers() == 1 && !socket.is_inherited() {
            promotion::end_pair(socket);
        }
    }
    slot.end();
    if let Some(held) = slot.object.take() {
        held.release();
    }
}

/// Called before an operation on the socket that the library cannot follow. From now on the kernel
/// alone carries the socket.
pub(crate) fn leave_to_kernel(fd: RawFd) {
    let Some(slot) = table::slot(fd) else { return };
    match slot.state().kind() {
        Kind::Watched | Kind::Offered | Kind::Promoting => {
            promotion::forget(slot);
            slot.end();
        }
        Kind::Socket => {
            with_socket(fd, |socket| {
                set::tell(socket);
                socket.pin();
            });
        }
        Kind::Set | Kind::Plain => {}
    }
}

/// Calls `work` with a promoted socket. Returns false if the number is not one.
pub(crate) fn with_socket(fd: RawFd, work: impl FnOnce(&Socket)) -> bool {
    let Some(slot) = table::slot(fd).filter(|slot| slot.state().kind() == Kind::Socket) else { return false };
    child::notice_fork();
    let Some(held) = slot.object.hold() else { return false };
    let socket = held.socket();
    if let Some(socket) = socket {
        work(socket);
    }
    held.release();
    socket.is_some()
}

/// Handles dup(2): `new` refers to the file of `old`, and the kernel carries both from now on.
pub(crate) fn duplicated(old: RawFd, new: RawFd) {
    if old == new {
        return;
    }
    end(new);
    let Some(slot) = table::slot(old).filter(|slot| slot.state().kind() != Kind::Plain) else { return };
    leave_to_kernel(old);
    let kind = slot.state().kind();
    if let (Kind::Socket | Kind::Set, Some(held)) = (kind, slot.object.hold()) {
        if let Some(place) = table::make_slot(new) {
            place.object.share(held);
            place.begin(kind, process::forks());
        }
        held.release();
    }
    // Functions of stdin read by a call that no symbol replaces.
    if new == libc::STDIN_FILENO {
        leave_to_other(new);
    }
}

/// The next image of this process, or a child's, inherits what exec(2) does not close.
///
/// A connection is reset if its ring has unread bytes that the next image would miss: if no other
/// process has the socket, or if it is a standard stream. A child of fork(2) that leaves its
/// parent's sockets open by accident resets nothing.
pub(crate) fn before_exec() {
    set::tell_all();
    table::for_each(|fd, slot| {
        if slot.state().kind() == Kind::Socket && !is_closed_by_exec(fd) {
            leave_to_kernel(fd);
            with_socket(fd, |socket| {
                if socket.has_ring(fd) && (fd <= LAST_STANDARD || !socket.is_shared()) {
                    Fd::new(fd).disconnect();
                }
            });
        }
    });
}

/// posix_spawn(3): inherited sockets have two holders.
pub(crate) fn before_spawn() {
    table::for_each(|fd, slot| {
        if !is_closed_by_exec(fd) {
            match slot.state().kind() {
                Kind::Set => share_set(slot),
                _ => {
                    leave_to_kernel(fd);
                    with_socket(fd, Socket::give);
                }
            }
        }
    });
}

/// Called before another process gets an epoll set.
fn share_set(slot: &'static Slot) {
    let Some(held) = slot.object.hold() else { return };
    if let Body::Set(polled) = held.body() {
        polled.share();
    }
    held.release();
}

/// Called before the kernel alone waits for an epoll set. Returns false if the number is not one.
pub(crate) fn leave_set_to_kernel(fd: RawFd) -> bool {
    child::notice_fork();
    let Some(held) = set::find(fd, None) else { return false };
    if let Body::Set(polled) = held.body() {
        // An error: the set cannot show the rest of a ring, of which the next epoll_wait(2) has the event.
        let _shown = polled.enter_set(fd);
    }
    held.release();
    true
}

/// Called when others read or write the socket from now on without the library: another process, or
/// a part of the C library that no symbol replaces. If the ring has unread bytes, which they would
/// miss, the connection is reset.
pub(crate) fn leave_to_other(fd: RawFd) {
    if let Some(slot) = table::slot(fd).filter(|slot| slot.state().kind() == Kind::Set) {
        return share_set(slot);
    }
    leave_to_kernel(fd);
    let is_socket = with_socket(fd, |socket| {
        if socket.has_ring(fd) {
            Fd::new(fd).disconnect();
        }
    });
    if let (true, Some(slot)) = (is_socket, table::slot(fd))
        && let Some(held) = slot.object.hold()
    {
        retire(fd, held);
        held.release();
    }
}

/// Stops promotion, and pins promoted sockets. The program has created an io_uring, whose reads
/// and writes the library does not see, or is about to confine itself.
pub(crate) fn leave_all_to_kernel() {
    child::notice_fork();
    promotion::disable();
    set::tell_all();
    table::for_each(|fd, _| leave_to_kernel(fd));
}

/// Called before the process confines itself; see `confined`.
pub(crate) fn before_confinement() {
    if confined::is_confined() {
        return;
    }
    leave_all_to_kernel();
    let mut has_rests = false;
    table::for_each(|fd, slot| {
        let Some(held) = slot.object.hold() else { return };
        match held.body() {
            Body::Socket(socket) if socket.has_ring(fd) => has_rests = true,
            Body::Socket(_) => retire(fd, held),
            Body::Set(polled) if polled.has_rest() => {}
            Body::Set(_) => {
                slot.end();
                if let Some(held) = slot.object.take() {
                    held.release();
                }
            }
        }
        held.release();
    });
    promotion::disconnect();
    start::report();
    confined::set(has_rests);
}

/// Like [`leave_all_to_kernel`]. Returns whether no ring has unread bytes, which io_uring would not find.
pub(crate) fn may_use_io_uring() -> bool {
    leave_all_to_kernel();
    let mut is_drained = true;
    table::for_each(|fd, _| {
        with_socket(fd, |socket| is_drained &= !socket.has_ring(fd));
    });
    is_drained
}

fn is_closed_by_exec(fd: RawFd) -> bool {
    rustix::io::fcntl_getfd(Fd::new(fd).borrow()).is_ok_and(|flags| flags.contains(rustix::io::FdFlags::CLOEXEC))
}

/// Calls `work` for each number in a range that the library handles.
pub(crate) fn for_each_in(first: u32, last: u32, mut work: impl FnMut(RawFd)) {
    table::for_each(|fd, _| {
        if (first..=last).contains(&fd.cast_unsigned()) {
            work(fd);
        }
    });
}
