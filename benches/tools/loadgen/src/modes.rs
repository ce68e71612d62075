//! The loop of a connection until the end of the load.

use crate::Mode;
use crate::client::Client;
use crate::errors::{self, Kind};
use crate::session::{Session, WaitingSince};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;

/// Pause after an error, so that a server that is down gets no flood of connects.
const AFTER_ERROR: Duration = Duration::from_millis(10);

/// Opens one connection after the other until the end.
pub(crate) async fn worker(session: Rc<Session>, waiting: WaitingSince) {
    while !session.stopping() {
        let result = match session.plan.mode {
            Mode::Short => short(&session, &waiting).await,
            Mode::Keepalive | Mode::Hold => keepalive(&session, &waiting).await,
            Mode::Pingpong => pingpong(&session, &waiting).await,
            Mode::Bulk if session.plan.reverse => bulk_receive(&session, &waiting).await,
            Mode::Bulk => bulk_send(&session, &waiting).await,
        };
        waiting.set(None);
        if let Err(kind) = result {
            session.failed(kind);
            tokio::time::sleep(AFTER_ERROR).await;
        }
    }
}

async fn short(session: &Rc<Session>, waiting: &WaitingSince) -> Result<(), Kind> {
    let Some(started) = session.due().await else { return Ok(()) };
    let mut client = Client::connect(session, waiting).await?;
    client.ask().await?;
    client.end().await?;
    session.answered(started.elapsed());
    Ok(())
}

async fn keepalive(session: &Rc<Session>, waiting: &WaitingSince) -> Result<(), Kind> {
    let mut client = Client::connect(session, waiting).await?;
    waiting.set(None);
    let mut asked = 0;
    while let Some(started) = session.due().await {
        waiting.set(Some(Instant::now()));
        asked += 1;
        let last = asked == session.plan.per_connection;
        let closes = if last { client.ask_last().await? } else { client.ask().await? };
        session.answered(started.elapsed());
        if last || closes {
            return client.end().await;
        }
        waiting.set(None);
    }
    Ok(())
}

async fn pingpong(session: &Rc<Session>, waiting: &WaitingSince) -> Result<(), Kind> {
    let mut client = Client::connect(session, waiting).await?;
    while !session.stopping() {
        let started = Instant::now();
        waiting.set(Some(started));
        client.echo().await?;
        session.answered(started.elapsed());
    }
    Ok(())
}

/// Sends until the end, then waits until the sink has read everything, and closes.
async fn bulk_send(session: &Rc<Session>, waiting: &WaitingSince) -> Result<(), Kind> {
    let mut client = Client::connect(session, waiting).await?;
    while !session.stopping() {
        waiting.set(Some(Instant::now()));
        let sent = client.stream.write(&session.plan.message).await?;
        if sent == 0 {
            return Err(errors::SHORT);
        }
        session.live().bytes.add(sent as u64);
    }
    waiting.set(Some(Instant::now()));
    client.stream.shutdown().await?;
    client.end().await
}

/// Receives until the end.
async fn bulk_receive(session: &Rc<Session>, waiting: &WaitingSince) -> Result<(), Kind> {
    let mut client = Client::connect(session, waiting).await?;
    while !session.stopping() {
        waiting.set(Some(Instant::now()));
        let len = client.stream.read_with(&session.scratch, <[u8]>::len).await?;
        if len == 0 {
            return Err(errors::SHORT);
        }
        if !session.stopping() {
            session.live().bytes.add(len as u64);
        }
    }
    // Data in flight is no longer needed.
    Ok(client.stream.set_zero_linger()?)
}
