//! Network namespaces: which addresses are local to each, and which way its kernel would send a packet.
//!
//! A netlink socket keeps talking to the namespace that it was made in, so one short-lived thread enters the namespace
//! (that needs CAP_SYS_ADMIN unless it is our own) and brings the sockets back.

use crate::diag::Diag;
use crate::listeners::{Netns, unmapped};
use crate::sys::netns_cookie;
use fs_rt::netlink::{GROUPS, Netlink, Notices};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::HashSet;
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
}

/// A namespace that can be asked.
#[derive(Debug)]
pub(crate) struct Namespace {
    addresses: HashSet<IpAddr>,
    netlink: Netlink,
    diag: Diag,
    /// It, unless it is the daemon's own.
    home: Option<Arc<File>>,
}

impl Namespace {
    /// Opens namespace `netns`, which process `pid` has sockets of: ours, or else the process's own.
    pub(crate) fn open(pid: u32, netns: Netns) -> io::Result<Self> {
        let mut home = None;
        let sockets = || Ok((Netlink::open(GROUPS)?, Diag::open()?));
        let (netlink, diag) = if own()? == netns {
            sockets()?
        } else {
            let file = File::open(format!("/proc/{pid}/ns/net"))?;
            home = Some(Arc::new(file.try_clone()?));
            inside(file, move || {
                if own()? == netns { sockets() } else { Err(io::Error::other("not the namespace of its process")) }
            })?
        };
        let mut namespace = Self { addresses: HashSet::new(), netlink, diag, home };
        namespace.reread()?;
        Ok(namespace)
    }

    /// The namespace; `None`: the daemon's own.
    pub(crate) fn home(&self) -> Option<Arc<File>> {
        self.home.clone()
    }

    /// Whether the kernel of this namespace takes packets to `ip` itself.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        let ip = unmapped(ip);
        ip.is_loopback() || self.addresses.contains(&ip)
    }

    /// See [`Diag::listener`].
    pub(crate) fn listener(&self, from: IpAddr, to: SocketAddr, device: u32) -> io::Result<Option<u64>> {
        self.diag.listener(from, to, device)
    }

    /// Takes the notices that came; answers whether anything changed that routes depend on.
    pub(crate) fn follow(&mut self) -> bool {
        let noticed = match self.netlink.notices() {
            Ok(Notices::Messages(messages)) => !messages.is_empty(),
            Ok(Notices::Lost) => true,
            Err(error) => {
                tracing::warn!(%error, "a namespace's notices");
                // Reading anew makes up for what is not understood.
                true
            }
        };
        if noticed && let Err(error) = self.reread() {
            tracing::warn!(%error, "cannot read a namespace's addresses");
        }
        noticed
    }

    fn reread(&mut self) -> io::Result<()> {
        let answers = self.netlink.dump(Message::GetAddress(AddressMessage::default()))?;
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
        let answers = self.netlink.question(Message::GetRoute(question))?;
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
        let route = namespace.route("127.0.0.1".parse().unwrap(), None).unwrap();
        assert!(route.local && route.source == Some("127.0.0.1".parse().unwrap()), "{route:?}");
        namespace.follow();
    }
}
