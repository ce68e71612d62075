//! A change of the environment, and its reversal.

use fs_tests::Ns;
use fs_tests::random::Random;

/// One of the two wires: devices and addresses at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    /// The host's device.
    pub(crate) device: &'static str,
    /// The beginnings of its addresses.
    pub(crate) net4: &'static str,
    pub(crate) net6: &'static str,
    /// The namespace of its other end, and its name there.
    pub(crate) peer: Ns,
    pub(crate) peer_device: &'static str,
}

pub(crate) const WIRES: [Wire; 2] = [
    Wire { device: "front0", net4: "10.77.1", net6: "fd77:1:", peer: Ns::Client, peer_device: "client0" },
    Wire { device: "back0", net4: "10.77.2", net6: "fd77:2:", peer: Ns::Backend, peer_device: "backend0" },
];

/// Commands for a shell, in one of the namespaces.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) ns: Ns,
    pub(crate) script: String,
}

impl Step {
    fn host(script: impl Into<String>) -> Step {
        Step { ns: Ns::Host, script: script.into() }
    }

    fn peer(wire: Wire, script: impl Into<String>) -> Step {
        Step { ns: wire.peer, script: script.into() }
    }

    /// Returns the step that takes a device of the host down, and the following step.
    pub(crate) fn down_and_rest(&self) -> Option<(Step, Option<Step>)> {
        let of_host = |script: &str| Step { ns: self.ns, script: script.to_owned() };
        let (first, rest) =
            self.script.split_once("; ").map_or((&*self.script, None), |(first, rest)| (first, Some(rest)));
        let is_down = |device: &str| first == format!("ip link set {device} down");
        (self.ns == Ns::Host && (first.starts_with("ip link del") || WIRES.iter().any(|wire| is_down(wire.device))))
            .then(|| (of_host(first), rest.map(of_host)))
    }

    /// A peer may have lost its link, its address or its routes by it.
    pub(crate) fn takes_from_a_peer(&self) -> bool {
        self.script.starts_with("ip link del") || self.script.contains(" down")
    }
}

/// A change. Steps may fail: what another change has removed cannot be removed again.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) does: Step,
    /// `None`: it is not reversed, except by the environment's initial state.
    pub(crate) undoes: Option<Step>,
}

fn change(does: Step, undoes: Step) -> Change {
    Change { does, undoes: Some(undoes) }
}

/// `BACKEND` is the namespace. `TAKEN` is true after the program under test has the device: before
/// that, packets go to the kernel, so there are no addresses until then.
const BACK_AGAIN: &str = "ip link show back0 > /dev/null 2>&1 || {
    ip link add back0 numrxqueues 4 numtxqueues 4 type veth peer name backend0 netns BACKEND numrxqueues 4 numtxqueues 4
    for i in $(seq 2000); do TAKEN && break; sleep 0.01; done
}";

