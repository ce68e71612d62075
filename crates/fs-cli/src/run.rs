//! `fastsock run`: starts a program with the library preloaded.

use crate::control::{ControlArgs, UNIT, host_has_unit, restart};
use crate::program::obstacle;
use crate::{said, sigpipe, warn};
use anyhow::{Context, bail};
use fs_pairs::counters::count;
use fs_pairs::{CONTROL_VARIABLE, SYSTEM_CONTROL, Service};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The environment variable with the library's path.
const LIBRARY_VARIABLE: &str = "FASTSOCK_LIB";
/// Options of AddressSanitizer's runtime. The last of two equal options counts.
const SANITIZER_VARIABLE: &str = "ASAN_OPTIONS";
/// The library's file.
const LIBRARY: &str = "libfastsock.so";
/// The configuration of the system's daemon, as the package installs it.
pub(crate) const SYSTEM_CONFIG: &str = "/etc/fastsock/fastsock.toml";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Do not run the program if no daemon serves. By default it runs on the kernel, and its connections are
    /// accelerated once a daemon serves.
    #[arg(long)]
    require: bool,
    /// Do not print what is accelerated. A warning about a program that cannot be accelerated is
    /// still printed.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    control: ControlArgs,
    /// Program to run, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the program, even if the daemon cannot be used. The library finds a daemon that starts
/// later.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let library = library()?;
    let (program, rest) = args.command.split_first().context("no command was given")?;
    let (path, missing) = match daemon(&args.control) {
        Ok(found) => (found, None),
        Err((path, error)) => (path, Some(error)),
    };
    if let (Some(error), true) = (&missing, args.require) {
        bail!("no daemon serves: {}", said(error));
    }
    match (obstacle(program), missing) {
        (Some((file, obstacle)), _) => {
            warn(format_args!("{} is not accelerated: {obstacle}", file.display()));
        }
        (None, Some(error)) => {
            let shown = program.display();
            warn(format_args!(
                "the kernel alone carries {shown}'s connections until a daemon serves {}: {}",
                path.display(),
                said(&error)
            ));
        }
        (None, None) if args.quiet => {}
        (None, None) if refuses(&path) => {
            warn(format_args!(
                "no new connection gets a ring: the daemon at {} has another version, or has reached a limit. If it \
                 has another version, restart it ({}): connections with a ring go on",
                path.display(),
                restart(&path)
            ));
        }
        (None, None) => {
            warn(format_args!(
                "connections to other programs under fastsock get a ring (daemon at {})",
                path.display()
            ));
        }
    }
    Ok(execute(program, rest, &library, &path))
}

/// Returns the control socket of the daemon that serves this user. Starts a daemon if there is
/// none. An error has the path at which a daemon may serve later.
fn daemon(control: &ControlArgs) -> Result<PathBuf, (PathBuf, anyhow::Error)> {
    // An absolute path, because the program may change its directory.
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    if let Some(running) = control.running() {
        return Ok(absolute(running));
    }
    match control.path().map(absolute) {
        // Without a directory for sockets, this error is the reason.
        Err(error) => Err((SYSTEM_CONTROL.into(), error)),
        Ok(own) => {
            let started = if own == Path::new(SYSTEM_CONTROL) && host_has_unit() { start_unit() } else { start(&own) };
            match started {
                Ok(()) => Ok(own),
                Err(error) => Err((own, error)),
            }
        }
    }
}

/// Maximum time to learn whether the daemon takes this program's messages. More: a daemon that has stopped delays the
/// program. Fewer: on a busy host the line promises rings that do not come.
const VERSION: Duration = Duration::from_millis(500);

/// Returns true if the daemon takes no messages of this program. It may be older: an upgrade of the package does not
/// restart a daemon that `run` has started.
fn refuses(path: &Path) -> bool {
    let (sender, answer) = channel();
    let path = path.to_owned();
    // `count` waits for longer. The thread ends when the program replaces this process.
    let asks = std::thread::Builder::new().spawn(move || sender.send(count(&path).is_err()));
    asks.is_ok() && answer.recv_timeout(VERSION).unwrap_or(false)
}

/// Replaces this process. Returns only if that fails.
fn execute(program: &OsStr, rest: &[OsString], library: &Path, control: &Path) -> ExitCode {
    let mut command = Command::new(program);
    command
        .args(rest)
        .env("LD_PRELOAD", preload(library, std::env::var_os("LD_PRELOAD")))
        .env(SANITIZER_VARIABLE, sanitizer_options(std::env::var_os(SANITIZER_VARIABLE)))
        .env(CONTROL_VARIABLE, control);
    sigpipe::inherit(&mut command);
    let error = command.exec();
    // As in a shell: 127 if the program is not found, 126 if it cannot be run.
    warn(format_args!("cannot run {}: {error}", program.display()));
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Returns the library that `FASTSOCK_LIB` names, or the one next to this program, in `../lib` or
/// in `../lib/fastsock`.
pub(crate) fn library() -> anyhow::Result<PathBuf> {
    let path = found_library()?;
    // LD_PRELOAD is a list (ld.so(8)).
    if path.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        bail!(
            "the path of {LIBRARY} has a blank or a colon: {}: LD_PRELOAD cannot name it. Copy it elsewhere, and set \
             {LIBRARY_VARIABLE} to that path",
            path.display()
        );
    }
    Ok(path)
}

