//! One AF_XDP queue on our own rings. `send.rs` sends batches.
//!
//! ## The owner of a chunk
//! `pool` → `fill` ring → (packet arrives) `rx` ring → [`RxFrame`]s → their owner. [`TxFrame`]s →
//! `tx` ring → (packet is sent) `completion` ring → `pool`. For every chunk, [`ChunkCounts`] counts the
//! handles in these rings, so that all of them are returned when the queue is closed, whatever the
//! device was doing.

use crate::config::LINK_HEADER_MAX;
use crate::fill_target::FillTarget;
use crate::link::{Link, LinkCaps, LinkStats};
use crate::merge::socket::MergeSocket;
use crate::program::Program;
use crate::ring::rx::CONTINUED;
use crate::socket::Socket;
use crate::sys::xsk;
use crate::umem::{Umem, UmemPool};
use fs_core::{Frame, FramePool, IfaceId, RxChecksum, RxFrame, TxFrame};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod send;

/// Most descriptors of a packet that the kernel copies. It takes `MAX_SKB_FRAGS` (17 by default, in
/// practice at least 16).
const COPIED_DESCRIPTORS_MAX: usize = 16;
/// Most descriptors of a packet in zero-copy mode: `xdp_zc_max_segs` of ice and i40e. The kernel takes a
/// longer packet out of the TX ring up to this descriptor without sending or completing it, and sends
/// the rest as a packet (`xskq_cons_read_desc_batch`). Lower: more packets are copied.
const ZERO_COPY_DESCRIPTORS_MAX: usize = 8;
/// Missing chunks from which on the fill ring is filled again: one access to the shared cursor per
/// batch.
const REFILL_BATCH: u32 = 32;
/// Packets that one `sendto` sends if the kernel's budget cannot be raised: `TX_BATCH_SIZE` of
/// `net/xdp/xsk.c`.
const KICK_BATCH: u32 = 32;
/// Time for which `close` waits for packets in transmission. A NIC sends a full ring in a few
/// milliseconds.
const CLOSE_WAIT: Duration = Duration::from_millis(20);

/// Interval at which a link that is about to sleep asks the kernel whether the device still exists.
/// A core under load sleeps ten thousand times per second, and each question is a system call.
/// `fs-rt` wakes every second so that it is asked.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Interval at which the kernel is offered what it has not taken from the TX ring, while nothing follows
/// it. Shorter: a core that polls makes more system calls for nothing. Longer: the device idles.
const OFFER_EVERY: Duration = Duration::from_micros(50);

/// An open queue. See [`crate::XdpDevice::open_queue`].
pub struct XdpLink {
    caps: LinkCaps,
    // Dropped before `held`: after the last descriptor of the socket is closed, the kernel does not
    // write to chunks any more. In zero-copy mode the driver may, for a time: see `Link::close`.
    socket: Socket,
    /// Handles with the device, by chunk.
    held: ChunkCounts,
    chunk_size: u32,
    tx_metadata_len: u16,
    /// Longest packet in bytes, including the link-layer header.
    longest: usize,
    /// How many chunks the device should have to receive into, and how many it has.
    fill_target: FillTarget,
    fill_level: u32,
    /// Descriptors that were sent and are not completed yet.
    outstanding: u32,
    stats: LinkStats,
    dead: Option<i32>,
    /// When the kernel was last asked whether the device still exists.
    asked_at: Instant,
    /// When a call without packets last offered the kernel what it had not taken.
    offered_at: Instant,
    /// Chunks of a packet that is being assembled; empty between calls.
    gathered: Vec<Frame>,
    /// Sends runs of segments, if packets are copied.
    merge: Option<MergeSocket>,
    /// None if another process has attached the program.
    _program: Option<Arc<Program>>,
}

impl XdpLink {
    /// Wraps a socket whose fill ring contains `frames`.
    pub(crate) fn new(
        socket: Socket,
        caps: LinkCaps,
        umem: Arc<Umem>,
        fill_target: FillTarget,
        frames: Vec<Frame>,
        merge: Option<MergeSocket>,
        program: Option<Arc<Program>>,
    ) -> XdpLink {
        let mut held = ChunkCounts::new(umem.clone());
        let fill_level = frames.len() as u32;
        frames.into_iter().for_each(|frame| held.add(frame.into_raw().0));
        XdpLink {
            held,
            chunk_size: umem.config().chunk_size,
            tx_metadata_len: socket.registration.tx_metadata_len.into(),
            longest: caps.mtu as usize + LINK_HEADER_MAX as usize,
            fill_target,
            fill_level,
            outstanding: 0,
            stats: LinkStats::default(),
            dead: None,
            asked_at: Instant::now(),
            offered_at: Instant::now(),
            gathered: Vec::with_capacity(COPIED_DESCRIPTORS_MAX + 2),
            caps,
            socket,
            merge,
            _program: program,
        }
    }

