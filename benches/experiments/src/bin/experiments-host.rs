//! Programs of one host on blocking `std` streams, which run unmodified or with libfastsock.so, for
//! SocksDirect's experiments.

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser};
use fs_benches::parts::median;
use std::io::{BufReader, BufWriter, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// Bytes of a packet in the chain.
const PACKET: usize = 64;
/// Round trips per time measurement.
const BATCH: usize = 100;

/// The first four bytes of a connection, before its number and the length of its messages.
const WAY: u32 = 1;
const TRIP: u32 = 2;

/// Runs one of two or more programs of one host on blocking std streams. AT, FROM and TO are each
/// ADDRESS:PORT, the path of a Unix socket, or `-` for standard input and output.
#[derive(Debug, Parser)]
#[command(name = "experiments-host")]
enum Role {
    /// Serves `way` and `trip` on some connections. Prints "ready" once it listens.
    Serve { at: String, connections: usize },
    /// Prints the messages per second one way, on all connections in turn.
    Way {
        at: String,
        connections: usize,
        bytes: usize,
        /// Duration in milliseconds.
        ms: u64,
        /// Start, in milliseconds since 1970.
        begin: u64,
    },
    /// Prints the ns of a round trip, on all connections in turn: the median of batches of 100.
    Trip {
        at: String,
        connections: usize,
        bytes: usize,
        /// Duration in milliseconds.
        ms: u64,
    },
    /// Sends packets.
    Source {
        to: String,
        #[command(flatten)]
        buffer: Buffer,
        /// Duration in milliseconds.
        ms: u64,
    },
    /// Counts packets and forwards them, as a network function. Prints "ready" once it listens.
    Function {
        from: String,
        to: String,
        #[command(flatten)]
        buffer: Buffer,
    },
    /// Prints the packets per second from the first to the last. Prints "ready" once it listens.
    Sink {
        from: String,
        #[command(flatten)]
        buffer: Buffer,
    },
}

#[derive(Clone, Copy, Debug, Args)]
struct Buffer {
    /// Number of packets in the buffer of a read or a write.
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    packets: u32,
}

impl Buffer {
    fn bytes(self) -> usize {
        self.packets as usize * PACKET
    }
}

fn main() -> ExitCode {
    fs_benches::run(|role: Role| role.run().map(|()| true))
}

impl Role {
    fn run(&self) -> Result<()> {
        let time = Duration::from_millis;
        match self {
            Role::Serve { at, connections } => serve(at, *connections)?,
            Role::Way { at, connections: count, bytes, ms, begin } => {
                let streams = connections(at, *count, WAY, *bytes)?;
                // Pairs that are measured together begin together.
                let left = (SystemTime::UNIX_EPOCH + time(*begin)).duration_since(SystemTime::now());
                std::thread::sleep(left.context("the time to begin is over")?);
                println!("{:.0}", way(streams, *bytes, time(*ms))?);
            }
            Role::Trip { at, connections, bytes, ms } => {
                println!("{:.0}", trip(at, *connections, *bytes, time(*ms))?);
            }
            Role::Source { to, buffer, ms } => source(connect(to)?, buffer.bytes(), time(*ms))?,
            Role::Function { from, to, buffer } => {
                let listener = listen(from)?;
                let next = connect(to)?;
                function(accept(listener)?, next, buffer.bytes())?;
            }
            Role::Sink { from, buffer } => {
                let listener = listen(from)?;
                println!("{:.0}", sink(accept(listener)?, buffer.bytes())?);
            }
        }
        Ok(())
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
    Standard,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Standard input and output, without the buffers and locks of `std::io`.
    Standard(std::fs::File),
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buf),
            Stream::Unix(stream) => stream.read(buf),
            Stream::Standard(file) => file.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(buf),
            Stream::Unix(stream) => stream.write(buf),
            Stream::Standard(file) => file.write(buf),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Stream {
    fn end_writing(&self) -> std::io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
            Stream::Standard(_) => Ok(()),
        }
    }
}

fn listen(at: &str) -> Result<Listener> {
    let listener = match at {
        "-" => return Ok(Listener::Standard),
        path if path.starts_with('/') => Listener::Unix(UnixListener::bind(path).with_context(|| at.to_owned())?),
        address => Listener::Tcp(TcpListener::bind(address).with_context(|| at.to_owned())?),
    };
    println!("ready");
    Ok(listener)
}

fn accept_one(listener: &Listener) -> Result<Stream> {
    Ok(match listener {
        Listener::Standard => Stream::Standard(std::fs::File::open("/dev/stdin")?),
        Listener::Unix(listener) => Stream::Unix(listener.accept()?.0),
        Listener::Tcp(listener) => {
            let stream = listener.accept()?.0;
            stream.set_nodelay(true)?;
            Stream::Tcp(stream)
        }
    })
}

fn accept(listener: Listener) -> Result<Stream> {
    accept_one(&listener)
}

fn connect(to: &str) -> Result<Stream> {
    Ok(match to {
        "-" => Stream::Standard(std::fs::OpenOptions::new().write(true).open("/dev/stdout")?),
        path if path.starts_with('/') => Stream::Unix(UnixStream::connect(path).with_context(|| to.to_owned())?),
        address => {
            let stream = TcpStream::connect(address).with_context(|| to.to_owned())?;
            stream.set_nodelay(true)?;
            Stream::Tcp(stream)
        }
    })
}

