//! The program on a package made for it: what passes, fails, hangs, is skipped and is ignored.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// Behind a line of the runner's.
const TESTS: &str = r#"
#[test]
fn passes() {}
#[test]
fn fails() { println!("what it says"); panic!("why") }
#[test]
fn hangs() { std::thread::sleep(std::time::Duration::from_secs(1000)) }
#[test]
fn is_skipped() { println!("skipped: not root") }
#[test]
#[ignore]
fn is_ignored() { panic!() }
#[test]
fn aborts() { std::process::abort() }
#[test]
fn has_a_lab_of_its_own() { assert_eq!(std::env::var("FS_LAB").unwrap(), "fsx-0") }
#[test]
fn is_where_cargo_would_run_it() { assert!(std::path::Path::new("Cargo.toml").exists()) }
"#;

fn package(dir: &Path, tests: &str) {
    std::fs::create_dir_all(dir.join("src")).unwrap();
    std::fs::create_dir_all(dir.join("tests")).unwrap();
    let manifest = "[package]\nname = \"sample\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
    std::fs::write(dir.join("Cargo.toml"), manifest).unwrap();
    std::fs::write(dir.join("src/lib.rs"), "//! ```\n//! assert_eq!(1 + 1, 2);\n//! ```\n").unwrap();
    std::fs::write(dir.join("tests/all.rs"), tests).unwrap();
}

fn runner(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fs-runner"));
    command.args(["--name", "sample", "--out", "out"]).args(arguments).current_dir(dir);
    // The package's programs lie beside it, whatever this test's own are built with.
    command.env_remove("RUSTFLAGS").env("CARGO_TARGET_DIR", dir.join("target")).env("FS_LAB", "fsx");
    command.output().unwrap()
}

#[test]
fn each_test_has_its_result() {
    let dir = tempfile::tempdir().unwrap();
    // Not as one word: the runner reads this file too.
    package(dir.path(), &["//! Doc.\n// runner", ": timeout 8\n", TESTS].concat());
    let output = runner(dir.path(), &["--", "--offline"]);
    let said = String::from_utf8(output.stdout).unwrap();
    let read = |name: &str| std::fs::read_to_string(dir.path().join("out").join(name)).unwrap();
    let counts = read("sample.counts");
    let mut counts = counts.lines();
    // The doctest passes, too.
    assert_eq!(counts.next().unwrap(), "4 3 2", "{said}{}", read("sample.log"));
    let mut failed: Vec<_> = counts.map(|name| name.split_once("all::").unwrap().1).collect();
    failed.sort_unstable();
    assert!(failed[0].starts_with("aborts: "), "{failed:?}");
    assert_eq!(failed[1..], ["fails: why", "hangs: not over after 8 s"]);
    assert!(!output.status.success());
    for part in ["what it says", "why", "not over after 8 s", "signal: 6"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let junit = read("sample.xml");
    assert!(junit.contains(r#"tests="9" skipped="2" failures="3" errors="0""#), "{junit}");
}

#[test]
fn a_package_that_does_not_compile_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    package(dir.path(), "#[test]\nfn wrong() { let () = 1; }\n");
    let output = runner(dir.path(), &["--", "--offline", "--tests"]);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("could not compile `sample` (test \"all\")"), "{said}");
}

#[test]
fn doctests_run_alone_where_they_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    package(dir.path(), "#[test]\nfn fails() { panic!() }\n");
    let output = runner(dir.path(), &["--", "--offline", "--doc"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(std::fs::read_to_string(dir.path().join("out/sample.counts")).unwrap().trim(), "1 0 0");
}

const STANDS_STILL: &str = r#"
#[test]
fn other_work_stands_still() {
    let pid = std::fs::read_to_string("pid").unwrap();
    let is_stopped = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ");
    // It stands still once it has run again.
    while !is_stopped() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
"#;

#[test]
fn other_work_stands_still_while_a_test_runs_alone() {
    let dir = tempfile::tempdir().unwrap();
    package(dir.path(), STANDS_STILL);
    let mut other = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
    let pid = other.id().to_string();
    std::fs::write(dir.path().join("pid"), &pid).unwrap();
    let output = runner(dir.path(), &["--stop", &pid, "--", "--offline", "--tests"]);
    let goes_on = || !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ");
    while !goes_on() {
        std::thread::sleep(Duration::from_millis(1));
    }
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Says that it runs, and ends when the other one does.
fn meets(own: &str, other: &str) -> String {
    format!(
        "#[test]\nfn meets() {{\n    std::fs::write({own:?}, \"\").unwrap();\n    while !std::path::Path::new({other:?}).exists() {{\n        \
         std::thread::sleep(std::time::Duration::from_millis(1));\n    }}\n}}\n"
    )
}

#[test]
fn a_test_that_waits_runs_beside_as_many_others_as_there_are_jobs() {
    let dir = tempfile::tempdir().unwrap();
    package(dir.path(), &["// runner", ": beside others\n// runner", ": timeout 60\n", &meets("one", "two")].concat());
    let waits = ["// runner", ": waits\n// runner", ": timeout 60\n", &meets("two", "one")].concat();
    std::fs::write(dir.path().join("tests/waits.rs"), waits).unwrap();
    let output = runner(dir.path(), &["--jobs", "1", "--", "--offline", "--tests"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
