//! Health checks: one task per server, on one core for all.

use crate::config::HealthCheck;
use crate::proxy_protocol;
use crate::site::Site;
use crate::stats::ServerIndex;
use crate::upstream::{Server, Upstream};
use fs_stacks::net::{is_own_shortage, within};
use std::io;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Starts the checks of a site's servers.
pub(crate) fn start(site: &Rc<Site>) {
    for (number, upstream) in site.config.upstreams.iter().enumerate() {
        let Some(check) = &upstream.health_check else { continue };
        for server in 0..upstream.servers.len() {
            site.add_check(tokio::task::spawn_local(watch(site.clone(), check.clone(), (number, server))));
        }
    }
}

/// Checks a server while its configuration is used.
async fn watch(site: Rc<Site>, check: HealthCheck, place: ServerIndex) {
    let upstream = &site.upstreams[place.0];
    let (stats, server) = (site.health(place), &upstream.servers[place.1]);
    let mut streak = Streak::default();
    let mut told = false;
    loop {
        let probe = probe(&site, upstream, server, &check);
        let result = within(check.timeout, probe).await;
        let (server, short) = (stats, result.as_ref().err().filter(|error| is_own_shortage(error)));
        if let Some(error) = short.filter(|_| !told) {
            tracing::warn!("upstream {} server {}: not checked: {error}", server.upstream, server.addr);
        }
        told = short.is_some();
        if told {
            // Nothing is known about the server.
            tokio::time::sleep(check.interval).await;
            continue;
        }
        if let Some(healthy) = streak.count(server.is_healthy(), result.is_ok(), &check) {
            server.set_healthy(healthy);
            match result {
                Ok(()) => tracing::info!("upstream {} server {}: healthy again", server.upstream, server.addr),
                Err(error) => tracing::warn!("upstream {} server {}: unhealthy: {error}", server.upstream, server.addr),
            }
        }
        tokio::time::sleep(check.interval).await;
    }
}

/// Consecutive checks that contradict a server's current state.
#[derive(Default)]
struct Streak(u32);

impl Streak {
    /// Records a check's result. Returns the new state if it changes.
    fn count(&mut self, healthy: bool, good: bool, check: &HealthCheck) -> Option<bool> {
        self.0 = if good == healthy { 0 } else { self.0 + 1 };
        let needed = if good { check.rise } else { check.fall };
        (good != healthy && self.0 >= needed.get()).then(|| {
            self.0 = 0;
            good
        })
    }
}

async fn probe(site: &Site, upstream: &Upstream, server: &Server, check: &HealthCheck) -> io::Result<()> {
    let path = check.path.as_deref();
    let mut stream = site.open(server, check.timeout).await?;
    let addr = server.addr;
    let Some(path) = path else { return Ok(()) };
    if let Some(version) = upstream.send_proxy {
        stream.write_all(&proxy_protocol::header(version, None)).await?;
    }
    let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nUser-Agent: fs-proxy\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    // "HTTP/1.1 200": the rest is not needed.
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    match &head[9..12] {
        [b'2' | b'3', ..] if head.starts_with(b"HTTP/1.") => Ok(()),
        _ => Err(io::Error::other(format!("answered {:?}", String::from_utf8_lossy(&head)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rise_good_and_fall_bad_checks_change_the_state() {
        let check = HealthCheck::default();
        assert_eq!((check.rise.get(), check.fall.get()), (2, 3));
        let mut streak = Streak::default();
        let mut healthy = true;
        let mut history = String::new();
        for good in [false, false, true, false, false, false, true, false, true, true, true] {
            healthy = streak.count(healthy, good, &check).unwrap_or(healthy);
            history.push(if healthy { '+' } else { '-' });
        }
        assert_eq!(history, "+++++----++");
    }
}
