//! Why a runtime could not be built, or ended early. Each message says the cause and the cure.

use std::{fmt, io};

/// Why a runtime could not be built. Nothing is left half set up.
///
/// ```
/// use fs_rt::{BuildError, Runtime};
///
/// let error = Runtime::builder().cores([0]).build().unwrap_err();
/// assert!(matches!(error, BuildError::NoDevice));
/// assert!(error.to_string().contains(".device("), "it says the cure");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No `.device(…)` was given.
    #[error(
        "no device given: name at least one with .device(\"eth0\"), or FASTSOCK_DEVICE=eth0 where the program heeds it"
    )]
    NoDevice,
    /// The device does not exist.
    #[error("there is no device {device} in this network namespace: `ip link` lists the devices")]
    NoSuchDevice {
        /// Its name.
        device: String,
    },
    /// The device is the loopback device.
    #[error(
        "{device} is the loopback device, and the kernel delivers its packets itself: name the device that faces the \
         network (`ip route get ADDRESS` shows it), or a veth pair for tests; programs of one host connect through \
         `fastsock up --only-local`"
    )]
    Loopback {
        /// Its name.
        device: String,
    },
    /// The thread may not run there.
    #[error(
        "CPU {cpu} is not available to this process (available: {available:?}): choose another CPU, or widen the \
         process's CPU set (taskset, cpuset)"
    )]
    NoSuchCpu {
        /// The CPU asked for.
        cpu: usize,
        /// What could be had.
        available: Vec<usize>,
    },
    /// Fewer receive queues than cores that were begun with, in a lower mode of the device.
    #[error(
        "{device} has {queues} receive queue(s) for {cores} cores, and each core needs one: use fewer cores, or add \
         queues (`ethtool -L {device} combined {cores}`; veth: create it with `numrxqueues {cores} numtxqueues \
         {cores}`)"
    )]
    TooFewQueues {
        /// The device.
        device: String,
        /// Its receive queues.
        queues: usize,
        /// Cores that it is for.
        cores: usize,
    },
    /// Options that do not go together.
    #[error("{0}")]
    Config(String),
    /// The device or one of its queues could not be opened.
    #[error("{device}: {message}")]
    Link {
        /// The device.
        device: String,
        /// Cause and cure.
        message: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The memory for frames could not be had.
    #[error(
        "cannot allocate {megabytes} MiB for frames ({source}): lower .frames(…), or raise RLIMIT_MEMLOCK (`ulimit \
         -l`)"
    )]
    Memory {
        /// How much was asked for.
        megabytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// Too few ports could be reserved.
    #[error("only {got} of {wanted} active ports could be reserved: {reason}")]
    ActivePorts {
        /// Ports asked for.
        wanted: usize,
        /// Ports that could be had.
        got: usize,
        /// Why, and what to do.
        reason: String,
    },
    /// The kernel's addresses, routes or neighbours could not be read.
    #[error("cannot read the kernel's {what} over netlink: {source}")]
    Netlink {
        /// What was asked for.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Some other system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a runtime ended without its applications' futures having finished.
///
/// ```no_run
/// # let runtime = fs_rt::Runtime::builder().device("eth0").cores([0]).build()?;
/// match runtime.run(|_core| fs_rt::shutdown_signal()) {
///     Ok(_) => {}
///     Err(fs_rt::RunError::Deadline { .. }) => println!("some connections had not ended in time"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A core's thread could not be set up.
    #[error("core {core}: {what}: {source}")]
    Core {
        /// The core.
        core: usize,
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The device is gone, or the last one of several.
    #[error(
        "{device}: the device is gone, and its connections are lost ({source}): build the runtime again when a \
         device of this name exists"
    )]
    Link {
        /// The device's name.
        device: String,
        /// The interface's number (the order of `.device(…)`).
        interface: u8,
        /// The system's error.
        source: io::Error,
    },
    /// An application's future, or the reactor, panicked.
    #[error("core {core} panicked: {message}")]
    Panicked {
        /// The core.
        core: usize,
        /// The panic's message.
        message: String,
    },
    /// The shutdown's deadline passed first.
    #[error("the future of core {core} had not finished at the shutdown's deadline")]
    Deadline {
        /// The core.
        core: usize,
    },
}

impl BuildError {
    /// The devices cannot be had, whatever else was asked for: what [`crate::Builder::or_kernel`] does without.
    pub(crate) fn is_about_devices(&self) -> bool {
        match self {
            Self::NoDevice
            | Self::NoSuchDevice { .. }
            | Self::Loopback { .. }
            | Self::TooFewQueues { .. }
            | Self::Link { .. }
            | Self::Memory { .. }
            | Self::ActivePorts { .. }
            | Self::Netlink { .. }
            | Self::System { .. } => true,
            Self::NoSuchCpu { .. } | Self::Config(_) => false,
        }
    }
}

/// As the message: what a `main` returns is printed by `Debug`, and the cure is in the message.
impl fmt::Debug for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As the message, for the same reason.
impl fmt::Debug for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
