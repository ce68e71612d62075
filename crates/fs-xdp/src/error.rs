//! What can go wrong when a device or queue is opened: each error names its cause and its cure.

use std::io;

/// Why a device or queue could not be opened or changed. Nothing is left half set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XdpError {
    /// There is no such device in this network namespace.
    #[error("there is no network device {device} in this network namespace: `ip link` lists the devices")]
    NoSuchDevice {
        /// As it was asked for.
        device: String,
    },
    /// The device carries something else than Ethernet.
    #[error(
        "{device} is not an Ethernet device (hardware type {hardware_type}), and AF_XDP needs Ethernet: use another \
         device, or the AF_PACKET link"
    )]
    NotEthernet {
        /// The device.
        device: String,
        /// `ARPHRD_*` of `linux/if_arp.h`.
        hardware_type: u16,
    },
    /// A capability is missing.
    #[error("not permitted to {doing}: {}", crate::sys::capabilities::describe(missing))]
    MissingCapability {
        /// What was being done.
        doing: &'static str,
        /// Names of the capabilities that are needed for it and that this thread has not.
        missing: Vec<&'static str>,
    },
    /// Another XDP program is attached.
    #[error(
        "{device} has an XDP program, {program}, and a device can have only one (so one fastsock runtime or daemon): \
         {cure}"
    )]
    ProgramAttached {
        /// The device.
        device: String,
        /// Its number and name, as far as they are known, and who holds it there.
        program: String,
        /// What takes it away.
        cure: String,
    },
    /// Another AF_XDP socket is bound to the queue.
    #[error(
        "queue {queue} of {device} is in use: another AF_XDP socket is bound to it (waited {waited_ms} ms for it to \
         close); stop that process, or use another queue"
    )]
    QueueTaken {
        /// The device.
        device: String,
        /// The queue.
        queue: u32,
        /// How long it was tried.
        waited_ms: u64,
    },
    /// The device has fewer queues.
    #[error(
        "{device} has no queue {queue} for both directions: it has {rx} receive queues and {tx} send queues \
         (`ethtool -L {device}` changes them)"
    )]
    NoSuchQueue {
        /// The device.
        device: String,
        /// The queue.
        queue: u32,
        /// Receive queues that it has.
        rx: u32,
        /// Send queues that it has.
        tx: u32,
    },
    /// The memory cannot be pinned.
    #[error(
        "RLIMIT_MEMLOCK is too small: {needed_kib} KiB must be locked, and the limit is {limit_kib} KiB; raise it \
         (`ulimit -l {needed_kib}`, LimitMEMLOCK= in a systemd unit), or grant CAP_IPC_LOCK"
    )]
    MemoryLock {
        /// What the UMEM needs, with what the process has locked already not counted.
        needed_kib: u64,
        /// The soft limit.
        limit_kib: u64,
    },
    /// The device's MTU does not fit the mode.
    #[error("the MTU of {device} is {mtu}, and {mode} carries {max} at most: {cure}")]
    MtuTooLarge {
        /// The device.
        device: String,
        /// Its MTU in bytes.
        mtu: u32,
        /// Largest MTU in bytes that would do.
        max: u32,
        /// What sets the limit.
        mode: &'static str,
        /// What helps.
        cure: &'static str,
    },
    /// The kernel lacks something that has no substitute.
    #[error("this kernel has no {what}: {cure}")]
    KernelLacks {
        /// What is missing.
        what: &'static str,
        /// What would bring it.
        cure: &'static str,
    },
    /// Native mode was asked for and the driver has it not.
    #[error("{device} (driver {driver}) cannot run XDP programs in native mode ({source}): use generic mode")]
    NativeUnsupported {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The core's pool cannot supply a queue.
    #[error("the pool has {available} free chunks, and a queue needs {needed} at least: create a larger pool")]
    PoolTooSmall {
        /// Free chunks.
        available: usize,
        /// What the queue needs.
        needed: usize,
    },
    /// The pool is of another UMEM than the one given.
    #[error("the pool belongs to another UMEM: use a pool of the UMEM that was given")]
    ForeignPool,
    /// A ring size that the kernel does not take.
    #[error("a ring of {size} entries is not possible: use a power of two from 1 to 2^14")]
    RingSize {
        /// As it was asked for.
        size: u32,
    },
    /// The kernel's verifier does not accept the XDP program.
    #[error(
        "the verifier of this kernel ({kernel}) rejects the XDP program: {log}; report this, and use another kernel \
         or the AF_PACKET link"
    )]
    Verifier {
        /// The kernel's release.
        kernel: String,
        /// The last lines of what the verifier said, joined by " | ".
        log: String,
    },
    /// The XDP program could not be loaded.
    #[error("cannot load the XDP program: {0}")]
    Program(String),
    /// A map of the program refused a change.
    #[error("cannot {doing} in the XDP program's maps: {reason}")]
    Map {
        /// What was being done.
        doing: &'static str,
        /// What the kernel said.
        reason: String,
    },
    /// Any other system call.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was being done.
        doing: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl XdpError {
    /// From a failed system call; names the missing capabilities when it was not permitted.
    pub(crate) fn system(doing: impl Into<String>, source: io::Error) -> Self {
        XdpError::System { doing: doing.into(), source }
    }

    /// The kernel's error number, where there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            XdpError::System { source, .. } | XdpError::NativeUnsupported { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

impl From<XdpError> for io::Error {
    fn from(error: XdpError) -> Self {
        let kind = match &error {
            XdpError::NoSuchDevice { .. } | XdpError::NoSuchQueue { .. } => io::ErrorKind::NotFound,
            XdpError::MissingCapability { .. } => io::ErrorKind::PermissionDenied,
            XdpError::ProgramAttached { .. } | XdpError::QueueTaken { .. } => io::ErrorKind::ResourceBusy,
            XdpError::MemoryLock { .. } | XdpError::PoolTooSmall { .. } => io::ErrorKind::OutOfMemory,
            XdpError::NotEthernet { .. }
            | XdpError::MtuTooLarge { .. }
            | XdpError::ForeignPool
            | XdpError::RingSize { .. } => io::ErrorKind::InvalidInput,
            XdpError::KernelLacks { .. } | XdpError::NativeUnsupported { .. } | XdpError::Verifier { .. } => {
                io::ErrorKind::Unsupported
            }
            XdpError::Program(_) | XdpError::Map { .. } => io::ErrorKind::Other,
            XdpError::System { source, .. } => source.kind(),
        };
        io::Error::new(kind, error)
    }
}
