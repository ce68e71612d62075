//! The configuration file: TOML, every key checked, every error with its line.
//!
//! ```toml
//! policy_dir = "policy.d"        # files *.toml with `program = "…"` and policies of that program; before those of this file
//!
//! devices = ["eth0"]             # devices that programs share; read at the start only
//!
//! [limits]                       # a user other than root may have half of each; read at the start only
//! processes = 8192
//! pairs = 30000                  # connections with a ring
//!
//! [wire]                         # ports that are served over a device too; read at the start only
//! device = "eth0"                # `fs_relay` has the other keys
//!
//! [[wire.port]]
//! port = 80
//!
//! [[policy]]                     # the first one that fits decides; without one a connection may have a ring
//! ring = false                   # the kernel alone carries the connection; or true
//! program = "psql"               # its file's name; every one without it
//! user = "www-data"              # or a number; everybody without it
//! cgroup = "/system.slice/web.service"    # and everything below it; every one without it
//! call = "connect"               # the end that connects; or "bind", the end that listens; both without it
//! to = ["10.0.0.0/8", "::1"]     # destinations of connections; all without it
//! ports = "1-1023"               # or 80, or [80, "8000-8999"]; all without it
//! ```

use crate::policy::{Call, Network, Policies, Policy, PortRange};
use fs_pairs::service;
use serde::Deserialize;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The reason why a configuration file is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file has an error.
    #[error("{path}: {message}")]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The error, with its line.
        message: String,
    },
    /// A user or a directory that the file names is not known now. It may be later.
    #[error("{path}: {message}")]
    Missing {
        /// The file.
        path: PathBuf,
        /// What is missing, with its line.
        message: String,
    },
}

/// The whole file.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Which connections may have a ring.
    pub(crate) policies: Policies,
    /// Upper bounds.
    pub(crate) limits: Limits,
    /// Ports that are served over a device.
    wire: Option<fs_relay::Config>,
    /// Devices that programs share.
    devices: Vec<String>,
    /// The error of the first policy that would refuse no port of `devices`.
    evaded: Option<(PathBuf, String)>,
}

/// Limits for what processes can make the daemon hold.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// Processes that are connected.
    pub(crate) processes: usize,
    /// Connections with a ring.
    pub(crate) pairs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let limits = service::Limits::default();
        Self { processes: limits.clients, pairs: limits.ends / 2 }
    }
}

impl Limits {
    pub(crate) fn of_service(&self) -> service::Limits {
        let Self { processes, pairs } = *self;
        service::Limits { clients: processes, ends: pairs.saturating_mul(2), ..service::Limits::default() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    limits: Option<Spanned<Limits>>,
    wire: Option<Spanned<fs_relay::ConfigFile>>,
    policy_dir: Option<Spanned<PathBuf>>,
    #[serde(default)]
    devices: Vec<Spanned<String>>,
    #[serde(rename = "policy", default)]
    policies: Vec<PolicyFile>,
}

/// A file of the directory of policies.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgramFile {
    program: Spanned<String>,
    #[serde(rename = "policy", default)]
    policies: Vec<PolicyFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    ring: bool,
    program: Option<Spanned<String>>,
    user: Option<Spanned<User>>,
    cgroup: Option<Spanned<String>>,
    call: Option<Call>,
    to: Option<Spanned<Networks>>,
    ports: Option<Spanned<Ports>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "an address, a network like \"10.0.0.0/8\", or a list of these")]
enum Networks {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a user's name or number")]
enum User {
    Number(u32),
    Name(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a port, a range like \"8000-8999\", or a list of these")]
enum Ports {
    One(Port),
    Several(Vec<Port>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a port (1 to 65535) or a range like \"8000-8999\"")]
enum Port {
    Number(u16),
    Range(String),
}

/// Formats a port as in the file.
impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Port::Number(number) => write!(f, "{number}"),
            Port::Range(text) => f.write_str(text),
        }
    }
}

/// An error: its byte position and a message.
type Wrong = (usize, String);

