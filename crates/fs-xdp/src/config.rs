//! How devices, queues and their memory are taken.

use std::io;

/// Bytes that the kernel keeps free in front of a received packet in its chunk: `XDP_PACKET_HEADROOM` of
/// `linux/bpf.h`.
pub(crate) const XDP_PACKET_HEADROOM: u32 = 256;

/// Bytes of link-layer header on top of the MTU: Ethernet and one VLAN tag.
pub(crate) const LINK_HEADER_MAX: u32 = 18;

/// Where the XDP program shall run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpMode {
    /// In the driver where it can, else on socket buffers; the log says which.
    #[default]
    Auto,
    /// In the driver or not at all.
    Native,
    /// On socket buffers: works on every Ethernet device.
    Generic,
}

/// Whether packets may span several chunks (kernel 6.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MultiBuffer {
    /// Where the MTU needs it, and in generic mode, where the kernel then hands over its large (TSO, GRO) packets whole.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never: packets over a chunk are not received.
    Off,
}

/// How a device is taken.
#[derive(Clone, Copy, Debug)]
pub struct XdpConfig {
    /// See [`XdpMode`].
    pub mode: XdpMode,
    /// See [`MultiBuffer`].
    pub multi_buffer: MultiBuffer,
    /// Zero-copy where the driver has it; `false` copies always.
    pub zero_copy: bool,
    /// Leave checksums to the device where the kernel can tell it (TX metadata, kernel 6.11).
    pub tx_checksum: bool,
    /// Send runs of full segments as one packet (decision 0028) where packets are copied and the device cuts them again (TSO).
    pub merge: bool,
}

impl Default for XdpConfig {
    fn default() -> Self {
        Self { mode: XdpMode::Auto, multi_buffer: MultiBuffer::Auto, zero_copy: true, tx_checksum: true, merge: true }
    }
}

/// Sizes of a queue's rings in entries, powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Received descriptors that can wait for us.
    pub rx: u32,
    /// Descriptors that can wait to be sent.
    pub tx: u32,
    /// Chunks that can be lent to the device to receive into: as many are once half of those that it had were used up (not on
    /// the rings of `xsk-rs`, whose fill ring is `lent` long).
    /// Not more than a sixth of what the pool has, unless that is less than `lent`; nor than [`crate::Link::limit_lent`] says later.
    pub fill: u32,
    /// Chunks lent in the beginning, and while they suffice: not more than half of what the pool has. The queue takes them out
    /// of the pool, and gives back what [`crate::Link::limit_lent`] leaves it no room for as packets come.
    pub lent: u32,
    /// Sent chunks that can wait to be taken back.
    pub completion: u32,
}

impl Default for QueueConfig {
    /// 2048 to send: 2 ms at 1 Mpps. 4096 to receive, which is what comes at 200,000 packets a second in a core's 20 ms
    /// without a CPU; but 1024 while they suffice, because all of these chunks are used in turn, and 2 MiB are what
    /// second-level caches hold: one flow over veth is up to 10 % faster than with 2048, and 12 % with 512 (decision
    /// 0012). Lower: drops in bursts.
    fn default() -> Self {
        Self { rx: 4096, tx: 2048, fill: 4096, lent: 1024, completion: 2048 }
    }
}

/// Size of a UMEM.
#[derive(Clone, Copy, Debug)]
pub struct UmemConfig {
    /// Chunks in all.
    pub chunks: u32,
    /// Bytes of each chunk: 2048 or 4096.
    pub chunk_size: u32,
}

impl UmemConfig {
    pub(crate) fn check(self) -> io::Result<()> {
        if self.chunk_size != 2048 && self.chunk_size != 4096 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a UMEM chunk size of {} is not possible: use 2048 or 4096", self.chunk_size),
            ));
        }
        if self.chunks == 0 || self.chunks > 1 << 24 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a UMEM has 1 to {} chunks, not {}", 1 << 24, self.chunks),
            ));
        }
        Ok(())
    }
}
