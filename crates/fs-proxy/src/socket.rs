//! Listening sockets, and where their connections come from.

use crate::config::Mode;
use crate::site::Site;
use fs_example_common::LocalStop;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

/// A listening socket, as its connections know it. They may outlive it, and it outlives
/// configurations.
pub(crate) struct Socket {
    /// As configured: with port 0 if the port is any.
    pub(crate) address: SocketAddr,
    pub(crate) local_addr: SocketAddr,
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
    pub(crate) peer: SocketAddr,
    pub(crate) is_tls: bool,
}

impl Socket {
    pub(crate) fn name(&self) -> String {
        let Target { site, number } = &*self.target.borrow();
        site.listeners[*number].name.clone()
    }

    /// Returns the site that now serves requests of its HTTP connections, if its listener is for
    /// HTTP.
    pub(crate) fn http_target(&self) -> Option<Target> {
        let target = self.target.borrow();
        (target.site.listeners[target.number].mode == Mode::Http).then(|| target.clone())
    }
}
