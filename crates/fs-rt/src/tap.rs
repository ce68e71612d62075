//! Taps, which see the frames of a core: captures.

use fs_core::{Frame, FramePool, IfaceId, RxFrame, TxFrame};

/// A frame as a tap sees it.
#[derive(Debug)]
#[non_exhaustive]
pub struct TapFrame<'a> {
    /// True if the core sends the frame, false if it received it.
    pub sent: bool,
    /// The interface.
    pub iface: IfaceId,
    /// Its bytes, starting with the link-layer header (or the IP header on a raw IP link). If the
    /// device computes the transport checksum, the field has the sum of the pseudo-header.
    pub pieces: &'a [&'a [u8]],
}

type Tap = Box<dyn FnMut(&TapFrame<'_>) -> bool>;

/// The taps of a core.
#[derive(Default)]
pub(crate) struct Taps(Vec<Tap>);

impl Taps {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, tap: Tap) {
        self.0.push(tap);
    }

    #[cold]
    pub(crate) fn received(&mut self, pool: &impl FramePool, frames: &[RxFrame]) {
        self.tell(pool, false, frames.iter().map(|rx| (&rx.frame, rx.iface)));
    }

    #[cold]
    pub(crate) fn sent(&mut self, pool: &impl FramePool, iface: IfaceId, frames: &[TxFrame]) {
        self.tell(pool, true, frames.iter().map(|tx| (&tx.frame, iface)));
    }

    fn tell<'f>(&mut self, pool: &impl FramePool, sent: bool, frames: impl Iterator<Item = (&'f Frame, IfaceId)>) {
        let mut pieces = Vec::new();
        for (frame, iface) in frames {
            pieces.push(pool.bytes(frame));
            if !frame.more() {
                let whole = TapFrame { sent, iface, pieces: &pieces };
                self.0.retain_mut(|tap| tap(&whole));
                pieces.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_core::{HeapPool, RxChecksum};
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn frames_of_several_chunks_are_joined() {
        let mut pool = HeapPool::new(8, 512);
        let mut frame = |bytes: &[u8], more| {
            let mut frame = pool.alloc().unwrap();
            frame.grow_back(bytes.len());
            pool.bytes_mut(&mut frame).copy_from_slice(bytes);
            frame.set_more(more);
            RxFrame { frame, iface: IfaceId(1), checksum: RxChecksum::Unknown }
        };
        let frames = [frame(b"one ", true), frame(b"two", false), frame(b"three", false)];
        let seen = Rc::new(RefCell::new(Vec::new()));
        let mut taps = Taps::default();
        let all = seen.clone();
        taps.add(Box::new(move |frame| {
            assert!(!frame.sent && frame.iface == IfaceId(1));
            all.borrow_mut().push(frame.pieces.concat());
            true
        }));
        let mut left = 1;
        taps.add(Box::new(move |_| {
            left -= 1;
            left >= 0
        }));
        taps.received(&pool, &frames);
        assert_eq!(*seen.borrow(), [b"one two".to_vec(), b"three".to_vec()]);
        assert_eq!(taps.0.len(), 1, "the second has had enough");
        frames.into_iter().for_each(|rx| pool.free(rx.frame));
    }
}
