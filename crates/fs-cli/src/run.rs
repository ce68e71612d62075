//! `fastsock run`: starts a program with the library preloaded.

use crate::control::{ControlArgs, Status, connect, status};
use crate::program::obstacle;
use anyhow::{Context, anyhow, bail};
use fs_shm::control::{Error, PATH_VARIABLE, SYSTEM_PATH};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Names the library.
const LIBRARY_VARIABLE: &str = "FASTSOCK_LIB";
const LIBRARY: &str = "libfastsock.so";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// If a daemon must be started, start it without a device (connections within this host only).
    #[arg(long)]
    only_local: bool,
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

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let library = library()?;
    let (path, daemon) = match running(&args.control)? {
        Some(running) => running,
        None => {
            // Absolute, because the daemon and programs that change directory have another current
            // directory.
            let path =
                std::path::absolute(args.control.path()?).context("cannot make the control socket's path absolute")?;
            start(&path, args.only_local)?;
            let status = ask(&path)?.context(
                "the daemon was started but does not answer: see its log, or run \
                                              `fastsock up` to see its messages",
            )?;
            (path, status)
        }
    };
    let (program, rest) = args.command.split_first().context("no command was given")?;
    match obstacle(program) {
        Some((file, obstacle)) => eprintln!("fastsock: {} is not accelerated: {obstacle}", file.display()),
        None if args.quiet => {}
        None => eprintln!("fastsock: {}", summary(&daemon)),
    }
    let error = Command::new(program)
        .args(rest)
        .env("LD_PRELOAD", preload(&library, std::env::var_os("LD_PRELOAD")))
        .env(PATH_VARIABLE, &path)
        .exec();
    // As shells do: 127 is not found, 126 cannot be run.
    eprintln!("fastsock: cannot run {}: {error}", program.display());
    Ok(ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }))
}

/// Finds the daemon that serves this user: the named one, else its own, else the system's.
fn running(control: &ControlArgs) -> anyhow::Result<Option<(PathBuf, Status)>> {
    let named = control.control.as_ref().is_some_and(|path| !path.as_os_str().is_empty());
    // Without a runtime directory there is no daemon of its own.
    let own = control.path().ok();
    let system = (!named).then(|| PathBuf::from(SYSTEM_PATH));
    for path in own.into_iter().chain(system) {
        if let Some(status) = ask(&path)? {
            let path = std::path::absolute(path).context("cannot make the control socket's path absolute")?;
            return Ok(Some((path, status)));
        }
    }
    Ok(None)
}

/// Returns `None` if no daemon listens.
fn ask(path: &Path) -> anyhow::Result<Option<Status>> {
    match connect(path).and_then(|client| status(&client)) {
        Ok(status) => Ok(Some(status)),
        Err(Error::NoDaemon(_) | Error::Closed) => Ok(None),
        Err(error) => Err(anyhow!("the daemon at {} does not answer correctly: {error}", path.display())),
    }
}

fn summary(daemon: &Status) -> String {
    let what = if daemon.draining {
        "the daemon is shutting down, so nothing is accelerated".into()
    } else if daemon.cores == 0 {
        "TCP between processes of this host is accelerated".to_owned()
    } else {
        let cores = if daemon.cores == 1 { "core" } else { "cores" };
        format!("TCP on {} ({} {cores}) and between processes of this host is accelerated", daemon.device, daemon.cores)
    };
    format!("{what} (daemon {})", daemon.pid)
}

/// Finds the library next to this program, in `../lib` or `../lib/fastsock`, or as `FASTSOCK_LIB`
/// says.
pub(crate) fn library() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!(
                "{LIBRARY_VARIABLE} names {}, which is not a file: set it to the path of libfastsock.so",
                path.display()
            );
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

/// The library first, then the previous value.
fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(OsStr::new(":"));
        value.push(before);
    }
    value
}

/// Starts a daemon that stays in the background, like an SSH agent, and waits until it serves. An
/// intermediate process starts it, so that it is no child of the program that replaces this
/// process, which may wait for all its children.
fn start(path: &Path, only_local: bool) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new(program);
    command.arg("start").arg("--control").arg(path).args(only_local.then_some("--only-local"));
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
    #[arg(long)]
    only_local: bool,
    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn start_daemon(args: StartArgs) -> anyhow::Result<ExitCode> {
    let StartArgs { only_local, control } = args;
    let path = &control.path()?;
    let device = if only_local { None } else { default_device() };
    if std::env::var_os("INVOCATION_ID").is_some() {
        let said = started(&mut scope()?, path, device.as_deref()).unwrap_or_else(|error| Some(format!("{error:#}")));
        match &said {
            None => return Ok(ExitCode::SUCCESS),
            Some(why) => eprintln!(
                "fastsock: the daemon gets no systemd scope of its own, and ends with this \
                                    service: {}",
                why.trim()
            ),
        }
    }
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let Some(said) = started(&mut Command::new(program), path, device.as_deref())? else {
        return Ok(ExitCode::SUCCESS);
    };
    let hint = if device.is_some() {
        " (`fastsock run --only-local` needs no device; `fastsock doctor` shows what is missing)"
    } else {
        ""
    };
    bail!("the daemon did not start: {}{hint}", said.trim().trim_start_matches("fastsock: "))
}

/// Variables that systemd sets for a service alone. With them the daemon would notify for the
/// service, and take over its sockets.
const OF_SERVICES: [&str; 9] = [
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "MAINPID",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// Runs this program in its own scope. In the service's cgroup the daemon would end with the
/// service, and count against its limits.
fn scope() -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new("systemd-run");
    let manager = if rustix::process::geteuid().is_root() { "--system" } else { "--user" };
    command.args([manager, "--scope", "--quiet", "--collect", "--no-ask-password", "--description=fastsock's daemon"]);
    command.arg("--").arg(program);
    Ok(command)
}

/// Starts a daemon with `command` and waits until one serves. Returns its output if none does.
fn started(command: &mut Command, path: &Path, device: Option<&str>) -> anyhow::Result<Option<String>> {
    command.arg("up").arg("--control").arg(path);
    match device {
        Some(device) if rustix::process::geteuid().is_root() => command.args(["--device", device]),
        _ => command.arg("--only-local"),
    };
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
    // Another `run` may have started one first.
    Ok(if ask(path)?.is_some() { None } else { Some(said) })
}

/// The device of the default route with the lowest metric (/proc/net/route: name, destination,
/// gateway, flags, …).
pub(crate) fn default_device() -> Option<String> {
    let table = std::fs::read_to_string("/proc/net/route").ok()?;
    let default = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is = fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000");
        is.then(|| Some((fields.get(6)?.parse::<u32>().ok()?, (*fields.first()?).to_owned())))?
    };
    table.lines().skip(1).filter_map(default).min().map(|(_, name)| name)
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
