//! The configuration file: TOML, every key checked, every error with its line.
//!
//! ```toml
//! firewall = "obey"              # where nftables or iptables have rules, connections are the kernel's; or "ignore"
//! firewall_open_flows = "end"    # connections that are open when such rules come, and that one could stop; or "keep"
//! listener_memory = "user"       # holders of one listener that share what its connections carry: a user's processes; or "process"
//! policy_dir = "policy.d"        # files *.toml with `program = "…"` and policies of that program; before those of this file
//!
//! [limits]                       # one user (other than root and the daemon's) may have half of each
//! attachments = 8192             # processes
//! arenas = 4096                  # pairs of processes that talk (or process and core)
//! listeners = 16384
//!
//! [daemon]                       # what the options of `fastsock up` say otherwise; read at the start only
//! device = "eth0"                # connections to and from the world on it, too
//! queues = 2                     # of the device, each with a core of its own; all without it
//! xdp = "auto"                   # or "copy", "generic"
//! partial_checksums = true       # on virtual links to kernels, as veth
//! drain = 10                     # seconds
//!
//! [[join]]                       # namespaces whose processes reach each other by memory; none are without it
//! namespaces = ["self", "web", "/run/docker/netns/1a2b"]   # the daemon's own, names of ip-netns(8), mounted files
//!
//! [[rule]]                       # the first one that fits decides; without one it is allowed
//! action = "deny"                # or "allow"
//! call = "bind"                  # or "connect"; both without it. "bind" is checked when a socket listens
//! user = "www-data"              # or a number; everybody without it
//! cgroup = "/system.slice/web.service"    # and everything below it; every one without it
//! ports = "1-1023"               # or 80, or [80, "8000-8999"]; all without it
//!
//! [[policy]]                     # the first one that fits decides; without one it is fastsock's
//! carrier = "kernel"             # or "fastsock"
//! program = "psql"               # its file's name; every one without it
//! call = "connect"               # or "bind"; both without it
//! to = ["10.0.0.0/8", "::1"]     # destinations of connections; all without it
//! ports = 5432
//! ```

use crate::access::{Action, Call, PortRange, Rule, Rules};
use crate::policy::{Carrier, Network, Policies, Policy};
use fs_rt::XdpMode;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// Why a configuration file is no use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something in it is wrong.
    #[error("{path}: {message}")]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Where and what.
        message: String,
    },
}

/// The whole file.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// What the daemon serves beside this host.
    pub device: Option<Device>,
    /// How long open connections may go on after the daemon was told to end.
    pub drain: Option<Duration>,
    /// Whether the kernel's firewall is obeyed.
    pub firewall: Heed,
    /// What becomes of open connections when its rules change.
    pub open_flows: OpenFlows,
    /// Which holders of a listener have its connections in common memory.
    pub sharing: Sharing,
    /// Who may use which port.
    pub rules: Rules,
    /// What is left to the kernel.
    pub policies: Policies,
    /// Upper bounds.
    pub limits: Limits,
    /// Groups of network namespaces that are joined by memory, by name.
    pub joins: Vec<Vec<String>>,
}

/// What becomes of connections in which rules of the kernel's firewall could have a say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Heed {
    /// They are the kernel's.
    #[default]
    Obey,
    /// They are accelerated, and no rule sees them.
    Ignore,
}

/// What becomes of accelerated connections that are open when rules of the kernel's firewall come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OpenFlows {
    /// Those that a rule could stop are reset.
    #[default]
    End,
    /// They go on until they end, and no rule sees them.
    Keep,
}

/// Which of the processes that hold a listener share the memory of its connections, each of which the others see. What is held by
/// others too is the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// Those of one user.
    #[default]
    User,
    /// None: one process.
    Process,
}

/// A device and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// How many of its queues. `None`: all.
    pub queues: Option<usize>,
    /// Which way packets come from it.
    pub xdp: XdpMode,
    /// Whether packets with a partial checksum are accepted. `None`: as the device says.
    pub partial_checksums: Option<bool>,
}

