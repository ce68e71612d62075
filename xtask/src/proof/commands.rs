//! Actions of parts: builds, commands in order, and settings of the environment.

use crate::part::Outcome;
use crate::run::Run;
use crate::tools::{BUILT, cargo, output_of};
use std::process::Command;

/// Returns an environment variable, or its default.
pub(super) fn variable(name: &str, default: &str) -> String {
    std::env::var(name).ok().filter(|value| !value.is_empty()).unwrap_or_else(|| default.into())
}

/// Returns a command with a verb of this program.
pub(super) fn xtask(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "xtask".into()));
    command.args(arguments).env(BUILT, "yes");
    command
}

/// Builds all packages for `release` together: cargo selects features for the packages it is given,
/// and would rebuild most of them for each selection. Does nothing if `FS_BUILT` is set.
pub(super) fn release(run: &mut Run) -> bool {
    std::env::var_os(BUILT).is_some()
        || run.succeeds(&mut cargo(&["build", "--release", "--workspace", "--lib", "--bins"]), 7200)
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
