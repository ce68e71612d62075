//! The access log: a line per request or L4 connection, written by its own thread.
//!
//! A core only formats into its buffer. Full buffers go to the thread through a bounded channel. If
//! the disk cannot keep up, lines are dropped and counted (`fs_proxy_log_lines_dropped_total`), so
//! that requests do not wait.

use fs_example_common::counters::Counter;
use std::cell::RefCell;
use std::fmt::{self, Write as _};
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

/// One core's side.
pub(crate) struct AccessLog {
    buffer: RefCell<String>,
    sender: Sender,
}

impl AccessLog {
    pub(crate) fn new(sender: Sender) -> Self {
        Self { buffer: RefCell::new(String::with_capacity(BUFFER + 1024)), sender }
    }

    /// Adds a line, with the time before it.
    pub(crate) fn line(&self, line: fmt::Arguments<'_>, dropped: &Counter) {
        {
            let mut buffer = self.buffer.borrow_mut();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            // Writing to a String cannot fail.
            let _ = writeln!(buffer, "{} {line}", Timestamp(now));
        }
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

/// RFC 3339, in UTC, with milliseconds.
struct Timestamp(Duration);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0.as_secs() / 86_400, self.0.as_secs() % 86_400);
        let (year, month, day) = date(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", self.0.subsec_millis())
    }
}

/// The Gregorian date of a day since 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // Years start in March here, so that the leap day is the last of a year. 719468 days are
    // between 0000-03-01 and 1970.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps() {
        let at = |seconds, ms| Timestamp(Duration::from_secs(seconds) + Duration::from_millis(ms)).to_string();
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400, 7), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(1_709_251_199, 999), "2024-02-29T23:59:59.999Z");
        assert_eq!(at(4_102_444_799, 0), "2099-12-31T23:59:59.000Z");
    }

    #[test]
    fn slow_disk_drops_lines_without_delay() {
        let (sender, receiver) = sync_channel(1);
        let (log, dropped) = (AccessLog::new(Arc::new(sender)), Counter::default());
        for number in 0..3 {
            log.line(format_args!("line {number}"), &dropped);
            log.flush(&dropped);
        }
        assert_eq!(dropped.value(), 2);
        assert!(matches!(receiver.recv().unwrap(), Message::Lines(text) if text.ends_with("Z line 0\n")));
    }
}
