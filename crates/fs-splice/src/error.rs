//! Errors, and the reasons why a pair of connections is not spliced.

use std::io;

/// Nothing can be spliced in this process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel is too old.
    #[error("spliced flows need Linux 6.6 or later (tcx)")]
    Kernel,
    /// The process lacks rights.
    #[error(
        "{0}; spliced flows need CAP_NET_ADMIN and CAP_BPF, with CAP_PERFMON (as root, or AmbientCapabilities= of a unit)"
    )]
    Rights(String),
    /// An error of the BPF loader.
    #[error("cannot {doing}: {reason}")]
    Bpf {
        /// What was being done.
        doing: &'static str,
        /// Why.
        reason: String,
    },
    /// An error of the system.
    #[error("cannot {0}: {1}")]
    System(&'static str, #[source] io::Error),
}

impl Error {
    /// Creates an error with all layers of the loader's error.
    pub(crate) fn bpf(doing: &'static str, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut reason = error.to_string();
        let mut at = error.source();
        while let Some(error) = at {
            if let Some(io) = error.downcast_ref::<io::Error>()
                && matches!(io.raw_os_error(), Some(libc::EPERM | libc::EACCES))
            {
                return Self::Rights(format!("cannot {doing}: {io}"));
            }
            let layer = error.to_string();
            if !reason.contains(&layer) {
                reason = format!("{reason}: {layer}");
            }
            at = error.source();
        }
        Self::Bpf { doing, reason }
    }
}

/// Why a pair of connections stays in user space.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// One connection is IPv4, the other IPv6.
    #[error("one connection is IPv4, the other IPv6")]
    Families,
    /// A connection is not open in both directions.
    #[error("a connection is closing")]
    Closing,
    /// Only one connection has timestamps, or the proxy sends them in microseconds.
    #[error("only one connection has timestamps, or the proxy sends them in microseconds")]
    Stamps,
    /// Only one connection has selective acknowledgments.
    #[error("only one connection has selective acknowledgments")]
    Sack,
    /// A connection uses ECN, whose marks must not cross to another connection.
    #[error("a connection has ECN")]
    Ecn,
    /// Segments of one connection are too long for the other.
    #[error("segments of one connection may have {0} bytes, those of the other {1}")]
    Segments(u32, u32),
    /// The client is so far that a server could misjudge the path.
    #[error("the client is {0} µs away, the server {1} µs")]
    Far(u32, u32),
    /// The packets do not pass an Ethernet device of this host.
    #[error("packets do not pass an Ethernet device (loopback, a tunnel)")]
    Device,
    /// Packets come by another device, with other addresses, or not at all.
    #[error("packets do not come by the device of the route, or with other addresses")]
    Unseen,
    /// Packets are encrypted by IPsec.
    #[error("packets are encrypted by IPsec")]
    Encrypted,
    /// The table is full, or has these addresses.
    #[error("no entry: {0}")]
    Table(String),
    /// An error of the system.
    #[error("cannot {0}: {1}")]
    System(&'static str, #[source] io::Error),
}

impl Refusal {
    /// Returns true if it may be spliced later.
    #[must_use]
    pub fn is_for_now(&self) -> bool {
        matches!(self, Self::Far(..))
    }
}
