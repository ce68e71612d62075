//! The acceptance run: seeds, each with 10,000 short and 100 bulk connections over links with loss,
//! reordering, duplication and corruption of up to 5 %. `SIM_SEEDS` and `SIM_FIRST` select others;
//! `make soak` continues.

use fs_sim::{Report, Scenario, run_or_explain};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Default number of seeds.
const SEEDS: u64 = 2;
/// Number of concurrent runs.
const THREADS: usize = 2;

fn from_env(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")),
        Err(_) => otherwise,
    }
}

#[test]
fn ten_thousand_short_and_a_hundred_bulk_connections_per_seed() {
    let (first, count) = (from_env("SIM_FIRST", 0), from_env("SIM_SEEDS", SEEDS));
    let scenario = Scenario::named("mixed").unwrap();
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/sim"));
    let next = AtomicU64::new(first);
    let (failures, reports) = (Mutex::new(Vec::new()), Mutex::new(Vec::<Report>::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    match run_or_explain(scenario, seed, folder) {
                        Ok(report) => reports.lock().unwrap().push(report),
                        Err(what) => failures.lock().unwrap().push(format!("seed {seed}: {what}")),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {count} seeds failed:\n{}", failures.len(), failures.join("\n\n"));
    coverage(&reports.into_inner().unwrap());
}

/// Checks the events that a run over bad links must have caused to be a test at all.
fn coverage(reports: &[Report]) {
    let mut all = fs_core::Stats::default();
    let (mut connections, mut packets) = (0, 0);
    for report in reports {
        all.add(&report.stats);
        connections += report.connections;
        packets += report.packets;
    }
    println!("{connections} connections, {packets} packets");
    assert_eq!(connections, reports.len() * 10_100);
    for (name, n) in [
        ("retransmits", all.retransmits),
        ("rto_fired", all.rto_fired),
        ("fast_recoveries", all.fast_recoveries),
        ("out_of_order", all.out_of_order),
        ("window_probes", all.window_probes),
        ("keepalive_probes", all.keepalive_probes),
        ("resets_sent", all.resets_sent),
        ("resets_received", all.resets_received),
        ("bad checksums", all.dropped(fs_core::DropReason::BadTransportChecksum)),
        ("duplicates", all.dropped(fs_core::DropReason::Duplicate)),
    ] {
        assert!(n > 0, "{name} never happened");
    }
}
