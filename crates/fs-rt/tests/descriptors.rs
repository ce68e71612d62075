//! A core's use of the process's descriptors. This test has its own process, which has no free
//! descriptor for a while.

use fs_core::{FramePool, Framing, TxFrame};
use fs_rt::{Handle, LinkChoice, Runtime, Standalone};
use fs_xdp::{Link, Umem, UmemConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeSet;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
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

/// What the link's other end does.
#[derive(Default)]
struct Traffic {
    flows: AtomicBool,
    has_ended: AtomicBool,
}

/// Sends packets while they are to flow, and one to the core that sleeps again. Returns whether that one was taken soon: before the core's
/// check of its link, once a second.
fn send(mut peer: impl Link, traffic: &Traffic, core: &Handle) -> bool {
    const SOON: Duration = Duration::from_millis(300);
    let umem = Umem::new(UmemConfig { chunks: 64, chunk_size: 2048 }).unwrap();
    let mut pool = umem.pool(64).unwrap();
    let mut frames = Vec::new();
    let mut send = || {
        if frames.is_empty() {
            let mut frame = pool.alloc().unwrap();
            frame.grow_back(40);
            frames.push(TxFrame { frame, checksum: None });
        }
        peer.tx(&mut pool, &mut frames).unwrap();
    };
    while !traffic.has_ended.load(SeqCst) {
        if traffic.flows.load(SeqCst) {
            send();
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // By then it sleeps and has published its counters.
    std::thread::sleep(Duration::from_millis(300));
    let received = || core.stats()[0].stack.rx_packets;
    let (before, sent) = (received(), Instant::now());
    send();
    while received() == before {
        assert!(sent.elapsed() < Duration::from_secs(60), "the core never looks");
        std::thread::sleep(Duration::from_millis(1));
    }
    sent.elapsed() < SOON
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
    let (ours, peer) = fs_xdp::memory_pair(Framing::Ip, 1500).unwrap();
    let builder = Runtime::builder().cores([0]).pin(false).frames(256);
    let builder = builder.link(LinkChoice::Memory(vec![Box::new(ours)])).standalone(Standalone::new().addr(ADDR, 24));
    let runtime = builder.build().unwrap();
    let traffic = Arc::new(Traffic::default());
    let (of_peer, handle) = (traffic.clone(), runtime.handle());
    let (woken, end) = tokio::sync::oneshot::channel();
    let sender = std::thread::spawn(move || {
        let is_soon = send(peer, &of_peer, &handle);
        woken.send(is_soon).unwrap();
    });
    let end = Arc::new(Mutex::new(Some(end)));
    let watching = runtime.run(move |_| {
        let (traffic, end) = (traffic.clone(), end.lock().unwrap().take().unwrap());
        async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let asleep = watched();
            traffic.flows.store(true, SeqCst);
            tokio::time::sleep(Duration::from_millis(50)).await;
            let awake = watched();
            traffic.flows.store(false, SeqCst);
            let taken = take_all();
            // No multiple of a second, after which a sleeping core checks its link.
            tokio::time::sleep(Duration::from_millis(700)).await;
            drop(taken);
            let again = watched();
            traffic.has_ended.store(true, SeqCst);
            (asleep, awake, again, end.await.unwrap())
        }
    });
    sender.join().unwrap();
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
