//! Calls on a UDP socket.

use crate::error::Error;
use crate::flow::FlowKey;
use crate::frame::{FramePool, IfaceId};
use crate::net::neigh::{PathId, PathState};
use crate::outbox::CoreMessage;
use crate::socket::event::{Ready, UdpId};
use crate::socket::ports::Choice;
use crate::socket::udp::{UdpMeta, UdpTable, build_udp};
use crate::stack::Stack;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

/// Route and headers of datagrams to one destination.
pub(super) struct DatagramRoute {
    key: FlowKey,
    path: PathId,
    /// Hop limit, and type of service or traffic class.
    pub(super) marks: (u8, u8),
    /// Largest payload in bytes.
    most: usize,
}

impl<P: FramePool> Stack<P> {
    /// Binds a UDP socket. For port 0 the stack chooses one of this core's ports. `[::]` includes
    /// IPv4.
    pub fn udp_bind(&mut self, at: SocketAddr) -> Result<UdpId, Error> {
        let (ip, device) = (at.ip().to_canonical(), self.net.bound_by(at, None)?);
        if !ip.is_unspecified() && !self.config.nonlocal_bind && !self.net.may_be_at(ip, device) {
            return Err(Error::AddrNotAvailable);
        }
        let Self { udp, ports, .. } = self;
        let peer = SocketAddr::new(if ip.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) }, 0);
        let id = udp.bind(at, false, |free| ports.pick(ip, peer, Choice::Named, free))?;
        udp.set_device(id, device)?;
        self.announce_datagrams(id, true);
        Ok(id)
    }

    /// Announces a socket's binding to the other cores, whose queues may receive its datagrams.
    fn announce_datagrams(&mut self, id: UdpId, up: bool) {
        let Some(binding) = self.udp.binding(id) else { return };
        let core = self.config.core;
        self.tell_others(|| CoreMessage::Datagrams { core, binding, up });
    }

    /// Connects a socket as connect(2): sets the default destination, which is also the only
    /// accepted sender.
    pub fn udp_connect(&mut self, id: UdpId, remote: SocketAddr) -> Result<(), Error> {
        let device = self.net.bound_by(remote, self.udp_device(id)?)?;
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        if !self.net.is_unicast(remote.ip()) {
            return Err(Error::InvalidInput);
        }
        let local = self.udp.local(id)?.ip();
        let source = self.udp_source(local, remote.ip(), device)?;
        self.change_binding(id, |udp| {
            udp.connect(id, remote, source)?;
            udp.set_device(id, device)
        })
    }

    /// Sets the peer of a socket whose datagrams the runtime sends by another way than this stack's
    /// interfaces, and the address that they have there.
    pub fn udp_connect_from(&mut self, id: UdpId, remote: SocketAddr, source: IpAddr) -> Result<(), Error> {
        self.change_binding(id, |udp| udp.connect(id, remote, source))
    }

    /// Changes a socket's binding. The other cores find what they know of it only by the whole
    /// binding, so it must not change without this.
    fn change_binding(
        &mut self,
        id: UdpId,
        change: impl FnOnce(&mut UdpTable) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.announce_datagrams(id, false);
        let changed = change(&mut self.udp);
        self.announce_datagrams(id, true);
        changed
    }

    /// Sends one datagram. `to: None` requires a connected socket. Broadcast and multicast
    /// (`InvalidInput`) and fragmentation (`MessageSize`) are not supported. `WouldBlock` if many
    /// datagrams wait for the interface: `Event::Udp` with `Ready::WRITE` reports that fewer do.
    pub fn udp_send(&mut self, id: UdpId, buf: &[u8], to: Option<SocketAddr>) -> Result<usize, Error> {
        let way = self.udp_way(id, to)?;
        self.udp_send_by(&way, core::iter::once(buf))?;
        Ok(buf.len())
    }

    /// Determines route and headers of a datagram.
    pub(super) fn udp_way(&mut self, id: UdpId, to: Option<SocketAddr>) -> Result<DatagramRoute, Error> {
        if let Some(error) = self.udp.take_error(id)? {
            return Err(error);
        }
        let local = self.udp.local(id)?;
        // Like Linux: the scope id of this destination has priority over the socket's device.
        let device = match to.map_or(Ok(None), |to| self.net.scope_device(to))? {
            None => self.udp_device(id)?,
            named => named,
        };
        let remote = match to {
            Some(to) => SocketAddr::new(to.ip().to_canonical(), to.port()),
            None => self.udp.remote(id)?.ok_or(Error::NotConnected)?,
        };
        if remote.port() == 0 || !self.net.is_unicast(remote.ip()) {
            return Err(Error::InvalidInput);
        }
        let source = self.udp_source(local.ip(), remote.ip(), device)?;
        let key = FlowKey::new(SocketAddr::new(source, local.port()), remote).ok_or(Error::InvalidInput)?;
        let path = self.net.path_to(remote.ip(), device)?;
        if !self.net.retry(path, self.now) {
            return Err(Error::HostUnreachable);
        }
        if self.net.queue_of(path).is_some_and(|queue| queue.is_crowded()) {
            self.udp.block(id, self.net.path(path).iface());
            return Err(Error::WouldBlock);
        }
        let headers = if key.is_v6() { 48 } else { 28 };
        let mtu = self.net.path_mtu(path, remote.ip(), self.now);
        Ok(DatagramRoute {
            key,
            path,
            marks: (self.udp.ttl(id)?, self.udp.tos(id)?),
            most: usize::from(mtu.saturating_sub(headers)),
        })
    }

    /// Sends payloads to one destination: all or none.
    pub(super) fn udp_send_by<'a>(
        &mut self,
        way: &DatagramRoute,
        payloads: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Error> {
        let Self { pool, net, stats, now, .. } = self;
        let mut packets = Vec::new();
        let mut count = 0;
        for payload in payloads {
            let built = if payload.len() > way.most {
                Err(Error::MessageSize)
            } else {
                build_udp(pool, net.path(way.path), &way.key, way.marks, payload, &mut packets)
            };
            if let Err(error) = built {
                packets.into_iter().for_each(|part: crate::frame::TxFrame| pool.free(part.frame));
                return Err(error);
            }
            count += 1;
        }
        stats.udp_sent += count;
        if net.path(way.path).state() == PathState::Known
            && let Some(queue) = net.queue_of(way.path)
        {
            queue.push_datagrams(packets);
            return Ok(());
        }
        let mut packet = Vec::new();
        for part in packets {
            let more = part.frame.more();
            packet.push(part);
            if !more {
                net.wait_for_neighbour(pool, stats, way.path, *now, core::mem::take(&mut packet));
            }
        }
        Ok(())
    }

    fn udp_source(&mut self, local: IpAddr, remote: IpAddr, device: Option<IfaceId>) -> Result<IpAddr, Error> {
        if !local.is_unspecified() {
            return Ok(local);
        }
        let path = self.net.path_to(remote, device)?;
        self.net.source_for(path, remote, device).ok_or(Error::AddrNotAvailable)
    }

    /// Takes the next datagram, or copies it with `peek`.
    pub fn udp_recv(&mut self, id: UdpId, buf: &mut [u8], peek: bool) -> Result<UdpMeta, Error> {
        self.udp.recv(&mut self.pool, id, buf, peek)
    }

    /// Returns what the socket is ready for.
    pub fn udp_ready(&self, id: UdpId) -> Result<Ready, Error> {
        self.udp.ready(id)
    }

    /// Sets IP_TTL; `None` is the default.
    pub fn udp_set_ttl(&mut self, id: UdpId, ttl: Option<u8>) -> Result<(), Error> {
        self.udp.set_ttl(id, ttl)
    }

    /// Returns the hop limit of transmitted datagrams.
    pub fn udp_ttl(&self, id: UdpId) -> Result<u8, Error> {
        self.udp.ttl(id)
    }

    /// Sets IP_TOS or IPV6_TCLASS, all 8 bits: one value for both families.
    pub fn udp_set_tos(&mut self, id: UdpId, tos: u8) -> Result<(), Error> {
        self.udp.set_tos(id, tos)
    }

    /// Returns IP_TOS or IPV6_TCLASS. See [`Stack::udp_set_tos`].
    pub fn udp_tos(&self, id: UdpId) -> Result<u8, Error> {
        self.udp.tos(id)
    }

    /// Sets SO_BINDTODEVICE: the only interface that the socket receives and sends by; `None`: all.
    pub fn udp_set_device(&mut self, id: UdpId, device: Option<IfaceId>) -> Result<(), Error> {
        self.change_binding(id, |udp| udp.set_device(id, device))
    }

    /// Returns the device. See [`Stack::udp_set_device`].
    pub fn udp_device(&self, id: UdpId) -> Result<Option<IfaceId>, Error> {
        self.udp.binding(id).map(|binding| binding.device).ok_or(Error::BadSocket)
    }

    /// Returns our address and port.
    pub fn udp_local(&self, id: UdpId) -> Result<SocketAddr, Error> {
        Ok(self.net.scoped(self.udp.local(id)?, self.udp_device(id)?))
    }

    /// Returns the peer of a connected socket.
    pub fn udp_remote(&self, id: UdpId) -> Result<Option<SocketAddr>, Error> {
        let device = self.udp_device(id)?;
        Ok(self.udp.remote(id)?.map(|remote| self.net.scoped(remote, device)))
    }

    /// Takes the pending error: SO_ERROR.
    pub fn udp_take_error(&mut self, id: UdpId) -> Result<Option<Error>, Error> {
        self.udp.take_error(id)
    }

    /// Closes the socket and drops its queued datagrams.
    pub fn udp_close(&mut self, id: UdpId) {
        self.announce_datagrams(id, false);
        self.udp.close(&mut self.pool, id);
    }
}
