//! A program of socket calls makes the same observations on the kernel and under the library
//! (`tests/semantics`). Each case runs with connections whose ring has carried some bytes
//! (SEMANTICS_WARM) and, in `make proof`, with fresh ones.

use anyhow::{Result, ensure};
use fs_tests::unmodified::Daemon;
use fs_tests::unmodified::semantics::{Observed, Semantics, difference};
use fs_tests::{Lab, Ns};
use std::process::Command;

/// The state of a case's connections at its start: fresh, or after some bytes in both directions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Connections {
    Fresh,
    Warm,
}

impl Connections {
    /// Returns a command of env(1) that runs the program.
    fn start(self, mut env: Command, program: &Semantics) -> Command {
        if self == Connections::Warm {
            env.arg("SEMANTICS_WARM=1");
        }
        env.arg(program.program());
        env
    }
}

/// Cases that may differ, and why. Each still has to end by itself.
const ACCEPTED: &[(&str, &str)] = &[
    ("epoll_order_of_additions", ORDER),
    ("epoll_order_of_nested", ORDER),
    ("pass_connection", PASSED),
    ("pass_by_mmsg", PASSED),
    ("pass_peeked", PASSED),
    ("close_answered_in_the_middle", MIDDLE),
    ("cork_holds", NOT_HELD),
    ("cork_ends_by_itself", NOT_HELD),
    ("cork_segments", NOT_HELD),
    ("cork_more", NOT_HELD),
    ("cork_resets", NOT_HELD),
];
const NOT_HELD: &str = "a ring holds nothing back: bytes under TCP_CORK or MSG_MORE are there at once";
const ORDER: &str = "the order of events of several ready members: a ring's bytes have no place in the kernel's list";
const MIDDLE: &str = "a reset that comes in the middle of a large send shortens it; when it comes is timing";
const PASSED: &str = "a connection that is sent to another process while its ring has unread bytes is reset";

/// Number of times that a case is repeated on the kernel if its result there is another one than
/// ours: it may depend on timing.
const REPEATED: usize = 8;

/// Returns the line of a case that a signal, a failed check or the time limit has ended.
fn broken(observed: &Observed) -> Option<&String> {
    observed.iter().find(|line| ["DIED", "ENDED", "STILL RAN"].iter().any(|end| line.starts_with(end)))
}

/// Returns true if a signal or the time limit has ended the case. A failed check may be the difference that is accepted: a reset.
fn has_crashed(observed: &Observed) -> bool {
    observed.iter().any(|line| line.starts_with("STILL RAN") || (line.starts_with("ENDED") && line.contains("signal")))
}

fn on_kernel(lab: &Lab, program: &Semantics, case: &str, connections: Connections) -> Result<Observed> {
    let command = connections.start(lab.command(Ns::Client, "env"), program);
    let answer = program.run(lab, case, Ns::Client, command)?;
    let broken = broken(&answer);
    ensure!(broken.is_none(), "{case} on the kernel: {broken:?}");
    Ok(answer)
}

/// Returns how ours differs from each result that the kernel has given, or `None`.
fn differs(
    lab: &Lab,
    program: &Semantics,
    case: &str,
    connections: Connections,
    ours: &Observed,
) -> Result<Option<String>> {
    let mut first = None;
    for _ in 0..=REPEATED {
        let Some(how) = difference(&on_kernel(lab, program, case, connections)?, ours) else { return Ok(None) };
        first.get_or_insert(how);
    }
    Ok(first)
}

/// Runs one of `TESTS` parts of the cases. Parts run in parallel, because a case mostly waits.
fn observes_what_the_kernel_does(part: usize, connections: Connections) -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let program = Semantics::build()?;
        let mut daemon = Daemon::start(lab, Ns::Host)?.eager();
        let (mut equal, mut accepted, mut differing) = (0, 0, Vec::new());
        for case in program.cases().into_iter().skip(part).step_by(TESTS) {
            let command = connections.start(daemon.command(lab, "env"), &program);
            let ours = program.run(lab, case, daemon.ns(), command)?;
            match differs(lab, &program, case, connections, &ours)? {
                None => equal += 1,
                Some(how) => match ACCEPTED.iter().find(|(name, _)| *name == case && !has_crashed(&ours)) {
                    Some((_, why)) => {
                        println!("{case} differs, accepted: {why}");
                        accepted += 1;
                    }
                    None => {
                        println!("{case} differs:\n{how}");
                        differing.push(case);
                    }
                },
            }
        }
        let [promoted, sends] = ["promoted", "ring_sends"].map(|name| daemon.reported(name));
        println!("{equal} equal, {accepted} accepted, {} differ", differing.len());
        println!("{promoted} sockets got a ring, {sends} sends by it");
        ensure!(differing.is_empty(), "{} differ: {}", differing.len(), differing.join(", "));
        let is_part = std::env::var_os("FS_TEST_CASE").is_some();
        ensure!(
            is_part || connections == Connections::Fresh || promoted >= 20 && sends >= 100,
            "the ring was not used"
        );
        daemon.stop()
    })
}

