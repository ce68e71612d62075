//! Clients that send requests while something happens to the proxy.
#![allow(dead_code)]

use fs_stacks::testing::PATIENCE;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// How often something happens: the usual number, or that in the environment.
pub(crate) fn times(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |times| times.parse().unwrap())
}

pub(crate) fn open(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends a request and reads its response. Returns true if the connection stays open.
pub(crate) fn ask(on: &mut BufReader<TcpStream>, close: bool) -> std::io::Result<bool> {
    let connection = if close { "close" } else { "keep-alive" };
    write!(on.get_mut(), "GET /short HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\n\r\n")?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if on.read_line(&mut head)? == 0 {
            return Err(std::io::Error::other(format!("ended within {head:?}")));
        }
    }
    let mut body = [0; 5];
    on.read_exact(&mut body)?;
    assert_eq!(&body, b"short");
    Ok(!head.to_lowercase().contains("\r\nconnection: close\r\n"))
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Client {
    /// HTTP on one connection until the proxy closes it.
    Kept,
    /// HTTP, a connection for each request, which the proxy closes.
    New,
    /// TCP, a connection for each request, which the client closes.
    Tcp,
}

/// Sends requests until `stop`. None may fail.
pub(crate) fn load(client: Client, to: SocketAddr, stop: &AtomicBool, count: &AtomicUsize) {
    let mut kept: Option<BufReader<TcpStream>> = None;
    while !stop.load(Ordering::SeqCst) {
        let mut connection = match kept.take() {
            Some(kept) => kept,
            None => BufReader::new(open(to).unwrap_or_else(|error| panic!("{client:?} cannot connect: {error}"))),
        };
        let is_open = ask(&mut connection, matches!(client, Client::New))
            .unwrap_or_else(|error| panic!("{client:?}, request {}: {error}", count.load(Ordering::SeqCst)));
        match client {
            Client::Kept => kept = Some(connection).filter(|_| is_open),
            Client::New => {
                let rest = connection.read(&mut [0]).unwrap_or_else(|error| panic!("{client:?}, at the end: {error}"));
                assert_eq!(rest, 0, "bytes after the response");
            }
            Client::Tcp => {}
        }
        count.fetch_add(1, Ordering::SeqCst);
        // Clients and proxies share the machine's CPUs.
        thread::sleep(Duration::from_millis(2));
    }
}
