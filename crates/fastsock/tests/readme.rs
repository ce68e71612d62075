//! README's program is an example of this crate. It runs as an ordinary user on a machine without a
//! device, and so does the shortest program.

use fastsock::local::TcpListener;
use fastsock::{LinkChoice, Runtime};
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

/// Returns the lines of the first statement `loop`, without indentation.
fn accept_loop(text: &str) -> Vec<&str> {
    let mut lines = text.lines().skip_while(|line| line.trim() != "loop {");
    let first = lines.next().expect("a loop");
    let end = first.replace("loop {", "}");
    let body = lines.take_while(|line| **line != end);
    body.map(str::trim).collect()
}

/// README's loop, which the test before compares with the example's.
#[test]
fn readme_loop_ends_at_a_shutdown() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(here.join("../../README.md")).unwrap();
    let runtime = Runtime::builder().link(LinkChoice::Kernel).cores([0]).pin(false).build().unwrap();
    let run = runtime.run(|core| async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        core.handle().shutdown(Duration::from_secs(60));
        loop {
            match listener.accept().await {
                Ok((mut stream, _peer)) => drop(fastsock::spawn_local(async move {
                    let (mut reader, mut writer) = stream.split();
                    tokio::io::copy(&mut reader, &mut writer).await
                })),
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return, // A shutdown.
                // For example too many open files: the next ones may work.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            }
        }
    });
    assert!(run.is_ok(), "{run:?}");
    assert_eq!(accept_loop(&readme), accept_loop(include_str!("readme.rs")));
}

/// Pages and comments whose loops go on after an error.
#[test]
fn loops_to_copy_end_at_a_shutdown() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in ["../../README.md", "../../docs/SEND.md", "src/lib.rs"] {
        let page = std::fs::read_to_string(here.join(page)).unwrap();
        let (go_on, end) = ("Err(_) => tokio::time::sleep", "InvalidInput => return,");
        assert_eq!([go_on, end].map(|arm| page.matches(arm).count()), [1, 1], "{page}");
    }
}

#[test]
fn shortest_program_runs() {
    let answer = Command::new(example("main")).env("FASTSOCK_LINK", "kernel").output().unwrap();
    assert!(answer.status.success(), "{answer:?}");
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "by the kernel (the runtime has no device)\n");
}
