//! Network namespaces: which addresses are local to each, and which way its kernel would send a packet.
//!
//! A netlink socket keeps talking to the namespace that it was made in, so one short-lived thread enters the namespace
//! (that needs CAP_SYS_ADMIN unless it is our own) and brings the sockets back.

use crate::listeners::{Netns, unmapped};
use crate::sys::netns_cookie;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// RTNLGRP_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV6_IFADDR, _IPV6_ROUTE of `linux/rtnetlink.h`.
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];

/// The calling thread's namespace.
pub(crate) fn own() -> io::Result<Netns> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::DGRAM, None)?;
    netns_cookie(socket.as_fd())
}

/// Where the kernel would send a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelRoute {
    /// The device's index.
    pub(crate) device: u32,
    /// The address that it would come from.
    pub(crate) source: Option<IpAddr>,
    /// It stays in this namespace.
    pub(crate) local: bool,
}

/// A namespace that can be asked.
#[derive(Debug)]
pub(crate) struct Namespace {
    addresses: HashSet<IpAddr>,
    notices: Socket,
    questions: Socket,
}

impl Namespace {
    /// Opens namespace `netns`, which process `pid` has sockets of: ours, or else the process's own.
    pub(crate) fn open(pid: u32, netns: Netns) -> io::Result<Self> {
        let (notices, questions) = if own()? == netns {
            sockets()?
        } else {
            let file = File::open(format!("/proc/{pid}/ns/net"))?;
            let visit = std::thread::Builder::new().name("netns".into()).spawn(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
                if own()? == netns { sockets() } else { Err(io::Error::other("not the namespace of its process")) }
            })?;
            visit.join().map_err(|_| io::Error::other("panicked"))??
        };
        let mut namespace = Self { addresses: HashSet::new(), notices, questions };
        namespace.reread()?;
        Ok(namespace)
    }

    /// Whether the kernel of this namespace takes packets to `ip` itself.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        let ip = unmapped(ip);
        ip.is_loopback() || self.addresses.contains(&ip)
    }

    /// Takes the notices that came; answers whether anything changed that routes depend on.
    pub(crate) fn follow(&mut self) -> bool {
        let mut noticed = false;
        loop {
            match self.notices.recv_from_full() {
                Ok(_) => noticed = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Some were lost (ENOBUFS): reading anew makes up for them.
                Err(_) => {
                    noticed = true;
                    break;
                }
            }
        }
        if noticed && let Err(error) = self.reread() {
            tracing::warn!(%error, "cannot read a namespace's addresses");
        }
        noticed
    }

    fn reread(&mut self) -> io::Result<()> {
        let answers = self.ask(Message::GetAddress(AddressMessage::default()), NLM_F_REQUEST | NLM_F_DUMP)?;
        self.addresses.clear();
        for message in &answers {
            let Message::NewAddress(address) = message else { continue };
            // The local address where there is a peer's (point to point); else there is only "address".
            let mut found = None;
            for attribute in &address.attributes {
                match attribute {
                    AddressAttribute::Local(ip) => found = Some(*ip),
                    AddressAttribute::Address(ip) => found = found.or(Some(*ip)),
                    _ => {}
                }
            }
            self.addresses.extend(found.map(unmapped));
        }
        Ok(())
    }

    /// Asks the kernel for its way to `to`. An error is what connect(2) would answer.
    pub(crate) fn route(&self, to: IpAddr, from: Option<IpAddr>) -> io::Result<KernelRoute> {
        let mut question = RouteMessage::default();
        let address = |ip| match unmapped(ip) {
            IpAddr::V4(v4) => RouteAddress::Inet(v4),
            IpAddr::V6(v6) => RouteAddress::Inet6(v6),
        };
        let to = unmapped(to);
        let bits = if to.is_ipv4() { 32 } else { 128 };
        question.header.address_family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        question.header.destination_prefix_length = bits;
        question.attributes.push(RouteAttribute::Destination(address(to)));
        if let Some(from) = from.filter(|from| !from.is_unspecified()) {
            question.header.source_prefix_length = bits;
            question.attributes.push(RouteAttribute::Source(address(from)));
        }
        let answers = self.ask(Message::GetRoute(question), NLM_F_REQUEST)?;
        let [Message::NewRoute(route), ..] = &answers[..] else {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::NETUNREACH.raw_os_error()));
        };
        let mut answer = KernelRoute { device: 0, source: None, local: matches!(route.header.kind, RouteType::Local) };
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(device) => answer.device = *device,
                RouteAttribute::PrefSource(RouteAddress::Inet(v4)) => answer.source = Some((*v4).into()),
                RouteAttribute::PrefSource(RouteAddress::Inet6(v6)) => answer.source = Some((*v6).into()),
                _ => {}
            }
        }
        Ok(answer)
    }

    /// Answers to a dump end with a "done" message, those to a question are one message.
    fn ask(&self, question: Message, flags: u16) -> io::Result<Vec<Message>> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.questions.send(&bytes, 0)?;
        let mut answers = Vec::new();
        loop {
            let (datagram, _) = self.questions.recv_from_full()?;
            if parse(&datagram, &mut answers)? || flags & NLM_F_DUMP == 0 {
                return Ok(answers);
            }
        }
    }
}

impl AsFd for Namespace {
    /// Readable when something may have changed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }
}

/// Subscribed first, so that what changes during a dump is noticed.
fn sockets() -> io::Result<(Socket, Socket)> {
    let mut notices = Socket::new(NETLINK_ROUTE)?;
    notices.bind_auto()?;
    for group in GROUPS {
        notices.add_membership(group)?;
    }
    notices.set_non_blocking(true)?;
    let mut questions = Socket::new(NETLINK_ROUTE)?;
    questions.bind_auto()?;
    questions.connect(&SocketAddr::new(0, 0))?;
    Ok((notices, questions))
}

/// Reads a datagram's messages; `true` when one of them ends the answer.
fn parse(mut datagram: &[u8], into: &mut Vec<Message>) -> io::Result<bool> {
    while let Some(length) = datagram.first_chunk::<4>() {
        let length = u32::from_ne_bytes(*length) as usize;
        let Some(bytes) = datagram.get(..length).filter(|bytes| !bytes.is_empty()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a netlink message with a wrong length"));
        };
        match NetlinkMessage::<Message>::deserialize(bytes) {
            Ok(message) => match message.payload {
                NetlinkPayload::Done(_) => return Ok(true),
                NetlinkPayload::Error(error) if error.code.is_none() => return Ok(true),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(message) => into.push(message),
                _ => {}
            },
            Err(error) => tracing::debug!(%error, "a netlink message that is not understood"),
        }
        // Messages are aligned to four bytes.
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// The index of a device of this thread's namespace.
pub(crate) fn device_index(name: &str) -> Option<u32> {
    std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_namespace_knows_its_addresses_and_routes() {
        let netns = own().unwrap();
        assert!(Namespace::open(std::process::id(), netns + 1).is_err());
        let mut namespace = Namespace::open(std::process::id(), netns).unwrap();
        for ip in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(namespace.has(ip.parse().unwrap()), "{ip}");
        }
        assert!(!namespace.has("192.0.2.1".parse().unwrap()));
        let route = namespace.route("127.0.0.1".parse().unwrap(), None).unwrap();
        assert!(route.local && route.source == Some("127.0.0.1".parse().unwrap()), "{route:?}");
        namespace.follow();
    }
}
