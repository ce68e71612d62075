//! The client of `make compat`: sends a number of requests to a server, each until the response is
//! right, and counts errors. Some clients connect for each request, some keep their connection,
//! some use a process for each request, and some close without waiting for the response.
//!
//! Prints one line of JSON every 0.2 s, the last with `"done": true`. Ends with status 1 if a
//! request hangs.

mod dialogues;
mod wire;

use clap::Parser;
use dialogues::Dialogue;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::{Wire, Wrong};

#[derive(Parser, Clone, Debug)]
struct Args {
    /// The server.
    #[arg(long)]
    to: SocketAddr,
    /// What is asked; see dialogues.rs.
    #[arg(long)]
    ask: String,
    /// Files that the server offers.
    #[arg(long, default_value = ".")]
    files: PathBuf,
    /// Requests.
    #[arg(long, default_value_t = 1000)]
    requests: u64,
    /// Clients that connect for each request.
    #[arg(long, default_value_t = 8)]
    short: u64,
    /// Clients that keep their connection.
    #[arg(long, default_value_t = 8)]
    long: u64,
    /// Requests on a kept connection before it is replaced by a new one.
    #[arg(long, default_value_t = 100)]
    kept: u64,
    /// Clients that go away without waiting for an answer.
    #[arg(long, default_value_t = 1)]
    leavers: u64,
    /// One request in so many is made by a process of its own.
    #[arg(long, default_value_t = 100)]
    process: u64,
    /// Seconds after which a request hangs.
    #[arg(long, default_value_t = 30)]
    deadline: u64,
    /// Only this one request, once; prints what was wrong.
    #[arg(long)]
    one: Option<u64>,
}

/// Counters of all clients.
#[derive(Default)]
struct Counts {
    right: AtomicU64,
    left: AtomicU64,
    wrong: Mutex<BTreeMap<String, u64>>,
}

impl Counts {
    fn wrong(&self, what: &Wrong) {
        *self.wrong.lock().unwrap_or_else(PoisonError::into_inner).entry(what.0.clone()).or_default() += 1;
    }

    fn print(&self, start: Instant, done: bool) {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let said = serde_json::json!({
            "right": self.right.load(Relaxed), "left": self.left.load(Relaxed), "wrong": wrong,
            "seconds": start.elapsed().as_secs_f64(), "done": done,
        });
        println!("{said}");
    }
}

/// How a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Short,
    Long,
    Process,
}

/// A client, and the start of its present request.
struct Client {
    manner: Manner,
    number: u64,
    requests: u64,
    /// Start of the present request in milliseconds since the program's start, or 0 without a
    /// request.
    since: AtomicU64,
    asks: AtomicU64,
}

fn main() {
    let args = Args::parse();
    let start = Instant::now();
    if let Some(number) = args.one {
        one(&args, number);
    }
    let of_process = args.requests.checked_div(args.process).unwrap_or(0);
    let of_long = if args.long == 0 {
        0
    } else if args.short == 0 {
        args.requests - of_process
    } else {
        args.requests * 2 / 5
    };
    let of_short = args.requests - of_process - of_long;
    let kinds =
        [(Manner::Short, args.short, of_short), (Manner::Long, args.long, of_long), (Manner::Process, 2, of_process)];
    let mut clients = Vec::new();
    for (manner, many, requests) in kinds {
        for i in 0..many {
            let requests = requests / many + u64::from(i < requests % many);
            let number = clients.len() as u64;
            clients.push(Client { manner, number, requests, since: AtomicU64::new(0), asks: AtomicU64::new(0) });
        }
    }
    let (counts, running) = (Counts::default(), AtomicU64::new(clients.len() as u64));
    std::thread::scope(|scope| {
        for client in &clients {
            let (args, counts, running) = (&args, &counts, &running);
            scope.spawn(move || {
                client.run(args, counts, start);
                running.fetch_sub(1, Relaxed);
            });
        }
        for number in 0..args.leavers {
            let (args, counts, running) = (&args, &counts, &running);
            scope.spawn(move || leave(args, counts, running, number));
        }
        while running.load(Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(100));
            counts.print(start, false);
            let now = start.elapsed().as_millis() as u64;
            for client in &clients {
                let since = client.since.load(Relaxed);
                if since > 0 && now.saturating_sub(since) > args.deadline * 1000 {
                    let asks = client.asks.load(Relaxed);
                    counts
                        .wrong(&Wrong(format!("hung ({:?} client {}, request {asks})", client.manner, client.number)));
                    counts.print(start, false);
                    // Time to inspect the hanging request, before exit(2) closes it.
                    std::thread::sleep(Duration::from_secs(5));
                    std::process::exit(1);
                }
            }
        }
    });
    counts.print(start, true);
}

