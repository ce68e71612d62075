//! The start of a connection from a proxy that sends its client's address (`accept_proxy`).

use crate::clients::Connection;
use crate::handshake::stopped;
use crate::proxy_protocol;
use crate::site::Site;
use fs_stacks::Stream;
use fs_stacks::net::within;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

/// Reads the header of the PROXY protocol, within the time limit of a request's head. Returns the
/// client, if the header names one, and the connection, or `None` if there is no client to serve.
pub(crate) async fn accept(
    site: &Site,
    listener: usize,
    mut stream: Stream,
    peer: SocketAddr,
    connection: &Connection,
) -> Option<(Option<SocketAddr>, Stream)> {
    let started = Instant::now();
    let result = match site.listeners[listener].may_introduce(peer.ip()) {
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer is not one of trusted_proxies")),
        true => tokio::select! {
            biased;
            () = connection.leaving() => return None,
            read = within(site.config.timeouts.idle, proxy_protocol::read(&mut stream)) => read,
            () = stopped(site) => return None,
        },
    };
    match result {
        Ok(client) => Some((client, stream)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
        Err(error) => {
            site.listener_stats(listener).failed.add(1);
            site.log_tcp(listener, peer, None, Default::default(), started, &error.to_string());
            // Without a header the rest of the stream cannot be interpreted. The call fails if the
            // peer has disconnected.
            let _ = stream.set_zero_linger();
            None
        }
    }
}
