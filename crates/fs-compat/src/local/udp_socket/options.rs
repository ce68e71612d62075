//! Options of a UDP socket.

use super::{UdpSocket, class_in_range};
use crate::error::IntoIo;
use crate::local::tcp_stream::ttl_in_range;
use std::io;

impl UdpSocket {
    /// IP_TTL or IPV6_UNICAST_HOPS.
    pub fn ttl(&self) -> io::Result<u32> {
        self.core.inspect(|stack| stack.udp_ttl(self.id)).io().map(u32::from)
    }

    /// IP_TTL or IPV6_UNICAST_HOPS; 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = ttl_in_range(ttl)?;
        if let Some(kernel) = &self.kernel {
            kernel.options().set_ttl(ttl.into())?;
        }
        self.call(|stack, id| stack.udp_set_ttl(id, Some(ttl)))
    }

    /// IP_TOS or IPV6_TCLASS, all 8 bits. One value applies to both families.
    pub fn tos(&self) -> io::Result<u32> {
        self.core.inspect(|stack| stack.udp_tos(self.id)).io().map(u32::from)
    }

    /// IP_TOS or IPV6_TCLASS, including the ECN bits: `EINVAL` above 255.
    pub fn set_tos(&self, tos: u32) -> io::Result<()> {
        let tos = class_in_range(tos)?;
        if let Some(kernel) = &self.kernel {
            kernel.options().set_tos_v4(tos.into())?;
            if kernel.options().local_addr()?.is_ipv6() {
                kernel.options().set_tclass_v6(tos.into())?;
            }
        }
        self.call(|stack, id| stack.udp_set_tos(id, tos))
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

    /// SO_BINDTODEVICE: sends and receives only through that device of the runtime. `None` removes
    /// the binding. The kernel's socket of the port is bound too, which the runtime's other sockets
    /// at the port share.
    ///
    /// # Errors
    /// `NotFound` if it is not a device of the runtime. Use the crate `socket2` for other devices.
    pub fn bind_device(&self, interface: Option<&[u8]>) -> io::Result<()> {
        let device = interface.map(|name| self.core.handle().device(name)).transpose()?;
        if let Some(kernel) = &self.kernel {
            kernel.options().bind_device(interface)?;
        }
        self.call(|stack, id| stack.udp_set_device(id, device))
    }

    /// Returns the device that [`UdpSocket::bind_device`] set.
    pub fn device(&self) -> io::Result<Option<Vec<u8>>> {
        let device = self.core.inspect(|stack| stack.udp_device(self.id)).io()?;
        Ok(device.and_then(|device| self.core.handle().device_name(device).map(Into::into)))
    }
}
