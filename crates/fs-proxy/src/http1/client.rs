//! A client's connection on the lean path, and its request in progress.

use super::body::Body;
use super::buffers::Kept;
use super::head::{Added, Request};
use super::per_core::Core;
use crate::clients::Connection;
use crate::edits::About;
use crate::site::Site;
use crate::socket::From;
use crate::stats::ServerIndex;
use fs_stacks::Stream;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

/// Status in the log for a client that closed before there was a response (nginx's number).
pub(super) const CLIENT_GONE: u16 = 499;

/// A request in progress.
pub(super) struct Asked {
    /// The head for the server, with the first part of the body.
    pub(super) head: Vec<u8>,
    /// The rest of the body.
    pub(super) body: Body,
    /// Content bytes in `head`.
    pub(super) content: u64,
    pub(super) has_body: bool,
    pub(super) close: bool,
    pub(super) is_head: bool,
    pub(super) may_repeat: bool,
    pub(super) started: Instant,
}

impl Asked {
    pub(super) fn new(request: Request, head: Vec<u8>, has_body: bool, content: u64) -> Self {
        let Request { body, close, is_head, may_repeat } = request;
        Self { head, body, content, has_body, close, is_head, may_repeat, started: Instant::now() }
    }
}

/// An exchange, as recorded in the log and the counters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) status: u16,
    /// The last server that was tried.
    pub(super) server: Option<(SocketAddr, ServerIndex)>,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    /// The response has begun, and is incomplete.
    pub(super) is_broken: bool,
}

impl Record {
    pub(super) fn new(content: u64) -> Self {
        Self { status: CLIENT_GONE, server: None, bytes_in: content, bytes_out: 0, is_broken: false }
    }

    /// Records the start of a response.
    pub(super) fn answered(&mut self, status: u16) {
        (self.status, self.is_broken) = (status, true);
    }

    /// Returns true if a part of a response was sent, but not all.
    pub(super) fn has_answer(&self) -> bool {
        self.is_broken
    }
}

/// A client's connection.
pub(super) struct Client<'a> {
    pub(super) site: &'a Rc<Site>,
    pub(super) connection: &'a Rc<Connection>,
    pub(super) from: From,
    pub(super) stream: Stream,
    pub(super) added: Added,
    /// Bytes read from the client and not consumed.
    pub(super) held: Kept,
    /// Bytes of `held` that were checked and are no complete head.
    pub(super) seen: usize,
    /// The client has ended its stream: after `held` there is no request.
    pub(super) has_ended: bool,
    /// Bytes for the server that it has not taken yet.
    pub(super) up: Kept,
    /// For the client.
    pub(super) down: Kept,
    /// The first part of a response's head.
    pub(super) answer: Kept,
}

impl<'a> Client<'a> {
    pub(super) fn new(site: &'a Rc<Site>, connection: &'a Rc<Connection>, from: From, stream: Stream) -> Self {
        let kept = || Kept::new(&site.lean.buffers);
        Self {
            site,
            connection,
            from,
            stream,
            added: Added::new(from.peer.ip(), from.is_tls, from.is_proxy),
            held: kept(),
            seen: 0,
            has_ended: false,
            up: kept(),
            down: kept(),
            answer: kept(),
        }
    }

    pub(super) fn about(&self) -> About {
        About { client: self.from.peer.ip(), is_tls: self.from.is_tls }
    }

    pub(super) fn core(&self) -> &'a Core {
        &self.site.lean
    }
}
