//! A local port that sockets of a core use.

use crate::carrier::Carriers;
use crate::ports::LeasedAddress;
use crate::shared::Shared;
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

/// A local port that is ours while a clone of this lives. Listeners hold one, and so do the
/// connections that they accept, because their packets must still reach us after the listener is
/// closed.
#[derive(Clone)]
#[must_use = "the port is free again when this is dropped"]
pub struct PortLease(Rc<Lease>);

struct Lease {
    shared: Arc<Shared>,
    place: LeasedAddress,
    /// A connection has used the port and may still be in FIN-WAIT or TIME-WAIT after its socket is
    /// gone.
    carried: Cell<bool>,
}

impl PortLease {
    /// Wraps a port that was just reserved.
    pub(super) fn new(shared: Arc<Shared>, place: LeasedAddress) -> Self {
        Self(Rc::new(Lease { shared, place, carried: Cell::new(false) }))
    }

    /// Returns the address, with the chosen port.
    pub fn addr(&self) -> SocketAddr {
        self.0.place.at
    }

    /// Returns another descriptor of the kernel's socket that reserves the port for us,
    /// non-blocking. `None` in standalone addressing, and if another process holds the port. For
    /// UDP, the kernel delivers to this socket what the XDP program leaves to it: reassembled
    /// datagrams, broadcasts and multicasts.
    pub fn kernel_socket(&self) -> io::Result<Option<OwnedFd>> {
        self.0.shared.ports.kernel_socket(self.0.place)
    }

    /// Listens on the kernel's socket that reserves the port for us. Returns another descriptor of
    /// it, non-blocking, and a value that keeps it listening. The cores that listen at one address
    /// share its queue. `None` if there is no kernel socket.
    pub fn listen_in_kernel(&self, backlog: u32) -> io::Result<Option<(OwnedFd, KernelListen)>> {
        let Lease { shared, place, .. } = &*self.0;
        if shared.carriers == Carriers::Core {
            return Ok(None);
        }
        Ok(shared.ports.listen(*place, backlog)?.map(|fd| (fd, KernelListen(self.clone()))))
    }

    /// Leaves new connections to another process that has the kernel's socket too
    /// ([`PortLease::kernel_socket`]). The port's other packets stay ours.
    pub fn leave(&self) {
        self.0.shared.ports.leave(self.0.place);
    }

    /// Sets how many connections may wait in the kernel's queue.
    pub fn set_kernel_backlog(&self, backlog: u32) -> io::Result<()> {
        self.0.shared.ports.set_backlog(self.0.place, backlog)
    }

    /// Returns the kernel's socket that reserves the port, to connect with it. The port then
    /// belongs to that socket. `None` if there is no such socket, or other sockets use the port
    /// too.
    pub fn into_kernel_socket(self) -> Option<OwnedFd> {
        self.0.shared.ports.take_socket(self.0.place)
    }

    /// Returns a lease for a connection on this port.
    pub fn for_connection(&self) -> Self {
        self.0.carried.set(true);
        self.clone()
    }
}

/// Keeps the kernel listening at a leased address. When the last one of an address is dropped,
/// connections that were not accepted are reset.
#[must_use = "the kernel listens until this is dropped"]
#[derive(Debug)]
pub struct KernelListen(PortLease);

impl Drop for KernelListen {
    fn drop(&mut self) {
        let Lease { shared, place, .. } = &*self.0.0;
        shared.ports.stop_listening(*place);
    }
}

impl std::fmt::Debug for PortLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PortLease({:?} {})", self.0.place.protocol, self.0.place.at)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.ports.release(self.place, self.carried.get());
    }
}
