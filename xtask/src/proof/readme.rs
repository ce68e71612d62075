//! Runs the commands of README's fenced blocks in order, and checks how each ends. A command that
//! is not known here fails: add its end below. Servers run in their own network namespace.

use crate::labs::Namespace;
use crate::part::Outcome;
use crate::run::{Run, root, target};
use crate::tools::is_root;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Words with which a user's command starts.
const BEGINNINGS: [&str; 5] = ["make ", "cargo ", "target/", "sudo ", "apt"];
/// Minimum number of commands on the page.
const FEWEST: usize = 5;
/// Beginnings of commands in the text that this part does not run: users run two of them in their own
/// crate, and the third one measures (`make bench`).
const NOT_RUN: [&str; 3] = ["cargo run", "cargo test", "cargo xtask bench "];

/// A server that runs until the page ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn is_left_out(command: &str) -> bool {
    NOT_RUN.iter().any(|beginning| command.starts_with(beginning))
}

/// Runs the page's commands, one test each.
pub(super) fn readme(run: &mut Run) -> Outcome {
    if !is_root() {
        run.note("skipped: not root (a network namespace)");
        return Outcome::skipped();
    }
    let page = std::fs::read_to_string(root().join("README.md")).unwrap_or_default();
    let commands = in_blocks(&page);
    let missing = in_text(&page).into_iter().find(|command| !commands.contains(command) && !is_left_out(command));
    if let Some(command) = missing {
        return Outcome::one(&format!("no block has this command of the text: {command}"), false);
    }
    if commands.len() < FEWEST {
        return Outcome::one("README has too few commands", false);
    }
    let namespace = match Namespace::new("readme") {
        Ok(namespace) => namespace,
        Err(error) => return Outcome::one(&error, false),
    };
    let work = target().join("proof/readme");
    let _ = std::fs::remove_dir_all(&work);
    if let Err(error) = std::fs::create_dir_all(&work) {
        return Outcome::one(&format!("{}: {error}", work.display()), false);
    }
    // The page's own commands build what it runs.
    let mut outcome = Outcome::default();
    let mut servers = Vec::new();
    for command in commands {
        if !outcome.failed.is_empty() {
            break;
        }
        let programs = format!("{} {}/release/", namespace.exec(), target().display());
        let line = command.replace("target/release/", &programs);
        outcome.add(Outcome::one(&command, play(run, &command, &line, &work, &mut servers)));
    }
    outcome
}

/// Runs one command; `line` is the part that runs.
fn play(run: &mut Run, command: &str, line: &str, work: &Path, servers: &mut Vec<Server>) -> bool {
    if command == "make test" {
        // Skipped here: it takes long, and is a part of its own.
        return true;
    }
    if let Some(server) = line.strip_suffix('&') {
        let says = if command.contains("-- redis-server") { "Ready to accept connections" } else { "ready" };
        return serves(run, server, work, says, servers);
    }
    let ended = run.succeeds(&mut shell(line, work), 1800);
    let said = run.tail(3);
    ended
        && match command {
            "make demo" => said.lines().last() == Some("demo: ok") && target().join("demo/report.html").exists(),
            _ if command.starts_with("cargo build ") => true,
            _ if command.contains("-- redis-benchmark ") => {
                std::fs::read_to_string(run.log()).is_ok_and(|log| log.contains(" requests per second"))
            }
            _ if command.ends_with("fastsock stat") => std::fs::read_to_string(run.log()).is_ok_and(|log| {
                log.lines().filter_map(|line| line.strip_prefix("ring_bytes ")).any(|count| count != "0")
            }),
            _ => {
                run.note("a command that this part does not know: say what it ends in");
                false
            }
        }
}

/// Starts a program that keeps running, and waits for its first output.
fn serves(run: &mut Run, line: &str, work: &Path, says: &str, servers: &mut Vec<Server>) -> bool {
    let log = work.join(format!("{}.log", servers.len()));
    let Ok(file) = File::create(&log) else { return false };
    let Ok(errors) = file.try_clone() else { return false };
    let mut command = shell(&format!("cd {} && exec {line}", work.display()), work);
    let Ok(child) = command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn() else { return false };
    servers.push(Server(child));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        if std::fs::read_to_string(&log).is_ok_and(|text| text.contains(says)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    run.note(&format!("not in 60 s: {says}\n{}", std::fs::read_to_string(&log).unwrap_or_default()));
    false
}

fn shell(line: &str, work: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(root()).env("XDG_RUNTIME_DIR", work).env_remove("FASTSOCK_CONTROL");
    // Removes make's variables: otherwise an inner make prints which directory it enters and
    // leaves.
    command.env_remove("MAKEFLAGS").env_remove("MFLAGS").env_remove("MAKELEVEL");
    command
}

/// Returns the commands of the page's `text` blocks, without their comments.
fn in_blocks(page: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```text" => inside = true,
            _ if line.starts_with("```") => inside = false,
            _ if inside => {
                let command = line.split('#').next().unwrap_or_default().trim();
                if BEGINNINGS.iter().any(|beginning| command.starts_with(beginning)) {
                    commands.push(command.to_owned());
                }
            }
            _ => {}
        }
    }
    commands
}

/// Returns the commands between backquotes in the text. Each must also be in a block, or it would
/// not run.
fn in_text(page: &str) -> Vec<String> {
    let mut text = String::new();
    let mut inside = false;
    for line in page.lines() {
        inside ^= line.starts_with("```");
        if !inside && !line.starts_with("```") {
            text += line;
            text.push(' ');
        }
    }
    let quoted = text.split('`').skip(1).step_by(2).map(str::to_owned);
    quoted.filter(|code| ["make ", "cargo ", "sudo ", "apt-get "].iter().any(|word| code.starts_with(word))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_commands() {
        let page = "Run `make demo`, not `make`:\n```text\nmake demo   # two minutes\n  eth0 → eth1\ntarget/release/x up &   # y\n```\nor `cargo doc --open`.\n";
        assert_eq!(in_blocks(page), ["make demo", "target/release/x up &"]);
        assert_eq!(in_text(page), ["make demo", "cargo doc --open"]);
    }
}
