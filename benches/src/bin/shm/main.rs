//! Shared-memory sockets, compared with a raw shared-memory ping-pong and with the kernel's loopback
//! TCP in one run.
//!
//! Two processes of this program are each pinned to a core (two cores, or both on one). Figures of
//! short exchanges are medians of batches, so that a batch with other load does not count.
//!
//! usage: shm [--quick] [--dry-run] | shm measure round-trip|one-way channel|tcp|unix|pipe|ring|pages
//! BYTES HERE,THERE MS
//!
//! `measure` prints one figure for cargo xtask experiments: ns of a round trip, or messages per second one way.
//! `ring` is a raw ring of one producer and one consumer with the same bytes. `pages` (one way) is the
//! cost of moving their pages instead.

mod pages_unsafe;
mod raw_unsafe;

use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{self, Goal, Row};
use fs_example_common::sys::pin_to_cpu;
use fs_shm::{Arena, Channel, Errno, Geometry, Interest, NoBells, OpenArgs, Side, Wait, WaitEnd};
use pages_unsafe::Pages;
use raw_unsafe::{Raw, Ring};

/// As that of the library's blocking send (crates/fs-socket/src/stream/mod.rs).
const NEAR: Duration = Duration::from_millis(1);

fn main() -> Result<()> {
    raw_unsafe::tell_threads();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => report(false),
        ["--quick"] => report(true),
        ["--dry-run"] | ["--quick", "--dry-run"] => Ok(()),
        ["measure", work, transport, bytes, cores, ms] => {
            let (here, there) = cores.split_once(',').context("CPUs are HERE,THERE")?;
            let cores = (here.parse()?, there.parse()?);
            let figure = measure(work, transport, bytes.parse()?, cores, Duration::from_millis(ms.parse()?))?;
            println!("{figure:.1}");
            Ok(())
        }
        ["server", work, transport, core, path, count, len] => {
            pin_to_cpu(core.parse()?)?;
            serve(work, transport, path, count.parse()?, len.parse()?)
        }
        _ => bail!("usage: shm [--quick] [--dry-run] | shm measure round-trip|one-way TRANSPORT BYTES HERE,THERE MS"),
    }
}

fn report(quick: bool) -> Result<()> {
    ensure!(std::thread::available_parallelism()?.get() >= 2, "two cores are needed");
    // A round is forty batches of any duration: well below a second.
    let plan = Plan { rounds: if quick { 1 } else { 5 }, seconds: 1 };
    let mut rows = Vec::new();
    for (name, cores) in [("two cores", (0, 1)), ("one core", (0, 0))] {
        rows.extend(round_trips(&plan, name, cores)?);
        for (what, len, batch, unit, one) in
            [("8-byte messages", 8, 512 << 10, "million/s", 8e6), ("64 KiB messages", 65536, 32 << 20, "GB/s", 1e9)]
        {
            let figures = in_turns(&plan, &["channel", "tcp"], |transport| {
                // Fewer bytes in the kernel's batches of short messages, for equal duration.
                let batch = if transport == "tcp" && len == 8 { batch / 16 } else { batch };
                Ok(one_way(transport, cores, len, batch, 10)? / one)
            })?;
            let goal = Goal::AtLeast(match (cores.0 == cores.1, len) {
                (true, _) => 1.0,
                (false, 8) => 10.0,
                (false, _) => 2.0,
            });
            rows.push(Row::new(&format!("{what} one way, {name}"), unit, &figures[0], "kernel", &figures[1], goal));
        }
    }
    println!("{}", report::table(&rows));
    let path = fs_tests::apps::target_dir().join("bench/shm.json");
    std::fs::create_dir_all(path.parent().context("a folder")?)?;
    report::save(&path, &rows, &plan)?;
    println!("results: {}", path.display());
    Ok(())
}

/// Returns one figure of messages of `len` bytes: the median of batches of about a hundredth of the
/// time.
fn measure(work: &str, transport: &str, len: usize, cores: (usize, usize), time: Duration) -> Result<f64> {
    ensure!((8..=1 << 24).contains(&len), "messages of 8 bytes to 16 MiB");
    match work {
        "round-trip" => {
            let once = round_trip_of(len, transport, cores, 10, 10)?;
            let batch = (time.as_nanos() as f64 / 40.0 / once.max(1.0)).clamp(1.0, 1e6) as u32;
            round_trip_of(len, transport, cores, batch, 40)
        }
        "one-way" => {
            let least = (len as u64).max(1 << 16);
            let rate = one_way(transport, cores, len, least.next_multiple_of(len as u64), 4)?;
            let batch = (rate * time.as_secs_f64() / 10.0) as u64;
            let batch = batch.max(least).next_multiple_of(len as u64);
            Ok(one_way(transport, cores, len, batch, 10)? / len as f64)
        }
        other => bail!("{other}: round-trip or one-way"),
    }
}

