//! A core's use of the process's descriptors. This test has its own process, which has no free
//! descriptor for a while.

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

/// Work for a core, while there is some.
#[derive(Default)]
struct Work(Cell<bool>);

impl Source for Work {
    fn poll(&self) -> usize {
        self.0.get().into()
    }

    fn prepare_sleep(&self) -> bool {
        !self.0.get()
    }

    fn awake(&self) {}
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
/// it has slept again.
fn watching() -> (usize, usize, usize) {
    let (ours, _peer) = fs_xdp::memory_pair(Framing::Ip, 1500).unwrap();
    let builder = Runtime::builder().cores([0]).pin(false).frames(256);
    let builder = builder.link(LinkChoice::Memory(vec![Box::new(ours)])).standalone(Standalone::new().addr(ADDR, 24));
    let runtime = builder.build().unwrap();
    let watching = runtime.run(|_| async {
        let (work, doorbell) = (Rc::new(Work::default()), eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let notifier = doorbell.try_clone().unwrap();
        CoreRef::require().unwrap().add_source(work.clone(), doorbell).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let asleep = watched();
        work.0.set(true);
        rustix::io::write(&notifier, &1_u64.to_ne_bytes()).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let awake = watched();
        work.0.set(false);
        let taken = take_all();
        // No multiple of a second, after which a sleeping core checks its link.
        tokio::time::sleep(Duration::from_millis(700)).await;
        drop(taken);
        (asleep, awake, watched())
    });
    watching.unwrap()[0]
}

#[test]
fn awake_core_is_not_watched_and_can_sleep_without_free_descriptors() {
    // If the core had to wait for its CPU the whole time, it has not slept. One undisturbed run is
    // enough.
    let shows = |_| {
        let (asleep, awake, again) = watching();
        println!("watched: {asleep} asleep, {awake} awake, {again} asleep again");
        (awake + 1, again) == (asleep, asleep)
    };
    assert!((0..5).any(shows), "the link's descriptor");
}
