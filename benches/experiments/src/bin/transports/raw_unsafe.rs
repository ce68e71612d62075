//! The lower bound of any socket: a counter for each direction in its own cache line, and a reader
//! that spins.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

const BYTES: usize = 4096;

/// One end.
pub(crate) struct Raw {
    words: &'static [AtomicU64; BYTES / 8],
    side: usize,
    round: u64,
}

/// Creates the memory.
pub(crate) fn create() -> rustix::io::Result<std::os::fd::OwnedFd> {
    let fd = rustix::fs::memfd_create("raw", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, BYTES as u64)?;
    Ok(fd)
}

impl Raw {
    pub(crate) fn map(fd: impl AsFd, side: usize) -> rustix::io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping of a file that is this long and never unmapped or truncated;
        // page-aligned, atomics only.
        let words = unsafe { &*rustix::mm::mmap(std::ptr::null_mut(), BYTES, prot, flags, fd, 0)?.cast() };
        Ok(Raw { words, side, round: 0 })
    }

    /// Returns a side's counter; the counters are 256 bytes apart.
    fn word(&self, side: usize) -> &AtomicU64 {
        &self.words[side * 32]
    }

    pub(crate) fn send(&mut self) {
        self.round += u64::from(self.side == 0);
        self.word(self.side).store(self.round, Ordering::Release);
    }

    pub(crate) fn receive(&mut self) {
        let expected = self.round + u64::from(self.side == 1);
        while self.word(1 - self.side).load(Ordering::Acquire) != expected {
            std::hint::spin_loop();
        }
        self.round = expected;
    }
}

/// A textbook ring of one producer and one consumer for each direction: free-running byte counts in
/// separate lines, the peer's count cached, without the other parts of a socket.
pub(crate) struct Ring {
    base: *mut u8,
    side: usize,
    tail: u64,
    head: u64,
    /// The peer's counts as last seen: bytes read of ours, bytes written.
    read: u64,
    written: u64,
}

/// Bytes of one direction's ring.
const CAPACITY: usize = 256 << 10;
/// Bytes of one direction: a page of counts, and the ring.
const DIRECTION: usize = 4096 + CAPACITY;
const HEAD: usize = 0;
const TAIL: usize = 256;
const CLOSED: usize = 512;

impl Ring {
    /// Creates the memory.
    pub(crate) fn create() -> rustix::io::Result<std::os::fd::OwnedFd> {
        let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, 2 * DIRECTION as u64)?;
        Ok(fd)
    }

    pub(crate) fn map(fd: impl AsFd, side: usize) -> rustix::io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping of a file that is this long and never unmapped or truncated.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 2 * DIRECTION, prot, flags, fd, 0)? }.cast();
        Ok(Ring { base, side, tail: 0, head: 0, read: 0, written: 0 })
    }

    /// Returns a count of the direction that `side` writes.
    fn word(&self, side: usize, at: usize) -> &AtomicU64 {
        // SAFETY: within the mapping, aligned, only used as an atomic, and mapped for as long as the process lives.
        unsafe { &*self.base.add(side * DIRECTION + at).cast() }
    }

    /// Returns the bytes from `position`, up to `len` of them and the ring's end, in the direction
    /// that `side` writes.
    fn span(&self, side: usize, position: u64, len: usize) -> (*mut u8, usize) {
        let at = position as usize % CAPACITY;
        // SAFETY: `at` is below the ring's capacity, so this is within the mapping.
        let start = unsafe { self.base.add(side * DIRECTION + 4096 + at) };
        (start, len.min(CAPACITY - at))
    }

    pub(crate) fn send(&mut self, mut message: &[u8]) {
        while !message.is_empty() {
            let mut room = CAPACITY - (self.tail - self.read) as usize;
            if room < message.len().min(CAPACITY / 2) {
                self.read = self.word(self.side, HEAD).load(Ordering::Acquire);
                room = CAPACITY - (self.tail - self.read) as usize;
                if room == 0 {
                    std::hint::spin_loop();
                    continue;
                }
            }
            let (to, count) = self.span(self.side, self.tail, message.len().min(room));
            // SAFETY: the producer's bytes: between tail and head + capacity, which the consumer does not touch.
            unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), to, count) };
            self.tail += count as u64;
            self.word(self.side, TAIL).store(self.tail, Ordering::Release);
            message = &message[count..];
        }
    }

    /// Waits for bytes. Returns 0 when the peer has closed.
    pub(crate) fn receive(&mut self, buf: &mut [u8]) -> usize {
        let other = 1 - self.side;
        while self.written == self.head {
            self.written = self.word(other, TAIL).load(Ordering::Acquire);
            if self.written == self.head {
                if self.word(other, CLOSED).load(Ordering::Acquire) != 0 {
                    return 0;
                }
                std::hint::spin_loop();
            }
        }
        let (from, count) = self.span(other, self.head, buf.len().min((self.written - self.head) as usize));
        // SAFETY: the consumer's bytes: between head and tail, which the producer does not touch.
        unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), count) };
        self.head += count as u64;
        self.word(other, HEAD).store(self.head, Ordering::Release);
        count
    }

    pub(crate) fn close(&self) {
        self.word(self.side, CLOSED).store(1, Ordering::Release);
    }
}
