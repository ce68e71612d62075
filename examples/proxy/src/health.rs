//! Health checks: one task per server, on one core for all.

use crate::config::HealthCheck;
use crate::stats::Stats;
use fs_example_common::net::within;
use fs_example_common::{StackKind, cores};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A server's place in the counters.
pub(crate) type Place = (usize, usize);

/// Checks a server for as long as the program runs.
pub(crate) async fn watch(stack: StackKind, check: HealthCheck, stats: Arc<Stats>, place: Place) {
    let server = &stats.servers[place.0][place.1];
    let mut streak = Streak::default();
    loop {
        let result = within(check.timeout, probe(stack, server.addr, check.path.as_deref())).await;
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

/// Checks in a row that contradict what a server is taken for.
#[derive(Default)]
struct Streak(u32);

impl Streak {
    /// Takes a check's result. Some when it changes what the server is taken for.
    fn count(&mut self, healthy: bool, good: bool, check: &HealthCheck) -> Option<bool> {
        self.0 = if good == healthy { 0 } else { self.0 + 1 };
        let needed = if good { check.rise } else { check.fall };
        (good != healthy && self.0 >= needed.get()).then(|| {
            self.0 = 0;
            good
        })
    }
}

async fn probe(stack: StackKind, addr: SocketAddr, path: Option<&str>) -> io::Result<()> {
    let mut stream = cores::connect(stack, addr, None).await?;
    let Some(path) = path else { return Ok(()) };
    let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nUser-Agent: fs-proxy\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    // "HTTP/1.1 200": the rest is of no interest.
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
    fn it_takes_rise_good_and_fall_bad_ones() {
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
