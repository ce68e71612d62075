//! Measures the speed of links alone, without any processing of packets.
//!
//! ```text
//! raw_link send DEVICE PEER-MAC OUR-IP PEER-IP [BYTES]    sends UDP packets to port 7777, 60 bytes long by default
//! raw_link sink DEVICE                                     takes packets to UDP port 7777 at ADDRESSES, drops them
//! raw_link forward DEVICE OTHER-DEVICE                     sends what comes in on one out on the other, and back
//! ```
//!
//! Options by environment: `ADDRESSES` (destinations of the packets, separated by commas),
//! `SECONDS` (5), `BATCH` (64), `MODE` (auto, native, generic), `LINK` (xdp, packet, xsk-rs). Uses
//! one thread. Prints packets per second and system calls per packet every second.

use fs_core::{FramePool, IfaceId, Protocol, RxFrame, TxFrame};
use fs_xdp::{Link, PacketConfig, PacketLink, QueueConfig, Umem, UmemConfig, UmemPool, XdpConfig, XdpDevice, XdpMode};
use std::env;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PORT: u16 = 7777;

struct Options {
    seconds: u64,
    batch: usize,
    mode: XdpMode,
    link: String,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let number = |name: &str, default: usize| match env::var(name) {
        Ok(text) => text.parse().map_err(|error| format!("{name}={text}: {error}")),
        Err(_) => Ok(default),
    };
    Ok(Options {
        seconds: number("SECONDS", 5)? as u64,
        batch: number("BATCH", 64)?,
        mode: match env::var("MODE").as_deref() {
            Ok("native") => XdpMode::Native,
            Ok("generic") => XdpMode::Generic,
            Ok("auto") | Err(_) => XdpMode::Auto,
            Ok(other) => return Err(format!("MODE={other}: auto, native or generic").into()),
        },
        link: env::var("LINK").unwrap_or_else(|_| "xdp".to_owned()),
    })
}

/// A link, and the device that must outlive it.
type Opened = (Box<dyn Link>, Option<XdpDevice>);

fn open(name: &str, umem: &Arc<Umem>, pool: &mut UmemPool, options: &Options) -> Result<Opened, Box<dyn Error>> {
    if options.link == "packet" {
        return Ok((Box::new(PacketLink::open(name, PacketConfig::default())?), None));
    }
    let device = XdpDevice::attach(name, XdpConfig { mode: options.mode, ..XdpConfig::default() })?;
    let ports = device.port_table();
    let addresses = env::var("ADDRESSES").unwrap_or_default();
    let addresses: Vec<IpAddr> =
        addresses.split(',').filter(|text| !text.is_empty()).map(str::parse).collect::<Result<_, _>>()?;
    ports.set_addresses(&addresses, &[])?;
    for address in addresses {
        ports.add_local(Protocol::Udp, address, PORT)?;
    }
    let link: Box<dyn Link> = match options.link.as_str() {
        "xdp" => Box::new(device.open_queue(0, umem, pool, QueueConfig::default())?),
        #[cfg(feature = "xsk-rs")]
        "xsk-rs" => Box::new(device.open_queue_xsk_rs(0, umem.config().chunk_size, QueueConfig::default())?),
        other => return Err(format!("LINK={other}: xdp, packet, or xsk-rs with the feature of that name").into()),
    };
    Ok((link, Some(device)))
}

