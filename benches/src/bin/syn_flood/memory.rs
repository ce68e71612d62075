//! The cost of a SYN in the engine alone: parsed, checked, answered by a cookie, in batches, in
//! memory.

use crate::flood::{SYN_LEN, write_syn};
use anyhow::{Result, ensure};
use fs_core::{
    Addressing, Cidr, FramePool, Framing, HeapPool, IfaceId, Instant, Interface, Listen, Route, RxChecksum, RxFrame,
    Secret, Stack, StackConfig, TcpOptions,
};
use std::net::{IpAddr, Ipv4Addr};

const BATCH: usize = 64;
const BATCHES: usize = 16_384;
const OWN: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);

/// Returns nanoseconds per SYN: the best of three runs of a million.
pub(crate) fn run() -> Result<f64> {
    let mut best = f64::INFINITY;
    for seed in 0..3 {
        best = best.min(flood(seed)?);
    }
    Ok(best)
}

fn flood(seed: u64) -> Result<f64> {
    let mac = [2, 0, 0, 0, 0, 2];
    let mut stack = Stack::new(StackConfig::new(Secret([9; 32])), HeapPool::new(4096, 2048));
    let own = Cidr { addr: IpAddr::V4(OWN), prefix: 24 };
    let iface = stack.add_interface(Interface {
        framing: Framing::Ethernet,
        mac,
        vlan: None,
        mtu: 1500,
        addrs: vec![own],
        addressing: Addressing::Standalone,
        tx_checksum: false,
        accept_partial_checksum: false,
    });
    let gateway = IpAddr::from([10, 77, 1, 2]);
    let all = Cidr { addr: IpAddr::from([0, 0, 0, 0]), prefix: 0 };
    let route = |to, gateway| Route { to, gateway, iface, metric: 0, source: None, refusal: None };
    stack.set_routes(vec![route(own, None), route(all, Some(gateway))]);
    stack.set_neighbour(iface, gateway, Some([2, 0, 0, 0, 0, 1]));
    let at = std::net::SocketAddr::new(own.addr, fs_tests::servers::HTTPD_PORT);
    let listen = Listen { at, backlog: 1024, v6_only: false, fast_open: 0, options: TcpOptions::default() };
    ensure!(stack.tcp_listen(listen).is_ok(), "cannot listen");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut rx, mut tx) = (Vec::new(), Vec::new());
    let (mut spent, mut answers) = (std::time::Duration::ZERO, 0);
    for n in 0..BATCHES {
        for _ in 0..BATCH {
            let Some(mut frame) = stack.pool_mut().alloc() else { break };
            frame.grow_back(SYN_LEN);
            write_syn(stack.pool_mut().bytes_mut(&mut frame), mac, OWN, &mut random);
            rx.push(RxFrame { frame, iface: IfaceId(0), checksum: RxChecksum::Unknown });
        }
        let begun = std::time::Instant::now();
        stack.set_now(Instant::from_micros(1000 + n as u64 * 300));
        stack.rx_batch(&mut rx);
        stack.tick();
        stack.tx_batch(iface, 2 * BATCH, &mut tx);
        spent += begun.elapsed();
        answers += tx.len();
        tx.drain(..).for_each(|t| stack.pool_mut().free(t.frame));
    }
    ensure!(answers >= BATCH * BATCHES, "{answers} answers to {} SYNs", BATCH * BATCHES);
    Ok(spent.as_nanos() as f64 / (BATCH * BATCHES) as f64)
}
