//! What a program's calls have moved, and whether it was right. Bytes and datagrams are functions of
//! their position, so none can be lost, doubled or out of order unseen.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;

/// Directions.
pub(crate) const TO_PROGRAM: u64 = 0;
pub(crate) const TO_PEER: u64 = 1;

fn byte(direction: u64, at: u64) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)).wrapping_mul(167).wrapping_add(direction * 85) as u8
}

pub(crate) fn bytes(direction: u64, at: u64, n: usize) -> Vec<u8> {
    (at..at + n as u64).map(|at| byte(direction, at)).collect()
}

/// Datagram `n` of a direction. Some are empty.
pub(crate) fn datagram(direction: u64, n: u64) -> Vec<u8> {
    let size = n.wrapping_mul(2_654_435_761) % 1300;
    bytes(direction, n * 1301, if n % 7 == 3 { 0 } else { size as usize })
}

#[derive(Default)]
pub(crate) struct Flow {
    /// Bytes or datagrams that the program has read and written.
    pub(crate) read: Cell<u64>,
    pub(crate) written: Cell<u64>,
    /// A call has reported the end of what the peer sends: cleanly or not.
    pub(crate) ended: Cell<Option<bool>>,
    /// Errors of calls.
    pub(crate) failed: RefCell<Vec<String>>,
    /// After the program's own SHUT_RD anything can be read.
    pub(crate) any_bytes: Cell<bool>,
    /// The sender of all datagrams.
    pub(crate) peer: Cell<Option<SocketAddr>>,
}

impl Flow {
    fn fail(&self, error: &io::Error) {
        self.failed.borrow_mut().push(format!("{error:?}"));
    }

    pub(crate) fn done(&self, result: io::Result<()>) {
        if let Err(error) = result {
            self.fail(&error);
        }
    }

    fn check(&self, got: &[u8], what: &str) {
        if self.any_bytes.get() {
            return;
        }
        assert!(got.is_empty() || self.ended.get().is_none(), "{what}: bytes after the end");
        let at = self.read.get();
        assert!(got == bytes(TO_PROGRAM, at, got.len()), "{what}: wrong bytes at {at}: {} bytes", got.len());
    }

    pub(crate) fn got(&self, buf: &[u8], result: io::Result<usize>) {
        match result {
            Ok(0) => self.ended.set(self.ended.get().or(Some(true))),
            Ok(n) => {
                self.check(&buf[..n], "read");
                self.read.set(self.read.get() + n as u64);
            }
            Err(error) => {
                self.fail(&error);
                self.ended.set(Some(false));
            }
        }
    }

    pub(crate) fn read(&self, n: usize, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) {
        let mut buf = vec![0; n];
        match read(&mut buf) {
            Err(nothing) if nothing.kind() == io::ErrorKind::WouldBlock => {}
            result => self.got(&buf, result),
        }
    }

    pub(crate) fn peeked(&self, buf: &[u8], result: io::Result<usize>) {
        match result {
            Ok(n @ 1..) => self.check(&buf[..n], "peek"),
            end => self.got(buf, end),
        }
    }

    pub(crate) fn next(&self, n: usize) -> Vec<u8> {
        bytes(TO_PEER, self.written.get(), n)
    }

    pub(crate) fn write_now(&self, n: usize, write: impl FnOnce(&[u8]) -> io::Result<usize>) -> io::Result<usize> {
        write(&self.next(n))
    }

    pub(crate) fn write(&self, n: usize, write: impl FnOnce(&[u8]) -> io::Result<usize>) {
        match self.write_now(n, write) {
            Err(full) if full.kind() == io::ErrorKind::WouldBlock => {}
            result => self.wrote(result),
        }
    }

    pub(crate) fn wrote(&self, result: io::Result<usize>) {
        match result {
            Ok(0) => panic!("a write of nothing"),
            Ok(n) => self.written.set(self.written.get() + n as u64),
            Err(error) => self.fail(&error),
        }
    }

    // ---- datagrams

    fn check_datagram(&self, got: &[u8], from: SocketAddr) {
        let n = self.read.get();
        let text = String::from_utf8_lossy(&got[..got.len().min(40)]);
        assert_eq!(Some(from), self.peer.get(), "the sender of {text}");
        assert!(got == datagram(TO_PROGRAM, n), "datagram {n}: {} bytes are wrong: {text}", got.len());
    }

    pub(crate) fn datagram(&self, buf: &mut [u8], f: impl FnOnce(&mut [u8]) -> io::Result<(usize, SocketAddr)>) {
        match f(buf) {
            Err(nothing) if nothing.kind() == io::ErrorKind::WouldBlock => {}
            result => {
                let (n, from) = result.unwrap();
                self.check_datagram(&buf[..n], from);
                self.read.set(self.read.get() + 1);
            }
        }
    }

    pub(crate) fn peeked_datagram(&self, buf: &[u8], result: io::Result<(usize, SocketAddr)>) {
        let (n, from) = result.unwrap();
        self.check_datagram(&buf[..n], from);
    }

    pub(crate) fn send_now(&self, send: impl FnOnce(&[u8]) -> io::Result<usize>) -> io::Result<usize> {
        send(&datagram(TO_PEER, self.written.get()))
    }

    pub(crate) fn send(&self, send: impl FnOnce(&[u8]) -> io::Result<usize>) {
        match self.send_now(send) {
            Err(full) if full.kind() == io::ErrorKind::WouldBlock => {}
            result => self.sent(result),
        }
    }

    pub(crate) fn sent(&self, result: io::Result<usize>) {
        assert_eq!(result.unwrap(), datagram(TO_PEER, self.written.get()).len());
        self.written.set(self.written.get() + 1);
    }
}
