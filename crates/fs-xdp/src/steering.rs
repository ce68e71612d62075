//! The queue that a NIC chooses for a flow: RSS key and indirection table, ntuple rules
//! (`ethtool(8)`).
//!
//! A core that opens a connection wants the replies on its own queue. If the NIC's RSS can be read,
//! it can choose a source port for which [`Rss::queue_of`] returns this queue. Otherwise packets are
//! forwarded between cores; the user may add ntuple rules. [`report`] returns which of these a
//! runtime will use, and why.

use crate::device::{NetDevice, QueueCounts};
use crate::error::XdpError;
use crate::sys::ioctl::{Control, EthtoolBuffer};
use fs_core::FlowKey;
use std::fmt;
use std::io;
use std::net::IpAddr;

/// Commands of `linux/ethtool.h`.
const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
/// The driver chooses a rule's place itself, if it sets `RX_CLS_LOC_SPECIAL`.
const RX_CLS_LOC_SPECIAL: u32 = 0x8000_0000;

/// Offsets in `struct ethtool_rxnfc` (192 bytes).
mod rxnfc {
    pub(super) const LEN: usize = 192;
    pub(super) const DATA: usize = 8;
    pub(super) const RULE_COUNT: usize = 184;
}

/// The hash function of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HashFunction {
    /// The Toeplitz hash of Microsoft's RSS specification.
    Toeplitz,
    /// Toeplitz, over ends that are mixed so that both directions of a flow have one hash.
    Symmetric,
    /// Another one (`ETH_RSS_HASH_*` bits).
    Other(u8),
}

/// A NIC's receive side scaling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// How it hashes.
    pub function: HashFunction,
    /// The hash's key.
    pub key: Vec<u8>,
    /// The queue of each hash, taken modulo the table's length.
    pub table: Vec<u32>,
}

impl Rss {
    /// Reads the settings of a device.
    ///
    /// # Errors
    /// `Unsupported` if the driver does not report any.
    pub fn read(device: &str) -> io::Result<Rss> {
        // struct ethtool_rxfh: cmd, rss_context, indir_size, key_size, hfunc (u8), …; the table,
        // then the key at 24.
        let control = Control::open()?;
        let mut sizes = EthtoolBuffer::new(ETHTOOL_GRSSH, 24);
        control.ethtool(device, &mut sizes).map_err(unsupported)?;
        let (entries, key_len) = (sizes.get(8) as usize, sizes.get(12) as usize);
        if entries == 0 || entries > 1 << 16 || key_len > 1 << 10 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut data = EthtoolBuffer::new(ETHTOOL_GRSSH, 24 + 4 * entries + key_len);
        data.set(8, entries as u32);
        data.set(12, key_len as u32);
        control.ethtool(device, &mut data).map_err(unsupported)?;
        let driver = NetDevice::find(device).map(|found| found.driver).unwrap_or_default();
        Ok(Rss::of(&data, entries, key_len, &driver))
    }

    /// Parses a `struct ethtool_rxfh` with a table and a key of these sizes.
    fn of(data: &EthtoolBuffer, entries: usize, key_len: usize, driver: &str) -> Rss {
        Rss {
            function: match (data.byte(16), data.byte(17)) {
                // `input_xfrm`, since Linux 6.8.
                (0 | 1, 1..) => HashFunction::Symmetric,
                // It hashes so by default (`rx_hash_symmetric`), which older kernels do not report. If it
                // was turned off, packets are forwarded between cores needlessly.
                (0 | 1, 0) if driver == "mlx5_core" => HashFunction::Symmetric,
                // Zero: a driver from before there were several functions.
                (0 | 1, 0) => HashFunction::Toeplitz,
                (other, _) => HashFunction::Other(other),
            },
            table: (0..entries).map(|i| data.get(24 + 4 * i)).collect(),
            key: (0..key_len).map(|i| data.byte(24 + 4 * entries + i)).collect(),
        }
    }

    /// Prepares [`Rss::queue_of`] for many flows. Returns `None` if the hash function is not
    /// supported, or the key is unknown.
    pub fn flows(&self) -> Option<RssFlows> {
        if self.function != HashFunction::Toeplitz || self.table.is_empty() || self.key.len() < V4_KEY {
            return None;
        }
        // Addresses and ports of IPv6 are the longest input.
        let bytes = (0..self.key.len().saturating_sub(4).min(36)).map(|at| {
            let mut input = [0; 36];
            let of = |byte| {
                input[at] = byte as u8;
                toeplitz(&self.key, &input[..=at]).unwrap_or(0)
            };
            (0..256u32).map(of).collect()
        });
        Some(RssFlows { bytes: bytes.collect(), table: self.table.clone() })
    }

    /// Returns the queue on which packets of `flow` arrive (from its remote end to its local one),
    /// if the NIC hashes addresses and ports. `None` if its hash function is not supported.
    pub fn queue_of(&self, flow: &FlowKey) -> Option<u32> {
        if self.function != HashFunction::Toeplitz || self.table.is_empty() {
            return None;
        }
        let hash = toeplitz(&self.key, &input(flow))?;
        Some(self.table[hash as usize % self.table.len()])
    }
}

/// Look-up tables for the queues of flows (36 KiB). The hash is linear, so it is the XOR of a table
/// entry per byte.
#[derive(Clone, Debug)]
pub struct RssFlows {
    bytes: Vec<Box<[u32]>>,
    table: Vec<u32>,
}

