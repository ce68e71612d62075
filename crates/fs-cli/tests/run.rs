//! `fastsock run`: the program runs in any case, and its library finds the daemon if there is one.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fs_pairs::{Client, Service};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketType};

/// A directory with a file in place of the library.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new(test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("fastsock-run-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        // The loader reports that the file is no library, and starts the program without it.
        std::fs::write(directory.join("library.so"), "").unwrap();
        Self(directory)
    }

    fn control(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    /// Runs a program that prints the library's environment.
    fn run(&self, control: &Path, options: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
        command.arg("run").args(options).args(["sh", "-c", "echo $LD_PRELOAD $FASTSOCK_CONTROL; exit 3"]);
        command
            .env_remove("LD_PRELOAD")
            .env("FASTSOCK_CONTROL", control)
            .env("FASTSOCK_LIB", self.0.join("library.so"));
        command.env_remove("INVOCATION_ID").output().unwrap()
    }

    fn expected(&self, control: &Path) -> String {
        format!("{} {}\n", self.0.join("library.so").display(), control.display())
    }

    fn up(&self) -> Daemon {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
        command.args(["up", "--control"]).arg(self.control()).env_remove("LD_PRELOAD");
        let daemon = Daemon(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
        let end = Instant::now() + Duration::from_secs(30);
        while !Service::answers(&self.control()) {
            assert!(Instant::now() < end, "the daemon does not serve");
            std::thread::sleep(Duration::from_millis(10));
        }
        daemon
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _dead = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn program_runs_without_a_daemon() {
    let place = TestDirectory::new("without");
    // No daemon can serve there, because a file has the directory's name.
    let control = place.0.join("library.so/control.sock");
    let output = place.run(&control, &[]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), place.expected(&control));
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.starts_with("fastsock: ")).collect();
    assert!(matches!(ours[..], [line] if line.contains("the kernel alone carries sh's connections")), "{said}");
    let output = place.run(&control, &["--require"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no daemon serves"), "{output:?}");
}

#[test]
fn program_finds_the_daemon() {
    let place = TestDirectory::new("with");
    let mut daemon = place.up();
    for options in [&["--require"][..], &["--quiet"]] {
        let output = place.run(&place.control(), options);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), place.expected(&place.control()));
    }
    // The service that the library uses.
    let client = Client::new(&place.control()).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(client.offer(file.as_fd(), Default::default()).is_some());
    let pid = daemon.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(daemon.0.wait().unwrap().success());
    assert!(!place.control().exists());
}

/// It cuts off each process, because it does not know the messages.
#[test]
fn daemon_of_another_version_is_said() {
    let place = TestDirectory::new("version");
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(place.control()).unwrap()).unwrap();
    rustix::net::listen(&socket, 8).unwrap();
    let thread = std::thread::spawn({
        let socket = socket.try_clone().unwrap();
        move || {
            while let Ok(client) = rustix::net::accept(&socket) {
                drop(client)
            }
        }
    });
    let restart = format!("pkill -f 'fastsock up --control {}'", place.control().display());
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let output = place.run(&place.control(), &[]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), place.expected(&place.control()));
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("another version") && said.contains(&restart) && !said.contains("get a ring") {
            break;
        }
        // On a busy host the answer may come too late.
        assert!(Instant::now() < end, "{said}");
    }
    rustix::net::shutdown(&socket, Shutdown::Both).unwrap();
    thread.join().unwrap();
}

/// systemd starts services with SIGPIPE ignored, and many programs depend on that.
#[test]
fn program_gets_the_disposition_of_sigpipe() {
    let place = TestDirectory::new("sigpipe");
    let ignored = |before: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", before, "sh", env!("CARGO_BIN_EXE_fastsock"), "run"]);
        command.args(["grep", "SigIgn", "/proc/self/status"]);
        let control = place.0.join("library.so/control.sock");
        command.env_remove("LD_PRELOAD").env("FASTSOCK_CONTROL", control);
        let output = command.env("FASTSOCK_LIB", place.0.join("library.so")).output().unwrap();
        let line = String::from_utf8_lossy(&output.stdout).into_owned();
        let signals = line.trim().rsplit('\t').next().and_then(|mask| u64::from_str_radix(mask, 16).ok());
        signals.unwrap_or_else(|| panic!("{output:?}")) >> (libc::SIGPIPE - 1) & 1 == 1
    };
    assert!(ignored("trap '' PIPE; exec \"$@\""));
    // This test's own may be ignored, and a shell cannot change that.
    let default = "exec env --default-signal=PIPE \"$@\"";
    assert!(!ignored(default));
}

/// A full disk is no reason not to start the program.
#[test]
fn program_runs_without_standard_error() {
    let place = TestDirectory::new("full");
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for (options, program) in [(&[][..], "true"), (&["--quiet"], "true"), (&[], "nonexistent-program")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
        command.arg("run").args(options).arg(program).env_remove("LD_PRELOAD").stderr(full());
        command.env("FASTSOCK_CONTROL", place.0.join("library.so/control.sock"));
        let code = command.env("FASTSOCK_LIB", place.0.join("library.so")).status().unwrap().code();
        assert_eq!(code, Some(if program == "true" { 0 } else { 127 }), "{options:?} {program}");
    }
}

#[test]
fn missing_library_is_said() {
    let place = TestDirectory::new("library");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
    command.args(["run", "true"]).env("FASTSOCK_LIB", place.0.join("none.so"));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("libfastsock.so"), "{output:?}");
}

/// ld.so would split the path, and go on without the library.
#[test]
fn library_that_ld_preload_cannot_name_is_refused() {
    let place = TestDirectory::new("blank");
    for name in ["a blank.so", "a:colon.so"] {
        let library = place.0.join(name);
        std::fs::write(&library, "").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
        let output = command.args(["run", "true"]).env("FASTSOCK_LIB", &library).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("LD_PRELOAD cannot name it"), "{output:?}");
    }
}

/// `run` starts a daemon if none serves, and it stays.
#[test]
fn program_gets_a_daemon() {
    let place = TestDirectory::new("starts");
    let output = place.run(&place.control(), &["--require"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(Service::answers(&place.control()));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("get a ring (daemon at"), "{said}");
    // The daemon's command line names its control socket, which only this test uses.
    let own = place.control().into_os_string().into_encoded_bytes();
    let is_ours = |line: &[u8]| line.split(|byte| *byte == 0).any(|word| word == own);
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let mut daemons = pids.filter(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| is_ours(&line)));
    let pid = daemons.next().unwrap();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let end = Instant::now() + Duration::from_secs(30);
    while place.control().exists() {
        assert!(Instant::now() < end, "the daemon does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}
