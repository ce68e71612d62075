//! Starts a program as a process and talks to it, for the program's own tests. Failures panic.

#![allow(clippy::print_stderr, reason = "the output of a test")]

pub use crate::sys::Signal;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Limit for each wait on a busy machine. A test that passes never waits this long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A running program; killed when dropped.
pub struct Program {
    child: Child,
    /// The addresses that it listens on, in the order of its output.
    pub addrs: Vec<SocketAddr>,
    /// The address of its metrics, if it has any.
    pub metrics: Option<SocketAddr>,
    stderr: Arc<Mutex<String>>,
}

impl Program {
    /// Starts the program and waits for the line `ready`.
    pub fn start(exe: &str, args: &[&str]) -> Self {
        let mut command = Command::new(exe);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{exe}: {error}"));
        let stdout = lines(child.stdout.take().expect("piped"));
        let stderr = Arc::new(Mutex::new(String::new()));
        let (mut pipe, log) = (child.stderr.take().expect("piped"), stderr.clone());
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(len @ 1..) = pipe.read(&mut chunk) {
                log.lock().expect("no panic while locked").push_str(&String::from_utf8_lossy(&chunk[..len]));
            }
        });
        let mut program = Self { child, addrs: Vec::new(), metrics: None, stderr };
        loop {
            match stdout.recv_timeout(PATIENCE).as_deref() {
                Ok("ready") => return program,
                Ok(line) => {
                    let addr = line.strip_prefix("listening ").and_then(|rest| rest.split(' ').next());
                    program.metrics =
                        line.strip_prefix("metrics ").and_then(|addr| addr.parse().ok()).or(program.metrics);
                    program.addrs.extend(addr.and_then(|addr| addr.parse::<SocketAddr>().ok()));
                }
                Err(error) => panic!("{exe} {args:?} is not ready: {error}; it said:\n{}", program.log()),
            }
        }
    }

    /// Returns its standard error until now.
    pub fn log(&self) -> String {
        self.stderr.lock().expect("no panic while locked").clone()
    }

    /// Waits until its standard error contains `text`: a thread reads it, and what the program wrote
    /// before its answer may come after it.
    pub fn says(&self, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < until, "the program did not say \"{text}\"");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::Terminate);
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        crate::sys::send_signal(self.child.id(), signal).expect("the process is there");
    }

    /// Returns the number of its open descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(0, Iterator::count)
    }

    /// Waits until it ends.
    pub fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(Instant::now() < until, "does not end; it said:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the program said:\n{}", self.log());
        }
    }
}

fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Runs a program to its end.
pub fn output(exe: &str, args: &[&str]) -> Output {
    Command::new(exe).args(args).stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{exe}: {error}"))
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a client's and a server's end of a TLS connection whose sockets hold only about 10 kB.
/// Further bytes stay in the server's TLS layer until the client reads.
#[cfg(feature = "tls")]
pub async fn narrow_tls_pair() -> (tokio_rustls::client::TlsStream<tokio::net::TcpStream>, crate::Stream) {
    use crate::tls;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use tokio::net::TcpSocket;

    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("its key");
    let certificate = made.cert.der().clone();
    let server = tls::server_config((vec![certificate.clone()], key), &[]).expect("a server's configuration");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let client = client.expect("versions").with_root_certificates(roots).with_no_client_auth();

    let (listening, connecting) = (TcpSocket::new_v4().expect("socket"), TcpSocket::new_v4().expect("socket"));
    listening.set_send_buffer_size(4096).expect("SO_SNDBUF");
    connecting.set_recv_buffer_size(4096).expect("SO_RCVBUF");
    listening.bind("127.0.0.1:0".parse().expect("an address")).expect("bind");
    let listener = listening.listen(1).expect("listen");
    let stream = connecting.connect(listener.local_addr().expect("bound")).await.expect("connect");
    let accepted = crate::Stream::Kernel(listener.accept().await.expect("accept").0);
    let acceptor = tls::TlsAcceptor::from(Arc::new(server));
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
    let name = ServerName::try_from("localhost").expect("a name");
    let (client, server) = tokio::join!(connector.connect(name, stream), tls::accept(&acceptor, accepted));
    (client.expect("the client's handshake"), server.expect("the server's handshake"))
}
