//! Servers that are given by name, over loopback, on kernel sockets. Needs root, for an /etc/hosts
//! of its own.

mod common;

use common::*;
use fs_stacks::testing::{PATIENCE, Program, Signal, eventually};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Starts the program with these files as /etc/hosts and /etc/resolv.conf.
const WITH_FILES: &str =
    "mount --bind \"$1\" /etc/hosts && mount --bind \"$2\" /etc/resolv.conf && shift 2 && exec \"$@\"";

/// Starts a proxy with these files. Returns `None` if this user cannot.
fn start(config: &Path, hosts: &Path, resolv_conf: &Path) -> Option<Proxy> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root || !fs_stacks::testing::output("unshare", &["-m", "true"]).status.success() {
        println!("skipped: needs a mount namespace, which root can make");
        return None;
    }
    let [file, hosts, resolv_conf] = [config, hosts, resolv_conf].map(|path| path.to_str().unwrap());
    let args = ["-m", "sh", "-c", WITH_FILES, "-", hosts, resolv_conf, EXE, "--config", file];
    Some(Proxy { program: Program::start("unshare", &args), config: config.to_owned() })
}

fn at(address: &str, port: u16, name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((address, port)).unwrap();
    let addr = listener.local_addr().unwrap();
    serve(listener, move |stream| http_connection(stream, &|_: &Received| ok(name)));
    addr
}

#[test]
fn names_are_looked_up_again() {
    let first = at("127.0.0.1", 0, "first");
    let second = at("127.0.0.2", first.port(), "second");
    let hosts = temp_path("hosts");
    let point = |addresses: &[SocketAddr]| {
        let lines: String = addresses.iter().map(|addr| format!("{} web.test\n", addr.ip())).collect();
        // Of the same length each time: a look-up must not see the file empty between two states.
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&hosts).unwrap();
        file.write_all(format!("{lines:\n<100}").as_bytes()).unwrap();
    };
    point(&[first]);
    let config = write_config(&format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"http\"\nupstream = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = [\"web.test:{}\"]\nlookup_interval = \"50ms\"\n",
        first.port()
    ));
    // The name server knows no names.
    let Some((resolv_conf, _)) = name_server(80, Arc::default()) else { return };
    let Some(proxy) = start(&config, &hosts, &resolv_conf) else { return };
    let bodies = || (0..6).map(|_| body_of(&proxy.get("/")).to_owned()).collect::<std::collections::BTreeSet<_>>();
    assert!(bodies().into_iter().eq(["first"]));
    point(&[first, second]);
    eventually("both are used", || bodies().into_iter().eq(["first", "second"]));
    point(&[second]);
    eventually("only the second is used", || bodies().into_iter().eq(["second"]));
    // A name that is gone changes nothing, but is logged.
    point(&[]);
    proxy.program.says("the previous addresses stay in use");
    assert!(bodies().into_iter().eq(["second"]));
    std::fs::remove_file(hosts).unwrap();
    std::fs::remove_file(resolv_conf).unwrap();
}

/// A server with several hosts answers only those that it has.
#[test]
fn health_checks_name_the_host_of_their_server() {
    let [seen, others] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let (counter, other) = (seen.clone(), others.clone());
    let server = http_backend(move |request| {
        match request.header("host").unwrap_or_default() {
            "other.test" => &other,
            host if host.starts_with("web.test:") => &counter,
            _ => return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(),
        }
        .fetch_add(1, Ordering::SeqCst);
        ok("")
    });
    let check = "health_check = { interval = \"20ms\", timeout = \"30s\", path = \"/\", fall = 1 }\n";
    let config = write_config(&format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"http\"\nupstream = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = [\"web.test:{}\"]\n{check}\
         [[upstream]]\nname = \"v\"\nservers = [\"{server}\"]\nrequest_headers = {{ set = {{ Host = \"other.test\" }} }}\n{check}",
        server.port()
    ));
    let hosts = temp_path("hosts");
    std::fs::write(&hosts, "127.0.0.1 web.test\n").unwrap();
    let Some((resolv_conf, _)) = name_server(84, Arc::default()) else { return };
    let Some(proxy) = start(&config, &hosts, &resolv_conf) else { return };
    let is_seen = || [&seen, &others].iter().all(|count| count.load(Ordering::SeqCst) > 2);
    eventually("both are checked", || is_seen() || proxy.program.log().contains("unhealthy"));
    assert!(!proxy.program.log().contains("unhealthy"), "{}", proxy.program.log());
    for file in [hosts, resolv_conf] {
        std::fs::remove_file(file).unwrap();
    }
}

