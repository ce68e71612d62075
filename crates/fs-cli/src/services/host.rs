//! The host: its systemd and its directories, which tests replace.

use super::unit::Unit;
use super::{SettingsFile, cluster};
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's unit that stands for all PostgreSQL clusters and has no process.
const ALL_CLUSTERS: &str = "postgresql.service";
/// A drop-in's file name.
const DROP_IN: &str = "50-fastsock.conf";

/// A root directory and a systemctl.
#[derive(Debug)]
pub(crate) struct Host {
    pub(super) root: PathBuf,
    pub(super) systemctl: PathBuf,
}

impl Host {
    /// The host of this process.
    pub(crate) fn this() -> Self {
        Self { root: "/".into(), systemctl: "systemctl".into() }
    }

    /// Returns a path below the root.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns true if systemd runs (sd_booted(3)).
    pub(crate) fn has_systemd(&self) -> bool {
        self.path("/run/systemd/system").is_dir()
    }

    pub(super) fn must_have_systemd(&self) -> anyhow::Result<()> {
        if self.has_systemd() {
            return Ok(());
        }
        bail!("systemd does not run here: start the service's program with `fastsock run`, or set LD_PRELOAD for it")
    }

    fn systemctl(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(&self.systemctl)
            .args(args)
            .env_remove("LD_PRELOAD")
            .output()
            .with_context(|| format!("cannot run {}", self.systemctl.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("`systemctl {}` failed: {}", args.join(" "), said.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Reads a unit's properties from systemd, also those of a unit that is not installed.
    pub(super) fn properties(&self, name: &str) -> anyhow::Result<Unit> {
        let properties = format!("--property={}", Unit::PROPERTIES.join(","));
        Ok(Unit::parse(&self.systemctl(&["show", &properties, "--", name])?))
    }

    /// Reads a service's properties from systemd. Fails if it is not installed.
    pub(super) fn show(&self, name: &str) -> anyhow::Result<Unit> {
        let unit = self.properties(name)?;
        if !unit.is_loaded() {
            bail!("there is no service {name}: `systemctl list-units --type=service` lists them");
        }
        if !unit.id().ends_with(".service") {
            bail!("{} is not a service", unit.id());
        }
        Ok(unit)
    }

    /// Returns the names of the units that a service's name stands for. A service that was removed
    /// may still be enabled.
    pub(super) fn ids(&self, service: &str) -> anyhow::Result<Vec<String>> {
        let name = unit_name(service);
        match self.units(service) {
            Err(_) if self.enabled().contains(&name) => Ok(vec![name]),
            units => Ok(units?.iter().map(|unit| unit.id().to_owned()).collect()),
        }
    }

    /// Returns the units that a service's name stands for.
    pub(super) fn units(&self, service: &str) -> anyhow::Result<Vec<Unit>> {
        let unit = self.show(&unit_name(service))?;
        if unit.id() != ALL_CLUSTERS {
            return Ok(vec![unit]);
        }
        match cluster::all(&self.path(cluster::FOLDER)) {
            clusters if clusters.is_empty() => Ok(vec![unit]),
            clusters => clusters.iter().map(|cluster| self.show(&cluster.unit())).collect(),
        }
    }

    /// Returns the file that makes a unit load the library.
    pub(super) fn settings_file(&self, id: &str) -> anyhow::Result<SettingsFile> {
        match cluster::Cluster::of_unit(id) {
            Some(cluster) if cluster.file(&self.path(cluster::FOLDER)).is_file() => {
                Ok(SettingsFile::Cluster(cluster.file(&self.path(cluster::FOLDER))))
            }
            _ if id.contains('/') => bail!("`{id}` is not a unit's name"),
            _ => Ok(SettingsFile::DropIn(self.path("/etc/systemd/system").join(format!("{id}.d")).join(DROP_IN))),
        }
    }

    /// Returns the names of all units that are enabled.
    pub(crate) fn enabled(&self) -> Vec<String> {
        let folders = std::fs::read_dir(self.path("/etc/systemd/system")).into_iter().flatten().flatten();
        let unit = |folder: std::fs::DirEntry| {
            let content = std::fs::read_to_string(folder.path().join(DROP_IN)).ok()?;
            let name = folder.file_name().into_string().ok()?;
            super::drop_in::is_ours(&content).then_some(name.strip_suffix(".d")?.to_owned())
        };
        let mut units: Vec<String> = folders.filter_map(unit).collect();
        let folder = self.path(cluster::FOLDER);
        let is_enabled = |cluster: &cluster::Cluster| {
            std::fs::read_to_string(cluster.file(&folder)).is_ok_and(|content| cluster::is_ours(&content))
        };
        units.extend(cluster::all(&folder).iter().filter(|cluster| is_enabled(cluster)).map(cluster::Cluster::unit));
        units.sort();
        units
    }

    /// Returns the content of a file of a unit's EnvironmentFile=.
    pub(super) fn environment_file(&self, file: &Path) -> Option<String> {
        std::fs::read_to_string(self.path(&file.to_string_lossy())).ok()
    }

    pub(super) fn reload(&self) -> anyhow::Result<()> {
        self.systemctl(&["daemon-reload"]).map(drop)
    }

    pub(super) fn restart(&self, id: &str) -> anyhow::Result<()> {
        self.systemctl(&["restart", "--", id]).map(drop)
    }

    pub(super) fn try_restart(&self, id: &str) -> anyhow::Result<()> {
        self.systemctl(&["try-restart", "--", id]).map(drop)
    }
}

fn unit_name(service: &str) -> String {
    if service.contains('.') { service.to_owned() } else { format!("{service}.service") }
}
