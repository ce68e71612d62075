//! The admin socket: a local user with access to its file sees the status, and changes weights.
//!
//! A connection has one command in a line, and its answer: `status`, `flows`, or `weight UPSTREAM SERVER
//! N`, where N is a number, or `file` for the configuration's weight.

use crate::flows;
use crate::metrics::Shown;
use crate::stats::Stats;
use crate::status::Status;
use anyhow::{Context, bail, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// A command's longest line.
const LINE_MAX: u64 = 4096;
/// Time limit to read a command and to write its answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The client's time limit. Higher, because other clients' commands may be served first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Wait after an accept(2) that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Highest weight, as in the configuration.
const WEIGHT_MAX: u32 = 1000;

/// A socket that is open, but not at its path yet: a predecessor's may be there.
pub(crate) struct Opened {
    path: PathBuf,
    first: PathBuf,
    listener: UnixListener,
}

/// A socket with its thread, which ends when this is dropped.
pub(crate) struct Admin {
    pub(crate) path: PathBuf,
    is_over: Arc<AtomicBool>,
}

impl Opened {
    /// # Errors
    /// If the path cannot be used.
    pub(crate) fn new(path: &Path) -> anyhow::Result<Self> {
        let what = || format!("admin socket {}", path.display());
        if let Ok(found) = std::fs::symlink_metadata(path) {
            let is_socket = std::os::unix::fs::FileTypeExt::is_socket(&found.file_type());
            ensure!(is_socket, "{}: a file that is no socket is there", what());
        }
        let mut first = path.as_os_str().to_owned();
        first.push(format!(".{}", std::process::id()));
        let first = PathBuf::from(first);
        // A killed process with the same id may have left a socket.
        let _none = std::fs::remove_file(&first);
        let listener = UnixListener::bind(&first).with_context(what)?;
        let opened = Self { path: path.to_owned(), first, listener };
        // Set before the socket is at its path, so that no other user can connect.
        std::fs::set_permissions(&opened.first, std::fs::Permissions::from_mode(0o600)).with_context(what)?;
        Ok(opened)
    }

    /// Moves the socket to its path, where it replaces another one, and serves. A failure is logged:
    /// the process serves its clients without it.
    pub(crate) fn start(self, stats: Shown) -> Option<Admin> {
        let path = self.path.clone();
        let started = self.serve(stats);
        started.inspect_err(|error| tracing::warn!("admin socket {}: {error}", path.display())).ok()
    }

    fn serve(self, stats: Shown) -> std::io::Result<Admin> {
        std::fs::rename(&self.first, &self.path)?;
        let (path, listener) = (self.path.clone(), self.listener.try_clone()?);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let serve = move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                match stream {
                    Ok(stream) => {
                        if let Err(error) = answer(stream, &stats) {
                            tracing::debug!("admin: {error}");
                        }
                    }
                    // For example too many open files.
                    Err(error) => {
                        tracing::warn!("admin socket: {error}");
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        };
        std::thread::Builder::new().name("admin".into()).spawn(serve)?;
        Ok(Admin { path, is_over })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The file was renamed if the socket is at its path.
        let _gone = std::fs::remove_file(&self.first);
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wakes the thread, unless another process has this path. Then it ends with this one.
        let _woken = UnixStream::connect(&self.path);
    }
}

fn answer(stream: UnixStream, stats: &Shown) -> std::io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(Read::take(&stream, LINE_MAX)).read_line(&mut line)?;
    // Locked until a weight is set, so that a reload at this moment does not lose it.
    let result = command(&line, &stats.read().unwrap_or_else(PoisonError::into_inner));
    let text = match result {
        Ok(text) => text,
        Err(error) => format!("error: {error:#}"),
    };
    writeln!(&stream, "{text}")
}

fn command(line: &str, stats: &Stats) -> anyhow::Result<String> {
    let line = line.trim_end();
    // From the end: the name of an upstream may have spaces.
    let weight = line.strip_prefix("weight ").map(|rest| rest.rsplitn(3, ' ').collect::<Vec<_>>());
    match weight.as_deref() {
        None if line == "status" => Ok(serde_json::to_string(&Status::of(stats))?),
        None if line == "flows" => Ok(serde_json::to_string(&flows::flows())?),
        Some(&[weight, server, upstream]) => {
            let weight = match weight {
                "file" => None,
                number => {
                    let number = number.parse().ok().filter(|weight| *weight <= WEIGHT_MAX);
                    Some(number.with_context(|| format!("a weight is 0 to {WEIGHT_MAX}, or `file`"))?)
                }
            };
            let number = stats.upstreams.iter().position(|name| name == upstream);
            let number = number.with_context(|| format!("no upstream is named `{upstream}`"))?;
            let place = stats.servers[number].iter().position(|known| known.addr.to_string() == server);
            let place = place.with_context(|| format!("upstream `{upstream}` has no server {server}"))?;
            stats.set_weight((number, place), weight);
            let server = &stats.servers[number][place];
            tracing::info!("admin: upstream {upstream} server {}: weight {}", server.addr, server.weight());
            Ok(format!("weight {}", server.weight()))
        }
        _ => bail!("no such command"),
    }
}

/// Sends a command to a process, and returns its answer.
///
/// # Errors
/// If no process listens there, or it refuses.
pub(crate) fn ask(socket: &Path, command: &str) -> anyhow::Result<String> {
    let what = || format!("admin socket {}", socket.display());
    let mut stream = UnixStream::connect(socket).with_context(what)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    writeln!(stream, "{command}").with_context(what)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).with_context(what)?;
    match text.trim_end().strip_prefix("error: ") {
        Some(error) => bail!("{error}"),
        None => Ok(text.trim_end().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn names_of_upstreams_may_have_spaces() {
        for name in ["site", "my site", "two  spaces ", "a 10.0.0.1:1 5"] {
            let text = format!("[[upstream]]\nname = '{name}'\nservers = ['10.0.0.1:1']");
            let mut config: Config = toml::from_str(&text).unwrap();
            config.look_up().unwrap();
            let stats = Stats::new(&config, 1, None);
            assert_eq!(command(&format!("weight {name} 10.0.0.1:1 5\n"), &stats).unwrap(), "weight 5", "{name}");
            assert_eq!(command(&format!("weight {name} 10.0.0.1:1 file\n"), &stats).unwrap(), "weight 1", "{name}");
            for wrong in ["weight", "weight 10.0.0.1:1 5", "stat", ""] {
                assert!(command(wrong, &stats).unwrap_err().to_string().contains("no such command"), "{wrong}");
            }
        }
    }
}
