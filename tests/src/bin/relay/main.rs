//! A wire between two devices with a rate, a queue and a delay. It loses, reorders and duplicates
//! TCP segments by a seed, as `tc netem` does, for kernels without it. Frames pass unchanged, so
//! both ends are in one network.
//!
//! Both directions have the same parameters and their own random numbers. Only TCP is affected: a
//! lost ARP request would cost a second and prove nothing. Counters of both directions are printed
//! every half second while something passes.

mod pipe;
mod sleep_unsafe;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use fs_core::{IfaceId, RxFrame, TxFrame};
use fs_xdp::{Link, PacketConfig, PacketLink, Umem, UmemConfig, UmemPool};
use pipe::{Path, Pipe};
use std::time::{Duration, Instant};

/// Packets taken or sent at once.
const BATCH: usize = 64;
/// 128 MiB: a quarter of a second at 1 Gb/s in full segments.
const CHUNKS: u32 = 1 << 16;
/// Sleeps are at least this long, so that at full rate one wake-up moves several packets.
const QUANTUM: Duration = Duration::from_micros(20);

/// Passes frames between two devices over a path with a rate, a delay and losses.
#[derive(Parser, Debug)]
struct Args {
    /// The two devices.
    #[arg(num_args = 2, required = true)]
    devices: Vec<String>,
    /// Megabits per second, each way, counted as Ethernet does (with preamble, gap and check
    /// sequence).
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// Milliseconds from end to end, each way.
    #[arg(long, default_value_t = 0.0)]
    delay: f64,
    /// Bytes per direction that may wait for the rate. More are lost.
    #[arg(long, default_value_t = 131_072)]
    queue: u64,
    /// Probability that a TCP segment is lost.
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
    /// Probability that a TCP segment takes a detour of a quarter of the delay, at least 0.2 ms,
    /// and is overtaken.
    #[arg(long, default_value_t = 0.0)]
    reorder: f64,
    /// Probability that a TCP segment arrives twice.
    #[arg(long, default_value_t = 0.0)]
    duplicate: f64,
    /// Seed of the random losses.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

struct Side {
    link: PacketLink,
    /// Towards the other side.
    pipe: Pipe,
    /// On its way out of here.
    out: Vec<TxFrame>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    for (what, p) in [("loss", args.loss), ("reorder", args.reorder), ("duplicate", args.duplicate)] {
        ensure!((0.0..=1.0).contains(&p), "--{what} is a probability");
    }
    ensure!(args.rate > 0.0 && args.delay >= 0.0, "--rate is positive, --delay not negative");
    let umem = Umem::new(UmemConfig { chunks: CHUNKS, chunk_size: 2048 })?;
    let mut pool = umem.pool(CHUNKS)?;
    let path = Path {
        bytes_per_second: args.rate * 125_000.0,
        delay: Duration::from_secs_f64(args.delay / 1000.0),
        queue: args.queue,
        loss: args.loss,
        reorder: args.reorder,
        duplicate: args.duplicate,
    };
    let mut sides = Vec::new();
    for (name, twist) in args.devices.iter().zip([0x0f0f, 0xf0f0]) {
        let config =
            PacketConfig { vnet_hdr: false, batch: BATCH, receive_buffer: 64 << 20, ..PacketConfig::default() };
        let link = PacketLink::open(name, config).with_context(|| format!("device {name}"))?;
        sides.push(Side { link, pipe: Pipe::new(path, args.seed ^ twist), out: Vec::with_capacity(BATCH) });
    }
    let [a, b] = &mut sides[..] else { unreachable!("two devices") };
    sleep_unsafe::wake_on_time();
    println!("ready");
    relay(a, b, &mut pool)
}

fn relay(a: &mut Side, b: &mut Side, pool: &mut UmemPool) -> Result<()> {
    let start = Instant::now();
    let mut taken: Vec<RxFrame> = Vec::with_capacity(BATCH);
    let (mut report_at, mut reported) = (Duration::from_millis(500), 0);
    loop {
        let now = start.elapsed();
        let mut got = 0;
        for side in [&mut *a, &mut *b] {
            got += side.link.rx(pool, IfaceId(0), &mut taken, BATCH);
            for RxFrame { frame, .. } in taken.drain(..) {
                side.pipe.enter(now, pool, frame);
            }
        }
        pass(now, a, b, pool)?;
        pass(now, b, a, pool)?;
        if now >= report_at {
            report_at = now + Duration::from_millis(500);
            let total = a.pipe.counts.packets + b.pipe.counts.packets;
            if total != reported {
                reported = total;
                println!("{} | {}", count(a), count(b));
            }
        }
        if got == 0 {
            let due = [&a.pipe, &b.pipe].into_iter().filter_map(Pipe::next).min();
            let wait = due.map_or(Duration::from_millis(500), |due| due.saturating_sub(now).max(QUANTUM));
            let fds = [&a.link, &b.link].map(|link| link.wake_fd().expect("packet sockets have descriptors"));
            sleep_unsafe::sleep(fds, wait)?;
        }
    }
}

/// Sends packets that have passed `from`'s pipe through `to`.
fn pass(now: Duration, from: &mut Side, to: &mut Side, pool: &mut UmemPool) -> Result<()> {
    while to.out.len() < BATCH
        && let Some(frame) = from.pipe.leave(now)
    {
        to.out.push(TxFrame { frame, checksum: None });
    }
    if !to.out.is_empty() {
        to.link.tx(pool, &mut to.out).context("the device is gone")?;
    }
    Ok(())
}

/// Returns the packets that the machine lost, and not the path. With such losses the figures mean
/// little.
fn count(side: &Side) -> String {
    let (counts, link) = (&side.pipe.counts, side.link.stats());
    format!(
        "{} packets, {} lost, {} beyond the queue, {} swapped, {} doubled, {} missed",
        counts.packets, counts.lost, counts.overflow, counts.swapped, counts.doubled, link.rx_dropped
    )
}
