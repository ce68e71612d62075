//! A client's TLS handshake, before there is a connection to serve.

use crate::clients::Connection;
use crate::config::Mode;
use crate::site::Site;
use crate::tls;
use fs_stacks::Stream;
use fs_stacks::net::within;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Time that a stop waits for the start of a connection: a handshake, a name, or a PROXY header.
/// Shorter: distant clients (three round trips and their own work) are cut off. Longer: a silent client
/// delays the stop.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// Performs the handshake, within the time limit of a request's head. Returns `None` if there is no
/// client to serve.
pub(crate) async fn accept(
    site: &Site,
    listener: usize,
    acceptor: &tls::Acceptor,
    stream: Stream,
    peer: SocketAddr,
    connection: &Connection,
) -> Option<Stream> {
    let started = Instant::now();
    let stats = site.listener_stats(listener);
    let handshake = within(site.config.timeouts.idle, async {
        // A client that closes before its first byte has not started a handshake: for example a
        // health check that only tests whether the port is open.
        if matches!(stream.peek(&mut [0]).await, Ok(0) | Err(_)) {
            return Ok(None);
        }
        tls::accept(acceptor, stream).await.map(Some)
    });
    let result = tokio::select! {
        biased;
        // Checked first, so that a client that was asked to close is not served even if its
        // handshake ends now.
        () = connection.leaving() => Ok(None),
        result = handshake => result,
        () = stopped(site) => Ok(None),
    };
    match result {
        Ok(Some(stream)) => {
            stats.handshakes.add(1);
            Some(stream)
        }
        Ok(None) => None,
        Err(error) => {
            stats.handshakes_failed.add(1);
            stats.failed.add(1);
            failed(site, listener, peer, started, &error);
            None
        }
    }
}

/// Completes when a stop no longer waits for the start of a connection.
pub(crate) async fn stopped(site: &Site) {
    site.stop.requested().await;
    tokio::time::sleep(STOP_GRACE).await;
}

fn failed(site: &Site, listener: usize, peer: SocketAddr, started: Instant, error: &io::Error) {
    tracing::debug!("{peer}: TLS handshake: {error}");
    if site.listeners[listener].mode == Mode::Tcp {
        let outcome = format!("TLS handshake: {error}");
        site.log_tcp(listener, peer, None, Default::default(), started, &outcome);
    }
}
