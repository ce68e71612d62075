//! A veth pair between two namespaces: a runtime on AF_XDP at one end, the kernel at the other.
#![allow(dead_code, reason = "each test binary uses its part")]

#[allow(dead_code, unreachable_pub, reason = "shared with the tests of fs-xdp, which use the rest")]
#[path = "../../../fs-xdp/tests/support/netns_unsafe.rs"]
pub(crate) mod netns_unsafe;

use fs_rt::{BuildError, Builder, Runtime};
use netns_unsafe::NetNs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Device and address of the runtime, and of the kernel at the other end.
pub(crate) const DEVICE: &str = "fsc0";
pub(crate) const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 89, 0, 1));
pub(crate) const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 89, 0, 2));

pub(crate) struct Wire {
    pub(crate) ours: NetNs,
    pub(crate) peer: NetNs,
}

impl Wire {
    /// Returns `None` and prints "skipped" if the caller is not root.
    pub(crate) fn up(test: &str) -> Option<Wire> {
        Self::with_queues(test, 1)
    }

    /// Like [`Wire::up`], with `queues` queues at both ends.
    pub(crate) fn with_queues(test: &str, queues: u32) -> Option<Wire> {
        if !netns_unsafe::is_root() {
            eprintln!("skipped: {test} (needs root)");
            return None;
        }
        let wire = Wire { ours: NetNs::new(), peer: NetNs::new() };
        for ns in [&wire.ours, &wire.peer] {
            // While a link-local address is tentative, the kernel resolves no IPv6 neighbour.
            ns.run("echo 0 2> /dev/null > /proc/sys/net/ipv6/conf/default/accept_dad || true");
        }
        wire.lay((DEVICE, OURS), ("fsc1", PEER), queues);
        Some(wire)
    }

    /// Creates a pair of devices with these names, addresses and number of queues.
    pub(crate) fn lay(&self, (device, own): (&str, IpAddr), (other, peer): (&str, IpAddr), queues: u32) {
        let queues = format!("numtxqueues {queues} numrxqueues {queues}");
        let ns = self.peer.path();
        self.ours.run(&format!("ip link add {device} {queues} type veth peer name {other} {queues} netns {ns}"));
        self.ours.run(&format!("ip addr add {own}/24 dev {device} && ip link set {device} up"));
        self.peer.run(&format!("ip addr add {peer}/24 dev {other} && ip link set {other} up"));
        // Packets are dropped until the link has a carrier.
        self.ours.run(&format!(
            "for i in $(seq 1000); do ip -o link show {device} | grep -q 'state UP' && exit; sleep 0.01; done; false"
        ));
    }

    /// The first lines of a program. Call it within [`Wire::ours`].
    pub(crate) fn runtime() -> Runtime {
        build(|| Runtime::builder().device(DEVICE).cores([0]).pin(false).frames(4096).ephemeral_ports(64))
    }
}

/// Builds a runtime whose device another one may have had a moment ago. On a busy machine the kernel
/// frees its queues later than the runtime waits.
pub(crate) fn build(builder: impl Fn() -> Builder) -> Runtime {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match builder().build() {
            Err(BuildError::Link { source, .. })
                if source.kind() == ErrorKind::ResourceBusy && Instant::now() < until => {}
            built => return built.unwrap(),
        }
    }
}

pub(crate) fn at(addr: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(addr, port)
}
