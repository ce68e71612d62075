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

/// A case that may differ.
struct Accepted {
    case: &'static str,
    why: &'static str,
    /// Parts of the lines that may differ, be missing or be added. All other lines are the kernel's.
    lines: &'static [&'static str],
}

const fn accepted(case: &'static str, why: &'static str, lines: &'static [&'static str]) -> Accepted {
    Accepted { case, why, lines }
}

const ACCEPTED: &[Accepted] = &[
    accepted("epoll_order_of_additions", ORDER, &[]),
    accepted("epoll_order_of_nested", ORDER, &[]),
    accepted("pass_connection", PASSED, RESET),
    accepted("pass_by_mmsg", PASSED, RESET),
    accepted("pass_peeked", PASSED, RESET),
    accepted("close_answered_in_the_middle", MIDDLE, &["sent whole"]),
    accepted("cork_holds", NOT_HELD, &["queued ", " bytes", "MSG_DONTWAIT) = "]),
    accepted("cork_ends_by_itself", NOT_HELD, &["after ", " bytes"]),
    accepted("cork_segments", NOT_HELD, &[" bytes", "not all "]),
    accepted("cork_more", NOT_HELD, &[" bytes"]),
    // The reset comes after the bytes instead of in their place.
    accepted("cork_resets", NOT_HELD, &["recv(b, text, sizeof text, 0) = 4", "recv(b, text, sizeof text, 0) = 0"]),
];
const NOT_HELD: &str = "a ring holds nothing back: bytes under TCP_CORK or MSG_MORE are there at once";
const ORDER: &str = "the order of events of several ready members: a ring's bytes have no place in the kernel's list";
const MIDDLE: &str = "a reset that comes in the middle of a large send shortens it; when it comes is timing";
const PASSED: &str = "a connection that is sent to another process while its ring has unread bytes is reset";
/// A process that the reset ends says nothing further.
const RESET: &[&str] = &["-1 ECONNRESET", "child ended with ", "ENDED exit status: 98"];

impl Accepted {
    /// Returns true if the results differ in what this accepts only.
    fn covers(&self, kernel: &Observed, ours: &Observed) -> bool {
        let rest = |observed: &Observed| -> Observed {
            let kept = observed.iter().filter(|line| !self.lines.iter().any(|part| line.contains(part)));
            let sorted = |line: &String| {
                let mut words: Vec<&str> = line.split(' ').collect();
                if self.why == ORDER {
                    words.sort_unstable();
                }
                words.join(" ")
            };
            kept.map(sorted).collect()
        };
        let (kernel, ours) = (rest(kernel), rest(ours));
        if self.why == PASSED {
            // What is left of ours is the kernel's, in its order.
            let mut of_kernel = kernel.iter();
            return ours.iter().all(|line| of_kernel.any(|other| other == line));
        }
        kernel == ours
    }
}

/// Number of times that a case is repeated on the kernel if its result there is another one than
/// ours: it may depend on timing.
const REPEATED: usize = 8;

/// Returns the line of a case that a signal, a failed check or the time limit has ended.
fn broken(observed: &Observed) -> Option<&String> {
    observed.iter().find(|line| ["DIED", "ENDED", "STILL RAN"].iter().any(|end| line.starts_with(end)))
}

fn on_kernel(lab: &Lab, program: &Semantics, case: &str, connections: Connections) -> Result<Observed> {
    let command = connections.start(lab.command(Ns::Client, "env"), program);
    let answer = program.run(lab, case, Ns::Client, command)?;
    let broken = broken(&answer);
    ensure!(broken.is_none(), "{case} on the kernel: {broken:?}");
    Ok(answer)
}

/// A difference from each result that the kernel has given, and why it is accepted, if it is.
struct Difference {
    how: String,
    accepted: Option<&'static str>,
}

/// Returns how ours differs from each result that the kernel has given, or `None`.
fn differs(
    lab: &Lab,
    program: &Semantics,
    case: &str,
    connections: Connections,
    ours: &Observed,
) -> Result<Option<Difference>> {
    let rule = ACCEPTED.iter().find(|rule| rule.case == case);
    let mut first = None;
    for _ in 0..=REPEATED {
        let kernel = on_kernel(lab, program, case, connections)?;
        let Some(how) = difference(&kernel, ours) else { return Ok(None) };
        let accepted = rule.filter(|rule| rule.covers(&kernel, ours)).map(|rule| rule.why);
        let first = first.get_or_insert(Difference { how, accepted });
        first.accepted = first.accepted.or(accepted);
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
                Some(Difference { accepted: Some(why), .. }) => {
                    println!("{case} differs, accepted: {why}");
                    accepted += 1;
                }
                Some(Difference { how, .. }) => {
                    println!("{case} differs:\n{how}");
                    differing.push(case);
                }
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

#[test]
fn accepted_differences_hide_no_other() {
    let covers = |case: &str, kernel: &[&str], ours: &[&str]| {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Observed>();
        let rule = ACCEPTED.iter().find(|rule| rule.case == case).expect("a rule");
        rule.covers(&lines(kernel), &lines(ours))
    };
    let held =
        ["queued 3", "0 bytes", "other events: 0", "recv(b, text, sizeof text, MSG_DONTWAIT) = -1 EAGAIN", "abcdef"];
    let sent = ["queued 0", "3 bytes", "other events: 0", "recv(b, text, sizeof text, MSG_DONTWAIT) = 3", "abcdef"];
    assert!(covers("cork_holds", &held, &sent));
    assert!(!covers("cork_holds", &held, &[&sent[..4], &["abcdeg"]].concat()), "a wrong byte");
    assert!(!covers("cork_holds", &held, &sent[..4]), "lost bytes");
    let unseen = ["queued 0", "3 bytes", "other events: IN"];
    assert!(!covers("cork_holds", &held, &[&unseen[..], &sent[3..]].concat()), "bytes without POLLIN");
    assert!(!covers("cork_holds", &held, &[&sent[..], &["ENDED signal: 11 (SIGSEGV)"]].concat()));
    assert!(!covers("cork_more", &["header body"], &["STILL RAN and was killed"]));
    assert!(covers("epoll_order_of_additions", &["order: 1 3 2 0"], &["order: 0 1 3 2"]));
    assert!(!covers("epoll_order_of_additions", &["order: 1 3 2 0"], &["order: 0 1 3"]), "a lost event");
    let passed = ["receiver got given", "thanks", "recv(a, text, 1, 0) = 0", "child ended with 0"];
    let reset = ["DIED recv of 6: -1 ECONNRESET", "DIED recv of 5: -1 ECONNRESET", "ENDED exit status: 98"];
    assert!(covers("pass_connection", &passed, &reset));
    assert!(!covers("pass_connection", &passed, &[&["receiver got givem"], &reset[..]].concat()));
    assert!(!covers("pass_connection", &passed, &[&reset[..2], &["ENDED signal: 11 (SIGSEGV)"]].concat()));
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
            ensure!(how.is_none(), "{case}: {}", how.map(|how| how.how).unwrap_or_default());
        }
        daemon.stop()
    })
}
