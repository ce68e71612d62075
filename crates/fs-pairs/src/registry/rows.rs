//! What is listed and counted.

use std::time::{Duration, Instant};

use fs_carrier::traffic::{Traffic, traffic};

use super::{Refused, Registry};
use crate::counters::Counters;
use crate::facts::Facts;
use crate::listing::{Process, ROWS, Row};
use crate::message::Reason;

/// Refused offers that are listed. More: memory. Fewer: on a busy host they disappear before an
/// operator lists them.
const REFUSED: usize = 256;
/// The number of the first row of refused offers. Rows of pairs are numbered from 1.
const FIRST_REFUSED: u64 = 1 << 63;

/// Time for which counters are answered again, for each pair. One pread(2) for each pair, about
/// 0.5 µs, makes the sum. Longer: counters are older, by 300 ms with 30,000 pairs. Shorter: a process
/// that asks all the time takes more than a twentieth of the service's thread from the others.
const COUNTERS_LAST: Duration = Duration::from_micros(10);

fn row(facts: &Facts, ends: [Process; 2], refused: Option<Reason>, age: Duration, traffic: [Traffic; 2]) -> Row {
    Row { refused, age, netns: facts.netns, local: facts.local, peer: facts.peer, ends, traffic }
}

impl Registry {
    pub(super) fn note_refused(&mut self, facts: Facts, process: Process, reason: Reason, at: Instant) {
        if self.refused.len() >= REFUSED {
            self.refused.pop_front();
        }
        self.last_refused += 1;
        self.refused.push_back(Refused { number: FIRST_REFUSED + self.last_refused, at, facts, process, reason });
    }

    /// Counts a refused offer.
    pub(crate) fn count_refused(&mut self, reason: Reason) {
        if let Some(i) = Reason::ALL.iter().position(|of| *of == reason) {
            self.counted.refused[i] += 1;
        }
    }

    /// Counts a client that broke the protocol.
    pub(crate) fn note_malformed(&mut self) {
        self.counted.malformed += 1;
    }

    /// Returns the counters, and the numbers of pairs and processes. The client that asks is not
    /// counted.
    pub(crate) fn counters(&mut self, now: Instant) -> Counters {
        if let Some((at, counters)) = self.last_counters
            && now.saturating_duration_since(at) < COUNTERS_LAST * u32::try_from(counters.pairs).unwrap_or(u32::MAX)
        {
            return counters;
        }
        let [processes, pairs, waiting] =
            [self.holders.len().saturating_sub(1), self.pairs.len(), self.waiting.len()].map(|n| n as u64);
        let mut counters = Counters { processes, pairs, waiting, ..self.counted };
        self.pairs.values().for_each(|pair| counters.add(pair.file.as_deref()));
        if let Some(wire) = &self.wire {
            wire(&mut counters);
        }
        self.last_counters = Some((now, counters));
        counters
    }

    /// Returns some rows after `after`, and the last one's number. `sees` returns whether the
    /// client may see a user's rows.
    pub(crate) fn rows(&self, after: u64, now: Instant, sees: impl Fn(u32) -> bool) -> (Vec<Row>, u64) {
        let (mut rows, mut last) = (Vec::new(), after);
        for (number, pair) in self.pairs.range(after.saturating_add(1)..) {
            if rows.len() == ROWS {
                return (rows, last);
            }
            last = *number;
            if !pair.processes.iter().any(|process| sees(process.uid)) {
                continue;
            }
            let traffic = pair.file.as_ref().and_then(|file| traffic(file).ok()).unwrap_or_default();
            let age = now.saturating_duration_since(pair.since);
            rows.push(row(&pair.facts, pair.processes, None, age, traffic));
        }
        for refused in self.refused.iter().filter(|refused| refused.number > after && sees(refused.process.uid)) {
            if rows.len() == ROWS {
                break;
            }
            last = refused.number;
            let age = now.saturating_duration_since(refused.at);
            let processes = [refused.process, Process::default()];
            rows.push(row(&refused.facts, processes, Some(refused.reason), age, Default::default()));
        }
        (rows, last)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::Limits;
    use super::*;
    use crate::registry::Pair;

    /// A process that asks for counters all the time does not make the service read all pairs each
    /// time.
    #[test]
    fn counters_of_many_pairs_are_read_now_and_then() {
        let mut registry = Registry::new(Limits::default());
        let start = Instant::now();
        let promoted = |registry: &mut Registry, n: u64| {
            let at = SocketAddr::from(([127, 0, 0, 1], 1));
            let facts = Facts { netns: 0, cookie: n, local: at, peer: at };
            let processes = [Process::default(); 2];
            registry
                .pairs
                .insert(n, Pair { facts, other_cookie: n, since: start, ends: [None; 2], processes, file: None });
        };
        // Without pairs the counters are always new.
        assert_eq!(registry.counters(start).pairs, 0);
        (0..1000).for_each(|n| promoted(&mut registry, n));
        assert_eq!(registry.counters(start).pairs, 1000);
        promoted(&mut registry, 1000);
        assert_eq!(registry.counters(start + COUNTERS_LAST * 999).pairs, 1000);
        assert_eq!(registry.counters(start + COUNTERS_LAST * 1000).pairs, 1001);
    }
}
