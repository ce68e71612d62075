//! Signals and commands in random order, while clients ask and one downloads: no request fails, the
//! expected process serves the newest valid configuration, and nothing is left after the end. Over
//! loopback on kernel sockets; `af_xdp` repeats it on fastsock.
//!
//! A failure prints its seed: `SEED=N cargo test -p fs-proxy --test signals -- --include-ignored`
//! plays that one alone. SECONDS sets the duration of the long test (60).

mod common;
#[path = "common/load.rs"]
mod load;

use common::*;
use fs_stacks::sys::send_signal;
use fs_stacks::testing::{PATIENCE, Signal, eventually};
use load::{Client, load};
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LENGTH: usize = 1 << 20;
/// The download is idle while the steps take place, and must not be cut on a slow machine.
const TIMEOUTS: &str = "timeouts = { idle = \"300s\", drain = \"60s\" }\n";

/// Answers `/name` with the server's name, `/long` in two halves, the second when `go` becomes true,
/// and other requests with "short".
fn server(name: String, go: Arc<AtomicBool>) -> SocketAddr {
    backend(move |stream| {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = read_request(&mut reader)? {
            if request.head.starts_with("GET /name ") {
                writer.write_all(&ok(&name))?;
            } else if request.head.starts_with("GET /long ") {
                let answer = ok(pattern(LENGTH));
                writer.write_all(&answer[..LENGTH / 2])?;
                // As long as the steps take.
                while !go.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                writer.write_all(&answer[LENGTH / 2..])?;
            } else {
                writer.write_all(&ok("short"))?;
            }
        }
        Ok(())
    })
}

/// A configuration's contents: which server, and what else.
#[derive(Clone, Copy, Debug, Default)]
struct Version {
    server: usize,
    has_extra: bool,
    has_metrics: bool,
    logs: bool,
    /// The first admin socket, the second, or none.
    admin: usize,
}

struct World {
    proxy: Proxy,
    servers: Vec<SocketAddr>,
    /// A listener that comes and goes.
    extra: SocketAddr,
    /// Another socket has this address.
    taken: TcpListener,
    folder: PathBuf,
    /// The file, if it is valid.
    file: Option<Version>,
    /// The last one that was certainly in use.
    used: Version,
    steps: Vec<String>,
    begun: Instant,
}

impl World {
    fn text(&self, version: Version) -> String {
        let listener = |address: &dyn std::fmt::Display, mode: &str| {
            format!("[[listener]]\naddress = \"{address}\"\nmode = \"{mode}\"\nupstream = \"u\"\n")
        };
        let (any, folder) = (format!("{}:0", proxy_ip()), self.folder.display());
        let mut text = TIMEOUTS.to_owned();
        if version.admin > 0 {
            text += &format!("admin = \"{folder}/admin{}\"\n", version.admin);
        }
        if version.has_metrics {
            text += &format!("metrics = \"{any}\"\n");
        }
        if version.logs {
            text += &format!("access_log = \"{folder}/log\"\n");
        }
        text += &(listener(&any, "http") + &listener(&any, "tcp"));
        if version.has_extra {
            text += &listener(&self.extra, "http");
        }
        text + &format!("[[upstream]]\nname = \"u\"\nservers = [\"{}\"]\n", self.servers[version.server])
    }

    fn draw(&self, random: &mut fastrand::Rng) -> Version {
        Version {
            server: (self.used.server + random.usize(1..self.servers.len())) % self.servers.len(),
            has_extra: random.bool(),
            has_metrics: random.bool(),
            logs: random.bool(),
            admin: random.usize(..3),
        }
    }

    fn write(&mut self, version: Version) {
        std::fs::write(&self.proxy.config, self.text(version)).unwrap();
        self.file = Some(version);
    }

