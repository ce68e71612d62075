//! Health checks: one task per server, on one core for all.

use crate::config::{HealthCheck, ServerConfig};
use crate::edits::About;
use crate::proxy_protocol;
use crate::site::Site;
use crate::stats::ServerIndex;
use fs_stacks::net::{is_own_shortage, within};
use std::io;
use std::rc::{Rc, Weak};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Starts the checks of a site's servers.
pub(crate) fn start(site: &Rc<Site>) {
    for (number, upstream) in site.config.upstreams.iter().enumerate() {
        let Some(check) = &upstream.health_check else { continue };
        for server in 0..upstream.servers.len() {
            tokio::task::spawn_local(watch(Rc::downgrade(site), check.clone(), (number, server)));
        }
    }
}

/// Checks a server while its configuration is used. A check in progress is completed: if names of
/// servers change more often than a silent server takes to fail one, no other would be.
async fn watch(site: Weak<Site>, check: HealthCheck, place: ServerIndex) {
    let mut told = false;
    while let Some(site) = site.upgrade().filter(|site| !site.is_retired()) {
        let server = site.health(place);
        let result = within(check.timeout, probe(&site, place, &check)).await;
        let short = result.as_ref().err().filter(|error| is_own_shortage(error));
        if let Some(error) = short.filter(|_| !told) {
            tracing::warn!("upstream {} server {}: not checked: {error}", server.upstream, server.addr);
        }
        told = short.is_some();
        // With a shortage of ours, nothing is known about the server.
        if !told && server.checked(result.is_ok(), &check) {
            match result {
                Ok(()) => tracing::info!("upstream {} server {}: healthy again", server.upstream, server.addr),
                Err(error) => tracing::warn!("upstream {} server {}: unhealthy: {error}", server.upstream, server.addr),
            }
        }
        drop(site);
        tokio::time::sleep(check.interval).await;
    }
}

async fn probe(site: &Site, place: ServerIndex, check: &HealthCheck) -> io::Result<()> {
    let upstream = &site.upstreams[place.0];
    let mut stream = site.open(&upstream.servers[place.1], check.timeout).await?;
    let Some(path) = check.path.as_deref() else { return Ok(()) };
    if let Some(version) = upstream.send_proxy {
        stream.write_all(&proxy_protocol::header(version, None)).await?;
    }
    let ServerConfig { addr, name, .. } = &site.config.upstreams[place.0].servers[place.1];
    // A server with several hosts knows none by its address.
    let host = name.as_ref().map_or(addr.to_string(), |name| format!("{name}:{}", addr.port()));
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: fs-proxy\r\nConnection: close\r\n\r\n");
    let mut request = request.into_bytes();
    if let Some(edits) = &upstream.request_edits {
        edits.apply_to_head(&mut request, About { client: stream.local_addr()?.ip(), is_tls: false });
    }
    stream.write_all(&request).await?;
    // "HTTP/1.1 200": the rest is not needed.
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    match &head[9..12] {
        [b'2' | b'3', ..] if head.starts_with(b"HTTP/1.") => Ok(()),
        _ => Err(io::Error::other(format!("answered {:?}", String::from_utf8_lossy(&head)))),
    }
}
