//! Two runtimes on threads of their own, for tests of sockets of any thread.

use super::{CLIENT, SERVER, runtime, server};
use fs_compat::net::{Background, TcpListener, TcpStream};
use fs_core::Framing;
use fs_rt::Standalone;
use std::future::Future;
use std::io;
use std::time::Duration;

/// Two runtimes whose devices are connected in memory.
pub(crate) struct Runtimes {
    pub(crate) server: Background,
    pub(crate) client: Background,
}

impl Runtimes {
    pub(crate) fn new() -> Self {
        let (a, b) = fs_xdp::memory_pair(Framing::Ethernet, 1500).unwrap();
        let server = runtime(Standalone::new().addr(SERVER, 24), vec![Box::new(a)]);
        let client = runtime(Standalone::new().addr(CLIENT, 24), vec![Box::new(b)]);
        Self { server: Background::start(server).unwrap(), client: Background::start(client).unwrap() }
    }

    pub(crate) async fn listen(&self, port: u16) -> TcpListener {
        TcpListener::bind_on(&self.server.handle(), ("0.0.0.0", port)).await.unwrap()
    }

    pub(crate) async fn connect(&self, port: u16) -> io::Result<TcpStream> {
        TcpStream::connect_on(&self.client.handle(), server(port)).await
    }

    /// Returns both ends of one connection.
    pub(crate) async fn joined(&self) -> (TcpStream, TcpStream) {
        let listener = self.listen(7).await;
        let (accepted, connected) = tokio::join!(listener.accept(), self.connect(7));
        (accepted.unwrap().0, connected.unwrap())
    }

    /// Checks that both runtimes have closed every socket and freed its memory.
    pub(crate) async fn ends_clean(self) {
        is_clean(&self.server.handle()).await;
        is_clean(&self.client.handle()).await;
        // This closes the link at the other end, which ends the server too.
        tokio::task::spawn_blocking(move || self.client.shutdown(Duration::from_secs(10))).await.unwrap().unwrap();
    }
}

/// Waits until no socket is open and no frame is in use. Published counters lag a little.
pub(crate) async fn is_clean(runtime: &fs_rt::Handle) {
    let begun = std::time::Instant::now();
    while runtime.stats().iter().any(|stats| (stats.connections, stats.frames_in_use) != (0, 0)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", runtime.stats());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Awaits with a limit of 60 s.
pub(crate) async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it takes longer than 60 s")
}
