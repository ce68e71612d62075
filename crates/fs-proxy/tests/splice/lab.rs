//! A client, a proxy, a router and a server, in namespaces of their own.
//!
//! ```text
//! client0 10.93.1.2 ── front0 10.93.1.1 (host) back0 10.93.2.1 ── near0 10.93.2.2 (router) far0 10.93.3.1 ── server0 10.93.3.2
//! ```
//! In IPv6 the addresses are fd93:1::2 and so on.
#![allow(dead_code)]

#[path = "../../../fs-xdp/tests/support/tcx_unsafe.rs"]
mod tcx_unsafe;

use crate::common::{run, run_prefix, write_config};
use fs_stacks::testing::{PATIENCE, Program};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use tcx_unsafe::skipped_without_tcx;

const ROLES: [&str; 4] = ["client", "host", "router", "server"];

/// What is spliced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The connections of a listener with mode = "tcp".
    Tcp,
    /// Tunnels of a listener with mode = "http", after status 101.
    Tunnel,
}

pub(crate) const MODES: [Mode; 2] = [Mode::Tcp, Mode::Tunnel];
/// The request for a tunnel, and the answer.
const REQUEST: &[u8] = b"GET /t HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: test\r\n\r\n";

impl Mode {
    /// Reads what precedes the stream at a server, and answers with `first` right behind it.
    pub(crate) fn accept(self, stream: &mut TcpStream, first: &[u8]) -> std::io::Result<()> {
        if self == Self::Tcp {
            return stream.write_all(first);
        }
        read_head(stream)?;
        stream.write_all(&[ANSWER, first].concat())
    }

    /// Sends what precedes the stream, and `first` right behind it.
    pub(crate) fn begin(self, stream: &mut TcpStream, first: &[u8]) -> std::io::Result<()> {
        if self == Self::Tcp {
            return stream.write_all(first);
        }
        stream.write_all(&[REQUEST, first].concat())?;
        let head = read_head(stream)?;
        match head.starts_with("HTTP/1.1 101 ") {
            true => Ok(()),
            false => Err(std::io::Error::other(head)),
        }
    }
}

/// Reads a head, and nothing behind it.
fn read_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

pub(crate) struct Lab {
    name: String,
}

