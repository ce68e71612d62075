//! Devices that the daemon shares between programs: `devices` of its configuration.

use super::finding::Finding;
use super::host;
use crate::run::SYSTEM_CONFIG;
use fs_daemon::{Config, shared};
use std::path::Path;

/// The kernel with tcx, and with AF_XDP sockets that receive super-segments in several chunks.
const SHARES: (u32, u32) = (6, 6);

/// Checks the configuration `named`, or the system's if it exists.
pub(super) fn look(named: Option<&Path>) -> Vec<Finding> {
    let Some(path) = named.or_else(|| Some(Path::new(SYSTEM_CONFIG)).filter(|path| path.exists())) else {
        return Vec::new();
    };
    match Config::load(path) {
        Err(error) => vec![Finding::bad("config", error.to_string(), "correct the file")],
        Ok(config) if config.devices().is_empty() => Vec::new(),
        Ok(config) => system().into_iter().chain(config.devices().iter().map(|name| device(name))).collect(),
    }
}

fn device(name: &str) -> Finding {
    match shared::check(name) {
        Ok(()) => Finding::good("shared", format!("programs can share {name}")),
        Err(error) => Finding::bad(
            "shared",
            error.to_string(),
            "name another device in `devices` of the configuration (`ip link` lists them)",
        ),
    }
}

/// Checks what every shared device needs.
fn system() -> Vec<Finding> {
    let mut findings = Vec::new();
    if host::running().is_some_and(|version| version < SHARES) {
        findings.push(Finding::bad(
            "shared",
            "sharing a device needs Linux 6.6 (tcx, and AF_XDP sockets for packets of several chunks)",
            "use Linux 6.6 or later, or remove `devices`: then one program at a time has a device",
        ));
    }
    findings
}