impl RssFlows {
    /// Like [`Rss::queue_of`]. `None` if the key is too short for the flow's addresses.
    pub fn queue_of(&self, flow: &FlowKey) -> Option<u32> {
        let (ports, mut at) = ([flow.remote_port(), flow.local_port()], 0);
        let mut hash = 0;
        let mut add = |byte: u8| {
            hash ^= self.bytes.get(at)?[usize::from(byte)];
            at += 1;
            Some(())
        };
        for address in [flow.remote_ip(), flow.local_ip()] {
            match address {
                IpAddr::V4(v4) => v4.octets().into_iter().try_for_each(&mut add)?,
                IpAddr::V6(v6) => v6.octets().into_iter().try_for_each(&mut add)?,
            }
        }
        ports.into_iter().flat_map(u16::to_be_bytes).try_for_each(&mut add)?;
        Some(self.table[hash as usize % self.table.len()])
    }
}

/// Bytes of a key for IPv4's addresses and ports.
const V4_KEY: usize = 16;

/// Returns the hash input as in the packet: source, destination (ours), source port, destination
/// port.
fn input(flow: &FlowKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(36);
    for address in [flow.remote_ip(), flow.local_ip()] {
        match address {
            IpAddr::V4(v4) => bytes.extend_from_slice(&v4.octets()),
            IpAddr::V6(v6) => bytes.extend_from_slice(&v6.octets()),
        }
    }
    bytes.extend_from_slice(&flow.remote_port().to_be_bytes());
    bytes.extend_from_slice(&flow.local_port().to_be_bytes());
    bytes
}

/// XORs, for every set bit of the input, the 32 bits of the key that start there. Returns `None` if
/// the key is too short.
fn toeplitz(key: &[u8], input: &[u8]) -> Option<u32> {
    if key.len() < input.len() + 4 {
        return None;
    }
    let mut window = u32::from_be_bytes(key[..4].try_into().ok()?);
    let mut hash = 0;
    for (byte, next) in input.iter().zip(&key[4..]) {
        for bit in (0..8).rev() {
            if byte >> bit & 1 == 1 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    Some(hash)
}

struct RuleTable {
    rules: u32,
    places: u32,
}

fn rule_table(control: &Control, device: &str) -> io::Result<RuleTable> {
    let mut data = EthtoolBuffer::new(ETHTOOL_GRXCLSRLCNT, rxnfc::LEN);
    control.ethtool(device, &mut data).map_err(unsupported)?;
    // `data` is 64 bits wide; its low word has the size and the flag.
    let size = data.get(rxnfc::DATA);
    Ok(RuleTable { rules: data.get(rxnfc::RULE_COUNT), places: size & !RX_CLS_LOC_SPECIAL })
}

fn unsupported(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EINVAL) => {
            io::Error::new(io::ErrorKind::Unsupported, "the driver does not support it")
        }
        _ => error,
    }
}

/// A device's methods for steering flows to the queues of their cores. `Display` formats it in a
/// few lines.
#[derive(Debug)]
#[non_exhaustive]
pub struct SteeringReport {
    /// The device's name.
    pub device: String,
    /// Its driver.
    pub driver: String,
    /// Its queues.
    pub queues: QueueCounts,
    /// Its RSS, or the reason why it cannot be read.
    pub rss: Result<Rss, String>,
    /// Number of rules in its ntuple table and its size (0: unknown), or the reason why there is no
    /// table.
    pub ntuple: Result<(u32, u32), String>,
}

impl SteeringReport {
    /// Returns a sentence on the consequence for outgoing connections.
    pub fn conclusion(&self) -> &'static str {
        let one = self.queues.rx <= 1;
        match &self.rss {
            _ if one => "one queue: every packet arrives on its core",
            Ok(rss) if rss.flows().is_some() => "source ports are chosen so that RSS delivers replies to their core",
            _ => "replies may arrive on another core, which forwards them",
        }
    }
}

impl fmt::Display for SteeringReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QueueCounts { rx, tx } = self.queues;
        let driver = if self.driver.is_empty() { "no driver name" } else { &self.driver };
        writeln!(f, "{} ({driver}): {rx} receive and {tx} send queues", self.device)?;
        match &self.rss {
            Ok(Rss { function, key, table }) => {
                writeln!(f, "  RSS: {function:?}, key of {} bytes, table of {}", key.len(), table.len())?;
            }
            Err(reason) => writeln!(f, "  RSS: not readable ({reason})")?,
        }
        match &self.ntuple {
            Ok((rules, places)) => writeln!(f, "  ntuple rules: {rules} in a table of {places}")?,
            Err(reason) => writeln!(f, "  ntuple rules: none possible ({reason})")?,
        }
        write!(f, "  {}", self.conclusion())
    }
}

/// Reads a device's methods.
///
/// # Errors
/// [`XdpError::NoSuchDevice`], or the kernel's error to the first request.
pub fn report(device: &str) -> Result<SteeringReport, XdpError> {
    let found = NetDevice::find(device)?;
    let ntuple = Control::open().and_then(|control| rule_table(&control, device));
    Ok(SteeringReport {
        queues: found.queue_counts(),
        rss: Rss::read(device).map_err(|error| error.to_string()),
        ntuple: ntuple.map(|table| (table.rules, table.places)).map_err(|error| error.to_string()),
        device: found.name,
        driver: found.driver,
    })
}

#[cfg(test)]
mod tests;
