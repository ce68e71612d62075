//! Runs commands of a part. Their output goes to the part's log, and the log's last line is shown
//! while they run.

use std::fs::File;
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Returns the root of the tree.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the tree")
}

/// Cargo's target folder.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => std::path::absolute(&folder).unwrap_or_else(|_| folder.into()),
        None => root().join("target"),
    }
}

/// Removes the variables with which `cargo run` describes this package. A crate's build script that
/// depends on them (ring's) would run again, and the crates above it compile again, whenever
/// `cargo xtask` and cargo itself take turns.
pub(crate) fn without_package(command: &mut Command) -> &mut Command {
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.to_string_lossy().starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR") {
        command.env_remove(name);
    }
    command
}

/// Time between two progress lines if the output is not a terminal.
const PROGRESS: Duration = Duration::from_secs(30);

/// A running part: its log and clock.
pub(crate) struct Run {
    name: &'static str,
    log: PathBuf,
    began: Instant,
    told: Instant,
}

impl Run {
    /// Starts a part with the log `NAME.log` in `logs`.
    pub(crate) fn begin(name: &'static str, logs: &Path) -> Result<Self, String> {
        let log = logs.join(name).with_extension("log");
        File::create(&log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        Ok(Self { name, log, began: Instant::now(), told: Instant::now() })
    }

    /// The part's name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The log's path.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the seconds since the start.
    pub(crate) fn seconds(&self) -> u64 {
        self.began.elapsed().as_secs()
    }

    /// Runs a command in the root of the tree. Returns true if it succeeded. After `limit_s`
    /// seconds it is ended and counts as failed.
    pub(crate) fn succeeds(&mut self, command: &mut Command, limit_s: u64) -> bool {
        match self.execute(command, Duration::from_secs(limit_s)) {
            Ok(succeeded) => succeeded,
            Err(error) => {
                self.note(&format!("xtask: {error}"));
                false
            }
        }
    }

    /// Appends a line to the log.
    pub(crate) fn note(&self, line: &str) {
        if let Ok(mut log) = File::options().append(true).open(&self.log) {
            // The log is for people. A full disk is noticed elsewhere.
            let _ = writeln!(log, "{line}");
        }
    }

    fn execute(&mut self, command: &mut Command, limit: Duration) -> Result<bool, String> {
        self.note(&format!("$ {command:?}"));
        let log =
            File::options().append(true).open(&self.log).map_err(|error| format!("{}: {error}", self.log.display()))?;
        let errors = log.try_clone().map_err(|error| error.to_string())?;
        let began = Instant::now();
        without_package(command).current_dir(root()).stdin(Stdio::null()).stdout(log).stderr(errors);
        let mut child = command.spawn().map_err(|error| format!("cannot run {:?}: {error}", command.get_program()))?;
        loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                self.clear_progress();
                return Ok(status.success());
            }
            if began.elapsed() > limit {
                end(&mut child);
                self.clear_progress();
                return Err(format!("not finished after {} s: {command:?}", limit.as_secs()));
            }
            self.show_progress();
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Shows the log's last line: every second on a terminal, elsewhere every half minute.
    fn show_progress(&mut self) {
        let is_terminal = std::io::stdout().is_terminal();
        if self.told.elapsed() < if is_terminal { Duration::from_secs(1) } else { PROGRESS } {
            return;
        }
        self.told = Instant::now();
        let line: String = self.tail(1).trim().chars().take(90).collect();
        let text = format!("{:<14} {:>5} s  {line}", self.name, self.seconds());
        let mut out = std::io::stdout();
        let _ = if is_terminal { write!(out, "\r\x1b[K{text}") } else { writeln!(out, "  … {text}") };
        let _ = out.flush();
    }

    fn clear_progress(&self) {
        if std::io::stdout().is_terminal() {
            print!("\r\x1b[K");
        }
    }

    /// Returns the last `lines` lines of the log.
    pub(crate) fn tail(&self, lines: usize) -> String {
        let read = || -> std::io::Result<String> {
            let mut log = File::open(&self.log)?;
            let length = log.seek(SeekFrom::End(0))?;
            log.seek(SeekFrom::Start(length.saturating_sub(lines as u64 * 400)))?;
            let mut bytes = Vec::new();
            log.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let text = read().unwrap_or_default();
        let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

/// Ends a command after its time limit. SIGTERM first, so that cargo and cargo-nextest end their
/// children.
fn end(child: &mut Child) {
    let pid = child.id().to_string();
    let _ = Command::new("kill").args(["-TERM", &pid]).status();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let _ = child.kill();
    let _ = child.wait();
}
