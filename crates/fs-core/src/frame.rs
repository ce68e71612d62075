//! Frames and the pools that own their memory.
//!
//! A [`Frame`] is a move-only handle: `chunk` names a fixed-size piece of a pool's memory, and
//! `off`/`len` name the bytes of it that are in use. It is never `Copy` or `Clone`, so exactly one
//! owner holds it: the link's ring, a batch, a receive queue, a send queue, or the pool's free
//! list. [`FramePool::free`] returns a frame to its pool. A frame that goes out of scope leaks its
//! chunk, which the simulation's oracle detects (`in_use` must return to zero).
//!
//! ## Access rules
//! 1. Only a pool makes frames ([`Frame::from_raw`], [`Frame::twin`]), and only for chunks that it
//!    has taken from its free list.
//! 2. A chunk belongs to one core at a time. Sending a frame to another core moves the chunk.
//! 3. [`FramePool::share`] makes a second handle to the same chunk (the send queue keeps one while
//!    the device reads the other). While [`FramePool::is_shared`] is true, nobody writes to the
//!    chunk.
//! 4. Packets larger than a chunk are chains: every frame but the last has [`Frame::more`] set.

use core::fmt;

/// Headroom in front of the data of every allocated frame, in bytes: Ethernet + one VLAN tag (18),
/// IPv6 (40), TCP with all options (60) and the AF_XDP TX metadata (16). Rounded up so that the
/// payload starts on a cache line. Too low: the header needs a frame of its own. Too high: payload
/// space is lost.
pub const HEADROOM: u16 = 192;

/// Bit positions of `off` and `len` in a [`Frame`]'s number. The bits below contain the chunk's
/// number, whose top bit is `more`.
const OFF: u32 = 32;
const LEN: u32 = 48;
const MORE: u64 = 1 << 31;
/// Added to a frame's number to extend it by one byte at the front: `len` grows and `off` shrinks.
const FRONT: u64 = (1 << LEN) - (1 << OFF);

/// A move-only handle to some bytes of one chunk of a [`FramePool`].
///
/// A single number, so that a handle can be copied right after a change. A load that spans several
/// narrower stores stalls until these stores, and earlier stores that missed the cache, have left
/// the store buffer.
#[must_use = "a frame must be given back to its pool"]
#[derive(PartialEq, Eq)]
pub struct Frame(u64);

impl Frame {
    /// Makes the handle for `len` bytes at `off` of `chunk`. Only for pools and links: see access
    /// rule 1.
    #[inline]
    pub fn from_raw(chunk: u32, off: u16, len: u16) -> Self {
        debug_assert!(u64::from(chunk) & MORE == 0);
        Self(u64::from(len) << LEN | u64::from(off) << OFF | u64::from(chunk))
    }

    /// Returns the chunk's number in its pool.
    #[inline]
    pub fn chunk(&self) -> u32 {
        (self.0 & (MORE - 1)) as u32
    }

    /// Returns the offset of the first used byte from the start of the chunk.
    #[inline]
    pub fn off(&self) -> usize {
        usize::from((self.0 >> OFF) as u16)
    }

    /// Returns number of used bytes.
    #[inline]
    pub fn len(&self) -> usize {
        (self.0 >> LEN) as usize
    }

    /// Returns true if no byte is in use.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the next frame of the batch continues the same packet.
    #[inline]
    pub fn more(&self) -> bool {
        self.0 & MORE != 0
    }

    /// Marks whether the next frame of the batch continues the same packet.
    #[inline]
    pub fn set_more(&mut self, more: bool) {
        self.0 = self.0 & !MORE | if more { MORE } else { 0 };
    }

    /// Removes `n` bytes from the front. `n` is at most `len()`.
    #[inline]
    pub fn trim_front(&mut self, n: usize) {
        debug_assert!(n <= self.len());
        self.0 = self.0.wrapping_sub(n as u64 * FRONT);
    }

