//! Programs as text, shrinking, and the allowed differences.

use fs_differ::emit::python;
use fs_differ::generate::{PROFILES, generate};
use fs_differ::judge::{Allowed, NotYet};
use fs_differ::program::{ACTORS, Call, Program, Step};
use fs_differ::serve::Request;
use fs_differ::shrink::shrink;
use fs_differ::sys::process;
use fs_differ::values::{LOOP_LEVEL, LOOP_ONCE, LOOP_TWO, LOOP_WORKER};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

#[test]
fn program_round_trips_through_text() {
    for (profile, _) in PROFILES {
        for seed in 0..300 {
            let program = generate(seed, profile);
            assert_eq!(Program::parse(&program.to_string()).expect("reads"), program, "{program}");
            assert_eq!(generate(seed, profile), program, "the same seed, the same program");
            assert!(program.steps.iter().all(|step| usize::from(step.actor) < ACTORS));
            assert!(python(&program).lines().count() > program.steps.len());
        }
    }
}

#[test]
fn rejects_invalid_programs() {
    for text in [
        "0: nothing s1",
        "0: close",
        "0: close s99",
        "9: close s1",
        "0: close s1 s2",
        "0: bind s1 nowhere p0",
        "close s1",
    ] {
        assert!(Program::parse(text).is_err(), "{text}");
    }
}

#[test]
fn shrinking_keeps_only_relevant_steps() {
    let program = generate(3, "single");
    let close = |slot| Step { actor: 0, call: Call::Close, args: vec![slot] };
    let mut long = program.clone();
    long.steps.insert(2, close(14));
    long.steps.push(close(15));
    let has = |program: &Program, slot| program.steps.contains(&close(slot));
    let small = shrink(&long, 1000, |candidate| has(candidate, 14) && has(candidate, 15));
    assert_eq!(small.steps, [close(14), close(15)]);
}

#[test]
fn rejects_rule_without_reason() {
    assert!(Allowed::parse("getsockopt sndbuf | * | * | it grows\n# a comment\n").is_ok());
    assert!(Allowed::parse("getsockopt sndbuf | * | *").is_err());
    assert!(Allowed::parse("getsockopt sndbuf | * | * | ").is_err());
}

#[test]
fn known_differences_have_name_or_signature_and_reason() {
    let known = NotYet::parse("# these\none # why\n~ bind *: kernel EADDRINUSE, ours 0 # why\n").expect("reads");
    assert!(known.has("one", "anything") && !known.has("two", "anything"));
    assert!(known.has("two", "bind lo4 p0: kernel EADDRINUSE, ours 0"));
    assert!(!known.has("two", "bind lo4 p0: kernel EADDRINUSE, ours EINVAL"));
    assert!(NotYet::parse("one").is_err() && NotYet::parse("~ bind *").is_err());
}

/// It would wait for itself, and use up the program's time.
#[test]
fn no_actor_stops_its_own_process() {
    for profile in ["actors", "mixed"] {
        for seed in 0..20_000 {
            let program = generate(seed, profile);
            let mut process: [usize; ACTORS] = std::array::from_fn(|actor| actor);
            for step in &program.steps {
                let (own, other) = (process[usize::from(step.actor)], step.args.first().copied().unwrap_or(0) as usize);
                match step.call {
                    Call::Thread => process[other] = own,
                    Call::Signal if step.args[1] == libc::SIGSTOP => assert_ne!(process[other], own, "{program}"),
                    _ => {}
                }
            }
        }
    }
}

/// Their order depends on the scheduler. A recv that peeks and blocks, or blocks while another
/// peeks, is not generated.
#[test]
fn no_recv_blocks_while_another_peeks() {
    let mut sleepers = 0;
    for seed in 0..20_000 {
        let program = generate(seed, "actors");
        let sleeps =
            |step: &&Step| step.call == Call::Recv && (step.args[1] < 2 || step.args[3] & libc::MSG_DONTWAIT == 0);
        let sleeping: Vec<&Step> = program.steps.iter().filter(sleeps).collect();
        for peeker in sleeping.iter().filter(|step| step.args[1] >= 2 && step.args[3] & libc::MSG_PEEK != 0) {
            sleepers += 1;
            let is_beside = |step: &&Step| step.actor != peeker.actor && step.args[0] == peeker.args[0];
            assert!(!sleeping.iter().any(is_beside), "{program}");
        }
    }
    assert!(sleepers > 300, "{sleepers}");
}

