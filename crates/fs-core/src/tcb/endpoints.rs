//! Addresses and ports of a connection. IPv4 addresses are in the control block itself, since each
//! received segment is compared with them; those of IPv6 are in its extension.

use crate::flow::FlowKey;
use crate::tcb::extension::Addresses;

/// Ports and IPv4 addresses of a connection. See the module.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Endpoints {
    /// IPv4: the peer's address. IPv6: zero.
    remote: u32,
    /// IPv4: our address.
    local: u32,
    local_port: u16,
    remote_port: u16,
}

impl Endpoints {
    pub(crate) fn new(key: &FlowKey) -> Self {
        let (local, remote) = match *key {
            FlowKey::V4 { local, remote, .. } => (local, remote),
            FlowKey::V6 { .. } => (0, 0),
        };
        Self { remote, local, local_port: key.local_port(), remote_port: key.remote_port() }
    }

    /// Returns the IPv4 addresses, ours first.
    #[inline(always)]
    pub(crate) fn v4(&self) -> (u32, u32) {
        (self.local, self.remote)
    }

    /// Returns the ports, ours first.
    #[inline(always)]
    pub(crate) fn ports(&self) -> (u16, u16) {
        (self.local_port, self.remote_port)
    }

    #[inline(always)]
    pub(crate) fn v4_key(&self) -> FlowKey {
        let Self { remote, local, local_port, remote_port } = *self;
        FlowKey::V4 { local, remote, local_port, remote_port }
    }

    #[inline(always)]
    pub(crate) fn v6_key(&self, addresses: &Addresses) -> FlowKey {
        let (local, remote) = (addresses.local, addresses.remote);
        FlowKey::V6 { local, remote, local_port: self.local_port, remote_port: self.remote_port }
    }

    /// Returns true if an IPv4 connection has these endpoints.
    #[inline(always)]
    pub(crate) fn are_v4(&self, local: u32, remote: u32, local_port: u16, remote_port: u16) -> bool {
        // Compared without branches: the result is nearly always true.
        let addresses = self.remote ^ remote | self.local ^ local;
        let ports = self.remote_port ^ remote_port | self.local_port ^ local_port;
        addresses | u32::from(ports) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_round_trips() {
        let v4 = FlowKey::V4 { local: 1, remote: 2, local_port: 3, remote_port: 4 };
        let ends = Endpoints::new(&v4);
        assert_eq!((ends.v4_key(), ends.v4(), ends.ports()), (v4, (1, 2), (3, 4)));
        assert!(ends.are_v4(1, 2, 3, 4));
        assert!(!ends.are_v4(2, 1, 3, 4) && !ends.are_v4(1, 2, 4, 3) && !ends.are_v4(1, 2, 3, 5));
        let (local, remote) = ([1; 16], [2; 16]);
        let v6 = FlowKey::V6 { local, remote, local_port: 3, remote_port: 4 };
        let addresses = Addresses { local, remote, flow_label: 5 };
        assert_eq!(Endpoints::new(&v6).v6_key(&addresses), v6);
    }
}
