//! The guest's initramfs: a static shell, modules in loading order, and a script that makes the
//! machine's own files the root.

use super::kernels::Unpacked;
use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Path of the folder of results on both sides.
pub const RESULTS_IN_GUEST: &str = "/run/results";

/// Mounts, changes the root, runs the guest's half and turns the machine off. Files are read
/// through an unlimited cache (they do not change), the results without one.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod $module || echo "vm: $module does not load"; done
options=trans=virtio,version=9p2000.L,msize=262144
mount -t 9p -o $options,cache=loose,ro files /files || echo "vm: no files"
mount -t tmpfs tmpfs /changes
mkdir /changes/upper /changes/work
mount -t overlay -o lowerdir=/files,upperdir=/changes/upper,workdir=/changes/work overlay /root
for kind in proc sysfs devtmpfs; do
    at=$kind
    [ $kind = sysfs ] && at=sys
    [ $kind = devtmpfs ] && at=dev
    mount -t $kind $kind /root/$at
done
mount -t tmpfs tmpfs /root/run
mount -t tmpfs tmpfs /root/tmp
mkdir -p /root/run/results /root/run/netns
mount -t bpf bpf /root/sys/fs/bpf
mount -t cgroup2 cgroup2 /root/sys/fs/cgroup
mount -t 9p -o $options,cache=none results /root/run/results || echo "vm: no folder for results"
echo 1 >/proc/sys/kernel/sysrq
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot /root "$GUEST_PROGRAM" guest
sync
echo o >/proc/sysrq-trigger
sleep 60
"#;

/// Writes it.
pub fn write(to: &Path, busybox: &Path, kernel: &Unpacked, modules: &[&str]) -> Result<()> {
    let mut archive = Archive { out: BufWriter::new(File::create(to)?), inode: 0 };
    for folder in ["bin", "dev", "proc", "sys", "modules", "files", "changes", "root"] {
        archive.entry(folder, 0o040_755, &[])?;
    }
    archive.entry("bin/busybox", 0o100_755, &std::fs::read(busybox)?)?;
    archive.entry("init", 0o100_755, INIT.as_bytes())?;
    for (number, (name, bytes)) in in_order(&kernel.modules, modules)?.into_iter().enumerate() {
        archive.entry(&format!("modules/{number:02}-{name}.ko"), 0o100_644, &bytes)?;
    }
    archive.entry("TRAILER!!!", 0, &[])?;
    archive.out.flush().context("the initramfs")
}

/// The `newc` format of cpio(5): a header of hexadecimal numbers, the name, the bytes, each padded
/// to four.
struct Archive {
    out: BufWriter<File>,
    inode: u32,
}

impl Archive {
    fn entry(&mut self, name: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        self.inode += 1;
        let links = 1;
        let size = u32::try_from(bytes.len()).context("a file of the initramfs is too large")?;
        let name_size = name.len() as u32 + 1;
        write!(self.out, "070701")?;
        for field in [self.inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0] {
            write!(self.out, "{field:08x}")?;
        }
        self.out.write_all(name.as_bytes())?;
        self.pad(110 + name.len(), 1)?;
        self.out.write_all(bytes)?;
        self.pad(bytes.len(), 0)
    }

    /// Zeros up to a multiple of four, and `least` of them.
    fn pad(&mut self, written: usize, least: usize) -> Result<()> {
        let zeros = least + (4 - (written + least) % 4) % 4;
        Ok(self.out.write_all(&[0; 8][..zeros])?)
    }
}

/// Returns modules after those that they depend on. A module without a file is built in.
fn in_order(folder: &Path, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = HashMap::new();
    find(&folder.join("kernel"), &mut files)?;
    let mut done: Vec<(String, Vec<u8>)> = Vec::new();
    // Depth first: a name is taken off the stack for the second time after its dependencies.
    let mut stack: Vec<(String, bool)> = wanted.iter().rev().map(|name| ((*name).to_owned(), false)).collect();
    let mut bytes: HashMap<String, Vec<u8>> = HashMap::new();
    while let Some((name, ready)) = stack.pop() {
        if done.iter().any(|(known, _)| *known == name) {
            continue;
        }
        let Some(path) = files.get(&name) else { continue };
        if ready {
            let bytes = bytes.remove(&name).context("a module is read once")?;
            done.push((name, bytes));
            continue;
        }
        let module = read(path)?;
        let needs = depends(&module);
        bytes.insert(name.clone(), module);
        stack.push((name, true));
        stack.extend(needs.into_iter().map(|name| (name, false)));
    }
    Ok(done)
}

fn find(folder: &Path, files: &mut HashMap<String, PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find(&entry.path(), files)?;
        } else if let Some(name) = module_name(&entry.path()) {
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

/// The name that `depends` uses: `a-b.ko.xz` is `a_b`.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (name, _) = file.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(|end| end.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return Ok(std::fs::read(path)?),
    };
    let output =
        Command::new(program).args(["-dc"]).arg(path).output().with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program} cannot unpack {}", path.display());
    Ok(output.stdout)
}

/// Returns a module's dependencies by its `.modinfo` section.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(value).replace('-', "_");
    text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_dependencies_are_parsed() {
        assert_eq!(depends(b"x\0license=GPL\0depends=net-failover,failover\0name=y\0"), ["net_failover", "failover"]);
        assert_eq!(depends(b"x\0depends=\0"), [""; 0]);
        assert_eq!(module_name(Path::new("kernel/net/9p/9pnet-virtio.ko.xz")).as_deref(), Some("9pnet_virtio"));
    }
}
