//! The mirror: the part of the kernel's tables that concerns our devices.
//!
//! Addresses, routes and device attributes change rarely: after a notification the mirror reads
//! them again and compares. Neighbours change with the traffic: their notifications are applied one
//! by one.

use super::change::WorldChange;
use crate::netlink::{GROUPS, Hop, NEIGHBOURS, Netlink, Notices, has_connection, ip};
use crate::ports::Addresses;
use fs_core::{Cidr, IfaceId, Refusal, Route};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkHeader, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteNextHop, RouteNextHopFlags, RouteType,
};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One of our devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) index: u32,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u16,
    /// The kernel resolves no neighbours there: it uses the device's own link address (`arp_constructor`).
    pub(crate) no_arp: bool,
    pub(crate) addrs: Vec<Cidr>,
    /// The device was deleted, or has left the namespace, and was not adopted again.
    pub(crate) gone: bool,
}

impl Device {
    /// Its index is no longer ours: until the device is adopted, one that has come back with that index
    /// is the kernel's.
    fn leave(&mut self) {
        (self.index, self.gone) = (0, true);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Neighbour {
    mac: Option<[u8; 6]>,
    stale: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stale {
    tables: bool,
    neighbours: bool,
}

/// Devices, addresses and routes, as in the kernel.
struct Tables {
    devices: Vec<Device>,
    routes: Vec<Route>,
    elsewhere: Vec<IpAddr>,
}

#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) netlink: Netlink,
    /// The link address of every neighbour, if the kernel replaces it.
    stand_in: Option<[u8; 6]>,
    /// In the order of their `IfaceId`s.
    pub(crate) devices: Vec<Device>,
    pub(crate) routes: Vec<Route>,
    /// Addresses of the host's other devices.
    pub(super) elsewhere: Vec<IpAddr>,
    neighbours: HashMap<(IfaceId, IpAddr), Neighbour>,
    /// Neighbours that a core asked for and that have not replied yet.
    asked: HashSet<(IfaceId, IpAddr)>,
    /// Devices, addresses and routes, or neighbours, may have changed since they were read.
    stale: Stale,
    /// True if something that routes depend on has changed since this was last set to `false`.
    pub(crate) news: bool,
}

impl Mirror {
    /// Reads everything about the devices with these indexes.
    pub(crate) fn read(indexes: &[u32]) -> io::Result<Self> {
        Self::by(subscribe()?, None, indexes)
    }

    /// Like [`Mirror::read`], of shared devices: in the namespace of this socket, and the kernel
    /// finds the neighbours.
    pub(crate) fn of_shared(netlink: Netlink, indexes: &[u32]) -> io::Result<Self> {
        Self::by(netlink, Some(ANY_NEIGHBOUR), indexes)
    }

    fn by(netlink: Netlink, stand_in: Option<[u8; 6]>, indexes: &[u32]) -> io::Result<Self> {
        let mut mirror = Self {
            netlink,
            stand_in,
            devices: indexes.iter().map(|&index| Device { index, ..Device::default() }).collect(),
            routes: Vec::new(),
            elsewhere: Vec::new(),
            neighbours: HashMap::new(),
            asked: HashSet::new(),
            stale: Stale::default(),
            news: false,
        };
        let Tables { devices, routes, elsewhere } = mirror.read_tables()?;
        (mirror.devices, mirror.routes, mirror.elsewhere) = (devices, routes, elsewhere);
        mirror.reread_neighbours(&mut Vec::new())?;
        Ok(mirror)
    }

    /// The host's addresses.
    pub(crate) fn addresses(&self) -> Addresses {
        let ours = self.devices.iter().flat_map(|device| &device.addrs).map(|cidr| cidr.addr).collect();
        Addresses { ours, elsewhere: self.elsewhere.clone() }
    }

    /// Returns the addresses of the host's other devices to which no packet leaves by ours. Loopback addresses
    /// never do, and a link-local address may also be a neighbour's.
    pub(crate) fn host_addresses(&self) -> Vec<IpAddr> {
        let is_link_local = |addr: &IpAddr| match addr {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        self.elsewhere.iter().copied().filter(|addr| !addr.is_loopback() && !is_link_local(addr)).collect()
    }

    /// Returns true if the kernel has a TCP connection at a local port to another host.
    pub(crate) fn has_connection(&self, port: u16) -> io::Result<bool> {
        let Addresses { ours, elsewhere } = self.addresses();
        let is_host = |peer: &IpAddr| peer.is_loopback() || ours.contains(peer) || elsewhere.contains(peer);
        has_connection(port, |peer| !is_host(&peer))
    }

    fn iface_of(&self, index: u32) -> Option<IfaceId> {
        self.devices.iter().position(|device| device.index == index).map(|n| IfaceId(n as u8))
    }

    /// Returns known neighbours, for a core that starts.
    pub(crate) fn neighbours(&self) -> impl Iterator<Item = WorldChange> + '_ {
        self.neighbours
            .iter()
            .filter(|(_, known)| known.mac.is_some())
            .map(|(&(iface, addr), known)| WorldChange::Neighbour { iface, addr, mac: known.mac })
    }

    /// Reads the kernel's notifications and adds the changes for the cores. After an error nothing
    /// is lost: the tables are read again at the next call.
    pub(crate) fn follow(&mut self, changes: &mut Vec<WorldChange>) -> io::Result<()> {
        let notices = self.netlink.notices();
        self.take(notices, changes)
    }

    pub(super) fn take(&mut self, notices: io::Result<Notices>, changes: &mut Vec<WorldChange>) -> io::Result<()> {
        match notices {
            Ok(Notices::Messages(messages)) => {
                for message in messages {
                    match message {
                        Message::NewNeighbour(neighbour) => self.neighbour(&neighbour, false, changes),
                        Message::DelNeighbour(neighbour) => self.neighbour(&neighbour, true, changes),
                        Message::DelLink(link) => {
                            self.link_deleted(&link.header);
                            self.stale.tables = true;
                        }
                        _ => self.stale.tables = true,
                    }
                }
            }
            Ok(Notices::Lost) => self.stale = Stale { tables: true, neighbours: true },
            Err(error) => {
                self.stale = Stale { tables: true, neighbours: true };
                self.news = true;
                return Err(error);
            }
        }
        self.news |= self.stale.tables;
        if self.stale.tables {
            let Tables { devices, routes, elsewhere } = self.read_tables()?;
            let before = Tables {
                devices: std::mem::replace(&mut self.devices, devices),
                routes: std::mem::replace(&mut self.routes, routes),
                elsewhere: std::mem::replace(&mut self.elsewhere, elsewhere),
            };
            self.compare(&before, changes);
            // The notifications about the neighbours of a device that has left have an index of nobody's.
            self.stale.neighbours |= before.devices.iter().zip(&self.devices).any(|(old, new)| old.gone != new.gone);
            self.stale.tables = false;
        }
        if self.stale.neighbours {
            self.reread_neighbours(changes)?;
            self.stale.neighbours = false;
        }
        Ok(())
    }

    /// A device that is back before the tables are read has other queues, perhaps with the same index.
    fn link_deleted(&mut self, link: &LinkHeader) {
        // A port that leaves a bridge is reported likewise, with the bridge's family (`br_ifinfo_notify`).
        let is_device = link.interface_family == AddressFamily::Unspec;
        if let Some(device) = self.devices.iter_mut().find(|device| is_device && device.index == link.index) {
            device.leave();
            self.stale.neighbours = true;
        }
    }

    /// Opens the netlink sockets again after an error.
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        // The socket of a shared device may be another namespace's. It is used as long as it lasts.
        if self.stand_in.is_none() {
            self.netlink = subscribe()?;
        }
        self.stale = Stale { tables: true, neighbours: true };
        Ok(())
    }

    /// Records the index of a device that is back. It is read at the next call.
    pub(crate) fn adopt(&mut self, n: usize, index: u32) {
        if let Some(device) = self.devices.get_mut(n) {
            (device.index, device.gone) = (index, false);
        }
        self.stale = Stale { tables: true, neighbours: true };
    }

    fn compare(&self, before: &Tables, changes: &mut Vec<WorldChange>) {
        for (n, (old, new)) in before.devices.iter().zip(&self.devices).enumerate() {
            let iface = IfaceId(n as u8);
            if old.addrs != new.addrs {
                changes.push(WorldChange::Addresses { iface, addrs: new.addrs.clone() });
            }
            if !new.gone && (old.mac, old.mtu) != (new.mac, new.mtu) {
                changes.push(WorldChange::Device { iface, mac: new.mac, mtu: new.mtu });
            }
        }
        if before.routes != self.routes {
            changes.push(WorldChange::Routes(self.routes.clone()));
        }
        if before.elsewhere != self.elsewhere {
            changes.push(WorldChange::HostAddresses(self.host_addresses()));
        }
    }

    fn read_tables(&self) -> io::Result<Tables> {
        let mut devices = self.devices.clone();
        let links = self.netlink.dump(Message::GetLink(LinkMessage::default()))?;
        for device in &mut devices {
            let link = links.iter().find_map(|message| match message {
                Message::NewLink(link) if link.header.index == device.index => Some(link),
                _ => None,
            });
            let Some(link) = link else {
                device.leave();
                continue;
            };
            device.no_arp = link.header.flags.contains(LinkFlags::Noarp);
            link.attributes.iter().for_each(|attribute| match attribute {
                LinkAttribute::Mtu(mtu) => device.mtu = u16::try_from(*mtu).unwrap_or(u16::MAX),
                LinkAttribute::Address(mac) => device.mac = mac.as_slice().try_into().unwrap_or_default(),
                _ => {}
            });
        }
        let addresses = self.netlink.dump(Message::GetAddress(AddressMessage::default()))?;
        for device in &mut devices {
            let mut addrs: Vec<_> = addresses.iter().filter_map(|message| address(message, device.index)).collect();
            // RFC 6724 rule 3: a deprecated address is used only if there is no other.
            addrs.sort_by_key(|(_, deprecated)| *deprecated);
            device.addrs = addrs.into_iter().map(|(cidr, _)| cidr).collect();
        }
        let of_others = addresses.iter().filter(|message| match message {
            Message::NewAddress(AddressMessage { header, .. }) => self.iface_of(header.index).is_none(),
            _ => false,
        });
        let elsewhere: Vec<_> = of_others.filter_map(local_address).collect();
        let mut routes = Vec::new();
        for message in &self.netlink.dump(Message::GetRoute(RouteMessage::default()))? {
            if let Message::NewRoute(route) = message {
                self.route(route, &mut routes);
            }
        }
        Ok(Tables { devices, routes, elsewhere })
    }

    fn reread_neighbours(&mut self, changes: &mut Vec<WorldChange>) -> io::Result<()> {
        if self.stand_in.is_some() {
            return Ok(());
        }
        let messages = self.netlink.dump(Message::GetNeighbour(NeighbourMessage::default()))?;
        let before = std::mem::take(&mut self.neighbours);
        let mut all = Vec::new();
        for message in messages {
            if let Message::NewNeighbour(neighbour) = message {
                self.neighbour(&neighbour, false, &mut all);
            }
        }
        for (&(iface, addr), _) in before.iter().filter(|(key, _)| !self.neighbours.contains_key(key)) {
            changes.push(WorldChange::NeighbourGone { iface, addr });
        }
        changes.append(&mut all);
        Ok(())
    }

    fn neighbour(&mut self, message: &NeighbourMessage, deleted: bool, changes: &mut Vec<WorldChange>) {
        let Some(iface) = self.iface_of(message.header.ifindex) else { return };
        let mut addr = None;
        let mut mac = None;
        for attribute in &message.attributes {
            match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => addr = Some(IpAddr::V4(*v4)),
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => addr = Some(IpAddr::V6(*v6)),
                NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.as_slice().try_into().ok(),
                _ => {}
            }
        }
        let Some(addr) = addr.filter(|addr| !addr.is_multicast()) else { return };
        let key = (iface, addr);
        let was_asked = self.asked.contains(&key);
        let answer = match message.header.state {
            _ if deleted => None,
            NeighbourState::Failed => Some(None),
            // Resolution is in progress, so the known address stays.
            NeighbourState::Incomplete | NeighbourState::None => return,
            _ => mac.map(Some),
        };
        match answer {
            None => {
                self.asked.remove(&key);
                if self.neighbours.remove(&key).is_some() {
                    changes.push(WorldChange::NeighbourGone { iface, addr });
                }
            }
            Some(mac) => {
                let stale = message.header.state == NeighbourState::Stale;
                let before = self.neighbours.insert(key, Neighbour { mac, stale }).and_then(|known| known.mac);
                self.asked.remove(&key);
                // A failed neighbour is reported to cores that asked for it. For others it is only
                // unknown again: a flush of the kernel's table looks the same, and the neighbour
                // may exist.
                if was_asked || (mac.is_some() && before != mac) {
                    changes.push(WorldChange::Neighbour { iface, addr, mac });
                } else if mac.is_none() && before.is_some() {
                    changes.push(WorldChange::NeighbourGone { iface, addr });
                }
            }
        }
    }

