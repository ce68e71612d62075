//! Two runtimes of one core each, joined by links in memory, in standalone addressing.
#![allow(dead_code)]

pub(crate) mod background;

use fs_core::Framing;
use fs_rt::{CoreCtx, CoreStats, LinkChoice, RunError, Runtime, Standalone};
use fs_xdp::Link;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

pub(crate) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
pub(crate) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));
pub(crate) const SERVER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1));
pub(crate) const CLIENT6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2));

pub(crate) fn server(port: u16) -> SocketAddr {
    SocketAddr::new(SERVER, port)
}

/// Returns how many connections the server's core has now. Published counters can be older.
async fn alive(server: &fs_rt::Handle) -> usize {
    let (tell, told) = tokio::sync::oneshot::channel();
    let look = move || async move {
        let alive = fs_rt::CoreRef::require().map(|core| core.inspect(|stack| stack.tcp_connections()));
        let _ = tell.send(alive.unwrap_or_default());
    };
    match server.spawn_on(0, look) {
        Ok(()) => told.await.unwrap_or_default(),
        Err(_) => 0,
    }
}

pub(crate) fn runtime(own: Standalone, links: Vec<Box<dyn Link>>) -> Runtime {
    ending_within(Duration::from_millis(200), own, links)
}

/// Like `runtime`. `drain` limits the end of its run.
pub(crate) fn ending_within(drain: Duration, own: Standalone, links: Vec<Box<dyn Link>>) -> Runtime {
    let cores = links.len();
    Runtime::builder()
        .device("memory")
        .cores(0..cores)
        .pin(false)
        .link(LinkChoice::Memory(links))
        .standalone(own)
        .frames(8192)
        .drain(drain)
        .build()
        .unwrap()
}

/// Runs `serve` at `SERVER` and `drive` at `CLIENT`. The server is shut down when `drive` is done.
/// Fails after 120 s.
pub(crate) fn both<S, SF, C, CF, T>(serve: S, drive: C) -> (T, CoreStats, CoreStats)
where
    S: FnOnce(CoreCtx) -> SF + Send + Clone + 'static,
    SF: Future<Output = ()> + 'static,
    C: FnOnce(CoreCtx) -> CF + Send + Clone + 'static,
    CF: Future<Output = T> + 'static,
    T: Send + 'static,
{
    both_ending_within(Duration::from_millis(500), serve, drive)
}

/// Like `both`, with a time in which the server's connections must end.
pub(crate) fn both_ending_within<S, SF, C, CF, T>(time: Duration, serve: S, drive: C) -> (T, CoreStats, CoreStats)
where
    S: FnOnce(CoreCtx) -> SF + Send + Clone + 'static,
    SF: Future<Output = ()> + 'static,
    C: FnOnce(CoreCtx) -> CF + Send + Clone + 'static,
    CF: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let (a, b) = fs_xdp::memory_pair(Framing::Ethernet, 1500).unwrap();
    let servers = runtime(Standalone::new().addr(SERVER, 24).addr(SERVER6, 64), vec![Box::new(a)]);
    let clients = runtime(Standalone::new().addr(CLIENT, 24).addr(CLIENT6, 64), vec![Box::new(b)]);
    let (server_handle, client_handle) = (servers.handle(), clients.handle());
    let (runs, running) = std::sync::mpsc::channel();
    // Keeps the server's end of the link open until the client is done.
    let serve_and_wait = move |core: CoreCtx| {
        let serving = serve(core);
        let _ = runs.send(());
        async move {
            serving.await;
            fs_rt::shutdown_signal().await;
        }
    };
    let server_thread = std::thread::spawn(move || servers.run(serve_and_wait));
    // Address resolution fails after three seconds without a reply.
    running.recv().expect("the server's core runs");
    let serving = server_handle.clone();
    let output = std::sync::Arc::new(std::sync::Mutex::new(None));
    let told = output.clone();
    let driven = clients.run(move |core| {
        let drive = drive(core);
        let (serving, told) = (serving.clone(), told.clone());
        async move {
            let output = tokio::time::timeout(Duration::from_secs(120), drive).await;
            *told.lock().unwrap() = Some(output.expect("the client took longer than 120 s"));
            // Keeps the client's end of the link open while the server ends its connections.
            let until = tokio::time::Instant::now() + time;
            while tokio::time::timeout_at(until, alive(&serving)).await.is_ok_and(|alive| alive != 0) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    server_handle.shutdown(time);
    match server_thread.join().unwrap() {
        // This harness does not check how the server ends.
        Ok(_) | Err(RunError::Deadline { .. } | RunError::Link { .. }) => {}
        Err(error) => panic!("the server's runtime: {error}"),
    }
    let output = output.lock().unwrap().take();
    match driven {
        // A server that shuts itself down closes the link when its last connection ends.
        Err(RunError::Link { .. }) if output.is_some() => {}
        ended => drop(ended.unwrap()),
    }
    (output.unwrap(), server_handle.stats().pop().unwrap(), client_handle.stats().pop().unwrap())
}