    fn spoil(&mut self, random: &mut fastrand::Rng) {
        let text = self.text(self.draw(random));
        let wrong = match random.u8(..5) {
            0 => "half-do".into(),
            1 => format!("access_log = \"/nonexistent/log\"\n{}", text.replace("access_log", "# ")),
            2 => format!("metrics = \"{}\"\n{}", self.taken.local_addr().unwrap(), text.replace("metrics", "# ")),
            3 => format!("admin = \"{}\"\n{}", self.proxy.config.display(), text.replace("admin", "# ")),
            _ => text.replace(
                &format!("\"{}:0\"\nmode = \"tcp\"", proxy_ip()),
                &format!("\"{}\"\nmode = \"tcp\"", self.taken.local_addr().unwrap()),
            ),
        };
        std::fs::write(&self.proxy.config, wrong).unwrap();
        self.file = None;
    }

    /// The processes that have served, in their order. All write to one log.
    fn family(&self) -> Vec<u32> {
        let log = self.proxy.program.log();
        let served = log.lines().filter(|line| line.contains("serves; this one ends"));
        let number = |line: &str| {
            let mut words = line.split(' ').skip_while(|word| *word != "process").skip(1);
            words.next().unwrap().parse().unwrap()
        };
        std::iter::once(self.proxy.program.id()).chain(served.map(number)).collect()
    }

    fn now(&self) -> u32 {
        *self.family().last().unwrap()
    }

    /// Sends a signal to the process that serves, or to an earlier one, which may have ended.
    fn signal(&self, signal: Signal, random: &mut fastrand::Rng) {
        let family = self.family();
        let earlier = random.u8(..4) == 0 && family.len() > 1;
        let n = if earlier { random.usize(..family.len() - 1) } else { family.len() - 1 };
        // A process that ends may log the start of SIGUSR2 and no decision. The first one has the download.
        let n = if earlier && matches!(signal, Signal::User2) { 0 } else { n };
        // The number of a process that has ended may be in use again.
        if earlier && !processes(&self.proxy.config).contains(&family[n]) {
            return;
        }
        let sent = send_signal(family[n], signal);
        assert!(sent.is_ok() || earlier, "the process has ended");
    }

    fn said(&self, what: &str) -> usize {
        self.proxy.program.log().matches(what).count()
    }

    /// Every SIGUSR2 that was received has led to a process, or to none.
    fn is_decided(&self) -> bool {
        self.said("SIGUSR2: starting") == self.said("serves; this one ends") + self.said("this process goes on")
    }

