//! Configuration of devices, queues and their memory.

use std::io;

/// Bytes that the kernel keeps free in front of a received packet in its chunk:
/// `XDP_PACKET_HEADROOM` of `linux/bpf.h`.
pub(crate) const XDP_PACKET_HEADROOM: u32 = 256;

/// Bytes of link-layer header on top of the MTU: Ethernet and one VLAN tag.
pub(crate) const LINK_HEADER_MAX: u32 = 18;

/// The mode in which the XDP program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpMode {
    /// In the driver if possible, else on socket buffers. The log says which.
    #[default]
    Auto,
    /// In the driver, or an error.
    Native,
    /// On socket buffers: works on every Ethernet device.
    Generic,
}

/// Whether packets may span several chunks (kernel 6.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MultiBuffer {
    /// If the MTU needs it. Also in generic mode, in which the kernel then delivers its large (TSO,
    /// GRO) packets unsplit.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never: packets larger than a chunk are not received.
    Off,
}

/// Options of attaching to a device.
#[derive(Clone, Copy, Debug)]
pub struct XdpConfig {
    /// See [`XdpMode`].
    pub mode: XdpMode,
    /// See [`MultiBuffer`].
    pub multi_buffer: MultiBuffer,
    /// Zero copy if the driver supports it; `false` always copies.
    pub zero_copy: bool,
    /// Leave checksums to the device if the kernel can pass the request (TX metadata, kernel 6.11).
    pub tx_checksum: bool,
    /// Send runs of full segments as one packet (decision 0029) if packets are copied and the
    /// device segments them again (TSO).
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
    /// Received descriptors that can wait.
    pub rx: u32,
    /// Descriptors that can wait to be sent.
    pub tx: u32,
    /// Most chunks that the device can have to receive into. It gets this many after half of its
    /// chunks were used up (not on the rings of `xsk-rs`, whose fill ring has `lent` entries). At
    /// most a sixth of the pool, unless that is less than `lent`, and at most what
    /// [`crate::Link::limit_lent`] sets later.
    pub fill: u32,
    /// Chunks that the device has at first, and while they suffice: at most half of the pool. The
    /// queue takes them from the pool. After [`crate::Link::limit_lent`], it returns the excess as
    /// packets arrive.
    pub lent: u32,
    /// Sent chunks that can wait to be returned.
    pub completion: u32,
}

impl Default for QueueConfig {
    /// To send, 2048: 2 ms at 1 Mpps. To receive, 4096: the packets of 20 ms without a CPU at
    /// 200,000 per second. But 1024 while they suffice: all of these chunks are used in turn, and 2
    /// MiB fit into L2 caches. One flow over veth is up to 10 % faster than with 2048, and 12 %
    /// with 512 (decision 0012). Lower: drops in bursts.
    fn default() -> Self {
        Self { rx: 4096, tx: 2048, fill: 4096, lent: 1024, completion: 2048 }
    }
}

/// Size of a UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UmemConfig {
    /// Chunks in all.
    pub chunks: u32,
    /// Bytes of each chunk: 2048 or 4096.
    pub chunk_size: u32,
}

impl UmemConfig {
    /// Bytes of the area.
    pub(crate) fn bytes(self) -> usize {
        self.chunks as usize * self.chunk_size as usize
    }

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
