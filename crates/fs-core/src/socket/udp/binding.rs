//! Bindings of UDP sockets, including those of other cores: the device chooses the queue of a
//! datagram, and its socket may be any core's.

use crate::flow::{CoreId, FlowKey};
use crate::frame::IfaceId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

/// Address that a UDP socket is bound to, and its peer if it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpBinding {
    /// Local address. An unspecified address is a wildcard, and `[::]` includes IPv4 unless
    /// `v6_only`.
    pub local: SocketAddr,
    /// See `local`.
    pub v6_only: bool,
    /// The only peer whose datagrams it receives, if connected.
    pub remote: Option<SocketAddr>,
    /// The only interface that it receives and sends by: SO_BINDTODEVICE.
    pub device: Option<IfaceId>,
}

impl UdpBinding {
    /// Returns true if the socket receives datagrams to `ip`.
    pub(super) fn is_at(&self, ip: IpAddr) -> bool {
        match (self.local.ip(), ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => own.is_unspecified() || own == ip,
            (IpAddr::V6(own), IpAddr::V6(ip)) => own.is_unspecified() || own == ip,
            (IpAddr::V6(own), IpAddr::V4(_)) => own.is_unspecified() && !self.v6_only,
            (IpAddr::V4(_), IpAddr::V6(_)) => false,
        }
    }

    /// Returns how well the socket fits a flow to its port that arrives by `iface`: connected
    /// before bound address before bound device before none of them.
    pub(super) fn score(&self, local: IpAddr, remote: SocketAddr, iface: IfaceId) -> Option<u8> {
        let is_other = self.remote.is_some_and(|own| own != remote) || self.device.is_some_and(|own| own != iface);
        if !self.is_at(local) || is_other {
            return None;
        }
        let address = u8::from(!self.local.ip().is_unspecified());
        Some(u8::from(self.remote.is_some()) * 4 + address * 2 + u8::from(self.device.is_some()))
    }

    /// Returns true if both cannot be bound to the same port: their addresses are equal, or one
    /// covers the other.
    pub(super) fn conflicts(&self, at: SocketAddr, v6_only: bool) -> bool {
        let covers_v4 = |at: SocketAddr, v6_only: bool| at.ip().is_unspecified() && (at.is_ipv4() || !v6_only);
        if at.ip().is_unspecified() {
            // A wildcard covers everything of its family (or families).
            self.local.is_ipv6() == at.is_ipv6()
                || (at.is_ipv6() && !v6_only)
                || (at.is_ipv4() && covers_v4(self.local, self.v6_only))
        } else {
            self.is_at(at.ip())
        }
    }
}

/// The sockets of all other cores, by port.
#[derive(Debug, Default)]
pub(super) struct Elsewhere(BTreeMap<u16, Vec<(CoreId, UdpBinding)>>);

impl Elsewhere {
    /// Records that a socket of another core was opened or closed.
    pub(super) fn set(&mut self, core: CoreId, binding: UdpBinding, up: bool) {
        let port = binding.local.port();
        let list = self.0.entry(port).or_default();
        list.retain(|entry| *entry != (core, binding));
        if up {
            list.push((core, binding));
        } else if list.is_empty() {
            self.0.remove(&port);
        }
    }

    /// Returns the core whose socket fits a flow better than one with the score `here`. Among
    /// several equal ones, `choice` decides.
    #[inline]
    pub(super) fn better(
        &self,
        key: &FlowKey,
        iface: IfaceId,
        here: Option<u8>,
        choice: impl FnOnce() -> u64,
    ) -> Option<CoreId> {
        if self.0.is_empty() {
            return None;
        }
        let candidates = self.0.get(&key.local_port())?;
        let (local, remote) = (key.local_ip(), key.remote());
        let best = candidates.iter().filter_map(|(_, binding)| binding.score(local, remote, iface)).max()?;
        if here.is_some_and(|here| here >= best) {
            return None;
        }
        let fitting = || candidates.iter().filter(|(_, binding)| binding.score(local, remote, iface) == Some(best));
        let nth = choice() % fitting().count().max(1) as u64;
        fitting().nth(nth as usize).map(|(core, _)| *core)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_best_core_until_sockets_close() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let binding = |local: &str, remote: Option<&str>| UdpBinding {
            local: at(local),
            v6_only: false,
            remote: remote.map(at),
            device: None,
        };
        let mut elsewhere = Elsewhere::default();
        let key = FlowKey::new(at("10.0.0.1:53"), at("10.0.0.2:7")).unwrap();
        assert_eq!(elsewhere.better(&key, IfaceId(0), None, || 0), None);
        let wild = binding("[::]:53", None);
        elsewhere.set(CoreId(1), wild, true);
        elsewhere.set(CoreId(2), wild, true);
        elsewhere.set(CoreId(2), wild, true);
        let chosen = [0, 1, 2].map(|choice| elsewhere.better(&key, IfaceId(0), None, || choice));
        assert_eq!(chosen, [Some(CoreId(1)), Some(CoreId(2)), Some(CoreId(1))], "repeated news has one entry");
        assert_eq!(elsewhere.better(&key, IfaceId(0), Some(0), || 0), None, "one's own fits as well");
        let connected = binding("10.0.0.1:53", Some("10.0.0.2:7"));
        elsewhere.set(CoreId(3), connected, true);
        elsewhere.set(CoreId(3), binding("10.0.0.1:53", Some("10.0.0.2:8")), true);
        assert_eq!(elsewhere.better(&key, IfaceId(0), Some(1), || 9), Some(CoreId(3)));
        elsewhere.set(CoreId(3), connected, false);
        assert_eq!(elsewhere.better(&key, IfaceId(0), Some(0), || 0), None);
        for (core, binding) in [(1, wild), (2, wild), (3, binding("10.0.0.1:53", Some("10.0.0.2:8"))), (3, connected)] {
            elsewhere.set(CoreId(core), binding, false);
        }
        assert!(elsewhere.0.is_empty());
    }
}
