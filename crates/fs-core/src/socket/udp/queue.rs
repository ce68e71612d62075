//! Datagrams that wait to be read, in the frames in which they arrived.

use crate::frame::{Frame, FramePool};
use crate::rx::parse::Datagram;
use crate::socket::udp::UdpMeta;
use alloc::collections::VecDeque;
use core::net::SocketAddr;

/// Maximum payload bytes in a socket's queue: Linux's default `rmem_default`, 208 KiB.
const BYTES_MAX: usize = 212_992;
/// Maximum number of datagrams in a socket's queue. Each takes at least a frame. For the smallest
/// datagrams (768 bytes of bookkeeping each), Linux's limit allows about as many.
const DATAGRAMS_MAX: usize = 256;

/// A datagram's description. Its frames are in a separate queue.
#[derive(Debug)]
struct Entry {
    meta: UdpMeta,
    frames: u16,
}

/// One socket's receive queue.
#[derive(Debug, Default)]
pub(super) struct ReceiveQueue {
    entries: VecDeque<Entry>,
    /// Frames of all entries in order, cut to the payload.
    frames: VecDeque<Frame>,
    bytes: usize,
}

impl ReceiveQueue {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns true if a datagram of that size may be pushed. An empty queue accepts any size.
    #[inline]
    pub(super) fn has_room(&self, len: u32) -> bool {
        self.is_empty() || (self.entries.len() < DATAGRAMS_MAX && self.bytes + len as usize <= BYTES_MAX)
    }

    /// Appends a datagram and frees frames without payload. Returns the number of kept frames.
    pub(super) fn push<P: FramePool>(
        &mut self,
        pool: &mut P,
        datagram: &Datagram,
        scopes: [u32; 2],
        frames: impl Iterator<Item = Frame>,
    ) -> usize {
        let (mut skip, mut left) = (usize::from(datagram.payload_off), datagram.payload_len as usize);
        let before = self.frames.len();
        for mut frame in frames {
            let front = skip.min(frame.len());
            frame.trim_front(front);
            skip -= front;
            // Padding may follow the payload.
            frame.truncate(frame.len().min(left));
            left -= frame.len();
            if frame.is_empty() {
                pool.free(frame);
            } else {
                self.frames.push_back(frame);
            }
        }
        let kept = self.frames.len() - before;
        // `left` is 0 unless the frames differ from the parsed packet; the datagram is then cut to
        // what exists.
        let len = datagram.payload_len as usize - left;
        let [from, to] = [(datagram.key.remote(), scopes[0]), (datagram.key.local(), scopes[1])].map(scoped);
        let meta = UdpMeta { len, from, to, tos: Some(datagram.tos) };
        self.entries.push_back(Entry { meta, frames: kept as u16 });
        self.bytes += len;
        kept
    }

    /// Copies as much of the first datagram as `buf` can hold.
    pub(super) fn copy_out<P: FramePool>(&self, pool: &P, buf: &mut [u8]) -> Option<UdpMeta> {
        let entry = self.entries.front()?;
        let mut rest = buf;
        for frame in self.frames.iter().take(usize::from(entry.frames)) {
            let bytes = pool.bytes(frame);
            let (here, behind) = rest.split_at_mut(bytes.len().min(rest.len()));
            here.copy_from_slice(&bytes[..here.len()]);
            rest = behind;
        }
        Some(entry.meta)
    }

    /// Returns the first datagram's description.
    pub(super) fn first(&self) -> Option<UdpMeta> {
        self.entries.front().map(|entry| entry.meta)
    }

    /// Drops the first datagram. Returns the number of freed frames.
    pub(super) fn pop<P: FramePool>(&mut self, pool: &mut P) -> usize {
        let Some(entry) = self.entries.pop_front() else { return 0 };
        self.bytes -= entry.meta.len;
        let frames = self.frames.drain(..usize::from(entry.frames));
        frames.map(|frame| pool.free(frame)).count()
    }
}

fn scoped((mut at, scope): (SocketAddr, u32)) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut at {
        v6.set_scope_id(scope);
    }
    at
}
