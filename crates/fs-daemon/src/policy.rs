//! What is left to the kernel although it could have a ring: by program, destination and port. The name that a program gives itself
//! is enough, as nothing depends on it but speed.

use crate::access::{Call, PortRange};
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};

/// The kernel cuts a program's name after so many bytes (TASK_COMM_LEN of include/linux/sched.h, less the zero).
const NAME_MAX: usize = 15;

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Carrier {
    /// A ring, where both ends can have one.
    Fastsock,
    /// The kernel.
    Kernel,
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

/// One line of the policy: it fits when everything that it names fits.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    /// What it decides.
    pub(crate) carrier: Carrier,
    /// The file name of the program. `None`: every one.
    pub(crate) program: Option<String>,
    /// `None`: both.
    pub(crate) call: Option<Call>,
    /// Destinations of connections. None: all.
    pub(crate) to: Vec<Network>,
    /// None: all.
    pub(crate) ports: Vec<PortRange>,
}

impl Policy {
    fn fits(&self, program: &str, call: Call, at: SocketAddr) -> bool {
        let cut = |name: &String| name.as_bytes().get(..NAME_MAX).unwrap_or(name.as_bytes()) == program.as_bytes();
        self.call.is_none_or(|named| named == call)
            && self.program.as_ref().is_none_or(cut)
            && (self.to.is_empty() || call == Call::Connect && self.to.iter().any(|to| to.has(at.ip())))
            && (self.ports.is_empty() || self.ports.iter().any(|r| (r.first..=r.last).contains(&at.port())))
    }
}

/// The whole policy. The first that fits decides; where none fits, it is fastsock's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies(pub(crate) Vec<Policy>);

impl Policies {
    /// Returns what carries what a program binds or connects to.
    pub(crate) fn carrier(&self, program: &str, call: Call, at: SocketAddr) -> Carrier {
        let policy = self.0.iter().find(|policy| policy.fits(program, call, at));
        policy.map_or(Carrier::Fastsock, |policy| policy.carrier)
    }
}
