//! A request and its response, for the log and the counters. It ends and is recorded when the
//! response's body is dropped, complete or not.

use super::request_body::Progress;
use crate::clients::Busy;
use crate::relay::Moved;
use crate::site::{OrDash, Site};
use http::{Method, Uri};
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
    /// The bytes in both directions, once it is a tunnel.
    tunnel: Option<Moved>,
    method: Method,
    target: Uri,
    started: Instant,
    pub(crate) progress: Option<Rc<Progress>>,
    pub(crate) status: u16,
    pub(crate) server: Option<SocketAddr>,
    pub(crate) bytes_out: u64,
    /// The response was incomplete.
    pub(crate) broken: bool,
}

impl Exchange {
    /// Starts the exchange of a request that arrived on listener number `listener`.
    pub(crate) fn new(
        site: Rc<Site>,
        listener: usize,
        peer: SocketAddr,
        busy: Busy,
        method: Method,
        target: Uri,
    ) -> Self {
        Self {
            site,
            listener,
            peer,
            busy: Some(busy),
            tunnel: None,
            method,
            target,
            started: Instant::now(),
            progress: None,
            status: CLIENT_GONE,
            server: None,
            bytes_out: 0,
            broken: false,
        }
    }

    /// Records a 101 response. It is counted now, and logged when the tunnel ends.
    pub(crate) fn becomes_tunnel(&mut self) {
        self.busy = None;
        self.tunnel = Some(Moved::default());
        self.site.listener_stats(self.listener).answered(self.status, self.started.elapsed());
    }

    pub(crate) fn tunnel_ended(&mut self, moved: Moved, broken: bool) {
        (self.tunnel, self.broken) = (Some(moved), broken);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        let (bytes_in, bytes_out) = match self.tunnel {
            // The rest was counted when it became a tunnel.
            Some(Moved { from_client, to_client }) => (from_client, to_client),
            None => {
                let bytes_in = self.progress.as_ref().map_or(0, |progress| progress.bytes.get());
                let stats = self.site.listener_stats(self.listener);
                stats.answered(self.status, took);
                stats.bytes_in.add(bytes_in);
                stats.bytes_out.add(self.bytes_out);
                (bytes_in, self.bytes_out)
            }
        };
        let Self { site, listener, peer, method, target, status, server, broken, .. } = self;
        let name = &site.listeners[*listener].name;
        let server = OrDash(server.as_ref());
        let end = if *broken { " broken" } else { "" };
        let ms = took.as_micros() as f64 / 1000.0;
        // `Uri` has no control characters and no spaces. Quotes cannot end the field early, because
        // it is the last.
        site.log(format_args!(
            "{name} {peer} {status} {server} in={bytes_in} out={bytes_out} ms={ms:.3}{end} \"{method} {target}\""
        ));
    }
}