    /// A core needs this neighbour. Returns it if it is known, else asks the kernel.
    pub(crate) fn need(&mut self, iface: IfaceId, addr: IpAddr) -> io::Result<Option<WorldChange>> {
        if let Some(Neighbour { mac: mac @ Some(_), .. }) = self.neighbours.get(&(iface, addr)) {
            return Ok(Some(WorldChange::Neighbour { iface, addr, mac: *mac }));
        }
        if self.stand_in.is_some() {
            return Ok(Some(WorldChange::Neighbour { iface, addr, mac: self.stand_in }));
        }
        let Some(device) = self.devices.get(usize::from(iface.0)) else { return Ok(None) };
        if device.no_arp {
            return Ok(Some(WorldChange::Neighbour { iface, addr, mac: Some(device.mac) }));
        }
        self.asked.insert((iface, addr));
        if let Err(error) = self.netlink.use_neighbour(device.index, addr) {
            self.asked.remove(&(iface, addr));
            return Err(error);
        }
        Ok(None)
    }

    /// The kernel does not see our traffic, so its entries become stale, and it removes stale
    /// entries first when its table is full. Refreshes at most `most` of them.
    pub(crate) fn refresh_stale(&mut self, most: usize) -> io::Result<()> {
        let stale = self.neighbours.iter().filter(|(_, known)| known.stale && known.mac.is_some());
        for ((iface, addr), _) in stale.take(most) {
            self.netlink.use_neighbour(self.devices[usize::from(iface.0)].index, *addr)?;
        }
        Ok(())
    }

