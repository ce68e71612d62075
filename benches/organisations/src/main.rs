//! One run of one threading model; prints its counters as a line of JSON.
//!
//! ```text
//! organisations KIND bulk|requests CONNECTIONS CORES --milliseconds N     threads and the clock
//! organisations KIND bulk|requests CONNECTIONS CORES --packets N          one thread, counts only (callgrind)
//! ```
//! KIND: `up`, `msgp`, `connp-t`, `connp-l:GROUPS`, `per-core`.

use anyhow::{Context, Result, bail};
use fs_organisations::organisation::Kind;
use fs_organisations::run::{Setting, counted, timed};
use fs_organisations::wire::Load;
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "usage: organisations up|msgp|connp-t|connp-l:GROUPS|per-core bulk|requests CONNECTIONS CORES \
                     --milliseconds N | --packets N";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("organisations: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(words: &[String]) -> Result<String> {
    let [kind, load, connections, cores, how, amount] = words else { bail!("{USAGE}") };
    let kind = Kind::parse(kind).with_context(|| format!("no organisation {kind}; {USAGE}"))?;
    let load = match load.as_str() {
        "bulk" => Load::Bulk,
        "requests" => Load::Requests,
        other => bail!("no load {other}; {USAGE}"),
    };
    let number = |text: &str| text.parse::<u64>().with_context(|| format!("{text} is no number; {USAGE}"));
    let setting = Setting { kind, cores: number(cores)? as usize, connections: number(connections)? as usize, load };
    let amount = number(amount)?;
    let outcome = match how.as_str() {
        "--milliseconds" => timed(setting, Duration::from_millis(amount / 4), Duration::from_millis(amount))?,
        "--packets" => counted(setting, amount)?,
        other => bail!("unknown option {other}; {USAGE}"),
    };
    Ok(serde_json::to_string(&outcome)?)
}
