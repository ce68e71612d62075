//! Rules for the connections that may have a ring, by program, user, cgroup, destination and port.
//! A policy forbids no connection, because the kernel has already made it. For a ring, the name that
//! a program gives itself is sufficient, because only speed depends on it.
//!
//! A policy may also refuse the lease of a port of a shared device. That is a right, so there a policy
//! that names a program does not apply: prctl(2) changes the name.

use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};

/// The kernel truncates a program's name to this many bytes (TASK_COMM_LEN of
/// include/linux/sched.h, less the zero).
const NAME_MAX: usize = 15;

/// The end of a connection that a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Call {
    /// The process listens on a port.
    Bind,
    /// The process connects to a port.
    Connect,
}

/// A range of ports, including both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortRange {
    /// The first.
    pub(crate) first: u16,
    /// The last.
    pub(crate) last: u16,
}

/// The addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    ip: IpAddr,
    bits: u8,
}

impl Network {
    /// `192.0.2.0/24`, `2001:db8::/32`, or one address.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (ip, bits) = match text.split_once('/') {
            Some((ip, bits)) => (ip.parse().ok()?, Some(bits.parse().ok()?)),
            None => (text.parse().ok()?, None),
        };
        let most = if matches!(ip, IpAddr::V4(_)) { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then_some(Self { ip, bits })
    }

    fn has(&self, other: IpAddr) -> bool {
        let differ = match (self.ip, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        differ >= u32::from(self.bits)
    }
}

/// The process to which a policy is applied. The kernel reports its user and cgroup, and the
/// process chooses its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    /// The file name of its program, as the kernel truncates it. `None`: policies that name a
    /// program do not apply.
    pub(crate) program: Option<&'a str>,
    /// The real user ID.
    pub(crate) uid: u32,
    /// The path in the unified hierarchy. `None` if it cannot be read, for a process that the
    /// daemon's /proc does not show.
    pub(crate) cgroup: Option<&'a str>,
}

/// A policy. It matches a connection if all of its conditions match.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    /// True if the connection may have a ring. Otherwise the kernel alone carries it.
    pub(crate) ring: bool,
    /// The file name of the program. `None`: any.
    pub(crate) program: Option<String>,
    /// `None`: any user.
    pub(crate) user: Option<u32>,
    /// A path without a slash at its end, and everything below it. `None`: any.
    pub(crate) cgroup: Option<String>,
    /// `None`: both.
    pub(crate) call: Option<Call>,
    /// Destinations of connections. Empty: any.
    pub(crate) to: Vec<Network>,
    /// Ports; an empty list stands for all.
    pub(crate) ports: Vec<PortRange>,
}

impl Policy {
    fn fits(&self, subject: &Subject<'_>, call: Call, at: SocketAddr) -> bool {
        let cut = |name: &String| {
            let name = name.as_bytes().get(..NAME_MAX).unwrap_or(name.as_bytes());
            subject.program.is_some_and(|program| program.as_bytes() == name)
        };
        // An unknown cgroup must not get a ring by a policy: it matches policies without a ring,
        // and none with one.
        let below = |path: &String| match subject.cgroup {
            Some(cgroup) => {
                cgroup.strip_prefix(path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            None => !self.ring,
        };
        self.call.is_none_or(|named| named == call)
            && self.program.as_ref().is_none_or(cut)
            && self.user.is_none_or(|uid| uid == subject.uid)
            && self.cgroup.as_ref().is_none_or(below)
            && (self.to.is_empty() || call == Call::Connect && self.to.iter().any(|to| to.has(at.ip())))
            && (self.ports.is_empty() || self.ports.iter().any(|r| (r.first..=r.last).contains(&at.port())))
    }
}

/// All policies. The first matching policy decides. Without one, a connection may have a ring.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies(pub(crate) Vec<Policy>);

impl Policies {
    /// Returns whether `subject` may have a ring for a connection that it accepts or makes.
    pub(crate) fn permit(&self, subject: &Subject<'_>, call: Call, at: SocketAddr) -> bool {
        let policy = self.0.iter().find(|policy| policy.fits(subject, call, at));
        policy.is_none_or(|policy| policy.ring)
    }

    /// Returns whether a process may have a ring for a connection. It is not known which end has
    /// connected, so both cases are checked.
    pub(crate) fn permit_pair(&self, subject: &Subject<'_>, local: SocketAddr, peer: SocketAddr) -> bool {
        self.permit(subject, Call::Connect, peer) && self.permit(subject, Call::Bind, local)
    }

    /// Returns true if a policy has a cgroup.
    pub(crate) fn name_cgroups(&self) -> bool {
        self.0.iter().any(|policy| policy.cgroup.is_some())
    }
}
