//! The examples of docs/PROXY.md ("Moving from HAProxy or nginx"): each pair of configurations does
//! the same. Over loopback, on kernel sockets.

mod common;

use common::*;
use fs_stacks::testing::{PATIENCE, Program, eventually};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Returns the block in this language below a heading of the page.
fn block(heading: &str, language: &str) -> String {
    let page = include_str!("../../../docs/PROXY.md");
    let section = page.split(&format!("\n### {heading}\n")).nth(1).expect("the section").split("\n##").next().unwrap();
    let start = format!("```{language}\n");
    section.split(&start).nth(1).expect("the block").split("```").next().unwrap().to_owned()
}

/// Replaces the addresses of the documentation by those of the test.
fn placed(mut text: String, servers: &[SocketAddr]) -> String {
    for (number, server) in servers.iter().enumerate() {
        text = text.replace(&format!("10.0.0.{}:80", number + 1), &server.to_string());
    }
    text
}

fn ours(text: String, servers: &[SocketAddr]) -> Proxy {
    let config = write_config(&placed(text, servers).replace("0.0.0.0:8080", "127.0.0.1:0"));
    let program = Program::start(EXE, &["--config", config.to_str().unwrap()]);
    Proxy { program, config }
}

/// HAProxy or nginx.
struct Theirs {
    process: Child,
    addr: SocketAddr,
    _port: TcpListener,
    folder: PathBuf,
}

impl Theirs {
    /// Returns `None` if the program is not installed, or this user cannot run it.
    fn start(program: &str, text: &str, servers: &[SocketAddr]) -> Option<Self> {
        let mut theirs = Self::spawn(program, text.to_owned(), servers)?;
        eventually("it listens", || {
            let has_ended = theirs.process.try_wait().unwrap().is_some();
            assert!(!has_ended, "{program} refuses the configuration of the documentation");
            TcpStream::connect(theirs.addr).is_ok()
        });
        Some(theirs)
    }

    fn spawn(program: &str, text: String, servers: &[SocketAddr]) -> Option<Self> {
        // The kernel chooses a port for no other socket while this one is bound to it. With SO_REUSEADDR the
        // program can listen there.
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let port = TcpListener::from(socket);
        let addr = port.local_addr().unwrap();
        let folder = temp_path(program);
        std::fs::create_dir(&folder).unwrap();
        let at = folder.display();
        let folders: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {at}/{kind}; "))
            .concat();
        let text = placed(text, servers)
            .replace("0.0.0.0:8080", &addr.to_string())
            .replace("listen 8080", &format!("listen {addr}"))
            .replace("access_log off;", &format!("access_log off; {folders}"));
        let file = folder.join("config");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(program);
        match program {
            "haproxy" => command.args(["-db", "-f"]).arg(&file),
            _ => {
                let global = format!("daemon off; master_process off; pid {at}/pid; error_log {at}/error.log;");
                command.arg("-c").arg(&file).args(["-g", &global, "-e"]).arg(folder.join("early.log"))
            }
        };
        let spawned =
            command.env("PATH", "/usr/sbin:/usr/bin:/bin").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Some(Self { process: spawned.ok()?, addr, _port: port, folder })
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // The process may have ended, and the files are temporary.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Compares what clients and servers see, with the other program if it is installed.
fn compare(
    program: &str,
    theirs: String,
    servers: &[SocketAddr],
    seen_by_ours: &[String],
    see: fn(SocketAddr) -> Vec<String>,
) {
    match Theirs::start(program, &theirs, servers) {
        Some(theirs) => assert_eq!(see(theirs.addr), seen_by_ours, "{program} and fs-proxy"),
        None => println!("skipped: {program} is not installed"),
    }
}

fn http_servers() -> Vec<SocketAddr> {
    let server = |number: usize| {
        http_backend(move |request| {
            let target = request.head.split(' ').nth(1).unwrap_or_default();
            let field = |name| request.header(name).unwrap_or("-");
            ok(format!("{number} {target} {} {}", field("host"), field("x-forwarded-for")))
        })
    };
    (1..=4).map(server).collect()
}

fn see_http(addr: SocketAddr) -> Vec<String> {
    let ask = |target: &str, host: &str| {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer[9..12].to_owned();
        let location =
            answer.lines().find_map(|line| line.to_lowercase().strip_prefix("location: ").map(str::to_owned));
        match location {
            Some(location) => format!("{status} {location}"),
            None => format!("{status} {}", body_of(&answer)),
        }
    };
    let mut seen: Vec<String> = (0..16).map(|_| ask("/x?y", "www.example.com")).collect();
    // The order of turns differs.
    seen.sort();
    seen.push(ask("/api/x", "www.example.com"));
    seen.push(ask("/apix", "www.example.com").replace(|c: char| "12".contains(c), "n"));
    seen.push(ask("/x?y=1", "example.com"));
    seen
}

#[test]
fn http_with_haproxy() {
    let servers = http_servers();
    let proxy = ours(block("HTTP with HAProxy", "toml"), &servers);
    let seen = see_http(proxy.addr());
    assert_eq!(
        seen.iter().filter(|line| line.contains("200 1 /x?y www.example.com 127.0.0.1")).count(),
        12,
        "{seen:?}"
    );
    assert_eq!(seen[16], "200 4 /api/x www.example.com 127.0.0.1");
    assert_eq!(seen[18], "308 https://www.example.com/x?y=1");
    compare("haproxy", block("HTTP with HAProxy", "haproxy"), &servers, &seen, see_http);
}

#[test]
fn http_with_nginx() {
    let servers = http_servers();
    let text = block("HTTP with HAProxy", "toml").replace("health_check = { path = \"/health\" }\n", "");
    let proxy = ours(text, &servers);
    let seen = see_http(proxy.addr());
    compare("nginx", block("HTTP with nginx", "nginx"), &servers, &seen, see_http);
}

/// Returns the first bytes of a TLS client that asks for this name.
fn hello(name: &'static str) -> Vec<u8> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let mut client = ClientConnection::new(Arc::new(config), ServerName::try_from(name).unwrap()).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

fn see_tls(addr: SocketAddr) -> Vec<String> {
    let ask = |name| {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello = hello(name);
        stream.write_all(&hello).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        // The server's number, and what it got.
        let (number, got) = answer.split_first().unwrap_or((&0, &[]));
        let before = got.len().saturating_sub(hello.len());
        format!("{name}: {number} {:?} {}", &got[..before.min(16)], got.ends_with(&hello))
    };
    ["mail.example.com", "www.example.com", "MAIL.example.com"].map(ask).into()
}

#[test]
fn tls_by_name_with_haproxy() {
    let server = |number: u8| {
        backend(move |mut stream| {
            let mut all = vec![number];
            stream.read_to_end(&mut all)?;
            stream.write_all(&all)
        })
    };
    let servers: Vec<SocketAddr> = (1..=2).map(server).collect();
    let proxy = ours(block("TLS by name with HAProxy", "toml"), &servers);
    let seen = see_tls(proxy.addr());
    assert!(seen[0].starts_with("mail.example.com: 1 [13, 10") && seen[1] == "www.example.com: 2 [] true", "{seen:?}");
    compare("haproxy", block("TLS by name with HAProxy", "haproxy"), &servers, &seen, see_tls);
}
