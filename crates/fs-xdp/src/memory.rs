//! Two links joined in memory: for tests, examples and benchmarks without a device.
//!
//! Packets are copied from the sender's pool into buffers that circulate between the two ends, and
//! from there into chunks of the receiver's pool. The pools may belong to different UMEMs. Each
//! direction is a bounded queue, and a full queue refuses packets, as a device's ring does.

use crate::copying;
use crate::link::{Link, LinkCaps, LinkKind, LinkStats};
use crate::sys::eventfd::EventFd;
use crate::umem::UmemPool;
use crossbeam::queue::ArrayQueue;
use fs_core::{FramePool, Framing, IfaceId, RxChecksum, RxFrame, TxFrame};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Bytes of link-layer header that come on top of the MTU: Ethernet and one VLAN tag.
const LINK_HEADER_MAX: usize = 18;

/// Options of a pair.
#[derive(Clone, Copy, Debug)]
pub struct MemoryConfig {
    /// Ethernet or bare IP.
    pub framing: Framing,
    /// Largest IP packet in bytes. Longer packets are dropped and counted.
    pub mtu: u16,
    /// Packets that each direction holds.
    pub depth: usize,
    /// The links take packets with unfinished checksums, and the receiver is told that they are
    /// verified.
    pub tx_checksum: bool,
    /// The two ends' MAC addresses (ignored with raw IP framing).
    pub macs: [[u8; 6]; 2],
}

impl MemoryConfig {
    /// Defaults: 1024 packets in each direction, finished checksums, locally administered
    /// addresses.
    pub fn new(framing: Framing, mtu: u16) -> Self {
        Self { framing, mtu, depth: 1024, tx_checksum: false, macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]] }
    }
}

/// Creates a pair with the defaults of [`MemoryConfig::new`].
///
/// # Errors
/// Errors of `eventfd`.
pub fn pair(framing: Framing, mtu: u16) -> io::Result<(MemoryLink, MemoryLink)> {
    pair_with(MemoryConfig::new(framing, mtu))
}

/// Creates a pair with these options.
///
/// # Errors
/// Errors of `eventfd`.
pub fn pair_with(config: MemoryConfig) -> io::Result<(MemoryLink, MemoryLink)> {
    let forth = Arc::new(Direction::new(&config)?);
    let back = Arc::new(Direction::new(&config)?);
    let end = |rx: &Arc<Direction>, tx: &Arc<Direction>, mac| MemoryLink {
        caps: LinkCaps {
            kind: LinkKind::Memory,
            framing: config.framing,
            mac: if config.framing == Framing::Ethernet { mac } else { [0; 6] },
            mtu: config.mtu,
            tx_checksum: config.tx_checksum,
            virtual_peer: false,
            multi_buffer: true,
        },
        rx: rx.clone(),
        tx: tx.clone(),
        stats: LinkStats::default(),
    };
    Ok((end(&back, &forth, config.macs[0]), end(&forth, &back, config.macs[1])))
}

/// A packet in flight.
struct Packet {
    bytes: Vec<u8>,
    checksum: RxChecksum,
}

struct Direction {
    full: ArrayQueue<Packet>,
    /// Buffers to be filled again. A buffer that is in neither queue is in use by the sender or
    /// receiver.
    empty: ArrayQueue<Vec<u8>>,
    wake: EventFd,
    /// The receiver sleeps or is about to: see `prepare_sleep`.
    sleeping: AtomicBool,
    /// The receiving end is gone.
    closed: AtomicBool,
}

