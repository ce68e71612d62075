//! Listening sockets, and where their connections come from.

use crate::config::Mode;
use crate::handover::{Passed, Role};
use crate::site::Site;
use fs_stacks::{Listener, LocalStop};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

/// A listening socket, as its connections know it. They may outlive it, and it outlives
/// configurations.
pub(crate) struct Socket {
    /// The configured address. Its port is 0 if the kernel chooses one.
    pub(crate) address: SocketAddr,
    pub(crate) local_addr: SocketAddr,
    /// The socket's number among the listeners with this address.
    pub(crate) occurrence: usize,
    /// Open until its stop. Several only if a predecessor had more cores.
    pub(crate) listeners: Vec<Weak<Listener>>,
    /// The site that serves its connections.
    pub(crate) target: RefCell<Target>,
    pub(crate) stop: LocalStop,
}

/// A listener of a configuration.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) site: Rc<Site>,
    pub(crate) number: usize,
}

/// The origin of a connection.
#[derive(Clone, Copy)]
pub(crate) struct From {
    /// The listener's number.
    pub(crate) listener: usize,
    /// The client: the peer, or the one that the peer speaks for (PROXY protocol).
    pub(crate) peer: SocketAddr,
    /// The peer is one of `trusted_proxies`, and the connection is its own: it names no client.
    pub(crate) is_proxy: bool,
    pub(crate) is_tls: bool,
}

impl Socket {
    pub(crate) fn name(&self) -> String {
        let Target { site, number } = &*self.target.borrow();
        site.listeners[*number].name.clone()
    }

    /// Returns further descriptors of the kernel's sockets.
    pub(crate) fn passed(&self) -> io::Result<Vec<Passed>> {
        let role = Role::Listener(self.address, self.occurrence);
        let listeners = self.listeners.iter().filter_map(Weak::upgrade);
        let sockets = listeners.filter_map(|listener| listener.kernel_socket().transpose());
        sockets.map(|socket| Ok(Passed { role, socket: socket? })).collect()
    }

    /// Returns the site that now serves requests of its HTTP connections, if its listener is for
    /// HTTP.
    pub(crate) fn http_target(&self) -> Option<Target> {
        let target = self.target.borrow();
        (target.site.listeners[target.number].mode == Mode::Http).then(|| target.clone())
    }
}
