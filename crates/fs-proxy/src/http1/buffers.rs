//! Temporary memory of a core's connections.
//!
//! Bytes are read into the core's single scratch buffer and written from there. A connection only
//! has memory for bytes that must be kept: half a head, bytes that a peer does not take, a request
//! that may be sent again. All of it is counted. If much of it is in use, each connection only
//! reads small pieces.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Number and size of unused buffers that are kept: at most 1 MiB per core.
const FREE: usize = 64;
const FREE_SIZE: usize = 16 << 10;
/// Kept bytes of a core above which connections read small pieces. Too low: bulk transfers become
/// slow because of a few slow clients. Too high: that many slow peers use that much memory.
const PLENTY: usize = 32 << 20;
/// Above this, a head that does not arrive in one piece is refused.
pub(crate) const MAX: usize = 64 << 20;
/// Size of these small pieces.
const SMALL: usize = 2 << 10;

/// A core's buffers.
#[derive(Default)]
pub(crate) struct Buffers {
    free: RefCell<Vec<Vec<u8>>>,
    /// A buffer to write from. It is empty between uses.
    pub(crate) out: RefCell<Vec<u8>>,
    kept: Cell<usize>,
}

impl Buffers {
    /// An empty buffer.
    #[inline]
    pub(crate) fn take(&self) -> Vec<u8> {
        self.free.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(1024))
    }

    /// Returns a buffer.
    #[inline]
    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        let mut free = self.free.borrow_mut();
        if (1..=FREE_SIZE).contains(&buffer.capacity()) && free.len() < FREE {
            buffer.clear();
            free.push(buffer);
        }
    }

    /// Returns how much may be read at once into a scratch buffer of this length. All of it may
    /// have to be kept.
    #[inline]
    pub(crate) fn piece(&self, len: usize) -> usize {
        if self.kept.get() < PLENTY { len } else { len.min(SMALL) }
    }

    /// Returns true if only necessary bytes should be kept.
    pub(crate) fn is_full(&self) -> bool {
        self.kept.get() >= MAX
    }

    fn count(&self, before: usize, now: usize) {
        self.kept.set(self.kept.get() - before + now);
    }
}

/// Bytes that a connection keeps for later, first in, first out.
pub(crate) struct Kept {
    buffers: Rc<Buffers>,
    bytes: Vec<u8>,
    /// Offset of the first byte that is not consumed.
    at: usize,
}

impl Kept {
    pub(crate) fn new(buffers: &Rc<Buffers>) -> Self {
        Self { buffers: buffers.clone(), bytes: Vec::new(), at: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.bytes.capacity() == 0 {
            self.bytes = self.buffers.take();
        } else if self.at > self.bytes.len() / 2 {
            self.bytes.drain(..self.at);
            self.buffers.count(self.at, 0);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
        self.buffers.count(0, bytes.len());
    }

    /// Drops the first `number` bytes. An empty value has no memory.
    #[inline]
    pub(crate) fn consume(&mut self, number: usize) {
        self.at += number;
        if self.at >= self.bytes.len() && !self.bytes.is_empty() {
            self.clear();
        }
    }

    /// Moves the bytes out.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.buffers.count(self.bytes.len(), 0);
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..std::mem::take(&mut self.at));
        bytes
    }

    /// Drops all.
    pub(crate) fn clear(&mut self) {
        let bytes = self.take();
        self.buffers.give(bytes);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_bytes_are_counted_until_consumed() {
        let buffers = Rc::new(Buffers::default());
        let (mut a, mut b) = (Kept::new(&buffers), Kept::new(&buffers));
        a.keep(b"hello");
        b.keep(&vec![1; PLENTY]);
        assert_eq!(buffers.piece(1 << 16), SMALL);
        a.consume(4);
        a.keep(b"!!");
        assert_eq!((a.bytes(), buffers.kept.get()), (&b"o!!"[..], 3 + PLENTY));
        assert_eq!(b.take().len(), PLENTY);
        assert_eq!(buffers.piece(1 << 16), 1 << 16);
        a.consume(3);
        assert!(a.is_empty());
        drop((a, b));
        assert_eq!(buffers.kept.get(), 0);
    }

    #[test]
    fn number_of_unused_buffers_is_limited() {
        let buffers = Buffers::default();
        for size in [FREE_SIZE + 1, 0] {
            buffers.give(Vec::with_capacity(size));
        }
        assert!(buffers.free.borrow().is_empty());
        (0..2 * FREE).for_each(|_| buffers.give(Vec::with_capacity(64)));
        assert_eq!(buffers.free.borrow().len(), FREE);
    }
}
