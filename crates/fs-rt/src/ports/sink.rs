//! Where a device's program is told which ports are ours.

use fs_core::Protocol;
use fs_xdp::{PortTable, Share};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Where a device's program is told what is ours.
pub(crate) trait PortSink: Send + Sync {
    /// Packets for `at` come to us from here on, all or as `share` says.
    fn add(&self, protocol: Protocol, at: SocketAddr, share: Share) -> io::Result<()>;
    /// Who gets the packets for `at` from here on.
    fn share(&self, protocol: Protocol, at: SocketAddr, share: Share);
    /// Packets for `at` go to the kernel again.
    fn remove(&self, protocol: Protocol, at: SocketAddr);
    /// Packets for these TCP ports at one of the host's addresses come to us.
    fn set_active(&self, _ports: &[u16]) -> io::Result<()> {
        Ok(())
    }
    /// The device has this link address now.
    fn set_mac(&self, _mac: [u8; 6]) {}
    /// Packets on a queue without a socket are the kernel's from here on.
    fn unguard(&self);
    /// Our devices have these addresses now, and the host's others have `elsewhere`.
    fn set_addresses(&self, addrs: &[IpAddr], elsewhere: &[IpAddr]) -> io::Result<()>;
}

impl PortSink for PortTable {
    fn add(&self, protocol: Protocol, at: SocketAddr, share: Share) -> io::Result<()> {
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

    fn set_active(&self, ports: &[u16]) -> io::Result<()> {
        Ok(self.set_active_ports(ports.iter().copied())?)
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
