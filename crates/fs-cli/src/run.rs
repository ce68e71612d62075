//! `fastsock run`: starts a program with the library preloaded.

use crate::control::{ControlArgs, Status, connect, status};
use crate::program::obstacle;
use crate::said;
use anyhow::{Context, anyhow, bail};
use fs_shm::control::{Error, PATH_VARIABLE, SYSTEM_PATH};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Names the library.
const LIBRARY_VARIABLE: &str = "FASTSOCK_LIB";
/// The configuration of the system's daemon, as the package installs it.
const SYSTEM_CONFIG: &str = "/etc/fastsock/fastsock.toml";

/// What carries connections between processes of this host.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// Sockets of the library's own, over shared memory.
    #[default]
    Shm,
    /// The kernel's sockets, with a ring in shared memory while both ends are awake.
    Ring,
}

impl Carrier {
    fn library(self) -> &'static str {
        match self {
            Carrier::Shm => "libfastsock.so",
            Carrier::Ring => "libfastsock_preload.so",
        }
    }
}

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// What carries connections between processes of this host.
    #[arg(long, value_enum, value_name = "CARRIER", env = "FASTSOCK_CARRIER", default_value_t)]
    carrier: Carrier,
    /// Do not run the program if no daemon serves. By default it runs on the kernel with `--carrier ring`, and does not run with
    /// `--carrier shm`.
    #[arg(long)]
    require: bool,
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
    if args.carrier == Carrier::Ring {
        return run_with_ring(args);
    }
    let library = library(args.carrier)?;
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
    Ok(execute(program, rest, &library, &path))
}

/// Runs the program over the kernel's sockets. Whatever is wrong with the daemon does not keep the program from running: its library finds
/// the daemon when it comes.
fn run_with_ring(args: Args) -> anyhow::Result<ExitCode> {
    let library = library(args.carrier)?;
    let (program, rest) = args.command.split_first().context("no command was given")?;
    let own = args.control.path();
    let path = own.as_deref().unwrap_or(Path::new(SYSTEM_PATH));
    let path = std::path::absolute(path).context("cannot make the control socket's path absolute")?;
    let (path, missing) = match matching(&args.control, &path) {
        Ok(found) => (found, None),
        // Without a directory for sockets, that is the reason.
        Err(error) => (path, Some(own.err().unwrap_or(error))),
    };
    if let (Some(error), true) = (&missing, args.require) {
        bail!("no match service: {}", said(error));
    }
    match (obstacle(program), missing) {
        (Some((file, obstacle)), _) => eprintln!("fastsock: {} is not accelerated: {obstacle}", file.display()),
        (None, Some(error)) => {
            let shown = program.display();
            eprintln!(
                "fastsock: the kernel alone carries {shown}'s connections until a daemon serves {}: {}",
                path.display(),
                said(&error)
            );
        }
        (None, None) if args.quiet => {}
        (None, None) => {
            eprintln!(
                "fastsock: connections to other programs under fastsock get a ring (daemon at {})",
                path.display()
            );
        }
    }
    Ok(execute(program, rest, &library, &path))
}

/// The control socket whose daemon has a match service: this user's, else the system's. If there is none, a daemon is started for `own`.
fn matching(control: &ControlArgs, own: &Path) -> anyhow::Result<PathBuf> {
    let serves = |path: &Path| fs_pairs::Service::answers(&fs_pairs::beside(path));
    let named = control.control.as_ref().is_some_and(|path| !path.as_os_str().is_empty());
    if serves(own) {
        return Ok(own.to_owned());
    }
    if !named && serves(Path::new(SYSTEM_PATH)) {
        return Ok(SYSTEM_PATH.into());
    }
    start(own, true)?;
    if !serves(own) {
        bail!("the daemon at {} has no match service: is it of an older version?", own.display());
    }
    Ok(own.to_owned())
}

/// Takes this process's place, and returns only if that fails.
fn execute(program: &OsStr, rest: &[OsString], library: &Path, control: &Path) -> ExitCode {
    let error = Command::new(program)
        .args(rest)
        .env("LD_PRELOAD", preload(library, std::env::var_os("LD_PRELOAD")))
        .env(PATH_VARIABLE, control)
        .exec();
    // As shells do: 127 is not found, 126 cannot be run.
    eprintln!("fastsock: cannot run {}: {error}", program.display());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
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

/// The library beside this program, or in `../lib` or `../lib/fastsock`, or as `FASTSOCK_LIB` says.
pub(crate) fn library(carrier: Carrier) -> anyhow::Result<PathBuf> {
    let name = carrier.library();
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("{LIBRARY_VARIABLE} names {}, which is not a file: set it to the path of {name}", path.display());
        }
        return std::path::absolute(&path).context("cannot read the current directory");
    }
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let directory = program.parent().unwrap_or(Path::new("/"));
    // Beside it in target/, and as packages install both.
    let places = ["", "../lib", "../lib/fastsock"].map(|place| directory.join(place).join(name));
    places.iter().find(|path| path.is_file()).cloned().with_context(|| {
        format!(
            "cannot find {name} in {}, ../lib or ../lib/fastsock: set {LIBRARY_VARIABLE} to its path",
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
    // The system's daemon has the system's rules, also if `run` starts it.
    if path == Path::new(SYSTEM_PATH) && Path::new(SYSTEM_CONFIG).is_file() {
        command.args(["--config", SYSTEM_CONFIG]);
    }
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
