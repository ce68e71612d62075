//! A guest: QEMU, its files, and its requests while it runs.

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

/// The first QEMU version with igb is 8.0.
const QEMU_MAJOR: u32 = 8;

/// Functions to report per task.
const DEPTH: usize = 10;

/// QEMU and busybox, the machine's own or unpacked next to the tree.
#[derive(Clone, Debug)]
pub struct Tools {
    qemu: PathBuf,
    busybox: PathBuf,
    /// The folder of the unpacked QEMU; `None`: it is installed.
    root: Option<PathBuf>,
}

impl Tools {
    /// Downloads missing tools.
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
    // bookworm itself has 7.2.
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
    // If the machine has busybox, apt does not download it.
    let own = root.join("bin/busybox");
    if !own.exists() {
        std::fs::create_dir_all(root.join("bin"))?;
        std::fs::copy("/bin/busybox", own)?;
    }
    Ok(std::fs::write(root.join("complete"), "")?)
}

/// The findings of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The kernel's release, as reported by the guest.
    pub release: String,
    /// The steps that were begun, in their order.
    pub steps: Vec<Step>,
    /// The guest ended normally.
    pub ended: bool,
    /// Sleeping and running tasks in the kernel of a guest that did not end normally.
    pub sleepers: Vec<String>,
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
    let console = folder.join("console.log");
    let mut spawn = || Proc::spawn_fed("qemu", &console, &mut command);
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
    let sleepers = if stuck { who_sleeps(&mut qemu, &console) } else { Vec::new() };
    drop(qemu);
    let steps = std::fs::read_to_string(results.join("steps")).unwrap_or_default();
    let steps: Vec<Step> = steps.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if steps.is_empty() {
        bail!("the guest has not come up; its console ends:\n{}", tail(&console, 15));
    }
    let ended = !stuck && results.join("ended").exists();
    Ok(Report { release: unpacked.release, steps, ended, sleepers, seconds: started.elapsed().as_secs(), folder })
}

/// Makes the kernel of a hanging guest print its uninterruptible tasks and its CPUs' activity (its
/// documentation: admin-guide/sysrq.rst, over a serial console), and returns where they are. QEMU's
/// multiplexed console sends a break for Ctrl-A b.
fn who_sleeps(qemu: &mut Proc, console: &Path) -> Vec<String> {
    let before = std::fs::read(console).map_or(0, |bytes| bytes.len());
    // The level that prints all, the tasks, the CPUs.
    for key in [b'9', b'w', b'l'] {
        if qemu.feed(&[1, b'b', key]).is_err() {
            return Vec::new();
        }
        // An emulated serial line.
        std::thread::sleep(Duration::from_secs(3));
    }
    let bytes = std::fs::read(console).unwrap_or_default();
    sleepers(&String::from_utf8_lossy(bytes.get(before..).unwrap_or_default()))
}

/// A line for each task except the idle ones: its name and its functions, the innermost first.
fn sleepers(printed: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in printed.lines() {
        let text = line.split_once("] ").map_or(line, |(_, text)| text).trim();
        if let Some(task) = text.strip_prefix("task:").or_else(|| text.split_once("Comm: ").map(|(_, comm)| comm)) {
            found.push(task.split_whitespace().next().unwrap_or_default().to_owned());
        } else if let (Some(last), Some((function, _))) = (found.last_mut(), text.split_once("+0x")) {
            let function = function.trim_start_matches("RIP: 0010:");
            if last.matches(" < ").count() < DEPTH && !function.contains([' ', '?']) {
                last.push_str(" < ");
                last.push_str(function);
            }
        }
    }
    found.retain(|sleeper| !sleeper.starts_with("swapper/"));
    found
}

/// Without `hpet=off` and `no_timer_check`, the emulated timers prevent a guest from booting on a
/// busy machine. Without `romfile=`, a card's boot ROM waits for a server.
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

#[cfg(test)]
mod tests {
    use super::sleepers;

    #[test]
    fn tasks_of_a_console() {
        let printed = "[   14.1] sysrq: Show Blocked State\n\
            [   14.2] task:fastsock        state:D stack:0     pid:171   tgid:171   ppid:1\n\
            [   14.2] Call Trace:\n[   14.2]  <TASK>\n[   14.2]  __schedule+0x4f2/0xbf0\n\
            [   14.2]  ? usleep+0x1/0x2\n[   14.2]  napi_disable+0x6a/0x80 [virtio_net]\n\
            [   14.3] CPU: 1 UID: 0 PID: 0 Comm: swapper/1 Not tainted\n[   14.3] RIP: 0010:default_idle+0xf/0x20\n\
            [   14.3] CPU: 2 UID: 0 PID: 9 Comm: vm Not tainted\n[   14.3] RIP: 0010:usleep+0xf/0x20\n";
        assert_eq!(sleepers(printed), ["fastsock < __schedule < napi_disable", "vm < usleep"]);
        assert!(sleepers("").is_empty());
    }
}
