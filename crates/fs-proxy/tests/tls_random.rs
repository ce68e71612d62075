//! TLS clients with random behaviour: slow pieces, truncated and corrupted records, ends at any
//! point, more clients than places, and reloads in between. Other clients are served all the time,
//! and nothing is left at the end.
//!
//! The seeds are fixed, but the scheduler decides about timing. `FS_TLS_SECONDS` runs it for
//! longer, `FS_TLS_SEED` with other seeds.

mod common;
#[path = "common/identity.rs"]
mod identity;

use common::*;
use fs_stacks::testing::{PATIENCE, Signal, eventually};
use identity::{Identity, metric};
use rustls::{ClientConnection, version};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of clients with random behaviour.
const CLIENTS: u64 = 4;
/// Descriptors of the proxy, enough for about 25 clients.
const FILES: usize = 150;
/// Most silent connections that one thread leaves open. Together they are more than there are
/// places.
const LEFT: usize = 40;

/// Random numbers.
struct Chance(fastrand::Rng);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0.usize(..bound)
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

/// The behaviour of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    Whole,
    /// After this many bytes the client ends, or stays silent.
    Ends(usize, End),
    /// The byte with this number is corrupted.
    Spoilt(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Dropped,
    HalfClosed,
    Left,
}

/// The result, with the stream if it stays open.
enum Outcome {
    Answered,
    Failed,
    Left(TcpStream),
}

struct Client<'a> {
    chance: &'a mut Chance,
    conn: ClientConnection,
    sock: TcpStream,
    way: Behaviour,
    /// Most bytes per write.
    piece: usize,
    slow: bool,
    sent: usize,
}

