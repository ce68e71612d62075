//! Conntrack does not see packets that the program sends on, so it would keep the entries of spliced
//! connections for five days (`nf_conntrack_tcp_timeout_established`). They are deleted, as by
//! `conntrack -D`, with `linux/netfilter/nfnetlink_conntrack.h`.

use crate::address::Ends;
use netlink_sys::{Socket, SocketAddr};
use std::io;
use std::net::IpAddr;

const NETLINK_NETFILTER: isize = 12;
/// `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = 1 << 8 | 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLA_F_NESTED: u16 = 1 << 15;
const TCP: u8 = 6;

/// A socket for such requests. `None`: this kernel has no conntrack.
pub(crate) struct Conntrack(Option<Socket>);

impl Conntrack {
    pub(crate) fn open() -> Self {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_NETFILTER)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        };
        Self(open().inspect_err(|error| tracing::debug!("no conntrack: {error}")).ok())
    }

    /// Deletes the entry of a connection; `is_ours`: this host has opened it. No entry is no error.
    pub(crate) fn forget(&self, ends: &Ends, is_ours: bool) {
        let Some(socket) = &self.0 else { return };
        // The acknowledgment is the only answer, and it is there when the request returns.
        let answer = socket.send(&request(ends, is_ours), 0).and_then(|_| socket.recv_from_full());
        if let Err(error) = answer {
            tracing::debug!("conntrack: {error}");
        }
    }
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len();
    let mut bytes = [(length as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, values: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NLA_F_NESTED, &values.concat())
}

fn request(ends: &Ends, is_ours: bool) -> Vec<u8> {
    let (from, to) = if is_ours { (ends.local, ends.peer) } else { (ends.peer, ends.local) };
    // CTA_IP_V4_SRC and CTA_IP_V4_DST, or CTA_IP_V6_SRC and CTA_IP_V6_DST.
    let address = |ip: IpAddr, [v4, v6]: [u16; 2]| match ip {
        IpAddr::V4(ip) => attribute(v4, &ip.octets()),
        IpAddr::V6(ip) => attribute(v6, &ip.octets()),
    };
    let addresses = nested(1, &[address(from.ip(), [1, 3]), address(to.ip(), [2, 4])]);
    let port = |kind, port: u16| attribute(kind, &port.to_be_bytes());
    let ports = nested(2, &[attribute(1, &[TCP]), port(2, from.port()), port(3, to.port())]);
    let tuple = nested(1, &[addresses, ports]);
    let family = if ends.is_v4() { libc::AF_INET } else { libc::AF_INET6 };
    let length = (16 + 4 + tuple.len()) as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend([DELETE.to_ne_bytes(), (NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes()].concat());
    // Sequence number, port, family, version, resource.
    bytes.extend([0; 8]);
    bytes.extend([family as u8, 0, 0, 0]);
    bytes.extend(tuple);
    bytes
}
