//! Consecutive payload bytes in a chain of frames: receive queues, out-of-order ranges, and the
//! remainders of segments that are larger than a frame.

use crate::frame::{Frame, FramePool};
use crate::slab::{Hollow, NIL, Slab};

/// A link of a chain of frames.
#[derive(Debug)]
pub(crate) struct FrameNode {
    frame: Frame,
    next: u32,
    /// The chain's last link, if this is its first and not the only one. Stored here because the
    /// chain's owner has no space for it.
    tail: u32,
}

impl Hollow for FrameNode {
    fn hollow() -> Self {
        Self { frame: Frame::from_raw(0, 0, 0), next: NIL, tail: NIL }
    }

    #[inline]
    fn next_mut(&mut self) -> &mut u32 {
        &mut self.next
    }
}

/// All chains of a core.
pub(crate) type FrameNodes = Slab<FrameNode>;

/// Consecutive payload bytes in a chain of frames. No frame in it is empty.
#[derive(Debug)]
pub(crate) struct FrameQueue {
    head: u32,
    pub(crate) bytes: u32,
}

/// Size in bytes of the pieces in which frames are copied to frames.
const PIECE: usize = 512;

impl FrameQueue {
    pub(crate) const fn new() -> Self {
        Self { head: NIL, bytes: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the last link of a non-empty chain.
    #[inline]
    fn tail(&self, nodes: &FrameNodes) -> u32 {
        let tail = nodes[self.head].tail;
        if tail == NIL { self.head } else { tail }
    }

    /// Appends a frame that contains payload only.
    #[inline]
    pub(crate) fn push(&mut self, nodes: &mut FrameNodes, frame: Frame) {
        debug_assert!(!frame.is_empty());
        self.bytes += frame.len() as u32;
        let node = nodes.insert(FrameNode { frame, next: NIL, tail: NIL });
        if self.head == NIL {
            self.head = node;
        } else {
            let tail = self.tail(nodes);
            nodes[tail].next = node;
            nodes[self.head].tail = node;
        }
    }

    /// Appends another chain.
    #[inline]
    pub(crate) fn append(&mut self, nodes: &mut FrameNodes, other: FrameQueue) {
        if other.head == NIL {
            return;
        }
        if self.head == NIL {
            *self = other;
            return;
        }
        let tail = self.tail(nodes);
        nodes[tail].next = other.head;
        nodes[self.head].tail = other.tail(nodes);
        self.bytes += other.bytes;
    }

    /// Moves the bytes of a one-frame chain into the last frame's spare space, if they fit and are
    /// at most `most`. The chain's frame is freed. Used when the pool is short, so that segments
    /// much smaller than a frame cannot pin it.
    pub(crate) fn absorb<P: FramePool>(
        &mut self,
        nodes: &mut FrameNodes,
        pool: &mut P,
        other: FrameQueue,
        most: u32,
    ) -> Result<(), FrameQueue> {
        let len = other.bytes as usize;
        if self.head == NIL || other.bytes > most || nodes[other.head].next != NIL {
            return Err(other);
        }
        let last = self.tail(nodes);
        let tail = &mut nodes[last].frame;
        let end = tail.off() + tail.len();
        if end + len > pool.chunk_size() || pool.is_shared(tail) {
            return Err(other);
        }
        let mut piece = [0u8; PIECE];
        let source = nodes.remove(other.head).frame;
        let tail = &mut nodes[last].frame;
        let old = tail.len();
        tail.grow_back(len);
        for at in (0..len).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(len - at)];
            piece.copy_from_slice(&pool.bytes(&source)[at..at + piece.len()]);
            pool.bytes_mut(tail)[old + at..old + at + piece.len()].copy_from_slice(piece);
        }
        pool.free(source);
        self.bytes += len as u32;
        Ok(())
    }

    /// Removes and returns the first frame.
    #[inline]
    pub(crate) fn pop(&mut self, nodes: &mut FrameNodes) -> Option<Frame> {
        if self.head == NIL {
            return None;
        }
        let index = self.head;
        let node = &mut nodes[index];
        let (frame, tail) = (node.frame.take(), node.tail);
        self.head = node.next;
        if self.head != NIL {
            nodes[self.head].tail = tail;
        }
        self.bytes -= frame.len() as u32;
        nodes.vacate(index);
        Some(frame)
    }

    /// Removes and returns the first frame. If it is longer than `most` (not 0), only its first
    /// `most` bytes are removed; they share the chunk with the rest.
    pub(crate) fn pop_part<P: FramePool>(&mut self, nodes: &mut FrameNodes, pool: &mut P, most: u32) -> Option<Frame> {
        if self.head == NIL || nodes[self.head].frame.len() <= most as usize {
            return self.pop(nodes);
        }
        let first = &mut nodes[self.head].frame;
        let mut part = pool.share(first);
        part.truncate(most as usize);
        first.trim_front(most as usize);
        self.bytes -= most;
        Some(part)
    }

