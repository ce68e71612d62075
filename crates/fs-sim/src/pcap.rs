//! A minimal writer of pcap files (nanosecond variant), for inspecting a failed run with tcpdump or
//! Wireshark.

use fs_core::{Framing, Instant};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Maximum size of a file in bytes, so that a long run does not fill the disk; later packets are
/// left out.
const BYTES_MAX: u64 = 512 << 20;

/// A file that is being written.
#[derive(Debug)]
pub struct Pcap {
    out: BufWriter<File>,
    written: u64,
}

impl Pcap {
    /// Creates the file and its folder.
    ///
    /// # Errors
    /// Those of creating and writing a file.
    pub fn create(path: &Path, framing: Framing) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut out = BufWriter::new(File::create(path)?);
        // LINKTYPE_ETHERNET 1, LINKTYPE_RAW 101.
        let link = match framing {
            Framing::Ethernet => 1u32,
            Framing::Ip => 101,
        };
        out.write_all(&0xa1b2_3c4du32.to_le_bytes())?;
        out.write_all(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        out.write_all(&0x4_0000u32.to_le_bytes())?;
        out.write_all(&link.to_le_bytes())?;
        Ok(Self { out, written: 0 })
    }

    /// Adds a packet.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn packet(&mut self, at: Instant, bytes: &[u8]) -> io::Result<()> {
        if self.written > BYTES_MAX {
            return Ok(());
        }
        self.written += 16 + bytes.len() as u64;
        let ns = at.as_nanos();
        for field in [(ns / 1_000_000_000) as u32, (ns % 1_000_000_000) as u32, bytes.len() as u32, bytes.len() as u32]
        {
            self.out.write_all(&field.to_le_bytes())?;
        }
        self.out.write_all(bytes)
    }
}
