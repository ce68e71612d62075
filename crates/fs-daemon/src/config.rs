//! The configuration file: TOML, every key checked, every error with its line.
//!
//! ```toml
//! [limits]                       # one user (other than root and the daemon's) may have half of each
//! attachments = 8192             # processes
//! arenas = 4096                  # pairs of processes that talk (or process and core)
//! listeners = 16384
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
//! ```

use crate::access::{Action, Call, PortRange, Rule, Rules};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Why a configuration file is no use.
#[derive(Debug, thiserror::Error)]
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
    /// Who may use which port.
    pub rules: Rules,
    /// Upper bounds.
    pub limits: Limits,
    /// Groups of network namespaces that are joined by memory, by name.
    pub joins: Vec<Vec<String>>,
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
    limits: Option<Spanned<Limits>>,
    #[serde(rename = "rule", default)]
    rules: Vec<RuleFile>,
    #[serde(rename = "join", default)]
    joins: Vec<JoinFile>,
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

/// What is wrong, and at which byte.
type Wrong = (usize, String);

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
        Self::parse(&text, &users).map_err(|message| ConfigError::Wrong { path: path.into(), message })
    }

    /// `uid` knows users' names.
    fn parse(text: &str, uid: &dyn Fn(&str) -> Option<u32>) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        file.check(uid).map_err(|(at, message)| {
            let line = text[..at].matches('\n').count() + 1;
            format!("line {line}: {message}")
        })
    }
}

impl File {
    fn check(self, uid: &dyn Fn(&str) -> Option<u32>) -> Result<Config, Wrong> {
        let limits = match self.limits {
            Some(limits) => {
                let at = limits.span().start;
                let limits = limits.into_inner();
                if limits.arenas > 7000 {
                    return Err((at, format!("arenas = {}: at most 7000 fit into the address space", limits.arenas)));
                }
                if limits.attachments == 0 || limits.arenas == 0 || limits.listeners == 0 {
                    return Err((at, "a limit of 0 lets nobody in".into()));
                }
                limits
            }
            None => Limits::default(),
        };
        let rules = self.rules.into_iter().map(|rule| rule.check(uid)).collect::<Result<_, _>>()?;
        let joins = self.joins.into_iter().map(JoinFile::check).collect::<Result<_, _>>()?;
        Ok(Config { rules: Rules(rules), limits, joins })
    }
}

impl JoinFile {
    fn check(self) -> Result<Vec<String>, Wrong> {
        let at = self.namespaces.span().start;
        let names = self.namespaces.into_inner();
        if names.len() < 2 {
            return Err((at, "a join has two namespaces or more (\"self\" is the daemon's own)".into()));
        }
        if let Some(name) = names.iter().find(|name| name.is_empty() || !name.starts_with('/') && name.contains('/')) {
            return Err((
                at,
                format!("`{name}` is neither `self`, a name of `ip netns`, nor a path that begins with /"),
            ));
        }
        Ok(names)
    }
}

impl RuleFile {
    fn check(self, uid: &dyn Fn(&str) -> Option<u32>) -> Result<Rule, Wrong> {
        let user = match self.user.map(|user| (user.span().start, user.into_inner())) {
            None => None,
            Some((_, User::Number(number))) => Some(number),
            Some((at, User::Name(name))) => Some(uid(&name).ok_or((at, format!("no user is named `{name}`")))?),
        };
        let cgroup = match self.cgroup {
            Some(path) if !path.get_ref().starts_with('/') => {
                let message = format!("`{}` is not a cgroup's path: it begins with /", path.get_ref());
                return Err((path.span().start, message));
            }
            path => path.map(|path| path.into_inner().trim_end_matches('/').to_owned()),
        };
        let mut ports = Vec::new();
        if let Some(given) = self.ports {
            let at = given.span().start;
            let several = match given.into_inner() {
                Ports::One(port) => vec![port],
                Ports::Several(several) if several.is_empty() => return Err((at, "an empty list of ports".into())),
                Ports::Several(several) => several,
            };
            for port in several {
                ports.push(port.range().ok_or_else(|| (at, format!("{port:?} is not a port or a range of ports")))?);
            }
        }
        Ok(Rule { action: self.action, call: self.call, user, cgroup, ports })
    }
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
fn users(name: &str) -> Option<u32> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests;
