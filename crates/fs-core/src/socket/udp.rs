//! UDP sockets of one core (RFC 768): demultiplexing, receive queues, transmission.
//!
//! Received datagrams stay in their frames until they are read. There is no IP fragmentation: a
//! datagram that exceeds the path's MTU is rejected with `Error::MessageSize`, as Linux does with
//! `IP_PMTUDISC_DO`.

mod binding;
mod build;
mod queue;
mod table;

#[cfg(test)]
mod tests;

pub use binding::UdpBinding;
pub(crate) use build::build_udp;

use crate::config::Limits;
use crate::drop_reason::DropReason;
use crate::error::Error;
use crate::flow::{CoreId, FlowKey, Protocol};
use crate::frame::{FramePool, IfaceId, RxFrame};
use crate::rx::parse::Datagram;
use crate::socket::event::{Ready, UdpId};
use crate::wire::icmp::{IcmpError, IcmpErrorKind};
use alloc::vec::Vec;
use binding::Elsewhere;
use core::net::{IpAddr, SocketAddr};
use queue::ReceiveQueue;
use table::{PortTable, Sockets};

/// Maximum number of datagrams of one `udp_send_segments`: Linux's `UDP_MAX_SEGMENTS`.
pub(crate) const SEGMENTS_MAX: usize = 128;

/// Default hop limit of transmitted packets: RFC 1122 3.2.1.7, and Linux's default.
pub(crate) const DEFAULT_TTL: u8 = 64;

/// Metadata of a received datagram.
///
/// ```
/// use fastsock::UdpMeta;
///
/// let meta = UdpMeta::new(5, "192.0.2.1:53".parse().unwrap(), "192.0.2.10:4000".parse().unwrap());
/// assert_eq!((meta.len, meta.from.port()), (5, 53));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdpMeta {
    /// Bytes in the datagram (more than were copied if the buffer was too small).
    pub len: usize,
    /// The datagram's sender.
    pub from: SocketAddr,
    /// The local address that it was sent to.
    pub to: SocketAddr,
    /// IPv4's type of service or IPv6's traffic class as received, including ECN bits (IP_RECVTOS,
    /// IPV6_RECVTCLASS). `None` if unknown, as for datagrams that a kernel socket had received before
    /// it was taken over.
    pub tos: Option<u8>,
}

impl UdpMeta {
    /// Makes the metadata of a datagram of `len` bytes.
    pub const fn new(len: usize, from: SocketAddr, to: SocketAddr) -> Self {
        Self { len, from, to, tos: None }
    }
}

/// A socket.
#[derive(Debug)]
struct Socket {
    binding: UdpBinding,
    ttl: Option<u8>,
    tos: u8,
    error: Option<Error>,
    /// It waits to send: see [`UdpTable::block`].
    is_blocked: bool,
    /// Interfaces in whose name it is in `UdpTable::blocked`.
    blocked_by: Vec<IfaceId>,
    queue: ReceiveQueue,
}

impl Socket {
    fn new(binding: UdpBinding) -> Self {
        let (blocked_by, queue) = (Vec::new(), ReceiveQueue::default());
        Self { binding, ttl: None, tos: 0, error: None, is_blocked: false, blocked_by, queue }
    }

    fn ready(&self) -> Ready {
        let (has_error, has_datagram) = (self.error.is_some(), !self.queue.is_empty());
        let read = if has_error || has_datagram { Ready::READ } else { Ready::default() };
        let write = if has_error || !self.is_blocked { Ready::WRITE } else { Ready::default() };
        read | write
    }
}

/// Bounds of receive queues.
#[derive(Clone, Copy, Debug)]
struct QueueLimits {
    /// Frames that all queues of this core may hold together.
    frames: usize,
}

/// All UDP sockets of one core.
#[derive(Debug)]
pub(crate) struct UdpTable {
    sockets: Sockets,
    ports: PortTable,
    elsewhere: Elsewhere,
    /// Sockets that wait to send by an interface, each pair once, oldest first.
    blocked: Vec<(UdpId, IfaceId)>,
    limits: QueueLimits,
    frames_held: usize,
}

