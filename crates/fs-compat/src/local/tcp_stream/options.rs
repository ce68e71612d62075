//! Options that tokio's `TcpStream` has, and keepalive.

use super::{TcpStream, ttl_in_range};
use fs_core::{Keepalive, Linger};
use std::io;
use std::time::Duration;

impl TcpStream {
    /// TCP_NODELAY.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.options()?.nodelay)
    }

    /// TCP_NODELAY.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.change(|options| options.nodelay = nodelay)
    }

    /// SO_LINGER.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(match self.options()?.linger {
            Linger::Background => None,
            Linger::Timeout(timeout) => Some(timeout),
        })
    }

    /// SO_LINGER. Unlike on the kernel, a drop never blocks: the connection always closes in the
    /// background.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.change(|options| options.linger = linger.map_or(Linger::Background, Linger::Timeout))
    }

    /// SO_LINGER with 0: dropping the connection resets it.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// IP_TTL or IPV6_UNICAST_HOPS.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(self.options()?.ttl.unwrap_or(64).into())
    }

    /// IP_TTL or IPV6_UNICAST_HOPS; 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = ttl_in_range(ttl)?;
        self.change(|options| options.ttl = Some(ttl))
    }

    /// SO_KEEPALIVE with its times; `None` when off.
    pub fn keepalive(&self) -> io::Result<Option<Keepalive>> {
        Ok(self.options()?.keepalive)
    }

    /// SO_KEEPALIVE with its times.
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        self.change(|options| options.keepalive = keepalive)
    }
}
