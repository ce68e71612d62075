//! The TCP modes.

use fs_stacks::net::accept_error_is_fatal;
use fs_stacks::{Listener, LocalStop, Stream};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// The role of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Echo,
    Sink,
    Source,
}

/// Bytes per call. Large enough to make the cost of a call small, small enough for the L2 cache.
const CHUNK: usize = 64 << 10;

/// One buffer for all connections of a core. Only one of them uses it between two awaits, so an
/// idle connection holds none.
type Scratch = Rc<RefCell<Vec<u8>>>;

/// Accepts connections until the listener itself fails.
pub(crate) async fn accept(listener: &Listener, mode: Mode, stop: &LocalStop) -> io::Result<()> {
    let scratch: Scratch = Rc::new(RefCell::new(vec![0; CHUNK]));
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if accept_error_is_fatal(&error) => return Err(error),
            Err(error) => {
                tracing::warn!("accept: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let (scratch, open) = (scratch.clone(), stop.open());
        tokio::task::spawn_local(async move {
            let result = connection(stream, mode, &scratch).await;
            drop(open);
            if let Err(error) = result {
                tracing::debug!("{from}: {error}");
            }
        });
    }
}

/// Accepts connections to echo, if there is such a listener.
pub(crate) async fn accept_echo(listener: Option<&Listener>, stop: &LocalStop) -> io::Result<()> {
    match listener {
        Some(listener) => accept(listener, Mode::Echo, stop).await,
        None => std::future::pending().await,
    }
}

async fn connection(mut stream: Stream, mode: Mode, scratch: &Scratch) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match mode {
        Mode::Echo => echo(&mut stream, scratch).await?,
        Mode::Sink => while stream.read_with(scratch, |bytes| bytes.len()).await? > 0 {},
        Mode::Source => source(&stream, scratch).await?,
    }
    stream.shutdown().await
}

/// Echoes through the core's buffer. Only bytes that the peer does not take at once get their own
/// memory, and nothing more is read before they are sent.
async fn echo(stream: &mut Stream, scratch: &Scratch) -> io::Result<()> {
    loop {
        let rest = poll_fn(|cx| {
            let mut scratch = scratch.borrow_mut();
            let mut buf = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut buf))?;
            let read = buf.filled();
            if read.is_empty() {
                return Poll::Ready(Ok(None));
            }
            let sent = match Pin::new(&mut *stream).poll_write(cx, read) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => 0,
            };
            Poll::Ready(io::Result::Ok(Some(read[sent..].to_vec())))
        })
        .await?;
        match rest {
            None => return Ok(()),
            Some(rest) if rest.is_empty() => {}
            Some(rest) => stream.write_all(&rest).await?,
        }
    }
}

/// Sends until the peer sends FIN or resets.
async fn source(stream: &Stream, scratch: &Scratch) -> io::Result<()> {
    loop {
        tokio::select! {
            biased;
            readable = stream.readable() => {
                readable?;
                match stream.try_read(&mut scratch.borrow_mut()) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(0) => return Ok(()),
                    // A request may arrive first; only the end matters.
                    result => drop(result?),
                }
            }
            writable = stream.writable() => {
                writable?;
                match stream.try_write(&scratch.borrow()) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    result => drop(result?),
                }
            }
        }
    }
}
