//! Two blocking programs on `std::net` that run unmodified or with libfastsock.so: the cost of a socket
//! of the C library, without an application. Clients print one figure.
//!
//! ```text
//! local_pair serve ADDRESS            the server of all others, one connection after another
//! local_pair round-trip ADDRESS MS    ns of a round trip of 8 bytes: the median of batches of 100
//! local_pair short ADDRESS MS         messages of 8 bytes per second, one way
//! local_pair long ADDRESS MS          bytes per second in messages of 64 KiB, one way
//! local_pair connect ADDRESS MS       connections per second: connect, one byte each way, close
//! local_pair trip:BYTES ADDRESS MS    as round-trip, with messages of BYTES bytes
//! local_pair way:BYTES ADDRESS MS     messages of BYTES bytes per second, one way
//! ```
//! An ADDRESS that begins with `/` is the path of a Unix socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fs_benches::parts::median;

const USAGE: &str =
    "usage: local_pair serve ADDRESS | (round-trip | short | long | connect | trip:BYTES | way:BYTES) ADDRESS MS";

/// The first byte of a connection, which states its purpose.
const ECHO: u8 = b'e';
const COUNT: u8 = b'c';
const BYTE: u8 = b'b';
/// An echo of messages whose size follows in four bytes.
const SIZED: u8 = b'E';

fn main() -> ExitCode {
    fs_benches::run(USAGE, |words| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let figure = match words[..] {
            ["serve", path] if path.starts_with('/') => return serve_unix(path).map(|()| true),
            ["serve", address] => return serve(address.parse()?).map(|()| true),
            ["connect", path, ms] if path.starts_with('/') => {
                unix_connections(path, Duration::from_millis(ms.parse()?))?
            }
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
            // A client closes by a reset to leave no port in TIME-WAIT.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => eprintln!("{error}"),
        }
    }
}

/// Serves connections on a Unix socket: a byte each way.
fn serve_unix(path: &str) -> Result<()> {
    let listener = std::os::unix::net::UnixListener::bind(path).with_context(|| path.to_owned())?;
    loop {
        let (mut stream, _) = listener.accept()?;
        let mut byte = [0];
        if stream.read(&mut byte)? == 1 {
            stream.write_all(&byte)?;
        }
    }
}

fn unix_connections(path: &str, time: Duration) -> Result<f64> {
    let (start, mut count) = (Instant::now(), 0u32);
    while start.elapsed() < time {
        let mut stream =
            std::os::unix::net::UnixStream::connect(path).with_context(|| format!("connection {count}"))?;
        let mut byte = [BYTE];
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        count += 1;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut kind = [0];
    if stream.read(&mut kind)? == 0 {
        return Ok(()); // A client that tests whether the server is up.
    }
    match kind[0] {
        BYTE => stream.write_all(&kind),
        ECHO | SIZED => {
            stream.set_nodelay(true)?;
            let mut len = 8u32.to_ne_bytes();
            if kind[0] == SIZED {
                stream.read_exact(&mut len)?;
            }
            let mut message = vec![0; (u32::from_ne_bytes(len) as usize).min(1 << 24)];
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
    if let Some((work, bytes)) = work.split_once(':') {
        let bytes: usize = bytes.parse().context(USAGE)?;
        ensure!((1..=1 << 24).contains(&bytes), "messages of 1 byte to 16 MiB");
        return match work {
            "trip" => {
                let mut stream = connect(address, SIZED)?;
                stream.write_all(&(bytes as u32).to_ne_bytes())?;
                round_trip(stream, bytes, time)
            }
            "way" => one_way(connect(address, COUNT)?, &vec![7; bytes], time).map(|rate| rate / bytes as f64),
            _ => bail!("{USAGE}"),
        };
    }
    match work {
        "round-trip" => round_trip(connect(address, ECHO)?, 8, time),
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

fn round_trip(mut stream: TcpStream, bytes: usize, time: Duration) -> Result<f64> {
    const BATCH: u32 = 100;
    let (mut message, mut batches) = (vec![1; bytes], Vec::new());
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

/// Returns bytes per second, from the first byte until the server has acknowledged the last.
fn one_way(mut stream: TcpStream, message: &[u8], time: Duration) -> Result<f64> {
    let (start, mut sent) = (Instant::now(), 0u64);
    while start.elapsed() < time {
        // One clock reading for many short messages.
        for _ in 0..((1 << 16) / message.len()).max(1) {
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
        // Closed by a reset: the kernel has few ports, and they must not all wait in TIME-WAIT.
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        count += 1;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}
