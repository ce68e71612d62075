//! A pinned core without work leaves its CPU to a thread that wants it: it yields, and does not spin
//! (decision 0010). This test
//! has its own process: Linux' scheduler lets a thread yield only within its session or control
//! group.

use fs_core::Framing;
use fs_rt::{LinkChoice, Runtime, Standalone};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const ADDR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));

/// Returns the CPU time of the calling thread.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
#[ignore = "compares CPU times: cargo xtask proof long"]
fn idle_pinned_core_leaves_its_cpu_to_others() {
    static OVER: AtomicBool = AtomicBool::new(false);
    let may = sched_getaffinity(None).unwrap();
    let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| may.is_set(cpu)).unwrap();
    let (ours, _peer) = fs_xdp::memory_pair(Framing::Ip, 1500).unwrap();
    // The core spins throughout.
    let builder = Runtime::builder().cores([cpu]).frames(256).spin(Duration::from_secs(60));
    let builder = builder.link(LinkChoice::Memory(vec![Box::new(ours)])).standalone(Standalone::new().addr(ADDR, 24));
    let runtime = builder.build().unwrap();
    let computes = std::thread::spawn(move || {
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set).unwrap();
        while !OVER.load(SeqCst) {
            std::hint::spin_loop();
        }
        used()
    });
    let core = runtime
        .run(|_| async {
            let before = used();
            tokio::time::sleep(Duration::from_secs(1)).await;
            used() - before
        })
        .unwrap()[0];
    OVER.store(true, SeqCst);
    let computed = computes.join().unwrap();
    assert!(core * 3 < computed, "the core had {core:?} of its CPU, the other thread {computed:?}");
}
