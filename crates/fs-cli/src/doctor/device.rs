//! The device and its queues.

use super::finding::Finding;
use fs_xdp::{NetDevice, XdpMode};

pub(super) fn look(named: Option<&str>) -> Vec<Finding> {
    let Some(name) = named.map(str::to_owned).or_else(default_device) else {
        return vec![Finding::bad(
            "device",
            "there is no default route, so no device to check",
            "name a device with --device",
        )];
    };
    match NetDevice::find(&name) {
        Ok(device) => {
            let limits =
                device.must_copy().map(|why| Finding::note("zero copy", why, "nothing: the kernel copies packets"));
            [interface(&device), mtu(&device)]
                .into_iter()
                .chain(limits)
                .chain(program(&device))
                .chain(queues(&device))
                .chain(bulk(&device))
                .collect()
        }
        Err(error) => {
            vec![Finding::bad("device", error.to_string(), "name another device with --device (`ip link` lists them)")]
        }
    }
}

fn interface(device: &NetDevice) -> Finding {
    let name = &device.name;
    if device.is_loopback() {
        return Finding::bad(
            "device",
            format!("{name} is the loopback device"),
            "name the device that faces the network; connections within this host need none",
        );
    }
    if !device.is_ethernet() {
        return Finding::bad(
            "device",
            format!("{name} is not an Ethernet device"),
            "name an Ethernet device with --device",
        );
    }
    if !device.is_up() {
        return Finding::bad("device", format!("{name} is down"), format!("ip link set {name} up"));
    }
    let driver = if device.driver.is_empty() { "no driver name" } else { &device.driver };
    Finding::good("device", format!("{name} ({driver}) is up"))
}

/// Reports whether and how the device runs an XDP program now.
fn program(device: &NetDevice) -> Option<Finding> {
    let (name, is_veth) = (&device.name, device.driver == "veth");
    Some(match device.xdp_mode()? {
        XdpMode::Generic if is_veth => {
            Finding::good("xdp", format!("{name} runs a program in generic mode: packets of up to 64 KiB arrive whole"))
        }
        XdpMode::Generic => Finding::note(
            "xdp",
            format!("{name} runs a program in generic mode, in which the kernel copies each packet twice"),
            "nothing if its driver has no XDP; otherwise XdpMode::Native, whose error says what prevents it",
        ),
        _ => Finding::good("xdp", format!("{name} runs a program in native mode")),
    })
}

/// Maximum MTU of native XDP without multi-buffer support: one page less headroom (measured on
/// veth).
const NATIVE_MTU: u32 = 3506;

fn mtu(device: &NetDevice) -> Finding {
    let mtu = device.mtu;
    if mtu <= NATIVE_MTU {
        return Finding::good("mtu", mtu.to_string());
    }
    Finding::note(
        "mtu",
        format!("{mtu} needs Linux 6.6 and a driver with multi-buffer XDP"),
        format!("nothing if `fastsock up` starts; otherwise ip link set {} mtu {NATIVE_MTU}", device.name),
    )
}

fn queues(device: &NetDevice) -> Vec<Finding> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let queues = queues_for(cpus, device.queue_counts().rx, &device.name);
    let steering = match fs_xdp::steering_report(&device.name) {
        Ok(report) => Finding::good("steering", report.to_string()),
        Err(error) => {
            Finding::note("steering", error.to_string(), "replies may arrive on another core, which forwards them")
        }
    };
    vec![queues, steering]
}

fn queues_for(cpus: u32, count: u32, name: &str) -> Finding {
    if count > cpus {
        return Finding::note(
            "queues",
            format!("{count} receive queues for {cpus} CPUs, so each core serves several queues"),
            format!("ethtool -L {name} combined {cpus}"),
        );
    }
    Finding::good("queues", format!("{count} receive queue{}, {cpus} CPUs", if count == 1 { "" } else { "s" }))
}

/// Reports missing offloads, and the speed that they cost where packets are copied (decision 0029).
fn bulk(device: &NetDevice) -> Vec<Finding> {
    let name = &device.name;
    let is_veth = device.driver == "veth";
    let sending = match (device.has_tso(), is_veth) {
        (true, _) => {
            Finding::good("bulk, sending", "TSO is on: where packets are copied, runs of segments leave as one packet")
        }
        (false, false) => Finding::note(
            "bulk, sending",
            format!("{name} has no TSO now, so segments are sent one by one"),
            format!("ethtool -K {name} tso on"),
        ),
        (false, true) => Finding::note(
            "bulk, sending",
            format!(
                "{name} has no TSO now, so segments are sent one by one: the other end has XDP in native mode, or TSO is off"
            ),
            format!("XdpMode::Generic (xdp = \"generic\" of [wire]) at the other end, or ethtool -K {name} tso on"),
        ),
    };
    let receiving = is_veth.then(|| {
        Finding::note(
            "bulk, receiving",
            format!(
                "with several cores XDP is in native mode, and the other end of {name} loses TSO: its kernel sends a packet for \
                 each segment, and 1 MiB through a proxy costs 3 times the kernel's CPU"
            ),
            "one core (which uses generic mode), XdpMode::Generic (xdp = \"generic\" of [wire]), or the kernel's sockets for \
             programs that move large bodies",
        )
    });
    [sending].into_iter().chain(receiving).collect()
}

