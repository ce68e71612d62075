//! What a core asks of the process's descriptors. The process is this test's own: it has none left for a while.

use fs_core::Framing;
use fs_rt::{CoreRef, LinkChoice, Runtime, Source, Standalone};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

const ADDR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));

/// How many descriptors the epoll sets of the process watch. A set has several descriptors itself.
fn watched() -> usize {
    let mut found = BTreeSet::new();
    for info in std::fs::read_dir("/proc/self/fdinfo").unwrap() {
        // One that was closed meanwhile is nobody's.
        let text = std::fs::read_to_string(info.unwrap().path()).unwrap_or_default();
        found.extend(text.lines().filter(|line| line.starts_with("tfd:")).map(str::to_owned));
    }
    found.len()
}

/// Work for a core, for as long as there is some.
#[derive(Default)]
struct Work(Cell<bool>);

impl Source for Work {
    fn look(&self) -> usize {
        self.0.get().into()
    }

    fn prepare_sleep(&self) -> bool {
        !self.0.get()
    }

    fn awake(&self) {}
}

/// Takes all descriptors that the process may still open.
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

/// Descriptors that are watched when the core has slept, when it was awake, and when it has slept again.
fn watching() -> (usize, usize, usize) {
    let (ours, _peer) = fs_xdp::memory_pair(Framing::Ip, 1500).unwrap();
    let builder = Runtime::builder().cores([0]).pin(false).frames(256);
    let builder = builder.link(LinkChoice::Memory(vec![Box::new(ours)])).standalone(Standalone::new().addr(ADDR, 24));
    let runtime = builder.build().unwrap();
    let watching = runtime.run(|_| async {
        let (work, bell) = (Rc::new(Work::default()), eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let ring = bell.try_clone().unwrap();
        CoreRef::require().unwrap().add_source(work.clone(), bell).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let asleep = watched();
        work.0.set(true);
        rustix::io::write(&ring, &1_u64.to_ne_bytes()).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let awake = watched();
        work.0.set(false);
        let taken = take_all();
        // No multiple of a second, after which a core that sleeps looks whether its link is alive.
        tokio::time::sleep(Duration::from_millis(700)).await;
        drop(taken);
        (asleep, awake, watched())
    });
    watching.unwrap()[0]
}

#[test]
fn a_core_that_is_awake_is_not_watched_and_needs_no_descriptor_to_sleep_again() {
    // One that had to wait for its turn for all that time has not slept: a run that nobody disturbs shows it.
    let shows = |_| {
        let (asleep, awake, again) = watching();
        println!("watched: {asleep} asleep, {awake} awake, {again} asleep again");
        (awake + 1, again) == (asleep, asleep)
    };
    assert!((0..5).any(shows), "the link's descriptor");
}