/// A record of the DNS: its name, type, time to live and data. The name server cannot answer (SERVFAIL) if there
/// is none.
type Record = (&'static str, u16, u32, Vec<u8>);
const A: u16 = 1;
const AAAA: u16 = 28;
const SRV: u16 = 33;

fn wire(name: &str) -> Vec<u8> {
    let mut wire: Vec<u8> =
        name.split('.').flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat()).collect();
    wire.push(0);
    wire
}

/// Starts a name server with these records. Returns the file that names it and the number of queries, or
/// `None` without root.
fn name_server(last: u8, records: Arc<Mutex<Vec<Record>>>) -> Option<(PathBuf, Arc<AtomicUsize>)> {
    // An address of this test alone.
    let own = format!("127.{last}.{}.{}", std::process::id() >> 8 & 0xff, std::process::id() & 0xff);
    let Ok(socket) = UdpSocket::bind((&*own, 53)) else {
        println!("skipped: {own}:53 is taken, or reserved for root");
        return None;
    };
    let queries = Arc::new(AtomicUsize::new(0));
    let counter = queries.clone();
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((_, from)) = socket.recv_from(&mut query) {
            counter.fetch_add(1, Ordering::SeqCst);
            let end = 12 + query[12..].iter().position(|&byte| byte == 0).unwrap();
            let (name, kind) = (&query[12..=end], u16::from_be_bytes([query[end + 1], query[end + 2]]));
            let records = records.lock().unwrap();
            let found: Vec<&Record> =
                records.iter().filter(|record| record.1 == kind && wire(record.0).eq_ignore_ascii_case(name)).collect();
            let fails = found.iter().any(|record| record.3.is_empty());
            let found = if fails { Vec::new() } else { found };
            let flags = if fails { 0x82 } else { 0x80 };
            let mut answer = [&query[..2], &[0x81, flags, 0, 1, 0, found.len() as u8, 0, 0, 0, 0]].concat();
            answer.extend_from_slice(&query[12..end + 5]);
            for (_, kind, ttl, data) in found {
                // The name of the question.
                answer.extend_from_slice(&[0xc0, 12]);
                answer.extend_from_slice(&kind.to_be_bytes());
                answer.extend_from_slice(&[0, 1]);
                answer.extend_from_slice(&ttl.to_be_bytes());
                answer.extend_from_slice(&(data.len() as u16).to_be_bytes());
                answer.extend_from_slice(data);
            }
            socket.send_to(&answer, from).unwrap();
        }
    });
    let resolv_conf = temp_path("resolv.conf");
    std::fs::write(&resolv_conf, format!("nameserver {own}\noptions timeout:20 attempts:2\n")).unwrap();
    Some((resolv_conf, queries))
}

/// Starts a proxy whose servers are these names, and others for requests of `/2`.
fn start_with(servers: &str, others: &str, resolv_conf: &Path) -> Option<Proxy> {
    let config = write_config(&format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"http\"\nupstream = \"u\"\n\
         [[listener.route]]\npaths = [\"/2\"]\nupstream = \"others\"\n\
         [[upstream]]\nname = \"u\"\nservers = [{servers}]\n\
         [[upstream]]\nname = \"others\"\nservers = [{others}]\n"
    ));
    let hosts = temp_path("hosts");
    std::fs::write(&hosts, "").unwrap();
    let proxy = start(&config, &hosts, resolv_conf);
    // The mounts keep both files.
    std::fs::remove_file(hosts).unwrap();
    std::fs::remove_file(resolv_conf).unwrap();
    proxy
}

const UNUSED: &str = "\"127.0.0.1:9\"";

/// Returns how often each server is used.
fn served(proxy: &Proxy, times: usize) -> BTreeMap<String, usize> {
    let mut served = BTreeMap::new();
    for _ in 0..times {
        *served.entry(body_of(&proxy.get("/")).to_owned()).or_default() += 1;
    }
    served
}

