//! Listening sockets that pass to another process, by SIGUSR2 or from systemd. Over loopback, on
//! kernel sockets. `FS_PROXY_EXCHANGES` sets how often a process is replaced under load.

mod common;
#[path = "common/load.rs"]
mod load;

use common::*;
use fs_stacks::sys::send_signal;
use fs_stacks::testing::{PATIENCE, Program, Signal, eventually, output};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const LENGTH: usize = 2 << 20;

/// Answers `/long` in two halves, the second when `go` becomes true, and other requests at once.
fn server(go: Arc<AtomicBool>) -> SocketAddr {
    backend(move |stream| {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = read_request(&mut reader)? {
            if !request.head.starts_with("GET /long ") {
                writer.write_all(&ok("short"))?;
                continue;
            }
            let answer = ok(pattern(LENGTH));
            writer.write_all(&answer[..LENGTH / 2])?;
            // However long the test takes.
            while !go.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            writer.write_all(&answer[LENGTH / 2..])?;
        }
        Ok(())
    })
}

/// A proxy and its successors.
struct Family {
    proxy: Proxy,
    /// Each started the next.
    processes: Vec<u32>,
}

impl Family {
    fn start(text: &str) -> Self {
        let config = write_config(text);
        // Both cores on one CPU if the machine has only one.
        let cores = if std::thread::available_parallelism().unwrap().get() > 1 { "0,1" } else { "0" };
        let program = Program::start(EXE, &["--config", config.to_str().unwrap(), "--cores", cores]);
        Self { processes: vec![program.id()], proxy: Proxy { program, config } }
    }

    fn signal(&self, signal: Signal) {
        send_signal(*self.processes.last().unwrap(), signal).unwrap();
    }

    /// Waits until a successor serves.
    fn succeed(&mut self) {
        self.signal(Signal::User2);
        let said = |log: &str| {
            let line = log.lines().filter(|line| line.contains("serves; this one ends")).nth(self.processes.len() - 1);
            let words: Vec<&str> = line?.split(' ').collect();
            let at = words.iter().position(|word| *word == "process")?;
            words[at + 1].parse().ok()
        };
        let mut next: Option<u32> = None;
        eventually("a successor serves", || {
            next = said(&self.proxy.program.log());
            next.is_some()
        });
        self.processes.extend(next);
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        for process in &self.processes[1..] {
            // The process may have ended already.
            let _ = send_signal(*process, Signal::Terminate);
        }
    }
}

/// Sends a request on a kept connection, which is opened if there is none.
fn ask_kept(addr: SocketAddr, kept: &mut Option<BufReader<TcpStream>>) -> std::io::Result<()> {
    let reader = match kept {
        Some(reader) => reader,
        None => {
            let stream = TcpStream::connect(addr)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            kept.insert(BufReader::new(stream))
        }
    };
    reader.get_mut().write_all(b"GET /kept HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(std::io::Error::other(format!("ended within {head:?}")));
        }
    }
    let mut body = [0; 5];
    reader.read_exact(&mut body)?;
    assert_eq!(&body, b"short");
    if head.to_lowercase().contains("\r\nconnection: close\r\n") {
        *kept = None;
    }
    Ok(())
}

fn config(server: SocketAddr) -> String {
    format!(
        "metrics = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"http\"\nupstream = \"u\"\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"tcp\"\nupstream = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = [\"{server}\"]\n"
    )
}

