//! SIGUSR2 on AF_XDP: one process after another serves over a veth device, and no request fails.
//! Needs root.

mod common;
#[path = "common/load.rs"]
mod load;

use common::*;
use fs_stacks::sys::send_signal;
use fs_stacks::testing::{PATIENCE, Program, Signal, eventually};
use load::{Client, ask, load, open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Bytes of a download.
const LENGTH: usize = 2 << 20;
/// Few, so that clients use a port again while the last connection with it is in TIME-WAIT.
const CLIENT_PORTS: &str = "40000 42000";

/// Clients and servers, and the proxy's host.
///
/// ```text
/// far0 10.94.0.1 ── front0 10.94.0.2
/// ```
struct Lab {
    name: String,
}

impl Lab {
    /// Returns `None` without root's rights.
    fn up(name: &str, queues: usize) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        let lab = Self { name: format!("{}-x{}-{name}", run_prefix(), std::process::id()) };
        let (far, host) = (lab.ns("far"), lab.ns("host"));
        for ns in [&far, &host] {
            run(&format!("ip netns add {ns}"));
            run(&format!("ip -n {ns} link set lo up"));
        }
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        run(&format!("ip link add far0 netns {far} {queues} type veth peer name front0 netns {host} {queues}"));
        for (ns, device, number) in [(&far, "far0", 1), (&host, "front0", 2)] {
            run(&format!("ip -n {ns} addr add 10.94.0.{number}/24 dev {device}"));
            run(&format!("ip -n {ns} link set {device} up"));
        }
        for (name, value) in [("ip_local_port_range", CLIENT_PORTS), ("tcp_tw_reuse", "1")] {
            lab.within(move || std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap());
        }
        Some(lab)
    }

    fn ns(&self, role: &str) -> String {
        format!("{}-{role}", self.name)
    }

    /// Runs `work` in a thread in the namespace of clients and servers.
    fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
        let ns = std::fs::File::open(format!("/run/netns/{}", self.ns("far"))).unwrap();
        thread::spawn(move || {
            move_into_link_name_space(ns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        })
    }

    fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.spawn(work).join().unwrap()
    }

    fn connect(&self, to: SocketAddr) -> BufReader<TcpStream> {
        BufReader::new(self.within(move || open(to)).unwrap())
    }

    /// Starts a server. Of the response to `/long/n` it sends the second half when `gone` is above n.
    fn server(&self, gone: Arc<AtomicUsize>) -> SocketAddr {
        let listener = self.within(|| TcpListener::bind("10.94.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        serve(listener, move |stream| {
            let mut writer = stream.try_clone()?;
            let mut reader = BufReader::new(stream);
            while let Some(request) = read_request(&mut reader)? {
                let Some(number) = request.head.strip_prefix("GET /long/") else {
                    writer.write_all(&ok("short"))?;
                    continue;
                };
                let number: usize = number.split(' ').next().unwrap().parse().unwrap();
                let answer = ok(pattern(LENGTH));
                writer.write_all(&answer[..LENGTH / 2])?;
                while gone.load(Ordering::SeqCst) <= number {
                    thread::sleep(Duration::from_millis(5));
                }
                writer.write_all(&answer[LENGTH / 2..])?;
            }
            Ok(())
        });
        address
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for role in ["far", "host"] {
            // A test that failed early may not have made it.
            let _ = Command::new("ip").args(["netns", "del", &self.ns(role)]).output();
        }
    }
}

/// A proxy and its successors.
struct Family {
    program: Program,
    /// Each started the next.
    processes: Vec<u32>,
    /// What they tell systemd.
    notified: UnixDatagram,
    /// The configuration, and that socket.
    files: [PathBuf; 2],
}

