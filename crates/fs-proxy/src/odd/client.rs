//! A client's connection on hyper.

use super::exchange::Exchange;
use super::headers;
use crate::clients::Connection;
use crate::edits::About;
use crate::site::Site;
use crate::socket::{Socket, Target};
use crate::upstream::Use;
use fs_stacks::Stream;
use hyper::client::conn::http1::Parts;
use hyper_util::rt::TokioIo;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::sync::oneshot;

/// A client's connection.
pub(crate) struct Client {
    pub(crate) site: Rc<Site>,
    pub(crate) listener: usize,
    pub(crate) peer: SocketAddr,
    /// See [`crate::socket::From`].
    pub(crate) is_proxy: bool,
    /// True if the connection uses TLS, whatever the current configuration requires of new ones.
    pub(crate) is_tls: bool,
    /// The socket of its connection, in any configuration.
    pub(super) socket: Rc<Socket>,
    pub(crate) connection: Rc<Connection>,
    /// Receives the server's side of an upgraded connection.
    pub(crate) tunnel: Rc<TunnelSlot>,
}

impl Client {
    pub(super) fn origin(&self) -> headers::Origin {
        headers::Origin { peer: self.peer, is_tls: self.is_tls, is_trusted: self.is_proxy }
    }

    pub(super) fn about(&self) -> About {
        About { client: self.peer.ip(), is_tls: self.is_tls }
    }

    /// Returns the same client under the current configuration, unless that has no HTTP listener at
    /// this address, or one that demands TLS or a certificate which this connection has not shown.
    pub(super) fn at_present(self: &Rc<Self>) -> Rc<Self> {
        let Some(Target { site, number }) = self.socket.http_target() else { return self.clone() };
        let (earlier, now) = (&self.site.config.listeners[self.listener], &site.config.listeners[number]);
        if !now.may_serve_clients_of(earlier, self.is_tls) {
            return self.clone();
        }
        let Self { site: _, listener: _, peer, is_proxy, is_tls, socket, connection, tunnel } = &**self;
        Rc::new(Self {
            site,
            listener: number,
            peer: *peer,
            is_proxy: *is_proxy,
            is_tls: *is_tls,
            socket: socket.clone(),
            connection: connection.clone(),
            tunnel: tunnel.clone(),
        })
    }
}

/// A server's connection, after hyper has released it.
type Switched = (SocketAddr, Parts<TokioIo<Stream>>);

/// Receives the two halves of a tunnel.
#[derive(Default)]
pub(crate) struct TunnelSlot {
    pub(crate) server: Cell<Option<oneshot::Receiver<Switched>>>,
    /// The exchange that became a tunnel, and its use of the server.
    pub(crate) exchange: Cell<Option<(Exchange, Use)>>,
}
