//! Small programs that once failed under a preloaded library (`tests/repro`): each finds everything right, as on
//! the kernel, and says so in its last line.

use anyhow::{Context, Result, ensure};
use fs_tests::apps::{made, workspace};
use fs_tests::unmodified::Daemon;
use fs_tests::{Lab, Ns};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Seconds for one program. The slowest takes about eight on a quiet machine.
const LIMIT_S: &str = "300";

/// The start of the last line of a program that found everything right.
const RIGHT: &str = "RIGHT";

/// Programs whose connections get a ring unless they are paused. In the others a connection may end before both ends have
/// asked for one.
const WITH_RING: &[&str] = &[
    "accept_lost_wakeup.py",
    "capacity2.py",
    "/clone",
    "deaf_listener.py",
    "del_listener_kills_upstream_wakeups.py",
    "echo_deadlock.py",
    "epoll_order.py",
    "exec_cloexec.py",
    "exit_after_send.py",
    "fork_nofile.py",
    "killed_dup.py",
    "leak.py",
    "listeners.py",
    "namelen.py",
    "selfwrite.py",
    "share_eagain.py",
    "sndbuf.py",
    "spawn_cloexec.py",
];

/// A program of `tests/repro` with its arguments.
type Case<'a> = &'a [&'a str];

/// Returns a program's output, and how it ended.
fn output(command: &mut Command) -> Result<String> {
    let output = command.current_dir(workspace().join("tests/repro")).output().context("timeout(1)")?;
    // Its own verdict is the last line of its standard output.
    let text = [output.stderr, output.stdout].concat();
    Ok(format!("{}exit {}\n", String::from_utf8_lossy(&text), output.status.code().unwrap_or(-1)))
}

/// Returns true if a program ended with status 0, and its last line is [`RIGHT`].
fn is_right(output: &str) -> bool {
    let mut last = output.lines().rev();
    last.next() == Some("exit 0") && last.next().is_some_and(|verdict| verdict.starts_with(RIGHT))
}

/// Runs the cases under the library. A failure counts as well if the program fails on the kernel: it or its
/// interpreter is at fault, and shows nothing.
fn all(cases: &[Case]) -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.eager();
        let mut wrong = Vec::new();
        for case in cases {
            let name = case.join(" ");
            let has_ring = WITH_RING.iter().any(|program| name.contains(program));
            let (mut ours, mut promoted) = (String::new(), 0);
            // If a program is paused for longer than an offer waits, its only connection gets no ring.
            for _ in 0..5 {
                let before = daemon.promoted(lab)?;
                ours = output(daemon.command(lab, "timeout").arg(LIMIT_S).args(*case))?;
                promoted = daemon.promoted(lab)? - before;
                if !has_ring || promoted > 0 || !is_right(&ours) {
                    break;
                }
            }
            if has_ring && is_right(&ours) && promoted == 0 {
                println!("{name}: no connection got a ring:\n{ours}");
                wrong.push(name);
                continue;
            }
            if is_right(&ours) {
                println!("{name}: right, {promoted} connections got a ring");
                continue;
            }
            let kernel = output(lab.command(Ns::Host, "timeout").arg(LIMIT_S).args(*case))?;
            println!("{name}: kernel:\n{kernel}\n{name}: under the library:\n{ours}");
            wrong.push(if is_right(&kernel) { name } else { format!("{name} (on the kernel too)") });
        }
        ensure!(wrong.is_empty(), "wrong under the library: {}", wrong.join("; "));
        daemon.stop()
    })
}

/// Compiles a program of `tests/repro`.
fn compiled(source: &Path) -> Result<PathBuf> {
    compiled_with(source, &["-pthread"])
}

fn compiled_with(source: &Path, options: &[&str]) -> Result<PathBuf> {
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(source.file_stem().context("no name")?);
    let is_cpp = source.extension().is_some_and(|kind| kind == "cc");
    // Other tests may run it at this time.
    made(&program, |program| {
        let mut compiler = Command::new(if is_cpp { "c++" } else { "cc" });
        let status = compiler.args(["-O1", "-w"]).args(options).arg("-o").arg(program).arg(source).status()?;
        ensure!(status.success(), "{} does not compile", source.display());
        Ok(())
    })?;
    Ok(program)
}

