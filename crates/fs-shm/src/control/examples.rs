//! Requests for tests of whoever reads them.

use super::{ArenaPart, Object, PeerSide, Request, Text, VERSION};
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// At least one of each kind.
pub fn requests() -> Vec<Request> {
    let object = Object::Channel { arena: 77, slot: 16_383, side: PeerSide::B };
    let link_local = SocketAddrV6::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1), 65_535, 0, 7);
    vec![
        Request::Hello { version: VERSION, name: Text::new(b"nginx") },
        Request::Poller,
        Request::PollerGone { poller: 3 },
        Request::Bell { poller: 1 },
        Request::Bell { poller: u32::MAX },
        Request::Route { to: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80) },
        Request::Route { to: link_local.into() },
        Request::Listen,
        Request::Unlisten { listener: 1 },
        Request::Watch { listener: 1 },
        Request::Unwatch { listener: 7 },
        Request::Shut { listener: 1 },
        Request::Leave { listener: u32::MAX },
        Request::Arena { arena: 1, side: PeerSide::A, part: ArenaPart::Both },
        Request::Arena { arena: 1, side: PeerSide::B, part: ArenaPart::Shared },
        Request::Arena { arena: 1, side: PeerSide::B, part: ArenaPart::Locks },
        Request::Listener { listener: 4 },
        Request::Fork,
        Request::ForkFailed { child: 2 },
        Request::Prepare,
        Request::Inherit { child: 2 },
        Request::Exec,
        Request::ExecFailed,
        Request::Spawned { child: 2 },
        Request::Resume { version: VERSION, name: Text::default() },
        Request::Resume { version: 7, name: Text::default() },
        Request::Share { object, cookie: 12, fd: 3 },
        Request::Unshare { cookie: 12 },
        Request::Share { object: Object::Channel { arena: 1, slot: 3, side: PeerSide::A }, cookie: 1, fd: u32::MAX },
        Request::Share { object: Object::Listener(8), cookie: 12, fd: 3 },
        Request::Claim,
        Request::Vouch { arena: 7, ends: [SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80), link_local.into()] },
        Request::Sockets { cursor: 5 },
        Request::Sockets { cursor: u64::MAX },
        Request::Counters { cursor: 0 },
        Request::Counters { cursor: u64::MAX },
        Request::Status,
        Request::Capture { memory: true, wire: false },
        Request::Capture { memory: false, wire: true },
        Request::Ring { poller: 9 },
        Request::Due { after: 200 },
        Request::Trim { arena: 9 },
        Request::Room { arena: 9 },
        Request::Lend { arena: 9, slot: 16_383 },
        Request::Ports { port: 0 },
        Request::Ports { port: 80 },
        Request::ListenerPoller { listener: 5 },
        Request::ExclusivePoller { listener: 5, set: 3, told: false },
        Request::ExclusivePoller { listener: 1, set: 4, told: true },
    ]
}
