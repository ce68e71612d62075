//! The test programs that cargo builds, and the tests in each.

use crate::command;
use crate::report::Report;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Doctests are one run of rustdoc for each crate.
const DOCTESTS: Duration = Duration::from_secs(1800);

/// A test program.
pub(crate) struct Program {
    /// `package::target`.
    pub(crate) name: String,
    /// What is run.
    pub(crate) path: PathBuf,
    /// The package's folder, where cargo runs its tests.
    pub(crate) dir: PathBuf,
    source: PathBuf,
}

/// What may run at the same time as a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// Nothing: it measures time or CPU.
    Alone,
    /// Others that say so.
    Beside,
    /// The same, and it takes next to nothing of the machine: one more than there are jobs.
    Waits,
}

/// One test of a program.
pub(crate) struct Test {
    /// Whose test it is.
    pub(crate) program: Arc<Program>,
    /// Its name for the program.
    pub(crate) test: String,
    /// Never run: another test starts it, or it is not of this machine.
    pub(crate) ignored: bool,
    /// What may run meanwhile.
    pub(crate) company: Company,
    /// It has failed after that.
    pub(crate) timeout: Duration,
}

impl Test {
    /// `package::target::test`.
    pub(crate) fn name(&self) -> String {
        format!("{}::{}", self.program.name, self.test)
    }
}

#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    profile: Option<Profile>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    src_path: PathBuf,
}

/// Builds what `cargo test` with these arguments would run. A program that does not compile is a failure in `report`.
pub(crate) fn build(arguments: &[String], report: &mut Report) -> Result<Vec<Arc<Program>>> {
    if asks_for_doctests(arguments) {
        return Ok(Vec::new());
    }
    let mut cargo = Command::new("cargo");
    cargo.arg("test").args(arguments).args(["--no-run", "--message-format=json-render-diagnostics"]);
    let output = cargo.stderr(Stdio::piped()).output().context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    report.log(&said)?;
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Message>(line) else { continue };
        if let Some(program) = program(message)? {
            programs.push(Arc::new(program));
        }
    }
    for line in said.lines().filter(|line| line.starts_with("error: could not compile")) {
        report.broken(line.trim_end(), "it does not compile")?;
    }
    if !output.status.success() && report.failed() == 0 {
        report.broken("cargo test --no-run", &output.status.to_string())?;
    }
    Ok(programs)
}

fn program(message: Message) -> Result<Option<Program>> {
    let (Some(path), Some(manifest), Some(target)) = (message.executable, message.manifest_path, message.target) else {
        return Ok(None);
    };
    if !message.profile.is_some_and(|profile| profile.test) {
        return Ok(None);
    }
    let dir = manifest.parent().context("a manifest without a folder")?.to_owned();
    let package = dir.file_name().unwrap_or_default().to_string_lossy();
    let name = if target.name.replace('_', "-") == package {
        package.into_owned()
    } else {
        format!("{package}::{}", target.name)
    };
    Ok(Some(Program { name, path, dir, source: target.src_path }))
}

impl Program {
    /// Its tests, in the program's order.
    pub(crate) fn tests(self: &Arc<Self>, timeout: Duration, together: bool) -> Result<Vec<Test>> {
        let ignored = self.list(&["--ignored"])?;
        let source = std::fs::read_to_string(&self.source).unwrap_or_default();
        let wants = Wants::of(&source).with_context(|| self.source.display().to_string())?;
        let all = self.list(&[])?.into_iter().map(|test| Test {
            program: self.clone(),
            ignored: ignored.contains(&test),
            test,
            company: wants.company.unwrap_or(if together { Company::Beside } else { Company::Alone }),
            timeout: wants.timeout.unwrap_or(timeout),
        });
        Ok(all.collect())
    }

    /// A command that runs the program as cargo does.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.dir).env("CARGO_MANIFEST_DIR", &self.dir).stdin(Stdio::null());
        command
    }

    fn list(&self, which: &[&str]) -> Result<Vec<String>> {
        let output = self.command().args(["--list", "--format", "terse"]).args(which).output();
        let output = output.with_context(|| format!("cannot run {}", self.path.display()))?;
        ensure!(output.status.success(), "--list: {}", output.status);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }
}

/// What a source says of its tests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wants {
    company: Option<Company>,
    timeout: Option<Duration>,
}

impl Wants {
    fn of(source: &str) -> Result<Self> {
        let mut wants = Wants::default();
        for line in source.lines().filter_map(|line| line.trim().strip_prefix("// runner: ")) {
            match line.split_once(' ') {
                Some(("beside", "others")) => wants.company = Some(Company::Beside),
                _ if line == "waits" => wants.company = Some(Company::Waits),
                _ if line == "alone" => wants.company = Some(Company::Alone),
                Some(("timeout", seconds)) => {
                    let seconds = seconds.parse().with_context(|| format!("// runner: {line}"))?;
                    wants.timeout = Some(Duration::from_secs(seconds));
                }
                _ => bail!("// runner: {line}: not \"beside others\", \"waits\", \"alone\" or \"timeout SECONDS\""),
            }
        }
        Ok(wants)
    }
}

/// Whether `cargo test` with these arguments runs doctests: not where targets are chosen.
pub(crate) fn has_doctests(arguments: &[String]) -> bool {
    const TARGETS: [&str; 9] =
        ["--lib", "--tests", "--test", "--bins", "--bin", "--examples", "--example", "--benches", "--all-targets"];
    !arguments.iter().any(|argument| TARGETS.contains(&argument.as_str()))
}

/// Nothing but doctests, which rustdoc compiles as it runs them.
fn asks_for_doctests(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| argument == "--doc")
}

/// Runs the doctests and enters their results, which only rustdoc knows.
pub(crate) fn doctests(arguments: &[String], report: &mut Report) -> Result<()> {
    let mut cargo = Command::new("cargo");
    let doc = (!asks_for_doctests(arguments)).then_some("--doc");
    cargo.arg("test").args(arguments).args(doc).stdin(Stdio::null());
    let ran = command::run(cargo, DOCTESTS, Path::new("doctests"), report.dir())?;
    let before = report.failed();
    for line in ran.output.lines() {
        let Some((name, result)) = line.strip_prefix("test ").and_then(|line| line.rsplit_once(" ... ")) else {
            continue;
        };
        report.doctest(name, result)?;
    }
    report.log(&ran.output)?;
    if !ran.succeeded() && report.failed() == before {
        report.broken("cargo test --doc", &ran.outcome())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_says_what_its_tests_need() {
        assert_eq!(Wants::of("fn a() {}\n").unwrap(), Wants::default());
        let both = Wants::of("//! A test.\n// runner: beside others\n\n    // runner: timeout 900\n").unwrap();
        assert_eq!(both, Wants { company: Some(Company::Beside), timeout: Some(Duration::from_secs(900)) });
        assert_eq!(Wants::of("// runner: alone").unwrap().company, Some(Company::Alone));
        assert_eq!(Wants::of("// runner: waits").unwrap().company, Some(Company::Waits));
    }

    #[test]
    fn a_need_that_is_not_known_is_an_error() {
        for wrong in ["// runner: alone now", "// runner: timeout soon", "// runner: beside"] {
            assert!(Wants::of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn doctests_run_where_no_target_is_chosen() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(has_doctests(&words("--workspace --exclude fs-tests")));
        assert!(!has_doctests(&words("-p fs-xdp --lib --tests")));
        assert!(!has_doctests(&words("-p fs-xdp --test link_suite")));
    }
}