impl Client<'_> {
    /// Sends TLS's pending bytes. Returns false at the planned end.
    fn send(&mut self) -> std::io::Result<bool> {
        let mut records = Vec::new();
        while self.conn.wants_write() {
            self.conn.write_tls(&mut records)?;
        }
        let mut records = &mut records[..];
        while !records.is_empty() {
            let mut length = records.len().min(1 + self.chance.below(self.piece));
            match self.way {
                Behaviour::Ends(at, _) if at <= self.sent => return Ok(false),
                Behaviour::Ends(at, _) => length = length.min(at - self.sent),
                Behaviour::Spoilt(at) if (self.sent..self.sent + length).contains(&at) => {
                    records[at - self.sent] ^= 0x55
                }
                Behaviour::Spoilt(_) | Behaviour::Whole => {}
            }
            let (now, later) = records.split_at_mut(length);
            self.sock.write_all(now)?;
            self.sent += length;
            records = later;
            if self.slow {
                std::thread::sleep(Duration::from_micros(self.chance.below(3000) as u64));
            }
        }
        Ok(true)
    }

    /// Returns the whole response to a request with this body, or `None` if the connection ended as
    /// planned.
    fn exchange(&mut self, body: &[u8]) -> std::io::Result<Option<Vec<u8>>> {
        let head = format!("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        let request = [head.as_bytes(), body].concat();
        let (mut given, mut answer) = (0, Vec::new());
        loop {
            if !self.conn.is_handshaking() && given < request.len() {
                given += self.conn.writer().write(&request[given..])?;
            }
            if !self.send()? {
                return Ok(None);
            }
            if !self.conn.is_handshaking() && given < request.len() {
                continue;
            }
            // The client gets an end or a response, so the test does not hang.
            if self.conn.read_tls(&mut self.sock)? == 0 {
                // Without close_notify this is an error below.
                let _ = self.conn.process_new_packets();
            } else {
                self.conn.process_new_packets().map_err(std::io::Error::other)?;
            }
            let mut part = [0; 4096];
            loop {
                match self.conn.reader().read(&mut part) {
                    Ok(0) => return Ok(Some(answer)),
                    Ok(length) => answer.extend_from_slice(&part[..length]),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// Runs one connection with random behaviour.
fn play(identity: &Identity, proxy: &Proxy, chance: &mut Chance) -> Outcome {
    let versions = [&version::TLS12, &version::TLS13];
    let body = pattern(if chance.one_in(2) { chance.below(200) } else { chance.below(100_000) });
    // Most events happen in the first 2,000 bytes: the handshake and a small request.
    let at = if chance.one_in(3) { chance.below(50_000) } else { chance.below(2000) };
    let way = match chance.below(8) {
        0 | 1 => Behaviour::Whole,
        2 | 3 => Behaviour::Ends(at, End::Dropped),
        4 => Behaviour::Ends(at, End::HalfClosed),
        5 | 6 => Behaviour::Ends(at, End::Left),
        _ => Behaviour::Spoilt(at),
    };
    let sock = proxy.connect();
    let conn = identity.client(&versions[chance.below(2)..][..1]);
    let slow = chance.one_in(3);
    let piece = if slow { 1 + chance.below(4000) } else { 1 << 20 };
    let mut client = Client { chance, conn, sock, way, piece, slow, sent: 0 };
    let result = client.exchange(&body);
    assert!(
        !matches!(&result, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
        "{way:?}: no answer and no end in {PATIENCE:?}"
    );
    match result {
        Ok(Some(answer)) => {
            let answer = String::from_utf8_lossy(&answer).into_owned();
            // The proxy may close the connection just when its request arrives. The client then
            // only gets close_notify.
            assert!(answer.is_empty() || body_of(&answer) == body.len().to_string(), "{way:?}: {answer}");
            if answer.is_empty() { Outcome::Failed } else { Outcome::Answered }
        }
        Ok(None) => match way {
            Behaviour::Ends(_, End::Left) => Outcome::Left(client.sock),
            Behaviour::Ends(_, End::HalfClosed) => {
                // The proxy's end arrives after everything that it sends.
                let _ = client.sock.shutdown(Shutdown::Write);
                let end = client.sock.read_to_end(&mut Vec::new());
                let is_late = end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
                assert!(!is_late, "{way:?}: no end in {PATIENCE:?}");
                Outcome::Failed
            }
            _ => Outcome::Failed,
        },
        Err(_) => Outcome::Failed,
    }
}

/// Sends a GET on a new connection, and returns the whole answer.
fn ask(identity: &Identity, proxy: &Proxy) -> std::io::Result<String> {
    let mut stream = identity.connect(proxy);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn random_clients_do_not_affect_others_and_leave_nothing() {
    let identity = Identity::new();
    let seconds = number("FS_TLS_SECONDS", 5);
    let server = http_backend(|request| ok(request.body.len().to_string()));
    let top = "timeouts = { idle = \"10s\" }";
    let config = write_config(&identity.listener("http", server, top));
    let mut proxy = Proxy { program: start_limited(&config, FILES), config };
    let begin = Instant::now();
    let (answered, failed, served) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    // On a slow machine the test runs until each case has happened a few times.
    let goes_on = || {
        let passed = begin.elapsed();
        let few = [&answered, &failed, &served].iter().any(|count| count.load(Ordering::Relaxed) <= 10);
        let reloads = || proxy.program.log().matches("is in use;").count();
        let lacks = || few || reloads() <= 5 || metric(&proxy, "fs_proxy_connections_evicted_total") == 0;
        passed < Duration::from_secs(seconds) || passed < 4 * PATIENCE && lacks()
    };
    std::thread::scope(|scope| {
        for worker in 0..CLIENTS {
            let (identity, proxy, answered, failed, goes_on) = (&identity, &proxy, &answered, &failed, &goes_on);
            scope.spawn(move || {
                let mut chance = Chance(fastrand::Rng::with_seed(number("FS_TLS_SEED", 1) * 1000 + worker + 1));
                let mut left = std::collections::VecDeque::new();
                while goes_on() {
                    match play(identity, proxy, &mut chance) {
                        Outcome::Answered => answered.fetch_add(1, Ordering::Relaxed),
                        Outcome::Failed => failed.fetch_add(1, Ordering::Relaxed),
                        Outcome::Left(stream) => {
                            left.push_back(stream);
                            if left.len() > LEFT {
                                left.pop_front();
                            }
                            0
                        }
                    };
                }
            });
        }
        scope.spawn(|| {
            while goes_on() {
                std::thread::sleep(Duration::from_millis(150));
                proxy.program.signal(Signal::HangUp);
            }
        });
        // A correct client: new connections, each with one request at once. While this thread waits for a
        // processor within its handshake, newer clients may take its place. Nothing else ends it.
        while goes_on() {
            let evicted = || metric(&proxy, "fs_proxy_connections_evicted_total");
            let before = evicted();
            match ask(&identity, &proxy) {
                Ok(answer) if !answer.is_empty() => {
                    assert_eq!(body_of(&answer), "0");
                    served.fetch_add(1, Ordering::Relaxed);
                }
                ended => eventually(&format!("the client is evicted: {ended:?}"), || evicted() > before),
            }
        }
    });
    let [answered, failed, served] = [&answered, &failed, &served].map(|count| count.load(Ordering::Relaxed));
    let evicted = metric(&proxy, "fs_proxy_connections_evicted_total");
    println!("{answered} answered, {failed} not, {served} others served, {evicted} evicted");
    assert!(answered > 10 && failed > 10 && served > 10 && evicted > 0);
    eventually("nothing is left open", || metric(&proxy, "fs_proxy_connections_open") == 0);
    assert_eq!(identity.get(&proxy).unwrap(), "0");
    let log = proxy.program.log();
    assert!(!log.contains("panicked"), "{log}");
    assert!(log.matches("is in use;").count() > 5, "{log}");
    proxy.program.terminate();
    assert!(proxy.program.wait().success());
}
