//! Runs one program in one placement: starts it, sends requests during faults, and inspects it
//! before and after.

use super::judge::{RESIDENT_KIB, RINGS_KIB};
use super::watch::{self, Held, Kept};
use super::{Act, PATIENCE, Place, Program, Server};
use crate::process::Proc;
use crate::unmodified::stage::Reported;
use crate::unmodified::{Placement, Stage};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The clients' counters; a line of `asker`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answers {
    /// Requests answered right.
    pub right: u64,
    /// Connections that a client closed without waiting for the response.
    pub left: u64,
    /// Errors before a request got its right response, and how often.
    pub wrong: BTreeMap<String, u64>,
    /// Duration of the run.
    pub seconds: f64,
    done: bool,
}

/// The observations of a program in a placement.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Requests that should be answered.
    pub requests: u64,
    /// The clients' counters.
    pub answers: Answers,
    /// Faults that happened.
    pub faults: u64,
    /// Sockets of servers and clients that got a ring, and data calls that sent by it.
    pub by_ring: Reported,
    /// The server after a first run of requests, and after all.
    pub held: (Held, Held),
    /// The daemon before all, and when all have ended; `None` on the kernel's sockets.
    pub kept: Option<(Kept, Kept)>,
    /// Activity of the idle server and daemon.
    pub idle: watch::Idle,
}

/// Starts the program, lets its clients send `requests` requests while every fault occurs twice,
/// and inspects what remains.
pub fn run(program: &Program, stage: &mut Stage, port: u16, requests: u64) -> Result<Outcome> {
    let dir = stage.folder(&format!("compat-{port}-{}", stage.placement.name()))?;
    let (empty, before) = (stage.daemon_pid().map(watch::kept), stage.reported());
    let place = Place { stage, port, dir };
    let mut server = (program.start)(&place).context("start")?;
    let outcome = observe(program, &place, &mut server, requests);
    if outcome.is_err() {
        for proc in &server.0 {
            eprintln!("--- end of {}:\n{}", proc.log_path().display(), crate::process::tail(proc.log_path(), 15));
        }
        let sockets = stage.sockets();
        let lines: Vec<&str> = sockets.lines().take(60).collect();
        eprintln!("--- fastsock ss, {} lines:\n{}", sockets.lines().count(), lines.join("\n"));
    }
    server.end();
    let mut outcome = outcome?;
    let after = stage.reported();
    outcome.by_ring =
        Reported { promoted: after.promoted - before.promoted, ring_sends: after.ring_sends - before.ring_sends };
    if let (Some(empty), Some(pid)) = (empty, stage.daemon_pid()) {
        let left = settle(|| watch::kept(pid), |now| now.descriptors <= empty.descriptors, SETTLED);
        outcome.kept = Some((empty, left));
    }
    Ok(outcome)
}

fn observe(program: &Program, place: &Place, server: &mut Server, requests: u64) -> Result<Outcome> {
    let mut outcome = Outcome { requests, ..Outcome::default() };
    // Resources are compared with those after a first, short run, not with those of an unused
    // server.
    asked(program, place, "first", (requests / 20).clamp(200, 2000))?.finish(server)?;
    std::thread::sleep(Duration::from_secs(1));
    let held = watch::held(&server.0);
    let mut clients = asked(program, place, "clients", requests)?;
    place.stage.busy.store(true, Ordering::Relaxed);
    let faults: Vec<_> = program.faults.iter().chain(&program.faults).collect();
    for (number, fault) in faults.iter().enumerate() {
        let at = requests * (number as u64 + 1) / (faults.len() as u64 + 1);
        if !clients.reach(at, server)? {
            break;
        }
        match fault.act {
            Act::Do(act) => act(place, server),
            Act::Restart(start) => {
                server.kill();
                start(place, server)
            }
            Act::KillClient => kill_client(program, place, server),
        }
        .with_context(|| format!("{} ({number})", fault.name))?;
        outcome.faults += 1;
    }
    let answers = clients.finish(server);
    place.stage.busy.store(false, Ordering::Relaxed);
    outcome.answers = answers?;
    outcome.held = (
        held,
        settle(
            || watch::held(&server.0),
            |now| {
                now.descriptors <= held.descriptors
                    && now.mappings <= held.mappings
                    && now.processes <= held.processes
                    // Rings that have grown are freed some seconds later.
                    && now.own_kib_as_in(&held) <= held.own_kib() + RESIDENT_KIB
                    && now.rings_kib <= held.rings_kib + RINGS_KIB
            },
            SETTLED,
        ),
    );
    let mut pids: Vec<u32> = server.0.iter().flat_map(|proc| watch::tree(proc.pid())).collect();
    pids.extend(place.stage.daemon_pid());
    outcome.idle = watch::idle(&pids);
    Ok(outcome)
}

/// Limit for resources that are freed in the background.
const SETTLED: Duration = Duration::from_secs(30);

/// Repeats an observation until it is good, or for this time. Returns the last one.
fn settle<T>(mut look: impl FnMut() -> T, well: impl Fn(&T) -> bool, patience: Duration) -> T {
    let start = Instant::now();
    loop {
        let seen = look();
        if well(&seen) || start.elapsed() > patience {
            return seen;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Clients that ask.
struct Clients(Proc);

fn asked(program: &Program, place: &Place, name: &str, requests: u64) -> Result<Clients> {
    let mut command = (program.client)(place)?;
    command.args(["--to", &format!("{}:{}", place.stage.host, place.port), "--ask", program.ask]);
    command.args(["--requests", &requests.to_string()]).arg("--files").arg(place.stage.files()).args(program.clients);
    let name = format!("{}-{}-{name}", place.port, place.stage.placement.name());
    Ok(Clients(place.stage.lab.spawn(&name, &mut command)?))
}

impl Clients {
    fn answers(&self) -> Answers {
        self.0.log().lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap_or_default()
    }

    /// Waits until this many requests are answered. Returns false when all are.
    fn reach(&mut self, right: u64, server: &mut Server) -> Result<bool> {
        let (mut last, mut moved) = (0, Instant::now());
        loop {
            let ended = self.0.ended()?;
            let answers = self.answers();
            match ended {
                Some(status) if status.success() => return Ok(false),
                Some(_) => bail!("the clients ended at {answers:?}"),
                None if answers.wrong.keys().any(|kind| kind.starts_with("hung (")) => bail!("{answers:?}"),
                None if answers.right >= right => return Ok(true),
                None => {}
            }
            if answers.right != last {
                (last, moved) = (answers.right, Instant::now());
            }
            // The clients end by themselves when one of them hangs.
            ensure!(moved.elapsed() < 3 * PATIENCE, "no answer for {:?}: {answers:?}", moved.elapsed());
            if let Some(status) = server.main()?.ended()? {
                bail!("the server ended: {status}; {answers:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn finish(mut self, server: &mut Server) -> Result<Answers> {
        self.reach(u64::MAX, server)?;
        let answers = self.answers();
        ensure!(answers.done, "the clients did not end well: {answers:?}");
        Ok(answers)
    }
}

/// Clients of their own, killed while they ask.
fn kill_client(program: &Program, place: &Place, server: &mut Server) -> Result<()> {
    let mut clients = asked(program, place, "killed", 1_000_000)?;
    clients.reach(100, server)?;
    clients.0.kill()
}

/// Both placements that are compared.
pub const PLACEMENTS: [Placement; 2] = [Placement::Kernel, Placement::OneHost];
