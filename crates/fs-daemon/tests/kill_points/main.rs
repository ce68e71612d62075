//! A process is killed after its n-th store to shared memory (or message to or from the daemon), for every n, in each call
//! that changes who holds what. Its peer sees the end, the listener serves the next client, and what it had is free again.
//!
//! Every run has processes of its own and its own daemon. `KILL_POINT=scenario:n` runs one.
#![cfg(debug_assertions)]

mod process_unsafe;
mod scenarios;
mod sockets;

use fs_daemon::Daemon;
use fs_shm::Geometry;
use fs_shm::control::{Client, CounterRow, Request};
use process_unsafe::{end_after, fork};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use scenarios::{Actors, Scenario};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Larger than any scenario's number of stores: it runs to its end.
const ALL: u32 = 1_000_000;
/// Bounds each process.
const SECONDS: u32 = 90;
/// Runs at once: they sleep most of the time.
const AT_ONCE: usize = 12;

/// One end of the line between a run and one of its processes.
pub(crate) struct Line(UnixDatagram);

impl Line {
    fn pair() -> (Line, Line) {
        let (a, b) = UnixDatagram::pair().unwrap();
        (Line(a), Line(b))
    }

    pub(crate) fn say(&self, words: &str) {
        // Who hears it may be dead.
        let _sent = self.0.send(words.as_bytes());
    }

    /// `None`: nothing within `seconds`.
    pub(crate) fn hear_within(&self, seconds: u64) -> Option<String> {
        self.0.set_read_timeout(Some(Duration::from_secs(seconds))).unwrap();
        let mut room = [0; 512];
        let len = self.0.recv(&mut room).ok()?;
        Some(String::from_utf8_lossy(&room[..len]).into_owned())
    }

    /// What has been said already.
    pub(crate) fn hear_now(&self) -> Option<String> {
        self.0.set_nonblocking(true).unwrap();
        let words = self.hear_within(1);
        self.0.set_nonblocking(false).unwrap();
        words
    }

    pub(crate) fn hear(&self) -> String {
        self.hear_within(u64::from(SECONDS)).expect("told in time")
    }
}

/// A process of a run.
pub(crate) struct Actor {
    pub(crate) line: Line,
    pid: Pid,
    begun: Instant,
}

impl Actor {
    /// A process that waits until it is told the daemon's path, then runs `body`.
    fn start(body: impl FnOnce(&Line)) -> Actor {
        let (line, its) = Line::pair();
        let pid = fork(|| {
            end_after(SECONDS);
            let path = its.hear();
            fs_socket::sys::set_variable("FASTSOCK_CONTROL", &path);
            body(&its);
            0
        });
        Actor { line, pid, begun: Instant::now() }
    }

    /// Seconds since it was started.
    pub(crate) fn age(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }

    pub(crate) fn is_dead(&self) -> bool {
        // An error: it was waited for before.
        !matches!(waitpid(Some(self.pid), WaitOptions::NOHANG), Ok(None))
    }

    /// Waits for its death.
    pub(crate) fn bury(&self) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(20);
        while !self.is_dead() {
            if Instant::now() > until {
                return Err("a process does not end".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn kill(&self) {
        if !self.is_dead() {
            let _ = kill_process(self.pid, Signal::KILL);
            let _ = waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}

/// What the daemon counts.
pub(crate) fn counter(path: &Path, name: &str) -> u64 {
    let client = Client::connect(path.as_os_str().as_encoded_bytes()).unwrap();
    let mut found = 0;
    let take = |row: CounterRow| {
        if row.name.as_str() == name {
            found = row.value;
        }
    };
    client.rows(|cursor| Request::Counters { cursor }, take).unwrap();
    found
}

/// One run in a process of its own. Answers how many stores the victim made, or what went wrong.
fn run(scenario: &Scenario, after: u32) -> Result<u32, String> {
    let directory: PathBuf = std::env::temp_dir().join(format!("fs-kill-{}", std::process::id()));
    let path = directory.join("control.sock");
    // Before the daemon's threads.
    let Scenario { survivor, victim, judge } = scenario;
    let actors = Actors {
        survivor: Actor::start(survivor),
        victim: Actor::start(|line| victim(line, after)),
        next: Actor::start(scenarios::next_client),
    };
    let daemon = Daemon::builder(&path).geometry(Geometry::SMALL).start().map_err(|error| error.to_string())?;
    for actor in [&actors.survivor, &actors.victim, &actors.next] {
        actor.line.say(path.to_str().expect("UTF-8"));
    }
    let answer = judge(&actors).and_then(|stores| no_arena(&path).map(|()| stores));
    for actor in [&actors.survivor, &actors.victim, &actors.next] {
        actor.kill();
    }
    daemon.handle().stop();
    let _ = std::fs::remove_dir_all(&directory);
    answer
}

/// Everything that was opened is over: no slot keeps an arena.
fn no_arena(path: &Path) -> Result<(), String> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match counter(path, "arenas") {
            0 => return Ok(()),
            arenas if Instant::now() > until => {
                return Err(format!("{arenas} arenas are kept by slots that nobody has"));
            }
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// A run under way.
struct Running {
    after: u32,
    pid: Pid,
    line: Line,
}

fn begin(scenario: &Scenario, after: u32) -> Running {
    let (line, its) = Line::pair();
    let pid = fork(|| {
        end_after(SECONDS + 10);
        let words = match run(scenario, after) {
            Ok(stores) => format!("ok {stores}"),
            Err(error) => format!("bad {error}"),
        };
        its.say(&words);
        0
    });
    Running { after, pid, line }
}

fn end(running: Running) -> Result<u32, String> {
    let said = running.line.hear_within(u64::from(SECONDS) + 15);
    let _ = kill_process(running.pid, Signal::KILL);
    let _ = waitpid(Some(running.pid), WaitOptions::empty());
    let said = said.ok_or("the run does not end")?;
    match said.split_once(' ') {
        Some(("ok", stores)) => stores.parse().map_err(|_| said.clone()),
        _ => Err(said),
    }
}

fn check(name: &str) {
    let scenario = scenarios::find(name);
    if let Ok(one) = std::env::var("KILL_POINT") {
        if let Some((of, after)) = one.split_once(':').filter(|(of, _)| *of == name) {
            let answer = end(begin(&scenario, after.parse().unwrap()));
            assert!(answer.is_ok(), "{of} killed after store {after}: {answer:?}");
        }
        return;
    }
    let begun = Instant::now();
    let all = end(begin(&scenario, ALL)).unwrap_or_else(|error| panic!("{name}, nobody killed: {error}"));
    let mut running = Vec::new();
    let mut wrong = Vec::new();
    let mut take = |running: &mut Vec<Running>| {
        let first = running.remove(0);
        let after = first.after;
        if let Err(error) = end(first) {
            wrong.push(format!("after store {after}: {error}"));
        }
    };
    for after in 1..=all {
        if running.len() == AT_ONCE {
            take(&mut running);
        }
        running.push(begin(&scenario, after));
    }
    while !running.is_empty() {
        take(&mut running);
    }
    eprintln!("{name}: {all} stores, {:?}", begun.elapsed());
    assert!(wrong.is_empty(), "{name}, {} of {all}:\n{}", wrong.len(), wrong.join("\n"));
}

macro_rules! scenarios {
    ($($(#[$attribute:meta])* $name:ident)*) => {$(
        #[test]
        $(#[$attribute])*
        fn $name() {
            check(stringify!($name));
        }
    )*};
}

scenarios! {
    closer
    duplicator
    forker
    listener_closer
    opener
    receiver
    sharer
    acceptor
    acceptor_of_two
    filler
}