impl Family {
    fn start(lab: &Lab, server: SocketAddr, cores: &str) -> Self {
        let config = write_config(&format!(
            "[[listener]]\naddress = \"10.94.0.2:0\"\nmode = \"http\"\nupstream = \"u\"\n\
             [[listener]]\naddress = \"[::]:0\"\nmode = \"tcp\"\nupstream = \"u\"\n\
             [[upstream]]\nname = \"u\"\nservers = [\"{server}\"]\n"
        ));
        let notices = temp_path("notify");
        let notified = UnixDatagram::bind(&notices).unwrap();
        notified.set_read_timeout(Some(PATIENCE)).unwrap();
        let (ns, notify) = (lab.ns("host"), format!("NOTIFY_SOCKET={}", notices.display()));
        let host = ["netns", "exec", &ns, "env", &notify, EXE, "--config", config.to_str().unwrap()];
        let stack = ["--stack", "fastsock", "--device", "front0", "--cores", cores];
        let program = Program::start("ip", &[&host[..], &stack[..]].concat());
        Self { processes: vec![program.id()], program, notified, files: [config, notices] }
    }

    fn said(&self, what: &str) -> usize {
        self.program.log().matches(what).count()
    }

    /// Waits until a successor serves.
    fn succeed(&mut self) {
        send_signal(*self.processes.last().unwrap(), Signal::User2).unwrap();
        let mut next: Option<u32> = None;
        eventually("a successor serves", || {
            let log = self.program.log();
            let line = log.lines().filter(|line| line.contains("serves; this one ends")).nth(self.processes.len() - 1);
            let number = line.and_then(|line| line.split("process ").nth(1)?.split(' ').next()?.parse().ok());
            next = number;
            next.is_some()
        });
        self.processes.extend(next);
        // Both tell systemd.
        let main = format!("MAINPID={}", self.processes.last().unwrap());
        let mut bytes = [0; 512];
        while !String::from_utf8_lossy(&bytes).contains(&main) {
            let len = self.notified.recv(&mut bytes).unwrap();
            bytes[len..].fill(0);
        }
    }

    fn has_ended(&self, number: usize) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.processes[number]));
        // Nobody may wait for it in this container.
        status.is_err() || status.is_ok_and(|line| line.contains(") Z "))
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        for process in &self.processes[1..] {
            // The process may have ended already.
            let _ = send_signal(*process, Signal::Terminate);
        }
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Connections of the process that is to be replaced.
struct Old {
    download: BufReader<TcpStream>,
    /// What has arrived of it.
    start: Vec<u8>,
    tunnel: BufReader<TcpStream>,
    number: usize,
}

