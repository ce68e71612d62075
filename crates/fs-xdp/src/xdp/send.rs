//! Sends a batch: packets by the TX ring, runs of segments by the packet socket next to it.

use super::{COPIED_DESCRIPTORS_MAX, XdpLink, ZERO_COPY_DESCRIPTORS_MAX};
use crate::chain;
use crate::checksum;
use crate::merge::socket::Outcome;
use crate::merge::{self, Front, run::Run};
use crate::ring::rx::CONTINUED;
use crate::umem::UmemPool;
use fs_core::HEADROOM;
use fs_core::{Frame, FramePool, TxChecksum, TxFrame};

/// What became of a packet.
enum Placed {
    /// It is in the TX ring.
    InRing,
    /// It has left by the packet socket.
    Sent,
    /// It cannot be sent.
    Dropped,
    Full,
}

/// What became of the front of a batch that may be a run.
enum Merged {
    /// A run has left by the packet socket.
    Sent(Run),
    /// A run cannot be sent.
    Dropped(Run),
    /// The packets of so many frames are sent one by one.
    Singles(usize),
    /// Nothing more can be sent now.
    Later,
}

impl XdpLink {
    /// Sends from the front of `frames` what fits; returns the number of packets.
    pub(super) fn send_batch(&mut self, pool: &mut UmemPool, frames: &mut Vec<TxFrame>) -> usize {
        let merges = self.begin_merging();
        let mut done = 0;
        let (mut sent, mut placed) = (0, 0);
        // Frames before this one begin no run.
        let mut singles = 0;
        while let Some(end) = chain::end(frames, done) {
            if merges && done >= singles {
                match self.merge_front(pool, &frames[done..]) {
                    Merged::Sent(run) => {
                        (done, sent) = (done + run.frames, sent + run.segments);
                        continue;
                    }
                    Merged::Dropped(run) => {
                        done += run.frames;
                        self.stats.tx_dropped += run.segments as u64;
                        continue;
                    }
                    Merged::Singles(count) => singles = done + count,
                    Merged::Later => break,
                }
            }
            match self.send_packet(pool, &mut frames[done..end]) {
                Placed::InRing => placed += 1,
                Placed::Sent => sent += 1,
                Placed::Dropped => self.stats.tx_dropped += 1,
                Placed::Full => break,
            }
            done = end;
        }
        // Their handles have gone to the device, or back to the pool.
        frames.drain(..done);
        if placed > 0 {
            self.socket.tx.publish();
        }
        self.kick();
        sent += placed;
        self.stats.tx_packets += sent as u64;
        sent
    }

    /// Returns true if runs are merged in this batch.
    #[inline]
    fn begin_merging(&mut self) -> bool {
        let Some(merge) = &mut self.merge else { return false };
        merge.begin(self.outstanding == 0);
        merge.merges()
    }

    /// Sends the run at the front of `frames`, if there is one and it may leave by the packet socket.
    fn merge_front(&mut self, pool: &mut UmemPool, frames: &[TxFrame]) -> Merged {
        let run = match merge::front(self.caps.framing, pool, frames) {
            Front::Run(run) => run,
            Front::Singles(count) => return Merged::Singles(count),
        };
        let Some(merge) = &self.merge else { return Merged::Singles(run.frames) };
        if merge.device_keeps_order() {
            // What is in front of it leaves first.
            self.socket.tx.publish();
            self.kick();
            if self.socket.tx.pending() > 0 {
                return Merged::Singles(run.frames);
            }
        } else if !merge.may_take(pool.bytes(&frames[0].frame)) {
            return Merged::Singles(run.frames);
        }
        let Some(merge) = &mut self.merge else { return Merged::Singles(run.frames) };
        if merge.is_paused() {
            return Merged::Later;
        }
        self.stats.syscalls += 1;
        match merge.send_run(pool, frames, &run) {
            Outcome::Sent => {
                give_back(pool, &frames[..run.frames]);
                self.stats.tx_merges += 1;
                self.stats.tx_merged += run.segments as u64;
                Merged::Sent(run)
            }
            Outcome::Later => Merged::Later,
            Outcome::Dropped => {
                give_back(pool, &frames[..run.frames]);
                Merged::Dropped(run)
            }
            Outcome::Refused => Merged::Singles(run.frames),
        }
    }