    pub(super) fn route(&self, message: &RouteMessage, into: &mut Vec<Route>) {
        let RouteHeader { table, kind, destination_prefix_length: prefix, flags, tos, .. } = message.header;
        let mut table = u32::from(table);
        let mut to = None;
        let mut metric = 0;
        let mut source = None;
        let mut hop = Hop::default();
        let mut hops: &[RouteNextHop] = &[];
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(addr) => to = ip(addr),
                RouteAttribute::Table(t) => table = *t,
                RouteAttribute::Priority(m) => metric = *m,
                RouteAttribute::PrefSource(addr) => source = ip(addr),
                RouteAttribute::MultiPath(paths) => hops = paths,
                other => hop.take(other),
            }
        }
        let refusal = match kind {
            RouteType::Unicast => None,
            RouteType::Unreachable => Some(Refusal::Unreachable),
            RouteType::BlackHole => Some(Refusal::Blackhole),
            RouteType::Prohibit => Some(Refusal::Prohibit),
            RouteType::Throw => Some(Refusal::Throw),
            _ => return,
        };
        // The dump contains cached exceptions too (`fib_dump_info_fnhe`, `rt6_nh_dump_exceptions`): of ICMP
        // redirects, and of path MTUs that the kernel has learned. Our table has no TOS.
        let is_unusable = flags.intersects(RouteFlags::Dead | RouteFlags::Cloned) || tos != 0;
        if is_unusable || table != u32::from(RouteHeader::RT_TABLE_MAIN) {
            return;
        }
        let v4 = message.header.address_family == AddressFamily::Inet;
        let any: IpAddr = if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let to = Cidr { addr: to.unwrap_or(any), prefix };
        if refusal.is_some() {
            // The route has no device, or (IPv6) the loopback device.
            into.push(Route { to, gateway: None, iface: IfaceId(0), metric, source: None, refusal });
            return;
        }
        let mut add = |hop: Hop| {
            if let Some(iface) = hop.device.and_then(|index| self.iface_of(index)) {
                into.push(Route { to, gateway: hop.gateway, iface, metric, source, refusal: None });
            }
        };
        add(hop);
        // Of a device that is down: the kernel uses the others.
        for path in hops.iter().filter(|path| !path.flags.contains(RouteNextHopFlags::Dead)) {
            let mut hop = Hop { device: Some(path.interface_index), gateway: None };
            path.attributes.iter().for_each(|attribute| hop.take(attribute));
            add(hop);
        }
    }
}

