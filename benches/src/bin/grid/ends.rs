//! The kernel's end of a transfer: this program in a namespace. It prints one line with bytes and
//! seconds.

use anyhow::{Context, Result, ensure};
use fs_stacks::sys;
use rustix::net;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Connects and counts the bytes that arrive within `seconds` after the first byte.
pub(crate) fn receive(addr: SocketAddr, seconds: f64) -> Result<()> {
    let limit = Duration::from_secs_f64(seconds);
    let mut stream = TcpStream::connect(addr).with_context(|| format!("connect to {addr}"))?;
    let mut buffer = vec![0; 1 << 20];
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut bytes = stream.read(&mut buffer).context("the first byte")? as u64;
    let start = Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => anyhow::bail!("the sender has finished"),
            Ok(read) => bytes += read as u64,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error).context("read"),
        }
    }
    println!("{bytes} {}", limit.as_secs_f64());
    Ok(())
}

/// Connects with this congestion control. It is set before the connection opens, as the server
/// does: a connection that has begun with BBR as the kernel's default stays paced under any later
/// control.
fn connect(addr: SocketAddr, congestion: &str) -> Result<TcpStream> {
    let socket = net::socket(
        if addr.is_ipv4() { net::AddressFamily::INET } else { net::AddressFamily::INET6 },
        net::SocketType::STREAM,
        None,
    )?;
    sys::set_congestion(socket.as_fd(), congestion).with_context(|| format!("congestion control {congestion}"))?;
    net::connect(&socket, &addr)?;
    Ok(socket.into())
}

/// Connects and sends. Counts the bytes that the receiver has within `seconds` after its first
/// byte, which the acknowledgments show one round trip (`rtt_ms`) later.
pub(crate) fn send(addr: SocketAddr, seconds: f64, rtt_ms: f64, congestion: &str) -> Result<()> {
    let until = Duration::from_secs_f64(seconds + rtt_ms / 1000.0);
    let mut stream = connect(addr, congestion).with_context(|| format!("connect to {addr}"))?;
    let buffer = vec![b'x'; 1 << 16];
    let start = Instant::now();
    loop {
        let left = until.saturating_sub(start.elapsed());
        if left.is_zero() {
            break;
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(&buffer) {
            Ok(written) => ensure!(written > 0, "nothing was written"),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error).context("write"),
        }
    }
    println!("{} {seconds}", sys::bytes_acked(stream.as_fd())?);
    // Queued bytes need not arrive.
    sys::set_zero_linger(stream.as_fd())?;
    Ok(())
}