    /// Keeps the first `n` bytes. `n` is at most `len()`.
    #[inline]
    pub fn truncate(&mut self, n: usize) {
        debug_assert!(n <= self.len());
        self.0 = self.0 & ((1 << LEN) - 1) | (n as u64) << LEN;
    }

    /// Grows by `n` bytes towards the front (into the headroom). `n` is at most `off()`.
    #[inline]
    pub fn grow_front(&mut self, n: usize) {
        debug_assert!(n <= self.off());
        self.0 = self.0.wrapping_add(n as u64 * FRONT);
    }

    /// Grows by `n` bytes at the end. The pool checks the chunk's bound when the bytes are
    /// accessed.
    #[inline]
    pub fn grow_back(&mut self, n: usize) {
        debug_assert!(self.len() + n <= usize::from(u16::MAX));
        self.0 = self.0.wrapping_add((n as u64) << LEN);
    }

    /// Moves the handle out and leaves an empty one, for slots of a batch that are consumed.
    #[inline]
    pub(crate) fn take(&mut self) -> Frame {
        core::mem::replace(self, Frame(0))
    }

    /// Returns a second handle to the same bytes. Only for pools, which count handles.
    #[inline]
    pub fn twin(&self) -> Frame {
        Frame(self.0)
    }

    /// Consumes the handle. Only for pools and links that put the chunk on a list of their own.
    #[inline]
    pub fn into_raw(self) -> (u32, u16, u16) {
        (self.chunk(), self.off() as u16, self.len() as u16)
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({}@{}+{}{})", self.chunk(), self.off(), self.len(), if self.more() { " more" } else { "" })
    }
}

/// One core's supply of frames. See the module's access rules.
pub trait FramePool {
    /// Takes a free chunk. The frame starts at [`HEADROOM`] and is empty. Returns `None` if the
    /// pool is empty.
    fn alloc(&mut self) -> Option<Frame>;
    /// Returns a second handle to the same bytes of the same chunk.
    fn share(&mut self, frame: &Frame) -> Frame;
    /// Returns true while more than one handle to the chunk exists.
    fn is_shared(&self, frame: &Frame) -> bool;
    /// Drops a handle. The chunk is free when its last handle is dropped.
    fn free(&mut self, frame: Frame);
    /// Prefetches the frame's handle count, which `share`, `is_shared` or `free` will access soon.
    fn prefetch(&self, _frame: &Frame) {}
    /// Returns the size of every chunk in bytes, at most 4096.
    fn chunk_size(&self) -> usize;
    /// Returns the frame's used bytes. Panics if the handle extends beyond its chunk (a bug, not an
    /// input).
    fn bytes(&self, frame: &Frame) -> &[u8];
    /// Returns the frame's used bytes for writing. Callers follow access rule 3.
    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8];
    /// Returns the number of chunks that `alloc` can still hand out.
    fn available(&self) -> usize;
    /// Returns the number of chunks that this pool accounts for.
    fn capacity(&self) -> usize;
    /// Returns the number of allocated chunks: `capacity - available`.
    fn in_use(&self) -> usize {
        self.capacity() - self.available()
    }
    /// Returns the number of payload bytes that a fresh frame can hold.
    fn payload_room(&self) -> usize {
        self.chunk_size() - HEADROOM as usize
    }
}

/// A pool in ordinary memory, for tests, simulation and benchmarks.
#[derive(Debug)]
pub struct HeapPool {
    memory: alloc::vec::Vec<u8>,
    handles: alloc::vec::Vec<u8>,
    free: alloc::vec::Vec<u32>,
    chunk_size: usize,
}

impl HeapPool {
    /// Makes a pool of `chunks` chunks of `chunk_size` bytes (512 to 4096).
    pub fn new(chunks: usize, chunk_size: usize) -> Self {
        assert!((512..=4096).contains(&chunk_size));
        Self {
            memory: alloc::vec![0; chunks * chunk_size],
            handles: alloc::vec![0; chunks],
            free: (0..chunks as u32).rev().collect(),
            chunk_size,
        }
    }

