//! Network namespaces: which addresses are local to each, and which way its kernel would send a packet. The kernel is asked each
//! time: what is kept of a namespace could be as large as who administers it likes.
//!
//! A netlink socket keeps talking to the namespace that it was made in, so one short-lived thread enters the namespace
//! (that needs CAP_SYS_ADMIN unless it is our own) and brings the sockets back.

use crate::diag::Diag;
use crate::firewall::{self, Firewall};
use crate::listeners::{Netns, unmapped};
use crate::sys::netns_cookie;
pub(crate) use fs_rt::netlink::{Flow, KernelRoute};
use fs_rt::netlink::{GROUPS, Netlink, Notices};
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
                tracing::warn!(%error, "cannot read a network namespace's change notices");
                true
            }
        }
    }

    /// See [`Netlink::route`].
    pub(crate) fn route(&self, flow: Flow) -> io::Result<KernelRoute> {
        self.netlink.route(flow)
    }

    /// See [`Netlink::device_of`].
    pub(crate) fn device_of(&self, flow: Flow) -> io::Result<u32> {
        self.netlink.device_of(flow)
    }

    /// See [`Netlink::has_multiple_next_hops`].
    pub(crate) fn has_multiple_next_hops(&self, flow: Flow) -> io::Result<bool> {
        self.netlink.has_multiple_next_hops(flow)
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
