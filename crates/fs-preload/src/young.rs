//! Waits of new connections: accept(2), and the first receives of a connection.
//!
//! They are the kernel's, since such a connection has no ring yet. A thread that sleeps is woken 25
//! to 60 µs late. So a wait begins with a spin if the last one was short ([`KernelWaits`]): a client
//! that connects for each request has its answers sooner, for the same CPU.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::OnceLock;

use fs_carrier::KernelWaits;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

use crate::slot::{Kind, Slot};
use crate::sys::kernel::{Fd, ThisThread};
use crate::{confined, process, promotion, table};

/// Estimates for all threads, because a server may have one for each connection.
static ACCEPTS: OnceLock<KernelWaits> = OnceLock::new();
static RECEIVES: OnceLock<KernelWaits> = OnceLock::new();

/// Begins the estimates. Until then no wait spins.
pub(crate) fn start() {
    for waits in [&ACCEPTS, &RECEIVES] {
        let _first = waits.set(KernelWaits::new(process::pacing()));
    }
}

/// Makes a call of accept(2).
#[inline]
pub(crate) fn accept<T>(fd: RawFd, call: impl FnOnce() -> T) -> T {
    // A negative number has no descriptor to borrow.
    if fd >= 0 && promotion::is_enabled() { around(&ACCEPTS, fd, call) } else { call() }
}

/// Makes a call of recv(2) with these flags.
#[inline]
pub(crate) fn receive<T>(fd: RawFd, flags: i32, call: impl FnOnce() -> T) -> T {
    let is_young = |slot: &Slot| slot.state().kind() == Kind::Watched && slot.is_young();
    if flags & libc::MSG_DONTWAIT == 0 && table::slot(fd).is_some_and(is_young) {
        around(&RECEIVES, fd, call)
    } else {
        call()
    }
}

fn around<T>(waits: &OnceLock<KernelWaits>, fd: RawFd, call: impl FnOnce() -> T) -> T {
    let Some(waits) = waits.get() else {
        return call();
    };
    let socket = Fd::new(fd);
    waits.around(process::pacing(), &ThisThread, || may_sleep(socket.borrow()), || is_ready(socket.borrow()), call)
}

fn may_sleep(socket: BorrowedFd<'_>) -> bool {
    !confined::is_confined() && rustix::fs::fcntl_getfl(socket).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
}

/// Returns whether a wait would end, also by an error.
fn is_ready(socket: BorrowedFd<'_>) -> bool {
    let mut list = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    rustix::event::poll(&mut list, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0)
}