#[test]
fn successors_lose_no_connection_under_load() {
    let go = Arc::new(AtomicBool::new(false));
    let mut family = Family::start(&config(server(go.clone())));
    let (http, tcp) = (family.proxy.program.addrs[0], family.proxy.program.addrs[1]);
    let mut download = TcpStream::connect(http).unwrap();
    download.set_read_timeout(Some(PATIENCE)).unwrap();
    download.write_all(b"GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut got = vec![0; 1000];
    download.read_exact(&mut got).unwrap();
    let mut tunnel = None;
    ask_kept(tcp, &mut tunnel).unwrap();
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (stop, count) = (&stop, &count);
            scope.spawn(move || {
                let mut kept = None;
                while !stop.load(Ordering::SeqCst) {
                    if number < 3 {
                        kept = None;
                    }
                    let addr = if number == 0 { tcp } else { http };
                    ask_kept(addr, &mut kept).unwrap_or_else(|error| panic!("client {number}: {error}"));
                    count.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..load::times("FS_PROXY_EXCHANGES", 5) {
            let before = count.load(Ordering::SeqCst);
            family.succeed();
            eventually("the successor answers", || count.load(Ordering::SeqCst) > before + 20);
        }
        stop.store(true, Ordering::SeqCst);
    });
    println!("{} successors, {} requests", family.processes.len() - 1, count.load(Ordering::SeqCst));
    // The connections of the first process have seen nothing.
    ask_kept(tcp, &mut tunnel).unwrap();
    go.store(true, Ordering::SeqCst);
    download.read_to_end(&mut got).unwrap();
    assert!(got.ends_with(&pattern(LENGTH)), "{} bytes", got.len());
    drop((download, tunnel));
    assert!(family.proxy.program.wait().success(), "it ends with its last connection");
    let metrics = family.proxy.metrics();
    assert!(metrics.contains("fs_proxy_connections_total"), "{metrics}");
    // The last one stops as any other.
    family.signal(Signal::Terminate);
    eventually("all have ended", || TcpStream::connect(http).is_err());
}

#[test]
fn successor_that_cannot_start_changes_nothing() {
    let mut family = Family::start(&config(server(Arc::default())));
    let (addr, text) = (family.proxy.program.addrs[0], config(server(Arc::default())));
    for (number, wrong) in
        ["half-do".to_owned(), format!("access_log = \"/nonexistent/log\"\n{text}")].iter().enumerate()
    {
        std::fs::write(&family.proxy.config, wrong).unwrap();
        family.signal(Signal::User2);
        let failed = |log: String| log.matches("nothing has changed, this process goes on").count();
        eventually("it is logged", || failed(family.proxy.program.log()) > number);
        ask_kept(addr, &mut None).unwrap();
    }
    std::fs::write(&family.proxy.config, text).unwrap();
    let descriptors = family.proxy.program.descriptors();
    family.succeed();
    ask_kept(addr, &mut None).unwrap();
    assert!(descriptors < 60, "{descriptors} descriptors after two attempts");
}

/// SIGTERM while a successor starts ends both: nobody knows the successor yet.
#[test]
fn successor_does_not_outlive_a_process_that_ends_first() {
    let text = config(server(Arc::default()));
    let mut family = Family::start(&text);
    let (file, addr) = (family.proxy.config.clone(), family.proxy.program.addrs[0]);
    // The successor reads a pipe until it is told to end.
    std::fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    family.signal(Signal::User2);
    let mut writing = None;
    eventually("the successor reads its file", || {
        writing = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&file).ok();
        writing.is_some()
    });
    family.signal(Signal::Terminate);
    assert!(family.proxy.program.wait().success());
    // It may have ended already.
    let _ = writing.unwrap().write_all(text.as_bytes());
    eventually("no process serves", || TcpStream::connect(addr).is_err());
    // Time for a successor that must not be.
    std::thread::sleep(Duration::from_millis(500));
    assert!(TcpStream::connect(addr).is_err());
}

/// As above, while an open connection keeps the process that ends.
#[test]
fn successor_does_not_wait_for_the_connections_of_a_process_that_ends() {
    let go = Arc::new(AtomicBool::new(false));
    let text = format!("timeouts = {{ drain = \"60s\" }}\n{}", config(server(go.clone())));
    let mut family = Family::start(&text);
    let file = family.proxy.config.clone();
    let mut download = TcpStream::connect(family.proxy.program.addrs[0]).unwrap();
    download.set_read_timeout(Some(PATIENCE)).unwrap();
    download.write_all(b"GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut got = vec![0; 1000];
    download.read_exact(&mut got).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    family.signal(Signal::User2);
    // Fails while there is no reader.
    let writer = || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&file);
    let mut writing = None;
    eventually("the successor reads its file", || {
        writing = writer().ok();
        writing.is_some()
    });
    family.signal(Signal::Terminate);
    eventually("the successor has ended", || writer().is_err());
    go.store(true, Ordering::SeqCst);
    download.read_to_end(&mut got).unwrap();
    assert!(got.ends_with(&pattern(LENGTH)), "{} bytes", got.len());
    assert!(family.proxy.program.wait().success());
}

/// Returns an address that nobody else gets until the test's process ends, and on which a proxy can listen.
fn kept_port() -> SocketAddr {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    // For a listener with SO_REUSEPORT, and for Python's, which has SO_REUSEADDR. bind(2) chooses no port for which
    // it would need these.
    socket.set_reuseport(true).unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = socket.local_addr().unwrap();
    std::mem::forget(socket);
    addr
}

/// A listener that the new configuration does not have is closed, and a new one is opened.
#[test]
fn successor_uses_the_configuration_of_its_start() {
    let mut family = Family::start(&config(server(Arc::default())));
    let addrs = family.proxy.program.addrs.clone();
    let free = kept_port();
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"http\"\nupstream = \"u\"\n\
         [[listener]]\naddress = \"{free}\"\nmode = \"http\"\nupstream = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = [\"{}\"]\n",
        server(Arc::default())
    );
    std::fs::write(&family.proxy.config, text).unwrap();
    family.succeed();
    ask_kept(addrs[0], &mut None).unwrap();
    ask_kept(free, &mut None).unwrap();
    assert!(family.proxy.program.wait().success());
    eventually("the second listener is closed", || TcpStream::connect(addrs[1]).is_err());
}