    /// Sends a packet by the TX ring, or behind others of its flow by the packet socket.
    #[inline]
    fn send_packet(&mut self, pool: &mut UmemPool, packet: &mut [TxFrame]) -> Placed {
        if let Some(merge) = &mut self.merge
            && !merge.device_keeps_order()
            && !merge.leaves_to_ring(pool.bytes(&packet[0].frame))
        {
            if merge.is_paused() {
                return Placed::Full;
            }
            self.stats.syscalls += 1;
            match merge.send(pool, packet) {
                Outcome::Sent => {
                    give_back(pool, packet);
                    return Placed::Sent;
                }
                Outcome::Later => return Placed::Full,
                Outcome::Dropped => {
                    give_back(pool, packet);
                    return Placed::Dropped;
                }
                Outcome::Refused => {}
            }
        }
        self.place(pool, packet)
    }

    /// Puts a packet into the TX ring. On `InRing` and `Dropped` the handles in `packet` are used up.
    #[inline]
    fn place(&mut self, pool: &mut UmemPool, packet: &mut [TxFrame]) -> Placed {
        if let [TxFrame { frame, checksum }] = packet
            && frame.len() <= self.longest
            && frame.off() >= self.tx_metadata_len as usize
            && !frame.is_empty()
        {
            if self.socket.tx.free(1) == 0 {
                return Placed::Full;
            }
            let options = self.request_checksum(pool, frame, *checksum);
            self.push(frame.chunk(), frame.off(), frame.len(), options);
            return Placed::InRing;
        }
        self.place_chain(pool, packet)
    }

    /// A packet of several frames, or one that cannot go out as it lies.
    #[cold]
    fn place_chain(&mut self, pool: &mut UmemPool, packet: &mut [TxFrame]) -> Placed {
        let length: usize = packet.iter().map(|part| part.frame.len()).sum();
        let room = self.chunk_size as usize - HEADROOM as usize;
        let pieces = length.div_ceil(room);
        let zero_copy = self.is_zero_copy();
        let too_many = zero_copy && pieces > ZERO_COPY_DESCRIPTORS_MAX || pieces > 1 && !self.caps.multi_buffer;
        if length == 0 || length > self.longest || too_many {
            give_back(pool, packet);
            return Placed::Dropped;
        }
        let fits =
            packet.iter().all(|part| part.frame.off() >= self.tx_metadata_len as usize && !part.frame.is_empty());
        let as_it_lies = fits && self.caps.multi_buffer && leaves_as_it_lies(packet.len(), pieces, zero_copy);
        let needed = if as_it_lies { packet.len() } else { pieces };
        if (self.socket.tx.free(needed as u32) as usize) < needed {
            return Placed::Full;
        }
        if as_it_lies {
            self.push_chain(pool, packet);
            return Placed::InRing;
        }
        if !self.gather(pool, packet, pieces, room) {
            return Placed::Full;
        }
        let checksum = packet[0].checksum;
        give_back(pool, packet);
        self.push_gathered(pool, checksum);
        Placed::InRing
    }

    fn push_chain(&mut self, pool: &mut UmemPool, packet: &mut [TxFrame]) {
        let mut options = 0;
        if let Some(request) = packet[0].checksum {
            if self.caps.tx_checksum {
                options = self.request_checksum(pool, &mut packet[0].frame, Some(request));
            } else {
                let sum = checksum::of_parts(packet.iter().map(|part| pool.bytes(&part.frame)), request.start.into());
                checksum::store(pool.bytes_mut(&mut packet[0].frame), request, sum);
            }
        }
        let last = packet.len() - 1;
        for (i, part) in packet.iter().enumerate() {
            let options = if i == 0 { options } else { 0 } | if i == last { 0 } else { CONTINUED };
            self.push(part.frame.chunk(), part.frame.off(), part.frame.len(), options);
        }
    }

    /// Copies a packet into fresh chunks; `false` when the pool has not enough.
    fn gather(&mut self, pool: &mut UmemPool, packet: &[TxFrame], pieces: usize, room: usize) -> bool {
        for _ in 0..pieces {
            let Some(frame) = pool.alloc() else {
                for frame in self.gathered.drain(..) {
                    pool.free(frame);
                }
                return false;
            };
            self.gathered.push(frame);
        }
        let mut into = 0;
        for part in packet {
            let mut done = 0;
            while done < part.frame.len() {
                if self.gathered[into].len() == room {
                    into += 1;
                }
                let to = &mut self.gathered[into];
                let step = (room - to.len()).min(part.frame.len() - done);
                copy_between(pool, &part.frame, done, to, step);
                done += step;
            }
        }
        true
    }

