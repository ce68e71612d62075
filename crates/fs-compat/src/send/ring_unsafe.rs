//! A ring of bytes between two threads: one writes, one reads, neither ever waits for the other.
//!
//! A lock would let a thread that the kernel has taken its CPU from stop a core, and with it all the core's connections.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::ReadBuf;

/// On a cache line of its own: what one side stores the other reads.
#[repr(align(64))]
struct Line(AtomicUsize);

struct Ring {
    bytes: Box<[UnsafeCell<MaybeUninit<u8>>]>,
    /// Bytes written, ever. Stored by the writer alone.
    tail: Line,
    /// Bytes read, ever. Stored by the reader alone; `tail - head` is at most the capacity.
    head: Line,
}

// SAFETY: bytes from `tail` to `head + capacity` are touched by the writer alone, those from `head` to `tail` by the reader
// alone; each hands its bytes over by a release store that the other acquires.
unsafe impl Sync for Ring {}

impl Ring {
    /// Where byte number `at` is, as an offset, and how many follow it up to the end of the memory.
    fn place(&self, at: usize) -> (usize, usize) {
        let offset = at & (self.bytes.len() - 1);
        (offset, self.bytes.len() - offset)
    }

    fn at(&self, offset: usize) -> *mut MaybeUninit<u8> {
        self.bytes[offset].get()
    }
}

/// The end that writes.
pub(super) struct Writer {
    ring: Arc<Ring>,
    /// The reader's `head` as it was last seen.
    head: usize,
}

/// The end that reads.
pub(super) struct Reader {
    ring: Arc<Ring>,
    /// The writer's `tail` as it was last seen.
    tail: usize,
}

/// A ring of `capacity` bytes, a power of two. Its memory is touched as it is used.
pub(super) fn ring(capacity: usize) -> (Writer, Reader) {
    assert!(capacity.is_power_of_two());
    let bytes = std::iter::repeat_with(|| UnsafeCell::new(MaybeUninit::uninit())).take(capacity).collect();
    let ring = Arc::new(Ring { bytes, tail: Line(AtomicUsize::new(0)), head: Line(AtomicUsize::new(0)) });
    (Writer { ring: ring.clone(), head: 0 }, Reader { ring, tail: 0 })
}

impl Writer {
    /// Bytes that fit.
    pub(super) fn room(&mut self) -> usize {
        self.head = self.ring.head.0.load(Ordering::Acquire);
        self.ring.bytes.len() - self.tail().wrapping_sub(self.head)
    }

    /// Everything was read.
    pub(super) fn is_empty(&mut self) -> bool {
        self.room() == self.ring.bytes.len()
    }

    fn tail(&self) -> usize {
        // Nobody else stores it.
        self.ring.tail.0.load(Ordering::Relaxed)
    }

    /// Writes as much as fits, and says how much it was.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> usize {
        let before = bytes.len();
        // At most twice: up to the end of the memory, and from its beginning.
        while !bytes.is_empty() {
            let n = self.fill(|buf| {
                let n = bytes.len().min(buf.remaining());
                buf.put_slice(&bytes[..n]);
                n
            });
            if n == 0 {
                break;
            }
            bytes = &bytes[n..];
        }
        before - bytes.len()
    }

    /// Lets `f` write into the free bytes that lie together; what it has filled is then the reader's.
    pub(super) fn fill<R>(&mut self, f: impl FnOnce(&mut ReadBuf<'_>) -> R) -> R {
        let tail = self.tail();
        let (offset, together) = self.ring.place(tail);
        let free = self.room().min(together);
        // SAFETY: these bytes are within the memory (`place`), and the writer's: `free` of them are not yet to be read, as
        // the reader's head says, which this thread has acquired. There is one writer, and it is borrowed for the call.
        let free = unsafe { std::slice::from_raw_parts_mut(self.ring.at(offset), free) };
        let (start, most) = (free.as_ptr(), free.len());
        let mut buf = ReadBuf::uninit(free);
        let answer = f(&mut buf);
        // `f` may have put another buffer in its place.
        assert!(std::ptr::eq(buf.filled().as_ptr(), start.cast()) && buf.filled().len() <= most, "a strange buffer");
        let filled = buf.filled().len();
        self.ring.tail.0.store(tail.wrapping_add(filled), Ordering::Release);
        answer
    }
}

impl Reader {
    /// What can be read: up to the end of the memory, and from its beginning.
    pub(super) fn data(&mut self) -> (&[u8], &[u8]) {
        self.tail = self.ring.tail.0.load(Ordering::Acquire);
        let head = self.head();
        let len = self.tail.wrapping_sub(head);
        let (offset, together) = self.ring.place(head);
        let first = len.min(together);
        // SAFETY: bytes from `head` to `tail` are the reader's, and were filled by the writer before it stored `tail`, which
        // this thread has acquired. There is one reader, and it is borrowed for as long as the slices live.
        unsafe {
            (
                std::slice::from_raw_parts(self.ring.at(offset).cast(), first),
                std::slice::from_raw_parts(self.ring.at(0).cast(), len - first),
            )
        }
    }

    fn head(&self) -> usize {
        // Nobody else stores it.
        self.ring.head.0.load(Ordering::Relaxed)
    }

    /// Gives `n` bytes of what [`Reader::data`] last showed back to the writer.
    pub(super) fn consume(&mut self, n: usize) {
        let head = self.head();
        assert!(n <= self.tail.wrapping_sub(head), "more than was there");
        self.ring.head.0.store(head.wrapping_add(n), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wrap_around_in_their_order() {
        let (mut writer, mut reader) = ring(8);
        assert_eq!(writer.push(b"abcdef"), 6);
        assert_eq!(reader.data(), (&b"abcdef"[..], &b""[..]));
        reader.consume(5);
        assert_eq!(writer.push(b"ghijklmnop"), 7);
        assert_eq!(writer.push(b"x"), 0);
        assert_eq!(reader.data(), (&b"fgh"[..], &b"ijklm"[..]));
        reader.consume(8);
        assert!(writer.is_empty());
    }

    #[test]
    fn two_threads() {
        let (mut writer, mut reader) = ring(64);
        let total = if cfg!(debug_assertions) { 200_000 } else { 2_000_000 };
        let writing = std::thread::spawn(move || {
            let mut sent = 0usize;
            while sent < total {
                let piece: Vec<u8> = (sent..total.min(sent + 37)).map(|n| n as u8).collect();
                sent += writer.push(&piece);
                std::thread::yield_now();
            }
        });
        let mut got = 0usize;
        while got < total {
            let (first, second) = reader.data();
            let n = first.len() + second.len();
            assert!(first.iter().chain(second).enumerate().all(|(i, &byte)| byte == (got + i) as u8));
            reader.consume(n);
            got += n;
            std::thread::yield_now();
        }
        writing.join().unwrap();
    }

    #[test]
    #[should_panic(expected = "more than was there")]
    fn no_more_is_consumed_than_was_seen() {
        let (mut writer, mut reader) = ring(8);
        writer.push(b"abc");
        reader.consume(1);
    }
}
