//! A guest: QEMU, its files, and what it asks for while it runs.

use super::cards::Card;
use super::initramfs;
use super::kernels::Kernel;
use super::packages::{Apt, run, unpack};
use super::peer::{Ask, Peer};
use super::{BOOT_LIMIT, BOOTS, Extent, GUEST_LIMIT, Job, Step};
use crate::process::{Proc, tail};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// QEMU's first version with igb is 8.0.
const QEMU_MAJOR: u32 = 8;

/// QEMU and busybox, the machine's own or unpacked beside the tree.
#[derive(Clone, Debug)]
pub struct Tools {
    qemu: PathBuf,
    busybox: PathBuf,
    /// Where QEMU is unpacked; `None`: it is installed.
    root: Option<PathBuf>,
}

impl Tools {
    /// Fetches what the machine lacks.
    pub fn find(cache: &Path) -> Result<Tools> {
        let installed = PathBuf::from("/usr/bin/qemu-system-x86_64");
        let root = cache.join("qemu");
        let unpacked = root.join("usr/bin/qemu-system-x86_64");
        if installed.exists() && major(&installed) >= QEMU_MAJOR && Path::new("/bin/busybox").exists() {
            return Ok(Tools { qemu: installed, busybox: "/bin/busybox".into(), root: None });
        }
        if !root.join("complete").exists() {
            fetch(cache, &root)?;
        }
        Ok(Tools { qemu: unpacked, busybox: root.join("bin/busybox"), root: Some(root) })
    }

    fn command(&self, peer: &Peer) -> Command {
        let Some(root) = &self.root else { return peer.command(&self.qemu, &[]) };
        let at = root.display();
        let mut command = peer.command(&self.qemu, &[]);
        let libraries = format!("{at}/usr/lib/x86_64-linux-gnu:{at}/lib/x86_64-linux-gnu");
        command.env("LD_LIBRARY_PATH", libraries);
        // Firmware.
        command.args(["-L", &format!("{at}/usr/share/seabios"), "-L", &format!("{at}/usr/share/qemu")]);
        command
    }
}

fn major(qemu: &Path) -> u32 {
    let said = run(Command::new(qemu).arg("--version")).unwrap_or_default();
    let mut numbers = said.split(|c: char| !c.is_ascii_digit()).filter_map(|piece| piece.parse().ok());
    numbers.next().unwrap_or(0)
}

fn fetch(cache: &Path, root: &Path) -> Result<()> {
    let system = std::fs::read_to_string("/etc/os-release")?;
    let suite = system.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let suite = suite.context("/etc/os-release names no suite of Debian")?.trim_matches('"');
    // bookworm's own is 7.2.
    let (list, from) = if suite == "bookworm" { ("bookworm-backports", "/bookworm-backports") } else { (suite, "") };
    let apt = Apt::of(cache, list)?;
    let parts = ["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"];
    let mut packages: Vec<String> = parts.iter().map(|name| format!("{name}{from}")).collect();
    packages.push("busybox-static".into());
    println!("fetching QEMU");
    if root.exists() {
        std::fs::remove_dir_all(root)?;
    }
    for package in apt.download_for_use(&packages)? {
        unpack(&package, root)?;
    }
    // Where the machine has busybox, apt does not bring it.
    let own = root.join("bin/busybox");
    if !own.exists() {
        std::fs::create_dir_all(root.join("bin"))?;
        std::fs::copy("/bin/busybox", own)?;
    }
    Ok(std::fs::write(root.join("complete"), "")?)
}

/// What a run has found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The kernel's release, as the guest says it.
    pub release: String,
    /// The steps that were begun, in their order.
    pub steps: Vec<Step>,
    /// The guest came to its end.
    pub ended: bool,
    /// Seconds that it took.
    pub seconds: u64,
    /// The folder with everything that it left.
    pub folder: PathBuf,
}

