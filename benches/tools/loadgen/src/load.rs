//! One core's share of the load.

use crate::report::CoreReport;
use crate::session::{Session, WaitingSince};
use crate::{Mode, errors, hold, modes};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

struct Worker {
    task: JoinHandle<()>,
    waiting: WaitingSince,
}

impl Worker {
    fn spawn(session: &Rc<Session>) -> Self {
        let waiting = WaitingSince::default();
        let task = tokio::task::spawn_local(modes::worker(session.clone(), waiting.clone()));
        Self { task, waiting }
    }
}

/// Loads until the end.
pub(crate) async fn run(session: Rc<Session>) -> CoreReport {
    let (started, plan) = (Instant::now(), &session.plan);
    let mut measured = plan.seconds;
    if plan.mode == Mode::Hold {
        hold::run(&session).await;
        measured = started.elapsed();
    } else {
        let mut workers: Vec<_> = (0..plan.share(session.core.index)).map(|_| Worker::spawn(&session)).collect();
        watch(&session, &mut workers, started).await;
        session.stop();
        if session.core.stop().is_requested() {
            measured = started.elapsed();
        }
        finish(&session, workers).await;
        if plan.mode == Mode::Bulk && !plan.reverse {
            // The sent bytes have arrived only now.
            measured = started.elapsed();
        }
    }
    session.report(measured)
}

/// Replaces connections that hang, until the end of the load.
async fn watch(session: &Rc<Session>, workers: &mut [Worker], started: Instant) {
    let (end, timeout) = (started + session.plan.seconds, session.plan.timeout);
    let interval = timeout.min(Duration::from_secs(1)) / 2;
    while Instant::now() < end {
        let wake = end.min(Instant::now() + interval);
        tokio::select! {
            () = tokio::time::sleep_until(wake.into()) => {}
            () = session.core.stop_requested() => return,
        }
        for worker in workers.iter_mut() {
            if worker.waiting.get().is_some_and(|since| since.elapsed() > timeout) {
                worker.task.abort();
                session.failed(errors::TIMEOUT);
                *worker = Worker::spawn(session);
            }
        }
    }
}

/// Lets every connection finish its current request, within the time-out.
async fn finish(session: &Session, workers: Vec<Worker>) {
    let until = tokio::time::Instant::now() + session.plan.timeout;
    for mut worker in workers {
        match tokio::time::timeout_at(until, &mut worker.task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Ok(Err(_)) => {}
            Err(_) => {
                worker.task.abort();
                // Without a request, it waited for the time of the next one.
                if worker.waiting.get().is_some() {
                    session.failed(errors::TIMEOUT);
                }
            }
        }
    }
}
