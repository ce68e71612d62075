//! The two sides: a namespace with a runner on the kernel, and one with a daemon and a runner under
//! preload.

use crate::serve::Request;
use crate::sys::process;
use anyhow::{Context, Result, bail, ensure};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The result of a program that took too long.
pub const HANGS: &str = "HANGS";

/// The start of the result of a program whose runner died.
pub const DIES: &str = "DIES";

/// The library's counters, in a side's directory.
const REPORT: &str = "report";

/// The results of a run.
pub type Trace = Vec<String>;

/// One side.
pub struct Side {
    namespace: String,
    /// On our side, the `fastsock` program and its daemon.
    ours: Option<(PathBuf, Child)>,
    dir: PathBuf,
    runner: Option<Child>,
    served: u32,
    /// Start of the current program.
    begun: Instant,
}

fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).output().context("ip")?;
    ensure!(output.status.success(), "ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(())
}

impl Side {
    /// Makes a namespace, with a daemon in it if `fastsock` is given.
    pub fn up(name: &str, fastsock: Option<&Path>) -> Result<Side> {
        // The test runner removes namespaces that begin with FS_LAB.
        let run = std::env::var("FS_LAB").unwrap_or_else(|_| "fst".into());
        let namespace = format!("{run}-differ-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(&namespace);
        std::fs::create_dir_all(&dir)?;
        ip(&["netns", "add", &namespace])?;
        let mut side = Side { namespace, ours: None, dir, runner: None, served: 0, begun: Instant::now() };
        ip(&["-n", &side.namespace, "link", "set", "lo", "up"])?;
        let range = "net.ipv4.ip_local_port_range=52000 65000";
        let set = side.command("sysctl").args(["-qw", range]).status()?;
        ensure!(set.success(), "sysctl {range}");
        if let Some(fastsock) = fastsock {
            let log = std::fs::File::create(side.dir.join("daemon.log"))?;
            let daemon = side
                .command(&fastsock.to_string_lossy())
                .arg("up")
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()?;
            side.ours = Some((fastsock.into(), daemon));
            let until = Instant::now() + Duration::from_secs(60);
            while !side.dir.join("control").exists() {
                ensure!(Instant::now() < until, "the daemon does not come up: {}", side.dir.display());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(side)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, program]);
        command.env("FASTSOCK_CONTROL", self.dir.join("control"));
        command
    }

    /// Ends a runner after its last program, so that it writes its counters.
    fn retire(&mut self) {
        if let Some(runner) = &mut self.runner {
            drop(runner.stdin.take());
            let until = Instant::now() + Duration::from_secs(1);
            while matches!(runner.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.restart();
    }

    /// Ends the runner, and returns how many connections were promoted and how many sends went by
    /// their rings, by its counters. Actors that were killed leave none.
    pub fn carried(&mut self) -> [u64; 2] {
        self.retire();
        let text = std::fs::read_to_string(self.dir.join(REPORT)).unwrap_or_default();
        ["promoted=", "ring_sends="].map(|name| {
            let numbers = text.split_whitespace().filter_map(|word| word.strip_prefix(name)?.parse::<u64>().ok());
            numbers.sum()
        })
    }

    /// Kills the runner, so that the next program gets a fresh one.
    pub fn restart(&mut self) {
        if let Some(mut runner) = self.runner.take() {
            // Including its actors, which are in its process group.
            let _ = process::kill(-(runner.id() as i32), libc::SIGKILL);
            let _ = runner.kill();
            let _ = runner.wait();
        }
        self.served = 0;
    }

    fn runner(&mut self) -> Result<&mut Child> {
        if self.runner.is_none() {
            let own = std::env::current_exe()?;
            let mut command = match &self.ours {
                Some((fastsock, _)) => {
                    let mut command = self.command(&fastsock.to_string_lossy());
                    // Connections are promoted from their first byte on: the programs are short.
                    command.env("FASTSOCK_CALLS", "0").env("FASTSOCK_REPORT", self.dir.join(REPORT));
                    command.args(["run", "-q", "--"]).arg(own);
                    command
                }
                None => self.command(&own.to_string_lossy()),
            };
            let log = std::fs::OpenOptions::new().create(true).append(true).open(self.dir.join("runner.log"))?;
            command.process_group(0).arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
            self.runner = Some(command.spawn()?);
        }
        self.runner.as_mut().context("no runner")
    }

    /// Sends a program to the runner.
    pub fn begin(&mut self, request: &Request) -> Result<()> {
        if self.served >= 500 {
            self.retire();
        }
        self.served += 1;
        self.begun = Instant::now();
        let runner = self.runner()?;
        let input = runner.stdin.as_ref().context("no pipe")?.as_raw_fd();
        if !process::write_frame(input, &request.frame()) {
            self.restart();
            let input = self.runner()?.stdin.as_ref().context("no pipe")?.as_raw_fd();
            if !process::write_frame(input, &request.frame()) {
                bail!("the runner does not run: see {}", self.dir.join("runner.log").display());
            }
        }
        Ok(())
    }

    /// Returns the results of the program. Its time counts from its start, so that the side that is
    /// read second has no more time.
    pub fn finish(&mut self, request: &Request) -> Result<Trace> {
        let spent = self.begun.elapsed().as_millis() as i32;
        let left = (request.limit() * request.patience.clamp(1, 4) as i32 - spent).max(0);
        let output = self.runner()?.stdout.as_ref().context("no pipe")?.as_raw_fd();
        if !process::readable(&[output], left)[0] {
            self.restart();
            return Ok(vec![HANGS.into()]);
        }
        let Some(bytes) = process::read_frame(output) else {
            let status = self.runner()?.wait()?;
            self.restart();
            return Ok(vec![format!("{DIES}: {status}")]);
        };
        Ok(ports(&String::from_utf8_lossy(&bytes)).lines().map(str::to_owned).collect())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.restart();
        if let Some((_, daemon)) = &mut self.ours {
            let _ = process::kill(daemon.id() as i32, libc::SIGTERM);
            let until = Instant::now() + Duration::from_secs(3);
            while matches!(daemon.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = ip(&["netns", "del", &self.namespace]);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Replaces ports that the kernel chose by numbers in order of appearance.
fn ports(text: &str) -> String {
    let mut seen: Vec<String> = Vec::new();
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("/:") {
        let (before, after) = rest.split_at(at + 2);
        out.push_str(before);
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (port, after) = after.split_at(end);
        let index = seen.iter().position(|known| known == port).unwrap_or_else(|| {
            seen.push(port.into());
            seen.len() - 1
        });
        out.push_str(&format!("e{index}"));
        rest = after;
    }
    out + rest
}
