//! Compares the results on kernel sockets and on ours: permitted and other differences.

use super::{Outcome, Program, run, table};
use crate::lab::Lab;
use crate::unmodified::Stage;
use anyhow::{Context, Result};

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
/// What may remain of a daemon's descriptors and mappings when all clients have ended.
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

/// Returns the errors of ours, or none if the program shows no difference.
pub fn judge(program: &Program, kernel: &Outcome, ours: &Outcome) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut claim = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
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
    let grown = growth(before.own_kib(), after.own_kib());
    let there = growth(kernel.held.0.own_kib(), theirs.own_kib());
    claim(
        grown <= there + RESIDENT_KIB,
        format!("a server has {} KiB resident without its rings, before {}", after.own_kib(), before.own_kib()),
    );
    claim(
        after.rings_kib <= before.rings_kib + RINGS_KIB,
        format!("a server has {} KiB of rings, before {}", after.rings_kib, before.rings_kib),
    );
    // The long-lived clients' connections.
    let (promoted, sends) = (ours.by_ring.promoted, ours.by_ring.ring_sends);
    claim(
        program.carried || promoted > 0 && sends > 0,
        format!("{promoted} sockets had a ring, {sends} sends by it: the kernel carried"),
    );
    if let Some((before, after)) = ours.kept {
        claim(
            after.descriptors <= before.descriptors + REMAINS && after.mappings <= before.mappings + REMAINS,
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