    pub(crate) fn socket_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd.as_fd()
    }

    /// Returns true if the kernel moves packets between the device and the UMEM without a copy.
    pub fn is_zero_copy(&self) -> bool {
        self.socket.registration.zero_copy
    }

    /// Returns whether the device has chunks to receive into. In zero-copy mode its driver takes
    /// them at the bind, or at a wake-up. A queue whose driver has none receives nothing, neither
    /// our packets nor the kernel's. Such a driver requests a wake-up (need_wakeup), and gets one
    /// here. The fill ring's consumer cursor proves nothing: the kernel advances it when it has
    /// read the entries that it knew of.
    pub fn has_chunks(&mut self) -> bool {
        if !self.is_zero_copy() || !self.socket.fill.needs_wakeup() {
            return true;
        }
        // Only a check: the next receive reports the error of a driver that is not ready yet.
        let _woken = xsk::kick_rx(self.socket.fd.as_raw_fd());
        !self.socket.fill.needs_wakeup()
    }

    /// Returns true if the queue shares the UMEM registration of another queue (`XDP_SHARED_UMEM`):
    /// the memory is pinned, and counted against `RLIMIT_MEMLOCK`, once.
    pub fn has_joined(&self) -> bool {
        self.socket.joined
    }

    /// Gives chunks to the device until it has its share or the pool is empty.
    pub(crate) fn refill_all(&mut self, pool: &mut UmemPool) {
        let missing = self.fill_target.get().saturating_sub(self.fill_level);
        let missing = missing.min(self.socket.fill.free(missing));
        let before = self.fill_level;
        for _ in 0..missing {
            let Some(frame) = pool.alloc() else { break };
            let (chunk, _, _) = frame.into_raw();
            self.held.add(chunk);
            self.socket.fill.push(self.address(chunk, 0));
            self.fill_level += 1;
        }
        if self.fill_level != before {
            self.socket.fill.publish();
        }
    }

    #[inline]
    fn refill(&mut self, pool: &mut UmemPool) {
        let target = self.fill_target.get();
        if target.saturating_sub(self.fill_level) >= REFILL_BATCH.min(target) {
            self.refill_all(pool);
        }
        // Set only by zero-copy drivers that ran out of chunks.
        if self.socket.fill.needs_wakeup() && self.fill_level > 0 {
            self.wake_fill();
        }
    }

    fn wake_fill(&mut self) {
        self.stats.syscalls += 1;
        if let Err(error) = xsk::kick_rx(self.socket.fd.as_raw_fd()) {
            self.note(&error);
        }
    }

    #[inline]
    fn address(&self, chunk: u32, off: usize) -> u64 {
        u64::from(chunk) * u64::from(self.chunk_size) + off as u64
    }

    /// Records an error that the queue cannot recover from: the device is gone.
    #[cold]
    fn note(&mut self, error: &io::Error) {
        match error.raw_os_error() {
            // Full, busy, or administratively down: transient.
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENOMEM | libc::EINTR | libc::ENETDOWN) => {}
            number => self.dead = Some(number.unwrap_or(libc::ENXIO)),
        }
    }

    fn take_completions(&mut self, pool: &mut UmemPool) {
        let completed = self.socket.completion.available();
        if completed == 0 {
            return;
        }
        for _ in 0..completed {
            let chunk = (self.socket.completion.pop() / u64::from(self.chunk_size)) as u32;
            if self.held.take(chunk) {
                pool.free(Frame::from_raw(chunk, 0, 0));
            }
        }
        self.socket.completion.release();
        self.outstanding = self.outstanding.saturating_sub(completed);
    }

    /// Makes the kernel send the entries of the TX ring.
    fn kick(&mut self) {
        let mut pending = self.socket.tx.pending();
        if pending == 0 || !self.socket.tx.needs_wakeup() {
            return;
        }
        // One call, or one per batch if the kernel stops after each.
        let calls = if self.socket.whole_ring_per_kick { 1 } else { self.socket.tx_entries.div_ceil(KICK_BATCH) };
        for _ in 0..calls {
            self.stats.syscalls += 1;
            let Err(error) = xsk::kick_tx(self.socket.fd.as_raw_fd()) else { return };
            self.note(&error);
            let left = self.socket.tx.pending();
            if left == 0 || left == pending || self.dead.is_some() {
                return;
            }
            pending = left;
        }
    }
}

impl Link for XdpLink {
    fn caps(&self) -> &LinkCaps {
        &self.caps
    }

