//! A core's use of the process's descriptors. This test has its own process, which has no free
//! descriptor for a while.

use fs_core::{FramePool, Framing, TxFrame};
use fs_rt::{Handle, LinkChoice, PollPolicy, Runtime, Standalone};
use fs_xdp::{Link, Umem, UmemConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeSet;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ADDR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));

/// Returns how many descriptors the process's epoll sets watch. A set itself has several
/// descriptors.
fn watched() -> usize {
    let mut found = BTreeSet::new();
    for info in std::fs::read_dir("/proc/self/fdinfo").unwrap() {
        // A descriptor may be closed in between.
        let text = std::fs::read_to_string(info.unwrap().path()).unwrap_or_default();
        found.extend(text.lines().filter(|line| line.starts_with("tfd:")).map(str::to_owned));
    }
    found.len()
}

/// Sends a packet to a core that sleeps. Returns whether it was taken soon: before the core's check of its link, once a second.
fn is_woken_by_packet(peer: &mut impl Link, core: &Handle) -> bool {
    const SOON: Duration = Duration::from_millis(300);
    // By then it sleeps and has published its counters.
    std::thread::sleep(Duration::from_millis(300));
    let umem = Umem::new(UmemConfig { chunks: 64, chunk_size: 2048 }).unwrap();
    let mut pool = umem.pool(64).unwrap();
    let mut frame = pool.alloc().unwrap();
    frame.grow_back(40);
    let received = || core.stats()[0].stack.rx_packets;
    let (before, sent) = (received(), Instant::now());
    peer.tx(&mut pool, &mut vec![TxFrame { frame, checksum: None }]).unwrap();
    while received() == before {
        assert!(sent.elapsed() < Duration::from_secs(60), "the core never looks");
        std::thread::sleep(Duration::from_millis(1));
    }
    sent.elapsed() < SOON
}

/// Gives the core work for a while.
async fn keep_awake(core: &Handle, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        core.spawn_on(0, || async {}).unwrap();
        tokio::task::yield_now().await;
    }
}

/// Opens all descriptors that the process may still open.
fn take_all() -> Vec<File> {
    let limit = getrlimit(Resource::Nofile);
    let here = watched() as u64 + 64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(here), maximum: limit.maximum }).unwrap();
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken
}

/// Returns the number of watched descriptors after the core has slept, when it was awake, and after
/// it has slept again, and whether a packet woke it then.
fn watching() -> (usize, usize, usize, bool) {
    let (ours, mut peer) = fs_xdp::memory_pair(Framing::Ip, 1500).unwrap();
    // It spins, however busy the machine is.
    let mut policy = PollPolicy::throughput();
    (policy.spin, policy.adapt_spin, policy.yield_cpu) = (Duration::from_millis(5), false, false);
    let builder = Runtime::builder().cores([0]).pin(false).frames(256).poll_policy(policy);
    let builder = builder.link(LinkChoice::Memory(vec![Box::new(ours)])).standalone(Standalone::new().addr(ADDR, 24));
    let runtime = builder.build().unwrap();
    let (asleep_again, is_asleep) = std::sync::mpsc::channel();
    let (woken, is_woken) = tokio::sync::oneshot::channel();
    let handle = runtime.handle();
    let sender = std::thread::spawn(move || {
        // The core has ended otherwise.
        if is_asleep.recv().is_ok() {
            woken.send(is_woken_by_packet(&mut peer, &handle)).unwrap();
        }
        // The runtime ends with an error if the other end is closed.
        peer
    });
    let (handle, is_woken) = (runtime.handle(), Arc::new(Mutex::new(Some(is_woken))));
    let watching = runtime.run(move |_| async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let asleep = watched();
        keep_awake(&handle, Duration::from_millis(50)).await;
        let awake = watched();
        let taken = take_all();
        // No multiple of a second, after which a sleeping core checks its link.
        tokio::time::sleep(Duration::from_millis(700)).await;
        drop(taken);
        let again = watched();
        asleep_again.send(()).unwrap();
        let is_woken = is_woken.lock().unwrap().take().unwrap();
        (asleep, awake, again, is_woken.await.unwrap())
    });
    let _peer = sender.join().unwrap();
    watching.unwrap()[0]
}

#[test]
fn awake_core_is_not_watched_and_can_sleep_without_free_descriptors() {
    // If the core had to wait for its CPU the whole time, it has not slept. One undisturbed run is
    // enough.
    let shows = |_| {
        let (asleep, awake, again, is_woken) = watching();
        println!("watched: {asleep} asleep, {awake} awake, {again} asleep again; woken by a packet: {is_woken}");
        (awake + 1, again, is_woken) == (asleep, asleep, true)
    };
    assert!((0..5).any(shows), "the link's descriptor");
}
