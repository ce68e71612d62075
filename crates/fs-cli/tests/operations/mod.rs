//! Calls every method of the sockets and records the results. The peer runs [`serve`].

#[path = ""]
pub(crate) mod of_core {
    pub(crate) use fs_compat::local as sockets;
    #[path = "both.rs"]
    mod both;
    mod core_only;

    use super::Calls;

    pub(crate) async fn all(calls: Calls<'_>) {
        let mut stream = both::stream(calls.of("local::TcpStream")).await;
        core_only::stream(&mut stream, calls.of("local::TcpStream")).await;
        both::end(stream, calls.of("local::TcpStream")).await;
        core_only::ends(calls.of("local::TcpStream")).await;
        let listener = both::listener(calls.of("local::TcpListener")).await;
        core_only::listener(listener, calls.of("local::TcpListener")).await;
        core_only::socket(calls.of("local::TcpSocket")).await;
        let socket = both::datagrams(calls.of("local::UdpSocket")).await;
        core_only::datagrams(socket, calls.of("local::UdpSocket")).await;
    }
}

#[path = ""]
pub(crate) mod of_any_thread {
    pub(crate) use fs_compat::net as sockets;
    #[allow(clippy::duplicate_mod, reason = "the same calls, of other types")]
    #[path = "both.rs"]
    mod both;

    use super::{Calls, done};
    use fs_rt::CoreRef;

    pub(crate) async fn all(calls: Calls<'_>) {
        let of = "net::TcpStream";
        let stream = both::stream(calls.of(of)).await;
        both::end(stream, calls.of(of)).await;
        let handle = CoreRef::require().unwrap().handle();
        calls.add(of, "connect_on", done(&sockets::TcpStream::connect_on(&handle, calls.peer).await));
        drop(both::listener(calls.of("net::TcpListener")).await);
        let listener = sockets::TcpListener::bind_on(&handle, "0.0.0.0:0").await;
        calls.add("net::TcpListener", "bind_on", done(&listener));
        let socket = both::datagrams(calls.of("net::UdpSocket")).await;
        calls.add("net::UdpSocket", "into_std", done(&socket.into_std()));
        let socket = sockets::UdpSocket::bind_on(&handle, "0.0.0.0:0").await;
        calls.add("net::UdpSocket", "bind_on", done(&socket));
    }
}

use fs_compat::local::{TcpListener, TcpStream, UdpSocket};
use std::cell::RefCell;
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Type, operation, result.
pub(crate) type Row = (String, String, String);

/// The peer's addresses, and the results of the operations.
#[derive(Clone, Copy)]
pub(crate) struct Calls<'a> {
    /// A peer that serves streams and datagrams.
    pub(crate) peer: SocketAddr,
    /// Our own address, to which peers connect.
    pub(crate) knocked: SocketAddr,
    pub(crate) device: &'a str,
    rows: &'a RefCell<Vec<Row>>,
    of: &'static str,
}

impl<'a> Calls<'a> {
    fn of(self, of: &'static str) -> Self {
        Self { of, ..self }
    }

    fn add<T: Debug>(self, of: &'static str, operation: &str, answer: io::Result<T>) {
        let said = match answer {
            Ok(value) => format!("{value:?}"),
            Err(error) => format!("{:?}", error.kind()),
        };
        self.rows.borrow_mut().push((of.into(), operation.into(), said));
    }

    fn row<T: Debug>(self, operation: &str, answer: io::Result<T>) {
        self.add(self.of, operation, answer);
    }
}

/// Drops the value, because only success or failure is compared.
fn done<T>(answer: &io::Result<T>) -> io::Result<()> {
    answer.as_ref().map(drop).map_err(|error| match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => error.kind().into(),
    })
}

/// Calls until it does not return `WouldBlock`: readiness may be stale.
async fn retried<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(Duration::from_millis(1)).await
            }
            answer => return answer,
        }
    }
}

/// Calls every method, on a core of a runtime.
pub(crate) async fn all(peer: SocketAddr, knocked: SocketAddr, device: &str) -> Vec<Row> {
    let rows = RefCell::default();
    let calls = Calls { peer, knocked, device, rows: &rows, of: "" };
    let both = async {
        of_core::all(calls).await;
        of_any_thread::all(calls).await;
    };
    if tokio::time::timeout(Duration::from_secs(60), both).await.is_err() {
        panic!("stuck after {:?}", rows.borrow().last());
    }
    rows.into_inner()
}

/// The peer: says "hello" to each connection and echoes, echoes datagrams, and connects to
/// `knocked` repeatedly.
pub(crate) async fn serve(listener: TcpListener, socket: UdpSocket, knocked: SocketAddr) {
    tokio::task::spawn_local(async move {
        loop {
            // No listener exists yet or any more.
            let _stream = TcpStream::connect(knocked).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    tokio::task::spawn_local(async move {
        let mut buf = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buf).await {
            let _gone = socket.send_to(&buf[..len], from).await;
        }
    });
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::task::spawn_local(async move {
            let mut buf = [0; 64];
            // A client may disconnect at any time.
            let mut said = stream.write_all(b"hello").await;
            while let (Ok(()), Ok(n @ 1..)) = (said, stream.read(&mut buf).await) {
                said = stream.write_all(&buf[..n]).await;
            }
        });
    }
}
