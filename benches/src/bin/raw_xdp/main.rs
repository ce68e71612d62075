//! The capacity of AF_XDP alone: the bound of the veth benches. One queue, one core that spins, UDP
//! packets, no protocol work.
//!
//! `forward` returns every packet that it receives. `generate` keeps a window of packets in flight
//! to it and counts the returned ones. `blast` sends as fast as it can, and `sink` counts.
//! `generate` and `sink` print one line of JSON. With `--copies 1`, `blast` fills its packets from
//! a buffer and `sink` copies them into one, as sockets do.

mod wire;

use anyhow::{Context, Result, ensure};
use fs_core::{Frame, FramePool, IfaceId, Protocol, RxFrame, TxFrame};
use fs_xdp::{Link, QueueConfig, Umem, UmemConfig, UmemPool, XdpConfig, XdpDevice, XdpLink};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use wire::{HEADERS, PORT};

/// Packets per batch, as in the runtime.
const BATCH: usize = 64;
/// 8192 chunks: the rings' 4 × 2048.
const CHUNKS: u32 = 8192;
const USAGE: &str = "usage: raw_xdp forward|sink|generate|blast --device NAME --own ADDR [--to ADDR] [--mtu BYTES] \
                     [--size BYTES] [--seconds N] [--window N] [--copies 0|1]";

struct Options {
    device: String,
    own: Ipv4Addr,
    to: Ipv4Addr,
    mtu: usize,
    size: usize,
    seconds: u64,
    window: usize,
    copies: bool,
}

fn main() -> ExitCode {
    fs_benches::run(USAGE, |words| run(words).map(|()| true))
}

