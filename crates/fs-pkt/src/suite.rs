//! Finds and runs script files.

use crate::config::{Config, IpVersion};
use crate::engine::Engine;
use crate::linux::Linux;
use crate::script::{self, Defines, Side};
use std::path::{Path, PathBuf};

/// Settings for a run of scripts.
#[derive(Clone, Debug)]
pub struct Request {
    /// The target.
    pub side: Side,
    /// Options of the command line: they take precedence over the script's.
    pub options: Vec<(String, Option<String>)>,
    /// `-D`.
    pub defines: Defines,
    /// Only parses the script.
    pub dry_run: bool,
    /// On Linux, the maximum number of attempts: times are real, and the machine may be busy.
    pub attempts: u32,
}

impl Request {
    /// Makes a request for `side` with default options.
    pub fn new(side: Side) -> Self {
        Self { side, options: Vec::new(), defines: Defines::new(), dry_run: false, attempts: 3 }
    }
}

/// Result of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All events were as expected.
    Passed,
    /// Why it does not apply to this side.
    Skipped(String),
    /// The difference.
    Failed(String),
}

/// Report of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The script's result.
    pub verdict: Verdict,
    /// Output of the script, and of the runner with `--verbose`.
    pub log: String,
    /// Shell commands without an effect on the target, which were not run.
    pub not_run: Vec<String>,
}

/// Runs one script.
pub fn run_file(path: &Path, request: &Request) -> Report {
    let (mut log, mut not_run) = (String::new(), Vec::new());
    let verdict = match attempt(path, request, &mut log, &mut not_run) {
        Ok(None) => Verdict::Passed,
        Ok(Some(reason)) => Verdict::Skipped(reason),
        Err(message) => Verdict::Failed(message),
    };
    Report { verdict, log, not_run }
}

/// Runs the script once. `Ok(Some)`: skipped.
fn attempt(
    path: &Path,
    request: &Request,
    log: &mut String,
    not_run: &mut Vec<String>,
) -> Result<Option<String>, String> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|e| format!("{name}: {e}"))?;
    let text = String::from_utf8_lossy(&bytes);
    let (text, notes) = script::select(&text, &name, request.side).map_err(|e| e.to_string())?;
    if let Some(reason) = notes.skip {
        return Ok(Some(reason));
    }
    let symbols = symbols(&text, request);
    let script = script::parse(&text, &name, &symbols).map_err(|e| e.to_string())?;
    let mut config = Config { cookie: symbols.get("TFO_COOKIE").and_then(|text| hex(text)), ..Config::default() };
    for (option, value) in script.options.iter().chain(&request.options) {
        config.set(option, value.as_deref()).map_err(|e| format!("{name}: {e}"))?;
    }
    if request.dry_run {
        return Ok(None);
    }
    let directory = path.parent().map(Path::to_path_buf).unwrap_or_default();
    match request.side {
        Side::Engine => {
            let mut engine = Engine::new(&config, directory);
            let done = crate::run::run(&script, &name, &config, &mut engine, log);
            *not_run = engine.not_run();
            done.map_err(|e| e.to_string())?;
        }
        Side::Linux => {
            for left in (0..request.attempts.max(1)).rev() {
                let body = |linux: &mut Linux| crate::run::run(&script, &name, &config, linux, log);
                match Linux::with(&config, directory.clone(), body)? {
                    Ok(()) => break,
                    Err(failure) if left == 0 => return Err(failure.to_string()),
                    Err(failure) => log.push_str(&format!("once more after: {failure}\n")),
                }
            }
        }
    }
    Ok(None)
}

/// Parses hexadecimal bytes.
fn hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// Returns the predefined symbols of a script: the suites', and those of the command line.
fn symbols(text: &str, request: &Request) -> Defines {
    let asked =
        request.options.iter().rev().find(|(name, _)| name == "ip_version").and_then(|(_, value)| value.clone());
    let written = || text.lines().find_map(|line| Some(line.trim().strip_prefix("--ip_version=")?.trim().to_string()));
    let version = match asked.or_else(written).as_deref() {
        Some("ipv6") => IpVersion::V6,
        Some("ipv4-mapped-ipv6") => IpVersion::Mapped,
        _ => IpVersion::V4,
    };
    let mut symbols: Defines = Config::suite_symbols(version).iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
    symbols.extend(request.defines.clone());
    symbols
}

/// Returns the scripts under the given paths, sorted within each directory.
pub fn scripts_in(paths: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for path in paths {
        let kind = std::fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?;
        if kind.is_dir() {
            walk(path, &mut found)?;
        } else {
            found.push(path.clone());
        }
    }
    Ok(found)
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("{}: {e}", directory.display());
    let entries: Result<Vec<_>, _> = std::fs::read_dir(directory).map_err(fail)?.collect();
    let mut paths: Vec<PathBuf> = entries.map_err(fail)?.into_iter().map(|e| e.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            walk(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "pkt") {
            found.push(path);
        }
    }
    Ok(())
}