    fn rx(&mut self, pool: &mut UmemPool, iface: IfaceId, out: &mut Vec<RxFrame>, max: usize) -> usize {
        debug_assert!(Arc::ptr_eq(pool.umem(), &self.held.umem), "the pool is of another UMEM");
        let (packets, descriptors) = self.socket.rx.packets(max, self.caps.multi_buffer);
        let waiting = self.socket.rx.known();
        for _ in 0..descriptors {
            let descriptor = self.socket.rx.pop();
            let chunk = (descriptor.addr / u64::from(self.chunk_size)) as u32;
            let off = (descriptor.addr % u64::from(self.chunk_size)) as u16;
            if !self.held.take(chunk) {
                // Not a chunk of the fill ring. The kernel does not do that, and there is nothing
                // to do about it.
                self.stats.rx_dropped += 1;
                continue;
            }
            let mut frame = Frame::from_raw(chunk, off, descriptor.len as u16);
            frame.set_more(descriptor.options & CONTINUED != 0);
            out.push(RxFrame { frame, iface, checksum: RxChecksum::Unknown });
        }
        if descriptors > 0 {
            self.fill_target.observe(waiting, self.fill_level, self.stats.rx_packets);
            self.socket.rx.release();
            self.fill_level = self.fill_level.saturating_sub(descriptors);
            self.stats.rx_packets += packets as u64;
        }
        self.refill(pool);
        packets
    }

    fn tx(&mut self, pool: &mut UmemPool, frames: &mut Vec<TxFrame>) -> io::Result<usize> {
        debug_assert!(Arc::ptr_eq(pool.umem(), &self.held.umem), "the pool is of another UMEM");
        self.take_completions(pool);
        let sent = self.send_batch(pool, frames);
        match self.dead {
            None => Ok(sent),
            Some(number) => Err(io::Error::from_raw_os_error(number)),
        }
    }

    fn merges(&self) -> bool {
        self.merge.as_ref().is_some_and(MergeSocket::merges)
    }

    #[inline]
    fn reap(&mut self, pool: &mut UmemPool) -> bool {
        if self.outstanding > 0 {
            if self.has_unsent() && self.offered_at.elapsed() >= OFFER_EVERY {
                self.offered_at = Instant::now();
                self.kick();
            }
            self.take_completions(pool);
        }
        self.outstanding > 0
    }

    fn has_unsent(&mut self) -> bool {
        self.outstanding > 0 && self.socket.tx.pending() > 0 && self.socket.tx.needs_wakeup()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.fd.as_fd())
    }

    fn has_packets(&mut self) -> bool {
        self.socket.rx.is_ready()
    }

    fn prepare_sleep(&mut self, pool: &mut UmemPool) -> bool {
        self.refill_all(pool);
        self.reap(pool);
        if self.socket.rx.is_ready() {
            return false;
        }
        // Wakes a driver that waits for chunks, and checks at intervals whether the device still
        // exists: its removal does not make the descriptor readable.
        let now = Instant::now();
        if self.socket.fill.needs_wakeup() || now - self.asked_at >= ASK_EVERY {
            self.asked_at = now;
            self.wake_fill();
        }
        self.dead.is_none() && !self.socket.rx.is_ready()
    }

    fn limit_lent(&mut self, share: u32) {
        self.fill_target.limit(share);
    }

    fn stats(&self) -> LinkStats {
        let mut stats = LinkStats { rx_ran_out: self.fill_target.used_up, ..self.stats };
        if let Ok(kernel) = xsk::statistics(self.socket.fd.as_fd()) {
            stats.rx_dropped += kernel.rx_dropped + kernel.rx_ring_full + kernel.rx_invalid_descs;
            stats.tx_dropped += kernel.tx_invalid_descs;
        }
        stats
    }

    fn close(mut self: Box<Self>, pool: &mut UmemPool) {
        let deadline = Instant::now() + CLOSE_WAIT;
        while self.reap(pool) && self.dead.is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
        let XdpLink { socket, mut held, .. } = *self;
        drop(socket);
        for chunk in held.drain() {
            pool.free(Frame::from_raw(chunk, 0, 0));
        }
    }
}

impl std::fmt::Debug for XdpLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdpLink").field("caps", &self.caps).field("stats", &self.stats).finish_non_exhaustive()
    }
}

/// Counts the handles of each chunk that are with the device: a chunk is in the fill ring once, or
/// is being sent any number of times (pieces of it, retransmissions). The rings' sizes keep the
/// count within 16 bits.
///
/// Dropping it returns the remaining chunks to the UMEM (closing a queue returns all of them to a
/// pool first).
struct ChunkCounts {
    count: Box<[u16]>,
    umem: Arc<Umem>,
}

impl ChunkCounts {
    fn new(umem: Arc<Umem>) -> Self {
        Self { count: vec![0; umem.config().chunks as usize].into(), umem }
    }

    #[inline]
    fn add(&mut self, chunk: u32) {
        let count = &mut self.count[chunk as usize];
        *count += 1;
    }

    /// Removes a handle. Returns `false` if the device did not have the chunk.
    #[inline]
    fn take(&mut self, chunk: u32) -> bool {
        match self.count.get_mut(chunk as usize) {
            Some(count) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }

    /// Takes all.
    fn drain(&mut self) -> impl Iterator<Item = u32> {
        self.count
            .iter_mut()
            .enumerate()
            .flat_map(|(chunk, count)| std::iter::repeat_n(chunk as u32, std::mem::take(count) as usize))
    }
}

impl Drop for ChunkCounts {
    fn drop(&mut self) {
        let umem = self.umem.clone();
        umem.reclaim(self.drain());
    }
}
