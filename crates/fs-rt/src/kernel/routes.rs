//! Which way the kernel would send a connection, as the cores have asked.

use crate::netlink::{Flow, Netlink};
use fs_core::IfaceId;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What a runtime's cores ask before they connect: a connection that the kernel would send by another device, or not at all, does
/// not leave by the runtime's.
#[derive(Debug)]
pub(crate) struct Ways {
    netlink: Mutex<Netlink>,
    /// Counts what changes about devices, addresses, routes and rules: answers of before are none.
    changes: AtomicU64,
    /// Of the runtime's devices.
    indexes: Mutex<Vec<u32>>,
}

/// From and to, and the device that the socket is bound to; 0: none.
type Ends = (Option<SocketAddr>, SocketAddr, u32);

/// Answers that a core has had.
#[derive(Debug, Default)]
pub(crate) struct KnownWays {
    as_of: u64,
    known: HashMap<Ends, Way>,
}

/// Whether a connection leaves by the runtime's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Ours,
    /// By another device of the kernel's.
    Others,
    /// Not at all: what connect(2) answers.
    None(i32),
}

/// Answers that a core keeps. More: memory of who connects everywhere. Fewer: who has that many peers asks again, some microseconds.
const KNOWN_MOST: usize = 4096;

impl Ways {
    pub(crate) fn open(indexes: Vec<u32>) -> io::Result<Self> {
        Ok(Self { netlink: Mutex::new(Netlink::open([])?), changes: AtomicU64::new(0), indexes: Mutex::new(indexes) })
    }

    /// What was answered before is to be asked again.
    pub(crate) fn changed(&self, indexes: impl Iterator<Item = u32>) {
        *self.indexes.lock().unwrap_or_else(PoisonError::into_inner) = indexes.collect();
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The kernel's number of a device; 0: it has none now.
    pub(crate) fn index_of(&self, device: IfaceId) -> u32 {
        let indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.get(usize::from(device.0)).copied().unwrap_or(0)
    }

    /// Asks, or knows.
    pub(crate) fn of(&self, ends: Ends, known: &mut KnownWays) -> Way {
        let as_of = self.changes.load(Ordering::Acquire);
        if known.as_of != as_of || known.known.len() >= KNOWN_MOST {
            *known = KnownWays { as_of, known: HashMap::new() };
        }
        if let Some(way) = known.known.get(&ends) {
            return *way;
        }
        let way = self.ask(ends);
        // What passes by itself (no memory, a signal) is no answer about routes, and nobody would say that it has passed.
        let is_verdict = match way {
            Way::Ours | Way::Others => true,
            Way::None(errno) => [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL].contains(&errno),
        };
        if is_verdict {
            known.known.insert(ends, way);
        }
        way
    }

    fn ask(&self, (from, to, bound): Ends) -> Way {
        // A link-local address is one of the device that its scope names, or that of the address which the socket is bound to.
        let scope = |at: SocketAddr| match at {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
            _ => 0,
        };
        let device = [bound, scope(to), from.map_or(0, scope)].into_iter().find(|&device| device != 0).unwrap_or(0);
        if device == 0 && matches!(to.ip(), IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            return Way::None(libc::EINVAL);
        }
        let uid = crate::sys::effective_user();
        let port = from.map_or(0, |from| from.port());
        let flow = Flow { to, from: from.map(|from| from.ip()), port, uid, mark: 0, device };
        match self.netlink.lock().unwrap_or_else(PoisonError::into_inner).route(flow) {
            Err(error) => Way::None(error.raw_os_error().unwrap_or(libc::ENETUNREACH)),
            Ok(route) if !route.unicast => Way::None(libc::ENETUNREACH),
            Ok(route) => {
                let ours = self.indexes.lock().unwrap_or_else(PoisonError::into_inner).contains(&route.device);
                if ours { Way::Ours } else { Way::Others }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_which_way_and_is_asked_again_after_a_change() {
        let to: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let ways = Ways::open(vec![1]).unwrap();
        let mut known = KnownWays::default();
        // What stays in the host has no way by a device.
        assert_eq!(ways.of((None, to, 0), &mut known), Way::None(libc::ENETUNREACH));
        assert_eq!(known.known.len(), 1);
        let flow = Flow { to, from: None, port: 0, uid: 0, mark: 0, device: 0 };
        assert_eq!(Netlink::open([]).unwrap().device_of(flow).unwrap(), 1, "lo");
        known.known.insert((None, to, 0), Way::Ours);
        assert_eq!(ways.of((None, to, 0), &mut known), Way::Ours, "it is not asked twice");
        ways.changed([1].into_iter());
        assert_eq!(ways.of((None, to, 0), &mut known), Way::None(libc::ENETUNREACH), "but after a change");
        for port in 0..KNOWN_MOST as u16 + 9 {
            ways.of((None, SocketAddr::new(to.ip(), port), 0), &mut known);
        }
        assert!(known.known.len() <= KNOWN_MOST);
    }
}
