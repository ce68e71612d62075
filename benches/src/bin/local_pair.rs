//! Two blocking programs on `std::net`, to be run as they are or with libfastsock.so: what a socket of the C library
//! costs, without an application around it. Clients print one figure.
//!
//! ```text
//! local_pair serve ADDRESS            the other end of all, one connection after the other
//! local_pair round-trip ADDRESS MS    ns that 8 bytes take to and fro: the median of batches of 100
//! local_pair short ADDRESS MS         messages of 8 bytes per second, one way
//! local_pair long ADDRESS MS          bytes per second in messages of 64 KiB, one way
//! local_pair connect ADDRESS MS       connections per second: connect, one byte each way, close
//! ```

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fs_benches::parts::median;

const USAGE: &str = "usage: local_pair serve ADDRESS | (round-trip | short | long | connect) ADDRESS MS";

/// The first byte of a connection says what it is for.
const ECHO: u8 = b'e';
const COUNT: u8 = b'c';
const BYTE: u8 = b'b';

fn main() -> ExitCode {
    fs_benches::run(USAGE, |words| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let figure = match words[..] {
            ["serve", address] => return serve(address.parse()?).map(|()| true),
            [work, address, ms] => measure(work, address.parse()?, Duration::from_millis(ms.parse()?))?,
            _ => bail!("{USAGE}"),
        };
        println!("{figure:.0}");
        Ok(true)
    })
}

fn serve(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address)?;
    loop {
        let (stream, _) = listener.accept()?;
        match answer(stream) {
            Ok(()) => {}
            // How a client ends that does not leave its port in TIME-WAIT.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => eprintln!("{error}"),
        }
    }
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut kind = [0];
    if stream.read(&mut kind)? == 0 {
        return Ok(()); // Somebody who asks whether this is up.
    }
    match kind[0] {
        BYTE => stream.write_all(&kind),
        ECHO => {
            stream.set_nodelay(true)?;
            let mut message = [0; 8];
            while stream.read_exact(&mut message).is_ok() {
                stream.write_all(&message)?;
            }
            Ok(())
        }
        _ => {
            let (mut buf, mut count) = (vec![0; 1 << 16], 0u64);
            loop {
                match stream.read(&mut buf)? {
                    0 => return stream.write_all(&count.to_ne_bytes()),
                    n => count += n as u64,
                }
            }
        }
    }
}

fn measure(work: &str, address: SocketAddr, time: Duration) -> Result<f64> {
    match work {
        "round-trip" => round_trip(connect(address, ECHO)?, time),
        "short" => one_way(connect(address, COUNT)?, &[7; 8], time).map(|bytes| bytes / 8.0),
        "long" => one_way(connect(address, COUNT)?, &[7; 1 << 16], time),
        "connect" => connections(address, time),
        _ => bail!("{USAGE}"),
    }
}

fn connect(address: SocketAddr, kind: u8) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
    stream.set_nodelay(true)?;
    stream.write_all(&[kind])?;
    Ok(stream)
}

fn round_trip(mut stream: TcpStream, time: Duration) -> Result<f64> {
    const BATCH: u32 = 100;
    let (mut message, mut batches) = ([1; 8], Vec::new());
    let start = Instant::now();
    while start.elapsed() < time {
        let batch = Instant::now();
        for _ in 0..BATCH {
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
        }
        batches.push(batch.elapsed().as_nanos() as f64 / f64::from(BATCH));
    }
    Ok(median(batches))
}

/// Bytes per second, from the first one sent until the other end has said that it has the last one.
fn one_way(mut stream: TcpStream, message: &[u8], time: Duration) -> Result<f64> {
    let (start, mut sent) = (Instant::now(), 0u64);
    while start.elapsed() < time {
        // The clock is looked at once for many short messages.
        for _ in 0..(1 << 16) / message.len() {
            stream.write_all(message)?;
            sent += message.len() as u64;
        }
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut count = [0; 8];
    stream.read_exact(&mut count)?;
    let seconds = start.elapsed().as_secs_f64();
    let got = u64::from_ne_bytes(count);
    ensure!(got == sent, "{got} of {sent} bytes arrived");
    Ok(sent as f64 / seconds)
}

fn connections(address: SocketAddr, time: Duration) -> Result<f64> {
    let (start, mut count) = (Instant::now(), 0u32);
    while start.elapsed() < time {
        let mut stream = TcpStream::connect(address).with_context(|| format!("connection {count}"))?;
        let mut byte = [BYTE];
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        // Closed by a reset: the kernel's ports, of which there are few, must not all wait in TIME-WAIT.
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        count += 1;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}
