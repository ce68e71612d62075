//! Network namespaces: which addresses are local to each, and which way its kernel would send a packet. The kernel is asked each
//! time: what is kept of a namespace could be as large as who administers it likes.
//!
//! A netlink socket keeps talking to the namespace that it was made in, so one short-lived thread enters the namespace
//! (that needs CAP_SYS_ADMIN unless it is our own) and brings the sockets back.

use crate::diag::Diag;
use crate::firewall::{self, Firewall};
use crate::listeners::{Netns, unmapped};
use crate::sys::netns_cookie;
use fs_rt::netlink::{GROUPS, Netlink, Notices};
use netlink_packet_core::DefaultNla;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The calling thread's namespace.
pub(crate) fn own() -> io::Result<Netns> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::DGRAM, None)?;
    netns_cookie(socket.as_fd())
}

/// Runs `work` in another namespace, on a thread of its own (that needs CAP_SYS_ADMIN).
pub(crate) fn inside<T: Send + 'static>(
    namespace: File,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let visit = std::thread::Builder::new().name("netns".into()).spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        work()
    })?;
    visit.join().map_err(|_| io::Error::other("panicked"))?
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
    /// It goes to one host behind the device (not blackhole, prohibit …).
    pub(crate) unicast: bool,
}

/// A namespace that can be asked.
#[derive(Debug)]
pub(crate) struct Namespace {
    netlink: Netlink,
    diag: Diag,
    /// `None`: it may not be asked.
    firewall: Option<Firewall>,
    /// It, unless it is the daemon's own.
    home: Option<Arc<File>>,
}

impl Namespace {
    /// Opens namespace `netns`, which process `pid` has sockets of: ours, or else the process's own.
    pub(crate) fn open(pid: u32, netns: Netns) -> io::Result<Self> {
        let mut home = None;
        let sockets = || Ok((Netlink::open(GROUPS)?, Diag::open()?, Firewall::open()?));
        let (netlink, diag, firewall) = if own()? == netns {
            sockets()?
        } else {
            let file = File::open(format!("/proc/{pid}/ns/net"))?;
            home = Some(Arc::new(file.try_clone()?));
            inside(file, move || {
                if own()? == netns { sockets() } else { Err(io::Error::other("not the namespace of its process")) }
            })?
        };
        Ok(Self { netlink, diag, firewall, home })
    }

    /// The namespace; `None`: the daemon's own.
    pub(crate) fn home(&self) -> Option<Arc<File>> {
        self.home.clone()
    }

    /// Whether the kernel of this namespace takes packets to `ip` itself.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        let flow = Flow { to: SocketAddr::new(ip, 0), from: None, port: 0, uid: 0, mark: 0, device: 0 };
        unmapped(ip).is_loopback() || self.route(flow).is_ok_and(|route| route.local)
    }

    /// Whether the firewall's rules could have a say in connections. A daemon that may not ask has no more rights than its user, who
    /// could share memory with whom he likes without it.
    pub(crate) fn is_ruled(&mut self) -> bool {
        self.firewall.as_mut().is_some_and(Firewall::speaks)
    }

    /// See [`Firewall::could_touch`].
    pub(crate) fn could_touch(&mut self, flows: &[firewall::Flow]) -> Vec<bool> {
        self.firewall.as_mut().map_or_else(|| vec![false; flows.len()], |firewall| firewall.could_touch(flows))
    }

    /// See [`Firewall::follow`].
    pub(crate) fn follow_firewall(&mut self) -> bool {
        self.firewall.as_mut().is_some_and(Firewall::follow)
    }

    /// Readable when rules have changed.
    pub(crate) fn firewall(&self) -> Option<BorrowedFd<'_>> {
        self.firewall.as_ref().map(Firewall::as_fd)
    }

    /// See [`Diag::listener`].
    pub(crate) fn listener(&self, from: IpAddr, to: SocketAddr, device: u32) -> io::Result<Option<u64>> {
        self.diag.listener(from, to, device)
    }

    /// Takes the notices that came; answers whether anything changed that routes depend on.
    pub(crate) fn follow(&mut self) -> bool {
        match self.netlink.notices() {
            Ok(Notices::Messages(messages)) => !messages.is_empty(),
            Ok(Notices::Lost) => true,
            Err(error) => {
                tracing::warn!(%error, "a namespace's notices");
                true
            }
        }
    }

    /// Asks the kernel for its way of a connection: all that routes and `ip rule` look at. An error is what connect(2) would answer.
    pub(crate) fn route(&self, flow: Flow) -> io::Result<KernelRoute> {
        let answers = self.netlink.question(Message::GetRoute(flow.question()))?;
        let [Message::NewRoute(route), ..] = &answers[..] else {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::NETUNREACH.raw_os_error()));
        };
        let kind = route.header.kind;
        let (local, unicast) = (kind == RouteType::Local, kind == RouteType::Unicast);
        let mut answer = KernelRoute { device: 0, source: None, local, unicast };
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

    /// Whether the route of a connection has several ways, of which its source port or the state of neighbours chooses one.
    pub(crate) fn has_ways(&self, flow: Flow) -> io::Result<bool> {
        let mut question = flow.question();
        question.header.flags |= RouteFlags::FibMatch;
        let answers = self.netlink.question(Message::GetRoute(question))?;
        let several = |attribute: &RouteAttribute| matches!(attribute, RouteAttribute::MultiPath(_));
        Ok(answers.iter().any(|answer| match answer {
            Message::NewRoute(route) => route.attributes.iter().any(several),
            _ => true,
        }))
    }
}

