//! `--print-memory`: what an idle connection costs.

use crate::stats::Stats;
use std::sync::Arc;
use std::time::Duration;

/// Starts a thread that prints a line each second for as long as the process lives.
pub(crate) fn print_each_second(stats: Arc<Stats>) -> std::io::Result<()> {
    let empty = fs_example_common::usage::resident_bytes()?;
    let print = move || {
        // What a stack preallocates is there before the first connection, and is not the connections' share.
        let mut base = empty;
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let open = stats.open();
            match fs_example_common::usage::resident_bytes() {
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
