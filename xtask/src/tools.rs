//! Commands that the verbs run with output to the terminal, and their prerequisites.

use crate::run::{root, target, without_package};
use std::path::PathBuf;
use std::process::Command;

/// If it is set, the programs are already built: all packages together, because cargo would rebuild
/// much for another selection.
pub(crate) const BUILT: &str = "FS_BUILT";

/// Runs a command in the root of the tree. `Ok(true)` if it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool, String> {
    let status = without_package(command).current_dir(root()).status();
    status.map(|status| status.success()).map_err(|error| format!("cannot run {:?}: {error}", command.get_program()))
}

/// `cargo` with arguments.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments);
    command
}

/// If it is set, parts of `make proof` run on the build of `make test`, without a second build.
const DEBUG_BUILD: &str = "DEBUG_BUILD";

/// True if [`DEBUG_BUILD`] is set.
pub(crate) fn is_debug_build() -> bool {
    std::env::var_os(DEBUG_BUILD).is_some_and(|value| !value.is_empty())
}

/// Returns cargo's arguments for the release build, none for the debug build.
pub(crate) fn profile() -> &'static [&'static str] {
    if is_debug_build() { &[] } else { &["--release"] }
}

/// Returns the path of a program of the release build, or of the debug build.
pub(crate) fn release(name: &str) -> PathBuf {
    target().join(if is_debug_build() { "debug" } else { "release" }).join(name)
}

/// Builds packages, unless all are built.
pub(crate) fn build(names: &[&str]) -> Result<(), String> {
    if std::env::var_os(BUILT).is_some() {
        return Ok(());
    }
    let mut command = cargo(&["build", "--quiet"]);
    if succeeds(command.args(profile()).args(packages(names)))? { Ok(()) } else { Err("the build failed".into()) }
}

/// Installs the missing packages for a purpose.
pub(crate) fn install(purpose: &str) -> Result<(), String> {
    let installed = succeeds(Command::new(root().join("lab/install")).arg(purpose))?;
    if installed { Ok(()) } else { Err(format!("packages are missing: lab/install {purpose}")) }
}

/// True for root.
pub(crate) fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

/// Returns the current time in UTC, in a format of date(1).
pub(crate) fn date(format: &str) -> String {
    let output = Command::new("date").args(["-u", &format!("+{format}")]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// Returns a command's output if it succeeds.
pub(crate) fn output_of(command: &mut Command) -> Option<String> {
    let output = command.current_dir(root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns `-p NAME` for each package.
pub(crate) fn packages<'a>(names: &[&'a str]) -> Vec<&'a str> {
    names.iter().flat_map(|name| ["-p", name]).collect()
}
