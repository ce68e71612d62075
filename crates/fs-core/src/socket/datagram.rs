//! Calls on a UDP socket.

use crate::error::Error;
use crate::flow::FlowKey;
use crate::frame::FramePool;
use crate::socket::event::{Ready, UdpId};
use crate::socket::udp::build_udp;
use crate::stack::{Stack, UdpMeta};
use crate::tx::neigh::PathState;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

impl<P: FramePool> Stack<P> {
    /// Binds a UDP socket; port 0 lets the stack choose one of this core's ports. `[::]` takes IPv4 too.
    pub fn udp_bind(&mut self, at: SocketAddr) -> Result<UdpId, Error> {
        let ip = at.ip().to_canonical();
        if !ip.is_unspecified() && !self.is_local(ip) {
            return Err(Error::AddrNotAvailable);
        }
        let Self { udp, ports, .. } = self;
        let peer = SocketAddr::new(if ip.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) }, 0);
        udp.bind(at, false, |free| ports.pick(ip, peer, free))
    }

    /// connect(2): the default destination, and the only sender heard.
    pub fn udp_connect(&mut self, id: UdpId, remote: SocketAddr) -> Result<(), Error> {
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let local = self.udp.local(id)?.ip();
        let source = self.udp_source(local, remote.ip())?;
        self.udp.connect(id, remote, source)
    }

    /// Sends one datagram. `to: None` needs a connected socket.
    pub fn udp_send(&mut self, id: UdpId, buf: &[u8], to: Option<SocketAddr>) -> Result<usize, Error> {
        if let Some(error) = self.udp.take_error(id)? {
            return Err(error);
        }
        let local = self.udp.local(id)?;
        let remote = match to {
            Some(to) => SocketAddr::new(to.ip().to_canonical(), to.port()),
            None => self.udp.remote(id)?.ok_or(Error::NotConnected)?,
        };
        if remote.port() == 0 {
            return Err(Error::InvalidInput);
        }
        let source = self.udp_source(local.ip(), remote.ip())?;
        let key = FlowKey::new(SocketAddr::new(source, local.port()), remote).ok_or(Error::InvalidInput)?;
        let path = self.net.path_to(remote.ip())?;
        if self.net.path(path).state() == PathState::Failed {
            // Starts a new attempt when the hold-down is over; until then there is no way.
            if !self.net.paths.need(path, self.now) && self.net.path(path).state() == PathState::Failed {
                return Err(Error::HostUnreachable);
            }
            self.net.wanted.push(path);
        }
        let ttl = self.udp.ttl(id)?;
        let mut packet = Vec::new();
        let Self { pool, net, stats, now, .. } = self;
        build_udp(pool, net.path(path), &key, ttl, buf, &mut packet)?;
        stats.udp_sent += 1;
        if net.path(path).state() == PathState::Known
            && let Some(lists) = net.lists_of(path)
        {
            lists.control.extend(packet);
        } else {
            net.wait_for_neighbour(pool, stats, path, *now, packet);
        }
        Ok(buf.len())
    }

    fn udp_source(&mut self, local: IpAddr, remote: IpAddr) -> Result<IpAddr, Error> {
        if !local.is_unspecified() {
            return Ok(local);
        }
        let path = self.net.path_to(remote)?;
        self.net.source_for(path, remote).ok_or(Error::AddrNotAvailable)
    }

    /// Takes (or, with `peek`, looks at) the next datagram.
    pub fn udp_recv(&mut self, id: UdpId, buf: &mut [u8], peek: bool) -> Result<UdpMeta, Error> {
        self.udp.recv(&mut self.pool, id, buf, peek)
    }

    /// What is ready now.
    pub fn udp_ready(&self, id: UdpId) -> Result<Ready, Error> {
        self.udp.ready(id)
    }

    /// IP_TTL; `None` is the default.
    pub fn udp_set_ttl(&mut self, id: UdpId, ttl: Option<u8>) -> Result<(), Error> {
        self.udp.set_ttl(id, ttl)
    }

    /// The hop limit of what is sent.
    pub fn udp_ttl(&self, id: UdpId) -> Result<u8, Error> {
        self.udp.ttl(id)
    }

    /// Our address and port.
    pub fn udp_local(&self, id: UdpId) -> Result<SocketAddr, Error> {
        self.udp.local(id)
    }

    /// The peer of a connected socket.
    pub fn udp_remote(&self, id: UdpId) -> Result<Option<SocketAddr>, Error> {
        self.udp.remote(id)
    }

    /// SO_ERROR.
    pub fn udp_take_error(&mut self, id: UdpId) -> Result<Option<Error>, Error> {
        self.udp.take_error(id)
    }

    /// Closes the socket; what it holds is dropped.
    pub fn udp_close(&mut self, id: UdpId) {
        self.udp.close(&mut self.pool, id);
    }
}