impl UdpTable {
    /// Makes an empty table. `pool_frames` is the capacity of the core's frame pool. UDP may hold
    /// half of the receive queues' share; the other half is for TCP, whose peers respect flow
    /// control.
    pub(crate) fn new(limits: &Limits, pool_frames: usize) -> Self {
        let frames = (pool_frames * usize::from(limits.receive_pool_percent) / 200).max(1);
        Self {
            sockets: Sockets::new(limits.udp_sockets as usize),
            ports: PortTable::default(),
            elsewhere: Elsewhere::default(),
            blocked: Vec::new(),
            limits: QueueLimits { frames },
            frames_held: 0,
        }
    }

    /// Binds a new socket. For port 0, `choose` selects a port, given a test for "free at this
    /// address".
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable` (no port was chosen), `NoBuffers` (too many sockets).
    pub(crate) fn bind(
        &mut self,
        at: SocketAddr,
        v6_only: bool,
        choose: impl FnOnce(&dyn Fn(u16) -> bool) -> Option<u16>,
    ) -> Result<UdpId, Error> {
        let mut local = SocketAddr::new(at.ip().to_canonical(), at.port());
        if local.port() == 0 {
            let is_free = |port| port != 0 && self.is_free(SocketAddr::new(local.ip(), port), v6_only);
            let port = choose(&is_free).filter(|port| is_free(*port)).ok_or(Error::AddrNotAvailable)?;
            local.set_port(port);
        } else if !self.is_free(local, v6_only) {
            return Err(Error::AddrInUse);
        }
        let binding = UdpBinding { local, v6_only, remote: None, device: None };
        let id = self.sockets.insert(Socket::new(binding)).ok_or(Error::NoBuffers)?;
        self.ports.insert(local.port(), id.index);
        Ok(id)
    }

    fn is_free(&self, at: SocketAddr, v6_only: bool) -> bool {
        let taken = |index: &u32| self.sockets.at(*index).is_some_and(|socket| socket.binding.conflicts(at, v6_only));
        !self.ports.at(at.port()).iter().any(taken)
    }

    /// Connects a socket: it receives datagrams only from `remote` from now on, and `send` needs no
    /// address. A wildcard socket gets `source` as its address. Connecting again is allowed.
    ///
    /// # Errors
    /// `InvalidInput` for a remote without port or address or of the wrong family, `BadSocket`,
    /// `AddrInUse` if another socket has that flow.
    pub(crate) fn connect(&mut self, id: UdpId, remote: SocketAddr, source: IpAddr) -> Result<(), Error> {
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let source = source.to_canonical();
        let socket = self.sockets.find(id)?;
        if remote.port() == 0 || remote.ip().is_unspecified() || source.is_ipv4() != remote.is_ipv4() {
            return Err(Error::InvalidInput);
        }
        if !socket.binding.is_at(source) {
            return Err(Error::InvalidInput);
        }
        let local = SocketAddr::new(source, socket.binding.local.port());
        let same_flow = |index: &u32| {
            *index != id.index
                && self
                    .sockets
                    .at(*index)
                    .is_some_and(|other| other.binding.local == local && other.binding.remote == Some(remote))
        };
        if self.ports.at(local.port()).iter().any(same_flow) {
            return Err(Error::AddrInUse);
        }
        let socket = self.sockets.find_mut(id)?;
        socket.binding.local = local;
        socket.binding.remote = Some(remote);
        // Linux: a successful connect clears errors of earlier peers.
        socket.error = None;
        Ok(())
    }

    /// Returns the socket for a flow's datagrams: a connected one before a bound address before a
    /// wildcard.
    #[inline]
    pub(crate) fn lookup(&self, key: &FlowKey, iface: IfaceId) -> Option<UdpId> {
        self.best(key, iface).and_then(|(_, index)| self.sockets.id(index))
    }

    /// Returns the best socket's score and slot.
    #[inline]
    fn best(&self, key: &FlowKey, iface: IfaceId) -> Option<(u8, u32)> {
        let candidates = self.ports.at(key.local_port());
        if candidates.is_empty() {
            return None;
        }
        let (local, remote) = (key.local_ip(), key.remote());
        let score =
            |index: &u32| self.sockets.at(*index)?.binding.score(local, remote, iface).map(|score| (score, *index));
        candidates.iter().filter_map(score).max_by_key(|(score, _)| *score)
    }

    /// Returns another core whose socket fits this flow better than any socket of this core.
    /// `choice` spreads flows over cores whose sockets fit equally.
    #[inline]
    pub(crate) fn elsewhere(&self, key: &FlowKey, iface: IfaceId, choice: impl FnOnce() -> u64) -> Option<CoreId> {
        self.elsewhere.better(key, iface, self.best(key, iface).map(|(score, _)| score), choice)
    }

    /// Records that another core's socket was opened or closed.
    pub(crate) fn set_elsewhere(&mut self, core: CoreId, binding: UdpBinding, up: bool) {
        self.elsewhere.set(core, binding, up);
    }

    /// Returns a socket's binding.
    pub(crate) fn binding(&self, id: UdpId) -> Option<UdpBinding> {
        self.sockets.find(id).ok().map(|socket| socket.binding)
    }

    /// Puts a datagram into its socket's queue. `frames` is its packet, in order, as parsed.
    ///
    /// `scopes` contains the scope ids of the sender's address and of ours.
    ///
    /// Returns the socket if it has just become readable. On error the frames are already freed;
    /// look the socket up first if they are still needed (for an ICMP reply).
    pub(crate) fn deliver<P: FramePool>(
        &mut self,
        pool: &mut P,
        datagram: &Datagram,
        (iface, scopes): (IfaceId, [u32; 2]),
        frames: impl IntoIterator<Item = RxFrame>,
    ) -> Result<Option<UdpId>, DropReason> {
        let mut frames = frames.into_iter().map(|frame| frame.frame);
        let refused = match self.lookup(&datagram.key, iface) {
            None => DropReason::NoSocket,
            Some(id) => match self.sockets.find_mut(id) {
                Ok(socket) if self.frames_held < self.limits.frames && socket.queue.has_room(datagram.payload_len) => {
                    let newly = socket.queue.is_empty() && socket.error.is_none();
                    self.frames_held += socket.queue.push(pool, datagram, scopes, frames);
                    return Ok(newly.then_some(id));
                }
                Ok(_) => DropReason::UdpQueueFull,
                Err(_) => DropReason::NoSocket,
            },
        };
        frames.by_ref().for_each(|frame| pool.free(frame));
        Err(refused)
    }

    /// Reads the next datagram into `buf`. Bytes that do not fit are lost (unless `peek`), as with
    /// `recvfrom`.
    ///
    /// # Errors
    /// The socket's pending error (once), `WouldBlock`, `BadSocket`.
    pub(crate) fn recv<P: FramePool>(
        &mut self,
        pool: &mut P,
        id: UdpId,
        buf: &mut [u8],
        peek: bool,
    ) -> Result<UdpMeta, Error> {
        let socket = self.sockets.find_mut(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        let meta = socket.queue.copy_out(pool, buf).ok_or(Error::WouldBlock)?;
        if !peek {
            self.frames_held -= socket.queue.pop(pool);
        }
        Ok(meta)
    }

    /// Returns the metadata of the datagram that `recv` would return.
    pub(crate) fn next_meta(&self, id: UdpId) -> Option<UdpMeta> {
        self.sockets.find(id).ok().filter(|socket| socket.error.is_none())?.queue.first()
    }

    /// Returns true if a socket receives datagrams of this flow.
    pub(crate) fn has_socket(&self, key: &FlowKey, iface: IfaceId) -> bool {
        self.lookup(key, iface).is_some()
    }

    /// Handles an ICMP error about one of our datagrams. As in Linux without `IP_RECVERR`, only a
    /// connected socket receives it, and only hard errors (or that a datagram was too large).
    /// Returns the socket if it has just become readable.
    pub(crate) fn on_icmp(&mut self, error: &IcmpError, iface: IfaceId) -> Option<UdpId> {
        let counts = error.kind.is_hard()
            || matches!(error.kind, IcmpErrorKind::FragmentationNeeded { .. } | IcmpErrorKind::PacketTooBig { .. });
        if error.protocol != Protocol::Udp || !counts {
            return None;
        }
        let id = self.lookup(&error.key, iface)?;
        let socket = self.sockets.find_mut(id).ok().filter(|socket| socket.binding.remote.is_some())?;
        let newly = !socket.ready().contains(Ready::READ);
        socket.error = Some(error.kind.error());
        newly.then_some(id)
    }

    /// Sets a socket's pending error. Returns true if the socket has just become readable.
    #[cfg(test)]
    pub(crate) fn set_error(&mut self, id: UdpId, error: Error) -> Result<bool, Error> {
        let socket = self.sockets.find_mut(id)?;
        let newly = !socket.ready().contains(Ready::READ);
        socket.error = Some(error);
        Ok(newly)
    }

    /// Takes the pending error: SO_ERROR.
    pub(crate) fn take_error(&mut self, id: UdpId) -> Result<Option<Error>, Error> {
        Ok(self.sockets.find_mut(id)?.error.take())
    }

    /// Records that a socket waits until fewer datagrams are queued for `iface`. It may wait for several
    /// interfaces: it sends to many peers, and one of the interfaces may be down.
    #[cold]
    pub(crate) fn block(&mut self, id: UdpId, iface: IfaceId) {
        let Ok(socket) = self.sockets.find_mut(id) else { return };
        socket.is_blocked = true;
        if !socket.blocked_by.contains(&iface) {
            socket.blocked_by.push(iface);
            self.blocked.push((id, iface));
        }
    }

    /// Returns true if sockets wait to send.
    #[inline]
    pub(crate) fn has_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Returns the sockets that waited to send by `iface`, or by any interface. They wait no longer.
    #[cold]
    pub(crate) fn unblock(&mut self, iface: Option<IfaceId>) -> impl Iterator<Item = UdpId> {
        let Self { sockets, blocked, .. } = self;
        let is_meant = move |by: IfaceId| iface.is_none_or(|iface| iface == by);
        blocked.extract_if(.., move |(_, by)| is_meant(*by)).filter_map(move |(id, _)| {
            let socket = sockets.find_mut(id).ok()?;
            socket.blocked_by.retain(|by| !is_meant(*by));
            core::mem::take(&mut socket.is_blocked).then_some(id)
        })
    }

    /// Returns what the socket is ready for.
    pub(crate) fn ready(&self, id: UdpId) -> Result<Ready, Error> {
        Ok(self.sockets.find(id)?.ready())
    }

    /// Returns the socket's local address.
    pub(crate) fn local(&self, id: UdpId) -> Result<SocketAddr, Error> {
        Ok(self.sockets.find(id)?.binding.local)
    }

    /// Returns the peer that the socket is connected to.
    pub(crate) fn remote(&self, id: UdpId) -> Result<Option<SocketAddr>, Error> {
        Ok(self.sockets.find(id)?.binding.remote)
    }

    /// Returns the TTL or hop limit of transmitted packets.
    pub(crate) fn ttl(&self, id: UdpId) -> Result<u8, Error> {
        Ok(self.sockets.find(id)?.ttl.unwrap_or(DEFAULT_TTL))
    }

    /// Sets the TTL or hop limit; `None` means [`DEFAULT_TTL`]. Returns `InvalidInput` for 0.
    pub(crate) fn set_ttl(&mut self, id: UdpId, ttl: Option<u8>) -> Result<(), Error> {
        let socket = self.sockets.find_mut(id)?;
        if ttl == Some(0) {
            return Err(Error::InvalidInput);
        }
        socket.ttl = ttl;
        Ok(())
    }

    /// Returns the type of service or traffic class of transmitted packets.
    pub(crate) fn tos(&self, id: UdpId) -> Result<u8, Error> {
        Ok(self.sockets.find(id)?.tos)
    }

    /// Sets the type of service or traffic class, including the ECN bits, which belong to a
    /// datagram's sender, as in Linux.
    pub(crate) fn set_tos(&mut self, id: UdpId, tos: u8) -> Result<(), Error> {
        self.sockets.find_mut(id)?.tos = tos;
        Ok(())
    }

    /// Sets the only interface that the socket receives and sends by.
    pub(crate) fn set_device(&mut self, id: UdpId, device: Option<IfaceId>) -> Result<(), Error> {
        self.sockets.find_mut(id)?.binding.device = device;
        Ok(())
    }

    /// Closes a socket and frees its queued datagrams. Ignores a stale id.
    pub(crate) fn close<P: FramePool>(&mut self, pool: &mut P, id: UdpId) {
        if let Some(mut socket) = self.sockets.remove(id) {
            self.ports.remove(socket.binding.local.port(), id.index);
            if !socket.blocked_by.is_empty() {
                self.blocked.retain(|(other, _)| *other != id);
            }
            while !socket.queue.is_empty() {
                self.frames_held -= socket.queue.pop(pool);
            }
        }
    }

    /// Returns the number of open sockets.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Returns the number of frames in receive queues.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn frames_held(&self) -> usize {
        self.frames_held
    }
}
