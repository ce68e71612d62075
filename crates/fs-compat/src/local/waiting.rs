//! [`Waiting`].

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// The tasks that wait for one event of a kernel socket. tokio's poll functions keep only the last
/// waker, and the last task may be gone or busy when the event comes. So all are woken.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<Vec<Waker>>);

/// As many tasks as a core keeps for one of its own sockets. More than this is a loop that polls
/// with new wakers each time: the oldest is woken and removed.
const WAITING_MAX: usize = 4097;

impl Waiting {
    /// Polls a kernel socket for the task of `cx`.
    pub(super) fn poll<R>(
        self: &Arc<Self>,
        cx: &Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        self.add(cx.waker());
        poll(&mut Context::from_waker(&Waker::from(Arc::clone(self))))
    }

    fn add(&self, waker: &Waker) {
        let mut wakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if wakers.iter().any(|known| known.will_wake(waker)) {
            return;
        }
        let oldest = (wakers.len() >= WAITING_MAX).then(|| wakers.remove(0));
        wakers.push(waker.clone());
        // Waking may run foreign code.
        drop(wakers);
        if let Some(oldest) = oldest {
            oldest.wake();
        }
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn wakes_all_and_keeps_a_bounded_number() {
        let waiting = Arc::new(Waiting::default());
        let tasks: Vec<Arc<Count>> = (0..5000).map(|_| Arc::default()).collect();
        for task in &tasks {
            let waker = Waker::from(task.clone());
            for _ in 0..2 {
                let polled = waiting.poll(&Context::from_waker(&waker), |_| Poll::<()>::Pending);
                assert!(polled.is_pending());
            }
        }
        assert_eq!(waiting.0.lock().unwrap().len(), WAITING_MAX);
        let woken = || tasks.iter().filter(|task| task.0.load(Ordering::Relaxed) == 1).count();
        assert!(woken() < 1000, "tasks that share a socket wake one another");
        waiting.wake();
        assert!(tasks.iter().all(|task| task.0.load(Ordering::Relaxed) == 1));
    }
}
