//! The guest's half of a run. It is the guest's only program apart from those that it starts. It
//! writes its findings line by line into the folder of results, so that they survive a crash of the
//! guest.

use super::cards::{Card, Made};
use super::initramfs::RESULTS_IN_GUEST;
use super::packages::run;
use super::peer::{Ask, Peer};
use super::{Extent, GUEST, Job, KERNELS_PORT, OURS_PORT, PEER, PEER_PORT, Step};
use crate::process::Proc;
use anyhow::{Context, Result, bail, ensure};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Prefix of `up`'s message if the daemon has ended with a reason.
pub const REFUSED: &str = "refused: ";
/// The guest's CPU is emulated, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Runs the job, and reports every step that was started.
pub fn main() -> Result<()> {
    let folder = PathBuf::from(RESULTS_IN_GUEST);
    let job: Job = serde_json::from_str(&std::fs::read_to_string(folder.join("job.json"))?)?;
    let card = Card::find(&job.card).context("no such card")?;
    let mut guest = Guest { folder, job, card, asked: 0, inside: None, up: None, servers: Vec::new() };
    let result = guest.steps();
    guest.save("dmesg", Command::new("dmesg").args(["--level", "emerg,alert,crit,err,warn"]));
    if let Err(error) = result {
        println!("vm: {error:#}");
        guest.save_state();
    }
    drop(guest.servers);
    Ok(std::fs::write(guest.folder.join("ended"), "")?)
}

/// Fills most of the free memory with non-zero bytes before drivers load: a read from a wrong
/// address of unused memory would otherwise look right (virtio_net's header of zeros,
/// docs/PLATFORMS.md). An emulated CPU takes ten seconds.
fn soil_memory() -> Result<String> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let free = text.lines().find_map(|line| line.strip_prefix("MemFree:")).context("MemFree in /proc/meminfo")?;
    let kib: usize = free.trim().trim_end_matches(" kB").parse()?;
    let begin = Instant::now();
    let mib = kib / 1024 * 3 / 4;
    drop(std::hint::black_box(vec![0xff_u8; mib << 20]));
    Ok(format!("{mib} MiB in {:.1} s", begin.elapsed().as_secs_f64()))
}

struct Guest {
    folder: PathBuf,
    job: Job,
    card: &'static Card,
    asked: u32,
    /// The peer of a veth.
    inside: Option<Peer>,
    up: Option<Proc>,
    servers: Vec<Proc>,
}

impl Guest {
    fn steps(&mut self) -> Result<()> {
        self.step("boot", |_| Ok(run(Command::new("uname").arg("-r"))?.trim().to_owned()))?;
        if matches!(self.job.extent, Extent::Full | Extent::Long) {
            self.step("memory", |_| soil_memory())?;
        }
        self.step("network", Guest::network)?;
        self.step("kernel alone", |guest| guest.pings(3))?;
        let device = self.card.interface();
        let program = self.program("fastsock");
        if let Some(script) = self.job.script.clone() {
            let mut shell = Command::new("bash");
            shell.args(["-c", &script]).env("PROGRAMS", &self.job.programs).env("RESULTS", &self.folder);
            self.save("script", &mut shell);
            return Ok(());
        }
        self.save("doctor", Command::new(&program).args(["doctor", "--device", device]));
        if let Err(error) = self.step("up", Guest::up) {
            // A refusal is a valid result if the card stays with the kernel.
            return self.step("kernel after", |guest| guest.pings(3)).and(Err(error));
        }
        self.step("mode", Guest::mode)?;
        self.step("kernel beside", |guest| guest.pings(3))?;
        let extent = self.job.extent;
        if extent != Extent::Attach {
            self.serve()?;
            self.step("1 MiB", |guest| guest.echo(OURS_PORT, MIB))?;
            let many = if extent == Extent::Quick { 100 } else { 1000 };
            self.step("connections", |guest| guest.connections(many))?;
            self.step("kernel's server", |guest| guest.echo(KERNELS_PORT, MIB))?;
        }
        if matches!(extent, Extent::Full | Extent::Long) {
            self.step("active", |guest| guest.active(100))?;
        }
        if extent == Extent::Long {
            self.step("100 MiB", |guest| guest.echo(OURS_PORT, 100 * MIB))?;
        }
        self.save_state();
        self.step("killed", Guest::kill)?;
        self.step("started again", Guest::up)?;
        if extent != Extent::Attach {
            self.servers.clear();
            self.serve()?;
            self.step("1 MiB again", |guest| guest.echo(OURS_PORT, MIB))?;
        }
        Ok(())
    }

