//! Which user or cgroup may have a ring for which port. A rule forbids no connection, since the kernel has made it.

use serde::Deserialize;

/// What a rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    /// It may have a ring.
    Allow,
    /// The kernel carries.
    Deny,
}

/// Which end of a connection a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Call {
    /// It listens on a port.
    Bind,
    /// It connects to one.
    Connect,
}

/// Ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortRange {
    /// The first.
    pub(crate) first: u16,
    /// The last.
    pub(crate) last: u16,
}

/// One rule: it fits when everything that it names fits.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// What it decides.
    pub(crate) action: Action,
    /// `None`: both.
    pub(crate) call: Option<Call>,
    /// `None`: everybody.
    pub(crate) user: Option<u32>,
    /// A path without a slash at its end, and all below it. `None`: all.
    pub(crate) cgroup: Option<String>,
    /// None: all.
    pub(crate) ports: Vec<PortRange>,
}

/// The process that a rule is applied to. Its values come from the kernel, never from the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    /// The real user.
    pub(crate) uid: u32,
    /// The path in the unified hierarchy. `None`: it cannot be read (a process that the daemon's /proc does not show); then
    /// rules that name a cgroup deny, and do not allow.
    pub(crate) cgroup: Option<&'a str>,
}

impl Rule {
    fn fits(&self, subject: &Subject<'_>, call: Call, port: u16) -> bool {
        let below = |path: &String| match subject.cgroup {
            Some(cgroup) => {
                cgroup.strip_prefix(path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            None => self.action == Action::Deny,
        };
        self.call.is_none_or(|named| named == call)
            && self.user.is_none_or(|uid| uid == subject.uid)
            && self.cgroup.as_ref().is_none_or(below)
            && (self.ports.is_empty() || self.ports.iter().any(|r| (r.first..=r.last).contains(&port)))
    }
}

/// All rules. The first one that fits decides; where none fits, it is allowed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules(pub(crate) Vec<Rule>);

impl Rules {
    /// Returns whether `subject` may have a ring.
    pub(crate) fn allow(&self, subject: &Subject<'_>, call: Call, port: u16) -> bool {
        let rule = self.0.iter().find(|rule| rule.fits(subject, call, port));
        rule.is_none_or(|rule| rule.action == Action::Allow)
    }
}