fn found_library() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("{LIBRARY_VARIABLE} names {}, which is not a file: set it to the path of {LIBRARY}", path.display());
        }
        return std::path::absolute(&path).context("cannot read the current directory");
    }
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let directory = program.parent().unwrap_or(Path::new("/"));
    // Next to it in target/, and in the directories of packages.
    let places = ["", "../lib", "../lib/fastsock"].map(|place| directory.join(place).join(LIBRARY));
    places.iter().find(|path| path.is_file()).cloned().with_context(|| {
        format!(
            "cannot find {LIBRARY} in {}, ../lib or ../lib/fastsock: set {LIBRARY_VARIABLE} to its path",
            directory.display()
        )
    })
}

/// A program that gcc has built with AddressSanitizer exits at once if a preloaded library comes
/// before the sanitizer's runtime. The order does no harm, because the library's functions call the
/// runtime's.
fn sanitizer_options(before: Option<OsString>) -> OsString {
    let mut value = OsString::from("verify_asan_link_order=0");
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(OsStr::new(":"));
        value.push(before);
    }
    value
}

/// Returns the value of LD_PRELOAD: the library, then the previous value.
fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(OsStr::new(":"));
        value.push(before);
    }
    value
}

/// Starts the unit and waits until it serves.
fn start_unit() -> anyhow::Result<()> {
    let mut command = Command::new("systemctl");
    command.args(["start", "--no-ask-password", UNIT]).env_remove("LD_PRELOAD").stdin(Stdio::null());
    let output = command.output().context("cannot run systemctl")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("systemd cannot start {UNIT}: {}", said.lines().next().unwrap_or_default())
}

/// Starts a daemon in the background, like an SSH agent, and waits until it serves. An intermediate
/// process starts it: the daemon must not be a child of the program that replaces this process,
/// because the program may wait for all its children.
fn start(path: &Path) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new(program);
    command.arg("start").arg("--control").arg(path);
    let output = command.stdin(Stdio::null()).output().context("cannot start the daemon")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("{}", said.trim().trim_start_matches("fastsock: "))
}

/// Options of `fastsock start`, which only [`run`] uses.
#[derive(clap::Args, Debug)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn start_daemon(args: StartArgs) -> anyhow::Result<ExitCode> {
    let path = &args.control.path()?;
    if std::env::var_os("INVOCATION_ID").is_some() {
        let said = started(&mut scope()?, path).unwrap_or_else(|error| Some(format!("{error:#}")));
        match &said {
            None => return Ok(ExitCode::SUCCESS),
            Some(why) => warn(format_args!(
                "the daemon gets no systemd scope of its own, and ends with this service: {}",
                why.trim()
            )),
        }
    }
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let Some(said) = started(&mut Command::new(program), path)? else {
        return Ok(ExitCode::SUCCESS);
    };
    bail!("the daemon did not start: {}", said.trim().trim_start_matches("fastsock: "))
}

/// Variables that systemd sets for one service. With them the daemon would send notifications in
/// the service's name.
const OF_SERVICES: [&str; 6] =
    ["INVOCATION_ID", "JOURNAL_STREAM", "MAINPID", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"];

/// Returns a command that runs this program in its own scope. In the service's cgroup the daemon
/// would end with the service and count against its limits.
fn scope() -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new("systemd-run");
    let manager = if rustix::process::geteuid().is_root() { "--system" } else { "--user" };
    command.args([manager, "--scope", "--quiet", "--collect", "--no-ask-password", "--description=fastsock's daemon"]);
    command.arg("--").arg(program);
    Ok(command)
}

/// Starts a daemon with `command` and waits until one serves. Returns its output if none does.
fn started(command: &mut Command, path: &Path) -> anyhow::Result<Option<String>> {
    command.arg("up").arg("--control").arg(path);
    // The system's daemon uses the system's configuration, even if `run` starts it.
    if path == Path::new(SYSTEM_CONTROL) && Path::new(SYSTEM_CONFIG).is_file() {
        command.args(["--config", SYSTEM_CONFIG]);
    }
    for name in OF_SERVICES {
        command.env_remove(name);
    }
    // In its own process group, so that signals to the program do not stop the daemon. Its current
    // directory is /, so that it keeps no file system busy.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).current_dir("/");
    let mut child = command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).context("cannot read the daemon's output")?;
    }
    if line.trim_end() == "ready" {
        return Ok(None);
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut said).context("cannot read the daemon's output")?;
    }
    // Another `run` may have started a daemon first.
    Ok(if Service::answers(path) { None } else { Some(said) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_comes_first() {
        let library = Path::new("/lib/libfastsock.so");
        assert_eq!(preload(library, None), "/lib/libfastsock.so");
        assert_eq!(preload(library, Some("".into())), "/lib/libfastsock.so");
        assert_eq!(preload(library, Some("/x.so".into())), "/lib/libfastsock.so:/x.so");
    }
}
