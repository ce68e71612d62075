//! `fastsock enable` lets a service with an allow-list of system calls make those that the library
//! makes. The list is compared with what programs do under strace.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::World;

/// The list of `fastsock enable`.
fn allowed() -> BTreeSet<&'static str> {
    let source = include_str!("../../fs-cli/src/services/drop_in.rs");
    let (_, list) = source.split_once("const CALLS").unwrap();
    let (list, _) = list.split_once("];").unwrap();
    list.split('"').skip(1).step_by(2).collect()
}

/// Runs a traced program, and returns its output and the names of its system calls.
fn traced(mut strace: Command, program: &Path, case: &str, to: &Path) -> (Output, BTreeSet<String>) {
    let _earlier = std::fs::remove_file(to);
    let output = strace.args(["-f", "-qq", "-o"]).arg(to).arg(program).arg(case).output().unwrap();
    let text = std::fs::read_to_string(to).unwrap_or_default();
    let name = |line: &str| {
        let (_pid, rest) = line.split_once(' ')?;
        let (name, _) = rest.trim_start().split_once('(')?;
        name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_').then(|| name.into())
    };
    (output, text.lines().filter_map(name).collect())
}

#[test]
fn calls_of_the_library_are_in_the_drop_in() {
    if !Command::new("strace").args(["-qq", "true"]).output().is_ok_and(|output| output.status.success()) {
        println!("skipped: strace does not run here");
        return;
    }
    let allowed = allowed();
    for (name, cases) in [
        ("data", &["pingpong", "bulk", "queue", "modes"][..]),
        ("waits", &["poll", "select", "epoll_level", "epoll_edge"]),
        ("life", &["fork_born", "execl"]),
    ] {
        let program = common::compiled(name);
        for case in cases {
            let end = Instant::now() + Duration::from_secs(60);
            loop {
                let world = World::new();
                let trace = world.folder().join("trace");
                let (plain, own) = traced(Command::new("strace"), &program, case, &trace);
                assert!(plain.status.success(), "{case}: {plain:?}");
                let mut strace = Command::new("strace");
                for (variable, value) in world.command("").get_envs() {
                    let pair = [variable, "=".as_ref(), value.unwrap()].join("".as_ref());
                    strace.arg("-E").arg(pair);
                }
                let (ours, with_library) = traced(strace, &program, case, &trace);
                assert!(ours.status.success(), "{case}: {ours:?}");
                let missing: Vec<_> =
                    with_library.difference(&own).filter(|call| !allowed.contains(call.as_str())).collect();
                assert!(missing.is_empty(), "{case}: a service with an allow-list ends at {missing:?}");
                if world.counted().promoted >= 2 {
                    break;
                }
                // The program may end before the service has answered both ends.
                assert!(Instant::now() < end, "{case}: no promotion");
            }
        }
    }
}