/// Upper bounds of what processes can make the daemon hold.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Processes attached.
    pub attachments: usize,
    /// Arenas: each reserves 20 GiB of the daemon's addresses (not memory), of which there are 128 TiB.
    pub arenas: usize,
    /// Listeners.
    pub listeners: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { attachments: 8192, arenas: 4096, listeners: 16_384 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    daemon: Option<Spanned<DaemonFile>>,
    #[serde(default)]
    limits: Option<Spanned<Limits>>,
    policy_dir: Option<Spanned<PathBuf>>,
    #[serde(default)]
    firewall: Heed,
    #[serde(default)]
    firewall_open_flows: OpenFlows,
    #[serde(default)]
    listener_memory: Sharing,
    #[serde(rename = "policy", default)]
    policies: Vec<PolicyFile>,
    #[serde(rename = "rule", default)]
    rules: Vec<RuleFile>,
    #[serde(rename = "join", default)]
    joins: Vec<JoinFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DaemonFile {
    device: Option<String>,
    queues: Option<usize>,
    xdp: Option<Xdp>,
    partial_checksums: Option<bool>,
    drain: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Xdp {
    Auto,
    Copy,
    Generic,
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
    carrier: Carrier,
    program: Option<Spanned<String>>,
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
#[serde(deny_unknown_fields)]
struct JoinFile {
    namespaces: Spanned<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    action: Action,
    call: Option<Call>,
    user: Option<Spanned<User>>,
    cgroup: Option<Spanned<String>>,
    ports: Option<Spanned<Ports>>,
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

/// As the file has it.
impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Port::Number(number) => write!(f, "{number}"),
            Port::Range(text) => f.write_str(text),
        }
    }
}

/// What is wrong, and at which byte.
type Wrong = (usize, String);

impl Config {
    /// Reads and checks a file, and the policies' files that it names.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let (mut config, policies) = Self::parse(&read(path)?, &users).map_err(wrong(path))?;
        let Some((line, directory)) = policies else { return Ok(config) };
        // As the file says it, from where the file is.
        let directory = path.parent().unwrap_or(Path::new("")).join(directory);
        let named = |error: std::io::Error| {
            wrong(path)(format!("line {line}: cannot read the directory {}: {error}", directory.display()))
        };
        let files = std::fs::read_dir(&directory).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let mut files: Vec<PathBuf> = files.map_err(named)?.iter().map(std::fs::DirEntry::path).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
        files.sort();
        let mut all = Vec::new();
        for file in files {
            all.extend(program(&read(&file)?).map_err(wrong(&file))?);
        }
        all.append(&mut config.policies.0);
        config.policies = Policies(all);
        Ok(config)
    }

    /// The sections of the file in which `changed` differs from this one, that of the daemon's start, and which are
    /// followed from a start only.
    pub fn waits_for_restart(&self, changed: &Self) -> Vec<&'static str> {
        let Config { device, drain, joins, firewall: _, open_flows: _, sharing: _, rules: _, policies: _, limits: _ } =
            self;
        let sections =
            [("[daemon]", *device != changed.device || *drain != changed.drain), ("[[join]]", *joins != changed.joins)];
        sections.into_iter().filter_map(|(section, differs)| differs.then_some(section)).collect()
    }

    /// `uid` knows users' names. The directory of policies, and the line that names it, are answered as well.
    fn parse(text: &str, uid: &dyn Fn(&str) -> Option<u32>) -> Result<(Self, Option<(usize, PathBuf)>), String> {
        let mut file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let directory = file.policy_dir.take().map(|path| (line(text, path.span().start), path.into_inner()));
        let config = file.check(uid).map_err(at_line(text))?;
        Ok((config, directory))
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })
}

fn wrong(path: &Path) -> impl Fn(String) -> ConfigError {
    |message| ConfigError::Wrong { path: path.into(), message }
}

