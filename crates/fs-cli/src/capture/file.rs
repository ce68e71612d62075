//! Writes pcapng (draft-ietf-opsawg-pcapng): section header, interfaces, packets with comments,
//! statistics. Little-endian.

use std::io::{self, Write};

/// LINKTYPE_ETHERNET.
pub(super) const ETHERNET: u16 = 1;
/// LINKTYPE_RAW: starts with an IPv4 or IPv6 header.
pub(super) const RAW: u16 = 101;

const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

/// The direction of a packet, as in `epb_flags`.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Unknown = 0,
    In = 1,
    Out = 2,
}

/// A packet.
pub(super) struct Packet<'a> {
    pub(super) interface: u32,
    /// Nanoseconds since 1970.
    pub(super) time: u64,
    pub(super) way: Way,
    pub(super) comment: Option<&'a str>,
    /// Original length. `bytes` may be shorter.
    pub(super) len: u32,
    pub(super) bytes: &'a [u8],
}

pub(super) struct PcapNg<W> {
    output: W,
    block: Vec<u8>,
    interfaces: u32,
    pub(super) packets: u64,
}

impl<W: Write> PcapNg<W> {
    pub(super) fn new(output: W) -> io::Result<Self> {
        let mut this = PcapNg { output, block: Vec::new(), interfaces: 0, packets: 0 };
        this.begin(0x0a0d_0d0a);
        this.word(0x1a2b_3c4d);
        // Version 1.0; the section's length is unknown.
        this.word(1);
        this.block.extend_from_slice(&[0xff; 8]);
        this.option(SHB_USERAPPL, concat!("fastsock ", env!("CARGO_PKG_VERSION")).as_bytes());
        this.end()?;
        Ok(this)
    }

    /// Adds an interface and returns its number for packets.
    pub(super) fn interface(&mut self, link_type: u16, name: &str, description: &str) -> io::Result<u32> {
        self.begin(1);
        self.word(u32::from(link_type));
        self.word(0);
        self.option(IF_NAME, name.as_bytes());
        self.option(IF_DESCRIPTION, description.as_bytes());
        self.option(IF_TSRESOL, &[9]);
        self.end()?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    pub(super) fn packet(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        self.begin(6);
        self.word(packet.interface);
        self.time(packet.time);
        self.word(packet.bytes.len() as u32);
        self.word(packet.len);
        self.padded(packet.bytes);
        if let Some(comment) = packet.comment {
            self.option(OPT_COMMENT, comment.as_bytes());
        }
        self.option(EPB_FLAGS, &(packet.way as u32).to_le_bytes());
        self.packets += 1;
        self.end()
    }

    /// Writes how many packets an interface had, and how many of them were missed.
    pub(super) fn statistics(&mut self, interface: u32, time: u64, received: u64, missed: u64) -> io::Result<()> {
        self.begin(5);
        self.word(interface);
        self.time(time);
        self.option(ISB_IFRECV, &received.to_le_bytes());
        self.option(ISB_IFDROP, &missed.to_le_bytes());
        self.end()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.word(kind);
        self.word(0);
    }

    fn word(&mut self, word: u32) {
        self.block.extend_from_slice(&word.to_le_bytes());
    }

    fn time(&mut self, time: u64) {
        self.word((time >> 32) as u32);
        self.word(time as u32);
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        self.word(u32::from(code) | (value.len() as u32) << 16);
        self.padded(value);
    }

    fn end(&mut self) -> io::Result<()> {
        // opt_endofopt.
        self.word(0);
        let len = self.block.len() as u32 + 4;
        self.word(len);
        self.block[4..8].copy_from_slice(&len.to_le_bytes());
        self.output.write_all(&self.block)
    }
}
