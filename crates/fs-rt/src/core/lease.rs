//! A local port that sockets of a core use.

use crate::carrier::Carriers;
use crate::ports::Place;
use crate::shared::Shared;
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

/// A local port that is ours as long as a clone of this lives: listeners hold one, and so do the connections
/// that they accept, because their packets must keep coming to us after the listener is closed.
#[derive(Clone)]
#[must_use = "the port is free again when this is dropped"]
pub struct PortLease(Rc<Lease>);

struct Lease {
    shared: Arc<Shared>,
    place: Place,
    /// A connection has used it, which may still be in FIN-WAIT or TIME-WAIT when its socket is gone.
    carried: Cell<bool>,
}

impl PortLease {
    /// Of a place that was just acquired.
    pub(super) fn new(shared: Arc<Shared>, place: Place) -> Self {
        Self(Rc::new(Lease { shared, place, carried: Cell::new(false) }))
    }

    /// The address, with the port that was chosen.
    pub fn addr(&self) -> SocketAddr {
        self.0.place.at
    }

    /// Another descriptor of the kernel's socket that is bound there for us, and non-blocking; `None` in standalone
    /// addressing, and where another process holds the port. Of UDP it is where the kernel delivers what the XDP program
    /// leaves to it: fragmented datagrams, once they are whole, broadcasts and multicasts.
    pub fn kernel_socket(&self) -> io::Result<Option<OwnedFd>> {
        self.0.shared.ports.kernel_socket(self.0.place)
    }

    /// Listens on the kernel's socket that is bound there for us: another descriptor of it, non-blocking, and what keeps it
    /// listening. The cores that listen at one address share its queue. `None` where no socket there is the kernel's.
    pub fn listen_in_kernel(&self, backlog: u32) -> io::Result<Option<(OwnedFd, KernelListen)>> {
        let Lease { shared, place, .. } = &*self.0;
        if shared.carriers == Carriers::Core {
            return Ok(None);
        }
        Ok(shared.ports.listen(*place, backlog)?.map(|fd| (fd, KernelListen(self.clone()))))
    }

    /// How many connections may wait in the kernel where it listens for us.
    pub fn set_kernel_backlog(&self, backlog: u32) -> io::Result<()> {
        self.0.shared.ports.set_backlog(self.0.place, backlog)
    }

    /// The kernel's socket that is bound there, to connect by: the port is that socket's from here on. `None` where there is
    /// none of ours, or others use the port too.
    pub fn into_kernel_socket(self) -> Option<OwnedFd> {
        self.0.shared.ports.take_socket(self.0.place)
    }

    /// For a connection on this port.
    pub fn for_connection(&self) -> Self {
        self.0.carried.set(true);
        self.clone()
    }
}

/// Keeps the kernel listening at a leased address. When the last one of an address is dropped, connections that nobody has
/// accepted are reset.
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