fn udp(mac: &str, our_mac: [u8; 6], from: Ipv4Addr, to: Ipv4Addr, len: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut bytes = Vec::with_capacity(len);
    for byte in mac.split(':') {
        bytes.push(u8::from_str_radix(byte, 16)?);
    }
    bytes.extend_from_slice(&our_mac);
    bytes.extend_from_slice(&[8, 0, 0x45, 0]);
    bytes.extend_from_slice(&((len - 14) as u16).to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0]);
    bytes.extend_from_slice(&from.octets());
    bytes.extend_from_slice(&to.octets());
    let sum = bytes[14..34].chunks(2).fold(0u32, |sum, pair| {
        let sum = sum + u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        (sum & 0xffff) + (sum >> 16)
    });
    bytes[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    bytes.extend_from_slice(&PORT.to_be_bytes());
    bytes.extend_from_slice(&PORT.to_be_bytes());
    bytes.extend_from_slice(&((len - 34) as u16).to_be_bytes());
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Runs `turn` for the requested time and prints a line every second. `turn` returns the packets it
/// moved and, if asked, its system calls.
fn run(
    options: &Options,
    links: usize,
    mut turn: impl FnMut(bool) -> std::io::Result<(u64, u64)>,
) -> std::io::Result<()> {
    let start = Instant::now();
    let mut next = Duration::from_secs(1);
    let (mut packets, mut syscalls_before) = (0u64, 0u64);
    loop {
        let due = start.elapsed() >= next;
        let (moved, syscalls) = turn(due)?;
        packets += moved;
        if due {
            let calls = (syscalls - syscalls_before) as f64 / packets.max(1) as f64;
            println!("{:.3} Mpps, {calls:.3} system calls a packet, {links} link(s)", packets as f64 / 1e6);
            (packets, syscalls_before) = (0, syscalls);
            next += Duration::from_secs(1);
            if next > Duration::from_secs(options.seconds) {
                return Ok(());
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let umem = Umem::new(UmemConfig { chunks: 16384, chunk_size: 2048 })?;
    let mut pool = umem.pool(16384)?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut received: Vec<RxFrame> = Vec::with_capacity(2 * options.batch);
    let mut frames: Vec<TxFrame> = Vec::with_capacity(2 * options.batch);
    match words[..] {
        ["send", device, mac, from, to, ref rest @ ..] => {
            let len: usize = rest.first().map_or(Ok(60), |text| text.parse())?;
            let (mut link, _device) = open(device, &umem, &mut pool, &options)?;
            let bytes = udp(mac, link.caps().mac, from.parse()?, to.parse()?, len)?;
            run(&options, 1, |tell| {
                while frames.len() < options.batch
                    && let Some(mut frame) = pool.alloc()
                {
                    frame.grow_back(bytes.len());
                    pool.bytes_mut(&mut frame).copy_from_slice(&bytes);
                    frames.push(TxFrame { frame, checksum: None });
                }
                let sent = link.tx(&mut pool, &mut frames)?;
                Ok((sent as u64, if tell { link.stats().syscalls } else { 0 }))
            })?;
            link.close(&mut pool);
        }
        ["sink", device] => {
            let (mut link, _device) = open(device, &umem, &mut pool, &options)?;
            run(&options, 1, |tell| {
                let got = link.rx(&mut pool, IfaceId(0), &mut received, options.batch);
                for part in received.drain(..) {
                    pool.free(part.frame);
                }
                Ok((got as u64, if tell { link.stats().syscalls } else { 0 }))
            })?;
            link.close(&mut pool);
        }
        ["forward", one, other] => {
            let (a, _device_a) = open(one, &umem, &mut pool, &options)?;
            let (b, _device_b) = open(other, &umem, &mut pool, &options)?;
            let mut links = [a, b];
            let mut waiting = [frames, Vec::with_capacity(2 * options.batch)];
            run(&options, 2, |tell| {
                let mut moved = 0;
                for from in [0, 1] {
                    links[from].rx(&mut pool, IfaceId(from as u8), &mut received, options.batch);
                    waiting[1 - from]
                        .extend(received.drain(..).map(|part| TxFrame { frame: part.frame, checksum: None }));
                    moved += links[1 - from].tx(&mut pool, &mut waiting[1 - from])? as u64;
                }
                Ok((moved, if tell { links.iter().map(|link| link.stats().syscalls).sum() } else { 0 }))
            })?;
            for link in links {
                link.close(&mut pool);
            }
        }
        _ => return Err("usage: raw_link send|sink|forward …; see the head of the source".into()),
    }
    Ok(())
}
