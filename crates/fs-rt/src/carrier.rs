//! What carries a socket's bytes.

use std::fmt;

/// What carries a connection, and why: `TcpStream::carrier` of fs-compat.
///
/// ```
/// use fs_rt::{Carrier, Why};
///
/// assert_eq!(Carrier::Kernel(Why::ThisHost).to_string(), "the kernel (this host's own address)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Carrier {
    /// The core's own TCP, over the runtime's devices.
    Core,
    /// A socket of the kernel.
    Kernel(Why),
}

/// Why a connection is the kernel's.
///
/// ```
/// use fs_rt::{Carrier, Why};
///
/// assert_ne!(Carrier::Kernel(Why::NoDevice), Carrier::Core);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// The runtime has no device: [`crate::LinkChoice::Kernel`].
    NoDevice,
    /// Its peer is this host: loopback, or an address of the host's own.
    ThisHost,
    /// It came by another device than the runtime's, or the kernel's routes and rules lead elsewhere.
    OtherRoute,
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Carrier::Core => f.write_str("the core"),
            Carrier::Kernel(why) => write!(f, "the kernel ({why})"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::NoDevice => "the runtime has no device",
            Why::ThisHost => "this host's own address",
            Why::OtherRoute => "by another device",
        })
    }
}

/// What may carry a runtime's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carriers {
    /// The cores alone: in standalone addressing, and for a program that connects for others.
    Core,
    /// The cores what passes the runtime's devices, the kernel the rest.
    Both,
    /// The kernel alone.
    Kernel,
}
