//! Counters of a core.

use fs_core::{Histogram, IfaceId, Stats};
use fs_xdp::LinkStats;
use std::borrow::Cow;

/// Counters of a core's runtime, without those of its stack.
///
/// ```no_run
/// # let runtime = fastsock::Runtime::builder().device("eth0").cores([0]).build()?;
/// let stats = runtime.handle().stats()[0].runtime;
/// println!("it has slept in {} of {} turns", stats.sleeps, stats.turns);
/// # Ok::<(), fastsock::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeStats {
    /// Turns of the reactor.
    pub turns: u64,
    /// Number of times that the core went to sleep.
    pub sleeps: u64,
    /// Number of times that receive coalescing started: the core polls its links at intervals, to
    /// serve many connections or a stream.
    pub coalescings: u64,
    /// Number of times that the core slept for a fixed time between two such polls.
    pub timed_sleeps: u64,
    /// Tasks woken by events.
    pub wakes: u64,
    /// Messages sent to other cores.
    pub messages_sent: u64,
    /// Messages taken from other cores.
    pub messages_received: u64,
    /// Packets for another core that were dropped because its mailbox was full.
    pub mailbox_full: u64,
    /// Largest number of messages that waited in one mailbox after a turn.
    pub mailbox_high_water: u64,
    /// Number of times that the doorbell of a sleeping core was rung.
    pub doorbells: u64,
}

/// The counters of one core as last published, at most about 100 ms old. An idle core publishes
/// nothing: its counts of turns and sleeps are those of its last work.
///
/// ```no_run
/// # let runtime = fastsock::Runtime::builder().device("eth0").cores([0]).build()?;
/// for core in runtime.handle().stats() {
///     println!("core {}: {} segments sent again", core.core, core.stack.retransmits);
/// }
/// # Ok::<(), fastsock::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CoreStats {
    /// The core's number in the runtime.
    pub core: usize,
    /// The CPU that the core is pinned to.
    pub cpu: usize,
    /// The engine's counters and drops.
    pub stack: Stats,
    /// Each queue's counters, with its interface.
    pub links: Vec<(IfaceId, LinkStats)>,
    /// The runtime's counters.
    pub runtime: RuntimeStats,
    /// Durations of turns that did work, including the tasks that they woke: the longest time that
    /// an arriving packet waits.
    pub turn_time: Histogram,
    /// Live connections that the core carries itself.
    pub connections: u64,
    /// Live connections that the kernel carries for this core's sockets.
    pub kernel_connections: u64,
    /// TIME-WAIT records alive.
    pub time_waits: u64,
    /// Frames of this core that are not free in its pool. A frame that was sent to another core
    /// with its packet counts until it is returned, even if it is already free there.
    pub frames_in_use: u64,
    /// Frames in all.
    pub frames: u64,
    /// Why devices run in a slower mode than they offer, a word for each time (on the first core).
    /// The log has the whole sentence.
    pub given_up: Vec<&'static str>,
}

impl CoreStats {
    /// Calls `f` with each value's name in docs/COUNTERS.md, whether it is a gauge, and the value.
    /// Includes only drop reasons that have occurred.
    pub fn each(&self, mut f: impl FnMut(Cow<'static, str>, bool, u64)) {
        f("core_connections".into(), true, self.connections);
        f("core_kernel_connections".into(), true, self.kernel_connections);
        f("core_time_waits".into(), true, self.time_waits);
        f("core_frames_in_use".into(), true, self.frames_in_use);
        for (name, value) in self.stack.counters() {
            f(format!("stack_{name}").into(), false, value);
        }
        for &reason in fs_core::DropReason::ALL {
            match self.stack.dropped(reason) {
                0 => {}
                value => f(format!("drops_{}", reason.name()).into(), false, value),
            }
        }
        let of_links = |value: fn(&LinkStats) -> u64| self.links.iter().map(|(_, link)| value(link)).sum();
        if !self.links.is_empty() {
            f("link_rx_packets".into(), false, of_links(|link| link.rx_packets));
            f("link_tx_packets".into(), false, of_links(|link| link.tx_packets));
            f("link_rx_dropped".into(), false, of_links(|link| link.rx_dropped));
            f("link_rx_ran_out".into(), false, of_links(|link| link.rx_ran_out));
            f("link_tx_dropped".into(), false, of_links(|link| link.tx_dropped));
            f("link_tx_merges".into(), false, of_links(|link| link.tx_merges));
            f("link_tx_merged".into(), false, of_links(|link| link.tx_merged));
        }
        let mut given_up = std::collections::BTreeMap::<_, u64>::new();
        self.given_up.iter().for_each(|reason| *given_up.entry(reason).or_default() += 1);
        for (reason, times) in given_up {
            f(format!("mode_given_up_{reason}").into(), false, times);
        }
        f("runtime_sleeps".into(), false, self.runtime.sleeps);
        f("runtime_coalescings".into(), false, self.runtime.coalescings);
        f("runtime_timed_sleeps".into(), false, self.runtime.timed_sleeps);
        f("runtime_mailbox_full".into(), false, self.runtime.mailbox_full);
        for (name, times) in self.times().filter(|(_, times)| times.count() > 0) {
            f(format!("{name}_count").into(), false, times.count());
            for (what, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
                f(format!("{name}_{what}_ns").into(), true, times.quantile_ns(share));
            }
        }
    }

    /// Returns durations by name: turns of the core, connects, and waits for accept.
    pub fn times(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        [
            ("turn_time", &self.turn_time),
            ("connect_time", &self.stack.connect_time),
            ("accept_wait", &self.stack.accept_wait),
        ]
        .into_iter()
    }
}
