//! Changes of the kernel's tables.

use fs_core::{Cidr, FramePool, IfaceId, Route, Stack};
use std::net::IpAddr;

/// A change for every core's stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorldChange {
    Addresses {
        iface: IfaceId,
        addrs: Vec<Cidr>,
    },
    Device {
        iface: IfaceId,
        mac: [u8; 6],
        mtu: u16,
    },
    /// The index of a device that is back.
    Index {
        iface: IfaceId,
        index: u32,
    },
    Routes(Vec<Route>),
    /// Addresses of the host's other devices.
    HostAddresses(Vec<IpAddr>),
    Neighbour {
        iface: IfaceId,
        addr: IpAddr,
        mac: Option<[u8; 6]>,
    },
    NeighbourGone {
        iface: IfaceId,
        addr: IpAddr,
    },
}

impl WorldChange {
    pub(crate) fn apply(self, stack: &mut Stack<impl FramePool>) {
        match self {
            WorldChange::Addresses { iface, addrs } => stack.update_interface(iface, |i| i.addrs = addrs),
            WorldChange::Device { iface, mac, mtu } => stack.update_interface(iface, |i| (i.mac, i.mtu) = (mac, mtu)),
            WorldChange::Index { iface, index } => stack.set_scope(iface, index),
            WorldChange::Routes(routes) => stack.set_routes(routes),
            WorldChange::HostAddresses(addrs) => stack.set_host_addresses(addrs),
            WorldChange::Neighbour { iface, addr, mac } => stack.set_neighbour(iface, addr, mac),
            WorldChange::NeighbourGone { iface, addr } => stack.remove_neighbour(iface, addr),
        }
    }
}
