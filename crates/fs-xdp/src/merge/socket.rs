//! The packet socket next to an AF_XDP socket: it takes runs, and what must not overtake them.

use super::Refusals;
use super::carriers::{Carriers, FLOW_BITS};
use super::header::MergedHeader;
use super::offloads::Offloads;
use super::run::Run;
use super::segment::flow_number;
use crate::sys::merged_io::{self, Pieces};
use crate::sys::packet;
use crate::sys::packet_io::Vnet;
use crate::umem::UmemPool;
use fs_core::{FramePool, Framing, TxFrame};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most of our bytes that the kernel may hold. The windows of the flows bound what is in
/// flight. More only fills the queueing discipline. With less, a flow with 4 MiB in flight would
/// wait.
const SEND_BUFFER: i32 = 4 << 20;
/// Time for which nothing is sent by the socket after the kernel had no room. Shorter: calls that
/// copy for nothing; longer: the device idles. A queue of 10 Gb/s sends a merged packet in 52 µs.
const PAUSE: Duration = Duration::from_micros(50);

/// The result of sending a packet or a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Sent,
    /// The kernel has no room: later.
    Later,
    /// The kernel drops it each time.
    Dropped,
    /// The socket does not take this packet: it is for the AF_XDP socket.
    Refused,
}

/// Returns a packet socket that sends super-segments by the device with this index, in the calling
/// thread's network namespace.
pub(crate) fn bound(index: u32) -> io::Result<OwnedFd> {
    let socket = packet::socket()?;
    packet::set(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    // Not PACKET_QDISC_BYPASS: with it a packet that the kernel has to cut is refused (ENOBUFS).
    if packet::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER).is_err() {
        packet::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER)?;
    }
    packet::bind_to_send(socket.as_fd(), index)?;
    Ok(socket)
}

/// See the module.
pub(crate) struct MergeSocket {
    socket: OwnedFd,
    pieces: Pieces,
    offloads: Arc<Offloads>,
    carriers: Carriers,
    framing: Framing,
    /// Something may be in flight.
    in_flight: bool,
    /// `in_flight` has been asked for in this batch.
    asked: bool,
    paused_until: Option<Instant>,
    refusals: Refusals,
    /// The kernel has refused a merged packet, and would refuse others.
    refused: bool,
}

impl MergeSocket {
    /// For the device with this index, in the calling thread's network namespace.
    pub(crate) fn open(index: u32, framing: Framing, offloads: Arc<Offloads>) -> io::Result<MergeSocket> {
        Ok(Self::on(bound(index)?, framing, offloads))
    }

    /// Sends by a socket of [`bound`].
    pub(crate) fn on(socket: OwnedFd, framing: Framing, offloads: Arc<Offloads>) -> MergeSocket {
        MergeSocket {
            socket,
            pieces: Pieces::default(),
            offloads,
            carriers: Carriers::new(),
            framing,
            in_flight: false,
            asked: false,
            paused_until: None,
            refusals: Refusals::default(),
            refused: false,
        }
    }

    /// A batch begins; `ring_is_empty`: the AF_XDP socket has nothing in flight.
    #[inline]
    pub(crate) fn begin(&mut self, ring_is_empty: bool) {
        self.asked = false;
        self.carriers.begin_batch();
        if ring_is_empty {
            self.carriers.ring_is_empty();
        }
    }

    /// Runs are merged now.
    #[inline]
    pub(crate) fn merges(&self) -> bool {
        !self.refused && self.offloads.cuts()
    }

    /// See [`Offloads::keep_order`].
    #[inline]
    pub(crate) fn device_keeps_order(&self) -> bool {
        self.offloads.keep_order()
    }

