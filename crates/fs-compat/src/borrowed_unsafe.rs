//! Received bytes in the chunk where the device put them, and bytes to send in the chunk from which
//! it takes them: no copy.
//!
//! ## Access rules
//! 1. A guard owns its frame, so nothing else writes to the chunk until the guard gives the frame
//!    back (fs-core `frame`, rules 2 and 3). A received frame is never written. A send buffer's
//!    frame is not shared.
//! 2. The memory stays mapped while the pool lives, and the guard's [`CoreRef`] keeps the pool
//!    alive.
//! 3. Guards are not `Send`, like the core they point into.
#![allow(unsafe_code)]

use fs_core::{Frame, FramePool};
use fs_rt::CoreRef;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Received bytes, in the frame in which they arrived. Dropping it frees the frame. The device
/// cannot use a frame while the guard holds it, so drop guards soon.
///
/// ```no_run
/// # async fn on_a_core(stream: fastsock::local::TcpStream) -> std::io::Result<()> {
/// let bytes = stream.recv_borrowed().await?;
/// println!("{} bytes, the first is {:?}", bytes.len(), bytes.first());
/// # Ok(()) }
/// ```
pub struct BorrowedBytes {
    core: CoreRef,
    /// `None` at the end of the stream, and after the drop.
    frame: Option<Frame>,
    start: NonNull<u8>,
    len: usize,
}

impl BorrowedBytes {
    pub(crate) fn new(core: CoreRef, frame: Frame) -> Self {
        let (start, len) = core.inspect(|stack| {
            let bytes = stack.pool().bytes(&frame);
            (NonNull::from(bytes).cast(), bytes.len())
        });
        Self { core, frame: Some(frame), start, len }
    }

    /// Returns the empty guard that marks the end of the stream.
    pub(crate) fn end_of_stream(core: CoreRef) -> Self {
        Self { core, frame: None, start: NonNull::dangling(), len: 0 }
    }

    /// Returns true at the end of the stream: no bytes will follow.
    pub fn is_end_of_stream(&self) -> bool {
        self.frame.is_none()
    }
}

impl Deref for BorrowedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: access rules 1 and 2; `start` and `len` are the frame's used bytes (or an empty
        // slice).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for BorrowedBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for BorrowedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BorrowedBytes({} bytes)", self.len)
    }
}

impl Drop for BorrowedBytes {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.core.stack(|stack| stack.pool_mut().free(frame));
        }
    }
}

/// A frame of this core, empty at first, for bytes to send; see [`crate::TcpStream::send_buffer`].
///
/// ```no_run
/// # async fn on_a_core(stream: fastsock::local::TcpStream) -> std::io::Result<()> {
/// let mut buffer = stream.alloc_send_buffer()?;
/// assert_eq!(buffer.put_slice(b"hello"), 5, "a frame has room for more");
/// stream.send_buffer(buffer).await?;
/// # Ok(()) }
/// ```
#[must_use = "pass it to TcpStream::send_buffer, or its bytes are not sent"]
pub struct SendBuffer {
    core: CoreRef,
    frame: Option<Frame>,
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
}

impl SendBuffer {
    /// Returns `None` if the pool is empty.
    pub(crate) fn alloc(core: CoreRef) -> Option<Self> {
        let (frame, start, capacity) = core.stack(|stack| {
            let capacity = stack.pool().payload_room();
            let mut frame = stack.pool_mut().alloc()?;
            frame.grow_back(capacity);
            let start = NonNull::from(stack.pool_mut().bytes_mut(&mut frame)).cast();
            frame.truncate(0);
            Some((frame, start, capacity))
        })?;
        Some(Self { core, frame: Some(frame), start, len: 0, capacity })
    }

    /// Takes back a written frame that the stack refused.
    pub(crate) fn from_frame(core: CoreRef, mut frame: Frame) -> Self {
        let len = frame.len();
        let (start, capacity) = core.stack(|stack| {
            let capacity = stack.pool().chunk_size() - frame.off();
            frame.grow_back(capacity - len);
            let start = NonNull::from(stack.pool_mut().bytes_mut(&mut frame)).cast();
            frame.truncate(0);
            (start, capacity)
        });
        Self { core, frame: Some(frame), start, len, capacity }
    }

    /// Returns the total capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the part that is not written yet. Call [`SendBuffer::advance`] with the number of
    /// bytes that you filled.
    pub fn spare_mut(&mut self) -> &mut [u8] {
        // SAFETY: access rules 1 and 2. `start..start + capacity` is the frame's data area, and
        // mapped memory is always initialized.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(self.len), self.capacity - self.len) }
    }

    /// Marks `n` more bytes as written.
    ///
    /// # Panics
    ///
    /// If the frame has less than `n` bytes of space.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.capacity - self.len, "advanced over the end of a send buffer");
        self.len += n;
    }

    /// Appends as much of `bytes` as fits and returns the number of bytes copied.
    #[must_use = "bytes that did not fit are not written"]
    pub fn put_slice(&mut self, bytes: &[u8]) -> usize {
        let spare = self.spare_mut();
        let n = bytes.len().min(spare.len());
        spare[..n].copy_from_slice(&bytes[..n]);
        self.len += n;
        n
    }

    /// Returns the frame with the written bytes.
    pub(crate) fn into_frame(mut self) -> Option<Frame> {
        let mut frame = self.frame.take()?;
        frame.grow_back(self.len);
        Some(frame)
    }

    pub(crate) fn core(&self) -> &CoreRef {
        &self.core
    }
}

impl Deref for SendBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: access rules 1 and 2; `len <= capacity`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for SendBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for SendBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendBuffer({} of {} bytes)", self.len, self.capacity)
    }
}

impl Drop for SendBuffer {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.core.stack(|stack| stack.pool_mut().free(frame));
        }
    }
}