/// Opens a client's connections and sends each its kind.
fn connections(at: &str, count: usize, kind: u32, bytes: usize) -> Result<Vec<Stream>> {
    ensure!(count > 0, "0 connections: choose at least one");
    ensure!((1..=1 << 24).contains(&bytes), "messages of {bytes} bytes: choose 1 byte to 16 MiB");
    fs_stacks::usage::raise_open_files(1 << 16)?;
    let one = |number: usize| {
        let mut stream = connect(at).with_context(|| format!("connection {number}"))?;
        let head = [kind, number as u32, bytes as u32].map(u32::to_ne_bytes).concat();
        stream.write_all(&head)?;
        Ok(stream)
    };
    (0..count).map(one).collect()
}

/// Serves one client: reads its connections in the order in which the client uses them.
fn serve(at: &str, count: usize) -> Result<()> {
    fs_stacks::usage::raise_open_files(1 << 16)?;
    let listener = listen(at)?;
    let mut streams = Vec::new();
    let (mut kind, mut bytes) = (0, 0);
    while streams.len() < count {
        let mut stream = accept_one(&listener)?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        (kind, bytes) = (word(0), word(8) as usize);
        streams.push((word(4), stream));
    }
    streams.sort_by_key(|(number, _)| *number);
    let mut message = vec![0; bytes.min(1 << 24)];
    let mut messages = 0u64;
    'all: loop {
        for (_, stream) in &mut streams {
            if stream.read_exact(&mut message).is_err() {
                break 'all;
            }
            messages += 1;
            if kind == TRIP {
                stream.write_all(&message)?;
            }
        }
    }
    if kind == WAY {
        streams[0].1.write_all(&messages.to_ne_bytes())?;
    }
    Ok(())
}

/// Returns messages per second, from the first message until the server has acknowledged the last.
fn way(mut streams: Vec<Stream>, bytes: usize, time: Duration) -> Result<f64> {
    let count = streams.len();
    let message = vec![7; bytes];
    let (start, mut sent) = (Instant::now(), 0u64);
    while start.elapsed() < time {
        // One clock reading for many messages.
        for _ in 0..1024usize.div_ceil(count) {
            for stream in &mut streams {
                stream.write_all(&message)?;
            }
            sent += count as u64;
        }
    }
    streams.iter().try_for_each(Stream::end_writing)?;
    let mut got = [0; 8];
    streams[0].read_exact(&mut got)?;
    let seconds = start.elapsed().as_secs_f64();
    let got = u64::from_ne_bytes(got);
    ensure!(got == sent, "{got} of {sent} messages arrived");
    Ok(sent as f64 / seconds)
}

fn trip(at: &str, count: usize, bytes: usize, time: Duration) -> Result<f64> {
    let mut streams = connections(at, count, TRIP, bytes)?;
    let (mut message, mut batches, mut next) = (vec![1; bytes], Vec::new(), 0);
    let start = Instant::now();
    while start.elapsed() < time {
        let batch = Instant::now();
        for _ in 0..BATCH {
            let stream = &mut streams[next];
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
            next = (next + 1) % count;
        }
        batches.push(batch.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    Ok(median(batches))
}

fn source(to: Stream, room: usize, time: Duration) -> Result<()> {
    let mut to = BufWriter::with_capacity(room, to);
    let (start, mut packet, mut sent) = (Instant::now(), [0; PACKET], 0u64);
    while start.elapsed() < time {
        for _ in 0..1024 {
            packet[..8].copy_from_slice(&sent.to_ne_bytes());
            to.write_all(&packet)?;
            sent += 1;
        }
    }
    to.flush()?;
    to.get_ref().end_writing()?;
    // Stays open until the peer has read everything: a reset would discard bytes in flight.
    if !matches!(to.get_ref(), Stream::Standard(_)) {
        let _end = to.get_mut().read(&mut packet);
    }
    Ok(())
}

/// Reads the next packet. Returns `false` at the end of the stream.
fn receive(from: &mut impl Read, packet: &mut [u8; PACKET]) -> Result<bool> {
    match from.read_exact(packet) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn function(from: Stream, to: Stream, room: usize) -> Result<()> {
    let (mut from, mut to) = (BufReader::with_capacity(room, from), BufWriter::with_capacity(room, to));
    let (mut packet, mut packets, mut sum) = ([0; PACKET], 0u64, 0u64);
    while receive(&mut from, &mut packet)? {
        packets += 1;
        sum = sum.wrapping_add(u64::from(packet[0]));
        to.write_all(&packet)?;
    }
    to.flush()?;
    to.get_ref().end_writing()?;
    if !matches!(to.get_ref(), Stream::Standard(_)) {
        let _end = to.get_mut().read(&mut packet);
    }
    eprintln!("{packets} packets, {sum}");
    Ok(())
}

fn sink(from: Stream, room: usize) -> Result<f64> {
    let mut from = BufReader::with_capacity(room, from);
    let (mut packet, mut packets) = ([0; PACKET], 0u64);
    ensure!(receive(&mut from, &mut packet)?, "no packet came");
    let start = Instant::now();
    while receive(&mut from, &mut packet)? {
        packets += 1;
        let number = u64::from_ne_bytes([
            packet[0], packet[1], packet[2], packet[3], packet[4], packet[5], packet[6], packet[7],
        ]);
        ensure!(number == packets, "packet {number} came as {packets}");
    }
    Ok(packets as f64 / start.elapsed().as_secs_f64())
}
