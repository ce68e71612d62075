//! The capacity of AF_XDP alone: the bound of the veth benches. One queue, one core that spins, UDP
//! packets, no protocol work.
//!
//! `forward` returns every packet that it receives. `generate` keeps a window of packets in flight
//! to it and counts the returned ones. `blast` sends as fast as it can, and `sink` counts.
//! `generate` and `sink` print one line of JSON. With `--copies 1`, `blast` fills its packets from
//! a buffer and `sink` copies them into one, as sockets do.

mod wire;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use fs_core::{Frame, FramePool, IfaceId, Protocol, RxFrame, TxFrame};
use fs_xdp::{Link, QueueConfig, Umem, UmemConfig, UmemPool, XdpConfig, XdpDevice, XdpLink};
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use wire::{HEADERS, PORT};

/// Packets per batch, as in the runtime.
const BATCH: usize = 64;
/// 8192 chunks: the rings' 4 × 2048.
const CHUNKS: u32 = 8192;
/// Measures AF_XDP alone, with UDP packets on one queue of a device.
#[derive(Debug, Parser)]
#[command(name = "raw_xdp")]
struct Options {
    role: Role,
    /// The device. Its first queue is used.
    #[arg(long, value_name = "NAME")]
    device: String,
    /// Address of this end, at which it takes packets.
    #[arg(long, value_name = "ADDR", default_value_t = Ipv4Addr::UNSPECIFIED)]
    own: Ipv4Addr,
    /// Address of the other end.
    #[arg(long, value_name = "ADDR", default_value_t = Ipv4Addr::UNSPECIFIED)]
    to: Ipv4Addr,
    /// The device's MTU.
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: usize,
    /// Size of a packet with its IP header, at most the MTU. With 46 bytes the Ethernet frame has
    /// its smallest size.
    #[arg(long, value_name = "BYTES", default_value_t = 46)]
    size: usize,
    /// Duration of the measurement.
    #[arg(long, value_name = "N", default_value_t = 2)]
    seconds: u64,
    /// Maximum number of packets in flight for `generate`.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    window: usize,
    /// With 1, `blast` and `sink` also copy the bytes, as sockets do.
    #[arg(long, value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    copies: u8,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    /// Returns every packet that it receives.
    Forward,
    /// Counts the packets that it receives.
    Sink,
    /// Keeps a window of packets in flight to `forward`, and counts the returned ones.
    Generate,
    /// Sends as fast as it can.
    Blast,
}

fn main() -> ExitCode {
    fs_benches::run(|options: Options| run(&options).map(|()| true))
}

fn run(options: &Options) -> Result<()> {
    ensure!(
        (46..=options.mtu).contains(&options.size),
        "--size is {}: choose 46 to {} bytes (the MTU)",
        options.size,
        options.mtu
    );
    let mut port = Port::open(options)?;
    match options.role {
        Role::Forward => port.forward(),
        Role::Sink => port.sink(options),
        Role::Generate => port.generate(options),
        Role::Blast => port.blast(options),
    }
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
        device.port_table().set_addresses(&[IpAddr::V4(options.own)], &[])?;
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
                if options.copies == 1 {
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
            if options.copies == 1 {
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