impl Config {
    /// Reads and checks a file, and the files of its policy directory.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let missing = Cell::new(false);
        let uid = |name: &str| uid(name).or_else(|| (missing.set(true), None).1);
        let wrong = |path: &Path, message: String| match missing.get() {
            true => ConfigError::Missing { path: path.into(), message },
            false => ConfigError::Wrong { path: path.into(), message },
        };
        let (mut config, policies) = Self::parse(&read(path)?, &uid).map_err(|message| wrong(path, message))?;
        config.evaded = config.evaded.map(|(_, message)| (path.into(), message));
        let Some((line, directory)) = policies else { return config.checked() };
        // A relative path is relative to the file's directory.
        let directory = path.parent().unwrap_or(Path::new("")).join(directory);
        let named = |error: std::io::Error| {
            let message = format!("line {line}: cannot read the directory {}: {error}", directory.display());
            ConfigError::Missing { path: path.into(), message }
        };
        let files = std::fs::read_dir(&directory).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let mut files: Vec<PathBuf> = files.map_err(named)?.iter().map(std::fs::DirEntry::path).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
        files.sort();
        let mut all = Vec::new();
        for file in files {
            let (policies, evaded) = program(&read(&file)?, &uid).map_err(|message| wrong(&file, message))?;
            all.extend(policies);
            config.evaded = config.evaded.or(evaded.map(|message| (file, message)));
        }
        all.append(&mut config.policies.0);
        config.policies = Policies(all);
        config.checked()
    }

    /// Fails if a policy would refuse no port of the devices, because a program can change its name.
    fn checked(self) -> Result<Self, ConfigError> {
        match &self.evaded {
            Some((path, message)) if !self.devices.is_empty() => {
                Err(ConfigError::Wrong { path: path.clone(), message: message.clone() })
            }
            _ => Ok(self),
        }
    }

    /// Returns the sections that are read only at the start and differ in `changed`. `self` is the
    /// configuration of the start.
    #[must_use]
    pub fn waits_for_restart(&self, changed: &Self) -> Vec<&'static str> {
        let sections = [
            ("devices", self.devices == changed.devices),
            ("[limits]", self.limits == changed.limits),
            ("[wire]", self.wire == changed.wire),
        ];
        sections.into_iter().filter(|(_, is_same)| !is_same).map(|(name, _)| name).collect()
    }

    /// Adds shared devices, unless they are configured already.
    ///
    /// # Errors
    /// If a policy with `call = "bind"` and `ring = false` names a program.
    pub fn with_shared(mut self, devices: &[String]) -> Result<Self, ConfigError> {
        for device in devices {
            if !self.devices.contains(device) {
                self.devices.push(device.clone());
            }
        }
        self.checked()
    }

    /// Returns the shared devices.
    #[must_use]
    pub fn devices(&self) -> &[String] {
        &self.devices
    }

    /// Returns the section `[wire]`.
    #[must_use]
    pub fn wire(&self) -> Option<&fs_relay::Config> {
        self.wire.as_ref()
    }

    /// Parses a file. `uid` returns the number of a user's name. Also returns the directory of
    /// policies, and the line that names it.
    fn parse(text: &str, uid: &dyn Fn(&str) -> Option<u32>) -> Result<(Self, Option<(usize, PathBuf)>), String> {
        refuse_former(text)?;
        let mut file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let directory = file.policy_dir.take().map(|path| (line(text, path.span().start), path.into_inner()));
        let (mut config, evaded) = file.check(uid).map_err(at_line(text))?;
        config.evaded = evaded.map(|evaded| (PathBuf::new(), at_line(text)(evaded)));
        Ok((config, directory))
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })
}

