//! Limits of servers and of clients' addresses. Over loopback on kernel sockets; `af_xdp` repeats
//! them on fastsock.

mod common;

use common::*;
use fs_stacks::testing::eventually;
use rustix::net::sockopt::set_socket_linger;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// A server whose answers wait until the gate opens.
struct Gate {
    addr: SocketAddr,
    is_open: Arc<(Mutex<bool>, Condvar)>,
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Gate {
    fn new() -> Self {
        let (is_open, now, most) = (Arc::new((Mutex::new(false), Condvar::new())), Arc::default(), Arc::default());
        let gate = (Arc::clone(&is_open), Arc::<AtomicUsize>::clone(&now), Arc::<AtomicUsize>::clone(&most));
        let addr = http_backend(move |request| {
            let (is_open, now, most) = &gate;
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            if !request.head.starts_with("GET /quick") {
                let opened = is_open.1.wait_while(is_open.0.lock().unwrap(), |open| !*open).unwrap();
                drop(opened);
            }
            now.fetch_sub(1, Ordering::SeqCst);
            ok("served")
        });
        Self { addr, is_open, now, most }
    }

    fn open(&self) {
        *self.is_open.0.lock().unwrap() = true;
        self.is_open.1.notify_all();
    }

    fn count(&self) -> usize {
        self.now.load(Ordering::SeqCst)
    }
}

fn start(servers: &str, upstream: &str, top: &str, mode: &str) -> Proxy {
    let ip = proxy_ip();
    let config = write_config(&format!(
        "metrics = \"{ip}:0\"\n{top}\n[[listener]]\naddress = \"{ip}:0\"\nmode = \"{mode}\"\nupstream = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = [{servers}]\n{upstream}\n"
    ));
    Proxy { program: start_program(&config), config }
}

fn metric(proxy: &Proxy, name: &str) -> u64 {
    let text = proxy.metrics();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// Sends a request in a thread. HTTP/1.0 is served by hyper.
fn ask(proxy: &Proxy, number: usize) -> thread::JoinHandle<String> {
    let (mut stream, version) = (proxy.connect(), number % 2);
    thread::spawn(move || {
        let request = format!("GET /{number} HTTP/1.{version}\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    })
}

#[test]
fn server_has_no_more_than_its_limit_and_the_rest_waits() {
    let gate = Gate::new();
    let servers = format!("{{ address = \"{}\", max_connections = 3 }}", gate.addr);
    let proxy = start(&servers, "queue = { requests = 5, timeout = \"60s\" }", "", "http");
    let waiting = || metric(&proxy, "fs_proxy_upstream_waiting{upstream=\"u\"}");
    let asked: Vec<_> = (0..8).map(|number| ask(&proxy, number)).collect();
    eventually("three are served and five wait", || gate.count() == 3 && waiting() == 5);
    // The queue is full.
    assert!(proxy.get("/more").starts_with("HTTP/1.1 503 "));
    gate.open();
    for asked in asked {
        assert_eq!(body_of(&asked.join().unwrap()), "served");
    }
    assert_eq!((gate.most.load(Ordering::SeqCst), waiting()), (3, 0));
    assert_eq!(metric(&proxy, "fs_proxy_upstream_queued_total"), 5);
    assert_eq!(metric(&proxy, "fs_proxy_upstream_queue_refused_total"), 1);
}

/// A request whose client has reset while it waited is not sent.
#[test]
fn requests_of_clients_that_are_gone_are_not_sent() {
    for mode in ["http", "tcp"] {
        let gate = Gate::new();
        let servers = format!("{{ address = \"{}\", max_connections = 1 }}", gate.addr);
        let proxy = start(&servers, "queue = { timeout = \"60s\" }", "", mode);
        let waiting = || metric(&proxy, "fs_proxy_upstream_waiting{upstream=\"u\"}");
        let get = |target: &str| {
            let mut stream = proxy.connect();
            write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            stream
        };
        let first = get("/first");
        eventually("it is served", || gate.count() == 1);
        for version in ["1.1", "1.0"] {
            let mut stream = proxy.connect();
            write!(stream, "POST / HTTP/{version}\r\nHost: x\r\nContent-Length: 3\r\n\r\npay").unwrap();
            eventually("it waits", || waiting() == 1);
            set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            drop(stream);
            eventually("it waits no more", || waiting() == 0);
        }
        // A client that ends its stream waits for its response.
        let last = get("/last");
        eventually("it waits", || waiting() == 1);
        gate.open();
        for mut stream in [first, last] {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(body_of(&answer), "served");
        }
        assert_eq!(gate.most.load(Ordering::SeqCst), 1);
    }
}

/// A request whose kept connection has ended goes to the same server again, before those that wait.
#[test]
fn stale_connection_does_not_cost_the_place() {
    for lean in [true, false] {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (go, gone) = channel();
        let gone = Arc::new(Mutex::new(gone));
        let seen = asked.clone();
        let addr = backend(move |stream| {
            let mut writer = stream.try_clone()?;
            let mut reader = BufReader::new(stream);
            let mut number = 0;
            while let Some(request) = read_request(&mut reader)? {
                let target = request.head.split(' ').nth(1).unwrap().to_owned();
                seen.lock().unwrap().push(target);
                number += 1;
                if number == 2 {
                    // Ends the kept connection under a request, once another one waits.
                    gone.lock().unwrap().recv().map_err(std::io::Error::other)?;
                    return Ok(());
                }
                writer.write_all(&ok("served"))?;
            }
            Ok(())
        });
        let servers = format!("{{ address = \"{addr}\", max_connections = 1 }}");
        let proxy = start(&servers, "queue = { timeout = \"60s\" }", &format!("lean = {lean}"), "http");
        let get = |target: &str| {
            let mut stream = proxy.connect();
            write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            stream
        };
        let read = |mut stream: TcpStream| {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(body_of(&answer), "served");
        };
        read(get("/0"));
        let first = get("/1");
        eventually("it is sent", || asked.lock().unwrap().len() == 2);
        let second = get("/2");
        eventually("the second one waits", || metric(&proxy, "fs_proxy_upstream_waiting{upstream=\"u\"}") == 1);
        go.send(()).unwrap();
        read(first);
        // The kept connection of the second one is as new as that of the first.
        go.send(()).unwrap();
        read(second);
        assert_eq!(asked.lock().unwrap()[..4], ["/0", "/1", "/1", "/2"], "lean = {lean}");
        assert_eq!(metric(&proxy, "fs_proxy_server_retries_total"), 2);
    }
}

#[test]
fn waiting_has_a_limit() {
    let gate = Gate::new();
    let servers = format!("{{ address = \"{}\", max_connections = 1 }}", gate.addr);
    let proxy = start(&servers, "queue = { timeout = \"2s\" }", "", "http");
    let first = ask(&proxy, 1);
    eventually("it is served", || gate.count() == 1);
    for number in [2, 3] {
        let answer = ask(&proxy, number).join().unwrap();
        assert!(answer.contains(" 503 ") && answer.contains("all servers are busy"), "{answer}");
    }
    gate.open();
    assert_eq!(body_of(&first.join().unwrap()), "served");
    assert_eq!(body_of(&proxy.get("/quick")), "served");
}

#[test]
fn tcp_connections_wait_too_and_another_server_is_used_first() {
    let backend = |name: &'static str| {
        backend(move |mut stream| {
            stream.write_all(name.as_bytes())?;
            stream.read_to_end(&mut Vec::new()).map(drop)
        })
    };
    let (one, two) = (backend("1"), backend("2"));
    let servers = format!(
        "{{ address = \"{one}\", max_connections = 1 }}, {{ address = \"{two}\", max_connections = 1, backup = true }}"
    );
    let proxy = start(&servers, "queue = { timeout = \"60s\" }", "", "tcp");
    let read = |stream: &mut TcpStream| {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        byte[0]
    };
    let mut first = proxy.connect();
    assert_eq!(read(&mut first), b'1');
    let mut second = proxy.connect();
    assert_eq!(read(&mut second), b'2');
    let mut third = proxy.connect();
    eventually("the third waits", || metric(&proxy, "fs_proxy_upstream_waiting{upstream=\"u\"}") == 1);
    drop(second);
    assert_eq!(read(&mut third), b'2');
    drop(first);
    assert_eq!(read(&mut proxy.connect()), b'1');
}

/// Every server accepts and closes, so each request would be sent to all of them.
#[test]
fn retries_have_a_budget() {
    let requests = Arc::new(AtomicUsize::new(0));
    let servers: Vec<String> = (0..3)
        .map(|_| {
            let requests = requests.clone();
            let addr = backend(move |stream| {
                let mut line = String::new();
                let mut stream = BufReader::new(stream);
                stream.read_line(&mut line)?;
                // Before the stream is closed, which ends the request.
                requests.fetch_add(1, Ordering::SeqCst);
                Ok(())
            });
            format!("\"{addr}\"")
        })
        .collect();
    let proxy = start(&servers.join(", "), "retry_budget = 10", "", "http");
    for _ in 0..100 {
        assert!(proxy.get("/").starts_with("HTTP/1.1 502 "));
    }
    let sent = requests.load(Ordering::SeqCst);
    let metrics = proxy.metrics();
    let retries = metrics.lines().filter(|line| line.starts_with("fs_proxy_server_retries_total{"));
    let count: usize = retries.map(|line| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()).sum();
    assert_eq!(count, sent - 100);
    // Ten retries at first, and one more per ten requests.
    assert!((110..=120).contains(&sent), "{sent}");
    assert!(metric(&proxy, "fs_proxy_upstream_retries_refused_total") >= 80);
    // A device has one process at a time.
    drop(proxy);
    let none = start(&servers.join(", "), "retry_budget = 0", "", "http");
    for _ in 0..10 {
        assert!(none.get("/").starts_with("HTTP/1.1 502 "));
    }
    assert_eq!(requests.load(Ordering::SeqCst), sent + 10);
}

#[test]
fn address_has_a_number_of_connections() {
    let addr = http_backend(|_| ok("yes"));
    let server = format!("\"{addr}\"");
    let proxy = start(&server, "", "limits = { client_connections = 3 }", "http");
    let open: Vec<TcpStream> = (0..3).map(|_| proxy.connect()).collect();
    let refused = || metric(&proxy, "fs_proxy_connections_refused_total");
    let asked = |mut stream: TcpStream| {
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    eventually("they are open", || metric(&proxy, "fs_proxy_connections_open") == 3);
    assert!(asked(proxy.connect()).is_ok_and(|answer| answer.is_empty()) || refused() == 1);
    eventually("it is refused", || refused() == 1);
    for stream in open {
        assert_eq!(body_of(&asked(stream).unwrap()), "yes");
    }
    eventually("they are closed", || metric(&proxy, "fs_proxy_connections_open") == 0);
    assert_eq!(body_of(&proxy.get("/")), "yes");
    // A device has one process at a time.
    drop(proxy);
    // A proxy in front has no limit.
    let listener = TcpListener::bind((own_ip(), 0)).unwrap();
    let trusted = format!("limits = {{ client_connections = 1 }}\n# {}", listener.local_addr().unwrap());
    let config = write_config(&format!(
        "{trusted}\n[[listener]]\naddress = \"{}:0\"\nmode = \"http\"\nupstream = \"u\"\n\
         trusted_proxies = [\"{}\"]\n[[upstream]]\nname = \"u\"\nservers = [{server}]\n",
        proxy_ip(),
        own_ip()
    ));
    let behind = Proxy { program: start_program(&config), config };
    let _open = [(); 3].map(|()| behind.connect());
    assert_eq!(body_of(&behind.get("/")), "yes");
}

/// A client whose address a header names has its limit, even with an address as the proxies have.
#[test]
fn clients_of_a_proxy_in_front_have_limits() {
    let (addr, own, ip) = (http_backend(|_| ok("yes")), own_ip(), proxy_ip());
    let config = write_config(&format!(
        "metrics = \"{ip}:0\"\nlimits = {{ client_connections = 1 }}\n[[listener]]\naddress = \"{ip}:0\"\n\
         mode = \"http\"\nupstream = \"u\"\naccept_proxy = true\ntrusted_proxies = [\"{own}\", \"10.0.0.0/8\"]\n\
         [[upstream]]\nname = \"u\"\nservers = [\"{addr}\"]\n"
    ));
    let proxy = Proxy { program: start_program(&config), config };
    let ask = |header: &str| {
        let mut stream = proxy.connect();
        let request = format!("{header}\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
        let _ = stream.write_all(request.as_bytes());
        let mut first = [0; 12];
        let answer = stream.read_exact(&mut first).map(|()| first == *b"HTTP/1.1 200");
        (stream, answer.unwrap_or(false))
    };
    let named = "PROXY TCP4 10.9.9.9 10.0.0.1 1000 80";
    let (open, is_served) = ask(named);
    assert!(is_served && !ask(named).1);
    // Connections of the proxy in front for itself have no limit.
    let own: Vec<_> = (0..3).map(|_| ask("PROXY UNKNOWN")).collect();
    assert!(own.iter().all(|(_, is_served)| *is_served));
    assert_eq!(metric(&proxy, "fs_proxy_connections_refused_total"), 1);
    drop(open);
}

#[test]
fn address_has_a_rate_of_requests() {
    let addr = http_backend(|_| ok("yes"));
    let top = "limits = { client_requests = 1, client_burst = 5 }";
    let proxy = start(&format!("\"{addr}\""), "", top, "http");
    // Counts requests on one connection, on both paths, and on other connections.
    let mut stream = proxy.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut ask = |request: &str| {
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0);
        }
        let length = Received { head: head.clone(), body: Vec::new() };
        let mut body = vec![0; length.header("content-length").unwrap().parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        head.split(' ').nth(1).unwrap().to_owned()
    };
    let lean = "GET /lean HTTP/1.1\r\nHost: x\r\n\r\n";
    let odd = "GET /odd HTTP/1.1\r\nHost: x\r\nX-Odd: 1\r\nConnection: X-Odd, keep-alive\r\n\r\n";
    let statuses: Vec<String> = [lean, odd, lean, odd, lean].map(&mut ask).to_vec();
    assert_eq!(statuses, ["200"; 5]);
    // At most one more token arrives while this test is as quick as it should be; a slow machine may
    // get more.
    let refused = (0..50).filter(|_| ask(lean) == "429").count() + (0..50).filter(|_| ask(odd) == "429").count();
    assert!(refused > 0);
    eventually("another connection is refused", || proxy.get("/").starts_with("HTTP/1.1 429 "));
    eventually("a token arrives", || ask(lean) == "200");
}
