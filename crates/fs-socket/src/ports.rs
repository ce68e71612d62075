//! Ports that connections keep in use after their listener was closed: the daemon holds them (`fs-daemon/src/server/ports.rs`).

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::io::Errno;

use crate::{process, sys::call, types::Fd};

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
pub(crate) fn bind(fd: Fd, address: &[u8]) -> Result<(), Errno> {
    crate::descriptor::kept::spoil_number(fd);
    let answer = call::bind(fd, address);
    // AF_UNSPEC, which __inet_bind() of the kernel takes too, has it at the same place.
    let port = address.get(2..4).and_then(|port| port.first_chunk()).map_or(0, |port| u16::from_be_bytes(*port));
    if answer == Err(Errno::ADDRINUSE) && port != 0 && settle(port) { call::bind(fd, address) } else { answer }
}

/// The daemon looks at what keeps this port in use; 0: at those that it has not taken yet. False: there is no daemon.
pub(crate) fn settle(port: u16) -> bool {
    let Some(attachment) = process::attached() else { return false };
    let told = attachment.client().ports(port);
    told.inspect_err(|error| attachment.failed(error)).is_ok()
}
