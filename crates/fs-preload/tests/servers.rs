//! Unmodified servers and clients: the answers are right, and use the ring.

mod common;

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::World;
use fs_pairs::counters::Counters;

/// A server that is stopped so that it writes its counters.
struct Server(Child);

impl Server {
    fn start(command: &mut Command, port: u16) -> Self {
        let mut server =
            Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("`lab/install test`"));
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "the server does not listen");
            assert!(server.0.try_wait().unwrap().is_none(), "the server has ended");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn stop(mut self) {
        Command::new("kill").arg(self.0.id().to_string()).status().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Returns a port below `ip_local_port_range`, which no bind to port 0 and no connect takes before the server does.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let ports = std::iter::repeat_with(|| std::process::id() + NEXT.fetch_add(1, Ordering::Relaxed));
    let mut ports = ports.map(|number| 10_000 + (number % 20_000) as u16);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

/// Returns the service's counters once they are as wanted, or after a minute.
fn counters_when(world: &World, is_wanted: impl Fn(&Counters) -> bool) -> Counters {
    let start = Instant::now();
    loop {
        let counters = fs_pairs::counters::count(&world.folder().join("control")).unwrap();
        if is_wanted(&counters) || start.elapsed() > Duration::from_secs(60) {
            return counters;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn checked(output: Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn redis_answers_by_the_ring() {
    let (world, port) = (World::new(), free_port());
    let mut command = world.command("redis-server");
    command.args(["--port", &port.to_string(), "--save", "", "--dir"]).arg(world.folder());
    let server = Server::start(&mut command, port);
    let port = port.to_string();
    let bench = ["-p", &port, "-t", "set,get,incr,lpush,lrange_100,mset", "-n", "6000", "-c", "20", "-d", "700", "-q"];
    checked(world.command("redis-benchmark").args(bench).output().unwrap());
    // One connection, whose answers are compared.
    let mut script = String::new();
    let mut want = String::new();
    for i in 0..2000 {
        writeln!(script, "SET key:{i} {}", "v".repeat(i % 300 + 1)).unwrap();
        writeln!(script, "GET key:{i}").unwrap();
        writeln!(want, "OK\n{}", "v".repeat(i % 300 + 1)).unwrap();
    }
    std::fs::write(world.folder().join("script"), script).unwrap();
    let input = std::fs::File::open(world.folder().join("script")).unwrap();
    let got = checked(world.command("redis-cli").args(["-p", &port]).stdin(input).output().unwrap());
    assert!(got == want, "wrong answers");
    // A child of the server that inherits every connection, and uses none.
    let saved = checked(world.command("redis-cli").args(["-p", &port, "BGSAVE"]).output().unwrap());
    assert_eq!(saved.trim(), "Background saving started");
    let bench = ["-p", &port, "-t", "get", "-n", "20000", "-c", "10", "-P", "4", "-q"];
    checked(world.command("redis-benchmark").args(bench).output().unwrap());
    server.stop();
    let counted = world.counted();
    assert!(counted.promoted >= 20 && counted.ring_sends > 0, "{counted:?}");
}

fn nginx(world: &World, port: u16) -> Server {
    let folder = world.folder();
    std::fs::create_dir_all(folder.join("files")).unwrap();
    let configuration = format!(
        "worker_processes 2; daemon off; pid {0}/pid; error_log {0}/errors; user root; events {{ worker_connections 200; }}
        http {{ access_log off; client_body_temp_path {0}/1; proxy_temp_path {0}/2; fastcgi_temp_path {0}/3; uwsgi_temp_path {0}/4; \
        scgi_temp_path {0}/5; sendfile on; keepalive_requests 100000;
        server {{ listen 127.0.0.1:{port}; location / {{ root {0}/files; }} }} }}",
        folder.display()
    );
    std::fs::write(folder.join("nginx.conf"), configuration).unwrap();
    Server::start(world.command("nginx").arg("-c").arg(folder.join("nginx.conf")), port)
}

/// Asks for files many times over one connection, and compares each.
fn fetch(world: &World, port: u16, sizes: &[usize], times: usize) {
    let files = world.folder().join("files");
    let mut wanted = Vec::new();
    for size in sizes {
        let bytes: Vec<u8> = (0..*size).map(|i| ((i * 7) >> 3) as u8).collect();
        std::fs::write(files.join(size.to_string()), &bytes).unwrap();
    }
    let mut curl = world.command("curl");
    curl.args(["-s", "--fail", "--no-progress-meter"]);
    for _ in 0..times {
        for size in sizes {
            curl.arg(format!("http://127.0.0.1:{port}/{size}"));
            wanted.extend(std::fs::read(files.join(size.to_string())).unwrap());
        }
    }
    let got = curl.output().unwrap();
    assert!(got.status.success(), "curl: {}", String::from_utf8_lossy(&got.stderr));
    assert!(got.stdout == wanted, "wrong bytes: {} of {}", got.stdout.len(), wanted.len());
}

#[test]
fn nginx_answers_by_the_ring() {
    let (world, port) = (World::new(), free_port());
    let server = nginx(&world, port);
    fetch(&world, port, &[612, 0, 1, 70_000, 9], 200);
    fetch(&world, port, &[2_000_000, 612], 5);
    if Path::new("/usr/bin/wrk").exists() {
        let url = format!("http://127.0.0.1:{port}/612");
        let said = checked(
            world.command("wrk").args(["-d", "1", "-c", "8", "-t", "2", "--timeout", "60", &url]).output().unwrap(),
        );
        assert!(!said.contains("errors") && !said.contains("Non-2xx"), "{said}");
    }
    server.stop();
    let counted = world.counted();
    assert!(counted.promoted >= 2 && counted.ring_sends > 0, "{counted:?}");
}

#[test]
fn python_server_and_client() {
    let (world, port) = (World::new(), free_port());
    let script = r"
import socket, sys, selectors, threading, subprocess
port = int(sys.argv[2])
def pattern(i, n): return bytes((i * 31 + j) & 255 for j in range(n))
if sys.argv[1] == 'server':
    l = socket.create_server(('127.0.0.1', port)); s = selectors.DefaultSelector(); s.register(l, 1)
    while True:
        for key, _ in s.select():
            if key.fileobj is l:
                c, _ = l.accept(); c.setblocking(False); s.register(c, 1)
            else:
                b = key.fileobj.recv(65536)
                if b == b'quit': sys.exit(0)
                if not b: s.unregister(key.fileobj); key.fileobj.close(); continue
                key.fileobj.sendall(b)
else:
    may_fork = threading.Event()
    def work():
        c = socket.create_connection(('127.0.0.1', port), timeout=60); f = c.makefile('rb')
        i = forks = 0
        while i < 1500 or forks < 3:
            n = 1 + i * 13 % 2000; c.sendall(pattern(i, n)); assert f.read(n) == pattern(i, n), i
            i += 1
            if i % 100 == 0 and forks < 3 and may_fork.is_set():
                forks += 1; assert subprocess.run(['/bin/true']).returncode == 0
        c.close()
    t = [threading.Thread(target=work) for _ in range(3)]
    [x.start() for x in t]; sys.stdin.read(); may_fork.set(); [x.join() for x in t]
    c = socket.create_connection(('127.0.0.1', port)); c.sendall(b'quit'); print('right')
";
    std::fs::write(world.folder().join("echo.py"), script).unwrap();
    let python = |role: &str| {
        let mut command = world.command("python3");
        command.arg(world.folder().join("echo.py")).args([role, &port.to_string()]);
        command
    };
    let mut server = Server::start(&mut python("server"), port);
    let mut client = python("client");
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A connection that is older than a fork of its process gets no ring.
    counters_when(&world, |counters| counters.ring_bytes > 0);
    drop(client.stdin.take());
    assert_eq!(checked(client.wait_with_output().unwrap()).trim(), "right");
    server.0.wait().unwrap();
    let counted = world.counted();
    assert!(counted.promoted >= 2 && counted.ring_sends > 0, "{counted:?}");
}

/// The service gets no offer of a stream in one direction between two addresses, which is as one to another host.
#[test]
fn stream_between_two_addresses_is_not_offered() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("FS_TEST_MUST_RUN").is_none(), "not root, and FS_TEST_MUST_RUN is set");
        println!("skipped: not root (a network namespace needs CAP_SYS_ADMIN)");
        return;
    }
    let world = World::new();
    // Both ends make more than 64 calls, and fewer than the 128 after which a refused one is offered again.
    let script = r"
import socket, sys
l = socket.create_server(('192.0.2.1', 0)); ends = []
for source in '127.0.0.1', '192.0.2.1':
    s = socket.create_connection(l.getsockname(), source_address=(source, 0)); r = l.accept()[0]; ends += s, r
    for _ in range(100): s.sendall(b'x' * 32); assert len(r.recv(32, socket.MSG_WAITALL)) == 32
print('called', flush=True); sys.stdin.read()
";
    let mut command = world.command("unshare");
    let start = r#"ip link set lo up && ip addr add 192.0.2.1/32 dev lo && exec python3 -c "$0""#;
    command.args(["--net", "sh", "-c", start, script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "called\n");
    counters_when(&world, |counters| counters.offers >= 2);
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    // The service has read all that the program sent.
    let counters = counters_when(&world, |counters| counters.processes == 0);
    assert_eq!((counters.processes, counters.offers), (0, 2), "offers of both ends with one address");
}

/// The service holds nothing of pinned connections that were closed.
#[test]
fn pinned_connections_leave_the_service() {
    let world = World::new();
    let script = r"
import os, socket, sys, threading
l = socket.create_server(('127.0.0.1', 0))
def echo(c):
    with c:
        while data := c.recv(100): c.sendall(data)
if os.fork() == 0:
    while True: threading.Thread(target=echo, args=(l.accept()[0],), daemon=True).start()
try:
    for _ in range(20):
        with socket.create_connection(l.getsockname()) as c:
            for _ in range(20):
                c.sendall(b'x' * 32); assert len(c.recv(32, socket.MSG_WAITALL)) == 32
            # Pins. The next calls are the kernel's alone.
            c.shutdown(socket.SHUT_RDWR); assert c.recv(1) == b'' == c.recv(1)
except BaseException as error:
    print(repr(error), file=sys.stderr, flush=True)
    os.kill(0, 9)
print('closed', flush=True)
sys.stdin.read()
os.kill(0, 15)
";
    let mut command = world.command("python3");
    command
        .env("FASTSOCK_CALLS", "0")
        .args(["-c", script])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let mut said = [0; 7];
    program.stdout.take().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"closed\n");
    // The server's threads may be about to close.
    let counters = counters_when(&world, |counters| counters.pairs == 0);
    drop(program.stdin.take());
    program.wait().unwrap();
    assert!(counters.promoted > 0, "no connection had a ring");
    assert_eq!(counters.pairs, 0, "pairs of connections that are closed");
}
