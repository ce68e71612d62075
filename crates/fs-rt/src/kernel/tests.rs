use super::mirror::Device;
use super::*;
use crate::netlink;
use crate::ports::Addresses;
use fs_core::{IfaceId, Refusal};
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteNextHop, RouteNextHopFlags, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::net::Ipv4Addr;

#[test]
fn loopback_is_mirrored() {
    let index = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap().trim().parse().unwrap();
    let mirror = Mirror::read(&[index]).unwrap();
    let Device { mtu, addrs, gone, .. } = &mirror.devices[0];
    assert!(!gone);
    assert!(*mtu > 0);
    assert!(addrs.iter().any(|cidr| cidr.addr.is_loopback() && cidr.prefix == 8), "{addrs:?}");
}

#[test]
fn missing_device_is_gone() {
    let mirror = Mirror::read(&[i32::MAX as u32]).unwrap();
    assert!(mirror.devices[0].gone);
    assert!(mirror.devices[0].addrs.is_empty());
    // Other devices' addresses are the kernel's.
    let Addresses { ours, elsewhere } = mirror.addresses();
    assert!(ours.is_empty() && elsewhere.contains(&std::net::Ipv4Addr::LOCALHOST.into()), "{elsewhere:?}");
}

/// Other devices' addresses are in no route: a node of a cluster has thousands, and routes are scanned.
#[test]
fn other_devices_addresses_are_no_routes() {
    let mut mirror = Mirror::read(&[i32::MAX as u32]).unwrap();
    assert!(mirror.routes.iter().all(|route| !mirror.elsewhere.contains(&route.to.addr)), "{:?}", mirror.routes);
    mirror.elsewhere.clear();
    let mut changes = Vec::new();
    mirror.take(Ok(netlink::Notices::Lost), &mut changes).unwrap();
    let told = changes.iter().find_map(|change| match change {
        WorldChange::HostAddresses(addrs) => Some(addrs),
        _ => None,
    });
    // A packet to a loopback address never leaves by a device of ours.
    assert!(told.is_some_and(|addrs| addrs.iter().all(|addr| !addr.is_loopback())), "{changes:?}");
}

/// Its queues are closed, so a device of its index is not taken without the opener.
#[test]
fn device_is_gone_until_it_is_adopted() {
    let index = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap().trim().parse().unwrap();
    let mut mirror = Mirror::read(&[index]).unwrap();
    let lo = mirror.devices[0].clone();
    let mut changes = Vec::new();
    (mirror.devices[0].index, mirror.devices[0].mtu) = (i32::MAX as u32, 1);
    mirror.take(Ok(netlink::Notices::Lost), &mut changes).unwrap();
    // The kernel sends the packets of a device that has come back with its index, and was not attached.
    assert_eq!((mirror.devices[0].gone, mirror.devices[0].index), (true, 0));
    mirror.take(Ok(netlink::Notices::Lost), &mut changes).unwrap();
    assert!(mirror.devices[0].gone);
    mirror.adopt(0, index);
    mirror.take(Ok(netlink::Notices::Messages(Vec::new())), &mut changes).unwrap();
    assert_eq!(mirror.devices[0], lo);
    let told = WorldChange::Device { iface: IfaceId(0), mac: lo.mac, mtu: lo.mtu };
    assert!(changes.contains(&told), "what has changed while it was gone: {changes:?}");
}

/// A device that leaves and comes back between two dumps has other queues.
#[test]
fn device_is_gone_after_a_round_trip() {
    let index = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap().trim().parse().unwrap();
    let mut mirror = Mirror::read(&[index]).unwrap();
    let mut is_gone_after = |family, index| {
        let mut link = LinkMessage::default();
        (link.header.interface_family, link.header.index) = (family, index);
        let notices = netlink::Notices::Messages(vec![RouteNetlinkMessage::DelLink(link)]);
        mirror.take(Ok(notices), &mut Vec::new()).unwrap();
        mirror.devices[0].gone
    };
    assert!(!is_gone_after(AddressFamily::Bridge, index), "it has left a bridge");
    assert!(!is_gone_after(AddressFamily::Unspec, i32::MAX as u32));
    assert!(is_gone_after(AddressFamily::Unspec, index));
}

/// The kernel could not be asked. The change is found after it answers again.
#[test]
fn error_loses_no_change() {
    let index = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap().trim().parse().unwrap();
    let mut mirror = Mirror::read(&[index]).unwrap();
    let addrs = std::mem::take(&mut mirror.devices[0].addrs);
    let mut changes = Vec::new();
    mirror.take(Err(io::Error::from_raw_os_error(libc::ENOMEM)), &mut changes).unwrap_err();
    assert_eq!(changes, []);
    mirror.reopen().unwrap();
    mirror.take(Ok(netlink::Notices::Messages(Vec::new())), &mut changes).unwrap();
    assert!(changes.contains(&WorldChange::Addresses { iface: IfaceId(0), addrs }), "{changes:?}");
    changes.clear();
    mirror.follow(&mut changes).unwrap();
    assert_eq!(changes, [], "nothing twice");
}

