//! ICMP (RFC 792) and ICMPv6 (RFC 4443), the part that a host with TCP and UDP needs: errors about
//! our packets, and echo. Callers have verified the checksum ([`crate::rx::parse`] does).

use crate::error::Error;
use crate::flow::{FlowKey, Protocol};
use crate::seq::SeqNum;
use crate::wire::{ipv4, ipv6};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv4DstUnreachable as Dst4, Icmpv4Message, Icmpv4Packet, Icmpv4Repr, Icmpv6DstUnreachable as Dst6, Icmpv6Message,
    Icmpv6Packet, Icmpv6Repr, Ipv6Address,
};

#[cfg(test)]
mod tests;

/// Offset of the quoted packet in an error message, of either version.
const QUOTE_OFFSET: usize = 8;

/// Kind of an error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpErrorKind {
    /// No socket is bound to the port.
    PortUnreachable,
    /// No route to the host, or it does not reply to its neighbours.
    HostUnreachable,
    /// No route to the network.
    NetUnreachable,
    /// The host does not support the transport protocol.
    ProtoUnreachable,
    /// ICMPv4: a filter prohibits the host, or the packet.
    AdminProhibited,
    /// ICMPv4: a filter prohibits the network.
    NetProhibited,
    /// ICMPv6: a filter, a policy or a reject route prohibits it.
    Prohibited,
    /// The packet exceeds the next link's MTU. `mtu` may be 0 from routers older than RFC 1191, and
    /// any value from forgers: the caller bounds it.
    FragmentationNeeded {
        /// The next link's MTU in bytes.
        mtu: u32,
    },
    /// ICMPv6's counterpart of `FragmentationNeeded`. An `mtu` below 1280 is invalid (RFC 8201
    /// section 4).
    PacketTooBig {
        /// The next link's MTU in bytes.
        mtu: u32,
    },
    /// TTL expired in transit or during reassembly.
    TimeExceeded,
    /// A router or the host could not interpret the header.
    ParameterProblem,
}

impl IcmpErrorKind {
    /// Returns Linux's socket error for it (`icmp_err_convert` in net/ipv4/icmp.c, and its IPv6
    /// counterpart). Two rare ones differ: Linux has ENOPROTOOPT for `ProtoUnreachable`, and EPROTO
    /// for `ParameterProblem`.
    pub fn error(self) -> Error {
        match self {
            IcmpErrorKind::PortUnreachable | IcmpErrorKind::ProtoUnreachable => Error::ConnectionRefused,
            IcmpErrorKind::NetUnreachable | IcmpErrorKind::NetProhibited => Error::NetworkUnreachable,
            IcmpErrorKind::Prohibited => Error::Prohibited,
            IcmpErrorKind::HostUnreachable
            | IcmpErrorKind::AdminProhibited
            | IcmpErrorKind::TimeExceeded
            | IcmpErrorKind::ParameterProblem => Error::HostUnreachable,
            IcmpErrorKind::FragmentationNeeded { .. } | IcmpErrorKind::PacketTooBig { .. } => Error::MessageSize,
        }
    }

    /// Returns true for errors that retries do not resolve: Linux's `fatal` in the same tables. RFC
    /// 1122 4.2.3.9 lets TCP abort only for hard errors, and RFC 5927 not even for those on open
    /// connections.
    pub fn is_hard(self) -> bool {
        match self {
            IcmpErrorKind::PortUnreachable
            | IcmpErrorKind::ProtoUnreachable
            | IcmpErrorKind::AdminProhibited
            | IcmpErrorKind::NetProhibited
            | IcmpErrorKind::Prohibited => true,
            IcmpErrorKind::HostUnreachable
            | IcmpErrorKind::NetUnreachable
            | IcmpErrorKind::FragmentationNeeded { .. }
            | IcmpErrorKind::PacketTooBig { .. }
            | IcmpErrorKind::TimeExceeded
            | IcmpErrorKind::ParameterProblem => false,
        }
    }

