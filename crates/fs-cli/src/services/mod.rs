//! `fastsock enable`, `disable` and `status`: services of systemd that load the library.
//!
//! A drop-in sets LD_PRELOAD for the unit and changes no command, so the service starts without a
//! daemon, and also after the package was removed.

mod cluster;
mod drop_in;
mod host;
mod processes;
mod reach;
#[cfg(test)]
mod tests;
mod unit;

use crate::run;
use anyhow::{Context, bail};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat, openat2, renameat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub(crate) use host::Host;
pub(crate) use processes::{Process, all as all_processes, printable, service_of};
pub(crate) use reach::Reach;
use unit::Unit;

/// Number of checks of a service's processes after a restart, and the time between two.
const LOADS: u32 = 30;
const LOADING: Duration = Duration::from_millis(100);

/// Options of `fastsock enable`.
#[derive(clap::Args, Debug)]
pub(crate) struct EnableArgs {
    /// Restart the services, and check that their processes have the library and reach the daemon.
    /// If a service does not start with the library, the change is taken back. If it does not reach
    /// the daemon, the change stays, and the exit status is 1.
    #[arg(long)]
    now: bool,
    /// Services, as `systemctl` names them.
    #[arg(required = true, value_name = "SERVICE")]
    services: Vec<String>,
}

/// Options of `fastsock disable`.
#[derive(clap::Args, Debug)]
pub(crate) struct DisableArgs {
    /// Restart the services that run.
    #[arg(long)]
    now: bool,
    /// All services that were enabled.
    #[arg(long, conflicts_with = "services")]
    all: bool,
    /// Services, as `systemctl` names them.
    #[arg(required_unless_present = "all", value_name = "SERVICE")]
    services: Vec<String>,
}

/// Options of `fastsock status`.
#[derive(clap::Args, Debug)]
pub(crate) struct StatusArgs {
    /// Print the services as JSON.
    #[arg(long)]
    json: bool,
    /// Services, as `systemctl` names them [default: those that are enabled].
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,
}

