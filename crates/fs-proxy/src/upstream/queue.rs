//! The queue of requests and connections that wait while all servers are busy (`max_connections`).

use crate::config::QueueConfig;
use crate::stats::UpstreamStats;
use std::cell::Cell;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::{Instant, timeout_at};

/// Interval at which a waiting request checks the servers without a notification: a server may have
/// become healthy, or a request of an earlier configuration may have ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A core's queue of an upstream.
pub(super) struct Queue {
    config: QueueConfig,
    length: Cell<usize>,
    /// Notified for each request that ends. Serves its waiters in their order.
    freed: Notify,
    check_interval: Duration,
}

impl Queue {
    pub(super) fn new(config: QueueConfig) -> Self {
        Self { config, length: Cell::new(0), freed: Notify::new(), check_interval: CHECK_INTERVAL }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.length.get() == 0
    }

    /// A request or connection has ended.
    #[inline]
    pub(super) fn freed(&self) {
        if !self.is_empty() {
            self.freed.notify_one();
        }
    }

    /// Takes a place in the queue; none if it is full.
    pub(super) fn enter<'a>(&'a self, stats: &'a UpstreamStats) -> Option<Waiting<'a>> {
        if self.length.get() >= self.config.requests {
            return None;
        }
        self.length.set(self.length.get() + 1);
        stats.queued.add(1);
        stats.waiting.add(1);
        Some(Waiting { queue: self, stats, deadline: Instant::now() + self.config.timeout })
    }
}

/// A place in the queue.
pub(super) struct Waiting<'a> {
    queue: &'a Queue,
    stats: &'a UpstreamStats,
    deadline: Instant,
}

impl Waiting<'_> {
    /// Returns what the waiter waits for. It has its place among the others from the first
    /// [`Waiting::until_check`] on.
    pub(super) fn turn(&self) -> Notified<'_> {
        self.queue.freed.notified()
    }

    /// Waits until a server may have room. Only a turn that came is replaced by another one, at the
    /// end of the queue.
    pub(super) async fn until_check<'a>(&'a self, turn: &mut Pin<&mut Notified<'a>>) {
        let next_check = self.deadline.min(Instant::now() + self.queue.check_interval);
        if timeout_at(next_check, turn.as_mut()).await.is_ok() {
            turn.set(self.turn());
        }
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.queue.length.set(self.queue.length.get() - 1);
        self.stats.waiting.sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::upstream_of;
    use super::super::{Pick, Use};
    use super::*;
    use crate::refusal::Refusal;
    use std::rc::Rc;

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    fn used(pick: Pick) -> Option<Use> {
        match pick {
            Pick::Used(used) => Some(used),
            Pick::Busy | Pick::Nobody => None,
        }
    }

    #[test]
    fn waiters_get_their_turn_in_order() {
        let servers = "servers = [{ address = '10.0.0.1:1', max_connections = 1 }, { address = '10.0.0.2:1', \
                       max_connections = 2 }]\nqueue = { requests = 2, timeout = '60s' }";
        let (mut upstream, stats) = upstream_of(servers);
        let interval = Duration::from_millis(40);
        Rc::get_mut(&mut upstream).unwrap().queue.check_interval = interval;
        run(async {
            let mut uses: Vec<Use> = (0..3).map(|_| used(upstream.pick(&[], None)).unwrap()).collect();
            assert_eq!(uses.iter().filter(|used| used.index == 1).count(), 2);
            assert!(matches!(upstream.pick(&[], None), Pick::Busy));
            let order = std::cell::RefCell::new(Vec::new());
            let wait = |name: &'static str| {
                let (upstream, order) = (upstream.clone(), &order);
                async move {
                    let result = upstream.wait(&[], None).await;
                    order.borrow_mut().push(name);
                    result
                }
            };
            let second = async {
                tokio::time::sleep(interval / 2).await;
                wait("second").await
            };
            let free = async {
                // The first one has checked once more than the second one.
                tokio::time::sleep(interval * 5 / 4).await;
                // The queue is full, and a new request never overtakes a waiting one.
                assert_eq!(upstream.wait(&[], None).await.err(), Some(Refusal::BUSY));
                uses.pop();
                assert!(matches!(upstream.pick(&[], None), Pick::Busy));
                tokio::time::sleep(Duration::from_millis(10)).await;
                uses.pop();
            };
            // In this order, also if this thread was stopped and several of their timers have expired.
            let (first, second, ()) = tokio::join!(biased; wait("first"), second, free);
            assert!(first.is_ok() && second.is_ok());
            assert_eq!(*order.borrow(), ["first", "second"]);
            drop((first, second));
            assert!(used(upstream.pick(&[], None)).is_some());
            let counters = &stats.cores[0].0.upstreams[0].0;
            let [queued, refused, waiting] = [&counters.queued, &counters.queue_refused, &counters.waiting];
            assert_eq!([queued.value(), refused.value(), waiting.value()], [2, 1, 0]);
        });
    }

    #[test]
    fn request_is_sent_in_time_or_refused() {
        let server = "servers = [{ address = '10.0.0.1:1', max_connections = 1 }]\nqueue = { timeout = '300ms' }";
        let (upstream, stats) = upstream_of(server);
        run(async {
            let _used = used(upstream.pick(&[], None)).unwrap();
            let started = Instant::now();
            assert_eq!(upstream.wait(&[], None).await.err(), Some(Refusal::BUSY));
            assert!(started.elapsed() >= Duration::from_millis(300));
            let counters = &stats.cores[0].0.upstreams[0].0;
            assert_eq!([&counters.queued, &counters.queue_refused].map(|counter| counter.value()), [1, 1]);
        });
    }

    #[test]
    fn waiting_ends_if_no_server_is_healthy() {
        let (upstream, stats) = upstream_of("servers = [{ address = '10.0.0.1:1', max_connections = 1 }]");
        run(async {
            let _used = used(upstream.pick(&[], None)).unwrap();
            let end = async { stats.servers[0][0].set_healthy(false) };
            let (result, ()) = tokio::join!(upstream.wait(&[], None), end);
            assert_eq!(result.err(), Some(Refusal::UNREACHABLE));
            assert!(matches!(upstream.pick(&[], None), Pick::Nobody));
        });
    }
}
