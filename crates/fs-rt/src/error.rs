//! Errors of building and running a runtime. Each message names the cause and the remedy.

use std::{fmt, io};

/// The reason why a runtime could not be built. Nothing stays half set up.
///
/// ```
/// use fastsock::{BuildError, Runtime};
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
         network (`ip route get ADDRESS` shows it), or a veth pair for tests; programs of one host are faster under \
         `fastsock run`"
    )]
    Loopback {
        /// Its name.
        device: String,
    },
    /// The thread may not run on this CPU.
    #[error(
        "CPU {cpu} is not available to this process (available: {available:?}): choose another CPU, or widen the \
         process's CPU set (taskset, cpuset)"
    )]
    NoSuchCpu {
        /// The requested CPU.
        cpu: usize,
        /// The available CPUs.
        available: Vec<usize>,
    },
    /// Fewer receive queues than cores were started with, in a slower mode of the device.
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
        /// The number of cores.
        cores: usize,
    },
    /// Settings that contradict each other.
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
    /// The memory for frames could not be allocated.
    #[error(
        "cannot allocate {megabytes} MiB for frames ({source}): lower .frames(…), or raise RLIMIT_MEMLOCK (`ulimit \
         -l`)"
    )]
    Memory {
        /// The requested size.
        megabytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// Too few ports could be reserved.
    #[error("only {got} of {wanted} ephemeral ports could be reserved: {reason}")]
    EphemeralPorts {
        /// Ports asked for.
        wanted: usize,
        /// Ports that were reserved.
        got: usize,
        /// The cause and the remedy.
        reason: String,
    },
    /// The kernel's addresses, routes or neighbours could not be read.
    #[error("cannot read the kernel's {what} over netlink: {source}")]
    Netlink {
        /// The part that was read.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Some other system call failed.
    #[error("{what}: {source}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// The reason why a runtime ended before its applications' futures were done.
///
/// ```no_run
/// # let runtime = fastsock::Runtime::builder().device("eth0").cores([0]).build()?;
/// match runtime.run(|_core| fastsock::shutdown_signal()) {
///     Ok(_) => {}
///     Err(fastsock::RunError::Deadline { .. }) => println!("some connections had not ended in time"),
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
        /// The failed operation.
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
        /// The interface's number (in the order of `.device(…)`).
        interface: u8,
        /// The system's error.
        source: io::Error,
    },
    /// An application's future or the reactor panicked.
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
    /// Returns true if the devices cannot be used, regardless of other settings.
    /// [`crate::Builder::or_kernel`] ignores these errors.
    pub(crate) fn is_about_devices(&self) -> bool {
        match self {
            Self::NoDevice
            | Self::NoSuchDevice { .. }
            | Self::Loopback { .. }
            | Self::TooFewQueues { .. }
            | Self::Link { .. }
            | Self::Memory { .. }
            | Self::EphemeralPorts { .. }
            | Self::Netlink { .. }
            | Self::System { .. } => true,
            Self::NoSuchCpu { .. } | Self::Config(_) => false,
        }
    }
}

/// Prints the message: `Debug` prints an error that `main` returns, and the remedy is in the
/// message.
impl fmt::Debug for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Prints the message, for the same reason.
impl fmt::Debug for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
