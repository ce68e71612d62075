//! The control plane: what the kernel knows about addresses, routes and neighbours, mirrored into every core.

use crate::core::CoreStack;
use fs_core::{Cidr, IfaceId, Route};
use std::net::IpAddr;

/// A change of the world, for every core's stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorldChange {
    Addresses { iface: IfaceId, addrs: Vec<Cidr> },
    Device { iface: IfaceId, mac: [u8; 6], mtu: u16 },
    Routes(Vec<Route>),
    Neighbour { iface: IfaceId, addr: IpAddr, mac: Option<[u8; 6]> },
    NeighbourGone { iface: IfaceId, addr: IpAddr },
}

impl WorldChange {
    pub(crate) fn apply(self, stack: &mut CoreStack) {
        match self {
            WorldChange::Addresses { iface, addrs } => stack.interface_mut(iface).addrs = addrs,
            WorldChange::Device { iface, mac, mtu } => {
                let interface = stack.interface_mut(iface);
                interface.mac = mac;
                interface.mtu = mtu;
            }
            WorldChange::Routes(routes) => stack.set_routes(routes),
            WorldChange::Neighbour { iface, addr, mac } => stack.set_neighbour(iface, addr, mac),
            WorldChange::NeighbourGone { iface, addr } => stack.remove_neighbour(iface, addr),
        }
    }
}

/// The control plane's end that the runtime holds.
pub(crate) struct Control {}

impl Control {
    /// For standalone addressing: there is nobody to ask.
    pub(crate) fn none() -> Self {
        Self {}
    }

    pub(crate) fn neighbour_needed(&self, _iface: IfaceId, _addr: IpAddr) {}

    pub(crate) fn stop(&self) {}
}