/// The programs of `tests/repro/kernel` print under the library what they print on the kernel. They are from the
/// reports of users, and from test suites of other projects.
#[test]
fn prints_what_the_kernel_prints() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.eager();
        let repro = workspace().join("tests/repro");
        let plugin = compiled_with(&repro.join("deepbind_plugin.c"), &["-shared", "-fPIC"])?;
        let mut wrong = Vec::new();
        let mut ran = 0;
        for file in std::fs::read_dir(repro.join("kernel"))? {
            let file = file?.path();
            let command = if file.extension().is_some_and(|kind| kind == "py") {
                vec!["python3".into(), file.clone()]
            } else {
                vec![compiled(&file)?, plugin.clone()]
            };
            let kernel = output(lab.command(Ns::Host, "timeout").arg(LIMIT_S).args(&command))?;
            let ours = output(daemon.command(lab, "timeout").arg(LIMIT_S).args(&command))?;
            if kernel != ours {
                println!("{}: kernel:\n{kernel}\nunder the library:\n{ours}", file.display());
                wrong.push(file.display().to_string());
            }
            ensure!(kernel.ends_with("exit 0\n"), "{}: {kernel}", file.display());
            ran += 1;
        }
        ensure!(wrong.is_empty(), "not as on the kernel: {}", wrong.join("; "));
        ensure!(ran >= 9 && daemon.reported("promoted") > 0, "{ran} programs, and no ring");
        daemon.stop()
    })
}

/// AddressSanitizer's runtime wants to be the first library (google/sanitizers#796).
#[test]
fn program_with_address_sanitizer_runs() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let Ok(program) = compiled_with(&workspace().join("tests/repro/asan.c"), &["-fsanitize=address"]) else {
            println!("skipped: this compiler has no AddressSanitizer");
            return Ok(());
        };
        let mut daemon = Daemon::start(lab, Ns::Host)?;
        for before in [None, Some("detect_leaks=0")] {
            let mut run = lab.command(Ns::Host, fs_tests::unmodified::daemon::program());
            run.args(["run", "--quiet", "--", "sh", "-c"]).arg(format!("exec {}", program.display()));
            run.env_remove("ASAN_OPTIONS").env("FASTSOCK_CONTROL", daemon.control());
            if let Some(before) = before {
                run.env("ASAN_OPTIONS", before);
            }
            let said = output(&mut run)?;
            ensure!(said == "OK 5 hello\nexit 0\n", "{before:?}: {said}");
        }
        daemon.stop()
    })
}

/// Outputs of programs that found a bug, as they were when patterns in the whole output decided.
#[test]
fn rejects_bad_outputs() {
    let bad = [
        "round 3 A STALL: answered 2 of 4 in 3 s\nA 0.0 stalls 1 in 60 rounds\nWRONG\nexit 0\n",
        "before 8 138\nafter 20000 20058 40138\nWRONG\nexit 0\n",
        "poll spare 0  [] b'x' 30.001\nWRONG\nexit 0\n",
        "after closing 8: [] 30.0 s\naccept: ok\nclient got b''\nWRONG\nexit 0\n",
        "exit 8\nWRONG\nexit 0\n",
        "parent accepted 20\nclients that saw EOF/RST: 3 (order parent: expect 20 EOF, order child: 0)\nWRONG\nexit 0\n",
        "2 of 2 workers sleep in the kernel's accept (0 is right)\nexit 0\n",
        "RIGHT\nexit 124\n",
        "RIGHT\nexit -1\n",
        "RIGHT\nchild accept: timed out\nexit 0\n",
        "exit 0\n",
        "",
    ];
    for output in bad {
        assert!(!is_right(output), "{output}");
    }
    assert!(is_right("4000000 ok\nRIGHT\nexit 0\n") && is_right("RIGHT: it slept on\nexit 0\n"));
}

#[test]
fn listeners_stay_awake() -> Result<()> {
    all(&[
        &["python3", "del_listener_kills_upstream_wakeups.py", "blocking"],
        &["python3", "del_listener_kills_upstream_wakeups.py", "epoll"],
        &["python3", "deaf_listener.py", "del"],
        &["python3", "deaf_listener.py", "close"],
        &["bash", "haproxy_maxconn.sh"],
        &["python3", "accept_lost_wakeup.py", "9100", "6", "4", "60", "A", "0"],
    ])
}

#[test]
fn idle_readers_and_buffers() -> Result<()> {
    all(&[
        &["python3", "echo_deadlock.py"],
        &["python3", "capacity2.py"],
        &["python3", "selfwrite.py"],
        &["python3", "sndbuf.py"],
    ])
}

