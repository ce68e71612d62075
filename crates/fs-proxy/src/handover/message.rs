//! Messages between the two processes, over a pair of SOCK_SEQPACKET sockets: a line of text, and
//! at most one descriptor.

use crate::stats::OtherWeight;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The environment variable of a successor. Its standard input is then its end of the pair.
pub(super) const VARIABLE: &str = "FS_PROXY_HANDOVER";
/// No more sockets follow.
pub(super) const END: &str = "end";
/// The successor serves.
pub(super) const SERVING: &str = "serving";
/// Longest message. A weight has its upstream's name, which was in a command of the admin socket.
const LENGTH_MAX: usize = 4096 + 128;

/// The use of a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A listener with this configured address. Several listeners can have the same address if
    /// their port is 0; they are numbered from 0.
    Listener(SocketAddr, usize),
    /// The metrics.
    Metrics(SocketAddr),
}

impl Role {
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text.split(' ').collect::<Vec<_>>()[..] {
            ["listener", address, number] => Some(Self::Listener(address.parse().ok()?, number.parse().ok()?)),
            ["metrics", address] => Some(Self::Metrics(address.parse().ok()?)),
            _ => None,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listener(address, number) => write!(f, "listener {address} {number}"),
            Self::Metrics(address) => write!(f, "metrics {address}"),
        }
    }
}

/// Returns the message for a weight. The name of an upstream may have spaces, so it is last.
pub(super) fn weight(OtherWeight { weight, configured, addr, upstream }: &OtherWeight) -> String {
    format!("weight {weight} {configured} {addr} {upstream}")
}

pub(super) fn parse_weight(text: &str) -> Option<OtherWeight> {
    match text.splitn(5, ' ').collect::<Vec<_>>()[..] {
        ["weight", weight, configured, addr, upstream] => Some(OtherWeight {
            weight: weight.parse().ok()?,
            configured: configured.parse().ok()?,
            addr: addr.parse().ok()?,
            upstream: upstream.to_owned(),
        }),
        _ => None,
    }
}

/// A listening socket that is passed on.
#[derive(Debug)]
pub(crate) struct Passed {
    pub(crate) role: Role,
    pub(crate) socket: OwnedFd,
}

/// Sends a message.
pub(super) fn send(to: impl AsFd, text: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    // NOSIGNAL: a process that ended is an error, not a signal.
    sendmsg(to, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message. The text is empty if the other process has ended.
pub(super) fn receive(from: impl AsFd) -> io::Result<(String, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; LENGTH_MAX];
    let message = recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((String::from_utf8_lossy(&bytes[..message.bytes]).into_owned(), descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_as_written() {
        for role in [
            Role::Listener("127.0.0.1:80".parse().unwrap(), 0),
            Role::Listener("[::1]:0".parse().unwrap(), 3),
            Role::Metrics("127.0.0.1:0".parse().unwrap()),
        ] {
            assert_eq!(Role::parse(&role.to_string()), Some(role));
        }
        for wrong in ["", "end", "listener x 0", "listener 1.2.3.4:5 x", "listener 1.2.3.4:5", "metrics"] {
            assert_eq!(Role::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn weights_are_read_as_written() {
        for (addr, upstream) in [("10.0.0.1:80", "site"), ("[fd00::1]:80", "a  site "), ("10.0.0.1:80", "")] {
            let other =
                OtherWeight { weight: 0, configured: 3, addr: addr.parse().unwrap(), upstream: upstream.to_owned() };
            assert_eq!(parse_weight(&weight(&other)), Some(other));
        }
        for wrong in ["", "weight", "weight 1 1 10.0.0.1:80", "weight x 1 10.0.0.1:80 u", "weight 1 1 x u"] {
            assert_eq!(parse_weight(wrong), None, "{wrong}");
        }
    }
}
