//! [`Domain`], [`Type`] and [`Protocol`]: the arguments of socket(2).

use std::fmt;
use std::net::SocketAddr;

/// Declares a wrapper of an int with names for its known values.
macro_rules! named_int {
    ($(#[$doc:meta])* $type:ident { $($(#[$item:meta])* $name:ident = $value:ident,)* } also { $($more:ident,)* }) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Eq, PartialEq)]
        pub struct $type(i32);

        impl $type {
            $($(#[$item])* pub const $name: $type = $type(libc::$value);)*

            pub(crate) const fn raw(self) -> i32 {
                self.0
            }
        }

        impl From<i32> for $type {
            fn from(value: i32) -> Self {
                Self(value)
            }
        }

        impl From<$type> for i32 {
            fn from(value: $type) -> i32 {
                value.0
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $(libc::$value => f.write_str(stringify!($value)),)*
                    $(libc::$more => f.write_str(stringify!($more)),)*
                    other => other.fmt(f),
                }
            }
        }
    };
}

named_int! {
    /// The address family of a socket.
    Domain {
        /// IPv4.
        IPV4 = AF_INET,
        /// IPv6.
        IPV6 = AF_INET6,
        /// Processes of this host, by path or name.
        UNIX = AF_UNIX,
        /// Frames of a device.
        PACKET = AF_PACKET,
        /// Between a virtual machine and its host.
        VSOCK = AF_VSOCK,
    } also { AF_UNSPEC, }
}

named_int! {
    /// What a socket carries; may have the bits of [`Type::nonblocking`] and [`Type::cloexec`].
    Type {
        /// A stream of bytes: TCP.
        STREAM = SOCK_STREAM,
        /// Datagrams: UDP.
        DGRAM = SOCK_DGRAM,
        /// DCCP.
        DCCP = SOCK_DCCP,
        /// A sequence of packets.
        SEQPACKET = SOCK_SEQPACKET,
        /// Packets with their headers.
        RAW = SOCK_RAW,
    } also { SOCK_RDM, }
}

named_int! {
    /// The protocol, if domain and type allow several.
    Protocol {
        /// ICMP.
        ICMPV4 = IPPROTO_ICMP,
        /// ICMPv6.
        ICMPV6 = IPPROTO_ICMPV6,
        /// TCP.
        TCP = IPPROTO_TCP,
        /// UDP.
        UDP = IPPROTO_UDP,
        /// Multipath TCP.
        MPTCP = IPPROTO_MPTCP,
        /// DCCP.
        DCCP = IPPROTO_DCCP,
        /// SCTP.
        SCTP = IPPROTO_SCTP,
        /// UDP with partial checksums.
        UDPLITE = IPPROTO_UDPLITE,
    } also {}
}

impl Domain {
    pub(super) const fn new(family: i32) -> Domain {
        Domain(family)
    }

    /// Returns the domain of an address.
    pub const fn for_address(address: SocketAddr) -> Domain {
        match address {
            SocketAddr::V4(_) => Domain::IPV4,
            SocketAddr::V6(_) => Domain::IPV6,
        }
    }
}

impl Type {
    /// Adds SOCK_NONBLOCK.
    pub const fn nonblocking(self) -> Type {
        Type(self.0 | libc::SOCK_NONBLOCK)
    }

    /// Adds SOCK_CLOEXEC.
    pub const fn cloexec(self) -> Type {
        Type(self.0 | libc::SOCK_CLOEXEC)
    }
}
