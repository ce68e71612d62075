//! A veth pair between two namespaces: a runtime on AF_XDP at one end, the kernel at the other.
#![allow(dead_code, reason = "each test binary uses its part")]

#[allow(dead_code, unreachable_pub, reason = "shared with the tests of fs-xdp, which use the rest")]
#[path = "../../../fs-xdp/tests/support/netns_unsafe.rs"]
pub(crate) mod netns_unsafe;

use fs_rt::Runtime;
use netns_unsafe::NetNs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The runtime's device and address, and the kernel's at the other end.
pub(crate) const DEVICE: &str = "fsc0";
pub(crate) const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 89, 0, 1));
pub(crate) const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 89, 0, 2));

pub(crate) struct Wire {
    pub(crate) ours: NetNs,
    pub(crate) peer: NetNs,
}

impl Wire {
    /// `None`, with a line that says so, for others than root.
    pub(crate) fn up(test: &str) -> Option<Wire> {
        Self::with_queues(test, 1)
    }

    /// As [`Wire::up`], with that many queues at both ends.
    pub(crate) fn with_queues(test: &str, queues: u32) -> Option<Wire> {
        if !netns_unsafe::is_root() {
            eprintln!("skipped: {test} (needs root)");
            return None;
        }
        let wire = Wire { ours: NetNs::new(), peer: NetNs::new() };
        let peer = wire.peer.path();
        let queues = format!("numtxqueues {queues} numrxqueues {queues}");
        wire.ours.run(&format!("ip link add {DEVICE} {queues} type veth peer name fsc1 {queues} netns {peer}"));
        wire.ours.run(&format!("ip addr add {OURS}/24 dev {DEVICE} && ip link set {DEVICE} up"));
        wire.peer.run(&format!("ip addr add {PEER}/24 dev fsc1 && ip link set fsc1 up"));
        // Until the carrier is there what is sent is dropped.
        wire.ours.run(&format!(
            "for i in $(seq 300); do ip -o link show {DEVICE} | grep -q 'state UP' && exit; sleep 0.01; done; false"
        ));
        Some(wire)
    }

    /// What a program builds first. To be called within [`Wire::ours`].
    pub(crate) fn runtime() -> Runtime {
        Runtime::builder().device(DEVICE).cores([0]).pin(false).frames(4096).active_ports(64).build().unwrap()
    }
}

pub(crate) fn at(addr: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(addr, port)
}
