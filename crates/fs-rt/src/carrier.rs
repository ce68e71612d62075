//! The carrier of a socket's bytes.

use std::fmt;

/// The carrier of a connection, and the reason: `TcpStream::carrier` of fs-compat.
///
/// ```
/// use fastsock::{Carrier, Why};
///
/// assert_eq!(Carrier::Kernel(Why::ThisHost).to_string(), "the kernel (this host's own address)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Carrier {
    /// The core's own TCP, over the runtime's devices.
    Core,
    /// A kernel socket.
    Kernel(Why),
}

/// The reason why the kernel carries a connection.
///
/// ```
/// use fastsock::{Carrier, Why};
///
/// assert_ne!(Carrier::Kernel(Why::NoDevice), Carrier::Core);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// The runtime has no device: [`crate::LinkChoice::Kernel`].
    NoDevice,
    /// Its peer is this host: loopback, or one of the host's addresses.
    ThisHost,
    /// The connection arrived through another device or queue than the runtime's, the kernel routes
    /// it through another device or by another table than `main`, or its local address is another
    /// device's.
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
            Why::OtherRoute => "by another device, queue or routing table",
        })
    }
}

/// The carriers that a runtime may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carriers {
    /// Only the cores: in standalone addressing, and in a program that connects for others.
    Core,
    /// The cores for the runtime's devices, the kernel for the rest.
    Both,
    /// The kernel alone.
    Kernel,
}