impl Client {
    fn run(&self, args: &Args, counts: &Counts, start: Instant) {
        let mut dialogue = dialogues::named(&args.ask, &args.files);
        let mut wire: Option<Wire> = None;
        let mut on_this = 0;
        for turn in 0..self.requests {
            let number = self.number << 32 | turn;
            self.asks.store(number, Relaxed);
            self.since.store(start.elapsed().as_millis() as u64 + 1, Relaxed);
            loop {
                let reused = wire.is_some();
                let result = match self.manner {
                    Manner::Process => by_process(args, number),
                    Manner::Short => self.once(args, &mut *dialogue, &mut wire, number, false),
                    Manner::Long => self.once(args, &mut *dialogue, &mut wire, number, on_this + 1 < args.kept),
                };
                let Err(mut what) = result else { break };
                // A server may close a kept connection. The client notices at its next request.
                if reused && what.ended() && wire.as_ref().is_some_and(|wire| !wire.heard) {
                    what = Wrong("stale".into());
                }
                (wire, on_this) = (None, 0);
                counts.wrong(&what);
                std::thread::sleep(Duration::from_millis(10));
            }
            self.since.store(0, Relaxed);
            counts.right.fetch_add(1, Relaxed);
            on_this = if wire.is_some() { on_this + 1 } else { 0 };
        }
        if let Some(wire) = &mut wire {
            dialogue.bye(wire);
        }
    }

    /// Makes a request over the existing connection or a new one. The connection is kept if both
    /// sides want that.
    fn once(
        &self,
        args: &Args,
        dialogue: &mut dyn Dialogue,
        wire: &mut Option<Wire>,
        number: u64,
        keep: bool,
    ) -> Result<(), Wrong> {
        let timed = self.number.is_multiple_of(2).then(|| Duration::from_secs(args.deadline));
        let wire_now = match wire {
            Some(wire) => wire,
            None => {
                let mut fresh = Wire::connect(args.to, timed)?;
                dialogue.greet(&mut fresh)?;
                wire.insert(fresh)
            }
        };
        wire_now.heard = false;
        wire_now.write(&dialogue.request(number, keep))?;
        let kept = dialogue.answer(wire_now, number, keep)?;
        if !(kept && keep) {
            if kept {
                dialogue.bye(wire_now);
            }
            *wire = None;
        }
        Ok(())
    }
}

/// Makes a request in a process of its own, which connects, asks and exits.
fn by_process(args: &Args, number: u64) -> Result<(), Wrong> {
    let mut command = std::process::Command::new("/proc/self/exe");
    command.args(["--to", &args.to.to_string(), "--ask", &args.ask, "--deadline", &args.deadline.to_string()]);
    command.arg("--files").arg(&args.files).args(["--one", &number.to_string()]);
    let output = command.output().map_err(|error| Wrong::of("spawn", &error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Err(Wrong(if said.is_empty() { format!("process {}", output.status) } else { said }))
}

fn one(args: &Args, number: u64) -> ! {
    let mut dialogue = dialogues::named(&args.ask, &args.files);
    let ask = || -> Result<(), Wrong> {
        let mut wire = Wire::connect(args.to, Some(Duration::from_secs(args.deadline)))?;
        dialogue.greet(&mut wire)?;
        wire.write(&dialogue.request(number, false))?;
        dialogue.answer(&mut wire, number, false).map(drop)
    };
    let result = { ask }();
    if let Err(Wrong(what)) = &result {
        println!("{what}");
    }
    // Exits without closing the connection, as a program that calls exit(3).
    std::process::exit(i32::from(result.is_err()))
}

/// Connects, sends a request, and closes without reading, or only connects. The result is ignored.
fn leave(args: &Args, counts: &Counts, running: &AtomicU64, number: u64) {
    let mut dialogue = dialogues::named(&args.ask, &args.files);
    let mut turn = number << 32;
    while running.load(Relaxed) > 0 {
        if let Ok(mut wire) = Wire::connect(args.to, Some(Duration::from_secs(args.deadline))) {
            counts.left.fetch_add(1, Relaxed);
            if !turn.is_multiple_of(3) && dialogue.greet(&mut wire).is_ok() {
                let _ = wire.write(&dialogue.request(turn, true));
            }
        }
        turn += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
}
