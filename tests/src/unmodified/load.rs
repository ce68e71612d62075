//! A client that sends requests without a pause while its server is changed.

use crate::process::Proc;
use crate::unmodified::Stage;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Limit for progress on a busy machine.
const PATIENCE: Duration = Duration::from_secs(150);

/// The results of a load up to now.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Met {
    /// Requests made, with good or bad responses.
    pub requests: u64,
    /// The same by thread.
    pub each: Vec<u64>,
    /// Kept connections that ended before a response, so that the request was made again.
    pub stale: u64,
    /// Errors, and how often each occurred.
    pub errors: BTreeMap<String, u64>,
}

impl Met {
    /// All errors.
    pub fn wrong(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// `tests/unmodified/http_load.py`, running.
pub struct Load(Proc);

impl Load {
    /// Starts it and waits for its first responses.
    pub fn start(stage: &Stage, port: u16, path: &str) -> Result<Load> {
        let mut command = stage.endless_client("/usr/bin/python3");
        let body = stage.files().join(path.trim_start_matches('/'));
        command.arg(stage.script("http_load.py")).args([stage.host, &port.to_string(), path]).arg(body);
        let mut load = Load(stage.lab.spawn("load", &mut command)?);
        load.goes_on(20)?;
        Ok(load)
    }

    /// Returns its results up to now.
    pub fn met(&self) -> Met {
        self.0.log().lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap_or_default()
    }

    /// Waits for this many further requests, and for two of each thread: its second one began after this call.
    pub fn goes_on(&mut self, requests: u64) -> Result<()> {
        let start = Instant::now();
        let before = self.met();
        let go_on = |now: &Met| {
            let all = now.each.iter().enumerate().all(|(n, many)| *many >= before.each.get(n).unwrap_or(&0) + 2);
            all && now.requests >= before.requests + requests
        };
        while !go_on(&self.met()) {
            ensure!(self.0.ended()?.is_none(), "the load ended:\n{}", self.0.log());
            ensure!(start.elapsed() < PATIENCE, "no {requests} requests in {PATIENCE:?}: {:?}", self.met());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Stops the load and returns its results.
    pub fn end(mut self) -> Result<Met> {
        let status = self.0.terminate(PATIENCE)?;
        ensure!(status.success(), "the load ended with {status}:\n{}", self.0.log());
        let log = self.0.log();
        let last = log.lines().last().context("the load printed nothing")?;
        serde_json::from_str(last).with_context(|| format!("the load printed {last}"))
    }
}