/// A rotation of the log signals both processes: the one before writes a line at the end of each of its connections.
#[test]
fn rotated_log_is_left_by_both_processes() {
    let log = temp_path("access.log");
    let mut family = Family::start(&format!("access_log = {log:?}\n{}", config(server(Arc::default()))));
    let mut tunnel = None;
    ask_kept(family.proxy.program.addrs[1], &mut tunnel).unwrap();
    family.succeed();
    let rotated = log.with_extension("log.1");
    std::fs::rename(&log, &rotated).unwrap();
    for process in &family.processes {
        send_signal(*process, Signal::User1).unwrap();
    }
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("the file is opened again", || log.exists());
    let old = |process: &u32| {
        let opened = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
        opened.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|path| path == rotated)
    };
    eventually("no process has the old file", || !family.processes.iter().any(old));
    drop(tunnel);
    assert!(family.proxy.program.wait().success(), "it ends with its last connection");
    ask_kept(family.proxy.program.addrs[0], &mut None).unwrap();
    eventually("both have written", || lines().lines().count() == 2);
    assert_eq!(std::fs::read_to_string(&rotated).unwrap(), "");
    std::fs::remove_file(log).unwrap();
    std::fs::remove_file(rotated).unwrap();
}

/// A rotation of the log signals all processes of the unit. It may come while a successor starts, or while a file is checked.
#[test]
fn log_rotation_ends_no_process_that_starts() {
    for check in [&["--check"][..], &[]] {
        let file = temp_path("toml");
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let mut starting = std::process::Command::new(EXE).arg("--config").arg(&file).args(check).spawn().unwrap();
        // Blocks until the process opens the file.
        let mut writing = OpenOptions::new().write(true).open(&file).unwrap();
        send_signal(starting.id(), Signal::User1).unwrap();
        writing.write_all(b"no_such_key = 1").unwrap();
        drop(writing);
        assert_eq!(starting.wait().unwrap().code(), Some(78), "{check:?}");
        std::fs::remove_file(file).unwrap();
    }
}

/// A package upgrade replaces the process: a server that was drained for work on it stays drained.
#[test]
fn successor_keeps_the_weights_that_were_set() {
    let [one, two] = ["one", "two"].map(|name| http_backend(move |_| ok(name)));
    let admin = temp_path("admin.sock");
    let text = format!(
        "admin = {admin:?}\n[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"http\"\nupstream = \"my site\"\n\
         [[upstream]]\nname = \"my site\"\nservers = [\"{one}\", \"{two}\"]\n"
    );
    let mut family = Family::start(&text);
    let ask = |words: &[&str]| {
        let said = output(EXE, &[&["admin", "--socket", admin.to_str().unwrap()], words].concat());
        String::from_utf8(said.stdout).unwrap()
    };
    eventually("the socket is there", || ask(&["status"]).contains("my site"));
    assert_eq!(ask(&["drain", "my site", &one.to_string()]), "weight 0\n");
    let status = |family: &Family, expected: &str| {
        let pid = family.processes.last().unwrap();
        eventually("the successor answers", || {
            let log = family.proxy.program.log();
            log.contains(&format!("process {pid} serves")) && ask(&["status", "--json"]).contains(expected)
        });
    };
    family.succeed();
    assert!(family.proxy.program.wait().success());
    status(&family, "\"weight\":0,\"configured_weight\":1");
    for _ in 0..6 {
        assert_eq!(body_of(&family.proxy.get("/")), "two");
    }
    // A file with another weight decides.
    let other = text.replace(&format!("\"{one}\""), &format!("{{ address = \"{one}\", weight = 2 }}"));
    std::fs::write(&family.proxy.config, other).unwrap();
    family.succeed();
    status(&family, "\"weight\":2,\"configured_weight\":2");
    std::fs::remove_file(admin).unwrap();
}

