//! [`PortSink`]: tells a device's program which ports are ours.

use crate::sys::reserve::Reservation;
use fs_core::Protocol;
use fs_xdp::{PortTable, Share};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

/// The table of a device's program.
pub(crate) trait PortSink: Send + Sync {
    /// From now on packets for `at` come to us, all or as `share` says. `reservation` is the
    /// kernel's socket that holds it, if there is one.
    fn add(
        &self,
        protocol: Protocol,
        at: SocketAddr,
        share: Share,
        reservation: Option<BorrowedFd<'_>>,
    ) -> io::Result<()>;
    /// Sets the receiver of the packets for `at`.
    fn share(&self, protocol: Protocol, at: SocketAddr, share: Share);
    /// From now on packets for `at` go to the kernel.
    fn remove(&self, protocol: Protocol, at: SocketAddr);
    /// Reserves an address in the namespace of the device's addresses.
    fn reserve(&self, protocol: Protocol, at: SocketAddr, v6_only: bool) -> io::Result<Reservation> {
        Reservation::new(protocol, at, v6_only)
    }
    /// From now on packets for these TCP ports at the host's addresses come to us.
    fn set_ephemeral(&self, _ports: &[u16]) -> io::Result<()> {
        Ok(())
    }
    /// Returns true if a kernel socket must prove each address: it keeps its port whatever the program does
    /// with it, has no peer, and is not bound to a device.
    fn needs_proof(&self) -> bool {
        false
    }
    /// Called regularly.
    fn tend(&self) {}
    /// Sets the device's link address.
    fn set_mac(&self, _mac: [u8; 6]) {}
    /// From now on the kernel gets packets of queues without a socket.
    fn unguard(&self);
    /// Sets the addresses of our devices, and those of the host's other devices (`elsewhere`).
    fn set_addresses(&self, addrs: &[IpAddr], elsewhere: &[IpAddr]) -> io::Result<()>;
}

impl PortSink for PortTable {
    fn add(
        &self,
        protocol: Protocol,
        at: SocketAddr,
        share: Share,
        _reservation: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        Ok(self.add_shared(protocol, at.ip(), at.port(), share)?)
    }

    fn share(&self, protocol: Protocol, at: SocketAddr, share: Share) {
        if let Err(error) = self.share_local(protocol, at.ip(), at.port(), share) {
            tracing::error!(%at, ?share, %error, "cannot share a port in the XDP program's table");
        }
    }

    fn remove(&self, protocol: Protocol, at: SocketAddr) {
        if let Err(error) = self.remove_local(protocol, at.ip(), at.port()) {
            tracing::error!(%at, %error, "cannot remove a port from the XDP program's table: its packets still come \
                                          here");
        }
    }

    fn set_ephemeral(&self, ports: &[u16]) -> io::Result<()> {
        Ok(self.set_ephemeral_ports(ports.iter().copied())?)
    }

    fn set_mac(&self, mac: [u8; 6]) {
        if let Err(error) = PortTable::set_mac(self, mac) {
            tracing::error!(%error, "cannot write the MAC address to the XDP program's table");
        }
    }

    fn unguard(&self) {
        if let Err(error) = self.guard(false) {
            tracing::error!(%error, "cannot set the queue guard in the XDP program's table");
        }
    }

    fn set_addresses(&self, addrs: &[IpAddr], elsewhere: &[IpAddr]) -> io::Result<()> {
        Ok(PortTable::set_addresses(self, addrs, elsewhere)?)
    }
}