    /// Copies bytes out and frees frames that are consumed. Returns the number of bytes.
    #[inline]
    pub(crate) fn read<P: FramePool>(&mut self, nodes: &mut FrameNodes, pool: &mut P, buf: &mut [u8]) -> usize {
        let (mut at, mut rest) = (self.head, &mut *buf);
        let tail = nodes.get(at).map_or(NIL, |node| node.tail);
        while at != NIL && !rest.is_empty() {
            let node = &mut nodes[at];
            let bytes = pool.bytes(&node.frame);
            if bytes.len() > rest.len() {
                let n = rest.len();
                rest.copy_from_slice(&bytes[..n]);
                node.frame.trim_front(n);
                rest = &mut [];
                break;
            }
            let (into, after) = rest.split_at_mut(bytes.len());
            into.copy_from_slice(bytes);
            rest = after;
            let (frame, next) = (node.frame.take(), node.next);
            nodes.vacate(at);
            pool.free(frame);
            at = next;
        }
        let left = rest.len();
        let done = buf.len() - left;
        self.bytes -= done as u32;
        self.head = at;
        if at != NIL {
            nodes[at].tail = tail;
        }
        done
    }

    /// Copies bytes without consuming them.
    pub(crate) fn peek<P: FramePool>(&self, nodes: &FrameNodes, pool: &P, buf: &mut [u8]) -> usize {
        let mut done = 0;
        let mut at = self.head;
        while done < buf.len() && at != NIL {
            let bytes = pool.bytes(&nodes[at].frame);
            let n = bytes.len().min(buf.len() - done);
            buf[done..done + n].copy_from_slice(&bytes[..n]);
            done += n;
            at = nodes[at].next;
        }
        done
    }

    /// Drops `n` bytes from the front.
    pub(crate) fn trim_front<P: FramePool>(&mut self, nodes: &mut FrameNodes, pool: &mut P, mut n: usize) {
        while n > 0 && self.head != NIL {
            let node = &mut nodes[self.head];
            if n < node.frame.len() {
                node.frame.trim_front(n);
                self.bytes -= n as u32;
                return;
            }
            n -= node.frame.len();
            if let Some(frame) = self.pop(nodes) {
                pool.free(frame);
            }
        }
    }

    /// Keeps the first `keep` bytes.
    pub(crate) fn truncate<P: FramePool>(&mut self, nodes: &mut FrameNodes, pool: &mut P, keep: usize) {
        if keep >= self.bytes as usize {
            return;
        }
        let mut kept = FrameQueue::new();
        let mut left = keep;
        while let Some(mut frame) = self.pop(nodes) {
            if left == 0 {
                pool.free(frame);
                continue;
            }
            let n = frame.len().min(left);
            frame.truncate(n);
            left -= n;
            kept.push(nodes, frame);
        }
        *self = kept;
    }

    /// Frees every frame.
    pub(crate) fn clear<P: FramePool>(&mut self, nodes: &mut FrameNodes, pool: &mut P) {
        while let Some(frame) = self.pop(nodes) {
            pool.free(frame);
        }
    }

    /// Returns the last frame, to append to. The caller updates `bytes`.
    pub(crate) fn last_mut<'a>(&self, nodes: &'a mut FrameNodes) -> Option<&'a mut Frame> {
        if self.head == NIL {
            return None;
        }
        let tail = self.tail(nodes);
        Some(&mut nodes[tail].frame)
    }

    /// Returns the number of frames in O(n).
    pub(crate) fn frames(&self, nodes: &FrameNodes) -> u32 {
        let mut count = 0;
        self.for_each(nodes, |_| count += 1);
        count
    }

    /// Visits every frame in order.
    pub(crate) fn for_each(&self, nodes: &FrameNodes, mut visit: impl FnMut(&Frame)) {
        let mut at = self.head;
        while at != NIL {
            visit(&nodes[at].frame);
            at = nodes[at].next;
        }
    }

    /// Overwrites the bytes from offset `at` on. The frames must not be shared.
    pub(crate) fn overwrite<P: FramePool>(&self, nodes: &mut FrameNodes, pool: &mut P, at: usize, bytes: &[u8]) {
        let (mut skip, mut left) = (at, bytes);
        let mut node = self.head;
        while node != NIL && !left.is_empty() {
            let FrameNode { frame, next, .. } = &mut nodes[node];
            let from = skip.min(frame.len());
            let n = (frame.len() - from).min(left.len());
            let (now, later) = left.split_at(n);
            // Overlapping data from honest peers is equal and needs no write.
            if pool.bytes(frame)[from..from + n] != *now {
                pool.bytes_mut(frame)[from..from + n].copy_from_slice(now);
            }
            (skip, left, node) = (skip - from, later, *next);
        }
    }

    /// Copies bytes, starting at offset `from`.
    pub(crate) fn copy_at<P: FramePool>(&self, nodes: &FrameNodes, pool: &P, mut from: usize, out: &mut [u8]) {
        let mut done = 0;
        self.for_each(nodes, |frame| {
            let bytes = pool.bytes(frame);
            let skip = from.min(bytes.len());
            from -= skip;
            let n = (bytes.len() - skip).min(out.len() - done);
            out[done..done + n].copy_from_slice(&bytes[skip..skip + n]);
            done += n;
        });
    }
}