/// A reload whose file is still read when a successor takes over is given up.
#[test]
fn reload_ends_with_the_listeners() {
    let text = config(server(Arc::default()));
    let file = write_config(&text);
    // One core, whose connection keeps it: the core would answer to a reload.
    let program = Program::start(EXE, &["--config", file.to_str().unwrap(), "--cores", "0"]);
    let mut family = Family { processes: vec![program.id()], proxy: Proxy { program, config: file } };
    let (file, pipe) = (family.proxy.config.clone(), temp_path("pipe"));
    let mut tunnel = None;
    ask_kept(family.proxy.program.addrs[1], &mut tunnel).unwrap();
    // The read of a pipe takes until the test has written the file.
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::remove_file(&file).unwrap();
    std::fs::hard_link(&pipe, &file).unwrap();
    // Fails while there is no reader.
    let writer = || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&pipe);
    family.signal(Signal::HangUp);
    let mut writing = None;
    eventually("the file is read", || {
        writing = writer().ok();
        writing.is_some()
    });
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, &text).unwrap();
    family.succeed();
    writing.take().unwrap().write_all(text.as_bytes()).unwrap();
    eventually("the whole file is read", || writer().is_err());
    // Time for a reload that must not be.
    std::thread::sleep(Duration::from_millis(200));
    drop(tunnel);
    assert!(!family.proxy.program.log().contains("is in use;"));
    assert!(family.proxy.program.wait().success(), "it ends with its last connection");
    std::fs::remove_file(pipe).unwrap();
}

/// Opens a socket as systemd does, and becomes the proxy.
const ACTIVATE: &str = "import os, socket, sys\n\
    host, port = sys.argv[1].split(':')\n\
    s = socket.create_server((host, int(port)))\n\
    os.dup2(s.fileno(), 3)\n\
    os.set_inheritable(3, True)\n\
    os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()), NOTIFY_SOCKET=sys.argv[2])\n\
    os.execv(sys.argv[3], sys.argv[3:])\n";

#[test]
fn sockets_of_systemd_are_used_and_it_is_notified() {
    let notices = temp_path("notify");
    let notified = UnixDatagram::bind(&notices).unwrap();
    notified.set_read_timeout(Some(PATIENCE)).unwrap();
    let notice = || {
        let mut bytes = [0; 512];
        let len = notified.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    let addr = kept_port();
    let config = write_config(&format!(
        "[[listener]]\naddress = \"{addr}\"\nmode = \"http\"\nupstream = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = [\"{}\"]\n",
        server(Arc::default())
    ));
    let (file, addr_text) = (config.to_str().unwrap().to_owned(), addr.to_string());
    let cores = if std::thread::available_parallelism().unwrap().get() > 1 { "0,1" } else { "0" };
    let arguments = ["-c", ACTIVATE, &addr_text, notices.to_str().unwrap(), EXE, "--config", &file, "--cores", cores];
    // The socket has no SO_REUSEPORT, so the proxy could not open one of its own.
    let program = Program::start("python3", &arguments);
    let mut family = Family { processes: vec![program.id()], proxy: Proxy { program, config } };
    let ready = notice();
    assert!(ready.contains("READY=1") && ready.contains(&format!("MAINPID={}", family.processes[0])), "{ready}");
    for _ in 0..20 {
        ask_kept(addr, &mut None).unwrap();
    }
    family.signal(Signal::HangUp);
    assert!(notice().contains("RELOADING=1"));
    assert!(notice().contains("READY=1"));
    // A successor that does not start is reported at once.
    let text = std::fs::read_to_string(&family.proxy.config).unwrap();
    std::fs::write(&family.proxy.config, "no_such_key = 1").unwrap();
    family.signal(Signal::User2);
    let told = notice();
    assert!(told.contains("STATUS=") && told.contains("this process goes on"), "{told}");
    std::fs::write(&family.proxy.config, text).unwrap();
    family.succeed();
    let next = format!("MAINPID={}", family.processes[1]);
    let told = [notice(), notice()];
    // READY=1 of the old process ends a reload that it has not finished.
    assert!(told.iter().all(|text| text.contains(&next) && text.contains("READY=1")), "{told:?}");
    assert!(told.iter().any(|text| text.contains("STATUS=\n") || text.ends_with("STATUS=")), "{told:?}");
    assert!(family.proxy.program.wait().success());
    ask_kept(addr, &mut None).unwrap();
    family.signal(Signal::Terminate);
    assert!(notice().contains("STOPPING=1"));
    std::fs::remove_file(notices).unwrap();
}
