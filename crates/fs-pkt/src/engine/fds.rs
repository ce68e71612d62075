//! The descriptors of the host's application, and their objects.

use crate::run::call::Outcome;
use fs_core::{Event, ListenerId, Ready, TcpId, TcpOptions, UdpId};
use std::net::SocketAddr;

/// State of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Neither connected nor listening.
    New,
    Listening(ListenerId),
    Stream(TcpId),
    Udp(UdpId),
}

/// Options without an engine call, kept for getsockopt, or implemented here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    pub(super) reuse_addr: i32,
    pub(super) reuse_port: i32,
    pub(super) v6_only: i32,
    pub(super) mtu_discover: Option<i32>,
    pub(super) keep_idle: Option<i32>,
    pub(super) keep_interval: Option<i32>,
    pub(super) keep_count: Option<i32>,
    pub(super) fast_open: i32,
    pub(super) fast_open_connect: i32,
    pub(super) inq: i32,
    pub(super) linger: (i32, i32),
}

#[derive(Clone, Debug)]
pub(super) struct Socket {
    pub(super) domain: i32,
    pub(super) kind: i32,
    pub(super) protocol: i32,
    pub(super) nonblock: bool,
    pub(super) bound: Option<SocketAddr>,
    pub(super) options: TcpOptions,
    pub(super) kept: Kept,
    pub(super) state: State,
    /// connect() has begun, and its result was not reported.
    pub(super) connecting: bool,
    /// connect() with TCP_FASTOPEN_CONNECT: the first write connects to this address.
    pub(super) deferred: Option<SocketAddr>,
    /// The result of a connect was reported; another connect() then returns EISCONN.
    pub(super) connected: bool,
    /// An error taken from the engine and not yet reported.
    pub(super) error: Option<i32>,
    pub(super) shut_read: bool,
    pub(super) shut_write: bool,
}

#[derive(Debug)]
pub(super) enum Fd {
    Socket(Box<Socket>),
    Epoll(Epoll),
}

/// The descriptor table: numbers from 3, the lowest free one first.
#[derive(Debug, Default)]
pub(super) struct Fds {
    slots: Vec<Option<Fd>>,
}

const FIRST: i32 = 3;

impl Fds {
    pub(super) fn add(&mut self, fd: Fd) -> i32 {
        let free = self.slots.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[index] = Some(fd);
        index as i32 + FIRST
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    fn index(fd: i32) -> usize {
        usize::try_from(fd - FIRST).unwrap_or(usize::MAX)
    }

    pub(super) fn take(&mut self, fd: i32) -> Option<Fd> {
        let taken = self.slots.get_mut(Self::index(fd))?.take();
        for slot in self.slots.iter_mut().flatten() {
            if let Fd::Epoll(epoll) = slot {
                epoll.forget(fd);
            }
        }
        taken
    }

    pub(super) fn socket(&self, fd: i32) -> Option<&Socket> {
        match self.slots.get(Self::index(fd))? {
            Some(Fd::Socket(socket)) => Some(socket),
            _ => None,
        }
    }

    pub(super) fn socket_mut(&mut self, fd: i32) -> Option<&mut Socket> {
        match self.slots.get_mut(Self::index(fd))? {
            Some(Fd::Socket(socket)) => Some(socket),
            _ => None,
        }
    }

    pub(super) fn epoll_mut(&mut self, fd: i32) -> Option<&mut Epoll> {
        match self.slots.get_mut(Self::index(fd))? {
            Some(Fd::Epoll(epoll)) => Some(epoll),
            _ => None,
        }
    }

    /// Returns true if two sockets conflict by bind(2)'s rule: a port is shared only if both
    /// sockets set SO_REUSEPORT, or SO_REUSEADDR while the other does not listen.
    pub(super) fn conflicts(&self, fd: i32, at: SocketAddr, kept: &Kept) -> bool {
        let own = Self::index(fd);
        self.slots.iter().enumerate().filter(|(i, _)| *i != own).any(|(_, slot)| match slot {
            Some(Fd::Socket(other)) if other.kind & 0xf == libc::SOCK_STREAM => other.bound.is_some_and(|bound| {
                let overlap = bound.ip() == at.ip() || bound.ip().is_unspecified() || at.ip().is_unspecified();
                let listens = matches!(other.state, State::Listening(_));
                let by_address = kept.reuse_addr != 0 && other.kept.reuse_addr != 0 && !listens;
                let shared = by_address || kept.reuse_port != 0 && other.kept.reuse_port != 0;
                bound.port() == at.port() && at.port() != 0 && overlap && !shared
            }),
            _ => false,
        })
    }

    /// Marks edge-triggered watches of a socket for an event.
    pub(super) fn on_event(&mut self, event: &Event) {
        let state = match *event {
            Event::Tcp(id, ready) if ready != Ready::default() => State::Stream(id),
            Event::Accept(id) => State::Listening(id),
            Event::Udp(id, _) => State::Udp(id),
            Event::Tcp(..) | Event::NeighbourNeeded(..) => return,
        };
        let of = |slot: &Option<Fd>| matches!(slot, Some(Fd::Socket(s)) if s.state == state);
        let Some(index) = self.slots.iter().position(of) else { return };
        for slot in self.slots.iter_mut().flatten() {
            if let Fd::Epoll(epoll) = slot {
                epoll.touch(index as i32 + FIRST);
            }
        }
    }
}

/// A descriptor that an epoll set watches.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) fd: i32,
    pub(super) events: u32,
    pub(super) data: u64,
    /// An event has occurred since the last report.
    pub(super) fresh: bool,
    /// One-shot, and reported.
    pub(super) spent: bool,
    /// Number of readable bytes at the last report.
    pub(super) seen: u32,
}

#[derive(Debug, Default)]
pub(super) struct Epoll {
    pub(super) watches: Vec<Watch>,
}

impl Epoll {
    pub(super) fn touch(&mut self, fd: i32) {
        self.watches.iter_mut().filter(|w| w.fd == fd).for_each(|w| w.fresh = true);
    }

    pub(super) fn forget(&mut self, fd: i32) {
        self.watches.retain(|w| w.fd != fd);
    }

    pub(super) fn control(&mut self, operation: i32, fd: i32, events: u32, data: u64) -> Outcome {
        let found = self.watches.iter().position(|w| w.fd == fd);
        let watch = Watch { fd, events, data, fresh: true, spent: false, seen: 0 };
        match (operation, found) {
            (libc::EPOLL_CTL_ADD, None) => self.watches.push(watch),
            (libc::EPOLL_CTL_ADD, Some(_)) => return Outcome::err(libc::EEXIST),
            (libc::EPOLL_CTL_MOD, Some(i)) => self.watches[i] = watch,
            (libc::EPOLL_CTL_DEL, Some(i)) => {
                self.watches.remove(i);
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Outcome::err(libc::ENOENT),
            _ => return Outcome::err(libc::EINVAL),
        }
        Outcome::ok(0)
    }
}
