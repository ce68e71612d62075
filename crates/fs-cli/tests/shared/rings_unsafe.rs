//! The rings of an AF_XDP socket, to which a program may write any word at any time.
#![allow(unsafe_code)]

use fs_xdp::QueueConfig;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// `struct xdp_ring_offset` of linux/if_xdp.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Offsets {
    producer: u64,
    consumer: u64,
    descriptors: u64,
    flags: u64,
}

/// One ring, mapped until the process ends.
struct Ring {
    memory: *mut u8,
    length: usize,
    offsets: Offsets,
}

// SAFETY: the mapping belongs to no thread, and every access to it is atomic.
unsafe impl Send for Ring {}

/// RX, TX, fill and completion ring, in this order.
pub(crate) struct Rings {
    socket: OwnedFd,
    rings: [Ring; 4],
    sent: u32,
    /// Entries of each ring.
    entries: [u32; 4],
}

const TX: usize = 1;
const FILL: usize = 2;
const COMPLETION: usize = 3;

/// The descriptor is not the last one of its packet.
pub(crate) const CONTINUED: u32 = 1 << 0;
/// Metadata (such as a place for a checksum) lies before the packet.
pub(crate) const METADATA: u32 = 1 << 1;

impl Rings {
    pub(crate) fn map(socket: OwnedFd, sizes: QueueConfig) -> io::Result<Self> {
        let mut all = [Offsets::default(); 4];
        let mut length = size_of_val(&all) as libc::socklen_t;
        // SAFETY: a live buffer of `length` bytes.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_XDP,
                libc::XDP_MMAP_OFFSETS,
                all.as_mut_ptr().cast(),
                &mut length,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let parts = [
            (libc::XDP_PGOFF_RX_RING, sizes.rx, 16),
            (libc::XDP_PGOFF_TX_RING, sizes.tx, 16),
            (libc::XDP_UMEM_PGOFF_FILL_RING as i64, sizes.fill, 8),
            (libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64, sizes.completion, 8),
        ];
        let map = |number: usize| {
            let ((page, entries, size), offsets) = (parts[number], all[number]);
            let length = offsets.descriptors as usize + entries as usize * size;
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            // SAFETY: a new mapping, which nothing else uses.
            let memory =
                unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, socket.as_raw_fd(), page) };
            match memory == libc::MAP_FAILED {
                true => Err(io::Error::last_os_error()),
                false => Ok(Ring { memory: memory.cast(), length, offsets }),
            }
        };
        let rings = [map(0)?, map(1)?, map(2)?, map(3)?];
        Ok(Self { socket, rings, sent: 0, entries: parts.map(|(_, entries, _)| entries) })
    }

    /// Sends descriptors (address, length, options), as they are.
    pub(crate) fn transmit(&mut self, descriptors: &[(u64, u32, u32)]) {
        let ring = &self.rings[TX];
        for (address, length, options) in descriptors {
            let at = ring.offsets.descriptors as usize + (self.sent % self.entries[TX]) as usize * 16;
            ring.store64(at, *address);
            ring.store32(at + 8, *length);
            ring.store32(at + 12, *options);
            self.sent += 1;
        }
        ring.store32(ring.offsets.producer as usize, self.sent);
        self.kick();
    }

    /// Overwrites one ring with noise, in which half of the descriptors and addresses lie in the memory
    /// of this size. Adds `producer` to its producer index.
    pub(crate) fn scribble(&mut self, which: usize, memory: u64, seed: u64, producer: u32) {
        let mut random = seed | 1;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 32) as u32
        };
        let ring = &self.rings[which];
        let at = ring.offsets.producer as usize;
        let before = ring.load32(at);
        (0..ring.length / 4).filter(|word| word * 4 != at).for_each(|word| {
            let value = next();
            // Half of the words are small, like plausible indexes and lengths.
            ring.store32(word * 4, if value & 1 == 0 { value >> 1 } else { value >> 1 & 0xfff });
        });
        // The kernel takes half of what follows: words above are addresses beyond any memory.
        let first = ring.offsets.descriptors as usize;
        let (entries, size) = (self.entries[which] as usize, [16, 16, 8, 8][which]);
        for entry in (0..entries).map(|entry| first + entry * size).filter(|_| which == TX || which == FILL) {
            if next() & 1 == 0 {
                let address = u64::from(next()) % memory;
                // Some begin with a chunk, and some chunks are in the ring several times.
                let address = [address, address & !0xfff, address & 0x7000][next() as usize % 3];
                ring.store64(entry, address);
            }
            if which == TX {
                ring.store32(entry + 8, [0, 1, 14, 60, 4096, u32::MAX][next() as usize % 6]);
                ring.store32(entry + 12, [0, 1, 2, next()][next() as usize % 4]);
            }
        }
        ring.store32(at, before.wrapping_add(producer));
        self.kick();
    }

    /// Takes what is in the completion ring, without which the kernel soon sends nothing more.
    pub(crate) fn take_completions(&self) {
        let ring = &self.rings[COMPLETION];
        ring.store32(ring.offsets.consumer as usize, ring.load32(ring.offsets.producer as usize));
    }

    fn kick(&self) {
        // SAFETY: no buffer.
        unsafe { libc::sendto(self.socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
    }
}

impl Ring {
    fn load32(&self, at: usize) -> u32 {
        assert!(at + 4 <= self.length && at.is_multiple_of(4));
        // SAFETY: within the mapping, aligned; the kernel shares it, so the access is atomic.
        unsafe { AtomicU32::from_ptr(self.memory.add(at).cast()) }.load(Ordering::Acquire)
    }

    fn store32(&self, at: usize, value: u32) {
        assert!(at + 4 <= self.length && at.is_multiple_of(4));
        // SAFETY: within the mapping, aligned; the kernel shares it, so the access is atomic.
        unsafe { AtomicU32::from_ptr(self.memory.add(at).cast()) }.store(value, Ordering::Release);
    }

    fn store64(&self, at: usize, value: u64) {
        assert!(at + 8 <= self.length && at.is_multiple_of(8));
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.memory.add(at).cast()) }.store(value, Ordering::Release);
    }
}
