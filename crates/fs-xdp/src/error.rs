//! Errors of opening a device or queue. Each names its cause and its remedy.

use std::io;

/// The reason why a device or queue could not be opened or changed. Nothing stays half set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XdpError {
    /// There is no such device in this network namespace.
    #[error("there is no network device {device} in this network namespace: `ip link` lists the devices")]
    NoSuchDevice {
        /// The requested name.
        device: String,
    },
    /// The device is not an Ethernet device.
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
        /// The failed operation.
        doing: &'static str,
        /// Names of the required capabilities that this thread lacks.
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
        /// Its number and name, if known, and the process that holds it.
        program: String,
        /// The command that removes it.
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
        /// Time for which the bind was retried.
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
        "RLIMIT_MEMLOCK is too small: {needed_kib} KiB must be locked, on top of what this user's programs have locked \
         already, and the limit is {limit_kib} KiB; raise it (at least `ulimit -l {needed_kib}`, LimitMEMLOCK= in a \
         systemd unit), or grant CAP_IPC_LOCK"
    )]
    MemoryLock {
        /// The UMEM's size, without memory that the user's programs have already locked.
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
        /// Largest possible MTU in bytes.
        max: u32,
        /// The mode that sets the limit.
        mode: &'static str,
        /// The remedy.
        cure: &'static str,
    },
    /// The kernel lacks something that has no substitute.
    #[error("this kernel has no {what}: {cure}")]
    KernelLacks {
        /// The missing feature.
        what: &'static str,
        /// The remedy.
        cure: &'static str,
    },
    /// Native mode was requested, and the driver does not support it.
    #[error("{device} (driver {driver}) cannot run XDP programs in native mode ({source}): use generic mode")]
    NativeUnsupported {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The core's pool cannot supply a queue.
    #[error("the pool has {available} free chunks, and a queue needs {needed} at least: create a larger pool")]
    PoolTooSmall {
        /// Free chunks.
        available: usize,
        /// The queue's minimum.
        needed: usize,
    },
    /// The pool belongs to another UMEM.
    #[error("the pool belongs to another UMEM: use a pool of the UMEM that was given")]
    ForeignPool,
    /// A ring size that the kernel does not support.
    #[error("a ring of {size} entries is not possible: use a power of two from 1 to 2^14")]
    RingSize {
        /// The requested size.
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
        /// The last lines of the verifier's log, joined by " | ".
        log: String,
    },
    /// The XDP program could not be loaded.
    #[error("cannot load the XDP program: {0}")]
    Program(String),
    /// A map of the program refused a change.
    #[error("cannot {doing} in the XDP program's maps: {reason}")]
    Map {
        /// The failed operation.
        doing: &'static str,
        /// The kernel's error.
        reason: String,
    },
    /// Any other system call.
    #[error("cannot {doing}: {source}")]
    System {
        /// The failed operation.
        doing: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl XdpError {
    /// Converts a failed system call. Names the missing capabilities if it was not permitted.
    pub(crate) fn system(doing: impl Into<String>, source: io::Error) -> Self {
        XdpError::System { doing: doing.into(), source }
    }

    /// Returns the kernel's error number, if there is one.
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