pub(crate) fn enable(args: EnableArgs) -> anyhow::Result<ExitCode> {
    let library = run::library()?;
    let library = library.canonicalize().with_context(|| format!("cannot find {}", library.display()))?;
    let host = Host::this();
    host.must_have_systemd()?;
    let mut works = true;
    for service in &args.services {
        for unit in host.units(service)? {
            let done = host.enable(&unit, &library, args.now)?;
            writeln!(std::io::stdout(), "{}", done.said)?;
            works &= done.works;
        }
    }
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn disable(args: DisableArgs) -> anyhow::Result<ExitCode> {
    let host = Host::this();
    let mut units = Vec::new();
    for service in &args.services {
        units.extend(host.ids(service)?);
    }
    if args.all {
        units = host.enabled();
    }
    host.disable_each(&units, args.now, &mut std::io::stdout())
}

pub(crate) fn status(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let host = Host::this();
    let mut units = Vec::new();
    for service in &args.services {
        units.extend(host.ids(service)?);
    }
    if args.services.is_empty() {
        units = host.enabled();
    }
    let states = units.iter().map(|unit| host.state(unit)).collect::<anyhow::Result<Vec<State>>>()?;
    let text = if args.json {
        let objects: Vec<_> = states.iter().map(State::json).collect();
        format!("{:#}\n", serde_json::Value::Array(objects))
    } else if states.is_empty() {
        "no service is enabled: `fastsock enable SERVICE` enables one\n".to_owned()
    } else {
        states.iter().map(|state| format!("{state}\n")).collect()
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// The state of a service and of its processes.
#[derive(Debug)]
pub(crate) struct State {
    unit: String,
    is_enabled: bool,
    is_installed: bool,
    is_active: bool,
    processes: usize,
    with_library: usize,
}

impl State {
    /// Returns true if the service is enabled and runs, and none of its processes has the library.
    pub(crate) fn lacks_library(&self) -> bool {
        self.is_enabled && self.processes > 0 && self.with_library == 0
    }

    /// Returns the unit's name.
    pub(crate) fn unit(&self) -> &str {
        &self.unit
    }

    fn json(&self) -> serde_json::Value {
        let Self { unit, is_enabled, is_installed, is_active, processes, with_library } = self;
        serde_json::json!({
            "service": unit,
            "enabled": is_enabled,
            "installed": is_installed,
            "active": is_active,
            "processes": processes,
            "processes_with_library": with_library,
        })
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { unit, is_enabled, is_installed, is_active, processes, with_library } = self;
        let enabled = if *is_enabled { "enabled" } else { "not enabled" };
        write!(f, "{unit}: {enabled}; ")?;
        match (is_active, processes) {
            (false, 0) if !is_installed => f.write_str("not installed")?,
            (false, 0) => f.write_str("does not run")?,
            (true, 0) => f.write_str("active, without processes that this user can see")?,
            _ => write!(f, "{with_library} of {processes} processes have the library")?,
        }
        let service = unit.trim_end_matches(".service");
        if self.lacks_library() {
            write!(f, ": `systemctl restart {service}` loads it")?;
        } else if !is_enabled && *with_library > 0 {
            write!(f, ": it was started with it, and loses it by a restart")?;
        }
        Ok(())
    }
}

/// Returns the enabled services that run without the library. Empty without systemd.
pub(crate) fn without_library(host: &Host) -> Vec<State> {
    let states = host.enabled().into_iter().filter_map(|unit| host.state(&unit).ok());
    states.filter(State::lacks_library).collect()
}

/// The result of [`Host::enable`].
#[derive(Debug)]
struct Enabled {
    /// The changes, and the steps that the operator still has to take.
    said: String,
    /// False if no connection of the service can get a ring.
    works: bool,
}

impl Host {
    /// Like [`Host::enable_new`], with the unit's properties without an earlier drop-in.
    fn enable(&self, unit: &Unit, library: &std::path::Path, now: bool) -> anyhow::Result<Enabled> {
        let settings = self.settings_file(unit.id())?;
        match (&settings, settings.read()?) {
            (SettingsFile::DropIn(_), Some(content)) if drop_in::is_ours(&content) => {
                // Not removed: a full disk would refuse it when it is written again.
                settings.rename(settings.name(), &settings.aside())?;
                let unit = self.reload().and_then(|()| self.show(unit.id()));
                let result = unit.and_then(|unit| self.enable_new(&unit, library, now));
                if result.is_ok() {
                    settings.remove(&settings.aside())?;
                } else {
                    settings.rename(&settings.aside(), settings.name())?;
                    self.reload()?;
                }
                result
            }
            _ => self.enable_new(unit, library, now),
        }
    }

    /// Makes the unit's processes load the library.
    fn enable_new(&self, unit: &Unit, library: &std::path::Path, now: bool) -> anyhow::Result<Enabled> {
        let id = unit.id();
        let service = id.trim_end_matches(".service");
        let settings = self.settings_file(unit.id())?;
        let content = match &settings {
            SettingsFile::DropIn(_) => drop_in::content(unit, library, &|file| self.environment_file(file))?,
            SettingsFile::Cluster(file) => cluster::with(file, library)?,
        };
        let before = settings.read()?;
        settings.write(&content)?;
        let checked = self.reload().and_then(|()| match &settings {
            SettingsFile::DropIn(_) => self.show(id).and_then(|shown| shown.must_preload(library)),
            SettingsFile::Cluster(_) => Ok(()),
        });
        if let Err(error) = checked {
            settings.restore(before.as_deref())?;
            self.reload()?;
            return Err(error.context(format!("{service} stays as it was")));
        }
        let path = settings.path().display();
        if !now {
            let said = format!("{service}: {path} is written; `systemctl restart {service}` applies it");
            return Ok(Enabled { said, works: true });
        }
        if let Err(error) = self.restart(id).and_then(|()| self.must_have_library(id)) {
            settings.restore(before.as_deref())?;
            self.reload()?;
            let restarted = self.restart(id);
            let error = error.context(format!("{service} is as it was before: the change is taken back"));
            return Err(match restarted {
                Ok(()) => error,
                Err(again) => error.context(format!("{service} does not start without it either: {again:#}")),
            });
        }
        let said = format!("{service}: {path} is written, and its processes have the library");
        Ok(match self.obstacle(id)? {
            None => Enabled { said, works: true },
            Some(obstacle) => Enabled {
                said: format!("{said}, but none of its connections can get a ring: {obstacle}"),
                works: false,
            },
        })
    }

    /// Disables each unit. One that fails, or output that cannot be written, does not keep the others enabled.
    fn disable_each(&self, units: &[String], now: bool, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let (mut code, mut written) = (ExitCode::SUCCESS, Ok(()));
        for unit in units {
            match self.disable(unit, now) {
                Ok(said) => written = written.and(writeln!(out, "{said}")),
                Err(error) => {
                    crate::warn(format_args!("{error:#}"));
                    code = ExitCode::FAILURE;
                }
            }
        }
        written.context("cannot write to standard output").map(|()| code)
    }

    /// Removes what [`Host::enable`] has written.
    fn disable(&self, id: &str, now: bool) -> anyhow::Result<String> {
        let service = id.trim_end_matches(".service");
        let settings = self.settings_file(id)?;
        match (&settings, settings.read()?) {
            (SettingsFile::DropIn(path), Some(content)) if drop_in::is_ours(&content) => {
                settings.restore(None)?;
                // The directory may have other drop-ins.
                let _kept = path.parent().map(std::fs::remove_dir);
            }
            (SettingsFile::DropIn(path), Some(_)) => {
                bail!("{} was not written by `fastsock enable`: remove it yourself", path.display())
            }
            (SettingsFile::Cluster(path), Some(content)) if cluster::is_ours(&content) => {
                settings.write(&cluster::without(&content)).with_context(|| path.display().to_string())?;
            }
            _ => return Ok(format!("{service} is not enabled")),
        }
        if !self.has_systemd() {
            return Ok(format!("{service}: disabled"));
        }
        self.reload()?;
        if now && self.show(id).is_ok() {
            self.try_restart(id)?;
            return Ok(format!("{service}: disabled, and restarted if it ran"));
        }
        Ok(format!("{service}: disabled; a running one keeps the library until it is restarted"))
    }

    /// Returns whether a unit is enabled, and how many of its processes have the library.
    fn state(&self, id: &str) -> anyhow::Result<State> {
        let content = self.settings_file(id)?.read()?.unwrap_or_default();
        let is_enabled = drop_in::is_ours(&content) || cluster::is_ours(&content);
        let unit = if is_enabled { self.properties(id)? } else { self.show(id)? };
        let processes = self.processes_of(unit.control_group());
        Ok(State {
            unit: id.to_owned(),
            is_enabled,
            is_installed: unit.is_installed(),
            is_active: unit.is_active(),
            processes: processes.len(),
            with_library: processes.iter().filter(|process| process.has_library).count(),
        })
    }

    /// Returns the reason why no connection of a unit can get a ring. `None` if at least one of its
    /// processes reaches a daemon or has not been checked yet.
    fn obstacle(&self, id: &str) -> anyhow::Result<Option<String>> {
        let processes = self.processes_of(self.show(id)?.control_group());
        let reaches = processes
            .iter()
            .filter(|process| process.has_library)
            .map(|process| Reach::of(&self.path("/proc"), process.pid));
        let obstacles: Vec<Option<String>> = reaches.map(|reach| reach.obstacle()).collect();
        if obstacles.iter().any(Option::is_none) {
            return Ok(None);
        }
        Ok(obstacles.into_iter().flatten().next())
    }

    /// Fails if the unit runs and none of its processes has the library.
    fn must_have_library(&self, id: &str) -> anyhow::Result<()> {
        let mut state = self.state(id)?;
        // A new process loads the library a moment after systemd has started it.
        for _ in 0..LOADS {
            if state.is_active && (state.processes == 0 || state.with_library > 0) {
                return Ok(());
            }
            std::thread::sleep(LOADING);
            state = self.state(id)?;
        }
        if !state.is_active {
            bail!("{id} does not run: `systemctl status {id}` has the reason");
        }
        bail!(
            "{id} started, and none of its {} processes has loaded the library: its start command drops LD_PRELOAD, or it \
             cannot read the library",
            state.processes
        )
    }
}

/// The file that makes a service load the library.
#[derive(Debug)]
enum SettingsFile {
    /// A drop-in of the unit.
    DropIn(PathBuf),
    /// The file `environment` of a PostgreSQL cluster: Debian's pg_ctlcluster gives the server no other variables.
    Cluster(PathBuf),
}

impl SettingsFile {
    fn path(&self) -> &std::path::Path {
        match self {
            SettingsFile::DropIn(path) | SettingsFile::Cluster(path) => path,
        }
    }

    fn read(&self) -> anyhow::Result<Option<String>> {
        match std::fs::read_to_string(self.path()) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| self.path().display().to_string()),
        }
    }

    /// Opens the file's folder. A cluster's folder belongs to the cluster's user. That user may replace it
    /// by a link to a folder of root's.
    fn folder(&self) -> std::io::Result<OwnedFd> {
        let folder = self.path().parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(folder)?;
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        openat2(CWD, folder, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).map_err(no_link)
    }

    fn name(&self) -> &OsStr {
        self.path().file_name().unwrap_or_default()
    }

    /// Writes the file in place, because a cluster's file belongs to the cluster's user. On an error, such as that of
    /// a full disk, the file is as it was.
    fn write(&self, content: &str) -> anyhow::Result<()> {
        let write = |folder: OwnedFd| {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(&folder, self.name(), flags, Mode::from_raw_mode(0o644)).map_err(no_link)?;
            let (mut file, mut before) = (std::fs::File::from(file), Vec::new());
            file.read_to_end(&mut before)?;
            overwrite(&file, content.as_bytes()).inspect_err(|_| {
                // Both are tried: the disk may be broken.
                if before.is_empty() && matches!(self, SettingsFile::DropIn(_)) {
                    let _kept = unlinkat(&folder, self.name(), AtFlags::empty());
                } else {
                    let _changed = overwrite(&file, &before);
                }
            })
        };
        self.folder().and_then(write).with_context(|| format!("cannot write {}", self.path().display()))
    }

    fn restore(&self, before: Option<&str>) -> anyhow::Result<()> {
        match before {
            Some(content) => self.write(content),
            None => self.remove(self.name()),
        }
    }

    /// Returns the name of a drop-in that is put aside. systemd reads only files whose names end in `.conf`.
    fn aside(&self) -> OsString {
        let mut name = self.name().to_owned();
        name.push(".old");
        name
    }

    fn remove(&self, name: &OsStr) -> anyhow::Result<()> {
        let removed = self.folder().and_then(|folder| Ok(unlinkat(folder, name, AtFlags::empty())?));
        removed.with_context(|| self.path().display().to_string())
    }

    fn rename(&self, from: &OsStr, to: &OsStr) -> anyhow::Result<()> {
        let renamed = self.folder().and_then(|folder| Ok(renameat(&folder, from, &folder, to)?));
        renamed.with_context(|| self.path().display().to_string())
    }
}

/// Replaces a file's content. The blocks that it has are used first, so that the former content can be written again.
fn overwrite(file: &std::fs::File, content: &[u8]) -> std::io::Result<()> {
    file.write_all_at(content, 0)?;
    file.set_len(content.len() as u64)
}

fn no_link(error: Errno) -> std::io::Error {
    match error {
        Errno::LOOP => std::io::Error::other("a part of the path is a symbolic link"),
        error => error.into(),
    }
}
