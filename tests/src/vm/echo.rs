//! An echo server and its clients, on any sockets: in the guest on ours with `fastsock run`, and on
//! kernel sockets in the guest and on the peer.

use crate::body;
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// A thread for each of a thousand connections.
const STACK: usize = 256 << 10;
/// Limit for silence: the peer of a living guest is never silent for this long.
const SILENCE: Duration = Duration::from_secs(60);
/// Prefix of a client's error if the connect failed.
pub const NO_CONNECT: &str = "no connection to ";

/// Echoes forever.
pub fn serve(port: u16) -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", port)).with_context(|| format!("port {port}"))?;
    println!("serving");
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // No free descriptors: open connections will end.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let thread = std::thread::Builder::new().stack_size(STACK);
        thread.spawn(move || send_back(stream)).context("a thread")?;
    }
}

fn send_back(mut stream: TcpStream) {
    let mut block = vec![0; 16 << 10];
    // The client reports a reset connection.
    while let Ok(n @ 1..) = stream.read(&mut block) {
        if stream.write_all(&block[..n]).is_err() {
            return;
        }
    }
}

fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, SILENCE).with_context(|| format!("{NO_CONNECT}{to}"))?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    Ok(stream)
}

/// Sends this many non-repeating bytes, and compares the digest of the echo.
pub fn echo(to: SocketAddr, bytes: u64) -> Result<String> {
    let mut receiver = connect(to)?;
    let mut sender = receiver.try_clone()?;
    let sending = std::thread::spawn(move || -> Result<_> {
        let sent = body::write_to(&mut sender, bytes).context("send")?;
        sender.shutdown(Shutdown::Write)?;
        Ok(sent)
    });
    let (returned, received) = body::sha256(&mut receiver).context("receive")?;
    let sent = sending.join().map_err(|_| anyhow::anyhow!("the sender has panicked"))??;
    ensure!(received == bytes, "{received} of {bytes} bytes came back");
    ensure!(returned == sent, "other bytes came back than were sent");
    Ok(format!("{bytes} bytes"))
}

/// Opens so many connections, and has all of them open when each sends and receives.
pub fn connections(to: SocketAddr, count: u32) -> Result<String> {
    let mut open = Vec::new();
    for number in 0..count {
        open.push(connect(to).with_context(|| format!("connection {number} of {count}"))?);
    }
    let sent = |number: usize| [number.to_le_bytes(); 32].concat();
    for (number, stream) in open.iter_mut().enumerate() {
        stream.write_all(&sent(number)).with_context(|| format!("send on connection {number}"))?;
    }
    for (number, stream) in open.iter_mut().enumerate() {
        let mut block = vec![0; sent(number).len()];
        stream.read_exact(&mut block).with_context(|| format!("receive on connection {number}"))?;
        ensure!(block == sent(number), "connection {number} has another's bytes");
    }
    Ok(format!("{count} connections"))
}
