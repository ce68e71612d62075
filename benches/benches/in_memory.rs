//! The engine alone, on one core, in memory, with software checksums: the work that DESIGN §9
//! budgets.
//!
//! A generator builds packets and reads answers outside the measured time. The measured time
//! contains `set_now`, `rx_batch`, `tick`, `drain_events`, the application's calls and `tx_batch`,
//! in batches of 32 packets, and two clock readings per batch. smoltcp does the same work for
//! comparison.
//!
//! Budgets apply to a machine on which smoltcp has the times of DESIGN §9. On this machine they are
//! scaled by smoltcp's time. `QUICK=1` (or `--quick`) takes fewer samples, and 100,000 connections
//! instead of 1,000,000. The output is a table with each budget's verdict, and
//! `target/bench/in_memory.json`. As in the other benches, a row over its budget is no failure.

#[allow(unreachable_pub, missing_docs)]
mod support;

use criterion::Criterion;
use fs_memory::ours::{App, Closer, LARGE_TABLE, Ours, Setup};
use fs_memory::smol::Smol;
use fs_memory::{BATCH, Server};
use std::process::ExitCode;
use std::time::Duration;
use support::alloc_unsafe;
use support::report::{Row, publish};

#[global_allocator]
static ALLOCATOR: alloc_unsafe::Counting = alloc_unsafe::Counting;

/// Payload of a full segment without options.
const FULL: usize = 1460;
/// With timestamps.
const FULL_TS: usize = 1448;

/// smoltcp's times in ns on the machine that the budgets are for (DESIGN §9): a request and
/// response on 10,000 connections and on 1,000,000; a short connection alone and with 1,000,000
/// open. The last is the upper end of a range.
const SMOLTCP_10_000: f64 = 298.0;
const SMOLTCP_MANY: f64 = 1149.0;
const SMOLTCP_SHORT: f64 = 586.0;
const SMOLTCP_SHORT_BESIDE_MANY: f64 = 1345.0;

/// Number of servers with many connections that are set up for their row. The physical pages of a
/// server's gigabytes change the row by a tenth and more either way (measured on a virtual machine:
/// 181 to 218 ns in one process). A process gets its pages once.
const PLACES: usize = 5;

struct Bench {
    criterion: Criterion,
    samples: usize,
    quick: bool,
    many: usize,
    rows: Vec<Row>,
}

