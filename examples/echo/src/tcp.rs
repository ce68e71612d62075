//! The TCP modes.

use fs_example_common::net::accept_error_is_fatal;
use fs_example_common::{Listener, LocalStop, Stream};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Echo,
    Sink,
    Source,
}

/// Bytes moved by one call. Large enough that the call does not count, small enough to stay in the second-level cache.
const CHUNK: usize = 64 << 10;

/// One buffer for all connections of a core: between two awaits only one of them uses it, so an idle one holds none.
type Scratch = Rc<RefCell<Vec<u8>>>;

/// Accepts until an error that concerns the listener itself.
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

async fn connection(mut stream: Stream, mode: Mode, scratch: &Scratch) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match mode {
        Mode::Echo => echo(&mut stream, scratch).await?,
        Mode::Sink => while read(&stream, scratch).await? > 0 {},
        Mode::Source => source(&stream, scratch).await?,
    }
    stream.shutdown().await
}

/// Echoes through the core's buffer; only what the peer does not take at once gets memory of its own, and nothing more
/// is read before that has gone.
async fn echo(stream: &mut Stream, scratch: &Scratch) -> io::Result<()> {
    loop {
        stream.readable().await?;
        let mut rest = Vec::new();
        {
            let mut buffer = scratch.borrow_mut();
            let len = match stream.try_read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            let sent = match stream.try_write(&buffer[..len]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                sent => sent?,
            };
            if sent < len {
                rest.extend_from_slice(&buffer[sent..len]);
            }
        }
        if !rest.is_empty() {
            stream.write_all(&rest).await?;
        }
    }
}

async fn read(stream: &Stream, scratch: &Scratch) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_read(&mut scratch.borrow_mut()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

/// Sends until the peer has finished or gone.
async fn source(stream: &Stream, scratch: &Scratch) -> io::Result<()> {
    loop {
        tokio::select! {
            biased;
            read = read(stream, scratch) => {
                // A request may come first: only the end matters.
                if read? == 0 {
                    return Ok(());
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
