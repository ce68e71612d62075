//! Bodies for transfers: files of pseudo-random bytes with their SHA-256, created once and kept
//! under the target folder.

use crate::apps::{made, target_dir};
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// A file whose digest is known.
#[derive(Clone, Debug)]
pub struct Body {
    /// Its name in the folder of bodies, and on the backend.
    pub name: &'static str,
    /// Where it is.
    pub path: PathBuf,
    /// Length in bytes.
    pub len: u64,
    /// SHA-256, hexadecimal.
    pub sha256: String,
}

/// No byte at all.
pub const EMPTY: (&str, u64) = ("0", 0);
/// One byte.
pub const ONE: (&str, u64) = ("1", 1);
/// The file that wrk requests.
pub const SMALL: (&str, u64) = ("64", 64);
/// A few segments.
pub const TEN_KIB: (&str, u64) = ("10k", 10 << 10);
/// 1 MiB.
pub const MIB: (&str, u64) = ("1m", 1 << 20);
/// 10 MiB.
pub const TEN_MIB: (&str, u64) = ("10m", 10 << 20);
/// 16 MiB.
pub const SIXTEEN_MIB: (&str, u64) = ("16m", 16 << 20);
/// 1 GiB.
pub const GIB: (&str, u64) = ("1g", 1 << 30);

/// The folder that holds them.
pub fn folder() -> Result<PathBuf> {
    let dir = target_dir().join("lab-data");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// Makes the file unless it is there.
pub fn body((name, len): (&'static str, u64)) -> Result<Body> {
    let path = folder()?.join(name);
    let digest = path.with_extension("sha256");
    if path.metadata().is_ok_and(|meta| meta.len() == len)
        && let Ok(sha256) = std::fs::read_to_string(&digest)
    {
        return Ok(Body { name, path, len, sha256 });
    }
    let sha256 = made(&path, |part| write(part, len).with_context(|| format!("cannot write {}", part.display())))?;
    made(&digest, |part| Ok(std::fs::write(part, &sha256)?))?;
    Ok(Body { name, path, len, sha256 })
}

fn write(path: &Path, len: u64) -> Result<String> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let sha256 = write_to(&mut out, len)?;
    out.flush()?;
    Ok(sha256)
}

/// Writes `len` random bytes, the same in each run, and returns their SHA-256. No two pieces are
/// likely to be equal, so a lost, doubled or moved piece shows.
pub fn write_to(out: &mut impl Write, len: u64) -> Result<String> {
    let mut hash = Sha256::new();
    let mut random = fastrand::Rng::with_seed(1);
    let mut block = vec![0_u8; 64 << 10];
    let mut left = len;
    while left > 0 {
        random.fill(&mut block);
        let n = left.min(block.len() as u64) as usize;
        hash.update(&block[..n]);
        out.write_all(&block[..n])?;
        left -= n as u64;
    }
    Ok(hex(&hash.finalize()))
}

/// Returns the SHA-256 of all bytes of `from`, and their number.
pub fn sha256(mut from: impl Read) -> Result<(String, u64)> {
    let mut hash = Sha256::new();
    let mut block = vec![0_u8; 256 << 10];
    let mut len = 0;
    loop {
        match from.read(&mut block)? {
            0 => return Ok((hex(&hash.finalize()), len)),
            n => {
                hash.update(&block[..n]);
                len += n as u64;
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