impl Old {
    fn open(lab: &Lab, family: &Family, number: usize) -> Self {
        let mut download = lab.connect(family.program.addrs[0]);
        write!(download.get_mut(), "GET /long/{number} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut start = vec![0; 1000];
        download.read_exact(&mut start).unwrap();
        let mut tunnel = lab.connect(family.program.addrs[1]);
        ask(&mut tunnel, false).unwrap();
        Self { download, start, tunnel, number }
    }

    /// The connections have seen nothing.
    fn finish(mut self, gone: &AtomicUsize) {
        ask(&mut self.tunnel, false).unwrap();
        gone.fetch_max(self.number + 1, Ordering::SeqCst);
        let mut got = self.start;
        self.download.read_to_end(&mut got).unwrap();
        assert!(got.ends_with(&pattern(LENGTH)), "{} bytes", got.len());
    }
}

/// Replaces the process `times` times under load. `hurried`: each time twice, the second before the
/// device is free.
fn exchange(name: &str, times: usize, cores: &str, hurried: bool) {
    let Some(lab) = Lab::up(name, cores.split(',').count()) else { return };
    let gone = Arc::new(AtomicUsize::new(0));
    let mut family = Family::start(&lab, lab.server(gone.clone()), cores);
    let (http, tcp) =
        (family.program.addrs[0], SocketAddr::new("10.94.0.2".parse().unwrap(), family.program.addrs[1].port()));
    family.program.addrs[1] = tcp;
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients = [Client::Kept, Client::Kept, Client::New, Client::New, Client::Tcp];
    let clients = clients.map(|client| {
        let to = if matches!(client, Client::Tcp) { tcp } else { http };
        let (stop, count) = (stop.clone(), count.clone());
        let work = move || load(client, to, &stop, &count);
        (client, lab.spawn(work))
    });
    let more = |than: usize| {
        let before = count.load(Ordering::SeqCst);
        eventually("requests are answered", || {
            let ended = clients.iter().find(|(_, thread)| thread.is_finished());
            assert!(ended.is_none(), "a client has ended: {:?}", ended.map(|(client, _)| client));
            count.load(Ordering::SeqCst) > before + than
        });
    };
    for number in 0..times {
        let old = Old::open(&lab, &family, number);
        let process = family.processes.len() - 1;
        more(50);
        family.succeed();
        more(50);
        if hurried {
            family.succeed();
            more(50);
        }
        assert_eq!(family.said("this program has the device now"), number, "the old process has it");
        old.finish(&gone);
        eventually("the old process has ended", || family.has_ended(process));
        eventually("its successor has the device", || family.said("this program has the device now") > number);
        more(50);
    }
    stop.store(true, Ordering::SeqCst);
    for (client, thread) in clients {
        thread.join().unwrap_or_else(|_| panic!("{client:?} has failed"));
    }
    println!("{} requests", count.load(Ordering::SeqCst));
    send_signal(*family.processes.last().unwrap(), Signal::Terminate).unwrap();
    eventually("all have ended", || (0..family.processes.len()).all(|number| family.has_ended(number)));
}

#[test]
fn successors_on_af_xdp_lose_no_request() {
    exchange("short", 1, "0", true);
}

/// Native mode is given up, because the only neighbour is silent once the program is attached.
#[test]
fn process_in_a_slower_mode_refuses_a_successor_and_goes_on() {
    if thread::available_parallelism().unwrap().get() < 2 {
        println!("skipped: one core uses generic mode at once");
        return;
    }
    let Some(lab) = Lab::up("slower", 2) else { return };
    let (far, host) = (lab.ns("far"), lab.ns("host"));
    run(&format!("ip -n {host} link set front0 address 02:00:00:00:94:02"));
    run(&format!("ip -n {far} neigh replace 10.94.0.2 lladdr 02:00:00:00:94:02 dev far0 nud permanent"));
    // The host must know its neighbour. Then that answers once more, before the program is attached.
    assert!(lab.within(|| TcpStream::connect("10.94.0.2:1")).is_err());
    run(&format!("ip netns exec {far} nft add table arp silent"));
    run(&format!("ip netns exec {far} nft add chain arp silent out {{ type filter hook output priority 0 ; }}"));
    let limit = "limit rate over 1/day burst 1 packets drop";
    run(&format!("ip netns exec {far} nft add rule arp silent out arp operation reply {limit}"));
    let family = Family::start(&lab, lab.server(Arc::default()), "0,1");
    // Threads read the program's outputs, so `ready` may come first.
    family.program.says("falling back to the next one");
    assert_eq!(family.said("falling back to the next one"), 1, "{}", family.program.log());
    run(&format!("ip netns exec {far} nft delete table arp silent"));

    let to = family.program.addrs[0];
    let mut kept = lab.connect(to);
    assert!(ask(&mut kept, false).unwrap());
    for times in 1..=2 {
        send_signal(family.processes[0], Signal::User2).unwrap();
        // One line, whose end may be read later.
        eventually("it goes on", || family.said("nothing has changed, this process goes on") == times);
        assert_eq!(family.said("does not work in the XDP mode that --link names"), times);
        assert!(ask(&mut kept, false).unwrap());
        ask(&mut lab.connect(to), true).unwrap();
    }
    send_signal(family.processes[0], Signal::Terminate).unwrap();
    drop(kept);
    eventually("it has ended", || family.has_ended(0));
}

#[test]
#[ignore = "long: make proof"]
fn twenty_successors_on_af_xdp_lose_no_request() {
    exchange("twenty", 20, "0", false);
}

#[test]
#[ignore = "long: make proof"]
fn successors_on_several_cores_lose_no_request() {
    exchange("cores", 5, "0,1", false);
}
