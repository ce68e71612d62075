//! `fastsock devices` and `fastsock down`: shared devices.

use anyhow::Context;
use fs_daemon::shared;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn devices() -> anyhow::Result<ExitCode> {
    let rows = shared::list(Path::new(shared::PINS)).context("cannot read shared devices")?;
    let mut output = std::io::stdout();
    writeln!(output, "{:<12} {:>4} {:<14} {:>8} {:>8}  counters", "DEVICE", "SLOT", "PAIR", "USER", "LEASES")?;
    for shared::Row { device, slot, pair, uid, leases, counters } in rows {
        let counted = counters.named().into_iter().filter(|(_, count)| *count > 0);
        let counted: Vec<String> = counted.map(|(name, count)| format!("{name}={count}")).collect();
        writeln!(output, "{device:<12} {slot:>4} {pair:<14} {uid:>8} {leases:>8}  {}", counted.join(" "))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn down() -> anyhow::Result<ExitCode> {
    let pairs = shared::purge(Path::new(shared::PINS)).context("cannot stop sharing devices")?;
    writeln!(std::io::stdout(), "removed {pairs} device pairs")?;
    Ok(ExitCode::SUCCESS)
}
