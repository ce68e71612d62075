//! More clients than the proxy has descriptors for, over loopback, on kernel sockets.

mod common;

use common::*;
use fs_stacks::testing::{PATIENCE, eventually};
use fs_stacks::usage::raise_open_files;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Descriptors of the proxy.
const FILES: usize = 600;
/// Connections of the one client that leaves them idle.
const FLOOD: usize = 2000;

/// Starts a proxy that cannot raise its limit of descriptors, whichever user runs the test.
fn start(mode: &str, server: SocketAddr) -> Proxy {
    let check = "health_check = { interval = \"20ms\", timeout = \"30s\", fall = 1 }";
    let config = write_config(&format!(
        "metrics = \"127.0.0.1:0\"\ntimeouts = {{ connect = \"30s\" }}\n[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"{mode}\"\nupstream = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = [\"{server}\"]\n{check}\n"
    ));
    let program = start_limited(&config, FILES);
    Proxy { program, config }
}

fn metrics(proxy: &Proxy) -> String {
    let mut stream = TcpStream::connect(proxy.program.metrics.unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn metric(proxy: &Proxy, name: &str) -> u64 {
    let text = metrics(proxy);
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// Opens idle connections while `request` is repeated.
fn flood(proxy: &Proxy, request: impl Fn() + Sync) {
    // Two per connection, because the backend is in this process.
    raise_open_files(4 * FLOOD as u64 + 1000).unwrap();
    let (open, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            while !open.load(Ordering::SeqCst) {
                request();
                made.fetch_add(1, Ordering::SeqCst);
            }
        });
        let (mut idle, mut seen) = (Vec::new(), 0);
        for number in 0..FLOOD {
            idle.push(TcpStream::connect(proxy.addr()).unwrap());
            // Waits so that no connection is the longest idle one before its request is sent.
            std::thread::sleep(Duration::from_millis(1));
            // Also not while the thread of a request, or of its server, is stopped.
            if number % 10 == 0 {
                while made.load(Ordering::SeqCst) == seen && !asking.is_finished() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                seen = made.load(Ordering::SeqCst);
            }
        }
        // Idle clients of a full proxy do not block new ones.
        (0..20).for_each(|_| request());
        // Some connections may still wait in the listener's queue.
        eventually("others are closed for them", || {
            metric(proxy, "fs_proxy_connections_evicted_total") as usize > FLOOD - FILES
        });
        eventually("requests are answered", || made.load(Ordering::SeqCst) > 20);
        open.store(true, Ordering::SeqCst);
    });
    assert_eq!(metric(proxy, "fs_proxy_server_connect_failures_total"), 0);
    assert_eq!(metric(proxy, "fs_proxy_server_healthy"), 1);
    proxy.program.says("idle longest");
    let log = proxy.program.log();
    assert!(!log.contains("unhealthy") && !log.contains("no usable server"), "{log}");
    eventually("closed clients leave nothing open", || proxy.program.descriptors() < 100);
}

#[test]
fn idle_http_clients_leave_room_for_requests_and_checks() {
    let proxy = start("http", http_backend(|_| ok("answer")));
    flood(&proxy, || assert_eq!(body_of(&proxy.get("/")), "answer"));
}

#[test]
fn idle_tcp_clients_leave_room_for_others_and_checks() {
    let echo = backend(|mut stream| std::io::copy(&mut stream.try_clone()?, &mut stream).map(drop));
    let proxy = start("tcp", echo);
    flood(&proxy, || {
        let mut stream = proxy.connect();
        stream.write_all(b"there").unwrap();
        let mut back = [0; 5];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"there");
    });
}

/// A relay in use is not idle, however old it is.
#[test]
fn busy_tcp_connection_stays() {
    let echo = backend(|mut stream| std::io::copy(&mut stream.try_clone()?, &mut stream).map(drop));
    let proxy = start("tcp", echo);
    let busy = proxy.connect();
    let again = || {
        (&busy).write_all(b"x").unwrap();
        (&busy).read_exact(&mut [0]).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    };
    flood(&proxy, again);
    again();
    drop(busy);
}
