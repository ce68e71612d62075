//! What may differ between the kernel's sockets and ours, and what may not.

use super::{Outcome, Program, run, table};
use crate::lab::Lab;
use crate::unmodified::Stage;
use anyhow::{Context, Result};

/// Descriptors of one process that may come and go: files of its own, and 32 pollers at rest of as many threads that were in poll(2) at
/// once (fs-socket, `poll/descriptors.rs`), which are an epoll set and an eventfd each.
const DESCRIPTORS: u64 = 12 + 2 * 32;
/// Mappings of one process that may come and go: a process looks for arenas that are over with each 32 that it maps, the third look that
/// finds one over gives it back and the fourth forgets it, and each is three mappings (fs-socket, `arenas.rs`).
const MAPPINGS: u64 = 3 * 32 * 4 + 32;
/// KiB of memory that all processes of a server may have more than at the beginning, beyond what they have on the kernel.
pub(super) const RESIDENT_KIB: u64 = 16 << 10;
/// KiB of arenas that all processes of a server may have touched more than at the beginning. An open connection keeps what its rings
/// have ever taken; and a process has some pages of each of 128 arenas that are over (as above), whose rings are empty.
pub(super) const RINGS_KIB: u64 = 32 << 10;
/// Clients that ask at once, at most.
const CLIENTS: u64 = 50;
/// Wakes a second of all processes with nobody asking, beyond the kernel's: the daemon's timers. One set that asks at intervals wakes 60
/// times or more.
const WAKES: u64 = 20;
/// KiB of shared memory that may remain: pages of arenas, attachments and listeners.
const SHARED_KIB: u64 = 8 << 10;

/// What came of a program.
pub enum Verdict {
    /// It cannot run here, for this reason.
    Skipped(String),
    /// It ran.
    Ran {
        /// Its row of the table.
        row: String,
        /// What differs.
        wrong: Vec<String>,
    },
}

/// Runs a program on the kernel's sockets and on ours; an error when it does not come to its end on one of them.
pub fn compare(lab: &Lab, program: &Program, port: u16, requests: u64) -> Result<Verdict> {
    if let Some(need) = program.missing() {
        return Ok(Verdict::Skipped(format!("{need} is not installed")));
    }
    let mut outcomes = Vec::new();
    for placement in run::PLACEMENTS {
        let mut stage = Stage::set(lab, placement)?;
        // Where a port has no listener the kernel refuses, as it must while a server is being started again.
        stage.lo_up()?;
        outcomes.push(run(program, &mut stage, port, requests).with_context(|| placement.name())?);
        stage.end().context("the daemon")?;
    }
    let [kernel, ours] = &outcomes[..] else { anyhow::bail!("two placements") };
    let wrong = judge(program, kernel, ours);
    Ok(Verdict::Ran { row: table::row(program, kernel, ours, &wrong), wrong })
}

/// What is wrong with ours; nothing when a program could not tell.
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
        // Each client can have had one connection at what died; how often it is refused until a server is there again, or
        // recovers, is a matter of time.
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
    // Every client but the long-lived ones connects for each request.
    claim(
        program.carried || ours.connections >= ours.requests / 4,
        format!("only {} connections were ours, the kernel carried the others", ours.connections),
    );
    if let Some((first, last)) = ours.kept {
        // Kept connections are gone with the clients; pools of the server's may hold a few.
        claim(
            last.descriptors <= first.descriptors + 48,
            format!("the daemon has {} descriptors, before {}", last.descriptors, first.descriptors),
        );
        claim(
            last.shared_kib <= first.shared_kib + SHARED_KIB,
            format!("{} KiB of shared memory, before {}", last.shared_kib, first.shared_kib),
        );
        claim(
            last.resident_kib <= first.resident_kib + (64 << 10),
            format!("the daemon has {} KiB resident, before {}", last.resident_kib, first.resident_kib),
        );
    }
    if let Some(left) = ours.left {
        claim(
            left.attached == 0 && left.arenas == 0 && left.listeners == 0,
            format!(
                "{} processes, {} arenas and {} listeners are left when all have gone",
                left.attached, left.arenas, left.listeners
            ),
        );
    }
    claim(
        ours.idle.percent <= kernel.idle.percent + 20,
        format!("{} % of a CPU with nobody asking, on the kernel {} %", ours.idle.percent, kernel.idle.percent),
    );
    claim(
        ours.idle.wakes <= kernel.idle.wakes + WAKES,
        format!("{} wakes a second with nobody asking, on the kernel {}", ours.idle.wakes, kernel.idle.wakes),
    );
    wrong
}
