//! Messages whose pages move instead of their bytes, as SocksDirect does it for those of 16 KiB and more (its section 4.3): the
//! least that a process can do for that by itself. The sender maps a free slot of shared memory over its buffer and
//! announces it; the receiver maps it over its own, which gives back the slot before. One mmap(2) of the whole message for each
//! side, with its pages put in; no byte is copied, and none written but a number that proves whose pages the receiver sees.
//!
//! A socket would have to do more: buffers that do not begin with a page, memory of the program that is not shared, a sender
//! that writes into its buffer again (copy on write), a part of a message. So this is a bound.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use rustix::mm::{MapFlags, ProtFlags};

const PAGE: usize = 4096;
/// Slots of memory: one at each end, two on their way.
const SLOTS: u64 = 4;
/// Words of the page of counts, a line apart each: messages announced, slots given back, batches confirmed, the sender has closed.
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
    /// Messages sent or received, and confirmations given or seen.
    messages: u64,
    confirmed: u64,
    side: usize,
}

/// The memory for messages of `len` bytes.
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
        // SAFETY: a new mapping of a file that is at least as long and never cut; page-aligned, atomics only, never unmapped.
        let counts = unsafe { &*rustix::mm::mmap(null, PAGE, prot, flags, memory.as_fd(), 0)?.cast() };
        // SAFETY: a new mapping, of nothing.
        let buffer = unsafe { rustix::mm::mmap_anonymous(null, len, prot, MapFlags::PRIVATE)? }.cast();
        Ok(Pages { counts, memory, buffer, len, messages: 0, confirmed: 0, side })
    }

    /// Slot of a message over the buffer.
    fn move_in(&self, message: u64) -> Result<()> {
        let at = PAGE as u64 + message % SLOTS * self.len as u64;
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE);
        // SAFETY: over the buffer's own mapping, to which nobody has a reference.
        unsafe { rustix::mm::mmap(self.buffer.cast(), self.len, prot, flags, self.memory.as_fd(), at)? };
        Ok(())
    }

    fn first_word(&self) -> &AtomicU64 {
        // SAFETY: the buffer is mapped, page-aligned and at least a page long; this word is only used as an atomic.
        unsafe { &*self.buffer.cast() }
    }

    /// Sends a message, or confirms what has come.
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

    /// Waits until the receiver confirms once more.
    pub(crate) fn confirmed(&mut self) {
        self.confirmed += 1;
        while self.counts[CONFIRMED].load(Ordering::Acquire) < self.confirmed {
            std::hint::spin_loop();
        }
    }

    /// Waits for a message; its bytes, 0 when the sender has closed.
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
        // The one before is not mapped here any more.
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