    /// Runs a step and reports it.
    fn step(&mut self, name: &str, act: impl FnOnce(&mut Guest) -> Result<String>) -> Result<()> {
        println!("vm: {name}");
        let result = act(self);
        let (ok, says) = match &result {
            Ok(says) => (true, says.clone()),
            Err(error) => (false, format!("{error:#}")),
        };
        println!("vm: {name}: {says}");
        let line = serde_json::to_string(&Step { name: name.into(), ok, says })?;
        let mut steps = OpenOptions::new().create(true).append(true).open(self.folder.join("steps"))?;
        writeln!(steps, "{line}")?;
        result.map(drop)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.job.programs.join(name)
    }

    fn save(&self, name: &str, command: &mut Command) {
        if let Ok(output) = command.output() {
            let text = [output.stdout, output.stderr].concat();
            // Storing a diagnostic is not a step.
            let _unread = std::fs::write(self.folder.join(name), text);
        }
    }

    /// Stores counters of daemon, card and kernel, and sleeping tasks, to diagnose a failed step.
    fn save_state(&self) {
        let program = self.program("fastsock");
        let ours = |what: &str| {
            let mut command = Command::new("timeout");
            command.arg("20").arg(&program).arg(what).env("FASTSOCK_CONTROL", "/run/control.sock");
            command
        };
        self.save("counters", &mut ours("stat"));
        self.save("connections", &mut ours("ss"));
        self.save("card", Command::new("ethtool").args(["-S", self.card.interface()]));
        self.save("neighbours", Command::new("ip").args(["-s", "neigh"]));
        self.save(
            "interrupts",
            Command::new("cat").args(["/proc/interrupts", "/proc/net/softnet_stat", "/proc/loadavg"]),
        );
        self.save("kernels-sockets", Command::new("ss").args(["-tanim"]));
    }