impl Change {
    pub(crate) fn draw(random: &mut Random) -> Change {
        let wire = random.pick(&WIRES);
        let other = WIRES[usize::from(wire.device == WIRES[0].device)];
        let Wire { device, net4, net6, peer_device, .. } = wire;
        let own = random.pick(&[
            format!("{net4}.1/24"),
            format!("{net4}.50/24"),
            format!("{net6}:1/64"),
            format!("{net6}:50/64"),
        ]);
        let nodad = if own.contains(':') { "nodad" } else { "" };
        let bare = own.split('/').next().unwrap_or_default().to_owned();
        let whole = if own.contains(':') { 128 } else { 32 };
        let family = if own.contains(':') { "-6" } else { "-4" };
        let net = if own.contains(':') { format!("{net6}:/64") } else { format!("{net4}.0/24") };
        let peer_address = if own.contains(':') { format!("{net6}:2") } else { format!("{net4}.2") };
        let mac = format!("02:00:00:{:02x}:{:02x}:{:02x}", random.below(256), random.below(256), random.below(256));
        let mtu = random.pick(&[1280, 1300, 1400, 1492]);
        let queues = 1 + random.below(4);
        let times = 1 + random.below(40);
        match random.below(24) {
            0 | 1 => {
                change(Step::host(format!("ip link set {device} down")), Step::host(format!("ip link set {device} up")))
            }
            2 => change(
                Step::peer(wire, format!("ip link set {peer_device} down")),
                Step::peer(wire, format!("ip link set {peer_device} up")),
            ),
            3 => change(
                Step::host(format!("ip link set {device} mtu {mtu}")),
                Step::host(format!("ip link set {device} mtu 1500")),
            ),
            4 => change(
                Step::peer(wire, format!("ip link set {peer_device} mtu {mtu}")),
                Step::peer(wire, format!("ip link set {peer_device} mtu 1500")),
            ),
            5..=7 => change(
                Step::host(format!("ip addr del {own} dev {device}")),
                Step::host(format!("ip addr add {own} dev {device} {nodad}")),
            ),
            // The host's other device has the address for a while.
            8 | 9 => change(
                Step::host(format!(
                    "ip addr del {own} dev {device} && ip addr add {bare}/{whole} dev {} {nodad}",
                    other.device
                )),
                Step::host(format!(
                    "ip addr del {bare}/{whole} dev {}; ip addr add {own} dev {device} {nodad}",
                    other.device
                )),
            ),
            10 => {
                // The kernel itself loses the route to an IPv6 address that is added and removed so
                // fast.
                let times = if own.contains(':') { 1 } else { times };
                let pair = format!("addr del {own} dev {device}\\naddr add {own} dev {device} {nodad}\\n");
                let flap = format!("for i in $(seq {times}); do printf '{pair}'; done | ip -force -batch -");
                Change { does: Step::host(flap), undoes: None }
            }
            11 => change(
                Step::host(format!("ip {family} route del {net} dev {device}")),
                Step::host(format!("ip {family} route replace {net} dev {device} proto kernel")),
            ),
            12 => change(
                Step::host(format!("ip {family} route add {peer_address}/{whole} dev {device} metric 5")),
                Step::host(format!("ip {family} route del {peer_address}/{whole} dev {device} metric 5")),
            ),
            13 => {
                let kind = random.pick(&["unreachable", "blackhole", "prohibit"]);
                change(
                    Step::host(format!("ip {family} route add {kind} {peer_address}/{whole} metric 7")),
                    Step::host(format!("ip {family} route del {kind} {peer_address}/{whole} metric 7")),
                )
            }
            14 => Change { does: Step::host(format!("ip neigh flush dev {device}")), undoes: None },
            15 => change(
                Step::host(format!("ip neigh replace {peer_address} lladdr {mac} dev {device} nud permanent")),
                Step::host(format!("ip neigh del {peer_address} dev {device}")),
            ),
            // The peer has another link address from then on, and the host is asked to find it.
            16 => Change {
                does: Step::peer(
                    wire,
                    format!(
                        "ip link set {peer_device} down; ip link set {peer_device} address {mac}; ip link set {peer_device} up"
                    ),
                ),
                undoes: Some(Step::host(format!("ip neigh flush dev {device}"))),
            },
            17 => Change {
                does: Step::host(format!("ip link set {device} address {mac}")),
                undoes: Some(Step::peer(wire, format!("ip neigh flush dev {peer_device}"))),
            },
            // A veth with an XDP program runs it on a new queue only after it was down, and never
            // has fewer rx queues than its peer has tx queues.
            18 => Change {
                does: Step::host(format!(
                    "ip link set {device} down; ethtool -L {device} rx {queues} tx {queues}; ip link set {device} up"
                )),
                undoes: None,
            },
            19 => Change {
                does: Step::peer(wire, format!("ethtool -L {peer_device} rx {queues} tx {queues}")),
                undoes: None,
            },
            20 => {
                let feature = random.pick(&["tso", "gso", "tx", "gro"]);
                change(
                    Step::peer(wire, format!("ethtool -K {peer_device} {feature} off")),
                    Step::peer(wire, format!("ethtool -K {peer_device} {feature} on")),
                )
            }
            // A device is deleted with its peer, and created again under its name.
            21 | 22 => change(Step::host("ip link del back0"), Step::host(BACK_AGAIN)),
            // More netlink messages than the sockets hold.
            _ => {
                let each = |what: &str| {
                    format!(
                        "for i in $(seq 1 250); do echo addr {what} 10.99.$i.1/24 dev {device}; done | ip -force -batch -"
                    )
                };
                change(Step::host(each("add")), Step::host(each("del")))
            }
        }
    }

    /// Between a device's return and the runtime's notification, the kernel gets its packets.
    pub(crate) fn removes_a_device(&self) -> bool {
        self.does.script.starts_with("ip link del")
    }

    /// The initial state: links up, with their addresses and routes. Steps that are already in
    /// effect do nothing.
    pub(crate) fn ground() -> Vec<Step> {
        let mut host = String::from(BACK_AGAIN) + "\n";
        for (n, Wire { net4, net6, .. }) in WIRES.iter().enumerate() {
            // The device to which addresses were moved.
            let other = WIRES[1 - n].device;
            for at in ["1", "50"] {
                host += &format!("ip addr del {net4}.{at}/32 dev {other}; ip addr del {net6}:{at}/128 dev {other}\n");
            }
        }
        for Wire { device, net4, net6, .. } in WIRES {
            host += &format!("ip link set {device} mtu 1500; ip link set {device} up\n");
            for kind in ["unreachable", "blackhole", "prohibit"] {
                host += &format!(
                    "ip route del {kind} {net4}.2/32 metric 7; ip -6 route del {kind} {net6}:2/128 metric 7\n"
                );
            }
            host += &format!(
                "ip route del {net4}.2/32 dev {device} metric 5; ip -6 route del {net6}:2/128 dev {device} metric 5\n"
            );
            for at in ["1", "50"] {
                host += &format!(
                    "ip addr replace {net4}.{at}/24 dev {device}; ip addr replace {net6}:{at}/64 dev {device} nodad\n"
                );
            }
            host += &format!("ip route replace {net4}.0/24 dev {device} proto kernel scope link\n");
            host += &format!("ip -6 route replace {net6}:/64 dev {device} proto kernel metric 256\n");
            host += &format!("ip neigh del {net4}.2 dev {device}; ip neigh del {net6}:2 dev {device}\n");
        }
        let mut steps = vec![Step::host(host)];
        for wire @ Wire { net4, net6, peer_device, .. } in WIRES {
            steps.push(Step::peer(
                wire,
                format!(
                    "ip link set {peer_device} mtu 1500; ip link set {peer_device} up
                     ip addr replace {net4}.2/24 dev {peer_device}; ip addr replace {net6}:2/64 dev {peer_device} nodad
                     ip neigh flush dev {peer_device}"
                ),
            ));
        }
        steps
    }
}
