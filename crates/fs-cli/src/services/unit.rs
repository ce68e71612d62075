//! A unit's properties, from `systemctl show`.

use anyhow::bail;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Properties of a unit: names and values, some names several times.
#[derive(Debug)]
pub(crate) struct Unit(Vec<(String, String)>);

impl Unit {
    /// The properties to read with `systemctl show`.
    pub(super) const PROPERTIES: [&str; 18] = [
        "Id",
        "LoadState",
        "ActiveState",
        "ControlGroup",
        "ExecStart",
        "Environment",
        "EnvironmentFiles",
        "NoExecPaths",
        "ExecPaths",
        "RootDirectory",
        "RootImage",
        "TemporaryFileSystem",
        "InaccessiblePaths",
        "ProtectHome",
        "PrivateNetwork",
        "NetworkNamespacePath",
        "RestrictAddressFamilies",
        "SystemCallFilter",
    ];

    /// Parses `NAME=VALUE` lines.
    pub(super) fn parse(text: &str) -> Self {
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self(text.lines().filter_map(pair).collect())
    }

    pub(super) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value)
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The name without aliases.
    pub(crate) fn id(&self) -> &str {
        self.get("Id")
    }

    pub(super) fn is_installed(&self) -> bool {
        self.get("LoadState") != "not-found"
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.get("LoadState") == "loaded"
    }

    pub(super) fn is_active(&self) -> bool {
        matches!(self.get("ActiveState"), "active" | "reloading")
    }

    pub(super) fn control_group(&self) -> &str {
        self.get("ControlGroup")
    }

    /// Returns the programs of its start commands (`{ path=/usr/sbin/nginx ; argv[]=…`).
    pub(super) fn programs(&self) -> impl Iterator<Item = &OsStr> {
        let path = |command: &'_ str| -> Option<usize> { command.find("path=").map(|at| at + "path=".len()) };
        self.all("ExecStart").filter_map(move |command| {
            let rest = command.get(path(command)?..)?;
            rest.split(" ;").next().map(OsStr::new)
        })
    }

    /// Returns the variables of Environment=.
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        let pair = |word: String| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        words(self.get("Environment")).into_iter().filter_map(pair).collect()
    }

    /// Returns the paths of EnvironmentFile=.
    pub(super) fn environment_files(&self) -> impl Iterator<Item = PathBuf> {
        let path = |value: &str| PathBuf::from(value.split(" (ignore_errors").next().unwrap_or(value));
        self.all("EnvironmentFiles").filter(|value| !value.is_empty()).map(path)
    }

    /// Returns the paths of a property that is a list of them, without prefixes and options.
    pub(super) fn paths(&self, name: &str) -> Vec<PathBuf> {
        let plain = |word: String| {
            let word = word.trim_start_matches(['-', '+']);
            PathBuf::from(word.split(':').next().unwrap_or(word))
        };
        words(self.get(name)).into_iter().map(plain).collect()
    }

    /// Returns the elements of `wanted` that an allow list lacks, or that a deny list (`~`) has. An
    /// empty list allows all.
    pub(super) fn forbidden<'a>(&self, name: &str, wanted: &[&'a str]) -> Vec<&'a str> {
        let value = self.get(name);
        let (is_denied, list) = value.strip_prefix('~').map_or((false, value), |rest| (true, rest));
        if list.is_empty() {
            return Vec::new();
        }
        // A system call may have its own error after a colon.
        let list: Vec<&str> = list.split_whitespace().map(|word| word.split(':').next().unwrap_or(word)).collect();
        wanted.iter().filter(|one| list.contains(one) == is_denied).copied().collect()
    }

    /// Fails if systemd does not make the unit load the library, because a later drop-in overrides
    /// it.
    pub(super) fn must_preload(&self, library: &Path) -> anyhow::Result<()> {
        let environment = self.environment();
        let value = environment.iter().rev().find(|(name, _)| name == "LD_PRELOAD").map_or("", |(_, value)| value);
        if !value.split([':', ' ']).any(|one| Path::new(one) == library) {
            bail!("systemd gives {} LD_PRELOAD=\"{value}\": another drop-in sets it (`systemctl cat {0}`)", self.id());
        }
        Ok(())
    }
}

/// Splits a list as systemd prints it: words in double quotes may have spaces, and a backslash in
/// them is an escape.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false);
    for c in text.chars() {
        match c {
            _ if escaped => {
                word.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}