impl Lab {
    /// Returns `None` without root's rights or tcx.
    pub(crate) fn up() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        if skipped_without_tcx("a spliced flow") {
            return None;
        }
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let (run_of, number) = (run_prefix(), NEXT.fetch_add(1, Ordering::Relaxed));
        let lab = Self { name: format!("{run_of}-sp{}-{number}", std::process::id()) };
        for role in ROLES {
            run(&format!("ip netns add {}", lab.ns(role)));
            lab.ip(role, "link set lo up");
        }
        for (net, (a, left), (b, right)) in [
            (1, ("client", "client0"), ("host", "front0")),
            (2, ("host", "back0"), ("router", "near0")),
            (3, ("router", "far0"), ("server", "server0")),
        ] {
            let (one, other) = (lab.ns(a), lab.ns(b));
            run(&format!("ip link add {left} netns {one} type veth peer name {right} netns {other}"));
            // The host is .1 towards both sides.
            let (first, second) = if net == 1 { (2, 1) } else { (1, 2) };
            for (role, device, number) in [(a, left, first), (b, right, second)] {
                lab.ip(role, &format!("addr add 10.93.{net}.{number}/24 dev {device}"));
                lab.ip(role, &format!("addr add fd93:{net}::{number}/64 dev {device} nodad"));
                lab.ip(role, &format!("link set {device} up"));
            }
        }
        lab.set("router", "net/ipv4/ip_forward=1");
        lab.set("router", "net/ipv6/conf/all/forwarding=1");
        lab.ip("host", "route add 10.93.3.0/24 via 10.93.2.2");
        lab.ip("host", "route add fd93:3::/64 via fd93:2::2");
        lab.ip("server", "route add default via 10.93.3.1");
        lab.ip("server", "route add default via fd93:3::1");
        // Packets by a way that the routes do not expect are dropped.
        lab.set("client", "net/ipv4/conf/all/rp_filter=1");
        lab.set("server", "net/ipv4/conf/all/rp_filter=1");
        Some(lab)
    }

    fn ns(&self, role: &str) -> String {
        format!("{}-{role}", self.name)
    }

    pub(crate) fn ip(&self, role: &str, what: &str) {
        run(&format!("ip -n {} {what}", self.ns(role)));
    }

    /// Runs a command in a namespace.
    pub(crate) fn exec(&self, role: &str, command: &str) {
        run(&format!("ip netns exec {} {command}", self.ns(role)));
    }

    /// Returns the number of a namespace's open connections that `ss` selects.
    pub(crate) fn sockets(&self, role: &str, filter: &str) -> usize {
        let command = format!("netns exec {} ss -Htn state established {filter}", self.ns(role));
        let output = Command::new("ip").args(command.split(' ')).output().unwrap();
        assert!(output.status.success(), "{command}");
        output.stdout.iter().filter(|&&byte| byte == b'\n').count()
    }

    /// Sets a value below /proc/sys of a namespace.
    pub(crate) fn set(&self, role: &str, setting: &str) {
        let (name, value) = setting.split_once('=').unwrap();
        let (path, value) = (format!("/proc/sys/{name}"), value.to_owned());
        self.within(role, move || std::fs::write(path, value).unwrap());
    }

    /// Drops one in `number` of the packets that a namespace receives.
    pub(crate) fn lose(&self, role: &str, number: u32) {
        self.exec(role, "nft add table inet lossy");
        self.exec(role, "nft add chain inet lossy in { type filter hook input priority 0 ; }");
        self.exec(role, &format!("nft add rule inet lossy in tcp sport != 0 numgen random mod {number} == 0 drop"));
    }

    /// Runs `work` in a thread in a namespace.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        role: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let ns = std::fs::File::open(format!("/run/netns/{}", self.ns(role))).unwrap();
        thread::spawn(move || {
            move_into_link_name_space(ns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        })
    }

    pub(crate) fn within<T: Send + 'static>(&self, role: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.spawn(role, work).join().unwrap()
    }

    /// Starts a server, with a thread for each connection.
    pub(crate) fn serve(
        &self,
        v6: bool,
        serve: impl Fn(TcpStream) -> std::io::Result<()> + Clone + Send + 'static,
    ) -> SocketAddr {
        let address = if v6 { "[fd93:3::2]:0" } else { "10.93.3.2:0" };
        let listener = self.within("server", move || TcpListener::bind(address).unwrap());
        let address = listener.local_addr().unwrap();
        crate::common::serve(listener, serve);
        address
    }

    /// Connects as a client.
    pub(crate) fn connect(&self, to: SocketAddr) -> TcpStream {
        let stream = self.within("client", move || TcpStream::connect(to)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Starts the proxy in front of one server. `top` is added to the start of its configuration,
    /// `listener` to the listener.
    pub(crate) fn proxy(&self, server: SocketAddr, top: &str, listener: &str) -> Proxy {
        self.proxy_of(Mode::Tcp, server, top, listener)
    }

    pub(crate) fn proxy_of(&self, mode: Mode, server: SocketAddr, top: &str, listener: &str) -> Proxy {
        let mode = if mode == Mode::Tcp { "tcp" } else { "http" };
        let address = if server.is_ipv6() { "[fd93:1::1]:0" } else { "10.93.1.1:0" };
        let config = write_config(&format!(
            "metrics = \"127.0.0.1:0\"\n{top}\n[[listener]]\naddress = \"{address}\"\nmode = \"{mode}\"\nupstream = \"u\"\n\
             splice = \"auto\"\n{listener}\n[[upstream]]\nname = \"u\"\nservers = [\"{server}\"]\n"
        ));
        let arguments = ["netns", "exec", &self.ns("host"), crate::common::EXE, "--config", config.to_str().unwrap()];
        Proxy { program: Program::start("ip", &arguments), config }
    }

    /// Returns a page at the address of the proxy's metrics.
    pub(crate) fn page(&self, proxy: &Proxy, path: &str) -> String {
        let address = proxy.program.metrics.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        self.within("host", move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        })
    }

    /// Returns a metric of the proxy's only listener.
    pub(crate) fn metric(&self, proxy: &Proxy, name: &str) -> u64 {
        let text = self.page(proxy, "/metrics");
        let name = format!("fs_proxy_{name}{{");
        let line = text.lines().find(|line| line.starts_with(&name)).unwrap_or_else(|| panic!("no {name}: {text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for role in ROLES {
            // A test that failed early may not have made it.
            let _ = Command::new("ip").args(["netns", "del", &self.ns(role)]).output();
        }
    }
}

pub(crate) struct Proxy {
    pub(crate) program: Program,
    pub(crate) config: PathBuf,
}

impl Proxy {
    pub(crate) fn addr(&self) -> SocketAddr {
        self.program.addrs[0]
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.config);
    }
}