    /// Records that `packet` is sent by the AF_XDP socket. Returns false if packets of the same
    /// flow may still be queued here: `packet` must not overtake them, and has to go through
    /// [`MergeSocket::send`].
    #[inline]
    pub(crate) fn leaves_to_ring(&mut self, packet: &[u8]) -> bool {
        let Some(flow) = flow_number(self.framing, packet, FLOW_BITS) else { return true };
        // A bulk flow has nothing in the ring: its run would not have come here.
        if self.carriers.is_bulk(flow) || self.in_flight && self.carriers.may_be_in_socket(flow) && self.is_in_flight()
        {
            return false;
        }
        self.carriers.sends_by_ring(flow);
        true
    }

    /// Returns true if a run of the flow of `packet` may come here: nothing of it is in flight on the AF_XDP socket.
    pub(crate) fn may_take(&self, packet: &[u8]) -> bool {
        flow_number(self.framing, packet, FLOW_BITS).is_some_and(|flow| !self.carriers.may_be_in_ring(flow))
    }

    /// The kernel had no room a moment ago: nothing is sent here for now.
    #[inline]
    pub(crate) fn is_paused(&mut self) -> bool {
        let Some(until) = self.paused_until else { return false };
        let over = Instant::now() >= until;
        if over {
            self.paused_until = None;
        }
        !over
    }

    /// Asks the kernel, once a batch.
    #[cold]
    fn is_in_flight(&mut self) -> bool {
        if !std::mem::replace(&mut self.asked, true) && !merged_io::is_in_flight(self.socket.as_fd()) {
            self.in_flight = false;
            self.carriers.socket_is_empty();
        }
        self.in_flight
    }

    /// Sends the run at the front of `frames` as one packet.
    pub(crate) fn send_run(&mut self, pool: &UmemPool, frames: &[TxFrame], run: &Run) -> Outcome {
        let header: MergedHeader = super::header(run, pool, frames);
        let outcome = self.transmit(pool, header.bytes(), &frames[..run.frames], run.layout.payload);
        if outcome == Outcome::Sent
            && let Some(flow) = flow_number(self.framing, pool.bytes(&frames[0].frame), FLOW_BITS)
        {
            self.carriers.has_run(flow);
        }
        outcome
    }

    /// Sends the packet in `frames`.
    pub(crate) fn send(&mut self, pool: &UmemPool, frames: &[TxFrame]) -> Outcome {
        let outcome = self.transmit(pool, Vnet::of(frames[0].checksum).bytes(), frames, 0);
        if outcome == Outcome::Refused
            && let Some(flow) = flow_number(self.framing, pool.bytes(&frames[0].frame), FLOW_BITS)
        {
            self.carriers.sends_by_ring(flow);
        }
        outcome
    }

    fn transmit(&mut self, pool: &UmemPool, header: &[u8], frames: &[TxFrame], skip: usize) -> Outcome {
        match self.pieces.send_message(self.socket.as_fd(), header, pool, frames, skip) {
            Ok(()) => {
                self.in_flight = true;
                self.refusals.end();
                if let Some(flow) = flow_number(self.framing, pool.bytes(&frames[0].frame), FLOW_BITS) {
                    self.carriers.sends_by_socket(flow);
                }
                Outcome::Sent
            }
            Err(error) => self.failed(&error),
        }
    }

    #[cold]
    fn failed(&mut self, error: &io::Error) -> Outcome {
        if self.refusals.is_hopeless(error, self.socket.as_fd()) {
            return Outcome::Dropped;
        }
        match error.raw_os_error() {
            // No room in the send buffer, or (ENOBUFS) the kernel has dropped its copy: a queue on the way was full.
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => {
                self.paused_until = Some(Instant::now() + PAUSE);
                return Outcome::Later;
            }
            // The device's MTU was lowered, and the stack does not know yet. `packet_snd` checks only the
            // length of single packets.
            Some(libc::EMSGSIZE) => return Outcome::Dropped,
            // Down or gone: the AF_XDP socket tells which.
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {}
            _ if self.refused => {}
            _ => {
                tracing::warn!(%error, "the kernel refuses a merged packet: segments are sent one by one from here on");
                self.refused = true;
            }
        }
        Outcome::Refused
    }
}