    /// Returns true for errors that end a handshake whose SYN-ACK they quote: the client does not
    /// exist (Linux `tcp_req_err`).
    pub fn ends_handshake(self) -> bool {
        self.is_hard() || matches!(self, IcmpErrorKind::HostUnreachable | IcmpErrorKind::NetUnreachable)
    }
}

/// An error about a packet of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Kind of the error.
    pub kind: IcmpErrorKind,
    /// The quoted packet's protocol.
    pub protocol: Protocol,
    /// The quoted packet's flow, seen from this host: `local` is the quoted source.
    pub key: FlowKey,
    /// The quoted TCP segment's sequence number. RFC 5927 4.1: ignored unless it is in flight.
    pub seq: Option<SeqNum>,
}

/// Reads an ICMPv4 message (from its type octet on). Returns `None` if it is not an error about TCP
/// or UDP.
pub fn parse_error_v4(message: &[u8]) -> Option<IcmpError> {
    let packet = Icmpv4Packet::new_checked(message).ok()?;
    let kind = match packet.msg_type() {
        Icmpv4Message::DstUnreachable => match Dst4::from(packet.msg_code()) {
            Dst4::NetUnreachable | Dst4::DstNetUnknown | Dst4::NetUnreachToS => IcmpErrorKind::NetUnreachable,
            Dst4::ProtoUnreachable => IcmpErrorKind::ProtoUnreachable,
            Dst4::PortUnreachable => IcmpErrorKind::PortUnreachable,
            Dst4::NetProhibited => IcmpErrorKind::NetProhibited,
            Dst4::HostProhibited | Dst4::CommProhibited => IcmpErrorKind::AdminProhibited,
            Dst4::FragRequired => {
                // RFC 1191 section 4: the low half of the second word.
                let [.., m0, m1] = *message.first_chunk::<QUOTE_OFFSET>()?;
                IcmpErrorKind::FragmentationNeeded { mtu: u32::from(u16::from_be_bytes([m0, m1])) }
            }
            // RFC 1812 5.2.7.1: hosts treat unknown codes as "host unreachable".
            _ => IcmpErrorKind::HostUnreachable,
        },
        Icmpv4Message::TimeExceeded => IcmpErrorKind::TimeExceeded,
        Icmpv4Message::ParamProblem => IcmpErrorKind::ParameterProblem,
        // Source quench is obsolete (RFC 6633), and redirects do not concern transports.
        _ => return None,
    };
    let (protocol, key, seq) = quoted_v4(message.get(QUOTE_OFFSET..)?)?;
    Some(IcmpError { kind, protocol, key, seq })
}

/// Reads an ICMPv6 message (from its type octet on). Returns `None` if it is not an error about TCP
/// or UDP.
pub fn parse_error_v6(message: &[u8]) -> Option<IcmpError> {
    let packet = Icmpv6Packet::new_checked(message).ok()?;
    let kind = match packet.msg_type() {
        Icmpv6Message::DstUnreachable => match Dst6::from(packet.msg_code()) {
            Dst6::NoRoute => IcmpErrorKind::NetUnreachable,
            Dst6::AdminProhibit | Dst6::FailedPolicy | Dst6::RejectRoute => IcmpErrorKind::Prohibited,
            Dst6::PortUnreachable => IcmpErrorKind::PortUnreachable,
            _ => IcmpErrorKind::HostUnreachable,
        },
        Icmpv6Message::PktTooBig => IcmpErrorKind::PacketTooBig { mtu: packet.pkt_too_big_mtu() },
        Icmpv6Message::TimeExceeded => IcmpErrorKind::TimeExceeded,
        // RFC 4443 3.4: code 1 is an unrecognised next header.
        Icmpv6Message::ParamProblem if packet.msg_code() == 1 => IcmpErrorKind::ProtoUnreachable,
        Icmpv6Message::ParamProblem => IcmpErrorKind::ParameterProblem,
        _ => return None,
    };
    let (protocol, key, seq) = quoted_v6(message.get(QUOTE_OFFSET..)?)?;
    Some(IcmpError { kind, protocol, key, seq })
}

