//! What the daemon says at one moment.

use crate::control::{ControlArgs, Status, status};
use crate::ss;
use anyhow::Context;
use fs_shm::control::{CounterRow, Request, SocketRow};
use std::time::Instant;

/// One look.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) status: Status,
    pub(super) counters: Vec<CounterRow>,
    pub(super) sockets: Vec<SocketRow>,
}

/// Asks the daemon for status, counters and sockets.
pub(super) fn sample(control: &ControlArgs) -> anyhow::Result<Sample> {
    let client = control.connect()?;
    let status = status(&client).context("cannot read the daemon's status")?;
    let at = Instant::now();
    let mut counters: Vec<CounterRow> = Vec::new();
    client
        .rows(|cursor| Request::Counters { cursor }, |row| counters.push(row))
        .context("cannot read the daemon's counters")?;
    let mut sockets: Vec<SocketRow> = Vec::new();
    client
        .rows(|cursor| Request::Sockets { cursor }, |row| sockets.push(row))
        .context("cannot read the daemon's sockets")?;
    ss::complete(&mut sockets);
    Ok(Sample { at, status, counters, sockets })
}
