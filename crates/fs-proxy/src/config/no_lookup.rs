//! Replaces `lookup` in a build without the feature `dns`: the C library looks names up.

use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

/// The addresses of a name.
pub(super) struct Found<T> {
    pub(super) what: Vec<T>,
    /// Always `None`: the C library does not tell the time to live.
    pub(super) valid_for: Option<Duration>,
    /// The error of the look-up of the other addresses, if only those of IPv4 or of IPv6 were found.
    pub(super) failed: Option<String>,
}

/// A server of a service.
#[allow(dead_code, reason = "there is none")]
pub(super) struct Service {
    /// A whole name, which ends with a dot.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) weight: u16,
    pub(super) priority: u16,
}

/// Returns the addresses of a name. Blocks.
///
/// # Errors
/// If there are none.
pub(super) fn addresses(name: &str) -> Result<Found<IpAddr>, String> {
    let found = (name, 0).to_socket_addrs().map_err(|error| error.to_string())?;
    Ok(Found { what: found.map(|addr| addr.ip()).collect(), valid_for: None, failed: None })
}

/// Returns an error: the C library does not look services up.
pub(super) fn services(_name: &str) -> Result<Found<Service>, String> {
    Err("this fs-proxy was built without the feature `dns`, so it knows no services".into())
}
