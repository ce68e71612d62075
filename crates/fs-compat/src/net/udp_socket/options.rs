//! Options of a UDP socket.

use super::super::udp_task::interface;
use super::UdpSocket;
use crate::local::tcp_stream::ttl_in_range;
use crate::local::udp_socket::class_in_range;
use fs_core::IfaceId;
use std::io;
use std::sync::atomic::Ordering;

impl UdpSocket {
    /// IP_TTL or IPV6_UNICAST_HOPS.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(match self.shared.ttl.load(Ordering::Relaxed) {
            0 => 64,
            ttl => ttl.into(),
        })
    }

    /// Sets IP_TTL or IPV6_UNICAST_HOPS (1 to 255) of datagrams sent from now on.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.shared.ttl.store(ttl_in_range(ttl)?, Ordering::Relaxed);
        self.parts.iter().for_each(|part| part.call.call());
        Ok(())
    }

    /// IP_TOS or IPV6_TCLASS, all 8 bits. One value applies to both families.
    pub fn tos(&self) -> io::Result<u32> {
        Ok(self.shared.tos.load(Ordering::Relaxed).into())
    }

    /// Sets IP_TOS or IPV6_TCLASS of datagrams sent from now on, including the ECN bits: `EINVAL`
    /// above 255.
    pub fn set_tos(&self, tos: u32) -> io::Result<()> {
        self.shared.tos.store(class_in_range(tos)?, Ordering::Relaxed);
        self.parts.iter().for_each(|part| part.call.call());
        Ok(())
    }

    /// IP_TOS: see [`UdpSocket::tos`].
    pub fn tos_v4(&self) -> io::Result<u32> {
        self.tos()
    }

    /// IP_TOS: see [`UdpSocket::set_tos`].
    pub fn set_tos_v4(&self, tos: u32) -> io::Result<()> {
        self.set_tos(tos)
    }

    /// IPV6_TCLASS: see [`UdpSocket::tos`].
    pub fn tclass_v6(&self) -> io::Result<u32> {
        self.tos()
    }

    /// IPV6_TCLASS: see [`UdpSocket::set_tos`].
    pub fn set_tclass_v6(&self, tclass: u32) -> io::Result<()> {
        self.set_tos(tclass)
    }

    /// SO_BINDTODEVICE: from the cores' next turn on, sends and receives only through that device
    /// of the runtime. `None` removes the binding.
    ///
    /// # Errors
    /// `NotFound` if it is not a device of the runtime. Use the crate `socket2` for other devices.
    pub fn bind_device(&self, interface: Option<&[u8]>) -> io::Result<()> {
        let device = interface.map(|name| self.runtime.device(name)).transpose()?;
        self.shared.device.store(device.map_or(0, |IfaceId(n)| u16::from(n) + 1), Ordering::Relaxed);
        self.parts.iter().for_each(|part| part.call.call());
        Ok(())
    }

    /// Returns the device that [`UdpSocket::bind_device`] set.
    pub fn device(&self) -> io::Result<Option<Vec<u8>>> {
        let device = interface(self.shared.device.load(Ordering::Relaxed));
        Ok(device.and_then(|device| self.runtime.device_name(device).map(Into::into)))
    }
}
