//! A connection of the client, and the names of its errors.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An error of a request, by the name under which it is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong(pub(crate) String);

impl Wrong {
    /// A wrong response.
    pub(crate) fn answer(what: impl std::fmt::Display) -> Wrong {
        Wrong(format!("answer {what}"))
    }

    /// The connection ended; with another one the request may succeed.
    pub(crate) fn ended(&self) -> bool {
        matches!(self.0.as_str(), "closed" | "reset")
    }
}

impl Wrong {
    /// Converts the error of a call: by its kind, or by name and errno.
    pub(crate) fn of(call: &str, error: &std::io::Error) -> Wrong {
        Wrong(match error.kind() {
            ErrorKind::ConnectionRefused => "refused".into(),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => "reset".into(),
            ErrorKind::UnexpectedEof => "closed".into(),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "hung".into(),
            _ => format!("{call}: {error}"),
        })
    }
}

/// A connection, with bytes that were read and not used yet.
pub(crate) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    used: usize,
    /// A byte arrived since this was last set to false.
    pub(crate) heard: bool,
}

impl Wire {
    /// Connects. Timed: connect(2) is non-blocking and followed by poll(2), and the socket has
    /// time-outs.
    pub(crate) fn connect(to: SocketAddr, timed: Option<Duration>) -> Result<Wire, Wrong> {
        let stream = match timed {
            Some(limit) => {
                let stream = TcpStream::connect_timeout(&to, limit).map_err(|error| Wrong::of("connect", &error))?;
                let timed = |error| Wrong::of("time-out", &error);
                stream.set_read_timeout(Some(limit)).map_err(timed)?;
                stream.set_write_timeout(Some(limit)).map_err(timed)?;
                stream
            }
            None => TcpStream::connect(to).map_err(|error| Wrong::of("connect", &error))?,
        };
        stream.set_nodelay(true).map_err(|error| Wrong::of("TCP_NODELAY", &error))?;
        Ok(Wire { stream, buffer: Vec::new(), used: 0, heard: false })
    }

    /// Wraps a connection that a listener accepted.
    pub(crate) fn accepted(stream: TcpStream) -> Wire {
        Wire { stream, buffer: Vec::new(), used: 0, heard: false }
    }

    /// Returns the peer's address.
    pub(crate) fn peer(&self) -> Result<SocketAddr, Wrong> {
        self.stream.peer_addr().map_err(|error| Wrong::of("getpeername", &error))
    }

    /// Writes all.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        self.stream.write_all(bytes).map_err(|error| Wrong::of("write", &error))
    }

    fn more(&mut self) -> Result<usize, Wrong> {
        if self.used > 0 {
            self.buffer.drain(..self.used);
            self.used = 0;
        }
        let mut block = [0; 64 << 10];
        let n = loop {
            match self.stream.read(&mut block) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other.map_err(|error| Wrong::of("read", &error))?,
            }
        };
        self.buffer.extend_from_slice(&block[..n]);
        self.heard |= n > 0;
        Ok(n)
    }

    /// A line without its end.
    pub(crate) fn line(&mut self) -> Result<String, Wrong> {
        loop {
            if let Some(end) = self.buffer[self.used..].iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(&self.buffer[self.used..self.used + end]).trim_end().to_owned();
                self.used += end + 1;
                return Ok(line);
            }
            if self.more()? == 0 {
                return Err(Wrong("closed".into()));
            }
        }
    }

    /// So many bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<Vec<u8>, Wrong> {
        while self.buffer.len() - self.used < len {
            if self.more()? == 0 {
                return Err(Wrong("closed".into()));
            }
        }
        let bytes = self.buffer[self.used..self.used + len].to_vec();
        self.used += len;
        Ok(bytes)
    }

    /// Reads all bytes until the peer's end.
    pub(crate) fn rest(&mut self) -> Result<Vec<u8>, Wrong> {
        while self.more()? > 0 {}
        Ok(self.buffer.split_off(self.used))
    }
}
