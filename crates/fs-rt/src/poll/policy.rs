//! What a core may do while it waits, as the application chooses it.

use std::time::Duration;

/// How long an idle core at least looks for work before it sleeps (see [`super::spin`]). A sleep and its wake-up cost about
/// 31 µs of latency (a round trip of 31 µs instead of 3.6): spinning as long as a sleep costs is at most twice the best
/// possible (the ski-rental rule). Lower: bursts pay for wake-ups. Higher: an idle core burns CPU for longer.
const SPIN: Duration = Duration::from_micros(30);

/// When a core looks for work, when it lets packets gather, and when it sleeps: one of the presets, and each of its
/// heuristics by itself. [`crate::Builder::poll_policy`] takes it.
///
/// | | [`latency`](Self::latency) | [`throughput`](Self::throughput) | [`shared`](Self::shared) | decision |
/// |---|---|---|---|---|
/// | `sleep` | no | yes | yes | |
/// | `spin` | | 30 µs | 30 µs | 0010 |
/// | `adapt_spin` | | yes | yes | 0010 |
/// | `yield_cpu` | | yes | no | 0010 |
/// | `give_way` | | no | yes | 0010 |
/// | `coalesce_connections` | no | yes | yes | 0009 |
/// | `coalesce_streams` | no | yes | yes | 0012 |
/// | `timed_sleeps` | no | yes | yes | 0014 |
/// | `leave_epoll` | | yes | yes | 0015 |
///
/// ```
/// use fs_rt::{PollPolicy, Runtime};
///
/// let mut policy = PollPolicy::throughput();
/// policy.coalesce_connections = false;
/// let builder = Runtime::builder().device("eth0").cores([1]).poll_policy(policy);
/// # drop(builder);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PollPolicy {
    /// A core without work sleeps. If not it takes all of its CPU always, and what is said of sleeping below does not matter.
    pub sleep: bool,
    /// How long it looks for work before it sleeps; zero: not at all.
    pub spin: Duration,
    /// It looks for longer, up to five times `spin`, while the gaps in its work turn out to be a little longer, and for
    /// less, down to an eighth, while they are so long that no spin catches what comes.
    pub adapt_spin: bool,
    /// After 4 µs without work it offers its CPU to other threads each time that it looks (sched_yield(2)). For a core that may run
    /// on one CPU only.
    pub yield_cpu: bool,
    /// It does not spin while others want its CPU: while it is preempted often, or the machine has more runnable threads than
    /// CPUs. For a core that may run on any CPU, beside the programs that it works for.
    pub give_way: bool,
    /// While it serves many connections that come round but seldom, it looks at its links every 20 µs only.
    pub coalesce_connections: bool,
    /// It receives a stream of full segments the same way, where that brings no fewer bytes.
    pub coalesce_streams: bool,
    /// Between two such looks it sleeps by the clock where round trips are long. Packets do not end that sleep, nor do other
    /// cores and threads; it ends after 40 µs, or with the next deadline.
    pub timed_sleeps: bool,
    /// A core that has been awake for 1 ms takes its links' descriptors out of its epoll set until it sleeps.
    pub leave_epoll: bool,
}

impl PollPolicy {
    /// The least latency, whatever it costs: the core never sleeps and looks at its links in every turn.
    pub const fn latency() -> Self {
        Self {
            sleep: false,
            coalesce_connections: false,
            coalesce_streams: false,
            timed_sleeps: false,
            ..Self::throughput()
        }
    }

    /// The most work for a CPU second, at a latency of tens of microseconds where many share it; an idle core sleeps. For cores
    /// that are pinned: the default.
    pub const fn throughput() -> Self {
        Self {
            sleep: true,
            spin: SPIN,
            adapt_spin: true,
            yield_cpu: true,
            give_way: false,
            coalesce_connections: true,
            coalesce_streams: true,
            timed_sleeps: true,
            leave_epoll: true,
        }
    }

    /// As [`PollPolicy::throughput`], on CPUs that are others' too: the core does not spin while they are wanted. The default for
    /// cores that are not pinned.
    pub const fn shared() -> Self {
        Self { yield_cpu: false, give_way: true, ..Self::throughput() }
    }
}
