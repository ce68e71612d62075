//! A request and its response, for the log and the counters. It ends and is recorded when the
//! response's body is dropped, complete or not.

use super::request_body::Progress;
use crate::clients::{Busy, Place, Unsent};
use crate::log_entry::{Entry, LOGGED_FIELDS, Request, What};
use crate::relay::Moved;
use crate::site::Site;
use crate::stats::{Answer, ServerIndex};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Uri, Version, request};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

/// Status in the log for a client that closed before there was a response (nginx's number).
const CLIENT_GONE: u16 = 499;

pub(crate) struct Exchange {
    site: Rc<Site>,
    listener: usize,
    peer: SocketAddr,
    /// `None` for a tunnel, where bytes count as activity.
    busy: Option<Busy>,
    /// A place for its connection to a server, if the client has other requests at the same time.
    pub(crate) place: Option<Place>,
    is_tunnel: bool,
    /// The bytes of a tunnel in both directions.
    pub(super) moved: Cell<Moved>,
    method: Method,
    target: Uri,
    version: Version,
    /// [`LOGGED_FIELDS`], if the log has them.
    fields: [Option<HeaderValue>; 3],
    started: Instant,
    pub(crate) progress: Option<Rc<Progress>>,
    pub(crate) status: u16,
    /// The server of the response, or the last one that was tried.
    pub(crate) server: Option<(SocketAddr, ServerIndex)>,
    pub(crate) bytes_out: u64,
    /// The response was incomplete.
    pub(crate) broken: bool,
}

impl Exchange {
    /// Starts the exchange of a request that arrived on listener number `listener`.
    pub(crate) fn new(site: Rc<Site>, listener: usize, peer: SocketAddr, busy: Busy, head: &request::Parts) -> Self {
        let (method, target, version) = (head.method.clone(), head.uri.clone(), head.version);
        Self {
            site,
            listener,
            peer,
            busy: Some(busy),
            place: None,
            is_tunnel: false,
            moved: Cell::default(),
            method,
            target,
            version,
            fields: Default::default(),
            started: Instant::now(),
            progress: None,
            status: CLIENT_GONE,
            server: None,
            bytes_out: 0,
            broken: false,
        }
    }

    /// Marks a part of the response as not sent, until the guard is dropped.
    pub(crate) fn unsent(&self) -> Option<Unsent> {
        self.busy.as_ref().map(Busy::unsent)
    }

    pub(crate) fn is_head(&self) -> bool {
        self.method == Method::HEAD
    }

    /// Keeps the fields that the log has, of the request as the server gets it.
    pub(crate) fn keep_fields(&mut self, headers: &HeaderMap) {
        if self.site.logs_fields() {
            self.fields = LOGGED_FIELDS.map(|name| headers.get(name).cloned());
        }
    }

    /// Records a 101 response. It is counted now, and logged when the tunnel ends: incomplete, unless
    /// `broken` says otherwise by then.
    pub(crate) fn becomes_tunnel(&mut self) {
        self.busy = None;
        (self.is_tunnel, self.broken) = (true, true);
        self.count();
    }

    fn count(&self) {
        let answer = Answer::new(self.status, self.started.elapsed());
        let answers = self.server.filter(|_| self.status != CLIENT_GONE).map(|(_, index)| index);
        self.site.count_answer(self.listener, answers, answer);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        let Moved { from_client, to_client } = self.moved.get();
        let (bytes_in, bytes_out) = match self.is_tunnel {
            // The rest was counted when it became a tunnel.
            true => (from_client, to_client),
            false => {
                let bytes_in = self.progress.as_ref().map_or(0, |progress| progress.bytes.get());
                self.count();
                let stats = self.site.listener_stats(self.listener);
                stats.bytes_in.add(bytes_in);
                stats.bytes_out.add(self.bytes_out);
                (bytes_in, self.bytes_out)
            }
        };
        let Self { site, listener, peer, method, target, version, status, server, broken, fields, .. } = self;
        let [referer, agent, id] = fields.each_ref().map(|field| field.as_ref().map(HeaderValue::as_bytes));
        let (target, version) = match *version {
            // In HTTP/2, the host is a part of the target, and is not logged for HTTP/1.1 either.
            Version::HTTP_2 => (target.path_and_query().map_or("*", PathAndQuery::as_str).to_owned(), "HTTP/2.0"),
            Version::HTTP_10 => (target.to_string(), "HTTP/1.0"),
            _ => (target.to_string(), "HTTP/1.1"),
        };
        let (status, is_broken, method, target) = (*status, *broken, method.as_str(), &*target);
        let what = What::Request(Request { status, method, target, version, referer, agent, id, is_broken });
        let (listener, client, server) = (&*site.listeners[*listener].name, *peer, server.map(|(addr, _)| addr));
        site.log(&Entry { listener, client, server, bytes_in, bytes_out, took, what });
    }
}