    fn admin(&self, number: usize, command: &[u8]) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(self.folder.join(format!("admin{number}")))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(command)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Makes a valid file the one in use, and checks that it is.
    fn settle(&mut self, random: &mut fastrand::Rng) {
        eventually("SIGUSR2 is decided", || self.is_decided());
        if self.file.is_none() {
            self.write(self.draw(random));
        }
        let version = self.file.unwrap();
        let front = self.proxy.addr();
        send_signal(self.now(), Signal::HangUp).unwrap();
        let name = version.server.to_string();
        eventually("the newest configuration answers", || get(front, "/name").is_ok_and(|answer| answer == name));
        let extra = self.extra;
        let until = Instant::now() + PATIENCE;
        loop {
            let asked = TcpStream::connect(extra).map(|_| get(extra, "/name"));
            let is_right =
                if version.has_extra { matches!(&asked, Ok(Ok(text)) if *text == name) } else { asked.is_err() };
            if is_right {
                break;
            }
            assert!(Instant::now() < until, "the other listener, {extra} of {version:?}: {asked:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        // An earlier process keeps a socket that no later one has replaced.
        let server = self.servers[version.server].to_string();
        let answers = || self.admin(version.admin, b"status\n").is_ok_and(|text| text.contains(&server));
        eventually("the admin socket is as in the file", || version.admin == 0 || answers());
        self.used = version;
    }
}

fn get(from: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = load::open(from)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    body.ok_or_else(|| std::io::Error::other(format!("not an answer: {answer:?}")))
}

/// Returns the processes that were started with this file, also those that nobody has waited for.
fn processes(file: &Path) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let number = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    number
        .filter(|id| {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(file.to_str().unwrap())
        })
        .collect()
}

/// One step. Signals go to processes that do whatever the steps before have begun.
fn step(world: &mut World, random: &mut fastrand::Rng, slow: &mut Vec<UnixStream>) -> String {
    match random.u8(..16) {
        0 | 1 => {
            world.write(world.draw(random));
            "a valid file".into()
        }
        2 => {
            world.spoil(random);
            "an invalid file".into()
        }
        3..=5 => {
            for _ in 0..random.usize(1..4) {
                world.signal(Signal::HangUp, random);
            }
            "SIGHUP".into()
        }
        6 => {
            let _ = std::fs::rename(world.folder.join("log"), world.folder.join("log.1"));
            world.signal(Signal::User1, random);
            "SIGUSR1".into()
        }
        // The signal is not counted while another one waits.
        7..=9 if world.is_decided() => {
            world.signal(Signal::User2, random);
            "SIGUSR2".into()
        }
        10 | 11 => {
            slow.clear();
            let server = world.servers[0];
            let commands =
                ["status\n".into(), "flows\n".into(), format!("weight u {server} 3\n"), "\u{1}\n".into(), "".into()];
            // There may be none.
            let _ = world.admin(random.usize(1..3), commands[random.usize(..5)].as_bytes());
            "a command".into()
        }
        12 => {
            if let Ok(stream) = UnixStream::connect(world.folder.join("admin1")) {
                // The thread waits for the rest of it.
                slow.truncate(1);
                slow.push(stream);
            }
            "half a command".into()
        }
        13 => {
            slow.clear();
            world.settle(random);
            "settled".into()
        }
        _ => {
            std::thread::sleep(Duration::from_millis(random.u64(..60)));
            "a pause".into()
        }
    }
}

fn program(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let go = Arc::new(AtomicBool::new(false));
    let folder = temp_path("signals");
    std::fs::create_dir(&folder).unwrap();
    let servers: Vec<_> = (0..3).map(|name| server(name.to_string(), go.clone())).collect();
    let taken = TcpListener::bind((own_ip(), 0)).unwrap();
    // No port that the kernel or fastsock gives to other sockets: a reload must be able to take it at any time.
    let extra = SocketAddr::new(proxy_ip(), 10_000 + (std::process::id() % 10_000) as u16);
    let first = Version { admin: 1, ..Version::default() };
    let config = write_config(&format!(
        "{TIMEOUTS}admin = \"{}/admin1\"\n[[listener]]\naddress = \"{any}:0\"\nmode = \"http\"\nupstream = \"u\"\n\
         [[listener]]\naddress = \"{any}:0\"\nmode = \"tcp\"\nupstream = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = [\"{}\"]\n",
        folder.display(),
        servers[0],
        any = proxy_ip(),
    ));
    let proxy = Proxy { program: start_program(&config), config };
    let (file, used, steps) = (Some(first), first, Vec::new());
    let mut world = World { proxy, servers, extra, taken, folder, file, used, steps, begun: Instant::now() };
    println!("SEED={seed}");
    let (front, tcp) = (world.proxy.addr(), world.proxy.program.addrs[1]);
    let mut download = load::open(front).unwrap();
    download.write_all(b"GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut got = vec![0; 1000];
    download.read_exact(&mut got).unwrap();
    let (stop, count, mut slow) = (AtomicBool::new(false), AtomicUsize::new(0), Vec::new());
    std::thread::scope(|scope| {
        let clients = [(Client::Kept, front), (Client::New, front), (Client::Tcp, tcp)];
        let clients = clients.map(|(client, to)| {
            let (stop, count) = (&stop, &count);
            scope.spawn(move || load(client, to, stop, count))
        });
        let stopped = Stops(&stop);
        for _ in 0..random.usize(8..20) {
            let done = step(&mut world, &mut random, &mut slow);
            world.steps.push(format!("{} ms {done}", world.begun.elapsed().as_millis()));
            assert!(!clients.iter().any(|client| client.is_finished()), "a client has failed");
        }
        slow.clear();
        world.settle(&mut random);
        eventually("requests are answered", || {
            assert!(!clients.iter().any(|client| client.is_finished()), "a client has failed");
            count.load(Ordering::SeqCst) > 0
        });
        drop(stopped);
    });
    end(world, &mut random, (download, got, go));
}

/// Stops the clients, also if the test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// SIGTERM or SIGQUIT, also right after SIGUSR2, and while the download is open.
fn end(
    mut world: World,
    random: &mut fastrand::Rng,
    (mut download, mut got, go): (TcpStream, Vec<u8>, Arc<AtomicBool>),
) {
    let stop = if random.bool() { Signal::Terminate } else { Signal::Quit };
    if random.u8(..3) == 0 {
        send_signal(world.now(), Signal::User2).unwrap();
        std::thread::sleep(Duration::from_millis(random.u64(..40)));
        world.steps.push("SIGUSR2 before the end".into());
    }
    let early = random.bool();
    world.steps.push(format!("{stop:?}, early {early}"));
    if !early {
        go.store(true, Ordering::SeqCst);
        download.read_to_end(&mut got).unwrap();
    }
    // Each process that serves is told once: a second signal would end open connections.
    let mut told = Vec::new();
    let file = world.proxy.config.clone();
    let mut tell = |world: &World| {
        for process in world.family() {
            if !told.contains(&process) {
                told.push(process);
                // It may have ended, and its number may be in use again.
                if processes(&file).contains(&process) {
                    let _ = send_signal(process, stop);
                }
            }
        }
    };
    tell(&world);
    if early {
        go.store(true, Ordering::SeqCst);
        download.read_to_end(&mut got).unwrap();
    }
    assert!(got.ends_with(&pattern(LENGTH)), "{} bytes of the download", got.len());
    let status = world.proxy.program.wait();
    assert!(status.success(), "{status}");
    eventually("all processes have ended", || {
        tell(&world);
        processes(&file).is_empty()
    });
    let left: Vec<_> = std::fs::read_dir(&world.folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
    let known = ["admin1", "admin2", "log", "log.1"];
    let is_known = |name: &std::ffi::OsString| known.iter().any(|known| name == known);
    // A successor that gets SIGTERM before it catches signals leaves its socket under its first name.
    // One that was sent SIGUSR2 after its successor served has started nothing.
    let decided = || world.said("serves; this one ends") + world.said("another process has taken over already");
    if !left.iter().all(is_known) {
        eventually(&format!("a successor was stopped: {left:?}"), || world.said("SIGUSR2: starting") > decided());
    }
    for number in [1, 2] {
        assert!(world.admin(number, b"status\n").is_err(), "an admin socket answers");
    }
    let log = world.proxy.program.log();
    assert!(!log.contains("panicked"), "{log}");
    std::fs::remove_dir_all(&world.folder).unwrap();
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("after {:?}, steps: {:#?}", self.begun.elapsed(), self.steps);
            println!("{:?} should be in use; the log:\n{}", self.file, self.proxy.program.log());
        }
        for process in processes(&self.proxy.config) {
            let _ = std::process::Command::new("kill").args(["-KILL", &process.to_string()]).status();
        }
    }
}

#[test]
fn signals_in_any_order_lose_no_request() {
    (0..2).for_each(program);
}

#[test]
#[ignore = "a minute: `cargo xtask proof long` runs it"]
fn many_signals_in_any_order() {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let limit = Duration::from_secs(number("SECONDS").unwrap_or(60));
    let begun = Instant::now();
    match number("SEED") {
        Some(seed) => program(seed),
        None => (1000..).take_while(|_| begun.elapsed() < limit).for_each(program),
    }
}