/// Runs a job in a guest.
pub fn boot(
    cache: &Path,
    kernel: &Kernel,
    card: &Card,
    mode: &str,
    extent: Extent,
    script: Option<String>,
) -> Result<Report> {
    let started = Instant::now();
    let tools = Tools::find(cache)?;
    let unpacked = kernel.unpacked(cache)?;
    let folder = cache.join("runs").join(format!("{}-{}-{mode}", kernel.name, card.name));
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let results = folder.join("results");
    std::fs::create_dir_all(&results)?;
    let own = std::env::current_exe()?;
    let programs = own.parent().context("a folder of programs")?.to_owned();
    let job = Job { card: card.name.into(), mode: mode.into(), extent, script, programs };
    std::fs::write(results.join("job.json"), serde_json::to_string(&job)?)?;
    let initrd = folder.join("initramfs");
    initramfs::write(&initrd, &tools.busybox, &unpacked, &card.modules())?;

    let mut peer = Peer::new(format!("fsvm{}", std::process::id()), &folder)?;
    peer.wire(card)?;
    let mut command = tools.command(&peer);
    arguments(&mut command, card, &unpacked.image, &initrd, &results, &own);
    let mut spawn = || Proc::spawn("qemu", &folder.join("console.log"), &mut command);
    let mut qemu = spawn()?;
    let (mut booted, mut boots) = (Instant::now(), 1);
    let mut answered = 0;
    while qemu.ended()?.is_none() && booted.elapsed() < GUEST_LIMIT {
        if boots < BOOTS && booted.elapsed() > BOOT_LIMIT && !results.join("steps").exists() {
            qemu.kill()?;
            (qemu, booted, boots) = (spawn()?, Instant::now(), boots + 1);
        }
        let ask = results.join(format!("ask-{answered}"));
        if let Ok(text) = std::fs::read_to_string(&ask) {
            let ask: Ask = serde_json::from_str(&text)?;
            let answer = peer.act(&ask).map_err(|error| format!("{error:#}"));
            let unnamed = results.join("answer");
            std::fs::write(&unnamed, serde_json::to_string(&answer)?)?;
            std::fs::rename(&unnamed, results.join(format!("answer-{answered}")))?;
            answered += 1;
            continue;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let stuck = qemu.ended()?.is_none();
    drop(qemu);
    let steps = std::fs::read_to_string(results.join("steps")).unwrap_or_default();
    let steps: Vec<Step> = steps.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if steps.is_empty() {
        bail!("the guest has not come up; its console ends:\n{}", tail(&folder.join("console.log"), 15));
    }
    let ended = !stuck && results.join("ended").exists();
    Ok(Report { release: unpacked.release, steps, ended, seconds: started.elapsed().as_secs(), folder })
}

/// Without `hpet=off` and `no_timer_check` the emulated timers keep a busy machine's guest from booting; without `romfile=`
/// a card's boot ROM waits for a server.
fn arguments(command: &mut Command, card: &Card, image: &Path, initrd: &Path, results: &Path, own: &Path) {
    let share = |path: &Path, tag: &str, more: &str| {
        format!("local,path={},mount_tag={tag},security_model=none,multidevs=remap{more}", path.display())
    };
    command
        .args(["-machine", "q35,hpet=off", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "2G"])
        .args(["-nodefaults", "-nographic", "-no-reboot", "-serial", "mon:stdio"])
        .args(["-smp", &card.cpus().to_string()])
        .arg("-kernel")
        .arg(image)
        .arg("-initrd")
        .arg(initrd)
        .args(["-virtfs", &share(Path::new("/"), "files", ",readonly=on")])
        .args(["-virtfs", &share(results, "results", "")]);
    let line = "console=ttyS0 no_timer_check mitigations=off panic=-1 quiet loglevel=4";
    command.args(["-append", &format!("{line} GUEST_PROGRAM={}", own.display())]);
    for number in 0..card.count() {
        let queues = if card.is_multi_queue() { format!(",queues={}", card.queues) } else { String::new() };
        let tap = format!("tap,id=net{number},ifname=tap{number},script=no,downscript=no{queues}");
        let mac = format!("52:54:00:78:00:{:02x}", number + 2);
        let device = format!("{},netdev=net{number},mac={mac},romfile={}", card.device, card.properties);
        command.args(["-netdev", &tap, "-device", &device]);
    }
}