    /// Returns the range of the frame's used bytes.
    #[inline(always)]
    fn used(&self, frame: &Frame) -> core::ops::Range<usize> {
        let (off, len) = (frame.off(), frame.len());
        assert!(off + len <= self.chunk_size, "a frame reaches over its chunk");
        let start = frame.chunk() as usize * self.chunk_size + off;
        start..start + len
    }

    /// Backs each chunk with memory, as a UMEM is from its registration on. Before that, `tell` is
    /// called with the address and the size in bytes, for huge pages.
    pub fn populate(&mut self, tell: Option<fn(*const u8, usize)>) {
        if let Some(tell) = tell {
            tell(self.memory.as_ptr(), self.memory.len());
        }
        for byte in self.memory.iter_mut().step_by(4096) {
            *byte = core::hint::black_box(0);
        }
    }
}

impl FramePool for HeapPool {
    #[inline]
    fn alloc(&mut self) -> Option<Frame> {
        let chunk = self.free.pop()?;
        self.handles[chunk as usize] = 1;
        Some(Frame::from_raw(chunk, HEADROOM, 0))
    }

    #[inline]
    fn share(&mut self, frame: &Frame) -> Frame {
        self.handles[frame.chunk() as usize] += 1;
        frame.twin()
    }

    #[inline]
    fn is_shared(&self, frame: &Frame) -> bool {
        self.handles[frame.chunk() as usize] > 1
    }

    #[inline]
    fn free(&mut self, frame: Frame) {
        let chunk = frame.chunk();
        let handles = &mut self.handles[chunk as usize];
        assert!(*handles > 0, "chunk {chunk} freed twice");
        *handles -= 1;
        if *handles == 0 {
            self.free.push(chunk);
        }
    }

    #[inline]
    fn prefetch(&self, frame: &Frame) {
        if let Some(handles) = self.handles.get(frame.chunk() as usize) {
            fs_prefetch::line(handles);
        }
    }

    #[inline]
    fn chunk_size(&self) -> usize {
        self.chunk_size
    }

    #[inline]
    fn bytes(&self, frame: &Frame) -> &[u8] {
        let used = self.used(frame);
        &self.memory[used]
    }

    #[inline]
    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        let used = self.used(frame);
        &mut self.memory[used]
    }

    #[inline]
    fn available(&self) -> usize {
        self.free.len()
    }

    #[inline]
    fn capacity(&self) -> usize {
        self.handles.len()
    }
}

/// The link's report about the transport checksum of a received packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChecksum {
    /// Unknown: the engine verifies it.
    #[default]
    Unknown,
    /// The device or a trusted layer has verified it.
    Verified,
}

/// A received frame. Continuations (`frame.more()` on the one before) carry the same `iface`.
#[derive(Debug)]
pub struct RxFrame {
    /// The bytes, from the link-layer header on (or the IP header on a raw IP link).
    pub frame: Frame,
    /// The interface that received it.
    pub iface: IfaceId,
    /// State of its transport checksum.
    pub checksum: RxChecksum,
}

impl RxFrame {
    /// Moves the frame out and leaves an empty one.
    pub(crate) fn take(&mut self) -> RxFrame {
        RxFrame { frame: self.frame.take(), iface: self.iface, checksum: self.checksum }
    }
}

/// A checksum that the device (or the link, in software) has to store: the RFC 1071 sum from
/// `start` to the end of the packet, stored at `start + offset`. The field already contains the
/// pseudo-header's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxChecksum {
    /// First summed byte, from the start of the packet.
    pub start: u16,
    /// Offset of the checksum field from `start`.
    pub offset: u16,
}

/// A frame to send. A chain's first frame carries the checksum request for the whole packet.
#[derive(Debug)]
pub struct TxFrame {
    /// The bytes, from the link-layer header on (or the IP header on a raw IP link).
    pub frame: Frame,
    /// A checksum that the device has to complete; `None` if the packet is complete.
    pub checksum: Option<TxChecksum>,
}

/// Index of an interface in its stack: the order of `Stack::add_interface` calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IfaceId(pub u8);
