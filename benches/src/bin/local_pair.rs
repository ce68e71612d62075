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
//! local_pair slow ADDRESS MS          bytes per second to a reader that works for 1 µs with each KiB
//! local_pair think:US ADDRESS MS      ns of a round trip of 8 bytes, each end works for US µs before it sends
//! local_pair think-cpu:US ADDRESS MS  the same: ns of CPU of both ends for a round trip
//! local_pair sleep-cpu:US ADDRESS MS  as think-cpu, but the client sleeps for US µs, and the server replies at once
//! local_pair visits ADDRESS MS        ns of CPU of both ends for a process that connects, gets a byte, and ends
//! ```
//! An ADDRESS that begins with `/` is the path of a Unix socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fs_benches::parts::median;

const USAGE: &str = "usage: local_pair serve ADDRESS | (round-trip | short | long | connect | trip:BYTES | way:BYTES | slow | \
                     think:US | think-cpu:US | sleep-cpu:US | visits) ADDRESS MS";

/// The first byte of a connection, which states its purpose.
const ECHO: u8 = b'e';
const COUNT: u8 = b'c';
const BYTE: u8 = b'b';
/// An echo of messages whose size follows in four bytes.
const SIZED: u8 = b'E';
/// An echo of 8 bytes after some µs of work, whose number follows in four bytes.
const THINK: u8 = b't';
/// Like [`COUNT`], with work for each KiB.
const SLOW: u8 = b's';
/// The server's CPU time so far, in ns, in eight bytes.
const USED: u8 = b'u';

fn main() -> ExitCode {
    fs_benches::exit_code(run())
}

/// Parses the arguments by hand, because `visits` measures the start of this program.
fn run() -> Result<bool> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let figure = match words[..] {
        ["serve", path] if path.starts_with('/') => return serve_unix(path).map(|()| true),
        ["serve", address] => return serve(address.parse()?).map(|()| true),
        ["visit", address] => {
            let mut byte = [BYTE];
            connect(address.parse()?, BYTE)?.read_exact(&mut byte)?;
            return Ok(true);
        }
        ["connect", path, ms] if path.starts_with('/') => unix_connections(path, Duration::from_millis(ms.parse()?))?,
        [work, address, ms] => measure(work, address.parse()?, Duration::from_millis(ms.parse()?))?,
        _ => bail!("{USAGE}"),
    };
    println!("{figure:.0}");
    Ok(true)
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
        USED => stream.write_all(&cpu_ns().to_ne_bytes()),
        THINK => {
            stream.set_nodelay(true)?;
            let mut us = [0; 4];
            stream.read_exact(&mut us)?;
            let time = Duration::from_micros(u32::from_ne_bytes(us).into());
            let mut message = [0; 8];
            while stream.read_exact(&mut message).is_ok() {
                busy(time);
                stream.write_all(&message)?;
            }
            Ok(())
        }
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
                    n => {
                        count += n as u64;
                        if kind[0] == SLOW {
                            busy(Duration::from_nanos(n as u64 * 1000 / 1024));
                        }
                    }
                }
            }
        }
    }
}

/// Spins for this time.
fn busy(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Returns the CPU time of this process.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Asks the server for its CPU time.
fn server_cpu_ns(address: SocketAddr) -> Result<u64> {
    let mut ns = [0; 8];
    connect(address, USED)?.read_exact(&mut ns)?;
    Ok(u64::from_ne_bytes(ns))
}

/// Returns the time of a round trip with a peer that works for `us` before it replies, and the CPU
/// time of both ends. `pause` is what the client does before it sends.
fn think(address: SocketAddr, us: u32, time: Duration, pause: impl Fn()) -> Result<[f64; 2]> {
    let before = server_cpu_ns(address)?;
    let mut stream = connect(address, THINK)?;
    stream.write_all(&us.to_ne_bytes())?;
    let (own, start, mut trips, mut message) = (cpu_ns(), Instant::now(), 0_u32, [1; 8]);
    while start.elapsed() < time {
        pause();
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        trips += 1;
    }
    let (elapsed, own) = (start.elapsed(), cpu_ns() - own);
    drop(stream);
    let of_server = server_cpu_ns(address)? - before;
    Ok([elapsed.as_nanos() as f64, (own + of_server) as f64].map(|all| all / f64::from(trips)))
}

/// Returns the CPU time of a visit: a process of this program that ends after one byte each way, and the server.
fn visits(address: SocketAddr, time: Duration) -> Result<f64> {
    let children_ns = || -> Result<u64> {
        // utime, stime of waited-for children: the fields after the command's name, which ends with a parenthesis.
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |i: usize| fields.get(i).and_then(|field| field.parse::<u64>().ok()).context("/proc/self/stat");
        Ok((ticks(13)? + ticks(14)?) * (1_000_000_000 / rustix::param::clock_ticks_per_second()))
    };
    let (before, server, start, mut count) = (children_ns()?, server_cpu_ns(address)?, Instant::now(), 0_u32);
    let program = std::env::current_exe()?;
    while start.elapsed() < time {
        let status = Command::new(&program).args(["visit", &address.to_string()]).status()?;
        ensure!(status.success(), "visit: {status}");
        count += 1;
    }
    let all = children_ns()? - before + server_cpu_ns(address)? - server;
    Ok(all as f64 / f64::from(count))
}

fn measure(work: &str, address: SocketAddr, time: Duration) -> Result<f64> {
    if let Some((work, us)) = work.split_once(':').filter(|(work, _)| work.contains("think") || work.contains("sleep"))
    {
        let us: u32 = us.parse().context(USAGE)?;
        let pause = Duration::from_micros(us.into());
        let [ns, cpu_ns] = match work {
            "sleep-cpu" => think(address, 0, time, || std::thread::sleep(pause))?,
            _ => think(address, us, time, || busy(pause))?,
        };
        return Ok(if work == "think" { ns } else { cpu_ns });
    }
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
        "slow" => one_way(connect(address, SLOW)?, &[7; 1 << 16], time),
        "connect" => connections(address, time),
        "visits" => visits(address, time),
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
