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
    let count = device.queue_counts().rx;
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let queues = if count > cpus {
        Finding::note(
            "queues",
            format!("{count} receive queues for {cpus} CPUs, so each core serves several queues"),
            format!("ethtool -L {} combined {cpus}", device.name),
        )
    } else {
        Finding::good("queues", format!("{count} receive queue{}, {cpus} CPUs", if count == 1 { "" } else { "s" }))
    };
    let steering = match fs_xdp::steering_report(&device.name) {
        Ok(report) => Finding::good("steering", report.to_string()),
        Err(error) => {
            Finding::note("steering", error.to_string(), "replies may arrive on another core, which forwards them")
        }
    };
    vec![queues, steering]
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

/// Returns the device of the default route with the lowest metric (/proc/net/route: name, destination,
/// gateway, flags, …).
fn default_device() -> Option<String> {
    let table = std::fs::read_to_string("/proc/net/route").ok()?;
    let default = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is = fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000");
        is.then(|| Some((fields.get(6)?.parse::<u32>().ok()?, (*fields.first()?).to_owned())))?
    };
    table.lines().skip(1).filter_map(default).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An unknown device has no TSO, and only veth has a peer device.
    #[test]
    fn reports_what_slows_bulk_down() {
        let device = |driver: &str| NetDevice {
            name: "fsnone".into(),
            index: 0,
            mtu: 1500,
            mac: [0; 6],
            hardware_type: 1,
            flags: 0,
            driver: driver.into(),
        };
        assert!(program(&device("veth")).is_none(), "it runs no program");
        let said = |driver| bulk(&device(driver)).iter().map(|finding| format!("{finding:?}")).collect::<Vec<_>>();
        let card = said("ice");
        assert!(card.len() == 1 && card[0].contains("ethtool -K fsnone tso on"), "{card:?}");
        let veth = said("veth");
        assert!(veth.len() == 2 && veth.iter().all(|one| one.contains("XdpMode::Generic")), "{veth:?}");
    }
}
