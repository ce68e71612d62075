//! Actions of parts: builds, commands in order, and settings of the environment.

use crate::nextest;
use crate::part::Outcome;
use crate::run::Run;
use crate::tools::{BUILT, cargo, is_debug_build, output_of};
use std::process::Command;

/// The start of a log's line that names a choice, which the table repeats.
pub(super) const CHOSEN: &str = "chosen: ";

/// The choice of the debug build.
const DEBUG: &str = "debug build";

/// Returns an environment variable, or its default. Notes one that is set.
pub(super) fn variable(run: &Run, name: &str, default: &str) -> String {
    let Some(value) = std::env::var(name).ok().filter(|value| !value.is_empty()) else { return default.into() };
    run.note(&format!("{CHOSEN}{name}={value}"));
    value
}

/// Returns true if the environment chooses this, in the words of the table.
pub(super) fn is_set(choice: &str) -> bool {
    match choice.split_once('=') {
        Some((name, value)) => std::env::var(name).is_ok_and(|now| now == value),
        None => choice == DEBUG && is_debug_build(),
    }
}

/// Returns a command with a verb of this program.
pub(super) fn xtask(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "xtask".into()));
    command.args(arguments).env(BUILT, "yes");
    command
}

/// Builds all packages for `release` together: cargo selects features for the packages it is given,
/// and would rebuild most of them for each selection. Does nothing if `FS_BUILT` is set. With
/// `DEBUG_BUILD` it is the build of `make test`.
pub(super) fn release(run: &mut Run) -> bool {
    if is_debug_build() {
        run.note(&format!("{CHOSEN}{DEBUG}"));
    }
    if std::env::var_os(BUILT).is_some() {
        return true;
    }
    if is_debug_build() {
        return nextest::build(run, 7200);
    }
    run.succeeds(&mut cargo(&["build", "--release", "--workspace", "--lib", "--bins"]), 7200)
}

/// Runs commands in order until one fails, as one test. If a successful command prints a line
/// "skipped: …", it could not run here.
pub(super) fn all(run: &mut Run, commands: impl IntoIterator<Item = Command>, limit_s: u64) -> Outcome {
    let passed = commands.into_iter().all(|mut command| run.succeeds(&mut command, limit_s));
    if passed && log(run).lines().any(|line| line.starts_with("skipped: ")) {
        return Outcome::skipped();
    }
    Outcome::one(run.name(), passed)
}

/// Like [`all`], after the release build.
pub(super) fn built(run: &mut Run, commands: impl IntoIterator<Item = Command>, limit_s: u64) -> Outcome {
    if release(run) { all(run, commands, limit_s) } else { Outcome::one(&format!("{}: build", run.name()), false) }
}

pub(super) fn log(run: &Run) -> String {
    std::fs::read(run.log()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Returns the compiler's name for this machine.
pub(super) fn host() -> String {
    let version = output_of(Command::new("rustc").arg("-vV")).unwrap_or_default();
    version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default().to_owned()
}
