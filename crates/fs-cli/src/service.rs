//! Messages to systemd (sd_notify(3)). Without systemd they do nothing.

use sd_notify::NotifyState;
use std::io::Write;

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
    tell(&[NotifyState::Stopping]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        not_told(&error);
    }
}

fn not_told(error: &std::io::Error) {
    let _unheard = writeln!(std::io::stderr(), "fastsock: cannot notify systemd: {error}");
}
