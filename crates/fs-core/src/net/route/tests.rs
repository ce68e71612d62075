use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::string::ToString;

fn cidr(text: &str) -> Cidr {
    let (addr, prefix) = text.split_once('/').unwrap();
    Cidr { addr: addr.parse().unwrap(), prefix: prefix.parse().unwrap() }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn route(to: &str, gateway: Option<&str>, iface: u8, metric: u32) -> Route {
    Route { to: cidr(to), gateway: gateway.map(ip), iface: IfaceId(iface), metric, source: None, refusal: None }
}

fn interface(addrs: &[&str]) -> Interface {
    crate::net::tests::interface(addrs.iter().map(|addr| cidr(addr)).collect())
}

fn table(routes: Vec<Route>) -> RouteTable {
    let mut table = RouteTable::default();
    assert_eq!(table.set(routes), 0);
    table
}

fn hop(table: &RouteTable, to: &str) -> Option<(u8, std::string::String)> {
    table.lookup(ip(to), None).ok().map(|hop| (hop.iface.0, hop.addr.to_string()))
}

#[test]
fn longest_prefix_wins_then_metric() {
    let table = table(std::vec![
        route("0.0.0.0/0", Some("10.77.1.254"), 0, 0),
        route("10.77.0.0/16", None, 1, 0),
        route("10.77.2.0/24", Some("10.77.1.2"), 2, 100),
        route("10.77.2.0/24", Some("10.77.1.3"), 3, 50),
        route("10.77.2.9/32", None, 4, 1000),
        route("fd77:1::/64", None, 5, 0),
        route("::/0", Some("fe80::1"), 6, 0),
    ]);
    assert_eq!(hop(&table, "8.8.8.8"), Some((0, "10.77.1.254".into())));
    assert_eq!(hop(&table, "10.77.1.1"), Some((1, "10.77.1.1".into())));
    assert_eq!(hop(&table, "10.77.2.1"), Some((3, "10.77.1.3".into())));
    assert_eq!(hop(&table, "10.77.2.9"), Some((4, "10.77.2.9".into())));
    assert_eq!(hop(&table, "fd77:1::9"), Some((5, "fd77:1::9".into())));
    assert_eq!(hop(&table, "2001:db8::1"), Some((6, "fe80::1".into())));
    assert_eq!(hop(&table, "::ffff:10.77.1.1"), Some((1, "10.77.1.1".into())), "a mapped address is an IPv4 address");
}

#[test]
fn no_route() {
    assert_eq!(RouteTable::default().lookup(ip("10.0.0.1"), None), Err(Error::NetworkUnreachable));
    let table = table(std::vec![route("10.0.0.0/8", None, 0, 0)]);
    assert_eq!(table.lookup(ip("11.0.0.1"), None), Err(Error::NetworkUnreachable));
    assert_eq!(table.lookup(ip("::a00:1"), None), Err(Error::NetworkUnreachable), "families do not mix");
}

#[test]
fn counts_unusable_routes() {
    let mut table = RouteTable::default();
    let routes = std::vec![
        route("10.0.0.0/33", None, 0, 0),
        route("fd00::/129", None, 0, 0),
        route("10.0.0.0/8", Some("fe80::1"), 0, 0),
        route("11.0.0.0/8", None, 0, 0),
    ];
    assert_eq!(table.set(routes), 3);
    assert_eq!(table.routes().len(), 1);
    assert_eq!(table.set(Vec::new()), 0);
    assert!(table.routes().is_empty());
}

#[test]
fn source_addresses() {
    let interfaces = [
        interface(&["10.0.0.5/24", "10.77.1.1/24", "169.254.3.3/16", "fe80::1/64", "fd77:1::1/64", "2001:db8:1::1/64"]),
        interface(&["192.168.1.1/24"]),
        interface(&[]),
    ];
    let source = |iface, to: &str| source_for(&interfaces, IfaceId(iface), ip(to), ip(to)).map(|addr| addr.to_string());
    assert_eq!(source(0, "10.77.1.9").as_deref(), Some("10.77.1.1"), "same prefix");
    assert_eq!(source(0, "10.0.0.9").as_deref(), Some("10.0.0.5"));
    assert_eq!(source(0, "172.16.0.1").as_deref(), Some("10.0.0.5"), "the first of equals");
    assert_eq!(source(0, "8.8.8.8").as_deref(), Some("10.0.0.5"), "not a link-local one");
    assert_eq!(source(0, "169.254.9.9").as_deref(), Some("169.254.3.3"));
    assert_eq!(source(0, "fe80::99").as_deref(), Some("fe80::1"), "same scope");
    assert_eq!(source(0, "ff02::1").as_deref(), Some("fe80::1"), "a group of link scope");
    assert_eq!(source(0, "2001:db8:2::1").as_deref(), Some("2001:db8:1::1"), "longest match");
    assert_eq!(source(0, "fd77:2::1").as_deref(), Some("fd77:1::1"));
    assert_eq!(source(0, "2001:db8:1::1").as_deref(), Some("2001:db8:1::1"), "ourselves");
    assert_eq!(source(1, "2001:db8:1::9").as_deref(), Some("2001:db8:1::1"), "another interface's, if it has none");
    assert_eq!(source(2, "10.77.1.9").as_deref(), Some("10.77.1.1"));
    assert_eq!(source_for(&interfaces[1..], IfaceId(0), ip("fe80::1"), ip("fe80::1")), None);
}

#[test]
fn refusing_routes_return_errors() {
    let refusing = |to, metric, refusal| Route { refusal: Some(refusal), ..route(to, None, 0, metric) };
    let table = table(std::vec![
        route("0.0.0.0/0", Some("10.77.1.254"), 1, 0),
        refusing("10.1.0.0/16", 0, Refusal::Unreachable),
        refusing("10.2.0.0/16", 0, Refusal::Blackhole),
        refusing("10.3.0.0/16", 0, Refusal::Prohibit),
        refusing("10.4.0.0/16", 0, Refusal::Throw),
        route("10.1.5.0/24", None, 2, 0),
        refusing("10.5.0.0/16", 100, Refusal::Unreachable),
        route("10.5.0.0/16", None, 3, 50),
        refusing("10.6.0.0/16", 50, Refusal::Unreachable),
        route("10.6.0.0/16", None, 3, 100),
        refusing("fd77:1::/64", 1024, Refusal::Prohibit),
    ]);
    let lookup = |to| table.lookup(ip(to), None).map(|hop| hop.iface.0);
    assert_eq!(lookup("10.1.0.1"), Err(Error::HostUnreachable));
    assert_eq!(lookup("10.2.0.1"), Err(Error::InvalidInput));
    assert_eq!(lookup("10.3.0.1"), Err(Error::Prohibited));
    assert_eq!(lookup("10.4.0.1"), Err(Error::NetworkUnreachable));
    assert_eq!((lookup("10.1.5.1"), lookup("10.7.0.1")), (Ok(2), Ok(1)), "the longest prefix decides");
    assert_eq!((lookup("10.5.0.1"), lookup("10.6.0.1")), (Ok(3), Err(Error::HostUnreachable)), "then the metric");
    assert_eq!(lookup("fd77:1::1"), Err(Error::Prohibited));
    assert!(
        table.refuses(ip("10.4.0.1"), None)
            && !table.refuses(ip("10.1.5.1"), None)
            && !table.refuses(ip("fd78::1"), None)
    );
}

#[test]
fn route_names_source() {
    let mut table = RouteTable::default();
    let named = Route { source: Some(ip("10.0.0.7")), ..route("10.5.0.0/16", Some("10.0.0.1"), 0, 0) };
    table.set(alloc::vec![named, route("10.5.5.0/24", None, 0, 0)]);
    assert_eq!(table.source(ip("10.5.1.1"), None), Some(ip("10.0.0.7")));
    assert_eq!((table.source(ip("10.5.5.1"), None), table.source(ip("10.6.0.1"), None)), (None, None));
    // A prefix length of 0 is how the mirror marks a deprecated address.
    let interfaces = [interface(&["2001:db8:1::1/64", "2001:db8:2::1/0", "fd77::1/0"])];
    let source = |to: &str| source_for(&interfaces, IfaceId(0), ip(to), ip("fe80::9"));
    assert_eq!(source("2001:db8:2::9"), Some(ip("2001:db8:1::1")));
    assert_eq!(source("fd77::9"), Some(ip("2001:db8:1::1")));
}

/// Expectations are the output of `ip route get` with these addresses, in this order, and a default
/// route by 192.168.0.254.
#[test]
fn source_is_in_gateways_network() {
    let interfaces = [interface(&["10.1.0.1/24", "192.168.0.1/24", "192.168.0.2/24"])];
    let source = |to: &str, hop: &str| source_for(&interfaces, IfaceId(0), ip(to), ip(hop));
    assert_eq!(source("10.9.9.9", "192.168.0.254"), Some(ip("192.168.0.1")));
    assert_eq!(source("192.168.7.7", "10.1.0.254"), Some(ip("10.1.0.1")));
    assert_eq!(source("192.168.7.7", "172.16.0.1"), Some(ip("10.1.0.1")), "the first one");
    // On a link without neighbours.
    assert_eq!(source("192.168.0.9", "0.0.0.0"), Some(ip("192.168.0.1")));
}

#[test]
fn link_local_source_is_last_choice() {
    let only = [interface(&["fe80::1/64"])];
    assert_eq!(source_for(&only, IfaceId(0), ip("2001:db8::1"), ip("fe80::9")), Some(ip("fe80::1")));
}

/// Expectations are the output of `ip route get … oif …` with the addresses on another device.
#[test]
fn host_addresses_concern_unbound_sockets() {
    let mut table = table(std::vec![
        route("0.0.0.0/0", Some("10.0.0.254"), 0, 0),
        route("10.0.0.0/24", None, 0, 0),
        route("::/0", Some("fd00::fe"), 0, 1024),
        // The table `local` comes before a longest prefix.
        route("10.9.0.2/32", None, 0, 0),
    ]);
    let host = ["10.9.0.2", "fd09::1", "10.9.0.1", "10.9.0.1", "192.168.0.1"];
    table.set_host_addresses(host.map(ip).to_vec());
    for to in ["10.9.0.1", "::ffff:10.9.0.1", "10.9.0.2", "fd09::1", "192.168.0.1"] {
        assert_eq!(table.lookup(ip(to), None), Err(Error::InvalidInput), "{to}");
        assert!(table.refuses(ip(to), None) && !table.refuses(ip(to), Some(IfaceId(0))), "{to}");
    }
    let by_device = |to: &str| table.lookup(ip(to), Some(IfaceId(0))).ok().map(|hop| hop.addr);
    assert_eq!(by_device("10.9.0.1"), Some(ip("10.0.0.254")), "by the gateway");
    assert_eq!(by_device("fd09::1"), Some(ip("fd00::fe")));
    assert_eq!(hop(&table, "10.9.0.3"), Some((0, "10.0.0.254".into())), "nobody's");
    table.set_host_addresses(Vec::new());
    assert_eq!(hop(&table, "10.9.0.2"), Some((0, "10.9.0.2".into())));
}

fn any_v4_cidr() -> impl Strategy<Value = Cidr> {
    // Few distinct addresses, so that prefixes nest.
    (0u32..16, 0u8..=32).prop_map(|(top, prefix)| Cidr { addr: IpAddr::V4((top << 28 | 0x0101_0101).into()), prefix })
}

proptest! {
    #[test]
    fn equals_scan_of_all_routes(cidrs in vec((any_v4_cidr(), 0u32..4), 0..20), to in any::<u32>()) {
        let routes: Vec<Route> = cidrs
            .iter()
            .enumerate()
            .map(|(n, (to, metric))| Route { to: *to, gateway: None, iface: IfaceId(n as u8), metric: *metric, source: None, refusal: None })
            .collect();
        let inside = |cidr: &Cidr| {
            let IpAddr::V4(addr) = cidr.addr else { unreachable!() };
            let mask = u32::MAX.checked_shl(32 - u32::from(cidr.prefix)).unwrap_or(0);
            (to ^ addr.to_bits()) & mask == 0
        };
        let best = routes.iter().filter(|route| inside(&route.to)).min_by_key(|route| (Reverse(route.to.prefix), route.metric));
        let found = table(routes.clone()).lookup(IpAddr::V4(to.into()), None);
        prop_assert_eq!(found.ok().map(|hop| hop.iface), best.map(|route| route.iface));
    }
}

#[test]
fn device_restricts_routes() {
    let net = |to: &str, prefix, gateway: Option<&str>, iface| Route {
        to: Cidr { addr: ip(to), prefix },
        gateway: gateway.map(ip),
        iface: IfaceId(iface),
        metric: 0,
        source: None,
        refusal: None,
    };
    let refusing = |to: &str, prefix| Route { refusal: Some(Refusal::Prohibit), ..net(to, prefix, None, 0) };
    let table = table(std::vec![
        refusing("10.9.0.0", 16),
        refusing("fd09::", 16),
        net("10.0.0.0", 24, None, 0),
        net("0.0.0.0", 0, Some("10.0.0.254"), 0),
        net("0.0.0.0", 0, Some("10.1.0.254"), 1),
        net("fd00::", 8, None, 0),
    ]);
    let by = |device, to: &str| table.lookup(ip(to), device).ok().map(|hop| (hop.iface.0, hop.addr));
    assert_eq!(by(None, "10.0.0.9"), Some((0, ip("10.0.0.9"))));
    assert_eq!(
        by(Some(IfaceId(1)), "10.0.0.9"),
        Some((1, ip("10.1.0.254"))),
        "the longest prefix is not by this device"
    );
    assert_eq!(by(Some(IfaceId(2)), "10.0.0.9"), Some((2, ip("10.0.0.9"))), "no route there: on the link");
    assert_eq!((by(Some(IfaceId(1)), "fd00::1"), by(None, "fd00::1")), (None, Some((0, ip("fd00::1")))));
    // Refusing routes.
    assert_eq!((by(None, "10.9.0.1"), by(None, "fd09::1")), (None, None));
    assert_eq!(by(Some(IfaceId(0)), "10.9.0.1"), Some((0, ip("10.9.0.1"))), "not by the default route");
    assert_eq!(by(Some(IfaceId(0)), "fd09::1"), Some((0, ip("fd09::1"))), "by the next shorter one");
}
