//! All scripts of `tests/packet`: on the engine, and on Linux where this machine can.

// The scripts keep Linux to times of some milliseconds.
// runner: alone

use fs_pkt::script::Side;
use fs_pkt::{Request, Verdict, linux, run_file, scripts_in};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

fn scripts() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/packet");
    let found = scripts_in(&[root]).expect("the scripts can be listed");
    assert!(found.len() >= 250, "only {} scripts found", found.len());
    found
}

/// The failures among all scripts.
fn failures(side: Side, jobs: usize) -> Vec<String> {
    let scripts = scripts();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                let request = Request::new(side);
                while let Some(path) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Verdict::Failed(message) = run_file(path, &request).verdict {
                        failed.lock().unwrap().push(message);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

/// Scripts that are true on Linux and that the engine does not meet yet: a path and the reason on each line.
fn not_yet() -> Vec<String> {
    let list = include_str!("../../../tests/packet/not-yet.txt");
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split(':').next().unwrap_or_default().to_string()).collect()
}

#[test]
fn engine() {
    let known = not_yet();
    let mut failed = failures(Side::Engine, 2);
    let passes = |path: &&String| !failed.iter().any(|message| message.contains(path.as_str()));
    let met: Vec<&String> = known.iter().filter(passes).collect();
    assert!(met.is_empty(), "listed in not-yet.txt, but they pass or are not there: {met:?}");
    failed.retain(|message| !known.iter().any(|path| message.contains(path)));
    assert!(failed.is_empty(), "{} scripts failed:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn linux() {
    if let Some(reason) = linux::unavailable() {
        println!("skipped: {reason}");
        return;
    }
    let failed = failures(Side::Linux, 4);
    assert!(failed.is_empty(), "{} scripts failed:\n{}", failed.len(), failed.join("\n"));
}
