//! Transports to compare a connection between two processes of one host with: raw memory, AF_UNIX,
//! pipes, loopback TCP, and pages that are moved.
//!
//! Two processes of this program are each pinned to a core (two cores, or both on one). Figures of
//! short exchanges are medians of batches, so that a batch with other load does not count.

mod pages_unsafe;
mod raw_unsafe;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use fs_stacks::sys::pin_to_cpu;
use pages_unsafe::Pages;
use raw_unsafe::{Raw, Ring};

/// Measures a transport between two processes of one host, and prints one figure.
#[derive(Debug, Parser)]
#[command(name = "transports")]
enum Arguments {
    /// Prints the ns of a round trip.
    RoundTrip(Measurement),
    /// Prints the messages per second one way.
    OneWay(Measurement),
    /// The other process, for the first.
    #[command(hide = true)]
    Server { work: String, transport: String, core: usize, path: String, count: u64, len: usize },
}

#[derive(Debug, clap::Args)]
struct Measurement {
    /// `ring` is a ring of one producer and one consumer. `raw` (round trip only) is two counters
    /// in shared memory. `pages` (one way only) moves the messages' pages.
    #[arg(value_parser = ["raw", "tcp", "unix", "pipe", "ring", "pages"])]
    transport: String,
    /// Length of a message: 8 bytes to 16 MiB.
    #[arg(value_parser = clap::value_parser!(u64).range(8..=1 << 24))]
    bytes: u64,
    /// CPUs of the two processes; both may be the same.
    #[arg(value_name = "HERE,THERE", value_parser = cpus)]
    cpus: (usize, usize),
    /// Approximate duration in milliseconds.
    ms: u64,
}

/// Parses the CPUs of two processes.
fn cpus(text: &str) -> Result<(usize, usize), String> {
    let (here, there) = text.split_once(',').ok_or("give two numbers with a comma, such as 0,1")?;
    let number = |text: &str| text.parse().map_err(|error| format!("{text}: {error}"));
    Ok((number(here)?, number(there)?))
}

fn main() -> Result<()> {
    let (is_one_way, measurement) = match Arguments::parse() {
        Arguments::Server { work, transport, core, path, count, len } => {
            pin_to_cpu(core)?;
            return serve(&work, &transport, &path, count, len);
        }
        Arguments::RoundTrip(measurement) => (false, measurement),
        Arguments::OneWay(measurement) => (true, measurement),
    };
    let Measurement { transport, bytes, cpus, ms } = measurement;
    let figure = measure(is_one_way, &transport, bytes as usize, cpus, Duration::from_millis(ms))?;
    println!("{figure:.1}");
    Ok(())
}

/// Returns one figure of messages of `len` bytes: the median of batches of about a hundredth of the
/// time.
fn measure(is_one_way: bool, transport: &str, len: usize, cores: (usize, usize), time: Duration) -> Result<f64> {
    if !is_one_way {
        let once = round_trip_of(len, transport, cores, 10, 10)?;
        let batch = (time.as_nanos() as f64 / 40.0 / once.max(1.0)).clamp(1.0, 1e6) as u32;
        return round_trip_of(len, transport, cores, batch, 40);
    }
    let least = (len as u64).max(1 << 16);
    let rate = one_way(transport, cores, len, least.next_multiple_of(len as u64), 4)?;
    let batch = (rate * time.as_secs_f64() / 10.0) as u64;
    let batch = batch.max(least).next_multiple_of(len as u64);
    Ok(one_way(transport, cores, len, batch, 10)? / len as f64)
}

/// Returns the median of the batches' mean round trip of `len` bytes, in ns.
fn round_trip_of(len: usize, transport: &str, cores: (usize, usize), batch: u32, batches: usize) -> Result<f64> {
    let count = u64::from(batch) * (batches as u64 + 1);
    let (mut end, server) = start("echo", transport, cores, count, len)?;
    let mut times = Vec::with_capacity(batches);
    let mut message = vec![0; len];
    for round in 0..=batches {
        let begin = Instant::now();
        for _ in 0..batch {
            end.send(&message)?;
            end.receive(&mut message)?;
        }
        if round != 0 {
            times.push(begin.elapsed().as_nanos() as f64 / f64::from(batch));
        }
    }
    finish(end, server)?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Returns the median of the batches' bytes per second. A batch lasts from its first byte until the
/// reader has confirmed its last.
fn one_way(transport: &str, cores: (usize, usize), len: usize, batch: u64, batches: usize) -> Result<f64> {
    let (mut end, server) = start("sink", transport, cores, batch, len)?;
    let message = vec![7; len];
    let mut rates = Vec::with_capacity(batches);
    for round in 0..=batches {
        let begin = Instant::now();
        for _ in 0..batch / len as u64 {
            end.send(&message)?;
        }
        end.receive(&mut [0; 8])?;
        if round != 0 {
            rates.push(batch as f64 / begin.elapsed().as_secs_f64());
        }
    }
    finish(end, server)?;
    rates.sort_by(f64::total_cmp);
    Ok(rates[rates.len() / 2])
}

fn serve(work: &str, transport: &str, path: &str, count: u64, len: usize) -> Result<()> {
    let mut end = match transport {
        "tcp" => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            println!("{}", listener.local_addr()?);
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            End::Tcp(stream)
        }
        "unix" => {
            let name = std::env::temp_dir().join(format!("fs-transports-{}", std::process::id()));
            let listener = UnixListener::bind(&name)?;
            println!("{}", name.display());
            let (stream, _) = listener.accept()?;
            std::fs::remove_file(&name)?;
            End::Unix(stream)
        }
        "pipe" => {
            let (read, write) = path.split_once(',').context("two pipes")?;
            let ends = (File::open(read)?, File::options().write(true).open(write)?);
            println!("ready");
            End::Pipe(ends.0, ends.1)
        }
        "raw" => {
            // Mapped first: the peer closes the descriptor of this path.
            let raw = Raw::map(open(path)?, 1)?;
            println!("ready");
            End::Raw(raw)
        }
        "ring" => {
            let ring = Ring::map(open(path)?, 1)?;
            println!("ready");
            End::Ring(ring)
        }
        "pages" => {
            let pages = Pages::map(open(path)?.into(), len, 1)?;
            println!("ready");
            End::Pages(pages)
        }
        other => bail!("no transport {other}"),
    };
    match work {
        "echo" => {
            let mut message = vec![0; len];
            for _ in 0..count {
                end.receive(&mut message)?;
                end.send(&message)?;
            }
        }
        _ => {
            // Receives batches of `count` bytes and confirms each, until the peer closes.
            let mut buf = vec![0; 65536];
            loop {
                let mut left = count;
                while left > 0 {
                    match end.receive_some(&mut buf)? {
                        0 => return Ok(()),
                        n => left = left.saturating_sub(n as u64),
                    }
                }
                end.send(&[1; 8])?;
            }
        }
    }
    // Waits until the peer has finished with it.
    end.receive_some(&mut [0; 8])?;
    Ok(())
}