#[cfg(feature = "dns")]
#[test]
fn records_hold_for_their_time_to_live() {
    let first = at("127.0.0.1", 0, "first");
    at("127.0.0.2", first.port(), "second");
    let records = Arc::new(Mutex::new(vec![("web.test", A, 1, vec![127, 0, 0, 1])]));
    let Some((resolv_conf, _)) = name_server(78, records.clone()) else { return };
    let Some(proxy) = start_with(&format!("\"web.test:{}\"", first.port()), UNUSED, &resolv_conf) else { return };
    assert!(served(&proxy, 4).keys().eq(["first"]));
    records.lock().unwrap()[0].3 = vec![127, 0, 0, 2];
    eventually("the other address is used", || served(&proxy, 4).keys().eq(["second"]));
}

/// The first time to live does not hold for ever.
#[cfg(feature = "dns")]
#[test]
fn each_lookup_has_its_own_time_to_live() {
    let server = at("127.0.0.1", 0, "server");
    let records = Arc::new(Mutex::new(vec![("web.test", A, 1, vec![127, 0, 0, 1])]));
    let Some((resolv_conf, queries)) = name_server(81, records.clone()) else { return };
    let Some(proxy) = start_with(&format!("\"web.test:{}\"", server.port()), UNUSED, &resolv_conf) else { return };
    records.lock().unwrap()[0].2 = 600;
    eventually("no look-up follows for long", || {
        let before = queries.load(Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_secs(4));
        queries.load(Ordering::SeqCst) == before
    });
    assert!(served(&proxy, 2).keys().eq(["server"]));
}

/// A name that is gone leaves the others as they are.
#[cfg(feature = "dns")]
#[test]
fn lookups_that_fail_change_only_their_upstream() {
    let first = at("127.0.0.1", 0, "first");
    at("127.0.0.2", first.port(), "second");
    let record = |name, last| (name, A, 1, vec![127, 0, 0, last]);
    let records = Arc::new(Mutex::new(vec![record("gone.test", 1), record("web.test", 1)]));
    let Some((resolv_conf, _)) = name_server(82, records.clone()) else { return };
    let [gone, web] = ["gone", "web"].map(|name| format!("\"{name}.test:{}\"", first.port()));
    let Some(proxy) = start_with(&gone, &web, &resolv_conf) else { return };
    *records.lock().unwrap() = vec![record("web.test", 2)];
    eventually("the other upstream has its new address", || body_of(&proxy.get("/2")) == "second");
    proxy.program.says("`gone.test` has no address");
    assert!(served(&proxy, 4).keys().eq(["first"]));
    // It is looked up again, and its record found.
    records.lock().unwrap().push(record("gone.test", 2));
    eventually("the name has its new address", || served(&proxy, 4).keys().eq(["second"]));
}

/// Half of an answer does not remove the other half's servers.
#[cfg(feature = "dns")]
#[test]
fn lookup_of_one_family_that_fails_keeps_its_addresses() {
    let first = at("127.0.0.1", 0, "first");
    at("127.0.0.2", first.port(), "second");
    let loopback = std::net::Ipv6Addr::LOCALHOST.octets().to_vec();
    let both = [("both.test", A, 1, vec![127, 0, 0, 1]), ("both.test", AAAA, 1, loopback)];
    // Old balancers never answer one of the queries.
    let half = |last| [("half.test", A, 1, vec![127, 0, 0, last]), ("half.test", AAAA, 1, Vec::new())];
    let records = Arc::new(Mutex::new([both, half(1)].concat()));
    let Some((resolv_conf, _)) = name_server(83, records.clone()) else { return };
    let [both, others] = ["both", "half"].map(|name| format!("\"{name}.test:{}\"", first.port()));
    let Some(proxy) = start_with(&both, &others, &resolv_conf) else { return };
    assert!(served(&proxy, 4).keys().eq(["first"]));
    let [failing, ipv6] = [("both.test", A, 1, Vec::new()), records.lock().unwrap()[1].clone()];
    *records.lock().unwrap() = [[failing, ipv6], half(2)].concat();
    proxy.program.says("the previous addresses stay in use");
    eventually("the other name is followed", || body_of(&proxy.get("/2")) == "second");
    assert!(served(&proxy, 4).keys().eq(["first"]));
}

