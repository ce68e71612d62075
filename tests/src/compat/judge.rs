//! Compares the results on kernel sockets and on ours: permitted and other differences.

use super::{Outcome, Program, run, table};
use crate::lab::{Lab, Ns};
use crate::unmodified::{Daemon, Stage};
use anyhow::{Context, Result, anyhow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Descriptors of one process that may be opened or closed beyond those on the kernel: its own
/// files, and one for each thread that slept in poll(2) or epoll_wait(2).
const DESCRIPTORS: u64 = 12 + 32;
/// Mappings of one process that may be added or removed: three for each connection with a ring that
/// the clients' end left open.
const MAPPINGS: u64 = 3 * 64 + 32;
/// Growth in KiB of the memory of all of a server's processes, beyond that on the kernel.
pub(super) const RESIDENT_KIB: u64 = 16 << 10;
/// Growth in KiB of the touched rings of all of a server's processes: those of open connections.
pub(super) const RINGS_KIB: u64 = 32 << 10;
/// Clients that ask at once, at most.
const CLIENTS: u64 = 50;
/// Wake-ups per second of all idle processes beyond those on the kernel: the daemon's timers. A
/// single set that polls at intervals wakes at least 60 times.
const WAKES: u64 = 20;
/// Descriptors and mappings that a daemon may still have when all clients have ended.
const REMAINS: u64 = 8;

/// The result of a program.
pub enum Verdict {
    /// It cannot run here, for this reason.
    Skipped(String),
    /// It ran.
    Ran {
        /// Its row of the table.
        row: String,
        /// The differences.
        wrong: Vec<String>,
    },
}

/// Runs a program on kernel sockets and on ours. Fails if it does not end on one of them.
pub fn compare(lab: &Lab, program: &Program, port: u16, requests: u64) -> Result<Verdict> {
    if let Some(need) = program.missing() {
        return Ok(Verdict::Skipped(format!("{need} is not installed")));
    }
    let mut outcomes = Vec::new();
    for placement in run::PLACEMENTS {
        let mut stage = Stage::set(lab, placement)?;
        outcomes.push(run(program, &mut stage, port, requests).with_context(|| placement.name())?);
        stage.end().context("the daemon")?;
    }
    let [kernel, ours] = &outcomes[..] else { anyhow::bail!("two placements") };
    let wrong = judge(program, kernel, ours);
    Ok(Verdict::Ran { row: table::row(program, kernel, ours, &wrong), wrong })
}

/// The result of a program whose daemon was killed repeatedly.
pub struct Killed {
    /// Number of times that the daemon was killed while clients sent requests.
    pub kills: u64,
    /// Number of times that it was ended by SIGTERM and another one started, as by an upgrade.
    pub exchanges: u64,
    /// Correct responses.
    pub right: u64,
    /// Sockets that got a ring.
    pub promoted: u64,
    /// The differences from the kernel.
    pub wrong: Vec<String>,
}

/// Runs a program without its faults on kernel sockets and on ours, and ends the daemon again and again in the second
/// run. A client's request fails there only if it fails on the kernel too. `None`: it cannot run here.
pub fn under_kills(lab: &Lab, program: Program, port: u16, requests: u64) -> Result<Option<Killed>> {
    if program.missing().is_some() {
        return Ok(None);
    }
    let program = Program { faults: Vec::new(), ..program };
    let [kernel, ours] = run::PLACEMENTS;
    let mut stage = Stage::set(lab, kernel)?;
    let kernel = run(&program, &mut stage, port, requests).context("kernel")?;
    // Yielding, so that rings carry data on a busy machine too.
    let mut stage = Stage::set(lab, ours)?.yielding();
    let daemon = stage.daemon().context("no daemon")?;
    let (ns, first, done) = (daemon.ns(), daemon.proc.pid(), AtomicBool::new(false));
    let busy = stage.busy.clone();
    let (ours, ended) = std::thread::scope(|scope| {
        let killer = scope.spawn(|| end_daemons(lab, ns, first, &busy, &done));
        let ours = run(&program, &mut stage, port, requests);
        done.store(true, Ordering::Relaxed);
        (ours, killer.join().map_err(|_| anyhow!("the killer panicked")))
    });
    let (kills, exchanges) = ended??;
    let ours = ours.context("with kills of the daemon")?;
    let mut wrong = judge(&program, &kernel, &ours);
    if kills == 0 {
        wrong.push("it ended before the daemon was killed".into());
    }
    Ok(Some(Killed { kills, exchanges, right: ours.answers.right, promoted: ours.by_ring.promoted, wrong }))
}

/// Kills the process `first`, a daemon in `ns`, and then its successors; ends each fourth by SIGTERM.
fn end_daemons(lab: &Lab, ns: Ns, first: u32, busy: &AtomicBool, done: &AtomicBool) -> Result<(u64, u64)> {
    // A library without a service looks for one once a second.
    const PAUSE: Duration = Duration::from_millis(50);
    let (mut kills, mut exchanges) = (0, 0);
    let mut first = Some(first);
    loop {
        // Between 0.05 and 1.6 seconds, so that some are killed before and some after they have made pairs.
        let pause = PAUSE * (1 << ((kills + exchanges) % 6));
        let mut daemon = None;
        if first.is_none() {
            daemon = Some(Daemon::start(lab, ns)?);
        }
        std::thread::sleep(pause);
        while !busy.load(Ordering::Relaxed) && !done.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if done.load(Ordering::Relaxed) {
            daemon.as_mut().map_or(Ok(()), Daemon::stop)?;
            return Ok((kills, exchanges));
        }
        let Some(mut daemon) = daemon else {
            if let Some(pid) = first.take() {
                super::signal(pid, "KILL")?;
                super::until("the daemon's end", || !super::watch::lives(pid))?;
            }
            kills += 1;
            continue;
        };
        if (kills + exchanges) % 4 == 3 {
            daemon.stop()?;
            exchanges += 1;
        } else {
            daemon.proc.kill()?;
            kills += 1;
        }
    }
}

/// Returns the errors of ours, or none if the program shows no difference.
pub fn judge(program: &Program, kernel: &Outcome, ours: &Outcome) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut claim = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    let twice = 2 * program.faults.len() as u64;
    claim(
        ours.faults == twice && kernel.faults == twice,
        format!("{} faults, on the kernel {}, instead of {twice}: too few requests", ours.faults, kernel.faults),
    );
    claim(
        ours.answers.right == kernel.answers.right,
        format!("{} right answers, on the kernel {}", ours.answers.right, kernel.answers.right),
    );
    let permitted: Vec<&str> = program.faults.iter().flat_map(|fault| fault.permits).copied().collect();
    for (kind, many) in &ours.answers.wrong {
        let there = kernel.answers.wrong.get(kind).copied().unwrap_or(0);
        claim(
            there > 0 || permitted.contains(&kind.as_str()),
            format!("{many} × \"{kind}\", which the kernel has not"),
        );
        // Each client can have had one connection to the dead process. How often it is refused
        // before a server is there again depends on timing.
        let time = kind == "refused" || kind.starts_with("answer");
        claim(
            time || *many <= 3 * there + CLIENTS * ours.faults,
            format!("{many} × \"{kind}\", on the kernel {there}"),
        );
    }
    let ((_, theirs), (before, after)) = (kernel.held, ours.held);
    let growth = |first: u64, last: u64| last.saturating_sub(first);
    let grown = growth(before.descriptors, after.descriptors);
    let there = growth(kernel.held.0.descriptors, theirs.descriptors);
    claim(
        grown <= there + DESCRIPTORS,
        format!("a server's process has {} descriptors, before {}", after.descriptors, before.descriptors),
    );
    let grown = growth(before.mappings, after.mappings);
    let there = growth(kernel.held.0.mappings, theirs.mappings);
    claim(
        grown <= there + MAPPINGS,
        format!("a server's process has {} mappings, before {}", after.mappings, before.mappings),
    );
    let grown = growth(before.own_kib(), after.own_kib_as_in(&before));
    let there = growth(kernel.held.0.own_kib(), theirs.own_kib_as_in(&kernel.held.0));
    claim(
        grown <= there + RESIDENT_KIB,
        format!(
            "{} processes of a server have {} KiB resident without their rings, before {} had {}",
            after.processes,
            after.own_kib(),
            before.processes,
            before.own_kib()
        ),
    );
    claim(
        after.rings_kib <= before.rings_kib + RINGS_KIB,
        format!("a server has {} KiB of rings, before {}", after.rings_kib, before.rings_kib),
    );
    // The long-lived clients' connections.
    let (promoted, sends) = (ours.by_ring.promoted, ours.by_ring.ring_sends);
    claim(
        program.carried.is_some() || promoted > 0 && sends > 0,
        format!("{promoted} sockets had a ring, {sends} sends by it: the kernel carried"),
    );
    if let Some((before, after)) = ours.kept {
        // malloc(3) has up to eight arenas for each processor, with two mappings each.
        let arenas = 16 * std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        claim(
            after.descriptors <= before.descriptors + REMAINS && after.mappings <= before.mappings + REMAINS + arenas,
            format!(
                "the daemon has {} descriptors and {} mappings when all have ended, before {} and {}",
                after.descriptors, after.mappings, before.descriptors, before.mappings
            ),
        );
        claim(
            after.resident_kib <= before.resident_kib + (64 << 10),
            format!("the daemon has {} KiB resident, before {}", after.resident_kib, before.resident_kib),
        );
    }
    claim(
        ours.idle.percent <= kernel.idle.percent + 20,
        format!("{} % of a CPU while idle, on the kernel {} %", ours.idle.percent, kernel.idle.percent),
    );
    claim(
        ours.idle.wakes <= kernel.idle.wakes + WAKES,
        format!("{} wakes a second while idle, on the kernel {}", ours.idle.wakes, kernel.idle.wakes),
    );
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::watch::Held;
    use crate::compat::{Act, Fault};
    use crate::unmodified::stage::Reported;

    fn wrong(before: Held, after: Held) -> Vec<String> {
        let program = Program::new("any", &[], "any", |_| anyhow::bail!("is not started"), Vec::new());
        let mut ours = Outcome { held: (before, after), ..Outcome::default() };
        (ours.by_ring.promoted, ours.by_ring.ring_sends) = (1, 1);
        judge(&program, &Outcome::default(), &ours)
    }

    #[test]
    fn every_fault_must_happen_twice() {
        let fault = || Fault { name: "fault", permits: &[], act: Act::KillClient };
        let program = Program::new("any", &[], "any", |_| anyhow::bail!("is not started"), vec![fault(), fault()]);
        let of = |faults| Outcome { faults, by_ring: Reported { promoted: 1, ring_sends: 1 }, ..Outcome::default() };
        assert_eq!(judge(&program, &of(4), &of(4)), [""; 0]);
        assert_eq!(judge(&program, &of(4), &of(3)).len(), 1, "the clients were done too early");
        assert_eq!(judge(&program, &of(3), &of(4)).len(), 1, "the same on the kernel");
    }

    #[test]
    fn memory_of_a_server_is_judged_by_process() {
        let held = |processes: u64| Held { processes, resident_kib: processes * 6000, ..Held::default() };
        assert_eq!(wrong(held(5), held(11)), [""; 0], "more processes, as large");
        assert_eq!(wrong(held(11), held(5)), [""; 0], "fewer");
        let larger = Held { resident_kib: 5 * 6000 + RESIDENT_KIB + 1, ..held(5) };
        assert_eq!(wrong(held(5), larger).len(), 1, "as many, but larger");
        let more = Held { resident_kib: 2 * larger.resident_kib, ..held(10) };
        assert_eq!(wrong(held(5), more).len(), 1, "more and larger");
    }
}