impl Bench {
    /// Runs `work`, which returns the time of a given number of rounds. Returns the median of
    /// criterion's samples in ns per round.
    fn measure(&mut self, name: &str, mut work: impl FnMut(u64) -> Duration) -> f64 {
        let mut runs: Vec<f64> = Vec::new();
        self.criterion.bench_function(name, |b| {
            b.iter_custom(|n| {
                let time = work(n);
                runs.push(time.as_nanos() as f64 / n as f64);
                time
            });
        });
        // The runs before the samples are criterion's warm-up.
        let mut ns = runs.split_off(runs.len().saturating_sub(self.samples));
        ns.sort_by(f64::total_cmp);
        ns.get(ns.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn row(&mut self, what: impl Into<String>, ours: f64, budget: Option<f64>, peer: Option<(&'static str, f64)>) {
        self.rows.push(Row { what: what.into(), unit: "ns", ours, budget, peer, peer_there: None });
    }

    /// Adds a row whose budget is for a machine on which smoltcp takes `there` nanoseconds instead
    /// of `here`.
    fn scaled(&mut self, what: impl Into<String>, ours: f64, budget: f64, here: f64, there: Option<f64>) {
        self.row(what, ours, Some(budget), Some(("smoltcp", here)));
        self.rows.iter_mut().last().into_iter().for_each(|row| row.peer_there = there);
    }

    /// 64 B each way on random connections, also with full segments received. The number of
    /// connections fits the second-level and third-level caches.
    fn transactions(&mut self, open: usize, budget: f64, there: f64) {
        let mut ours = Ours::new(open, false, Closer::Client);
        let small = self.measure(&format!("ours/{open}/64"), |n| ours.transactions(n, 64));
        let large = self.measure(&format!("ours/{open}/{FULL}"), |n| ours.transactions(n, FULL));
        ours.check();
        drop(ours);
        let mut ours = Ours::new(open, true, Closer::Client);
        let with_ts = self.measure(&format!("ours/{open}/64 timestamps"), |n| ours.transactions(n, 64));
        let large_ts = self.measure(&format!("ours/{open}/{FULL_TS} timestamps"), |n| ours.transactions(n, FULL_TS));
        ours.check();
        drop(ours);
        let mut smol = Smol::new(open, 2048, true);
        let smol_small = self.measure(&format!("smoltcp/{open}/64"), |n| smol.transactions(n, 64));
        let smol_large = self.measure(&format!("smoltcp/{open}/{FULL}"), |n| smol.transactions(n, FULL));
        drop(smol);
        self.transaction_rows(open, (small, with_ts, smol_small), budget, Some(there));
        let copy = self.copy_and_sum();
        self.row("1460 B segment: added to a 64 B one", large - small, Some(80.0), Some(("copy + checksum", copy)));
        self.row(
            "the same, timestamps (1448 B)",
            large_ts - with_ts,
            Some(80.0),
            Some(("smoltcp", smol_large - smol_small)),
        );
    }

    /// 64 B each way on random connections, whose number exceeds the caches.
    fn many_transactions(&mut self, budget: f64) {
        let open = self.many;
        let server = |timestamps| move || Ours::new(open, timestamps, Closer::Client);
        let small = self.in_places(&format!("ours/{open}/64"), server(false), Ours::check);
        let with_ts = self.in_places(&format!("ours/{open}/64 timestamps"), server(true), Ours::check);
        let smol = self.in_places(&format!("smoltcp/{open}/64"), move || Smol::new(open, 128, true), |_| ());
        let there = (!self.quick).then_some(SMOLTCP_MANY);
        self.transaction_rows(open, (small, with_ts, smol), budget, there);
    }

    /// Returns the median over several servers, each in its own memory. The previous server is
    /// dropped after the next is set up.
    fn in_places<S: Server>(&mut self, name: &str, make: impl Fn() -> S, check: impl Fn(&S)) -> f64 {
        let mut server = make();
        let mut medians: Vec<f64> = Vec::new();
        for place in 1..=if self.quick { 1 } else { PLACES } {
            if place > 1 {
                server = make();
            }
            medians.push(self.measure(&format!("{name}, place {place}"), |n| server.transactions(n, 64)));
            check(&server);
        }
        medians.sort_by(f64::total_cmp);
        let (least, most) = (medians.first().unwrap_or(&0.0), medians.last().unwrap_or(&0.0));
        println!("{name}: {least:.1} to {most:.1} ns in {} places\n", medians.len());
        medians[medians.len() / 2]
    }

    fn transaction_rows(&mut self, open: usize, ns: (f64, f64, f64), budget: f64, there: Option<f64>) {
        let (small, with_ts, smol) = ns;
        let name = format!("64 B request + response, {open} connections");
        self.scaled(name.clone(), small, budget, smol, there);
        self.scaled(format!("{name}, timestamps"), with_ts, budget, smol, there);
    }

    /// The lowest cost of a segment's bytes: one copy and one checksum. The working set fits the
    /// second-level cache, as the frames of a batch do.
    fn copy_and_sum(&mut self) -> f64 {
        let from: Vec<[u8; 2048]> = vec![[7; 2048]; 64];
        let mut to = [0u8; FULL];
        self.measure("copy + checksum of 1460 B", |n| {
            let began = std::time::Instant::now();
            for i in 0..n as usize {
                let from = &std::hint::black_box(&from)[i % 64][..FULL];
                std::hint::black_box(fs_core::internals::Sum::of(from).fold());
                to.copy_from_slice(from);
                std::hint::black_box(&to);
            }
            began.elapsed()
        })
    }

    fn short(&mut self) {
        let mut smol = Smol::new(1024, 256, false);
        let smol_hot = self.measure("smoltcp/short/hot", |n| smol.short(n));
        drop(smol);
        let many = self.many;
        let mut smol = Smol::new(many, 128, false);
        let smol_idle = self.measure(&format!("smoltcp/short/{many} sockets"), |n| smol.short(n));
        drop(smol);
        for (timestamps, label) in [(false, ""), (true, ", timestamps")] {
            let mut ours = Ours::new(0, timestamps, Closer::Client);
            let hot = self.measure(&format!("ours/short/hot{label}"), |n| ours.short(n));
            ours.check();
            drop(ours);
            let what = format!("short connection, 5 packets in, hot{label}");
            self.scaled(what, hot, 400.0, smol_hot, Some(SMOLTCP_SHORT));
        }
        let mut ours = Ours::new(0, true, Closer::Server);
        let time_wait = self.measure("ours/short/TIME-WAIT here", |n| ours.short(n));
        ours.check();
        drop(ours);
        self.row("the same, and TIME-WAIT is the server's", time_wait, None, None);
        let before = alloc_unsafe::bytes();
        let mut ours = Ours::new(many, true, Closer::Client);
        let held = alloc_unsafe::bytes() - before - ours.client_bytes() - ours.pool_bytes();
        assert_eq!(ours.frames(), 0, "idle connections hold frames");
        let idle = self.measure(&format!("ours/short/{many} idle, timestamps"), |n| ours.short(n));
        ours.check();
        let there = (!self.quick).then_some(SMOLTCP_SHORT_BESIDE_MANY);
        self.scaled(format!("short connection beside {many} idle, timestamps"), idle, 500.0, smol_idle, there);
        drop(ours);
        let v6 =
            Self::held(Setup { open: many, timestamps: true, v6: true, app: App::Echo(Closer::Client), batch: BATCH });
        for (label, held, budget) in [("", held, Some(400.0)), (", IPv6", v6, None)] {
            self.rows.push(Row {
                what: format!("idle connection, of {many}, all included{label}"),
                unit: "B",
                ours: held as f64 / many as f64,
                budget,
                peer: None,
                peer_there: None,
            });
        }
    }

    /// Returns the bytes that a server's idle connections use, without its frame pool.
    fn held(setup: Setup) -> usize {
        let before = alloc_unsafe::bytes();
        let ours = Ours::with(setup);
        assert_eq!(ours.frames(), 0, "idle connections hold frames");
        alloc_unsafe::bytes() - before - ours.client_bytes() - ours.pool_bytes()
    }
}

fn main() -> ExitCode {
    let quick = std::env::var_os("QUICK").is_some_and(|v| v != "0" && !v.is_empty())
        || std::env::args().any(|arg| arg == "--quick");
    let (samples, seconds) = if quick { (10, 0.5) } else { (30, 3.0) };
    let criterion = Criterion::default()
        .configure_from_args()
        .without_plots()
        .sample_size(samples)
        .warm_up_time(Duration::from_secs_f64(seconds / 3.0))
        .measurement_time(Duration::from_secs_f64(seconds));
    // Like `fs-rt` does.
    let _ = LARGE_TABLE.set(fs_xdp::huge_pages);
    let many = if quick { 100_000 } else { 1_000_000 };
    let mut bench = Bench { criterion, samples, quick, many, rows: Vec::new() };
    bench.transactions(10_000, 90.0, SMOLTCP_10_000);
    bench.many_transactions(160.0);
    bench.short();
    match publish(&bench.rows, bench.quick) {
        Ok(kept) => {
            if !kept {
                println!("in memory: over budget");
            }
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("target/bench/in_memory.json: {e}");
            ExitCode::FAILURE
        }
    }
}