#[cfg(feature = "dns")]
#[test]
fn services_have_weights_and_priorities() {
    let names = ["heavy", "light", "next", "other", "spare"];
    let [heavy, light, next, other, spare] =
        std::array::from_fn(|number| at(&format!("127.0.0.{}", number + 1), 0, names[number]));
    let record = |priority: u16, weight: u16, server: SocketAddr, target: &str| {
        let numbers = [priority, weight, server.port()].map(u16::to_be_bytes).concat();
        ("_http._tcp.web.test", SRV, 1, [numbers, wire(target)].concat())
    };
    let address = |name: &'static str, last: u8| (name, A, 1, vec![127, 0, 0, last]);
    let hosts = ["heavy.test", "light.test", "next.test", "other.test", "spare.test"];
    let hosts = std::array::from_fn::<_, 5, _>(|number| address(hosts[number], number as u8 + 1));
    let services = [
        record(10, 30000, heavy, "heavy.test"),
        record(10, 10000, light, "light.test"),
        record(20, 30, next, "next.test"),
        record(20, 10, other, "other.test"),
        // Its weight is nothing to the others.
        record(30, 60000, spare, "spare.test"),
    ];
    // Targets are whole names: domains to search do not count, although these have more dots than the targets.
    let wrong = [("heavy.test.wild.test", A, 1, vec![127, 0, 0, 9])];
    let records = Arc::new(Mutex::new([&services[..], &hosts, &wrong].concat()));
    let Some((resolv_conf, _)) = name_server(79, records.clone()) else { return };
    let mut file = std::fs::OpenOptions::new().append(true).open(&resolv_conf).unwrap();
    file.write_all(b"search wild.test\noptions ndots:5\n").unwrap();
    let Some(proxy) = start_with("\"_http._tcp.web.test\"", UNUSED, &resolv_conf) else { return };
    let used = served(&proxy, 40);
    assert!(used.into_iter().eq([("heavy".to_owned(), 30), ("light".to_owned(), 10)]));
    records.lock().unwrap().drain(..2);
    let next = [("next".to_owned(), 30), ("other".to_owned(), 10)];
    eventually("the next ones are used", || served(&proxy, 40).into_iter().eq(next.clone()));
    records.lock().unwrap().drain(..2);
    eventually("only the last one is used", || served(&proxy, 4).keys().eq(["spare"]));
}

/// A name server that is silent delays nothing else.
#[test]
fn lookups_do_not_delay_signals() {
    // An address of this test alone.
    let own = format!("127.77.{}.{}", std::process::id() >> 8 & 0xff, std::process::id() & 0xff);
    let Ok(silent) = UdpSocket::bind((&*own, 53)) else {
        return println!("skipped: {own}:53 is taken, or reserved for root");
    };
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let server = at("127.0.0.1", 0, "server");
    let [hosts, resolv_conf, log] = ["hosts", "resolv.conf", "access.log"].map(temp_path);
    std::fs::write(&hosts, "127.0.0.1 web.test\n").unwrap();
    std::fs::write(&resolv_conf, format!("nameserver {own}\noptions timeout:30 attempts:1\n")).unwrap();
    let text = |path: &Path| {
        format!(
            "access_log = {path:?}\n[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"http\"\nupstream = \"u\"\n\
             [[upstream]]\nname = \"u\"\nservers = [\"web.test:{}\"]\nlookup_interval = \"50ms\"\n",
            server.port()
        )
    };
    let config = write_config(&text(&log));
    let Some(proxy) = start(&config, &hosts, &resolv_conf) else { return };
    std::fs::write(&hosts, "").unwrap();
    silent.recv_from(&mut [0; 512]).expect("the name is looked up");
    let renamed = temp_path("access.log.1");
    std::fs::rename(&log, &renamed).unwrap();
    proxy.program.signal(Signal::User1);
    eventually("the log is reopened", || log.exists());
    // A file with an address instead of the name is used too.
    let text = text(&log).replace("web.test", "127.0.0.1").replace("lookup_interval = \"50ms\"\n", "");
    std::fs::write(&config, text).unwrap();
    proxy.program.signal(Signal::HangUp);
    proxy.program.says("is in use;");
    assert!(!proxy.program.log().contains("the previous addresses stay in use"), "{}", proxy.program.log());
    assert_eq!(body_of(&proxy.get("/")), "server");
    for file in [hosts, resolv_conf, log, renamed] {
        std::fs::remove_file(file).unwrap();
    }
}
