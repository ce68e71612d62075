//! Rules for the connections that may have a ring, by program, user, cgroup, destination and port. A policy forbids no connection, since
//! the kernel has made it. The name that a program gives itself is enough, as nothing depends on it but speed.

use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};

/// The kernel cuts a program's name after so many bytes (TASK_COMM_LEN of include/linux/sched.h, less the zero).
const NAME_MAX: usize = 15;

/// Which end of a connection a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Call {
    /// The process listens on a port.
    Bind,
    /// The process connects to a port.
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

/// Addresses with the first bits in common.
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

/// The process that a policy is applied to. User and cgroup come from the kernel, the name from the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    /// The file name of its program, as the kernel cuts it.
    pub(crate) program: &'a str,
    /// The real user.
    pub(crate) uid: u32,
    /// The path in the unified hierarchy. `None`: it cannot be read (a process that the daemon's /proc does not show).
    pub(crate) cgroup: Option<&'a str>,
}

/// A policy. It matches a connection if all of its conditions match.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    /// True if the connection may have a ring. Otherwise the kernel alone carries it.
    pub(crate) ring: bool,
    /// The file name of the program. `None`: every one.
    pub(crate) program: Option<String>,
    /// `None`: every user.
    pub(crate) user: Option<u32>,
    /// A path without a slash at its end, and all below it. `None`: all.
    pub(crate) cgroup: Option<String>,
    /// `None`: both.
    pub(crate) call: Option<Call>,
    /// Destinations of connections. None: all.
    pub(crate) to: Vec<Network>,
    /// Ports; an empty list stands for all.
    pub(crate) ports: Vec<PortRange>,
}

impl Policy {
    fn fits(&self, subject: &Subject<'_>, call: Call, at: SocketAddr) -> bool {
        let cut =
            |name: &String| name.as_bytes().get(..NAME_MAX).unwrap_or(name.as_bytes()) == subject.program.as_bytes();
        // A cgroup that cannot be read gains nothing: it is in those without a ring, and in none with one.
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

/// All policies. The first one that fits decides; where none fits, a connection may have a ring.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies(pub(crate) Vec<Policy>);

impl Policies {
    /// Returns whether `subject` may have a ring for what it binds or connects to.
    pub(crate) fn permit(&self, subject: &Subject<'_>, call: Call, at: SocketAddr) -> bool {
        let policy = self.0.iter().find(|policy| policy.fits(subject, call, at));
        policy.is_none_or(|policy| policy.ring)
    }

    /// Returns whether a process may have a ring for a connection. Which end has connected is not known, so it is judged as both.
    pub(crate) fn permit_pair(&self, subject: &Subject<'_>, local: SocketAddr, peer: SocketAddr) -> bool {
        self.permit(subject, Call::Connect, peer) && self.permit(subject, Call::Bind, local)
    }

    /// Returns whether the cgroup of a process matters.
    pub(crate) fn name_cgroups(&self) -> bool {
        self.0.iter().any(|policy| policy.cgroup.is_some())
    }
}