    /// Sends a request to the peer.
    fn ask(&mut self, ask: &Ask) -> Result<String> {
        if let Some(peer) = &mut self.inside {
            return peer.act(ask);
        }
        let unnamed = self.folder.join("ask");
        std::fs::write(&unnamed, serde_json::to_string(ask)?)?;
        std::fs::rename(&unnamed, self.folder.join(format!("ask-{}", self.asked)))?;
        let answer = self.folder.join(format!("answer-{}", self.asked));
        self.asked += 1;
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(200) {
            if let Ok(text) = std::fs::read_to_string(&answer) {
                let answer: Result<String, String> = serde_json::from_str(&text)?;
                return answer.map_err(anyhow::Error::msg);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the host does not answer")
    }

    fn network(&mut self) -> Result<String> {
        let ip = |args: &str| run(Command::new("ip").args(args.split(' ')));
        ip("link set lo up")?;
        match self.card.made {
            Made::Card => {}
            Made::Vlan => {
                ip("link set eth0 up")?;
                ip("link add link eth0 name eth0.5 type vlan id 5")?;
            }
            Made::Bond => {
                // Without the netlink request that names it, the module creates its own bond.
                if !Path::new("/sys/class/net/bond0").exists() {
                    ip("link add bond0 type bond")?;
                }
                std::fs::write("/sys/class/net/bond0/bonding/mode", "active-backup")?;
                std::fs::write("/sys/class/net/bond0/bonding/miimon", "100")?;
                ip("link set eth0 master bond0")?;
                ip("link set eth1 master bond0")?;
            }
            Made::Veth => {
                let mut peer = Peer::new("peer".into(), &self.folder)?;
                ip(
                    "link add veth0 numrxqueues 2 numtxqueues 2 type veth peer name veth1 netns peer numrxqueues 2 numtxqueues 2",
                )?;
                peer.begin("veth1")?;
                self.inside = Some(peer);
            }
        }
        let device = self.card.interface();
        if self.card.begins_with_fewer() {
            run(Command::new("ethtool").args(["-L", device, "combined", &self.card.queues.to_string()]))?;
        }
        ip(&format!("link set {device} up"))?;
        ip(&format!("addr add {GUEST}/24 dev {device}"))?;
        // Without a default route, `doctor` has no device to check.
        ip(&format!("route add default via {PEER} dev {device}"))?;
        self.save("card-features", Command::new("ethtool").args(["-i", device]));
        // A card negotiates its link when it is brought up.
        let started = Instant::now();
        while self.state()? != "up" && started.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(format!("{device} is {}", self.state()?))
    }

    fn state(&self) -> Result<String> {
        let path = format!("/sys/class/net/{}/operstate", self.card.interface());
        Ok(std::fs::read_to_string(path)?.trim().to_owned())
    }

    /// Pings in both directions.
    fn pings(&mut self, count: u32) -> Result<String> {
        let there = self.ask(&Ask::Ping { to: GUEST.into(), count }).context("the peer's ping")?;
        let mut ping = Command::new("ping");
        let output = ping.args(["-n", "-i", "0.3", "-W", "2", "-c", &count.to_string(), PEER]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "the guest's ping: {}", text.lines().rev().nth(1).unwrap_or_default());
        Ok(there)
    }

    fn up(&mut self) -> Result<String> {
        let started = Instant::now();
        let log = self.folder.join(if self.folder.join("up.log").exists() { "up-again.log" } else { "up.log" });
        let config = self.folder.join("fastsock.toml");
        let (device, mode) = (self.card.interface(), &self.job.mode);
        let served = format!("[wire]\ndevice = \"{device}\"\nxdp = \"{mode}\"\n[[wire.port]]\nport = {OURS_PORT}\n");
        std::fs::write(&config, served)?;
        let mut command = Command::new(self.program("fastsock"));
        command.arg("up").arg("--config").arg(&config);
        command.env("RUST_LOG", "info,fs_xdp=debug").env("FASTSOCK_CONTROL", "/run/control.sock");
        let mut up = Proc::spawn("fastsock up", &log, &mut command)?;
        let path = log.clone();
        let is_ready =
            move || std::fs::read_to_string(&path).is_ok_and(|text| text.lines().any(|line| line == "ready"));
        if let Err(error) = up.wait_for("ready", START_LIMIT, is_ready) {
            let said = up.log();
            let last = said.lines().rev().find_map(|line| line.strip_prefix("fastsock: "));
            return Err(last.map_or(error, |last| anyhow::anyhow!("{REFUSED}{last}")));
        }
        self.up = Some(up);
        Ok(format!("{} ms", started.elapsed().as_millis()))
    }

    /// Returns the daemon's log lines about program and sockets.
    fn mode(&mut self) -> Result<String> {
        let log = self.up.as_ref().context("it runs")?.log();
        let plain = without_colours(&log);
        let attached = plain.lines().rev().find(|line| line.contains("XDP program attached")).context("attached?")?;
        let native = attached.contains("mode=\"native\"") || attached.contains("mode=native");
        let last = plain.rfind("XDP program attached").unwrap_or(0);
        let opened: Vec<&str> = plain[last..].lines().filter(|line| line.contains("AF_XDP queue opened")).collect();
        let zero_copy = opened.iter().filter(|line| line.contains("zero_copy: true")).count();
        let queues = opened.len();
        let copies = match zero_copy {
            0 => "copy".to_owned(),
            n if n == queues => "zero copy".to_owned(),
            n => format!("zero copy on {n}"),
        };
        let s = if queues == 1 { "" } else { "s" };
        Ok(format!("{}, {copies}, {queues} queue{s}", if native { "native" } else { "generic" }))
    }

    fn serve(&mut self) -> Result<()> {
        let own = std::env::current_exe()?;
        let mut ours = Command::new(self.program("fastsock"));
        ours.args(["run", "-q", "--"]).arg(&own).args(["serve", &OURS_PORT.to_string()]);
        ours.env("FASTSOCK_CONTROL", "/run/control.sock");
        let mut kernels = Command::new(&own);
        kernels.args(["serve", &KERNELS_PORT.to_string()]);
        for (name, mut command) in [("server", ours), ("kernels-server", kernels)] {
            let log = self.folder.join(format!("{name}.log"));
            let mut server = Proc::spawn(name, &log, &mut command)?;
            server.wait_for("serving", START_LIMIT, || {
                std::fs::read_to_string(&log).is_ok_and(|text| !text.is_empty())
            })?;
            self.servers.push(server);
        }
        Ok(())
    }

    fn echo(&mut self, port: u16, bytes: u64) -> Result<String> {
        let started = Instant::now();
        let said = self.ask(&Ask::Echo { to: format!("{GUEST}:{port}"), bytes })?;
        Ok(format!("{said} in {} ms", started.elapsed().as_millis()))
    }

    /// Many connections at once, with pings.
    fn connections(&mut self, count: u32) -> Result<String> {
        self.ask(&Ask::PingBeside { to: GUEST.into() })?;
        let said = self.ask(&Ask::Connections { to: format!("{GUEST}:{OURS_PORT}"), count });
        let pings = self.ask(&Ask::PingEnd).context("pings beside");
        Ok(format!("{}, {}", said?, pings?))
    }

    /// Connections that a program of the guest opens, and 1 MiB on one.
    fn active(&mut self, count: u32) -> Result<String> {
        self.daemon_answers()?;
        let own = std::env::current_exe()?;
        let to = format!("{PEER}:{PEER_PORT}");
        let mut said = Vec::new();
        for args in [["connections", &to, &count.to_string()], ["echo", &to, &MIB.to_string()]] {
            let mut client = Command::new("timeout");
            client.arg("120").arg(self.program("fastsock")).args(["run", "-q", "--"]).arg(&own).args(args);
            said.push(run(client.env("FASTSOCK_CONTROL", "/run/control.sock"))?.trim().to_owned());
        }
        Ok(said.join(", "))
    }

    /// A thousand connections that have just ended keep an emulated CPU busy for seconds, and a
    /// program waits only two for its daemon.
    fn daemon_answers(&self) -> Result<()> {
        let started = Instant::now();
        loop {
            let mut stat = Command::new(self.program("fastsock"));
            let result = run(stat.arg("stat").env("FASTSOCK_CONTROL", "/run/control.sock"));
            match result {
                Ok(_) => return Ok(()),
                Err(error) if started.elapsed() >= START_LIMIT => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// `kill -9` leaves the card to the kernel, at once and whole.
    fn kill(&mut self) -> Result<String> {
        self.up.take().context("it runs")?.kill()?;
        let started = Instant::now();
        let device = self.card.interface();
        while run(Command::new("ip").args(["-o", "link", "show", "dev", device]))?.contains("xdp") {
            ensure!(started.elapsed() < Duration::from_secs(10), "the XDP program stays after kill -9");
            std::thread::sleep(Duration::from_millis(50));
        }
        self.pings(3)
    }
}

/// A log without the escapes of a terminal.
fn without_colours(log: &str) -> String {
    let mut plain = String::with_capacity(log.len());
    let mut rest = log;
    while let Some(at) = rest.find('\x1b') {
        plain.push_str(&rest[..at]);
        let end = rest[at..].find('m').map_or(rest.len(), |end| at + end + 1);
        rest = &rest[end..];
    }
    plain + rest
}
