//! `fastsock enable` lets a service with an allow-list of system calls make those that the library
//! makes. The list is compared with what programs do under strace, in a test for each case.

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
    // Each call waits for strace twice.
    let output = strace.env("FEW", "1").args(["-f", "-qq", "-o"]).arg(to).arg(program).arg(case).output().unwrap();
    let text = std::fs::read_to_string(to).unwrap_or_default();
    let name = |line: &str| {
        let (_pid, rest) = line.split_once(' ')?;
        let (name, _) = rest.trim_start().split_once('(')?;
        name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_').then(|| name.into())
    };
    (output, text.lines().filter_map(name).collect())
}

/// The calls that the library adds to a case of a program are in the list.
fn are_listed(name: &str, case: &str) {
    if !Command::new("strace").args(["-qq", "true"]).output().is_ok_and(|output| output.status.success()) {
        println!("skipped: strace does not run here");
        return;
    }
    let allowed = allowed();
    let program = common::compiled(name);
    let end = Instant::now() + Duration::from_secs(60);
    let mut attempts = 0;
    loop {
        attempts += 1;
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
        let missing: Vec<_> = with_library.difference(&own).filter(|call| !allowed.contains(call.as_str())).collect();
        assert!(missing.is_empty(), "{case}: a service with an allow-list ends at {missing:?}");
        if world.counted().promoted >= 2 {
            return;
        }
        // The program may end before the service has answered both ends.
        assert!(attempts < 5 || Instant::now() < end, "{case}: no promotion");
    }
}

macro_rules! cases {
    ($($program:ident: $($case:ident),*;)*) => {
        $($(#[test]
        fn $case() {
            are_listed(stringify!($program), stringify!($case));
        })*)*
    };
}

cases! {
    data: pingpong, bulk, queue, modes;
    waits: poll, select, epoll_level, epoll_edge;
    life: fork_born, execl;
}