/// A locally administered link address, which no frame has on the wire.
const ANY_NEIGHBOUR: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn subscribe() -> io::Result<Netlink> {
    Netlink::open(GROUPS.into_iter().chain([NEIGHBOURS]))
}

/// Parses an address message. Returns the address if it belongs to device `index` and may be used
/// (RFC 4862: not while tentative), and whether it is deprecated. A deprecated address has no
/// prefix, so that it never is the nearest (RFC 6724 rule 3 comes before rule 8).
fn address(message: &Message, index: u32) -> Option<(Cidr, bool)> {
    let Message::NewAddress(AddressMessage { header, .. }) = message else { return None };
    let unusable = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    if header.index != index || header.flags.intersects(unusable) {
        return None;
    }
    let addr = local_address(message)?;
    let deprecated = addr.is_ipv6() && header.flags.contains(AddressHeaderFlags::Deprecated);
    Some((Cidr { addr, prefix: if deprecated { 0 } else { header.prefix_len } }, deprecated))
}

fn local_address(message: &Message) -> Option<IpAddr> {
    let Message::NewAddress(AddressMessage { attributes, .. }) = message else { return None };
    let mut addr = None;
    for attribute in attributes {
        match attribute {
            // On point-to-point devices IFA_ADDRESS is the peer's address and IFA_LOCAL ours.
            AddressAttribute::Local(local) => addr = Some(*local),
            AddressAttribute::Address(other) if addr.is_none() => addr = Some(*other),
            _ => {}
        }
    }
    addr
}
