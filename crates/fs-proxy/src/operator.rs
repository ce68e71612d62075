//! `fs-proxy admin` and `fs-proxy top`: what an operator asks a running process.

use crate::admin::ask;
use crate::flows::{self, FlowStatus};
use crate::status::Status;
use anyhow::Context;
use clap::{Args, Subcommand};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why an answer cannot be read.
const OTHER_VERSION: &str = "the process has another version";

/// Questions to a process that serves.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Question {
    /// Shows or changes the state of a process.
    #[command(disable_help_subcommand = true)]
    Admin(AdminArgs),
    /// Shows the rates of listeners and servers, again and again.
    Top {
        #[command(flatten)]
        socket: Socket,
        /// Seconds between two tables.
        #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
        interval: u64,
        /// Number of tables; default: until it is interrupted.
        #[arg(long, value_name = "N")]
        times: Option<u64>,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct AdminArgs {
    #[command(flatten)]
    socket: Socket,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Socket {
    /// The path that `admin` has in the configuration.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Shows listeners and servers since the start.
    Status {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Shows the connections that have left user space.
    Flows {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Gives a server a weight, from now on.
    Weight {
        #[command(flatten)]
        server: Server,
        /// 0 to 1000. With 0 the server gets nothing new.
        weight: u32,
    },
    /// Sends nothing new to a server: weight 0.
    Drain {
        #[command(flatten)]
        server: Server,
    },
    /// Gives a server the weight that the configuration has.
    Restore {
        #[command(flatten)]
        server: Server,
    },
}

#[derive(Args, Clone, Debug)]
struct Server {
    /// The upstream's name.
    upstream: String,
    /// The server's address and port, as `status` shows it.
    server: String,
}

/// Answers a question on standard output.
pub(crate) fn run(question: &Question) -> anyhow::Result<()> {
    match question {
        Question::Top { socket, interval, times } => top(&socket.socket, Duration::from_secs(*interval), *times),
        Question::Admin(AdminArgs { socket: Socket { socket }, command }) => {
            let weight = |Server { upstream, server }: &Server, weight: &str| {
                ask(socket, &format!("weight {upstream} {server} {weight}"))
            };
            match command {
                Command::Status { json: true } => show(&(ask(socket, "status")? + "\n")),
                Command::Status { json: false } => show(&tables(&status(socket)?, None)),
                Command::Flows { json: true } => show(&(ask(socket, "flows")? + "\n")),
                Command::Flows { json: false } => {
                    let mut text = String::new();
                    let flows: Vec<FlowStatus> = serde_json::from_str(&ask(socket, "flows")?).context(OTHER_VERSION)?;
                    flows::table(&flows).text(&mut text);
                    show(&text)
                }
                Command::Weight { server, weight: number } => show(&(weight(server, &number.to_string())? + "\n")),
                Command::Drain { server } => show(&(weight(server, "0")? + "\n")),
                Command::Restore { server } => show(&(weight(server, "file")? + "\n")),
            }
        }
    }
}

fn status(socket: &Path) -> anyhow::Result<Status> {
    serde_json::from_str(&ask(socket, "status")?).context(OTHER_VERSION)
}

fn tables(status: &Status, before: Option<(&Status, f64)>) -> String {
    let mut text = String::new();
    for (number, table) in status.tables(before).iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        table.text(&mut text);
    }
    text
}

fn top(socket: &Path, interval: Duration, times: Option<u64>) -> anyhow::Result<()> {
    let (mut before, mut since) = (status(socket)?, Instant::now());
    let mut shown = 0;
    while times.is_none_or(|times| shown < times) {
        std::thread::sleep(interval);
        let now = status(socket)?;
        let text = tables(&now, Some((&before, since.elapsed().as_secs_f64())));
        // Clears the screen, but not what a pipe gets.
        let clear = if std::io::IsTerminal::is_terminal(&std::io::stdout()) { "\x1b[2J\x1b[H" } else { "" };
        show(&format!("{clear}{text}"))?;
        (before, since) = (now, Instant::now());
        shown += 1;
    }
    Ok(())
}

fn show(text: &str) -> anyhow::Result<()> {
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
