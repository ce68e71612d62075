//! `--print-memory`: prints the cost of an idle connection.

use crate::stats::Stats;
use std::sync::Arc;
use std::time::Duration;

/// Starts a thread that prints a line per second while the process lives.
pub(crate) fn print_each_second(stats: Arc<Stats>) -> std::io::Result<()> {
    let empty = fs_stacks::usage::resident_bytes()?;
    let print = move || {
        // Memory that a stack allocates before the first connection does not count for the
        // connections.
        let mut base = empty;
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let open = stats.open();
            match fs_stacks::usage::resident_bytes() {
                Ok(resident) if open == 0 => {
                    base = resident;
                    eprintln!("memory: {resident} B resident, 0 connections");
                }
                Ok(resident) => {
                    let each = resident.saturating_sub(base) / open;
                    eprintln!("memory: {resident} B resident, {open} connections, {each} B per connection");
                }
                Err(error) => eprintln!("memory: {error}"),
            }
        }
    };
    std::thread::Builder::new().name("memory".into()).spawn(print)?;
    Ok(())
}
