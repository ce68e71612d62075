//! The access log: a line per request or L4 connection, written by its own thread.
//!
//! A core only formats into its buffer. Full buffers go to the thread through a bounded channel. If
//! the disk cannot keep up or is full, lines are dropped and counted
//! (`fs_proxy_log_lines_dropped_total`), so that requests do not wait.

use crate::config::LogFormat;
use crate::log_entry::Entry;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A buffer is sent to the thread at this length (about 250 lines), or at this age.
const BUFFER: usize = 32 << 10;
/// Maximum age of a line before it is written.
pub(crate) const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
/// Buffers that may wait for the disk: 2 MiB.
const WAITING: usize = 64;

/// Lines that are in no log, of this process.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Messages to the thread.
pub(crate) enum Message {
    Lines(String),
    /// Look whether the file must be reopened, also without a line.
    Look,
    End,
}

/// The channel to the thread.
pub(crate) type Sender = Arc<SyncSender<Message>>;

/// The writing thread.
pub(crate) struct Writer {
    sender: Sender,
    /// The file may have been renamed: open its name again.
    must_reopen: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Opens the file (`-` is standard output) and starts the thread.
    pub(crate) fn start(path: &Path) -> anyhow::Result<Self> {
        let (path, output) = (path.to_owned(), open(path)?);
        let (sender, receiver) = sync_channel(WAITING);
        let must_reopen = Arc::new(AtomicBool::new(false));
        let reopens = must_reopen.clone();
        let write = move || write(&path, output, &receiver, &reopens);
        let thread = std::thread::Builder::new().name("access-log".into()).spawn(write)?;
        Ok(Self { sender: Arc::new(sender), must_reopen, thread })
    }

    /// Writes further lines to the file that has the name by then.
    pub(crate) fn reopen(&self) {
        self.must_reopen.store(true, Ordering::Relaxed);
        // If the channel is full, the thread looks before it writes the next lines.
        let _ = self.sender.try_send(Message::Look);
    }

    pub(crate) fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// Returns true while a sender exists.
    pub(crate) fn is_used(&self) -> bool {
        Arc::strong_count(&self.sender) > 1
    }

    /// Writes all lines that were sent, and ends.
    pub(crate) fn finish(self) {
        // An error means that the thread has ended already.
        let _ = self.sender.send(Message::End);
        let _ = self.thread.join();
    }
}

fn open(path: &Path) -> anyhow::Result<Box<dyn Write + Send>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    let file = File::options().create(true).append(true).open(path);
    Ok(Box::new(file.map_err(|error| anyhow::anyhow!("access log {}: {error}", path.display()))?))
}

fn write(path: &Path, mut output: Box<dyn Write + Send>, receiver: &Receiver<Message>, must_reopen: &AtomicBool) {
    let mut failing = false;
    while let Ok(message) = receiver.recv() {
        if must_reopen.swap(false, Ordering::Relaxed) {
            match open(path) {
                Ok(file) => output = file,
                Err(error) => tracing::error!("{error:#}: the previous file stays in use"),
            }
        }
        let text = match message {
            Message::Lines(text) => text,
            Message::Look => continue,
            Message::End => return,
        };
        let result = output.write_all(text.as_bytes()).and_then(|()| output.flush());
        let was_failing = std::mem::replace(&mut failing, result.is_err());
        if let Err(error) = result {
            drop_lines(&text);
            // Logged once, not for each buffer, until it works again.
            if !was_failing {
                tracing::error!("access log: {error}");
            }
        }
    }
}

/// Counts lines that are in no log.
fn drop_lines(text: &str) {
    DROPPED.fetch_add(text.bytes().filter(|&byte| byte == b'\n').count() as u64, Ordering::Relaxed);
}

/// Returns the number of lines that are in no log.
pub(crate) fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// A core's part of the access log.
pub(crate) struct AccessLog {
    buffer: RefCell<String>,
    sender: Sender,
    format: LogFormat,
}

impl AccessLog {
    pub(crate) fn new(sender: Sender, format: LogFormat) -> Self {
        Self { buffer: RefCell::new(String::with_capacity(BUFFER + 1024)), sender, format }
    }

    /// Adds a line.
    pub(crate) fn add(&self, entry: &Entry<'_>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        entry.write(self.format, now, &mut self.buffer.borrow_mut());
        if self.buffer.borrow().len() >= BUFFER {
            self.flush();
        }
    }

    /// Sends the buffer to the thread.
    pub(crate) fn flush(&self) {
        if self.buffer.borrow().is_empty() {
            return;
        }
        let text = self.buffer.replace(String::with_capacity(BUFFER + 1024));
        if let Err(TrySendError::Full(Message::Lines(text)) | TrySendError::Disconnected(Message::Lines(text))) =
            self.sender.try_send(Message::Lines(text))
        {
            drop_lines(&text);
        }
    }
}

impl Drop for AccessLog {
    /// Connections that a stop ends add their lines when they are dropped.
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_entry::What;

    #[test]
    fn slow_disk_drops_lines_without_delay() {
        let (sender, receiver) = sync_channel(1);
        let log = AccessLog::new(Arc::new(sender), LogFormat::Plain);
        for number in 0..3 {
            let what = What::Connection(["line 0", "line 1", "line 2"][number]);
            let client = "192.0.2.1:5000".parse().unwrap();
            let (listener, server, took) = ("front", None, Duration::ZERO);
            let entry = Entry { listener, client, server, bytes_in: 0, bytes_out: 0, took, what };
            log.add(&entry);
            log.flush();
        }
        assert_eq!(dropped(), 2);
        assert!(matches!(receiver.recv().unwrap(), Message::Lines(text) if text.ends_with("\"line 0\"\n")));
    }
}
