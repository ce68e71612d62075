//! Ports that connections keep in use after their listener was closed: the daemon holds them (`fs-daemon/src/server/ports.rs`).

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::io::Errno;

use crate::{address, process, socket::Socket, sys::call, types::Fd};

/// A listener is being closed whose port is to be taken when that is done.
static DUE: AtomicBool = AtomicBool::new(false);

/// The daemon says so of a listener that is about to be closed.
pub(crate) fn close_is_due() {
    DUE.store(true, Relaxed);
}

/// Whether [`closed`] is to be called after the kernel's close.
pub(crate) fn is_close_due() -> bool {
    DUE.load(Relaxed)
}

/// A descriptor has been closed. Who binds its port from here on finds it in use.
pub(crate) fn closed() {
    // Another thread's is closed perhaps a little later: then the daemon tries again.
    if DUE.load(Relaxed) && DUE.swap(false, Relaxed) {
        settle(0);
    }
}

/// bind(2). A port in use may be one that nobody uses any more: the daemon looks once a second.
pub(crate) fn bind(fd: Fd, socket: &Socket, address: &[u8]) -> Result<(), Errno> {
    let answer = call::bind(fd, address);
    match address::parse(address, socket.family()) {
        Some(wish) if answer == Err(Errno::ADDRINUSE) && wish.port() != 0 && settle(wish.port()) => {
            call::bind(fd, address)
        }
        _ => answer,
    }
}

/// False: there is no daemon.
fn settle(port: u16) -> bool {
    let Some(attachment) = process::attached() else { return false };
    let told = attachment.client().ports(port);
    told.inspect_err(|error| attachment.failed(error)).is_ok()
}