const TESTS: usize = 16;

macro_rules! parts {
    ($($warm:ident, $fresh:ident = $part:literal;)*) => {
        $(
            #[test]
            fn $warm() -> Result<()> {
                observes_what_the_kernel_does($part, Connections::Warm)
            }

            #[test]
            #[ignore = "long: make proof"]
            fn $fresh() -> Result<()> {
                observes_what_the_kernel_does($part, Connections::Fresh)
            }
        )*
    };
}
parts! {
    calls_on_a_ring_return_what_the_kernels_do_1, calls_before_a_ring_return_what_the_kernels_do_1 = 0;
    calls_on_a_ring_return_what_the_kernels_do_2, calls_before_a_ring_return_what_the_kernels_do_2 = 1;
    calls_on_a_ring_return_what_the_kernels_do_3, calls_before_a_ring_return_what_the_kernels_do_3 = 2;
    calls_on_a_ring_return_what_the_kernels_do_4, calls_before_a_ring_return_what_the_kernels_do_4 = 3;
    calls_on_a_ring_return_what_the_kernels_do_5, calls_before_a_ring_return_what_the_kernels_do_5 = 4;
    calls_on_a_ring_return_what_the_kernels_do_6, calls_before_a_ring_return_what_the_kernels_do_6 = 5;
    calls_on_a_ring_return_what_the_kernels_do_7, calls_before_a_ring_return_what_the_kernels_do_7 = 6;
    calls_on_a_ring_return_what_the_kernels_do_8, calls_before_a_ring_return_what_the_kernels_do_8 = 7;
    calls_on_a_ring_return_what_the_kernels_do_9, calls_before_a_ring_return_what_the_kernels_do_9 = 8;
    calls_on_a_ring_return_what_the_kernels_do_10, calls_before_a_ring_return_what_the_kernels_do_10 = 9;
    calls_on_a_ring_return_what_the_kernels_do_11, calls_before_a_ring_return_what_the_kernels_do_11 = 10;
    calls_on_a_ring_return_what_the_kernels_do_12, calls_before_a_ring_return_what_the_kernels_do_12 = 11;
    calls_on_a_ring_return_what_the_kernels_do_13, calls_before_a_ring_return_what_the_kernels_do_13 = 12;
    calls_on_a_ring_return_what_the_kernels_do_14, calls_before_a_ring_return_what_the_kernels_do_14 = 13;
    calls_on_a_ring_return_what_the_kernels_do_15, calls_before_a_ring_return_what_the_kernels_do_15 = 14;
    calls_on_a_ring_return_what_the_kernels_do_16, calls_before_a_ring_return_what_the_kernels_do_16 = 15;
}

/// A program's own allocator holds its locks from its handler before a fork until its handlers
/// after it. The library's handlers run in between.
#[test]
fn forks_with_an_allocator_that_holds_its_locks() -> Result<()> {
    const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    if !std::path::Path::new(JEMALLOC).exists() {
        println!("skipped: no {JEMALLOC} (lab/install test)");
        return Ok(());
    }
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let program = Semantics::build()?;
        let mut daemon = Daemon::start(lab, Ns::Host)?.eager();
        let preload = &daemon.environment()[0];
        let cases: Vec<&str> = program.cases().into_iter().filter(|case| case.starts_with("atfork_")).collect();
        ensure!(cases.len() >= 3, "the cases have other names");
        for case in cases {
            let mut command = daemon.command(lab, "env");
            // Without per-thread caches every allocation takes a lock.
            command.args([&format!("{preload} {JEMALLOC}"), "MALLOC_CONF=tcache:false,narenas:1"]);
            let ours = program.run(lab, case, Ns::Host, Connections::Warm.start(command, &program))?;
            let how = differs(lab, &program, case, Connections::Warm, &ours)?;
            ensure!(how.is_none(), "{case}: {}", how.unwrap_or_default());
        }
        daemon.stop()
    })
}
