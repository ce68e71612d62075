//! All scripts of `tests/packet`: on the engine, and on Linux if this machine can run them.

// The scripts require Linux's times to within some milliseconds.

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

/// Returns the scripts that fail, and why.
fn failures(scripts: &[PathBuf], request: &Request, jobs: usize) -> Vec<(PathBuf, String)> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(path) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let done = run_file(path, request);
                    let repeats = done.log.lines().filter(|line| line.starts_with("once more after: ")).count();
                    if repeats > 0 {
                        println!("{}: {repeats} times once more", path.display());
                    }
                    if let Verdict::Failed(message) = done.verdict {
                        failed.lock().unwrap().push((path.clone(), message));
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

/// Returns the scripts that pass on Linux and not yet on the engine: a path and the reason on each
/// line.
fn not_yet() -> Vec<String> {
    let list = include_str!("../../../tests/packet/not-yet.txt");
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split(':').next().unwrap_or_default().to_string()).collect()
}

#[test]
fn engine() {
    let known = not_yet();
    let failed = failures(&scripts(), &Request::new(Side::Engine), 2);
    let mut failed: Vec<String> = failed.into_iter().map(|(_, message)| message).collect();
    let passes = |path: &&String| !failed.iter().any(|message| message.contains(path.as_str()));
    let met: Vec<&String> = known.iter().filter(passes).collect();
    assert!(met.is_empty(), "listed in not-yet.txt, but they pass or are not there: {met:?}");
    failed.retain(|message| !known.iter().any(|path| message.contains(path)));
    assert!(failed.is_empty(), "{} scripts failed:\n{}", failed.len(), failed.join("\n"));
}

#[test]
#[ignore = "long, and by the kernel's clock: make proof"]
fn linux() {
    if let Some(reason) = linux::unavailable() {
        println!("skipped: {reason}");
        return;
    }
    let mut request = Request::new(Side::Linux);
    let failed = failures(&scripts(), &request, 4);
    // On a busy machine a thread is sometimes late by more than the milliseconds that a script
    // allows: run these again alone, and several times.
    request.attempts = 10;
    let again: Vec<PathBuf> = failed.into_iter().map(|(path, _)| path).collect();
    println!("{} scripts once more", again.len());
    let failed: Vec<String> = failures(&again, &request, 1).into_iter().map(|(_, message)| message).collect();
    assert!(failed.is_empty(), "{} scripts failed:\n{}", failed.len(), failed.join("\n"));
}
