//! Communication with systemd (sd_notify(3), sd_listen_fds(3)). Without systemd it does nothing.

use crate::socket_unsafe::take;
use anyhow::{Context, bail};
use sd_notify::NotifyState;
use std::io::Write;
use std::os::fd::OwnedFd;

/// Returns the control socket, if systemd passed it to this process.
pub(crate) fn socket() -> anyhow::Result<Option<OwnedFd>> {
    let passed: Vec<_> = sd_notify::listen_fds().context("cannot read the sockets that systemd passed")?.collect();
    match passed[..] {
        [] => Ok(None),
        [number] => take(number).map(Some).context("cannot use the socket that systemd passed"),
        _ => bail!(
            "systemd passed {} sockets, and only the control socket was expected: check fastsock.socket",
            passed.len()
        ),
    }
}

pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => not_told(&error),
    }
}

pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("draining: open connections may finish")]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        not_told(&error);
    }
}

fn not_told(error: &std::io::Error) {
    let _unheard = writeln!(std::io::stderr(), "fastsock: cannot notify systemd: {error}");
}
