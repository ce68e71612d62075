//! [`PollPolicy`]: what a core may do while it waits, chosen by the application.

use std::time::Duration;

/// Minimum time that an idle core polls before it sleeps (see [`super::spin`]). A sleep and its
/// wake-up cost about 31 µs of latency (a round trip of 31 µs instead of 3.6): spinning for as long
/// as a sleep costs is at most twice the optimum (the ski-rental rule). Lower: bursts pay for
/// wake-ups. Higher: an idle core burns CPU for longer.
const SPIN: Duration = Duration::from_micros(30);

/// When a core polls, when it coalesces, and when it sleeps. Start from a preset and change single
/// heuristics. Pass it to [`crate::Builder::poll_policy`].
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
/// use fastsock::{PollPolicy, Runtime};
///
/// let mut policy = PollPolicy::throughput();
/// policy.coalesce_connections = false;
/// let builder = Runtime::builder().device("eth0").cores([1]).poll_policy(policy);
/// # drop(builder);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PollPolicy {
    /// A core without work sleeps. Otherwise it always uses all of its CPU, and the fields about
    /// sleeping have no effect.
    pub sleep: bool,
    /// Time for which a core polls before it sleeps; zero: it does not spin.
    pub spin: Duration,
    /// Adapts the spin to the gaps between work: up to five times `spin` if the gaps are slightly
    /// longer than that, and down to an eighth if they are too long for any spin.
    pub adapt_spin: bool,
    /// After 4 µs without work, it yields its CPU before each poll (sched_yield(2)). While other
    /// threads use a fifth of that CPU, it does not spin. For a core that may run on one CPU only.
    pub yield_cpu: bool,
    /// The core does not spin while other threads want its CPU: while it is preempted often, or the
    /// machine has more runnable threads than CPUs. For a core that may run on any CPU, next to the
    /// programs that it serves.
    pub give_way: bool,
    /// While it serves many connections with long round trips, it polls its links only every 20 µs.
    pub coalesce_connections: bool,
    /// The core receives a stream of full segments in the same way, unless that brings fewer bytes.
    pub coalesce_streams: bool,
    /// If round trips are long, it sleeps between two such polls. Packets, other cores and threads
    /// do not end that sleep. It ends after 40 µs, or at the next deadline.
    pub timed_sleeps: bool,
    /// A core that has been awake for 1 ms removes its links' descriptors from its epoll set until
    /// it sleeps.
    pub leave_epoll: bool,
}

impl PollPolicy {
    /// Lowest latency at any cost: the core never sleeps, and polls its links in every turn.
    pub const fn latency() -> Self {
        Self {
            sleep: false,
            coalesce_connections: false,
            coalesce_streams: false,
            timed_sleeps: false,
            ..Self::throughput()
        }
    }

    /// The most work per CPU second, at a latency of tens of microseconds if many connections share
    /// it. An idle core sleeps. The default for pinned cores.
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

    /// Like [`PollPolicy::throughput`], on shared CPUs: the core does not spin while other threads
    /// want them. The default for cores that are not pinned.
    pub const fn shared() -> Self {
        Self { yield_cpu: false, give_way: true, ..Self::throughput() }
    }
}