fn line(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

fn at_line(text: &str) -> impl Fn(Wrong) -> String {
    |(at, message)| format!("line {}: {message}", line(text, at))
}

/// The policies of one program's file.
fn program(text: &str) -> Result<Vec<Policy>, String> {
    let ProgramFile { program, policies } = toml::from_str(text).map_err(|error| error.to_string())?;
    let of_it = |policy: PolicyFile| match &policy.program {
        Some(other) => {
            Err((other.span().start, "this file's policies all have the program at its top: remove this key".into()))
        }
        None => PolicyFile { program: Some(program.clone()), ..policy }.check(),
    };
    policies.into_iter().map(of_it).collect::<Result<_, _>>().map_err(at_line(text))
}

impl File {
    fn check(self, uid: &dyn Fn(&str) -> Option<u32>) -> Result<Config, Wrong> {
        let limits = match self.limits {
            Some(limits) => {
                let at = limits.span().start;
                let limits = limits.into_inner();
                if limits.arenas > 7000 {
                    return Err((
                        at,
                        format!("arenas = {}: the address space has room for 7000 at most", limits.arenas),
                    ));
                }
                if limits.attachments == 0 || limits.arenas == 0 || limits.listeners == 0 {
                    return Err((at, "a limit of 0 allows nobody: use 1 or more, or remove the key".into()));
                }
                limits
            }
            None => Limits::default(),
        };
        let (device, drain) = match self.daemon {
            Some(daemon) => {
                let at = daemon.span().start;
                daemon.into_inner().check().map_err(|message| (at, message))?
            }
            None => (None, None),
        };
        let policies = self.policies.into_iter().map(PolicyFile::check).collect::<Result<_, _>>()?;
        let rules = self.rules.into_iter().map(|rule| rule.check(uid)).collect::<Result<_, _>>()?;
        let joins = self.joins.into_iter().map(JoinFile::check).collect::<Result<_, _>>()?;
        let (firewall, open_flows, sharing) = (self.firewall, self.firewall_open_flows, self.listener_memory);
        let (rules, policies) = (Rules(rules), Policies(policies));
        Ok(Config { device, drain, firewall, open_flows, sharing, rules, policies, limits, joins })
    }
}

impl DaemonFile {
    fn check(self) -> Result<(Option<Device>, Option<Duration>), String> {
        let Self { device, queues, xdp, partial_checksums, drain } = self;
        let drain = drain.map(|seconds| Duration::from_secs(seconds.into()));
        let Some(name) = device else {
            if queues.is_some() || xdp.is_some() || partial_checksums.is_some() {
                return Err("queues, xdp and partial_checksums need a device: add `device`".into());
            }
            return Ok((None, drain));
        };
        if queues == Some(0) {
            return Err("queues = 0: use 1 or more".into());
        }
        let xdp = match xdp {
            None | Some(Xdp::Auto) => XdpMode::Auto,
            Some(Xdp::Copy) => XdpMode::Copy,
            Some(Xdp::Generic) => XdpMode::Generic,
        };
        Ok((Some(Device { name, queues, xdp, partial_checksums }), drain))
    }
}

impl PolicyFile {
    fn check(self) -> Result<Policy, Wrong> {
        let Self { carrier, program, call, to, ports } = self;
        if let Some(name) = program.as_ref().filter(|name| name.get_ref().is_empty() || name.get_ref().contains('/')) {
            return Err((
                name.span().start,
                format!("`{}` is not a file name: give the program's file name without its directory", name.get_ref()),
            ));
        }
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
        Ok(Policy { carrier, program: program.map(Spanned::into_inner), call, to: networks, ports })
    }
}

impl JoinFile {
    fn check(self) -> Result<Vec<String>, Wrong> {
        let at = self.namespaces.span().start;
        let names = self.namespaces.into_inner();
        if names.len() < 2 {
            return Err((at, "a join needs two namespaces or more (\"self\" is the daemon's own)".into()));
        }
        if let Some(name) = names.iter().find(|name| name.is_empty() || !name.starts_with('/') && name.contains('/')) {
            return Err((at, format!("`{name}` must be `self`, a name of `ip netns`, or an absolute path")));
        }
        Ok(names)
    }
}

impl RuleFile {
    fn check(self, uid: &dyn Fn(&str) -> Option<u32>) -> Result<Rule, Wrong> {
        let user = match self.user.map(|user| (user.span().start, user.into_inner())) {
            None => None,
            Some((_, User::Number(number))) => Some(number),
            Some((at, User::Name(name))) => {
                Some(uid(&name).ok_or((at, format!("there is no user `{name}`: use another name or a number")))?)
            }
        };
        let cgroup = match self.cgroup {
            Some(path) if !path.get_ref().starts_with('/') => {
                let message = format!("`{}` is not a cgroup path: it must begin with /", path.get_ref());
                return Err((path.span().start, message));
            }
            path => path.map(|path| path.into_inner().trim_end_matches('/').to_owned()),
        };
        let ports = self.ports.map_or(Ok(Vec::new()), port_ranges)?;
        Ok(Rule { action: self.action, call: self.call, user, cgroup, ports })
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

/// Looks a name up in /etc/passwd (other sources of users need their number).
pub(crate) fn users(name: &str) -> Option<u32> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests;