    fn push_gathered(&mut self, pool: &mut UmemPool, checksum: Option<TxChecksum>) {
        let mut gathered = std::mem::take(&mut self.gathered);
        let mut options = 0;
        if let Some(request) = checksum {
            if self.caps.tx_checksum || gathered.len() == 1 {
                options = self.request_checksum(pool, &mut gathered[0], checksum);
            } else {
                let sum = checksum::of_parts(gathered.iter().map(|part| pool.bytes(part)), request.start.into());
                checksum::store(pool.bytes_mut(&mut gathered[0]), request, sum);
            }
        }
        let last = gathered.len() - 1;
        for (i, frame) in gathered.drain(..).enumerate() {
            let options = if i == 0 { options } else { 0 } | if i == last { 0 } else { CONTINUED };
            self.push(frame.chunk(), frame.off(), frame.len(), options);
        }
        self.gathered = gathered;
    }

    /// Leaves the checksum of a packet that lies in one frame (or, with TX metadata, begins with it) to the device, or
    /// finishes it here. The descriptor's options.
    #[inline]
    fn request_checksum(&self, pool: &mut UmemPool, head: &mut Frame, request: Option<TxChecksum>) -> u32 {
        let Some(request) = request else { return 0 };
        if !self.caps.tx_checksum {
            checksum::finish(pool.bytes_mut(head), request);
            return 0;
        }
        // struct xsk_tx_metadata: flags (u64), csum_start, csum_offset (u16 each), right in front of the packet.
        let mut metadata =
            Frame::from_raw(head.chunk(), head.off() as u16 - self.tx_metadata_len, self.tx_metadata_len);
        let bytes = pool.bytes_mut(&mut metadata);
        bytes[..8].copy_from_slice(&u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM).to_ne_bytes());
        bytes[8..10].copy_from_slice(&request.start.to_ne_bytes());
        bytes[10..12].copy_from_slice(&request.offset.to_ne_bytes());
        libc::XDP_TX_METADATA
    }

    #[inline]
    fn push(&mut self, chunk: u32, off: usize, len: usize, options: u32) {
        self.held.add(chunk);
        self.outstanding += 1;
        self.socket.tx.push(libc::xdp_desc { addr: self.address(chunk, off), len: len as u32, options });
    }
}

/// Returns true if the frames of a packet become its descriptors, and false if the packet is copied into `pieces` fresh
/// chunks first.
fn leaves_as_it_lies(frames: usize, pieces: usize, zero_copy: bool) -> bool {
    if zero_copy {
        return frames <= ZERO_COPY_DESCRIPTORS_MAX;
    }
    // The kernel copies the packet. One copy here costs less than what the kernel does for each further descriptor.
    pieces > 1 && frames <= COPIED_DESCRIPTORS_MAX
}

/// Gives the handles of a packet back that the caller's list still shows but is about to forget.
fn give_back(pool: &mut UmemPool, packet: &[TxFrame]) {
    for part in packet {
        pool.free(Frame::from_raw(part.frame.chunk(), 0, 0));
    }
}

/// Appends `len` bytes of `from`, beginning at `start`, to `to`.
fn copy_between(pool: &mut UmemPool, from: &Frame, start: usize, to: &mut Frame, len: usize) {
    let mut source = Frame::from_raw(from.chunk(), from.off() as u16, from.len() as u16);
    source.trim_front(start);
    source.truncate(len);
    let end = to.len();
    to.grow_back(len);
    pool.copy(&source, to, end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_fits_the_mode_of_its_queue() {
        for (frames, pieces) in [(1, 1), (2, 1), (8, 1), (8, 3)] {
            assert!(leaves_as_it_lies(frames, pieces, true), "{frames} frames");
        }
        for frames in [9, 16, 17, 64] {
            assert!(!leaves_as_it_lies(frames, 3, true), "{frames} frames");
        }
        assert!(leaves_as_it_lies(2, 2, false) && leaves_as_it_lies(16, 3, false));
        assert!(!leaves_as_it_lies(17, 3, false));
        assert!(!leaves_as_it_lies(2, 1, false), "one copy instead of two descriptors");
    }
}
