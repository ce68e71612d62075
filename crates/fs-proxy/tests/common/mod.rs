//! Backends in the test, and a proxy in front of them.
#![allow(dead_code)]

use fs_stacks::testing::{PATIENCE, Program};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

pub(crate) const EXE: &str = env!("CARGO_BIN_EXE_fs-proxy");

/// The host of the proxy: on kernel sockets and loopback, or, if `tests/af_xdp` has prepared
/// another namespace, on fastsock over AF_XDP.
struct TestHost {
    netns: String,
    device: String,
    proxy: IpAddr,
    own: IpAddr,
}

fn place() -> Option<TestHost> {
    let text = std::env::var("FS_PROXY_PLACE").ok()?;
    let [netns, device, proxy, own] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("FS_PROXY_PLACE: {text}") };
    let address = |text: &str| text.parse().unwrap();
    Some(TestHost { netns: netns.into(), device: device.into(), proxy: address(proxy), own: address(own) })
}

/// Runs a command of a lab's set-up, such as ip(8). It must succeed.
pub(crate) fn run(command: &str) {
    let mut words = command.split(' ');
    let mut process = Command::new(words.next().unwrap());
    let output = process.args(words).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The beginning of the names of namespaces, by which the test runner finds those that are left.
pub(crate) fn run_prefix() -> String {
    std::env::var("FS_LAB").unwrap_or_else(|_| "fst".into())
}

/// The proxy's address.
pub(crate) fn proxy_ip() -> IpAddr {
    place().map_or(Ipv4Addr::LOCALHOST.into(), |place| place.proxy)
}

/// Returns the address of the tests' clients and servers.
pub(crate) fn own_ip() -> IpAddr {
    place().map_or(Ipv4Addr::LOCALHOST.into(), |place| place.own)
}

/// Returns a command that runs in the proxy's namespace.
pub(crate) fn beside_proxy(program: &str) -> Command {
    let Some(TestHost { netns, .. }) = place() else { return Command::new(program) };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &netns, program]);
    command
}

/// Starts a proxy in its place.
pub(crate) fn start_program(config: &Path) -> Program {
    let config = config.to_str().unwrap();
    let Some(TestHost { netns, device, .. }) = place() else { return Program::start(EXE, &["--config", config]) };
    let stack = ["--stack", "fastsock", "--device", &device];
    Program::start("ip", &[&["netns", "exec", &netns, EXE, "--config", config], &stack[..]].concat())
}

/// A running proxy and its files.
pub(crate) struct Proxy {
    pub(crate) program: Program,
    pub(crate) config: PathBuf,
}

impl Proxy {
    /// Starts a proxy with one listener in front of `servers`. `upstream` is added to that table,
    /// `top` to the start.
    pub(crate) fn start(mode: &str, servers: &[SocketAddr], top: &str, upstream: &str) -> Self {
        let servers: Vec<String> = servers.iter().map(|addr| format!("\"{addr}\"")).collect();
        let config = write_config(&format!(
            "{top}\n[[listener]]\naddress = \"{}:0\"\nmode = \"{mode}\"\nupstream = \"u\"\n\
             [[upstream]]\nname = \"u\"\nservers = [{}]\n{upstream}\n",
            proxy_ip(),
            servers.join(", ")
        ));
        let program = start_program(&config);
        Self { program, config }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.program.addrs[0]
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request that ends its connection, and returns the whole response.
    pub(crate) fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Like `ask`, with bytes that are not text. A reset counts as the end.
    pub(crate) fn ask_bytes(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        // The proxy may have responded and closed before everything is sent.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Returns the current metrics.
    pub(crate) fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(self.program.metrics.expect("it says where its metrics are")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Sends SIGTERM to the proxy. `ip netns exec` becomes the proxy, so its id is the proxy's.
    pub(crate) fn terminate(&self) {
        self.program.terminate();
    }

    /// A plain GET.
    pub(crate) fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // A temporary file, so a failure is ignored.
        let _ = std::fs::remove_file(&self.config);
    }
}

/// Starts a proxy that cannot raise its limit of descriptors, whichever user runs the test.
pub(crate) fn start_limited(config: &Path, files: usize) -> Program {
    let (limit, file) = (format!("--nofile={files}:{files}"), config.to_str().unwrap());
    // Root could raise its limit again.
    let root = ["--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "prlimit", &limit, EXE, "--config", file];
    match std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        true => Program::start("setpriv", &root),
        false => Program::start("prlimit", &root[3..]),
    }
}

pub(crate) fn temp_path(what: &str) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("fs-proxy-test-{}-{number}-{what}", std::process::id()));
    // A failed test whose process had the same id may have left a file.
    let _ = std::fs::remove_file(&path);
    path
}

pub(crate) fn write_config(text: &str) -> PathBuf {
    let path = temp_path("config.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// Accepts until the test's process ends, with a thread per connection.
pub(crate) fn serve(listener: TcpListener, serve: impl Fn(TcpStream) -> std::io::Result<()> + Clone + Send + 'static) {
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            // The other side may close at any time, and the test judges the result itself.
            thread::spawn(move || drop(serve(stream)));
        }
    });
}

pub(crate) fn backend(handler: impl Fn(TcpStream) -> std::io::Result<()> + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind((own_ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    serve(listener, handler);
    addr
}

/// Returns an address that refuses connections until the test's process ends.
pub(crate) fn nobody() -> SocketAddr {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
    let family = if own_ip().is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    // Without SO_REUSEADDR no other socket gets the port, and without listen(2) it refuses.
    bind(&socket, &SocketAddr::new(own_ip(), 0)).unwrap();
    let kept = TcpListener::from(socket);
    let addr = kept.local_addr().unwrap();
    std::mem::forget(kept);
    addr
}

/// A request as read by a backend.
pub(crate) struct Received {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Reads the next request. Returns `None` at the end of the connection.
pub(crate) fn read_request(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<Received>> {
    let mut head = String::new();
    loop {
        let before = head.len();
        if reader.read_line(&mut head)? == 0 {
            return Ok(None);
        }
        if &head[before..] == "\r\n" {
            break;
        }
    }
    let mut received = Received { head, body: Vec::new() };
    if received.header("transfer-encoding").is_some() {
        received.body = read_chunked(reader)?;
    } else {
        let length = received.header("content-length").map_or(0, |length| length.parse().unwrap());
        received.body.resize(length, 0);
        reader.read_exact(&mut received.body)?;
    }
    Ok(Some(received))
}

pub(crate) fn read_chunked(reader: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let length = usize::from_str_radix(line.trim(), 16).unwrap();
        let at = body.len();
        body.resize(at + length + 2, 0);
        reader.read_exact(&mut body[at..])?;
        body.truncate(at + length);
        if length == 0 {
            return Ok(body);
        }
    }
}

/// Starts a backend that responds to each request with the result of `answer`, on kept connections.
pub(crate) fn http_backend(answer: impl Fn(&Received) -> Vec<u8> + Clone + Send + 'static) -> SocketAddr {
    backend(move |stream| http_connection(stream, &answer))
}

pub(crate) fn http_connection(stream: TcpStream, answer: &impl Fn(&Received) -> Vec<u8>) -> std::io::Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader)? {
        writer.write_all(&answer(&request))?;
    }
    Ok(())
}

/// Returns a 200 response with this body.
pub(crate) fn ok(body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

/// Returns the body of a response after which the connection was closed.
pub(crate) fn body_of(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer}")).1
}

/// Returns bytes in which a shift or a swap is detected.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}
