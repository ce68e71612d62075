//! Attacks on a host's TCP/IP, one test for each: docs/KNOWN_ATTACKS.md describes them and names
//! these tests.
//!
//! Memory is compared in frames and table entries, work in transmitted packets and stored entries;
//! nothing is timed. [`fs_fuzz::host::Host`] counts every frame after every step, so a leak fails
//! any of them.

mod acks;
mod blind;
mod floods;
mod icmp;
mod segments;
mod state;

use fs_core::{Limits, ListenerId, TcpConfig, TcpId};
use fs_fuzz::host::{Host, Plan};
use fs_fuzz::peer::{Offer, Peer, listen};

/// Options of honest clients.
pub(crate) const OFFER: Offer =
    Offer { isn: 4_000_000_000, mss: Some(1460), shift: Some(7), sack: true, timestamps: true };

/// A plan for a stack with a few hundred entries in each table.
pub(crate) fn plan() -> Plan {
    let limits = Limits { connections: 500, syn_cache: 64, time_wait: 100, ..Limits::default() };
    Plan { limits, frames: 1000, prefix: 0, ..Plan::new(TcpConfig::default()) }
}

/// Makes a host that listens.
pub(crate) fn listening(plan: Plan) -> (Host, ListenerId) {
    let mut host = Host::new(plan);
    let listener = host.stack.tcp_listen(fs_core::Listen { backlog: 100, ..listen() }).unwrap();
    (host, listener)
}

/// Makes a host with an honest connection.
pub(crate) fn connected(plan: Plan) -> (Host, ListenerId, Peer, TcpId) {
    let (mut host, listener) = listening(plan);
    let (peer, id) = Peer::open(&mut host, listener, 1000, 60_000, OFFER).expect("a handshake");
    (host, listener, peer, id)
}

/// Sends everything that is due. Returns the number of packets.
pub(crate) fn sent(host: &mut Host) -> usize {
    let n = host.transmit(64, false, |_| {});
    host.check();
    n
}

/// Checks that the peer's next text arrives and is read.
pub(crate) fn works(host: &mut Host, peer: &mut Peer, id: TcpId, text: &[u8]) {
    if let Some((val, _)) = &mut peer.ts {
        *val += 1;
    }
    let (seq, ack) = (peer.seq, peer.ack);
    peer.send(host, fs_fuzz::packet::ACK | fs_fuzz::packet::PSH, seq, ack, &[], text);
    peer.seq = peer.seq.wrapping_add(text.len() as u32);
    let mut buf = vec![0; text.len() + 1];
    assert_eq!(host.stack.tcp_recv(id, &mut buf), Ok(text.len()), "the connection works");
    assert_eq!(&buf[..text.len()], text);
    sent(host);
}
