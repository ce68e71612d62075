//! Counters of the server.

use fs_stacks::counters::{Counter, PerCore};

/// One core's numbers.
#[derive(Debug, Default)]
pub(crate) struct CoreStats {
    pub(crate) opened: Counter,
    pub(crate) closed: Counter,
    pub(crate) failed: Counter,
    pub(crate) requests: Counter,
}

/// The counters of all cores. Each core writes its own.
#[derive(Debug)]
pub(crate) struct Stats(Vec<PerCore<CoreStats>>);

impl Stats {
    pub(crate) fn new(cores: usize) -> Self {
        Self((0..cores).map(|_| PerCore::default()).collect())
    }

    pub(crate) fn core(&self, index: usize) -> &CoreStats {
        &self.0[index].0
    }

    fn sum(&self, counter: impl Fn(&CoreStats) -> &Counter) -> u64 {
        self.0.iter().map(|core| counter(&core.0).value()).sum()
    }

    /// Connections open now.
    pub(crate) fn open(&self) -> u64 {
        // `closed` first: a connection that closes in between must not make the difference
        // negative.
        let closed = self.sum(|core| &core.closed);
        self.sum(|core| &core.opened).saturating_sub(closed)
    }

    /// Formats the counters as one line of JSON.
    pub(crate) fn json(&self) -> String {
        format!(
            "{{\"connections_open\":{},\"connections_total\":{},\"connections_failed\":{},\"requests\":{}}}\n",
            self.open(),
            self.sum(|core| &core.opened),
            self.sum(|core| &core.failed),
            self.sum(|core| &core.requests),
        )
    }
}
