//! `fastsock top` with and without a terminal, man pages and completions: runs the program with its
//! own daemon.

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

fn fastsock() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
    command.env_remove("LD_PRELOAD").stdin(Stdio::null());
    command
}

/// A daemon in its own directory. Dropping it removes both.
struct Daemon(Child, PathBuf);

impl Daemon {
    fn start(test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("fastsock-{test}-{}", std::process::id()));
        let control = directory.join("control.sock");
        let mut command = fastsock();
        command.args(["up", "--only-local", "--control"]).arg(&control).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child, directory)
    }

    fn control(&self) -> PathBuf {
        self.1.join("control.sock")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _dead = self.0.kill().and_then(|()| self.0.wait());
        let _gone = std::fs::remove_dir_all(&self.1);
    }
}

fn ended(child: &mut Child) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _killed = child.kill();
    false
}

/// Runs `fastsock top` as the session of a new terminal. Ends it with `end` and returns its output.
fn on_terminal(control: &Path, end: impl FnOnce(&mut std::fs::File, u32)) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let end_of = || std::fs::File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let other = end_of();
    tcsetwinsize(&other, Winsize { ws_row: 30, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let before = tcgetattr(&other).unwrap().local_modes;
    assert!(before.contains(LocalModes::ECHO));
    let mut command = Command::new("setsid");
    command.args(["--ctty", env!("CARGO_BIN_EXE_fastsock"), "top", "-i", "0.2", "--control"]).arg(control);
    command.env_remove("LD_PRELOAD").env("TERM", "xterm");
    command.stdin(end_of()).stdout(end_of()).stderr(end_of());
    let mut child = command.spawn().unwrap();
    // A thread reads, because the program would block on a full terminal.
    let mut reader = std::fs::File::from(terminal.try_clone().unwrap());
    let (sender, screen) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = reader.read(&mut buffer) {
            if sender.send(String::from_utf8_lossy(&buffer[..n]).into_owned()).is_err() {
                return;
            }
        }
    });
    let mut seen = String::new();
    while !["requests/s", "memory", "kernel"].iter().all(|part| seen.contains(part)) {
        seen += &screen.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("nothing more than {seen:?}"));
    }
    end(&mut std::fs::File::from(terminal.try_clone().unwrap()), child.id());
    assert!(ended(&mut child), "{seen:?}");
    assert_eq!(tcgetattr(other.as_fd()).unwrap().local_modes, before, "the terminal is as it was");
    seen.extend(screen.try_iter());
    seen
}

#[test]
fn top_on_a_terminal_ends_by_key_and_by_signal() {
    let daemon = Daemon::start("terminal");
    let screen = on_terminal(&daemon.control(), |keys, _| keys.write_all(b"pjq").unwrap());
    // The program skips blanks by moving the cursor.
    assert!(["(this", "host", "only)", "paused"].iter().all(|word| screen.contains(word)), "{screen:?}");
    on_terminal(&daemon.control(), |_, pid| {
        assert!(Command::new("kill").arg(pid.to_string()).status().unwrap().success());
    });
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn top_without_a_terminal() {
    let daemon = Daemon::start("scripts");
    let top = |args: &[&str]| fastsock().arg("top").args(args).arg("--control").arg(daemon.control()).output().unwrap();
    let once = top(&["--once", "-i", "0.1"]);
    assert!(once.status.success(), "{}", said(&once));
    for part in ["daemon ", "this host only", "\ncarried by", "\nmemory ", "\nkernel "] {
        assert!(said(&once).contains(part), "{part}: {}", said(&once));
    }
    assert!(said(&top(&["-i", "0"])).contains("0.1 to 3600"));
    let missing = fastsock().args(["top", "--control", "/nonexistent/c.sock"]).output().unwrap();
    assert!(!missing.status.success() && said(&missing).contains("no daemon answers at"), "{}", said(&missing));
}

#[test]
fn pages_and_completions_cover_every_command() {
    let output = |args: &[&str]| said(&fastsock().args(args).output().unwrap());
    let help = output(&["--help"]);
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .map_while(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .collect();
    assert!(commands.contains(&"up") && commands.contains(&"completions"), "{help}");
    let directory = std::env::temp_dir().join(format!("fastsock-man-{}", std::process::id()));
    assert_eq!(output(&["man", "--to", directory.to_str().unwrap()]), "");
    let all = output(&["man"]);
    for command in &commands {
        let name = format!("fastsock-{command}.1");
        assert!(directory.join(&name).is_file(), "{name}");
        assert!(output(&["man", command]).contains(&format!("fastsock {command}")), "{command}");
        assert!(all.contains(&format!("fastsock\\-{command}")), "{command}: {all}");
    }
    assert!(!directory.join("fastsock-start.1").exists(), "what is hidden has no page");
    std::fs::remove_dir_all(directory).unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = output(&["completions", shell]);
        assert!(commands.iter().all(|command| script.contains(command)), "{shell}: {script}");
    }
    assert!(output(&["man", "nothing"]).contains("there is no command `nothing`"));
}
