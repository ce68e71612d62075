//! Small programs that once failed under a preloaded library (`tests/repro`): each now prints the same as on
//! the kernel.

use anyhow::{Context, Result, ensure};
use fs_tests::apps::{made, workspace};
use fs_tests::unmodified::Daemon;
use fs_tests::{Lab, Ns};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Seconds for one program. The slowest takes about eight on a quiet machine.
const LIMIT_S: &str = "120";

/// A program that is right if its output has one of `want` and none of `never`. A pattern with `^`
/// matches at the start of a line.
struct Case<'a> {
    command: &'a [&'a str],
    want: &'a [&'a str],
    never: &'a [&'a str],
}

const fn case<'a>(command: &'a [&'a str], want: &'a [&'a str], never: &'a [&'a str]) -> Case<'a> {
    Case { command, want, never }
}

/// Returns a program's output, and how it ended.
fn output(command: &mut Command) -> Result<String> {
    let output = command.current_dir(workspace().join("tests/repro")).output().context("timeout(1)")?;
    let text = [output.stdout, output.stderr].concat();
    Ok(format!("{}exit {}\n", String::from_utf8_lossy(&text), output.status.code().unwrap_or(-1)))
}

/// Runs the cases under the library. A failure counts only if the program works on the kernel.
fn all(cases: &[Case]) -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.eager();
        let mut wrong = Vec::new();
        for case in cases {
            let name = case.command.join(" ");
            let has = |text: &str, pattern: &&str| match pattern.strip_prefix('^') {
                Some(start) => text.lines().any(|line| line.starts_with(start)),
                None => text.contains(*pattern),
            };
            let is_right =
                |text: &str| case.want.iter().any(|p| has(text, p)) && !case.never.iter().any(|p| has(text, p));
            let ours = output(daemon.command(lab, "timeout").arg(LIMIT_S).args(case.command))?;
            if is_right(&ours) {
                println!("{name}: right");
                continue;
            }
            let kernel = output(lab.command(Ns::Host, "timeout").arg(LIMIT_S).args(case.command))?;
            println!("{name}: kernel:\n{kernel}\n{name}: under the library:\n{ours}");
            // Wrong on the kernel too: the program or its interpreter is at fault, and shows nothing.
            wrong.push(if is_right(&kernel) { name } else { format!("{name} (on the kernel too)") });
        }
        let [promoted, sends] = ["promoted", "ring_sends"].map(|name| daemon.reported(name));
        println!("{promoted} sockets got a ring, {sends} sends by it");
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

#[test]
fn listeners_stay_awake() -> Result<()> {
    const DEAF: &[&str] = &["NO ANSWER"];
    all(&[
        case(&["python3", "del_listener_kills_upstream_wakeups.py", "blocking"], &["exit 0"], DEAF),
        case(&["python3", "del_listener_kills_upstream_wakeups.py", "epoll"], &["exit 0"], DEAF),
        case(&["python3", "deaf_listener.py", "del"], &["connection 2 answered"], DEAF),
        case(&["python3", "deaf_listener.py", "close"], &["connection 2 answered"], DEAF),
        case(&["bash", "haproxy_maxconn.sh"], &["after: 200 200 200"], &[]),
        case(
            &["python3", "accept_lost_wakeup.py", "9100", "6", "4", "60", "A", "0"],
            &["exit 0"],
            &["lost", "Traceback"],
        ),
    ])
}

#[test]
fn idle_readers_and_buffers() -> Result<()> {
    all(&[
        case(&["python3", "echo_deadlock.py"], &["4000000 ok"], &["DEADLOCK"]),
        case(&["python3", "capacity2.py"], &["requests of 100 B: 5000 ok"], &[]),
        case(&["python3", "selfwrite.py"], &["60000 bytes ok"], &[]),
        case(&["python3", "sndbuf.py"], &["woke"], &["STILL ASLEEP"]),
    ])
}

#[test]
fn epoll_order_and_changes() -> Result<()> {
    all(&[
        // All are reported. Their order is another one if some of the connections have rings (docs/PRELOAD.md, What is open).
        case(&["python3", "epoll_order.py"], &["^rounds not in the order of arrival: "], &[]),
        case(&["python3", "epoll_mod_kernel.py"], &["DEL ok"], &["^MOD: [", "^DEL: ["]),
        case(&["node", "node_abort.js"], &["answered again"], &[]),
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
    let wants: Vec<String> = ways.iter().map(|way| format!("^{way} spare")).collect();
    let mut commands = Vec::new();
    for (way, want) in ways.iter().zip(&wants) {
        for spare in ["0", "2"] {
            commands.push((vec!["python3", "poll_no_fds.py", way, spare], [want.as_str()]));
            commands.push((vec!["python3", "poll_no_fds.py", way, spare, "early"], [want.as_str()]));
        }
    }
    let cases: Vec<Case> = commands.iter().map(|(command, want)| case(command, want, &["EXC"])).collect();
    all(&cases)
}

#[test]
fn descriptors_come_back() -> Result<()> {
    all(&[
        case(&["python3", "emfile2.py", "epoll"], &["client got"], &["ENOMEM"]),
        case(&["python3", "emfile2.py", "poll"], &["client got"], &["ENOMEM"]),
        case(&["python3", "emfile.py"], &["client got"], &["poll: ENOMEM", "poll: EMFILE", "ADD: E"]),
        case(&["python3", "emfile.py", "early"], &["client got"], &["poll: ENOMEM", "poll: EMFILE"]),
    ])
}

#[test]
fn bound_sockets_of_several_processes() -> Result<()> {
    const ENDS: &[&str] = &["exit 0"];
    const BAD: &[&str] = &["Traceback", "timed out"];
    all(&[
        case(&["python3", "bind_fork_listen.py", "fork", "child"], ENDS, BAD),
        case(&["python3", "bind_fork_listen.py", "fork", "parent"], ENDS, BAD),
        case(&["python3", "bind_fork_listen.py", "scm", "child"], ENDS, BAD),
        case(&["python3", "bind_fork_listen.py", "scm", "parent"], ENDS, BAD),
        case(&["python3", "bind_fork_listen.py", "forklisten", "child"], ENDS, BAD),
        case(&["python3", "bind_fork_listen.py", "forklisten", "parent"], ENDS, BAD),
        case(&["python3", "bind_exec_listen.py", "8084", "fork"], &["b'hello'"], &[]),
        case(&["python3", "bind_exec_listen.py", "8085", "exec"], &["b'hello'"], &[]),
        case(&["python3", "bound_inherit.py", "exec"], &["b'x'"], &["Traceback"]),
        case(&["python3", "bound_inherit.py", "execL"], &["b'x'"], &["Traceback"]),
        case(&["python3", "bound_inherit.py", "scm"], &["b'x'"], &["Traceback"]),
        case(&["python3", "bound_inherit.py", "scmL"], &["b'x'"], &["Traceback"]),
    ])
}

#[test]
fn refusals_limits_and_ends() -> Result<()> {
    let repro = workspace().join("tests/repro");
    let programs = [compiled(&repro.join("negtimeo.c"))?, compiled(&repro.join("seccomp_fork.c"))?];
    let [negative_timeout, fork_under_seccomp] = programs.map(|path| path.display().to_string());
    all(&[
        case(&[&negative_timeout], &["recv -1 Resource"], &[]),
        case(&[&fork_under_seccomp], &["exit 0"], &["signal"]),
        case(&["python3", "refused_retry.py"], &["after listen 0", "after listen EISCONN"], &[]),
        case(&["python3", "refused_retry.py", "nb"], &["after listen 0", "after listen EISCONN"], &[]),
        case(&["python3", "rlimit_as.py", "8093"], &["client got b'hi'"], &[]),
        case(&["python3", "namelen.py"], &["namelen=-1: -1 EINVAL"], &[]),
        case(&["python3", "exit_after_send.py", "300"], &["^done"], &["STUCK"]),
    ])
}

#[test]
fn many_opens_leak_nothing() -> Result<()> {
    all(&[
        case(&["python3", "leak.py"], &["after 200 forks"], &[]),
        case(&["python3", "listeners.py"], &["^OK 3000"], &[]),
    ])
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
    let cases: Vec<Case> =
        commands.iter().map(|command| case(command, &["right", "^0 of"], &["WRONG", "Broken"])).collect();
    all(&cases)
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
