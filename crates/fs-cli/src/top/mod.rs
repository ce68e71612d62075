//! `fastsock top`: shows the daemon's current activity, updated every second.

#[cfg(test)]
mod picture;
mod report;
mod sample;
mod screen;

use crate::control::ControlArgs;
use anyhow::Context;
use report::Report;
use sample::sample;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print one report of one interval as text, and exit. Without a terminal, `top` prints such
    /// reports repeatedly.
    #[arg(long)]
    once: bool,
    /// Length of an interval.
    #[arg(long, short = 'i', value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    #[command(flatten)]
    control: ControlArgs,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("must be 0.1 to 3600".into()) }
}

pub(crate) fn top(args: Args) -> anyhow::Result<ExitCode> {
    let interval = Duration::from_secs_f64(args.interval);
    // If no daemon runs, fail before the screen is set up.
    let first = sample(&args.control)?;
    if !args.once && std::io::stdout().is_terminal() {
        return screen::show(&args.control, interval, first);
    }
    let mut before = first;
    loop {
        std::thread::sleep(interval);
        let now = sample(&args.control)?;
        let text = report::text(&Report::between(&before, &now));
        let mut output = std::io::stdout();
        let written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
        match written {
            // The reader has ended, as with `fastsock top | head`.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            written => written.context("cannot write to standard output")?,
        }
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        before = now;
    }
}
