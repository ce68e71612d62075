//! A ring of bytes between one writer thread and one reader thread. Neither ever waits for the
//! other.
//!
//! With a lock, a thread that the kernel has preempted could stop a core and all its connections.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::ReadBuf;

/// An index on its own cache line: one side stores it and the other reads it.
#[repr(align(64))]
struct Line(AtomicUsize);

struct Ring {
    bytes: Box<[UnsafeCell<MaybeUninit<u8>>]>,
    /// Total bytes written. Stored by the writer alone.
    tail: Line,
    /// Total bytes read. Stored by the reader alone. `tail - head` is at most the capacity.
    head: Line,
}

// SAFETY: only the writer accesses bytes from `tail` to `head + capacity`, and only the reader
// those from `head` to `tail`. Each hands bytes over by a release store that the other acquires.
unsafe impl Sync for Ring {}

impl Ring {
    /// Returns the offset of byte number `at`, and how many bytes follow it up to the end of the
    /// memory.
    fn place(&self, at: usize) -> (usize, usize) {
        let offset = at & (self.bytes.len() - 1);
        (offset, self.bytes.len() - offset)
    }

    fn at(&self, offset: usize) -> *mut MaybeUninit<u8> {
        self.bytes[offset].get()
    }
}

/// The writing end.
pub(super) struct Writer {
    ring: Arc<Ring>,
    /// The last loaded value of the reader's `head`.
    head: usize,
}

/// The reading end.
pub(super) struct Reader {
    ring: Arc<Ring>,
    /// The last loaded value of the writer's `tail`.
    tail: usize,
}

/// Creates a ring of `capacity` bytes, a power of two. The kernel allocates its pages as they are
/// used.
pub(super) fn ring(capacity: usize) -> (Writer, Reader) {
    assert!(capacity.is_power_of_two());
    let bytes = std::iter::repeat_with(|| UnsafeCell::new(MaybeUninit::uninit())).take(capacity).collect();
    let ring = Arc::new(Ring { bytes, tail: Line(AtomicUsize::new(0)), head: Line(AtomicUsize::new(0)) });
    (Writer { ring: ring.clone(), head: 0 }, Reader { ring, tail: 0 })
}

impl Writer {
    /// Returns how many bytes fit.
    pub(super) fn room(&mut self) -> usize {
        self.head = self.ring.head.0.load(Ordering::Acquire);
        self.ring.bytes.len() - self.tail().wrapping_sub(self.head)
    }

    /// Returns true if all bytes were read.
    pub(super) fn is_empty(&mut self) -> bool {
        self.room() == self.ring.bytes.len()
    }

    fn tail(&self) -> usize {
        // Only this thread stores it.
        self.ring.tail.0.load(Ordering::Relaxed)
    }

    /// Writes as much as fits and returns the number of bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> usize {
        let before = bytes.len();
        // At most two passes: up to the end of the memory, and from its beginning.
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

    /// Lets `f` write into the first contiguous free bytes, and hands the filled part to the
    /// reader.
    pub(super) fn fill<R>(&mut self, f: impl FnOnce(&mut ReadBuf<'_>) -> R) -> R {
        let tail = self.tail();
        let (offset, together) = self.ring.place(tail);
        let free = self.room().min(together);
        // SAFETY: these bytes are within the memory (`place`) and belong to the writer: they are
        // beyond the reader's `head`, which this thread has acquired. There is one writer, and it
        // is borrowed for the call.
        let free = unsafe { std::slice::from_raw_parts_mut(self.ring.at(offset), free) };
        let (start, most) = (free.as_ptr(), free.len());
        let mut buf = ReadBuf::uninit(free);
        let answer = f(&mut buf);
        // `f` may have replaced the buffer.
        assert!(std::ptr::eq(buf.filled().as_ptr(), start.cast()) && buf.filled().len() <= most, "a strange buffer");
        let filled = buf.filled().len();
        self.ring.tail.0.store(tail.wrapping_add(filled), Ordering::Release);
        answer
    }
}

impl Reader {
    /// Returns the readable bytes: up to the end of the memory, and from its beginning.
    pub(super) fn data(&mut self) -> (&[u8], &[u8]) {
        self.tail = self.ring.tail.0.load(Ordering::Acquire);
        let head = self.head();
        let len = self.tail.wrapping_sub(head);
        let (offset, together) = self.ring.place(head);
        let first = len.min(together);
        // SAFETY: bytes from `head` to `tail` belong to the reader. The writer filled them before
        // it stored `tail`, which this thread has acquired. There is one reader, and it is borrowed
        // while the slices live.
        unsafe {
            (
                std::slice::from_raw_parts(self.ring.at(offset).cast(), first),
                std::slice::from_raw_parts(self.ring.at(0).cast(), len - first),
            )
        }
    }

    fn head(&self) -> usize {
        // Only this thread stores it.
        self.ring.head.0.load(Ordering::Relaxed)
    }

    /// Returns `n` bytes that [`Reader::data`] last returned to the writer.
    pub(super) fn consume(&mut self, n: usize) {
        let head = self.head();
        assert!(n <= self.tail.wrapping_sub(head), "consumed more bytes than data() returned");
        self.ring.head.0.store(head.wrapping_add(n), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_their_order_across_the_wrap() {
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
    #[should_panic(expected = "consumed more bytes than data() returned")]
    fn reader_cannot_consume_more_than_it_saw() {
        let (mut writer, mut reader) = ring(8);
        writer.push(b"abc");
        reader.consume(1);
    }
}
