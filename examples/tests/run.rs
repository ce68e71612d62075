//! Starts each example on kernel sockets and talks to it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// The most that a program may need until it listens: hundreds of times what it needs on an idle
/// machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program with an address and more arguments.
fn start(program: &str, at: SocketAddr, more: &[&str]) -> Killed {
    let mut command = Command::new(program);
    command.arg(at.to_string()).args(more).env("FASTSOCK_LINK", "kernel").stdin(Stdio::null());
    Killed(command.spawn().unwrap())
}

/// Returns one of this thread's CPUs, which is CPU 0 only if there is no other.
fn last_cpu() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list of CPUs");
    list.trim().rsplit([',', '-']).next().unwrap().to_owned()
}

/// Returns an address that no other process uses: of this process, with a port that the kernel does
/// not choose (net.ipv4.ip_local_port_range).
fn own() -> SocketAddr {
    static PORT: AtomicU16 = AtomicU16::new(9700);
    let [_, b, c, d] = std::process::id().to_be_bytes();
    SocketAddr::new([127, b, c, d].into(), PORT.fetch_add(1, Ordering::Relaxed))
}

fn connect(at: SocketAddr) -> TcpStream {
    let begun = Instant::now();
    loop {
        match TcpStream::connect(at) {
            Ok(stream) => break stream,
            Err(error) if begun.elapsed() > PATIENCE => panic!("{at}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn echoes(program: &str) -> Killed {
    let at = own();
    let server = start(program, at, &[]);
    let mut stream = connect(at);
    stream.write_all(b"hello").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut echo = Vec::new();
    stream.read_to_end(&mut echo).unwrap();
    assert_eq!(echo, b"hello");
    server
}

#[test]
fn echo_ends_by_sigterm() {
    let mut server = echoes(env!("CARGO_BIN_EXE_example-echo"));
    let id = server.0.id().to_string();
    assert!(Command::new("kill").arg(id).status().unwrap().success());
    let ended = server.0.wait().unwrap();
    assert!(ended.success(), "{ended}");
}

#[test]
fn any_thread() {
    echoes(env!("CARGO_BIN_EXE_example-any-thread"));
}

#[test]
fn udp() {
    let at = own();
    // In a container with a set of CPUs.
    let mut command = Command::new("taskset");
    command.args(["-c", &last_cpu(), env!("CARGO_BIN_EXE_example-udp")]).arg(at.to_string());
    let _server = Killed(command.env("FASTSOCK_LINK", "kernel").stdin(Stdio::null()).spawn().unwrap());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(at).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (begun, mut buffer) = (Instant::now(), [0; 16]);
    let len = loop {
        // Refused or lost until the server is bound.
        let received = socket.send(b"hello").and_then(|_| socket.recv(&mut buffer));
        match received {
            Ok(len) => break len,
            Err(error) if begun.elapsed() > PATIENCE => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert_eq!(&buffer[..len], b"hello");
}

#[test]
fn http() {
    let at = own();
    let _server = start(env!("CARGO_BIN_EXE_example-http"), at, &[]);
    let mut stream = connect(at);
    stream.write_all(b"GET /here HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("you asked for /here\n"), "{response}");
}

#[test]
fn tls() {
    use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
    let at = own();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("example-{}.pem", std::process::id()));
    let _server = start(env!("CARGO_BIN_EXE_example-tls"), at, &[file.to_str().unwrap()]);
    // The file is written before the server listens.
    let mut stream = connect(at);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut tls = rustls::Stream::new(&mut client, &mut stream);
    tls.write_all(b"hello").unwrap();
    tls.conn.send_close_notify();
    tls.flush().unwrap();
    let mut echo = Vec::new();
    tls.read_to_end(&mut echo).unwrap();
    assert_eq!(echo, b"hello");
}