/// Its outcome would depend on the window.
#[test]
fn large_transfers_exclude_read_shutdown_and_small_segments() {
    const MAXSEG: i32 = 25;
    for profile in ["buffers", "actors", "mixed"] {
        for seed in 0..20_000 {
            let program = generate(seed, profile);
            let very_much = |step: &Step| step.call == Call::Fill || step.call == Call::Send && step.args[2] >= 100_000;
            let Some(last) = program.steps.iter().rposition(very_much) else { continue };
            let spoils = |step: &Step| {
                step.call == Call::Shutdown && step.args[1] != libc::SHUT_WR
                    || step.call == Call::SetOption && step.args[1] == MAXSEG
            };
            assert!(!program.steps[..last].iter().any(spoils), "{program}");
            if profile != "buffers" {
                let ends_reading = |step: &Step| step.call == Call::Shutdown && step.args[1] != libc::SHUT_WR;
                assert!(!program.steps[last..].iter().any(ends_reading), "{program}");
            }
        }
    }
}

/// Servers accept exactly as many connections as are made; each process has at most one timer, and
/// waits for it.
#[test]
fn programs_with_signals_end_in_any_order() {
    let mut threads = 0;
    for seed in 0..20_000 {
        let program = generate(seed, "signals");
        let of = |call: Call| program.steps.iter().filter(move |step| step.call == call);
        let sum = |call, place: usize| of(call).map(|step| step.args[place]).sum::<i32>();
        assert_eq!(sum(Call::Serve, 1), sum(Call::Dial, 2), "{program}");
        assert!(sum(Call::Serve, 1) <= 128, "more than the queue takes: {program}");
        let mut process: [u8; ACTORS] = std::array::from_fn(|actor| actor as u8);
        for step in of(Call::Thread) {
            process[step.args[0] as usize] = process[usize::from(step.actor)];
            threads += 1;
        }
        let mut timers: Vec<u8> = of(Call::Timer).map(|step| process[usize::from(step.actor)]).collect();
        assert!(of(Call::Timer).map(|step| step.actor).eq(of(Call::StopTimer).map(|step| step.actor)), "{program}");
        timers.sort_unstable();
        timers.dedup();
        assert_eq!(timers.len(), of(Call::Timer).count(), "{program}");
    }
    assert!(threads > 10_000, "{threads}");
}

/// Servers accept exactly as many connections as are made, and no poller spins over an event that
/// another thread handles.
#[test]
fn event_loops_end() {
    let mut connections = 0;
    for seed in 0..5_000 {
        let program = generate(seed, "loops");
        let of = |call: Call| program.steps.iter().filter(move |step| step.call == call);
        let sum = |call, place: usize| of(call).map(|step| step.args[place]).sum::<i32>();
        assert_eq!(sum(Call::ServeLoop, 1), sum(Call::DialLoop, 2), "{program}");
        assert!(sum(Call::DialLoop, 2) <= 128, "more than the queue takes: {program}");
        connections += sum(Call::DialLoop, 2);
        for step in of(Call::ServeLoop).chain(of(Call::DialLoop)) {
            let how = step.args[step.args.len() - 1];
            let is_shared = how & (LOOP_WORKER | LOOP_TWO) != 0;
            assert!(!is_shared || how & (LOOP_LEVEL | LOOP_ONCE) != LOOP_LEVEL, "{program}");
        }
    }
    assert!(connections > 50_000, "{connections}");
}

/// A shell that runs a command in the background passes it a descriptor of its own.
#[test]
fn inherited_descriptors_are_not_the_programs() {
    let mut runner = Command::new("sh")
        .args(["-c", "exec 7</dev/null; exec \"$0\" serve", env!("CARGO_BIN_EXE_fs-differ")])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a runner");
    let dups: Vec<String> = (1..6).map(|slot| format!("0: dup s0 >s{slot}")).collect();
    let text = format!("program profile=single seed=1 mode=alone\n0: memfd >s0 1\n{}", dups.join("\n"));
    let request = Request { patience: 1, base: 10_000, text };
    let input = runner.stdin.take().expect("a pipe");
    assert!(process::write_frame(input.as_raw_fd(), &request.frame()));
    let output = runner.stdout.take().expect("a pipe");
    let answers = process::read_frame(output.as_raw_fd()).expect("an answer");
    drop(input);
    runner.wait().expect("ends");
    assert_eq!(String::from_utf8_lossy(&answers), "3\n4\n5\n6\n7\n8");
}
