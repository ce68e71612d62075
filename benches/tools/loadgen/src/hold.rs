//! Many open connections: each sends a request, stays open, sends another request, and closes.

use crate::client::Client;
use crate::errors::{self, Kind};
use crate::session::{Session, WaitingSince};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Idle connections: a stream each, without a task.
type OpenClients = Rc<RefCell<Vec<Client>>>;

/// Runs all phases. Errors are counted in the session.
pub(crate) async fn run(session: &Rc<Session>) {
    let held = OpenClients::default();
    let count = session.plan.share(session.core.index);
    let open = for_each(session, count, |session| {
        let held = held.clone();
        async move {
            let client = open(&session).await?;
            held.borrow_mut().push(client);
            Ok(())
        }
    });
    tokio::select! {
        () = open => {}
        () = session.core.stop_requested() => return,
    }
    if held.borrow().len() == count {
        tracing::info!("core {}: {count} connections open, each has been answered", session.core.index);
    } else {
        tracing::warn!("core {}: {} of {count} connections are open", session.core.index, held.borrow().len());
    }
    session.plan.opened.fetch_add(1, Ordering::AcqRel);
    tokio::select! {
        () = hold(session) => {}
        () = session.core.stop_requested() => return,
    }
    let count = held.borrow().len();
    let again = for_each(session, count, |session| {
        let client = held.borrow_mut().pop();
        async move {
            let mut client = client.ok_or(errors::SHORT)?;
            ask(&session, &mut client).await
        }
    });
    tokio::select! {
        () = again => {}
        () = session.core.stop_requested() => {}
    }
}

/// Waits for `--seconds` after all cores have opened all their connections.
async fn hold(session: &Session) {
    let patience = Instant::now() + session.plan.timeout + Duration::from_secs(120);
    while session.plan.opened.load(Ordering::Acquire) < session.plan.cores && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(session.plan.seconds).await;
}

/// Runs `work` `count` times, at most `--opening` of them at once, each with the time-out.
async fn for_each<F>(session: &Rc<Session>, count: usize, mut work: impl FnMut(Rc<Session>) -> F)
where
    F: Future<Output = Result<(), Kind>> + 'static,
{
    let places = Arc::new(Semaphore::new(session.plan.opening));
    for _ in 0..count {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (work, session) = (work(session.clone()), session.clone());
        tokio::task::spawn_local(async move {
            let result = tokio::time::timeout(session.plan.timeout, work).await;
            if let Err(kind) = result.unwrap_or(Err(errors::TIMEOUT)) {
                session.failed(kind);
            }
            drop(place);
        });
    }
    // All permits are free again when the last one has finished.
    drop(places.acquire_many(session.plan.opening as u32).await);
}

async fn open(session: &Rc<Session>) -> Result<Client, Kind> {
    let mut client = Client::connect(session, &WaitingSince::default()).await?;
    ask(session, &mut client).await?;
    Ok(client)
}

async fn ask(session: &Session, client: &mut Client) -> Result<(), Kind> {
    let started = Instant::now();
    client.ask().await?;
    session.answered(started.elapsed());
    Ok(())
}
