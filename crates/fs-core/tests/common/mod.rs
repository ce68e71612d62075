//! A stack with one interface, for all of these tests.

use fs_core::{Addressing, Cidr, Framing, HeapPool, Interface, Limits, Route, Secret, Stack, StackConfig, TcpConfig};
use std::net::IpAddr;

/// Properties that differ between tests.
pub(crate) struct Plan {
    /// Last byte of its addresses: 10.0.0.`last` and fd00::`last`.
    pub(crate) last: u8,
    /// Each byte of its secret.
    pub(crate) seed: u8,
    pub(crate) tcp: TcpConfig,
    pub(crate) limits: Limits,
    pub(crate) frames: usize,
    pub(crate) framing: Framing,
    pub(crate) addressing: Addressing,
}

/// Returns limits of connections, TIME-WAIT records and SYN cache entries.
pub(crate) fn limits(connections: u32, time_wait: u32, syn_cache: u32) -> Limits {
    Limits { connections, time_wait, syn_cache, ..Limits::default() }
}

pub(crate) fn stack(plan: Plan) -> Stack<HeapPool> {
    stack_of(1, plan)
}

/// Makes the first of several cores' stacks.
pub(crate) fn stack_of(cores: u16, plan: Plan) -> Stack<HeapPool> {
    let Plan { last, seed, tcp, limits, frames, framing, addressing } = plan;
    let mut config = StackConfig::new(Secret([seed; 32]));
    (config.tcp, config.limits, config.cores) = (tcp, limits, cores);
    let mut stack = Stack::new(config, HeapPool::new(frames, 2048));
    let v4 = Cidr { addr: IpAddr::from([10, 0, 0, last]), prefix: 24 };
    let v6 = Cidr { addr: IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last as u16]), prefix: 64 };
    let iface = stack.add_interface(Interface {
        framing,
        mac: [2, 0, 0, 0, 0, last],
        vlan: None,
        mtu: 1500,
        addrs: vec![v4, v6],
        addressing,
        tx_checksum: false,
        accept_partial_checksum: false,
    });
    let route = |to| Route { to, gateway: None, iface, metric: 0, source: None, refusal: None };
    stack.set_routes(vec![route(v4), route(v6)]);
    stack
}