/// One end of a transport.
enum End {
    Raw(Raw),
    Ring(Ring),
    Pages(Pages),
    Tcp(TcpStream),
    Unix(UnixStream),
    Pipe(File, File),
}

impl End {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        match self {
            End::Raw(raw) => raw.send(),
            End::Ring(ring) => ring.send(message),
            End::Pages(pages) => pages.send()?,
            End::Unix(stream) => stream.write_all(message)?,
            End::Pipe(_, write) => write.write_all(message)?,
            End::Tcp(stream) => stream.write_all(message)?,
        }
        Ok(())
    }

    fn receive(&mut self, message: &mut [u8]) -> Result<()> {
        match self {
            End::Raw(raw) => raw.receive(),
            End::Pages(pages) => pages.confirmed(),
            End::Ring(_) => {
                let mut done = 0;
                while done < message.len() {
                    match self.receive_some(&mut message[done..])? {
                        0 => bail!("the other side has closed"),
                        n => done += n,
                    }
                }
            }
            End::Tcp(stream) => stream.read_exact(message)?,
            End::Unix(stream) => stream.read_exact(message)?,
            End::Pipe(read, _) => read.read_exact(message)?,
        }
        Ok(())
    }

    fn receive_some(&mut self, buf: &mut [u8]) -> Result<usize> {
        match self {
            End::Raw(_) => Ok(0),
            End::Ring(ring) => Ok(ring.receive(buf)),
            End::Pages(pages) => pages.receive(),
            End::Unix(stream) => Ok(stream.read(buf)?),
            End::Pipe(read, _) => Ok(read.read(buf)?),
            End::Tcp(stream) => Ok(stream.read(buf)?),
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        match self {
            End::Ring(ring) => ring.close(),
            End::Pages(pages) => pages.close(),
            _ => {}
        }
    }
}

/// Starts this end on core `here`, and the process of the peer on `there`.
fn start(work: &str, transport: &str, (here, there): (usize, usize), count: u64, len: usize) -> Result<(End, Child)> {
    pin_to_cpu(here)?;
    // The peer opens this process's memory by its name in /proc.
    let name = |fd: BorrowedFd<'_>| format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let pipes = if transport == "pipe" { Some((pipe()?, pipe()?)) } else { None };
    let memory = match transport {
        "tcp" | "unix" | "pipe" => None,
        "ring" => Some(Ring::create()?),
        "pages" => Some(pages_unsafe::create(len)?),
        "raw" => Some(raw_unsafe::create()?),
        _ => None,
    };
    let path = match (&memory, &pipes) {
        (Some(memory), _) => name(memory.as_fd()),
        (_, Some((there, back))) => format!("{},{}", name(there.0.as_fd()), name(back.1.as_fd())),
        (None, None) => String::new(),
    };
    let mut child = Command::new(std::env::current_exe()?)
        .args(["server", work, transport, &there.to_string(), &path, &count.to_string(), &len.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
    let end = match (transport, memory) {
        ("raw", Some(memory)) => End::Raw(Raw::map(memory, 0)?),
        ("ring", Some(memory)) => End::Ring(Ring::map(memory, 0)?),
        ("pages", Some(memory)) => End::Pages(Pages::map(memory, len, 0)?),
        ("unix", _) => End::Unix(UnixStream::connect(line.trim())?),
        ("pipe", _) => {
            // The other pipe ends belong to the peer, which has opened them.
            let ((_, write), (read, _)) = pipes.context("no pipes")?;
            End::Pipe(read.into(), write.into())
        }
        _ => {
            let stream = TcpStream::connect(line.trim())?;
            stream.set_nodelay(true)?;
            End::Tcp(stream)
        }
    };
    Ok((end, child))
}

fn finish(end: End, mut server: Child) -> Result<()> {
    drop(end);
    ensure!(server.wait()?.success(), "the other process failed");
    Ok(())
}

fn open(path: &str) -> Result<File> {
    Ok(File::options().read(true).write(true).open(path)?)
}
