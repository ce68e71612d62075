//! Messages to the starter of the program: lines on standard output, and sd_notify(3). Without
//! systemd the latter do nothing.

use sd_notify::NotifyState;
use std::io::Write;

/// Writes a line to standard output. Nobody may read a successor's.
pub(crate) fn say(line: std::fmt::Arguments<'_>) {
    let _unread = writeln!(std::io::stdout(), "{line}");
}

/// The process serves, for the first time or after a reload.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready, NotifyState::MainPid(std::process::id())]);
}

/// The configuration is being read again. Removes the text of [`not_succeeded`].
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now, NotifyState::Status("")]),
        Err(error) => not_told(&error),
    }
}

/// Another process is the service from now on. It also ends a reload whose file is still being read:
/// systemd takes no further message of this process.
pub(crate) fn succeeded_by(process: u32) {
    tell(&[NotifyState::Ready, NotifyState::MainPid(process), NotifyState::Status("")]);
}

/// No other process has replaced this one. `systemctl status` shows the text, for which the package's
/// upgrade waits.
pub(crate) fn not_succeeded(reason: &str) {
    // A line break would end the value.
    tell(&[NotifyState::Status(&reason.replace('\n', " "))]);
}

/// Open connections are finishing.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        not_told(&error);
    }
}

fn not_told(error: &std::io::Error) {
    tracing::warn!("cannot notify systemd: {error}");
}