/// Returns the device of the default route, by IPv4's table if that has one.
fn default_device() -> Option<String> {
    let read = |table| std::fs::read_to_string(table).unwrap_or_default();
    default_route(&read("/proc/net/route"), &read("/proc/net/ipv6_route"))
}

/// The route's packets are refused (linux/route.h). Only two of the four such types of an IPv4 route have it.
const RTF_REJECT: u32 = 0x200;

/// Returns the device of the default route with the lowest metric. A line of `ipv4` has a name, destination, gateway,
/// flags, two counts, metric and mask. One of `ipv6` has a destination and its length, a source and its length, the
/// next hop, metric, two counts, flags and a name.
fn default_route(ipv4: &str, ipv6: &str) -> Option<String> {
    let hex = |field: &str| u32::from_str_radix(field, 16).ok();
    let by_ipv4 = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        // A route of type unreachable, blackhole, prohibit or throw has no device.
        [name, "00000000", _, _, _, _, metric, "00000000", ..] if name != "*" => {
            Some((metric.parse().ok()?, name.to_owned()))
        }
        _ => None,
    };
    let by_ipv6 = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, "00", _, _, _, metric, _, _, flags, name] if hex(flags)? & RTF_REJECT == 0 => {
            Some((hex(metric)?, name.to_owned()))
        }
        _ => None,
    };
    let lowest = ipv4.lines().filter_map(by_ipv4).min().or_else(|| ipv6.lines().filter_map(by_ipv6).min());
    lowest.map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Grade;
    use super::*;

    const IPV4: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
*\t00000000\t00000000\t0001\t0\t0\t5\t00000000\t0\t0\t0
*\t00000000\t00000000\t0201\t0\t0\t10\t00000000\t0\t0\t0
eth0\t00000000\t010200C0\t0003\t0\t0\t200\t00000000\t0\t0\t0
eth1\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth2\t00000000\t010200C0\t0003\t0\t0\t0\t00000080\t0\t0\t0
";
    const IPV6: &str = "\
fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth3
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 00000064 00000001 00000000 00200200       lo
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000002 00000400 00000001 00000000 00000003     eth4
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000003 00000200 00000001 00000000 00000003     eth5
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
";

    #[test]
    fn device_of_the_default_route_is_found() {
        assert_eq!(default_route(IPV4, IPV6).as_deref(), Some("eth1"));
        let without = |table: &str, devices: [&str; 2]| {
            let lines = table.lines().filter(|line| !devices.iter().any(|device| line.contains(device)));
            lines.collect::<Vec<_>>().join("\n")
        };
        let (ipv4, ipv6) = (without(IPV4, ["eth0", "eth1"]), without(IPV6, ["eth4", "eth5"]));
        assert_eq!(default_route(&ipv4, IPV6).as_deref(), Some("eth5"));
        assert_eq!(default_route(&ipv4, &ipv6), None);
    }

    /// A device that is up, and that this machine does not have.
    fn device(driver: &str) -> NetDevice {
        NetDevice {
            name: "fsnone".into(),
            index: 0,
            mtu: 1500,
            mac: [0; 6],
            hardware_type: 1,
            flags: 1,
            driver: driver.into(),
        }
    }

    /// `ARPHRD_*` of linux/if_arp.h.
    #[test]
    fn only_an_ethernet_device_that_is_up_works() {
        let grade = |hardware_type, flags| interface(&NetDevice { hardware_type, flags, ..device("ice") }).grade;
        const ETHER: u16 = 1;
        const LOOPBACK: u16 = 772;
        const NONE: u16 = 65_534;
        assert_eq!((grade(ETHER, 1), grade(ETHER, 0)), (Grade::Good, Grade::Bad));
        assert_eq!((grade(LOOPBACK, 1), grade(NONE, 1)), (Grade::Bad, Grade::Bad));
    }

    #[test]
    fn limits_are_notes() {
        let with_mtu = |bytes| mtu(&NetDevice { mtu: bytes, ..device("ice") }).grade;
        assert_eq!((with_mtu(1500), with_mtu(3506), with_mtu(3507)), (Grade::Good, Grade::Good, Grade::Note));
        let queues = |count| queues_for(4, count, "fsnone").grade;
        assert_eq!((queues(1), queues(4), queues(5)), (Grade::Good, Grade::Good, Grade::Note));
    }

    /// An unknown device has no TSO, and only veth has a peer device.
    #[test]
    fn reports_what_slows_bulk_down() {
        assert!(program(&device("veth")).is_none(), "it runs no program");
        let said = |driver| bulk(&device(driver)).iter().map(|finding| format!("{finding:?}")).collect::<Vec<_>>();
        let card = said("ice");
        assert!(card.len() == 1 && card[0].contains("ethtool -K fsnone tso on"), "{card:?}");
        let veth = said("veth");
        assert!(veth.len() == 2 && veth.iter().all(|one| one.contains("XdpMode::Generic")), "{veth:?}");
    }
}