/// Compares with raw shared memory, if each side has a core to spin on, and with the kernel.
fn round_trips(plan: &Plan, name: &str, cores: (usize, usize)) -> Result<Vec<Row>> {
    let two = cores.0 != cores.1;
    let transports: &[&str] = if two { &["channel", "tcp", "raw"] } else { &["channel", "tcp"] };
    let figures = in_turns(plan, transports, |transport| {
        let batch = if two && transport != "tcp" { 1000 } else { 100 };
        round_trip(transport, cores, batch, 40)
    })?;
    let what = format!("8-byte round trip, {name}");
    let goal = Goal::AtMost(if two { 1.0 / 20.0 } else { 1.0 });
    let mut rows = vec![Row::new(&what, "ns", &figures[0], "kernel", &figures[1], goal)];
    if let Some(raw) = figures.get(2) {
        rows.push(Row::new(&what, "ns", &figures[0], "raw memory", raw, Goal::AtMost(1.3)));
    }
    Ok(rows)
}

/// Returns the median of the batches' mean round trip, in ns.
fn round_trip(transport: &str, cores: (usize, usize), batch: u32, batches: usize) -> Result<f64> {
    round_trip_of(8, transport, cores, batch, batches)
}

/// As [`round_trip`], with messages of `len` bytes.
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
            let name = std::env::temp_dir().join(format!("fs-shm-{}", std::process::id()));
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
        _ => {
            let (shared, locks) = path.split_once(',').context("memory and locks")?;
            let arena = map([open(shared)?.as_fd(), open(locks)?.as_fd()], Side::B)?;
            println!("ready");
            while arena.pending() == 0 {
                arena.wait_inbox(Wait::default());
            }
            End::Channel(Channel::accept(arena).context("no client connects")?)
        }
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
    Channel(Channel<'static>),
    Tcp(TcpStream),
    Unix(UnixStream),
    Pipe(File, File),
}

impl End {
    fn send(&mut self, mut message: &[u8]) -> Result<()> {
        match self {
            End::Raw(raw) => raw.send(),
            End::Ring(ring) => ring.send(message),
            End::Pages(pages) => pages.send()?,
            End::Unix(stream) => stream.write_all(message)?,
            End::Pipe(_, write) => write.write_all(message)?,
            End::Channel(channel) => {
                // As a blocking send does: waits briefly for the reader before it takes a large
                // ring.
                let mut near = true;
                while !message.is_empty() {
                    let bufs = [IoSlice::new(message)];
                    match if near { channel.send_near(&bufs) } else { channel.send(&bufs) } {
                        Ok(n) if n == message.len() => break,
                        Ok(n) => message = &message[n..],
                        Err(Errno::AGAIN) => {}
                        Err(errno) => bail!("send: {errno}"),
                    }
                    if near {
                        let deadline = Instant::now().checked_add(NEAR);
                        near = channel.wait(Interest::Room, Wait { deadline, ..Wait::default() }) == WaitEnd::Ready;
                    } else {
                        channel.wait(Interest::Write, Wait::default());
                        near = true;
                    }
                }
            }
            End::Tcp(stream) => stream.write_all(message)?,
        }
        Ok(())
    }

    fn receive(&mut self, message: &mut [u8]) -> Result<()> {
        match self {
            End::Raw(raw) => raw.receive(),
            End::Pages(pages) => pages.confirmed(),
            End::Channel(_) | End::Ring(_) => {
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
            End::Channel(channel) => loop {
                match channel.recv_one(buf) {
                    Ok(n) => return Ok(n),
                    Err(Errno::AGAIN) => drop(channel.wait(Interest::Read, Wait::default())),
                    Err(errno) => bail!("recv: {errno}"),
                }
            },
            End::Tcp(stream) => Ok(stream.read(buf)?),
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        match self {
            // Fails only for a close by a signal handler.
            End::Channel(channel) => drop(channel.close(false)),
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
    let arena = if transport == "channel" { Some(Arena::create("bench", Geometry::STANDARD)?) } else { None };
    let path = match (&memory, &arena, &pipes) {
        (_, Some(arena), _) => arena.of(Side::B).map(name).join(","),
        (Some(memory), ..) => name(memory.as_fd()),
        (_, _, Some((there, back))) => format!("{},{}", name(there.0.as_fd()), name(back.1.as_fd())),
        (None, None, None) => String::new(),
    };
    let mut child = Command::new(std::env::current_exe()?)
        .args(["server", work, transport, &there.to_string(), &path, &count.to_string(), &len.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
    let end = match (transport, memory) {
        ("channel", _) => {
            let arena = arena.context("no arena")?;
            End::Channel(Channel::open(map(arena.of(Side::A), Side::A)?, &OpenArgs::default())?)
        }
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

fn map(memory: [BorrowedFd<'_>; 2], side: Side) -> Result<&'static Arena> {
    Ok(Box::leak(Box::new(Arena::map(memory, Geometry::STANDARD, side, &NoBells)?)))
}
