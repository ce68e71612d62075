//! A lab of three namespaces for as long as its owner lives; see `lab/net` for the picture.

use crate::process::Proc;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Address of the host on the client's side.
pub const FRONT: &str = "10.77.1.1";
/// The same, IPv6.
pub const FRONT6: &str = "fd77:1::1";
/// Address of the client.
pub const CLIENT: &str = "10.77.1.2";
/// Address of the host on the backend's side.
pub const BACK: &str = "10.77.2.1";
/// Address of the backend.
pub const BACKEND: &str = "10.77.2.2";
/// The same, IPv6.
pub const BACKEND6: &str = "fd77:2::2";

/// Labs use much CPU, so only one exists at a time within a test program.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The prefix of this process's namespaces: `FS_LAB`, with which the test runner finds leftovers,
/// and the process id.
pub fn prefix() -> String {
    let run = std::env::var("FS_LAB").unwrap_or_else(|_| "fst".into());
    format!("{run}-{}", std::process::id())
}

/// One of a lab's namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ns {
    /// `client0`
    Client,
    /// `front0` and `back0`
    Host,
    /// `backend0`
    Backend,
}

impl Ns {
    fn name(self) -> &'static str {
        match self {
            Ns::Client => "client",
            Ns::Host => "host",
            Ns::Backend => "backend",
        }
    }
}

/// A lab. Dropping it removes it with everything that runs in it.
pub struct Lab {
    prefix: String,
    dir: PathBuf,
    logs: Mutex<Vec<PathBuf>>,
    _serial: MutexGuard<'static, ()>,
}

impl Lab {
    /// Creates a lab with `lab/net up` and these further arguments. Returns `None` and prints a
    /// line `skipped: …` if namespaces cannot be created. `FS_TEST_MUST_RUN=1` makes that an error.
    pub fn up(args: &[&str]) -> Result<Option<Lab>> {
        if !can_administer() {
            ensure!(std::env::var_os("FS_TEST_MUST_RUN").is_none(), "not root, and FS_TEST_MUST_RUN is set");
            let test = std::thread::current().name().unwrap_or("lab").to_owned();
            println!("skipped: {test}: not root (network namespaces need CAP_NET_ADMIN and CAP_SYS_ADMIN)");
            return Ok(None);
        }
        Self::require(args).map(Some)
    }

    /// Like [`Lab::up`], but fails if namespaces cannot be created.
    pub fn require(args: &[&str]) -> Result<Lab> {
        let serial = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{}-{number}", prefix());
        let dir = std::env::temp_dir().join(format!("fastsock-{prefix}"));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let lab = Lab { prefix, dir, logs: Mutex::default(), _serial: serial };
        lab.net(&[&["up"], args].concat())?;
        Ok(lab)
    }

    /// A folder for this lab's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The name of a namespace.
    pub fn ns(&self, ns: Ns) -> String {
        format!("{}-{}", self.prefix, ns.name())
    }

    /// Returns a command that will run in a namespace. Its process id is the program's own.
    pub fn command(&self, ns: Ns, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.ns(ns)]).arg(program).current_dir(&self.dir).stdin(Stdio::null());
        command
    }

    /// Starts a program in a namespace; its output goes to `name.log` in [`Lab::dir`].
    pub fn spawn(&self, name: &str, command: &mut Command) -> Result<Proc> {
        let proc = Proc::spawn(name, &self.dir.join(format!("{name}.log")), command)?;
        self.logs().push(proc.log_path().to_owned());
        Ok(proc)
    }

    /// Runs a program to its end.
    pub fn output(&self, ns: Ns, program: &str, args: &[&str]) -> Result<Output> {
        self.command(ns, program).args(args).output().with_context(|| format!("cannot run {program}"))
    }

    /// Runs a program to its end and returns its output. Fails if the program fails.
    pub fn run(&self, ns: Ns, program: &str, args: &[&str]) -> Result<String> {
        let output = self.output(ns, program, args)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "{program} {}: {}\n{text}{}",
            args.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(text)
    }

    /// Returns true if a TCP connection from `ns` to `host:port` is accepted.
    pub fn reaches(&self, ns: Ns, host: &str, port: u16) -> bool {
        let script = format!("exec 3<>/dev/tcp/{host}/{port}");
        let mut probe = self.command(ns, "timeout");
        probe.args(["1", "bash", "-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    }

    /// Ids of the XDP programs on a device, all modes.
    pub fn xdp_programs(&self, ns: Ns, device: &str) -> Result<Vec<u64>> {
        let text = self.run(ns, "ip", &["-j", "-d", "link", "show", "dev", device])?;
        let links: serde_json::Value = serde_json::from_str(&text).context("ip -j link")?;
        let xdp = &links[0]["xdp"];
        let attached = xdp["attached"].as_array().cloned().unwrap_or_default();
        let ids = attached.iter().chain([xdp]).filter_map(|entry| entry["prog"]["id"].as_u64());
        Ok(ids.collect())
    }

    /// Returns what a program that has ended left in the host's namespace: XDP programs on these
    /// devices, sockets (listening or not) on these ports. Empty if there is nothing.
    pub fn remains(&self, devices: &[&str], ports: &[u16]) -> Result<String> {
        let mut left = String::new();
        for device in devices {
            for id in self.xdp_programs(Ns::Host, device)? {
                left += &format!("XDP program {id} on {device}; ");
            }
        }
        let sockets = self.run(Ns::Host, "ss", &["-Htuln"])?;
        for line in sockets.lines() {
            let local = line.split_whitespace().nth(4).unwrap_or_default();
            if ports.iter().any(|port| local.ends_with(&format!(":{port}"))) {
                left += &format!("socket {local}; ");
            }
        }
        Ok(left)
    }

    fn logs(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn net(&self, args: &[&str]) -> Result<()> {
        let output = Command::new(crate::apps::workspace().join("lab/net"))
            .args(args)
            .env("FS_LAB", &self.prefix)
            .output()
            .context("cannot run lab/net")?;
        if !output.status.success() {
            bail!("lab/net {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
        if let Err(error) = self.net(&["down"]) {
            eprintln!("{error:#}");
        }
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            eprintln!("cannot remove {}: {error}", self.dir.display());
        }
    }
}

impl Lab {
    /// Prints the end of every log, for failures in CI.
    pub fn print_logs(&self) {
        for log in self.logs().iter() {
            println!("--- end of {}:\n{}", log.display(), crate::process::tail(log, 25));
        }
    }

    /// Runs a test's body. If it fails, prints the logs before they are removed with the lab.
    pub fn check(&self, body: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
        let result = body(self);
        if result.is_err() {
            self.print_logs();
        }
        result
    }
}

/// Bits 12 (NET_ADMIN) and 21 (SYS_ADMIN) of the effective capabilities; in a user namespace of our
/// own as well.
fn can_administer() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let caps = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let caps = caps.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    caps >> 12 & 1 == 1 && caps >> 21 & 1 == 1
}
