//! A loopback address for tests in the host's namespace, which run side by side.

use std::net::IpAddr;

/// Returns a loopback address that only this process uses: no other test takes a port there that
/// was just freed.
pub(crate) fn own_ip() -> IpAddr {
    // Process ids are below 2^22.
    let [_, a, b, c] = std::process::id().to_be_bytes();
    IpAddr::from([127, 128 | a, b, c])
}