/// A connection, as far as the kernel's routes depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) to: SocketAddr,
    /// What its socket is bound to.
    pub(crate) from: Option<IpAddr>,
    pub(crate) port: u16,
    /// Its socket's user, mark (SO_MARK) and device (SO_BINDTODEVICE).
    pub(crate) uid: u32,
    pub(crate) mark: u32,
    pub(crate) device: u32,
}

impl Flow {
    fn question(self) -> RouteMessage {
        /// Of linux/rtnetlink.h.
        const IP_PROTO: u16 = 27;
        const SOURCE_PORT: u16 = 28;
        const DESTINATION_PORT: u16 = 29;
        const TCP: u8 = 6;
        let other = |kind, value: &[u8]| RouteAttribute::Other(DefaultNla::new(kind, value.to_vec()));
        let address = |ip| match ip {
            IpAddr::V4(v4) => RouteAddress::Inet(v4),
            IpAddr::V6(v6) => RouteAddress::Inet6(v6),
        };
        let mut question = RouteMessage::default();
        let to = unmapped(self.to.ip());
        let bits = if to.is_ipv4() { 32 } else { 128 };
        question.header.address_family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        question.header.destination_prefix_length = bits;
        question.attributes = vec![
            RouteAttribute::Destination(address(to)),
            RouteAttribute::Uid(self.uid),
            other(IP_PROTO, &[TCP]),
            other(DESTINATION_PORT, &self.to.port().to_be_bytes()),
        ];
        let from = self.from.map(unmapped);
        if let Some(from) = from.filter(|from| !from.is_unspecified() && from.is_ipv4() == to.is_ipv4()) {
            question.header.source_prefix_length = bits;
            question.attributes.push(RouteAttribute::Source(address(from)));
        }
        if self.port != 0 {
            question.attributes.push(other(SOURCE_PORT, &self.port.to_be_bytes()));
        }
        if self.mark != 0 {
            question.attributes.push(RouteAttribute::Mark(self.mark));
        }
        if self.device != 0 {
            question.attributes.push(RouteAttribute::Oif(self.device));
        }
        question
    }
}

impl AsFd for Namespace {
    /// Readable when something may have changed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }
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
        let to = "127.0.0.1:80".parse().unwrap();
        let flow = Flow { to, from: None, port: 0, uid: 0, mark: 0, device: 0 };
        let route = namespace.route(flow).unwrap();
        assert!(route.local && route.source == Some("127.0.0.1".parse().unwrap()), "{route:?}");
        namespace.follow();
    }
}