impl Direction {
    fn new(config: &MemoryConfig) -> io::Result<Self> {
        let depth = config.depth.max(1);
        Ok(Self {
            full: ArrayQueue::new(depth),
            empty: ArrayQueue::new(depth),
            wake: EventFd::new()?,
            sleeping: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }
}

/// One end of a pair made by [`pair`].
pub struct MemoryLink {
    caps: LinkCaps,
    rx: Arc<Direction>,
    tx: Arc<Direction>,
    stats: LinkStats,
}

impl MemoryLink {
    fn longest(&self) -> usize {
        self.caps.mtu as usize + if self.caps.framing == Framing::Ethernet { LINK_HEADER_MAX } else { 0 }
    }

    /// Copies `packet` (a whole chain) into a buffer and sends it. Returns `false` if the queue is
    /// full.
    fn send(&mut self, pool: &UmemPool, packet: &[TxFrame]) -> bool {
        let length: usize = packet.iter().map(|part| part.frame.len()).sum();
        if length > self.longest() {
            self.stats.tx_dropped += 1;
            return true;
        }
        if self.tx.full.is_full() {
            return false;
        }
        // New buffers are allocated until the circle is full, and then reused.
        let mut bytes = self.tx.empty.pop().unwrap_or_default();
        bytes.clear();
        for part in packet {
            bytes.extend_from_slice(pool.bytes(&part.frame));
        }
        let checksum = match packet[0].checksum {
            Some(_) if self.caps.tx_checksum => RxChecksum::Verified,
            Some(request) => {
                crate::checksum::finish(&mut bytes, request);
                RxChecksum::Unknown
            }
            None => RxChecksum::Unknown,
        };
        // We are the only producer, so the queue has not become full since.
        if self.tx.full.push(Packet { bytes, checksum }).is_err() {
            return false;
        }
        self.stats.tx_packets += 1;
        true
    }

    /// Wakes the other end if it sleeps.
    fn wake_peer(&mut self) {
        // Pairs with the fence in `prepare_sleep`: either it sees our packet, or we see its flag.
        fence(Ordering::SeqCst);
        if self.tx.sleeping.load(Ordering::Relaxed) && self.tx.sleeping.swap(false, Ordering::Relaxed) {
            self.tx.wake.signal();
            self.stats.syscalls += 1;
        }
    }
}

impl Link for MemoryLink {
    fn caps(&self) -> &LinkCaps {
        &self.caps
    }

    fn rx(&mut self, pool: &mut UmemPool, iface: IfaceId, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let mut packets = 0;
        while packets < max {
            let Some(packet) = self.rx.full.pop() else { break };
            if copying::copy_in(pool, iface, &packet.bytes, packet.checksum, out) {
                packets += 1;
            } else {
                self.stats.rx_dropped += 1;
            }
            // Full only if the other end made more buffers than the circle holds. Then drop this
            // one.
            drop(self.rx.empty.push(packet.bytes));
        }
        if packets > 0 && self.rx.sleeping.load(Ordering::Relaxed) {
            self.rx.sleeping.store(false, Ordering::Relaxed);
        }
        self.stats.rx_packets += packets as u64;
        packets
    }

    fn tx(&mut self, pool: &mut UmemPool, frames: &mut Vec<TxFrame>) -> io::Result<usize> {
        if self.tx.closed.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the other end of the memory link is closed"));
        }
        let mut sent = 0;
        let mut done = 0;
        while let Some(end) = crate::chain::end(frames, done) {
            if !self.send(pool, &frames[done..end]) {
                break;
            }
            done = end;
            sent += 1;
        }
        for part in frames.drain(..done) {
            pool.free(part.frame);
        }
        if sent > 0 {
            self.wake_peer();
        }
        Ok(sent)
    }

    fn reap(&mut self, _pool: &mut UmemPool) -> bool {
        false
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.rx.wake.fd())
    }

    fn prepare_sleep(&mut self, _pool: &mut UmemPool) -> bool {
        self.rx.wake.clear();
        self.stats.syscalls += 1;
        self.rx.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.rx.full.is_empty() && !self.tx.closed.load(Ordering::Acquire) {
            return true;
        }
        self.rx.sleeping.store(false, Ordering::Relaxed);
        false
    }

    fn stats(&self) -> LinkStats {
        self.stats
    }

    fn close(self: Box<Self>, _pool: &mut UmemPool) {}
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.rx.closed.store(true, Ordering::Release);
        // A peer that waits for packets finds out that none will come.
        fence(Ordering::SeqCst);
        self.tx.wake.signal();
    }
}

impl std::fmt::Debug for MemoryLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryLink").field("caps", &self.caps).field("stats", &self.stats).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
