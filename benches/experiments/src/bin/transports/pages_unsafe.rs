//! Messages whose pages move instead of their bytes, as SocksDirect does for those of 16 KiB and
//! more (its section 4.3): the lowest cost for one process. The sender maps a free slot of shared
//! memory over its buffer and announces it. The receiver maps the slot over its own buffer, which
//! returns the previous slot. Each side makes one mmap(2) of the whole message with its pages
//! populated. No byte is copied. The only byte written is a number that proves which pages the
//! receiver sees.
//!
//! A socket would have more work: buffers that are not page-aligned, memory of the program that is
//! not shared, a sender that writes into its buffer again (copy on write), a part of a message. So
//! this is a bound.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use rustix::mm::{MapFlags, ProtFlags};

const PAGE: usize = 4096;
/// Slots of memory: one at each end, two in transit.
const SLOTS: u64 = 4;
/// Words of the page of counts, each on its own cache line: messages announced, slots returned,
/// batches confirmed, close of the sender.
const ANNOUNCED: usize = 0;
const FREED: usize = 32;
const CONFIRMED: usize = 64;
const CLOSED: usize = 96;

/// One end: side 0 sends messages, side 1 confirms them.
pub(crate) struct Pages {
    counts: &'static [AtomicU64; PAGE / 8],
    memory: OwnedFd,
    /// The buffer of this end's program, `len` bytes.
    buffer: *mut u8,
    len: usize,
    /// Messages sent or received, and confirmations sent or received.
    messages: u64,
    confirmed: u64,
    side: usize,
}

/// Creates the memory for messages of `len` bytes.
pub(crate) fn create(len: usize) -> rustix::io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("pages", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, PAGE as u64 + SLOTS * len as u64)?;
    Ok(fd)
}

impl Pages {
    pub(crate) fn map(memory: OwnedFd, len: usize, side: usize) -> Result<Self> {
        ensure!(len.is_multiple_of(PAGE) && len > 0, "pages move whole: messages of multiples of {PAGE} bytes");
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping of a file that is at least this long and never truncated;
        // page-aligned, atomics only, never unmapped.
        let counts = unsafe { &*rustix::mm::mmap(null, PAGE, prot, flags, memory.as_fd(), 0)?.cast() };
        // SAFETY: a new anonymous mapping.
        let buffer = unsafe { rustix::mm::mmap_anonymous(null, len, prot, MapFlags::PRIVATE)? }.cast();
        Ok(Pages { counts, memory, buffer, len, messages: 0, confirmed: 0, side })
    }

    /// Maps a message's slot over the buffer.
    fn move_in(&self, message: u64) -> Result<()> {
        let at = PAGE as u64 + message % SLOTS * self.len as u64;
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE);
        // SAFETY: replaces the buffer's own mapping, to which no reference exists.
        unsafe { rustix::mm::mmap(self.buffer.cast(), self.len, prot, flags, self.memory.as_fd(), at)? };
        Ok(())
    }

    fn first_word(&self) -> &AtomicU64 {
        // SAFETY: the buffer is mapped, page-aligned and at least a page long; this word is only
        // used as an atomic.
        unsafe { &*self.buffer.cast() }
    }

    /// Sends a message, or confirms received messages.
    pub(crate) fn send(&mut self) -> Result<()> {
        if self.side == 1 {
            self.confirmed += 1;
            self.counts[CONFIRMED].store(self.confirmed, Ordering::Release);
            return Ok(());
        }
        while self.messages - self.counts[FREED].load(Ordering::Acquire) >= SLOTS {
            std::hint::spin_loop();
        }
        self.move_in(self.messages)?;
        self.first_word().store(self.messages, Ordering::Relaxed);
        self.messages += 1;
        self.counts[ANNOUNCED].store(self.messages, Ordering::Release);
        Ok(())
    }

    /// Waits for the receiver's next confirmation.
    pub(crate) fn confirmed(&mut self) {
        self.confirmed += 1;
        while self.counts[CONFIRMED].load(Ordering::Acquire) < self.confirmed {
            std::hint::spin_loop();
        }
    }

    /// Waits for a message. Returns its bytes, 0 when the sender has closed.
    pub(crate) fn receive(&mut self) -> Result<usize> {
        while self.counts[ANNOUNCED].load(Ordering::Acquire) == self.messages {
            if self.counts[CLOSED].load(Ordering::Acquire) != 0 {
                return Ok(0);
            }
            std::hint::spin_loop();
        }
        self.move_in(self.messages)?;
        let number = self.first_word().load(Ordering::Relaxed);
        ensure!(number == self.messages, "message {number} came as {}", self.messages);
        // The previous slot is no longer mapped here.
        self.counts[FREED].store(self.messages, Ordering::Release);
        self.messages += 1;
        Ok(self.len)
    }

    pub(crate) fn close(&self) {
        if self.side == 0 {
            self.counts[CLOSED].store(1, Ordering::Release);
        }
    }
}
