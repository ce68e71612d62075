//! Which user or cgroup may use which port. Checked when a socket listens and when it connects.

use serde::Deserialize;

/// What a rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Action {
    /// It may.
    Allow,
    /// It may not: `EACCES`.
    Deny,
}

/// What a process wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Call {
    /// Listen on a port.
    Bind,
    /// Connect to one.
    Connect,
}

/// Ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

/// One rule: it fits when everything that it names fits.
#[derive(Clone, Debug)]
pub struct Rule {
    /// What it decides.
    pub action: Action,
    /// `None`: both.
    pub call: Option<Call>,
    /// `None`: everybody.
    pub user: Option<u32>,
    /// A path without a slash at its end, and all below it. `None`: all.
    pub cgroup: Option<String>,
    /// None: all.
    pub ports: Vec<PortRange>,
}

/// Whom a rule is about. From the kernel, never from the process.
#[derive(Clone, Copy, Debug)]
pub struct Who<'a> {
    /// The real user.
    pub uid: u32,
    /// The path in the unified hierarchy. `None`: it cannot be read (a process that the daemon's /proc does not show); then
    /// rules that name a cgroup deny, and do not allow.
    pub cgroup: Option<&'a str>,
}

impl Rule {
    fn fits(&self, who: &Who<'_>, call: Call, port: u16) -> bool {
        let below = |path: &String| match who.cgroup {
            Some(cgroup) => {
                cgroup.strip_prefix(path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            None => self.action == Action::Deny,
        };
        self.call.is_none_or(|named| named == call)
            && self.user.is_none_or(|uid| uid == who.uid)
            && self.cgroup.as_ref().is_none_or(below)
            && (self.ports.is_empty() || self.ports.iter().any(|r| (r.first..=r.last).contains(&port)))
    }
}

/// All rules. The first one that fits decides; where none fits, it is allowed.
#[derive(Clone, Debug, Default)]
pub struct Rules(pub Vec<Rule>);

impl Rules {
    /// Whether `who` may.
    pub fn allow(&self, who: &Who<'_>, call: Call, port: u16) -> bool {
        let rule = self.0.iter().find(|rule| rule.fits(who, call, port));
        rule.is_none_or(|rule| rule.action == Action::Allow)
    }
}
