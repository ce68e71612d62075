//! Blocking threads of tasks run on any of the program's CPUs, not only on the CPU of the task's
//! core.

use fs_core::Framing;
use fs_rt::{LinkChoice, Runtime, Standalone};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::net::{IpAddr, Ipv4Addr};

const ADDR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));

#[test]
fn blocking_threads_are_not_pinned() {
    let may = sched_getaffinity(None).unwrap();
    let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| may.is_set(cpu)).unwrap();
    let (ours, _peer) = fs_xdp::memory_pair(Framing::Ip, 1500).unwrap();
    let builder = Runtime::builder().cores([cpu]).frames(256);
    let builder = builder.link(LinkChoice::Memory(vec![Box::new(ours)])).standalone(Standalone::new().addr(ADDR, 24));
    let sets = builder.build().unwrap().run(|_| async {
        let blocks = tokio::task::spawn_blocking(|| sched_getaffinity(None).unwrap()).await.unwrap();
        (sched_getaffinity(None).unwrap(), blocks)
    });
    let (core, blocks) = sets.unwrap().remove(0);
    assert_eq!((core.count(), core.is_set(cpu)), (1, true));
    assert!(blocks == may, "{blocks:?}, not {may:?}");
}