fn run(words: Vec<String>) -> Result<()> {
    let mut words = words.into_iter();
    let role = words.next().context(USAGE)?;
    let options = options(words)?;
    let mut port = Port::open(&options)?;
    match role.as_str() {
        "forward" => port.forward(),
        "sink" => port.sink(&options),
        "generate" => port.generate(&options),
        "blast" => port.blast(&options),
        _ => anyhow::bail!(USAGE),
    }
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Options> {
    let mut given = HashMap::new();
    while let Some(key) = words.next() {
        let name = key.strip_prefix("--").context(USAGE)?.to_owned();
        ensure!(
            ["device", "own", "to", "mtu", "size", "seconds", "window", "copies"].contains(&name.as_str()),
            "unknown option {key}; {USAGE}"
        );
        given.insert(name, words.next().context(USAGE)?);
    }
    let number = |name: &str, default: usize| {
        given.get(name).map_or(Ok(default), |text| text.parse().with_context(|| format!("--{name} {text}")))
    };
    let address = |name: &str| given.get(name).map_or(Ok(Ipv4Addr::UNSPECIFIED), |text| text.parse()).context(USAGE);
    let options = Options {
        device: given.get("device").context(USAGE)?.clone(),
        own: address("own")?,
        to: address("to")?,
        mtu: number("mtu", 1500)?,
        size: number("size", 46)?,
        seconds: number("seconds", 2)? as u64,
        window: number("window", 1024)?,
        copies: number("copies", 0)? != 0,
    };
    // With 46 bytes of IP the Ethernet frame has its smallest size, 60 bytes.
    ensure!((46..=options.mtu).contains(&options.size), "--size: 46 to the MTU");
    Ok(options)
}

/// Bytes per write or read of an application, as in `fs-loadgen` and `fs-echo`.
const BUFFER: usize = 64 << 10;

/// A queue with its pool and batches.
struct Port {
    link: XdpLink,
    pool: UmemPool,
    rx: Vec<RxFrame>,
    tx: Vec<TxFrame>,
    /// The application's buffer, and the position in it.
    buffer: Vec<u8>,
    at: usize,
    _device: XdpDevice,
}

impl Port {
    fn open(options: &Options) -> Result<Port> {
        let device = XdpDevice::attach(&options.device, XdpConfig::default())?;
        device.port_table().add_local(Protocol::Udp, IpAddr::V4(options.own), PORT)?;
        let chunk_size = if options.mtu > 1500 { 4096 } else { 2048 };
        let umem = Umem::new(UmemConfig { chunks: CHUNKS, chunk_size })?;
        let mut pool = umem.pool(CHUNKS)?;
        let link = device.open_queue(0, &umem, &mut pool, QueueConfig::default())?;
        let (rx, tx) = (Vec::with_capacity(BATCH * 4), Vec::with_capacity(BATCH * 4));
        Ok(Port { link, pool, rx, tx, buffer: vec![1; BUFFER], at: 0, _device: device })
    }

    /// Returns the application's next `n` bytes.
    fn buffer(&mut self, n: usize) -> std::ops::Range<usize> {
        let begin = if self.at + n > BUFFER { 0 } else { self.at };
        self.at = begin + n;
        begin..self.at
    }

    /// Returns packets until the process is killed.
    fn forward(&mut self) -> Result<()> {
        loop {
            self.link.rx(&mut self.pool, IfaceId(0), &mut self.rx, BATCH);
            let mut first = true;
            for received in self.rx.drain(..) {
                let mut frame = received.frame;
                if first {
                    wire::turn_around(self.pool.bytes_mut(&mut frame));
                }
                first = !frame.more();
                self.tx.push(TxFrame { frame, checksum: None });
            }
            if self.tx.is_empty() {
                std::hint::spin_loop();
            } else {
                self.link.tx(&mut self.pool, &mut self.tx)?;
            }
        }
    }

    /// Counts from the first packet for the given time.
    fn sink(&mut self, options: &Options) -> Result<()> {
        let mut started: Option<Instant> = None;
        let (mut packets, mut bytes) = (0_u64, 0_u64);
        let span = Duration::from_secs(options.seconds);
        while started.is_none_or(|at| at.elapsed() < span) {
            let n = self.link.rx(&mut self.pool, IfaceId(0), &mut self.rx, BATCH);
            if n > 0 {
                started.get_or_insert_with(Instant::now);
            }
            packets += n as u64;
            let mut frames = std::mem::take(&mut self.rx);
            for RxFrame { frame, .. } in frames.drain(..) {
                bytes += frame.len() as u64;
                if options.copies {
                    let range = self.buffer(frame.len());
                    self.buffer[range].copy_from_slice(self.pool.bytes(&frame));
                }
                self.pool.free(frame);
            }
            self.rx = frames;
        }
        // Marks the copies as used, so that the compiler keeps them.
        std::hint::black_box(&self.buffer);
        print(packets, bytes, options.seconds as f64);
        Ok(())
    }

    /// Keeps a window in flight. Replaces lost packets after a pause without returned ones.
    fn generate(&mut self, options: &Options) -> Result<()> {
        let started = Instant::now();
        let span = Duration::from_secs(options.seconds);
        let (mut under_way, mut returned, mut bytes) = (0_usize, 0_u64, 0_u64);
        let mut last = started;
        loop {
            let now = Instant::now();
            if now - started >= span {
                break;
            }
            if now - last > Duration::from_millis(20) {
                under_way = 0;
                last = now;
            }
            let n = self.link.rx(&mut self.pool, IfaceId(0), &mut self.rx, BATCH);
            if n > 0 {
                last = now;
                returned += n as u64;
                under_way = under_way.saturating_sub(n);
            }
            for received in self.rx.drain(..) {
                bytes += received.frame.len() as u64;
                self.pool.free(received.frame);
            }
            while under_way < options.window && self.tx.len() < BATCH && self.push(options) {
                under_way += 1;
            }
            self.link.tx(&mut self.pool, &mut self.tx)?;
        }
        print(returned, bytes, started.elapsed().as_secs_f64());
        Ok(())
    }

    fn blast(&mut self, options: &Options) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(options.seconds) {
            while self.tx.len() < BATCH && self.push(options) {}
            self.link.tx(&mut self.pool, &mut self.tx)?;
        }
        Ok(())
    }

    /// Adds a packet to the transmit batch. Returns `false` if the pool is empty.
    fn push(&mut self, options: &Options) -> bool {
        let mut left = HEADERS + options.size - wire::IP_UDP;
        let mut chain: Vec<Frame> = Vec::new();
        while left > 0 {
            let Some(mut frame) = self.pool.alloc() else {
                chain.into_iter().for_each(|frame| self.pool.free(frame));
                return false;
            };
            let n = left.min(self.pool.payload_room());
            frame.grow_back(n);
            left -= n;
            frame.set_more(left > 0);
            if chain.is_empty() {
                wire::write(self.pool.bytes_mut(&mut frame), options.own, options.to, options.size);
            }
            if options.copies {
                let headers = if chain.is_empty() { HEADERS } else { 0 };
                let range = self.buffer(n - headers);
                self.pool.bytes_mut(&mut frame)[headers..].copy_from_slice(&self.buffer[range]);
            }
            chain.push(frame);
        }
        self.tx.extend(chain.into_iter().map(|frame| TxFrame { frame, checksum: None }));
        true
    }
}

fn print(packets: u64, bytes: u64, seconds: f64) {
    println!("{{\"packets\":{packets},\"bytes\":{bytes},\"seconds\":{seconds:.6}}}");
}