type Quoted = (Protocol, FlowKey, Option<SeqNum>);

/// Reads the quoted packet. The quote may be cut after 8 bytes of payload (RFC 792), and its
/// header's TTL, length and checksum may have changed in transit: only the fields that name the
/// flow are read.
fn quoted_v4(quote: &[u8]) -> Option<Quoted> {
    let h = quote.first_chunk::<{ ipv4::HEADER_LEN }>()?;
    let header_len = usize::from(h[0] & 0x0f) * 4;
    // Only the first fragment of a packet contains ports.
    let fragment_offset = u16::from_be_bytes([h[6], h[7]]) & 0x1fff;
    if h[0] >> 4 != 4 || header_len < ipv4::HEADER_LEN || fragment_offset != 0 {
        return None;
    }
    let (protocol, local_port, remote_port, seq) = quoted_transport(h[9], quote.get(header_len..)?)?;
    let local = u32::from_be_bytes([h[12], h[13], h[14], h[15]]);
    let remote = u32::from_be_bytes([h[16], h[17], h[18], h[19]]);
    Some((protocol, FlowKey::V4 { local, remote, local_port, remote_port }, seq))
}

fn quoted_v6(quote: &[u8]) -> Option<Quoted> {
    let view = ipv6::parse(quote, usize::MAX).ok()?;
    let transport = quote.get(usize::from(view.header_len)..)?;
    let (protocol, local_port, remote_port, seq) = quoted_transport(view.protocol, transport)?;
    Some((protocol, FlowKey::V6 { local: view.src, remote: view.dst, local_port, remote_port }, seq))
}

fn quoted_transport(protocol: u8, bytes: &[u8]) -> Option<(Protocol, u16, u16, Option<SeqNum>)> {
    let [s0, s1, d0, d1, q0, q1, q2, q3] = *bytes.first_chunk::<8>()?;
    let (protocol, seq) = match protocol {
        ipv4::TCP => (Protocol::Tcp, Some(SeqNum(u32::from_be_bytes([q0, q1, q2, q3])))),
        ipv4::UDP => (Protocol::Udp, None),
        _ => return None,
    };
    Some((protocol, u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]), seq))
}

/// Writes the reply to an ICMPv4 echo request (message from its type octet on) and returns its
/// length. Returns `None` if `request` is not an echo request, or if `out` is too small.
pub(crate) fn echo_reply_v4(request: &[u8], out: &mut [u8]) -> Option<usize> {
    let caps = ChecksumCapabilities::ignored();
    let Icmpv4Repr::EchoRequest { ident, seq_no, data } =
        Icmpv4Repr::parse(&Icmpv4Packet::new_checked(request).ok()?, &caps).ok()?
    else {
        return None;
    };
    let reply = Icmpv4Repr::EchoReply { ident, seq_no, data };
    let out = out.get_mut(..reply.buffer_len())?;
    reply.emit(&mut Icmpv4Packet::new_unchecked(&mut *out), &ChecksumCapabilities::default());
    Some(out.len())
}

/// Like [`echo_reply_v4`] for ICMPv6. `from` is the reply's source (the request's destination),
/// `to` its destination.
pub(crate) fn echo_reply_v6(request: &[u8], from: Ipv6Address, to: Ipv6Address, out: &mut [u8]) -> Option<usize> {
    let caps = ChecksumCapabilities::ignored();
    let Icmpv6Repr::EchoRequest { ident, seq_no, data } =
        Icmpv6Repr::parse(&to, &from, &Icmpv6Packet::new_checked(request).ok()?, &caps).ok()?
    else {
        return None;
    };
    let reply = Icmpv6Repr::EchoReply { ident, seq_no, data };
    let out = out.get_mut(..reply.buffer_len())?;
    reply.emit(&from, &to, &mut Icmpv6Packet::new_unchecked(&mut *out), &ChecksumCapabilities::default());
    Some(out.len())
}
