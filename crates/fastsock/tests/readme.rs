//! README's program is an example of this crate. It runs as an ordinary user on a machine without a
//! device, and so does the shortest program.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const INNER: &str = "FASTSOCK_README_INNER";

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// cargo builds examples next to its tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().join("examples").join(name)
}

#[test]
fn readme_program_equals_the_example() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(here.join("../../README.md")).unwrap();
    let block =
        readme.split_once("```rust,no_run\n").and_then(|(_, rest)| rest.split_once("```")).expect("a program").0;
    let example = std::fs::read_to_string(here.join("examples/readme.rs")).unwrap();
    assert_eq!(Some(block), example.split_once("\n\n").map(|(_doc, program)| program));
}

/// Runs README's program in a user namespace without rights to the machine's devices, and a network
/// namespace without devices.
#[test]
fn readme_program_runs_without_rights_and_device() {
    let test = "readme_program_runs_without_rights_and_device";
    if std::env::var_os(INNER).is_none() {
        let inner = format!("ip link set lo up && exec \"$0\" {test} --exact --nocapture");
        let program = std::env::current_exe().unwrap();
        let run = Command::new("unshare").args(["-rn", "sh", "-c", &inner]).arg(program).env(INNER, "1").output();
        let answer = run.expect("unshare, of util-linux");
        let said = String::from_utf8_lossy(&answer.stderr);
        assert!(answer.status.success(), "{said}{}", String::from_utf8_lossy(&answer.stdout));
        assert_eq!(said.lines().filter(|line| line.contains("there is no device eth0")).count(), 1, "{said}");
        return;
    }
    let _server = Killed(Command::new(example("readme")).stdin(Stdio::null()).spawn().unwrap());
    let begun = Instant::now();
    let mut stream = loop {
        match TcpStream::connect("127.0.0.1:7777") {
            Ok(stream) => break stream,
            Err(error) if begun.elapsed() > Duration::from_secs(30) => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    stream.write_all(b"hello").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!(said, "hello");
}

#[test]
fn shortest_program_runs() {
    let answer = Command::new(example("main")).env("FASTSOCK_LINK", "kernel").output().unwrap();
    assert!(answer.status.success(), "{answer:?}");
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "by the kernel (the runtime has no device)\n");
}
