//! The access log: a line per request or L4 connection, written by its own thread.
//!
//! A core only formats into its buffer. Full buffers go to the thread through a bounded channel. If
//! the disk cannot keep up, lines are dropped and counted (`fs_proxy_log_lines_dropped_total`), so
//! that requests do not wait.

use crate::config::LogFormat;
use crate::log_entry::Entry;
use fs_stacks::counters::Counter;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A buffer is sent to the thread at this length (about 250 lines), or at this age.
const BUFFER: usize = 32 << 10;
/// Maximum age of a line before it is written.
pub(crate) const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
/// Buffers that may wait for the disk: 2 MiB.
const WAITING: usize = 64;

/// Messages to the thread.
pub(crate) enum Message {
    Lines(String),
    /// The file may have been renamed: open its name again.
    Reopen,
    End,
}

/// The channel to the thread.
pub(crate) type Sender = Arc<SyncSender<Message>>;

/// The writing thread.
pub(crate) struct Writer {
    sender: Sender,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Opens the file (`-` is standard output) and starts the thread.
    pub(crate) fn start(path: &Path) -> anyhow::Result<Self> {
        let (path, output) = (path.to_owned(), open(path)?);
        let (sender, receiver) = sync_channel(WAITING);
        let thread =
            std::thread::Builder::new().name("access-log".into()).spawn(move || write(&path, output, &receiver))?;
        Ok(Self { sender: Arc::new(sender), thread })
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

fn write(path: &Path, mut output: Box<dyn Write + Send>, receiver: &Receiver<Message>) {
    let mut failing = false;
    while let Ok(message) = receiver.recv() {
        let text = match message {
            Message::Lines(text) => text,
            Message::Reopen => {
                match open(path) {
                    Ok(file) => output = file,
                    Err(error) => tracing::error!("{error:#}: the previous file stays in use"),
                }
                continue;
            }
            Message::End => return,
        };
        let result = output.write_all(text.as_bytes()).and_then(|()| output.flush());
        match result {
            Ok(()) => failing = false,
            Err(error) if !failing => {
                // Logged once, not for each buffer, until it works again.
                tracing::error!("access log: {error}");
                failing = true;
            }
            Err(_) => {}
        }
    }
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
    pub(crate) fn add(&self, entry: &Entry<'_>, dropped: &Counter) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        entry.write(self.format, now, &mut self.buffer.borrow_mut());
        if self.buffer.borrow().len() >= BUFFER {
            self.flush(dropped);
        }
    }

    /// Sends the buffer to the thread.
    pub(crate) fn flush(&self, dropped: &Counter) {
        if self.buffer.borrow().is_empty() {
            return;
        }
        let text = self.buffer.replace(String::with_capacity(BUFFER + 1024));
        let lines = text.bytes().filter(|&byte| byte == b'\n').count() as u64;
        if self.sender.try_send(Message::Lines(text)).is_err() {
            dropped.add(lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_entry::What;

    #[test]
    fn slow_disk_drops_lines_without_delay() {
        let (sender, receiver) = sync_channel(1);
        let (log, dropped) = (AccessLog::new(Arc::new(sender), LogFormat::Plain), Counter::default());
        for number in 0..3 {
            let what = What::Connection(["line 0", "line 1", "line 2"][number]);
            let client = "192.0.2.1:5000".parse().unwrap();
            let (listener, server, took) = ("front", None, Duration::ZERO);
            let entry = Entry { listener, client, server, bytes_in: 0, bytes_out: 0, took, what };
            log.add(&entry, &dropped);
            log.flush(&dropped);
        }
        assert_eq!(dropped.value(), 2);
        assert!(matches!(receiver.recv().unwrap(), Message::Lines(text) if text.ends_with("\"line 0\"\n")));
    }
}