fn line(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

fn at_line(text: &str) -> impl Fn(Wrong) -> String {
    |(at, message)| format!("line {}: {message}", line(text, at))
}

/// Parses a program's file of policies. Also returns the error of one that would refuse no port of `devices`.
fn program(text: &str, uid: &dyn Fn(&str) -> Option<u32>) -> Result<(Vec<Policy>, Option<String>), String> {
    refuse_former(text)?;
    let ProgramFile { program, policies } = toml::from_str(text).map_err(|error| error.to_string())?;
    let of_it = |policy: PolicyFile| match &policy.program {
        Some(other) => {
            Err((other.span().start, "this file's policies all have the program at its top: remove this key".into()))
        }
        None => PolicyFile { program: Some(program.clone()), ..policy }.check(uid),
    };
    let evaded = policies.iter().any(PolicyFile::is_for_leases).then(|| evaded(&program));
    let policies = policies.into_iter().map(of_it).collect::<Result<_, _>>().map_err(at_line(text))?;
    Ok((policies, evaded.map(at_line(text))))
}

/// The error of a policy that names a program and is to refuse ports of `devices`.
fn evaded(program: &Spanned<String>) -> Wrong {
    let cure = "name its `user` or `cgroup`, or remove `call` if this is about rings only";
    let name = program.get_ref();
    let says = format!("a program can call itself other than `{name}`, so this refuses no port of `devices`: {cure}");
    (program.span().start, says)
}

/// Keys and sections of earlier versions, with what to do instead.
const FORMER: [(&str, &str); 6] = [
    ("rule", "use [[policy]] with `ring = false` for \"deny\" and `ring = true` for \"allow\"; policies are one list"),
    ("firewall", "the kernel makes every connection, so its firewall holds: remove the key"),
    ("firewall_open_flows", "a rule that comes later stops a connection with a ring as well: remove the key"),
    ("listener_memory", "listeners are the kernel's, and each connection has its own memory: remove the key"),
    (
        "daemon",
        "the kernel carries connections to other hosts, and the end of the daemon ends no connection: remove the section",
    ),
    ("join", "connections between two network namespaces are the kernel's: remove the section"),
];

/// Former keys of `[[policy]]`.
const FORMER_POLICY: [(&str, &str); 1] =
    [("carrier", "use `ring = false` for \"kernel\" and `ring = true` for \"fastsock\"")];

/// Former keys of `[limits]`.
const FORMER_LIMITS: [(&str, &str); 3] = [
    ("attachments", "use `processes`"),
    ("arenas", "use `pairs`, which bounds connections with a ring"),
    ("listeners", "listeners are the kernel's: remove the key"),
];

/// Rejects keys of earlier versions. The error says what to use instead.
fn refuse_former(text: &str) -> Result<(), String> {
    // Text that is not TOML is rejected later.
    let Ok(table) = DeTable::parse(text) else { return Ok(()) };
    refuse_of(table.get_ref(), &FORMER, text)?;
    let sections = table.get_ref().iter().filter_map(|(key, value)| match key.get_ref().as_ref() {
        "limits" => Some((value, &FORMER_LIMITS[..])),
        "policy" => Some((value, &FORMER_POLICY[..])),
        _ => None,
    });
    for (section, former) in sections {
        match section.get_ref() {
            DeValue::Table(table) => refuse_of(table, former, text)?,
            DeValue::Array(tables) => {
                let mut tables = tables.iter().filter_map(|one| one.get_ref().as_table());
                tables.try_for_each(|table| refuse_of(table, former, text))?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn refuse_of(table: &DeTable<'_>, former: &[(&str, &str)], text: &str) -> Result<(), String> {
    for key in table.keys() {
        if let Some((name, cure)) = former.iter().find(|(name, _)| key.get_ref() == name) {
            return Err(format!("line {}: there is no `{name}` any more: {cure}", line(text, key.span().start)));
        }
    }
    Ok(())
}

impl File {
    /// Also returns the error of a policy that would refuse no port of `devices`.
    fn check(self, uid: &dyn Fn(&str) -> Option<u32>) -> Result<(Config, Option<Wrong>), Wrong> {
        let limits = match self.limits {
            Some(limits) => {
                let at = limits.span().start;
                let limits = limits.into_inner();
                if limits.processes == 0 || limits.pairs == 0 {
                    return Err((at, "a limit of 0 allows nobody: use 1 or more, or remove the key".into()));
                }
                limits
            }
            None => Limits::default(),
        };
        let wire = self.wire.map(|wire| (wire.span().start, wire.into_inner()));
        let wire = wire.map(|(at, wire)| wire.check().map_err(|message| (at, message))).transpose()?;
        let of_leases = self.policies.iter().filter(|policy| policy.is_for_leases());
        let evaded = of_leases.filter_map(|policy| policy.program.as_ref()).map(evaded).next();
        let policies = self.policies.into_iter().map(|policy| policy.check(uid)).collect::<Result<_, _>>()?;
        let device = |name: Spanned<String>| {
            let is_name = !name.get_ref().is_empty() && name.get_ref().len() < 16 && !name.get_ref().contains('/');
            let wrong = || (name.span().start, format!("`{}` is not the name of a device", name.get_ref()));
            is_name.then(|| name.get_ref().clone()).ok_or_else(wrong)
        };
        let devices = self.devices.into_iter().map(device).collect::<Result<_, _>>()?;
        Ok((Config { policies: Policies(policies), limits, wire, devices, evaded: None }, evaded))
    }
}

impl PolicyFile {
    /// Returns true if it refuses ports of shared devices.
    fn is_for_leases(&self) -> bool {
        self.call == Some(Call::Bind) && !self.ring
    }

    fn check(self, uid: &dyn Fn(&str) -> Option<u32>) -> Result<Policy, Wrong> {
        let Self { ring, program, user, cgroup, call, to, ports } = self;
        if let Some(name) = program.as_ref().filter(|name| name.get_ref().is_empty() || name.get_ref().contains('/')) {
            return Err((
                name.span().start,
                format!("`{}` is not a file name: give the program's file name without its directory", name.get_ref()),
            ));
        }
        let user = match user.map(|user| (user.span().start, user.into_inner())) {
            None => None,
            Some((_, User::Number(number))) => Some(number),
            Some((at, User::Name(name))) => {
                Some(uid(&name).ok_or((at, format!("there is no user `{name}`: use another name or a number")))?)
            }
        };
        let cgroup = match cgroup {
            Some(path) if !path.get_ref().starts_with('/') => {
                let message = format!("`{}` is not a cgroup path: it must begin with /", path.get_ref());
                return Err((path.span().start, message));
            }
            path => path.map(|path| path.into_inner().trim_end_matches('/').to_owned()),
        };
        let mut networks = Vec::new();
        if let Some(given) = to {
            let at = given.span().start;
            if call == Some(Call::Bind) {
                return Err((at, "`to` needs call = \"connect\": a listener has no destination".into()));
            }
            let several = match given.into_inner() {
                Networks::One(one) => vec![one],
                Networks::Several(several) if several.is_empty() => {
                    return Err((at, "the list of destinations is empty: add one, or remove the key".into()));
                }
                Networks::Several(several) => several,
            };
            for text in several {
                let network = Network::parse(&text);
                networks.push(network.ok_or_else(|| {
                    (
                        at,
                        format!(
                            "`{text}` is not an IP address or a network \
                                                                  (10.0.0.0/8)"
                        ),
                    )
                })?);
            }
        }
        let ports = ports.map_or(Ok(Vec::new()), port_ranges)?;
        Ok(Policy { ring, program: program.map(Spanned::into_inner), user, cgroup, call, to: networks, ports })
    }
}

fn port_ranges(given: Spanned<Ports>) -> Result<Vec<PortRange>, Wrong> {
    let at = given.span().start;
    let several = match given.into_inner() {
        Ports::One(port) => vec![port],
        Ports::Several(several) if several.is_empty() => {
            return Err((at, "the list of ports is empty: add one, or remove the key".into()));
        }
        Ports::Several(several) => several,
    };
    let range = |port: Port| {
        port.range().ok_or_else(|| (at, format!("`{port}` is not a port or a range of ports (1 to 65535)")))
    };
    several.into_iter().map(range).collect()
}

impl Port {
    fn range(&self) -> Option<PortRange> {
        let (first, last) = match self {
            Port::Number(number) => (*number, *number),
            Port::Range(text) => match text.split_once('-') {
                Some((first, last)) => (first.trim().parse().ok()?, last.trim().parse().ok()?),
                None => text.trim().parse().map(|port| (port, port)).ok()?,
            },
        };
        (first >= 1 && first <= last).then_some(PortRange { first, last })
    }
}

fn uid(user: &str) -> Option<u32> {
    uzers::get_user_by_name(user).map(|user| user.uid())
}

#[cfg(test)]
mod tests;