#[test]
fn cores_and_control_thread_exchange_two_buffers() {
    let control = ControlPlane::new(None).unwrap();
    let line = control.line.as_ref().unwrap();
    let mut asked = Vec::new();
    let mut buffers = std::collections::BTreeSet::new();
    for _ in 0..10 {
        control.neighbour_needed(IfaceId(0), Ipv4Addr::LOCALHOST.into());
        line.swap(&mut asked);
        assert_eq!(asked.len(), 1);
        buffers.insert(asked.as_ptr() as usize);
        asked.clear();
    }
    assert_eq!(buffers.len(), 2);
}

/// The kernel reports no neighbour of such a device.
#[test]
fn neighbour_without_arp_has_the_devices_address() {
    let index = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap().trim().parse().unwrap();
    let mut mirror = Mirror::read(&[index]).unwrap();
    let (iface, addr, mac) = (IfaceId(0), Ipv4Addr::new(127, 0, 0, 9).into(), [2, 0, 0, 0, 0, 9]);
    (mirror.devices[0].mac, mirror.devices[0].no_arp) = (mac, true);
    let answer = WorldChange::Neighbour { iface, addr, mac: Some(mac) };
    assert_eq!(mirror.need(iface, addr).unwrap(), Some(answer));
}

/// Routes without a device of ours, which still count.
#[test]
fn refusing_routes_are_mirrored() {
    let mirror = Mirror::read(&[1]).unwrap();
    let route = |kind, v6: bool| {
        let mut message = RouteMessage::default();
        message.header.address_family = if v6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
        (message.header.kind, message.header.table) = (kind, RouteHeader::RT_TABLE_MAIN);
        message.header.destination_prefix_length = 16;
        let to =
            if v6 { RouteAddress::Inet6("fd77::".parse().unwrap()) } else { RouteAddress::Inet([10, 9, 0, 0].into()) };
        message.attributes = vec![RouteAttribute::Destination(to), RouteAttribute::Priority(7)];
        let mut routes = Vec::new();
        mirror.route(&message, &mut routes);
        routes.iter().map(|route| (route.to.prefix, route.metric, route.refusal)).collect::<Vec<_>>()
    };
    for v6 in [false, true] {
        let refusal = |kind| route(kind, v6);
        assert_eq!(refusal(RouteType::Unreachable), [(16, 7, Some(Refusal::Unreachable))]);
        assert_eq!(refusal(RouteType::BlackHole), [(16, 7, Some(Refusal::Blackhole))]);
        assert_eq!(refusal(RouteType::Prohibit), [(16, 7, Some(Refusal::Prohibit))]);
        assert_eq!(refusal(RouteType::Throw), [(16, 7, Some(Refusal::Throw))]);
        assert_eq!((refusal(RouteType::Unicast), refusal(RouteType::Local)), (vec![], vec![]), "by no device of ours");
    }
}

#[test]
fn dead_hops_of_a_route_are_left_out() {
    let mirror = Mirror::read(&[1, 2]).unwrap();
    let hop = |index, flags| {
        let mut hop = RouteNextHop::default();
        (hop.interface_index, hop.flags) = (index, flags);
        hop
    };
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    (message.header.kind, message.header.table) = (RouteType::Unicast, RouteHeader::RT_TABLE_MAIN);
    message.attributes = vec![RouteAttribute::MultiPath(vec![
        hop(1, RouteNextHopFlags::Dead | RouteNextHopFlags::Linkdown),
        hop(2, RouteNextHopFlags::empty()),
    ])];
    let mut routes = Vec::new();
    mirror.route(&message, &mut routes);
    assert_eq!(routes.iter().map(|route| route.iface).collect::<Vec<_>>(), [IfaceId(1)]);
}

/// A dump contains the kernel's cached exceptions too (`fib_dump_info_fnhe`, `rt6_nh_dump_exceptions`).
#[test]
fn route_exceptions_and_routes_of_one_tos_are_left_out() {
    let mirror = Mirror::read(&[1]).unwrap();
    let mirrored = |flags, tos| {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        (message.header.kind, message.header.table) = (RouteType::Unicast, RouteHeader::RT_TABLE_MAIN);
        (message.header.destination_prefix_length, message.header.flags, message.header.tos) = (32, flags, tos);
        let gateway = RouteAttribute::Gateway(RouteAddress::Inet([10, 9, 0, 3].into()));
        let to = RouteAttribute::Destination(RouteAddress::Inet([10, 8, 0, 1].into()));
        message.attributes = vec![to, gateway, RouteAttribute::Oif(1)];
        let mut routes = Vec::new();
        mirror.route(&message, &mut routes);
        routes.len()
    };
    assert_eq!(mirrored(RouteFlags::empty(), 0), 1);
    assert_eq!(mirrored(RouteFlags::Cloned, 0), 0, "of an ICMP redirect, or a path MTU");
    assert_eq!(mirrored(RouteFlags::Dead, 0), 0);
    assert_eq!(mirrored(RouteFlags::empty(), 0x10), 0, "other packets take another route");
}
