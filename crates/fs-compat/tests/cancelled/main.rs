//! Random programs of socket calls that are cancelled: futures that are polled a few times and
//! dropped, that move to another task, and that share a socket, while the peer sends, closes, resets
//! and half-closes. No byte is lost, doubled or out of order, every call whose condition holds is
//! woken, and no connection, frame, descriptor or waker is left.
//!
//! A failure prints its seed: `SEED=N cargo test -p fs-compat --test cancelled -- --include-ignored`
//! plays that one alone. SECONDS sets the duration of the long test (60).

mod accept;
mod actors;
#[path = "../common/mod.rs"]
mod common;
mod flow;
mod kinds;
mod peer;
mod tcp;
mod udp;

use common::background::{Runtimes, is_clean};
use fs_compat::net::Background;
use fs_rt::{Handle, LinkChoice, Runtime};
use kinds::{Kind, Local, Net};
use peer::Peers;
use std::cell::RefCell;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The program's runtime, its address there, and its peers.
#[derive(Clone)]
pub(crate) struct World {
    runtime: Handle,
    at: IpAddr,
    peers: Peers,
}

/// The steps of one program, which are printed if it fails.
pub(crate) struct Trace {
    pub(crate) head: String,
    steps: RefCell<Vec<String>>,
}

impl Trace {
    pub(crate) fn add(&self, step: impl std::fmt::Debug) {
        self.steps.borrow_mut().push(format!("{step:?}"));
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}:\n  {}", self.head, self.steps.borrow().join("\n  "));
        }
    }
}

/// Plays the programs of these seeds, until `limit`.
async fn play<K: Kind>(world: World, seeds: Range<u64>, limit: Duration) -> u64 {
    let (begun, first) = (Instant::now(), seeds.start);
    for seed in seeds {
        if begun.elapsed() > limit {
            return seed - first;
        }
        let carrier = if matches!(world.peers, Peers::Kernel) { "kernel" } else { "core" };
        let head = format!("{} on the {carrier}, SEED={seed}", K::NAME);
        let trace = Rc::new(Trace { head, steps: RefCell::default() });
        let mut random = fastrand::Rng::with_seed(seed);
        match random.u8(..8) {
            0 => accept::program::<K>(&world, &mut random, &trace).await,
            1 | 2 => udp::program::<K>(&world, &mut random, &trace).await,
            _ => tcp::program::<K>(&world, &mut random, &trace).await,
        }
    }
    u64::MAX
}

/// Plays programs of `local` on a core, and of `net` on this thread.
fn play_both(world: &World, seeds: Range<u64>, limit: Duration) {
    let (done, is_done) = std::sync::mpsc::channel();
    let (there, range) = (world.clone(), seeds.clone());
    let local = move || async move {
        let played = play::<Local>(there, range, limit).await;
        let _ = done.send(played);
    };
    world.runtime.spawn_on(0, local).unwrap();
    let played = is_done.recv().expect("the core has panicked");
    let also = block_on(play::<Net>(world.clone(), seeds, limit));
    println!("{played} and {also} programs");
}

fn block_on<T>(what: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(what)
}

/// Returns how many descriptors of sockets this process has.
fn sockets() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fd.path().read_link().ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

fn on_core(seeds: Range<u64>, limit: Duration) {
    let runtimes = Runtimes::new();
    let peers = Peers::Core(runtimes.server.handle(), common::SERVER);
    let world = World { runtime: runtimes.client.handle(), at: common::CLIENT, peers };
    play_both(&world, seeds, limit);
    block_on(runtimes.ends_clean());
}

fn on_kernel(seeds: Range<u64>, limit: Duration) {
    let runtime = Runtime::builder().link(LinkChoice::Kernel).cores([0]).pin(false).build().unwrap();
    let background = Background::start(runtime).unwrap();
    let world = World { runtime: background.handle(), at: IpAddr::V4(Ipv4Addr::LOCALHOST), peers: Peers::Kernel };
    // What the first use of a core opens stays open.
    play_both(&world, 0..1, limit);
    let before = sockets();
    play_both(&world, seeds, limit);
    block_on(is_clean(&world.runtime));
    let begun = Instant::now();
    let left = || (sockets().saturating_sub(before), world.runtime.stats()[0].kernel_connections);
    while left() != (0, 0) {
        assert!(begun.elapsed() < actors::PATIENCE, "sockets and connections are left: {:?}", left());
        std::thread::sleep(Duration::from_millis(10));
    }
    background.shutdown(Duration::from_secs(10)).unwrap();
}

const ALWAYS: Range<u64> = 0..60;

fn long() -> (Range<u64>, Duration) {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds = number("SEED").map_or(1_000_000..u64::MAX, |seed| seed..seed + 1);
    (seeds, Duration::from_secs(number("SECONDS").unwrap_or(60)) / 4)
}

#[test]
fn cancelled_calls_on_a_core() {
    on_core(ALWAYS, Duration::MAX);
}

#[test]
fn cancelled_calls_on_the_kernel() {
    on_kernel(ALWAYS, Duration::MAX);
}

#[test]
#[ignore = "a minute: `cargo xtask proof long` runs it"]
fn many_cancelled_calls() {
    let (seeds, limit) = long();
    on_core(seeds.clone(), limit);
    on_kernel(seeds, limit);
}
