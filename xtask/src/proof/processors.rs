//! Other processors, with QEMU. The workspace is built for aarch64, and the unit tests of the
//! engine and the carrier run there. The engine's tests also run big-endian (s390x). A
//! processor without its tools is skipped, with the reason.

use crate::part::Outcome;
use crate::run::{Run, target};
use crate::tools::output_of;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs everything that can run here.
pub(super) fn processors(run: &mut Run) -> Outcome {
    // If a tool is missing, the processor's part reports it.
    run.succeeds(Command::new("lab/install").arg("processors"), 1800);
    let mut outcome = Outcome::default();
    if let Some(reason) = lacks("aarch64") {
        run.note(&format!("skipped: aarch64: {reason}"));
        outcome.add(Outcome::skipped());
    } else {
        let steps: [&[&str]; 3] = [
            &["build", "--workspace"],
            &["check", "--workspace", "--all-targets"],
            &["test", "--quiet", "--no-fail-fast", "--lib", "-p", "fs-core", "-p", "fs-carrier", "-p", "fs-pairs"],
        ];
        for step in steps {
            outcome.add(cargo_for(run, "aarch64", step));
        }
        outcome.add(Outcome::one("aarch64: the C library in a program", preloaded(run, "aarch64")));
    }
    if let Some(reason) = lacks("s390x") {
        run.note(&format!("skipped: s390x: {reason}"));
        outcome.add(Outcome::skipped());
    } else {
        outcome.add(cargo_for(run, "s390x", &["test", "--quiet", "--no-fail-fast", "-p", "fs-core"]));
    }
    outcome
}

/// Returns why this processor's programs cannot be built or run here.
fn lacks(processor: &str) -> Option<String> {
    let has = |program: String| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|folder| folder.join(&program).exists())
    };
    if !has(format!("{processor}-linux-gnu-gcc")) || !Path::new(&sysroot(processor)).join("include/stdio.h").exists() {
        Some(format!("no C compiler and library for {processor} (lab/install processors)"))
    } else if !has(format!("qemu-{processor}")) {
        Some(format!("no qemu-{processor} (lab/install processors)"))
    } else if !has_std(processor) && !has_sources() {
        Some(
            "this compiler has neither its standard library for it nor the sources of that (lab/install processors)"
                .into(),
        )
    } else {
        None
    }
}

fn sysroot(processor: &str) -> String {
    format!("/usr/{processor}-linux-gnu")
}

fn has_std(processor: &str) -> bool {
    let triple = format!("{processor}-unknown-linux-gnu");
    let folder =
        output_of(Command::new("rustc").args(["--print", "target-libdir", "--target", &triple])).unwrap_or_default();
    let files = fs::read_dir(folder.trim()).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
}

fn has_sources() -> bool {
    let root = output_of(Command::new("rustc").args(["--print", "sysroot"])).unwrap_or_default();
    Path::new(root.trim()).join("lib/rustlib/src/rust/library/Cargo.lock").exists()
}

/// Runs a cargo subcommand for a processor, with its tests under QEMU, as one test.
fn cargo_for(run: &mut Run, processor: &str, arguments: &[&str]) -> Outcome {
    let triple = format!("{processor}-unknown-linux-gnu");
    let name = format!("CARGO_TARGET_{}", triple.replace('-', "_").to_uppercase());
    let compiler = format!("{processor}-linux-gnu-gcc");
    let emulator = format!("qemu-{processor} -L {}", sysroot(processor));
    let mut command = Command::new("cargo");
    command
        .args([arguments[0], "--target", &triple])
        .env(format!("{name}_LINKER"), &compiler)
        .env(format!("{name}_RUNNER"), &emulator)
        .env(format!("CC_{}", triple.replace('-', "_")), &compiler)
        // For tests that start themselves as another process.
        .env("FS_TEST_RUNNER", &emulator);
    if !has_std(processor) {
        // It is not stable yet, so it needs permission.
        command.arg("-Zbuild-std").env("RUSTC_BOOTSTRAP", "1");
    }
    let passed = run.succeeds(command.args(&arguments[1..]), 2 * 3600);
    Outcome::one(&format!("{processor}: cargo {}", arguments.join(" ")), passed)
}

/// Compiles a C program for a processor.
fn program(run: &mut Run, processor: &str, name: &str, source: &str) -> Option<std::path::PathBuf> {
    let folder = target().join("proof").join(processor);
    fs::create_dir_all(&folder).ok()?;
    let (path, file) = (folder.join(name), folder.join(name).with_extension("c"));
    fs::write(&file, source).ok()?;
    run.succeeds(Command::new(format!("{processor}-linux-gnu-gcc")).arg("-o").arg(&path).arg(&file), 60).then_some(path)
}

/// Calls functions with a variable number of arguments.
const CALLS: &str = r#"#include <stdio.h>
#include <unistd.h>
int main(void) {
    dprintf(1, "%d %s %f %d %d %d %d %d %s %g %.1Lf\n", 1, "two", 3.5, 4, 5, 6, 7, 8, "nine", 10.25, 11.5L);
    execl("/bin/echo", "echo", "b", "c", "d", "e", "f", "g", "h", "i", "j", (char *)0);
    return 1;
}
"#;

/// Tests the C library in a program without a daemon: functions in assembly get all of their
/// arguments.
fn preloaded(run: &mut Run, processor: &str) -> bool {
    let library = target().join(format!("{processor}-unknown-linux-gnu/debug/libfastsock.so"));
    let Some(path) = program(run, processor, "calls", CALLS) else { return false };
    let mut command = Command::new(format!("qemu-{processor}"));
    command.args(["-L", &sysroot(processor), "-E"]).arg(format!("LD_PRELOAD={}", library.display()));
    command.args(["-E", "FASTSOCK_CONTROL=/nonexistent"]).arg(path);
    let said = output_of(&mut command).unwrap_or_default();
    run.note(&said);
    said == "1 two 3.500000 4 5 6 7 8 nine 10.25 11.5\nb c d e f g h i j\n"
}
