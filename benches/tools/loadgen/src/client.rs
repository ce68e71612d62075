//! One connection of the load.

use crate::errors::{self, Kind};
use crate::http::Answer;
use crate::session::{Session, WaitingSince};
use fs_stacks::Stream;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Instant;
use tokio::io::AsyncWriteExt;

/// An open connection, counted as open while it lives.
pub(crate) struct Client {
    pub(crate) stream: Stream,
    session: Rc<Session>,
}

impl Client {
    /// Connects, from the next source address if there are any.
    pub(crate) async fn connect(session: &Rc<Session>, waiting: &WaitingSince) -> Result<Self, Kind> {
        waiting.set(Some(Instant::now()));
        let stream = session.core.connect(session.plan.addr, session.source()).await?;
        stream.set_nodelay(true)?;
        let live = session.live();
        if !session.stopping() {
            live.connections.add(1);
        }
        live.open.add(1);
        Ok(Self { stream, session: session.clone() })
    }

    /// Sends the request and reads the whole response. Returns true if the server closes after it.
    pub(crate) async fn ask(&mut self) -> Result<bool, Kind> {
        self.ask_as(false).await
    }

    /// Like [`Client::ask`], with a request after which the server closes.
    pub(crate) async fn ask_last(&mut self) -> Result<bool, Kind> {
        self.ask_as(true).await
    }

    async fn ask_as(&mut self, last: bool) -> Result<bool, Kind> {
        let Self { stream, session } = self;
        let request = if last { &session.plan.last_request } else { &session.plan.request };
        stream.write_all(request).await?;
        let mut answer = Answer::default();
        loop {
            let step = stream.read_with(&session.scratch, |bytes| {
                if bytes.is_empty() { Err(errors::SHORT) } else { feed(session, &mut answer, bytes) }
            });
            if step.await?? {
                return Ok(answer.closes());
            }
        }
    }

    /// Reads to the end of the stream. Further bytes are an error.
    pub(crate) async fn end(&mut self) -> Result<(), Kind> {
        match self.stream.read_with(&self.session.scratch, <[u8]>::len).await? {
            0 => Ok(()),
            _ => Err(errors::PROTOCOL),
        }
    }

    /// Sends the message and reads the echo.
    pub(crate) async fn echo(&mut self) -> Result<(), Kind> {
        let Self { stream, session } = self;
        let message = &session.plan.message[..];
        stream.write_all(message).await?;
        let mut left = message;
        while !left.is_empty() {
            let flow = stream.read_with(&session.scratch, |bytes| match bytes.len() {
                0 => ControlFlow::Break(errors::SHORT),
                len if left.get(..len) == Some(bytes) => ControlFlow::Continue(len),
                _ => ControlFlow::Break(errors::CONTENT),
            });
            match flow.await? {
                ControlFlow::Continue(len) => left = &left[len..],
                ControlFlow::Break(kind) => return Err(kind),
            }
        }
        session.live().bytes.add(message.len() as u64);
        Ok(())
    }
}

fn feed(session: &Session, answer: &mut Answer, bytes: &[u8]) -> Result<bool, Kind> {
    if !session.stopping() {
        session.live().bytes.add(bytes.len() as u64);
    }
    answer.feed(bytes, session.plan.body)
}

impl Drop for Client {
    fn drop(&mut self) {
        self.session.live().open.sub(1);
    }
}
