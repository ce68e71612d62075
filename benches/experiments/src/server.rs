//! Programs on the kernel's sockets.

use anyhow::Result;
use fs_tests::Proc;
use fs_tests::lab::{FRONT, Lab, Ns};
use std::process::Command;
use std::time::Duration;

/// Starts a program of the host on the kernel's sockets, and waits until the client reaches it.
pub(crate) fn reached(lab: &Lab, name: &str, command: &mut Command, port: u16) -> Result<Proc> {
    let mut proc = lab.spawn(name, command)?;
    proc.wait_for("answer", Duration::from_secs(15), || lab.reaches(Ns::Client, FRONT, port))?;
    Ok(proc)
}
