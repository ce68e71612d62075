//! The spliced flows of this process, as the admin socket and the status page show them.

use crate::table::Table;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Rows of the status page. More: a browser with thousands of rows; the admin socket has all.
const PAGE_ROWS: usize = 50;

/// The flows by a number that grows. A core takes the lock when a flow begins and when it ends.
static OPEN: Mutex<BTreeMap<u64, Arc<Listed>>> = Mutex::new(BTreeMap::new());

fn open() -> MutexGuard<'static, BTreeMap<u64, Arc<Listed>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A flow's listener and addresses.
#[derive(Clone, Debug)]
pub(crate) struct FlowEnds {
    pub(crate) listener: String,
    /// The client, as the access log names it.
    pub(crate) client: SocketAddr,
    /// The proxy's own address of the connection to the server.
    pub(crate) proxy: SocketAddr,
    pub(crate) server: SocketAddr,
}

#[derive(Debug)]
struct Listed {
    ends: FlowEnds,
    since: Instant,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    /// The time of the last byte, in milliseconds after `since`.
    moved_ms: AtomicU64,
}

/// A flow in the list, until this is dropped.
pub(crate) struct Entry {
    number: u64,
    listed: Arc<Listed>,
}

impl Entry {
    pub(crate) fn new(ends: FlowEnds) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (since, [bytes_in, bytes_out, moved_ms]) = (Instant::now(), [0; 3].map(AtomicU64::new));
        let listed = Arc::new(Listed { ends, since, bytes_in, bytes_out, moved_ms });
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        open().insert(number, listed.clone());
        Self { number, listed }
    }

    /// Records the bytes that were relayed, also those before it was spliced: to the client, from it.
    pub(crate) fn moved(&self, [to_client, from_client]: [u64; 2]) {
        let listed = &self.listed;
        let ms = u64::try_from(listed.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        listed.bytes_in.store(from_client, Ordering::Relaxed);
        listed.bytes_out.store(to_client, Ordering::Relaxed);
        listed.moved_ms.store(ms, Ordering::Relaxed);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        open().remove(&self.number);
    }
}

/// A spliced flow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FlowStatus {
    listener: String,
    client: String,
    /// The proxy's own address of the connection to the server, as in packets.
    proxy: String,
    server: String,
    /// The time since it was spliced.
    seconds: f64,
    /// The time since the last byte was acknowledged.
    idle_seconds: f64,
    /// Bytes from the client.
    bytes_in: u64,
    /// Bytes to the client.
    bytes_out: u64,
}

/// Returns the flows that are open, those with most bytes first.
pub(crate) fn flows() -> Vec<FlowStatus> {
    // Copied first: text of many flows takes longer than a core may wait.
    let listed: Vec<Arc<Listed>> = open().values().cloned().collect();
    let mut flows: Vec<FlowStatus> = listed.iter().map(|listed| listed.status()).collect();
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.bytes_in.saturating_add(flow.bytes_out)));
    flows
}

impl Listed {
    fn status(&self) -> FlowStatus {
        let FlowEnds { listener, client, proxy, server } = &self.ends;
        let seconds = self.since.elapsed().as_secs_f64();
        FlowStatus {
            listener: listener.clone(),
            client: client.to_string(),
            proxy: proxy.to_string(),
            server: server.to_string(),
            seconds,
            idle_seconds: (seconds - self.moved_ms.load(Ordering::Relaxed) as f64 / 1000.0).max(0.0),
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
        }
    }
}

/// Returns the table of some flows.
pub(crate) fn table(flows: &[FlowStatus]) -> Table {
    let heads = ["listener", "client", "proxy", "server", "open s", "idle s", "bytes in", "bytes out"];
    let mut table = Table::new(heads.map(str::to_owned).into_iter());
    for flow in flows {
        let FlowStatus { listener, client, proxy, server, seconds, idle_seconds, bytes_in, bytes_out } = flow;
        let times = [seconds, idle_seconds].map(|seconds| format!("{seconds:.1}"));
        let bytes = [bytes_in, bytes_out].map(u64::to_string);
        let row = [listener, client, proxy, server].into_iter().cloned().chain(times).chain(bytes);
        table.rows.push(row.collect());
    }
    table
}

/// Appends the flows to the status page, if there are any.
pub(crate) fn html(flows: &[FlowStatus], page: &mut String) {
    if flows.is_empty() {
        return;
    }
    table(&flows[..flows.len().min(PAGE_ROWS)]).html(page);
    if let Some(more) = flows.len().checked_sub(PAGE_ROWS).filter(|more| *more > 0) {
        page.push_str(&format!("<p>{more} more flows with fewer bytes: fs-proxy admin flows</p>\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_listed_until_they_end() {
        let ends = |port| FlowEnds {
            listener: "a<b".into(),
            client: ([10, 0, 0, 1], port).into(),
            proxy: ([10, 0, 1, 1], port).into(),
            server: ([10, 0, 1, 2], 80).into(),
        };
        let entries: Vec<Entry> = (1..=PAGE_ROWS as u16 + 2).map(|port| Entry::new(ends(port))).collect();
        entries[7].moved([70_000, 5]);
        let flows = flows();
        assert_eq!(flows.len(), PAGE_ROWS + 2);
        let mut text = String::new();
        table(&flows).text(&mut text);
        let first: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(first[..4], ["a<b", "10.0.0.1:8", "10.0.1.1:8", "10.0.1.2:80"]);
        assert_eq!(first[6..], ["5", "70000"]);
        let mut page = String::new();
        html(&flows, &mut page);
        assert!(page.contains("<td>a&lt;b</td><td>10.0.0.1:8</td>") && page.contains("<p>2 more flows"), "{page}");
        assert_eq!(page.matches("<tr>").count(), 1 + PAGE_ROWS);
        drop(entries);
        assert!(super::flows().is_empty());
        page.clear();
        html(&[], &mut page);
        assert_eq!(page, "");
    }
}
