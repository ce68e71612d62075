//! The kernels, from Debian's packages: unpacked next to the tree, never installed.

use super::packages::{Apt, unpack, version_order};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// A kernel that Debian has.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Its name in options.
    pub name: &'static str,
    /// The suite that has it.
    pub suite: &'static str,
    /// Prefix of its release; empty: the newest of the suite.
    pub release: &'static str,
}

/// The kernels of the matrix. Debian has no 5.15 and no 6.6.
pub const KERNELS: &[Kernel] = &[
    Kernel { name: "5.10", suite: "bullseye", release: "5.10." },
    Kernel { name: "6.1", suite: "bookworm", release: "6.1." },
    Kernel { name: "6.12", suite: "trixie", release: "6.12." },
    Kernel { name: "6.17", suite: "trixie-backports", release: "6.17." },
    Kernel { name: "newest", suite: "trixie-backports", release: "" },
];

/// A kernel on the disk.
#[derive(Clone, Debug)]
pub struct Unpacked {
    /// The output of `uname -r` in the guest.
    pub release: String,
    /// The image that QEMU boots.
    pub image: PathBuf,
    /// The folder of its modules.
    pub modules: PathBuf,
}

impl Kernel {
    /// By its name.
    pub fn find(name: &str) -> Option<&'static Kernel> {
        KERNELS.iter().find(|kernel| kernel.name == name)
    }

    /// Returns its folder, which may not exist.
    fn folder(&self, cache: &Path) -> PathBuf {
        cache.join("kernels").join(self.name)
    }

    /// Returns it if it is unpacked already.
    pub fn present(&self, cache: &Path) -> Option<Unpacked> {
        let folder = self.folder(cache);
        folder.join("complete").exists().then(|| look(&folder).ok()).flatten()
    }

    /// Fetches it unless it is there.
    pub fn unpacked(&self, cache: &Path) -> Result<Unpacked> {
        if let Some(kernel) = self.present(cache) {
            return Ok(kernel);
        }
        let apt = Apt::of(cache, self.suite)?;
        let packages = self.packages(&apt)?;
        println!("fetching {}", packages.join(", "));
        let folder = self.folder(cache);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        for package in apt.download(&packages)? {
            unpack(&package, &folder)?;
            std::fs::remove_file(&package)?;
        }
        let kernel = look(&folder)?;
        std::fs::write(folder.join("complete"), "")?;
        Ok(kernel)
    }

    /// One package, or two: from 7.1 on the image's package is empty and depends on them.
    fn packages(&self, apt: &Apt) -> Result<Vec<String>> {
        let begin = format!("linux-image-{}", self.release);
        let mut names: Vec<String> = apt
            .names(&begin)?
            .into_iter()
            .filter(|name| {
                let release = name.strip_prefix("linux-image-").unwrap_or_default();
                let special = ["-cloud-", "-rt-", "-dbg", "-unsigned", "-meta"];
                release.starts_with(|first: char| first.is_ascii_digit())
                    && release.ends_with("-amd64")
                    && !special.iter().any(|part| release.contains(part))
            })
            .collect();
        names.sort_by(|a, b| version_order(a, b));
        let Some(name) = names.pop() else { bail!("{} has no package {begin}…", self.suite) };
        let release = name.trim_start_matches("linux-image-");
        let binary = format!("linux-binary-{release}");
        if apt.names(&binary)?.contains(&binary) {
            return Ok(vec![binary, format!("linux-modules-{release}")]);
        }
        Ok(vec![name])
    }
}

/// Finds image and modules among unpacked files.
fn look(folder: &Path) -> Result<Unpacked> {
    let modules = [folder.join("lib/modules"), folder.join("usr/lib/modules")];
    let modules = modules.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let modules = modules.filter_map(Result::ok).map(|entry| entry.path()).next().context("no modules")?;
    let release = modules.file_name().context("no release")?.to_string_lossy().into_owned();
    let images = [folder.join(format!("boot/vmlinuz-{release}")), modules.join("vmlinuz")];
    let image = images.into_iter().find(|image| image.exists()).context("no image")?;
    Ok(Unpacked { release, image, modules })
}
