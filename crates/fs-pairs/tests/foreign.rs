//! Users whose descriptors the service can neither read nor close.

mod common;

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::raw::{MAX_DESCRIPTORS, Raw};
use common::*;
use fs_carrier::exact::Carried;
use fs_pairs::message::{LEN, Request};
use fs_pairs::service::Limits;
use fs_pairs::{Client, Number, Offered, Service};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// For what a busy machine does late.
const PATIENCE: Duration = Duration::from_secs(60);

/// The service in a process of its own, for the test below.
#[test]
#[ignore = "started by the test below"]
fn serve() {
    // Runs of all ignored tests start it too.
    let Some(path) = std::env::var_os("FS_PAIRS_TEST_SERVE") else { return };
    Service::bind(path.as_ref()).expect("a service").run().expect("it served");
}

/// A service as another user, which can be kept from starting threads. Killed on drop.
struct Bounded(Child);

impl Bounded {
    fn start(path: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--ignored", "--exact", "serve"]).env("FS_PAIRS_TEST_SERVE", path);
        let child = command.uid(NOBODY).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a service");
        let end = Instant::now() + PATIENCE;
        while !Service::answers(path) {
            assert!(Instant::now() < end, "it does not serve");
            std::thread::sleep(Duration::from_millis(5));
        }
        Bounded(child)
    }

    /// Sets RLIMIT_NPROC, as a process of the service's user.
    fn limit_threads(&self, current: Option<u64>) {
        let limit = Rlimit { current, ..getrlimit(Resource::Nproc) };
        as_nobody(|| prlimit(Some(Pid::from_child(&self.0)), Resource::Nproc, limit).expect("set"));
    }
}

impl Drop for Bounded {
    fn drop(&mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }
}

/// A service that can start no thread ends connections whose offers it cannot read. When it can
/// again, it closes what has waited for a thread.
#[test]
fn service_without_threads_ends_connections() {
    let path = path();
    let Some(client) = as_nobody(|| Client::new(&path).expect("a client")) else { return };
    let service = Bounded::start(&path);
    service.limit_threads(Some(0));
    // A user whose descriptors only threads close.
    let raw = as_user(OTHER, || Raw::connect_to(&path)).expect("root");
    let (a, mut b) = connection();
    let message = Request::Offer { number: Number(1), carried: Carried::default() }.encode();
    raw.send(&message, &[a.as_fd()]).expect("sent");
    drop(a);
    assert!(raw.is_cut_off());
    // The user of the service: the client trusts no other.
    let (c, d) = connection();
    as_nobody(|| {
        offer(&client, &c);
        assert!(matches!(answer(&client), Offered::Lost));
    });
    service.limit_threads(getrlimit(Resource::Nproc).current);
    // Nothing but the service's own attempt starts the thread that closes the socket.
    b.set_read_timeout(Some(PATIENCE)).expect("set");
    assert_eq!(b.read(&mut [0]).expect("the end"), 0);
    as_nobody(|| {
        match_ends([&client, &client], [c.as_fd(), d.as_fd()]);
    });
    let _gone = std::fs::remove_file(&path);
}

/// A user whose descriptors no thread can close connects without end: the service does not keep these
/// connections.
#[test]
fn connections_of_a_user_that_waits_need_no_descriptors() {
    let may = getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: may.maximum, ..may }).expect("more descriptors");
    let path = path();
    let service = Service::bind(&path).expect("a service");
    let connect = || (0..9).map(|_| Raw::connect_to(&path)).collect::<Vec<_>>();
    let Some(raws) = as_nobody(connect) else { return };
    let file: OwnedFd = std::fs::File::open("/dev/null").expect("a file").into();
    // Behind a job of each thread that does not end, as many as may wait.
    let (lingers, others) = raws.split_at(4);
    let mut peers = Vec::new();
    for raw in lingers {
        let (socket, peer) = lingering();
        raw.send(&[0; LEN], &[socket.as_fd()]).expect("sent");
        peers.push(peer);
    }
    for raw in others {
        raw.send(&[0; LEN], &[file.as_fd(); MAX_DESCRIPTORS]).expect("sent");
    }
    let service = Running::run(path, service);
    assert!(raws.iter().all(Raw::is_cut_off));
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("/proc").count();
    let before = descriptors();
    as_nobody(|| {
        for number in 0..5000 {
            let raw = Raw::connect(&service);
            // The service may have ended the connection.
            let _sent = match number % 3 {
                0 => Ok(()),
                1 => raw.send(&[], &[]),
                _ => raw.send(&[0; LEN], &[]),
            };
        }
    });
    serves(&service);
    let now = descriptors();
    assert!(now < before + 100, "{now} descriptors, {before} before");
}

/// A process over the limit hears of it at once, also if its user's descriptors wait for a thread.
#[test]
fn connections_over_the_limit_end_at_once() {
    let path = path();
    let service = Service::with_limits(&path, Limits { clients: 0, ..Limits::default() }).expect("a service");
    let Some(raws) = as_nobody(|| (0..9).map(|_| Raw::connect_to(&path)).collect::<Vec<_>>()) else { return };
    let mut peers = Vec::new();
    for raw in &raws {
        let (socket, peer) = lingering();
        raw.send(&[0; LEN], &[socket.as_fd()]).expect("sent");
        peers.push(peer);
    }
    let _service = Running::run(path, service);
    assert!(raws.iter().all(Raw::is_cut_off));
}
