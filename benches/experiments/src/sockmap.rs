//! Sockmap redirection on one host: a cgroup whose connections bypass TCP through two BPF programs
//! (`bpf/redirect.bpf.c`, compiled on demand).

use anyhow::{Context, Result, ensure};
use aya::Ebpf;
use aya::maps::{Array, SockHash};
use aya::programs::{CgroupAttachMode, SkMsg, SockOps};
use fs_tests::apps::{target_dir, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;

/// While it exists, processes that this process starts are in a cgroup whose connections are
/// redirected.
pub(crate) struct Sockmap {
    bpf: Ebpf,
    cgroup: Cgroup,
}

/// A new cgroup, which contains this process, and its mount.
struct Cgroup {
    mount: PathBuf,
    /// The previous cgroup of this process, relative to the mount.
    before: PathBuf,
}

impl Sockmap {
    pub(crate) fn start() -> Result<Sockmap> {
        let object = compile()?;
        let mut bpf = Ebpf::load(&object).context("cannot load redirect.bpf.o")?;
        let cgroup = Cgroup::enter()?;
        let sockets: SockHash<_, [u32; 4]> = bpf.map("sockets").context("no map of sockets")?.try_into()?;
        let sockets = sockets.fd().try_clone()?;
        let redirect: &mut SkMsg = bpf.program_mut("redirect").context("no program for messages")?.try_into()?;
        redirect.load().context("the kernel refuses the program for messages")?;
        redirect.attach(&sockets)?;
        let keep: &mut SockOps = bpf.program_mut("keep").context("no program for connections")?.try_into()?;
        keep.load().context("the kernel refuses the program for connections")?;
        let folder = std::fs::File::open(cgroup.own())?;
        keep.attach(&folder, CgroupAttachMode::Single)?;
        Ok(Sockmap { bpf, cgroup })
    }

    /// Ends the redirection. Returns the number of redirected messages.
    pub(crate) fn end(self) -> Result<u64> {
        let redirected: Array<_, u64> = self.bpf.map("redirected").context("no count")?.try_into()?;
        let count = redirected.get(&0, 0)?;
        drop(self.bpf);
        drop(self.cgroup);
        Ok(count)
    }
}

/// Compiles the BPF object.
fn compile() -> Result<Vec<u8>> {
    let source = workspace().join("benches/experiments/bpf/redirect.bpf.c");
    let object = target_dir().join("experiments/redirect.bpf.o");
    let multiarch = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let output = Command::new("clang")
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-I", &multiarch, "-c"])
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .output()
        .context("clang; lab/install experiments")?;
    ensure!(output.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    std::fs::read(&object).with_context(|| object.display().to_string())
}

impl Cgroup {
    fn enter() -> Result<Cgroup> {
        let own = std::fs::read_to_string("/proc/self/cgroup")?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::/")).context("no cgroup2 in /proc/self/cgroup")?;
        let mount = std::env::temp_dir().join(format!("fs-sockmap-{}", std::process::id()));
        std::fs::create_dir_all(&mount)?;
        let output = Command::new("mount").args(["-t", "cgroup2", "none"]).arg(&mount).output().context("mount")?;
        if !output.status.success() {
            let _ = std::fs::remove_dir(&mount);
        }
        ensure!(output.status.success(), "mount -t cgroup2: {}", String::from_utf8_lossy(&output.stderr).trim());
        let cgroup = Cgroup { before: mount.join(path), mount };
        std::fs::create_dir(cgroup.own()).with_context(|| cgroup.own().display().to_string())?;
        join(&cgroup.own())?;
        Ok(cgroup)
    }

    fn own(&self) -> PathBuf {
        self.mount.join(format!("fs-sockmap-{}", std::process::id()))
    }
}

/// Moves this process into a cgroup.
fn join(cgroup: &Path) -> Result<()> {
    let file = cgroup.join("cgroup.procs");
    std::fs::write(&file, std::process::id().to_string()).with_context(|| file.display().to_string())
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = join(&self.before).and_then(|()| Ok(std::fs::remove_dir(self.own())?)) {
            eprintln!("sockmap: {} stays: {error:#}", self.own().display());
        }
        let unmounted = Command::new("umount").arg("-l").arg(&self.mount).status();
        if unmounted.is_ok_and(|status| status.success()) {
            let _ = std::fs::remove_dir(&self.mount);
        }
    }
}
