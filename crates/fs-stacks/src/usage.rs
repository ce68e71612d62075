//! Resource usage of a process: CPU seconds and resident memory.

pub use crate::sys::{ResourceUsage, raise_open_files, resource_usage};
use std::io;

/// Resident memory of this process now, in bytes (`/proc/self/statm`).
///
/// # Errors
/// If `/proc` cannot be read.
pub fn resident_bytes() -> io::Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split_ascii_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/statm"))?;
    Ok(pages * crate::sys::page_size())
}

#[cfg(test)]
mod tests {
    #[test]
    fn process_has_resident_memory() {
        let before = super::resident_bytes().unwrap();
        assert!(before > 100 << 10);
        let big = vec![1u8; 32 << 20];
        let after = super::resident_bytes().unwrap();
        assert!(after >= before + (16 << 20), "{before} {after} {}", big.len());
        assert!(super::resource_usage().peak_rss >= 32 << 20);
    }
}
