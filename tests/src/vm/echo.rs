//! An echo server and its clients, on whatever sockets they are run: in the guest on ours by `fastsock run`, beside it and on
//! the peer on the kernel's.

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// A thread for each of a thousand connections.
const STACK: usize = 256 << 10;
const BLOCK: usize = 64 << 10;
/// No peer of a guest that is alive is silent for so long.
const SILENCE: Duration = Duration::from_secs(60);

/// Sends back what comes, for ever.
pub fn serve(port: u16) -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", port)).with_context(|| format!("port {port}"))?;
    println!("serving");
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Out of descriptors: those that have them will end.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let thread = std::thread::Builder::new().stack_size(STACK);
        thread.spawn(move || send_back(stream)).context("a thread")?;
    }
}

fn send_back(mut stream: TcpStream) {
    let mut block = vec![0; 16 << 10];
    // A connection that was reset is the client's to tell.
    while let Ok(n @ 1..) = stream.read(&mut block) {
        if stream.write_all(&block[..n]).is_err() {
            return;
        }
    }
}

fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, SILENCE).with_context(|| format!("connect to {to}"))?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    Ok(stream)
}

/// Sends so many bytes that never repeat, and compares the digest of what comes back.
pub fn echo(to: SocketAddr, bytes: u64) -> Result<String> {
    let mut receiver = connect(to)?;
    let mut sender = receiver.try_clone()?;
    let sending = std::thread::spawn(move || -> Result<_> {
        let (mut digest, mut left, mut state) = (Sha256::new(), bytes, 0x9E37_79B9_7F4A_7C15_u64);
        let mut block = vec![0; BLOCK];
        while left > 0 {
            for word in block.chunks_exact_mut(8) {
                // xorshift64*
                state ^= state >> 12;
                state ^= state << 25;
                state ^= state >> 27;
                word.copy_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
            }
            let n = left.min(BLOCK as u64) as usize;
            digest.update(&block[..n]);
            sender.write_all(&block[..n]).context("send")?;
            left -= n as u64;
        }
        sender.shutdown(Shutdown::Write)?;
        Ok(digest.finalize())
    });
    let (mut digest, mut received, mut block) = (Sha256::new(), 0, vec![0; BLOCK]);
    loop {
        match receiver.read(&mut block).with_context(|| format!("receive after {received} bytes"))? {
            0 => break,
            n => {
                digest.update(&block[..n]);
                received += n as u64;
            }
        }
    }
    let sent = sending.join().map_err(|_| anyhow::anyhow!("the sender has panicked"))??;
    ensure!(received == bytes, "{received} of {bytes} bytes came back");
    ensure!(digest.finalize() == sent, "other bytes came back than were sent");
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