#[test]
fn epoll_order_and_changes() -> Result<()> {
    all(&[
        // All are reported. Their order is another one if some of the connections have rings
        // (docs/PRELOAD.md, What is open).
        &["python3", "epoll_order.py"],
        &["python3", "epoll_mod_kernel.py"],
        &["node", "node_abort.js"],
    ])
}

#[test]
fn no_free_descriptor_in_poll_and_select() -> Result<()> {
    no_free_descriptor(&["poll", "poll2", "select"])
}

#[test]
fn no_free_descriptor_in_epoll_and_recv() -> Result<()> {
    no_free_descriptor(&["epoll", "recv"])
}

/// A process at its limit of descriptors, or one or two below it, waits in these ways and gets its
/// event.
fn no_free_descriptor(ways: &[&str]) -> Result<()> {
    let mut commands = Vec::new();
    for way in ways {
        for spare in ["0", "2"] {
            commands.push(vec!["python3", "poll_no_fds.py", way, spare]);
            commands.push(vec!["python3", "poll_no_fds.py", way, spare, "early"]);
        }
    }
    all(&commands.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

#[test]
fn descriptors_come_back() -> Result<()> {
    all(&[
        &["python3", "emfile2.py", "epoll"],
        &["python3", "emfile2.py", "poll"],
        &["python3", "emfile.py"],
        &["python3", "emfile.py", "early"],
    ])
}

#[test]
fn bound_sockets_of_several_processes() -> Result<()> {
    all(&[
        &["python3", "bind_fork_listen.py", "fork", "child"],
        &["python3", "bind_fork_listen.py", "fork", "parent"],
        &["python3", "bind_fork_listen.py", "scm", "child"],
        &["python3", "bind_fork_listen.py", "scm", "parent"],
        &["python3", "bind_fork_listen.py", "forklisten", "child"],
        &["python3", "bind_fork_listen.py", "forklisten", "parent"],
        &["python3", "bind_exec_listen.py", "8084", "fork"],
        &["python3", "bind_exec_listen.py", "8085", "exec"],
        &["python3", "bound_inherit.py", "exec"],
        &["python3", "bound_inherit.py", "execL"],
        &["python3", "bound_inherit.py", "scm"],
        &["python3", "bound_inherit.py", "scmL"],
    ])
}

#[test]
fn refusals_limits_and_ends() -> Result<()> {
    let repro = workspace().join("tests/repro");
    let programs = [compiled(&repro.join("negtimeo.c"))?, compiled(&repro.join("seccomp_fork.c"))?];
    let [negative_timeout, fork_under_seccomp] = programs.map(|path| path.display().to_string());
    all(&[
        &[&negative_timeout],
        &[&fork_under_seccomp],
        &["python3", "refused_retry.py"],
        &["python3", "refused_retry.py", "nb"],
        &["python3", "rlimit_as.py", "8093"],
        &["python3", "namelen.py"],
        &["python3", "exit_after_send.py", "300"],
    ])
}

#[test]
fn many_opens_leak_nothing() -> Result<()> {
    all(&[&["python3", "leak.py"], &["python3", "listeners.py"]])
}

/// The programs of `tests/repro/races`, distributed over `RACES` tests that run in parallel.
fn races(test: usize) -> Result<()> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(workspace().join("tests/repro/races"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    ensure!(files.len() >= 10, "only {} programs found", files.len());
    let mut commands = Vec::new();
    for file in files.iter().skip(test).step_by(RACES) {
        let is_c = file.extension().is_some_and(|kind| kind == "c");
        let program = if is_c { compiled(file)? } else { file.clone() }.display().to_string();
        commands.push(if is_c { vec![program] } else { vec!["python3".into(), program] });
    }
    let commands: Vec<Vec<&str>> =
        commands.iter().map(|command| command.iter().map(String::as_str).collect()).collect();
    all(&commands.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

const RACES: usize = 8;

#[test]
fn races_1() -> Result<()> {
    races(0)
}

#[test]
fn races_2() -> Result<()> {
    races(1)
}

#[test]
fn races_3() -> Result<()> {
    races(2)
}

#[test]
fn races_4() -> Result<()> {
    races(3)
}

#[test]
fn races_5() -> Result<()> {
    races(4)
}

#[test]
fn races_6() -> Result<()> {
    races(5)
}

#[test]
fn races_7() -> Result<()> {
    races(6)
}

#[test]
fn races_8() -> Result<()> {
    races(7)
}
