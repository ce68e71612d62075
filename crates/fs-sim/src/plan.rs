//! Plan of a connection: a short script for each end, drawn from the seed before it starts, so that
//! both ends and the oracle agree on every byte.

use crate::reading::Reading;
use crate::rng::Rng;
use fs_core::{CongestionControl, Duration, Keepalive, TcpOptions};
use std::net::SocketAddr;

/// A step of an application. The next begins when it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this many more bytes while reading this many: neither waits for the other.
    Exchange(u64, u64),
    /// Do nothing for this time.
    Pause(Duration),
    /// Read like this from now on.
    ReadLike(Reading),
    /// `shutdown(Write)`.
    ShutdownWrite,
    /// Read to the end of the stream, which must come exactly after the peer's last byte.
    ExpectEof,
    /// Read until the connection fails.
    ExpectReset,
    /// Send until the connection fails; at most this many bytes.
    SendUntilReset(u64),
    /// `close`: ends the script.
    Close,
    /// RST: ends the script.
    Abort,
}

/// Kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Request, response, and the server closes first, as HTTP/1.0 does.
    ServerCloses,
    /// Request, response, and the client closes first.
    ClientCloses,
    /// The client shuts down its side after the request; the server answers into the half-closed
    /// connection.
    HalfClose,
    /// Both shut down when they are done, in any order.
    BothShut,
    /// The server sends first, as SMTP does.
    ServerFirst,
    /// Several requests and responses on one connection.
    PingPong,
    /// The client resets in the middle of the transfer.
    ClientAborts,
    /// The server resets in the middle of the transfer.
    ServerAborts,
    /// The client closes with unread data (RFC 2525 2.17).
    UnreadClose,
    /// No listener exists.
    Refused,
    /// Both ends connect to each other at once.
    SimultaneousOpen,
    /// Many bytes to the server.
    BulkUp,
    /// Many bytes to the client.
    BulkDown,
    /// Many bytes in both directions at once.
    BulkBoth,
    /// Many bytes to a reader that pauses, so that the window closes.
    SlowReader,
    /// Requests and responses with long idle times between them.
    Sleepy,
    /// As many bytes to the server as possible, from an application that only copies; its maker
    /// sets the scripts.
    Stream,
}

/// The end that sends the first FIN, and so enters TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstFin {
    /// The client, always.
    Client,
    /// The server, always.
    Server,
    /// Either or both.
    Any,
    /// The connection ends by RST, or never began: usually neither.
    Reset,
}

/// A connection's plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The plan's number in the world, from 0.
    pub id: u32,
    /// The plan's kind.
    pub kind: Kind,
    /// The connecting host.
    pub client: usize,
    /// The accepting host.
    pub server: usize,
    /// The address that the client connects to.
    pub to: SocketAddr,
    /// The client's own address, if given.
    pub from: Option<SocketAddr>,
    /// Options of the client's end.
    pub options: TcpOptions,
    /// The client's steps once connected.
    pub client_script: Vec<Step>,
    /// The server's steps once it has accepted.
    pub server_script: Vec<Step>,
    /// Seed of the client's bytes; the server's are `seed + 1`.
    pub seed: u64,
}

/// Sizes for drawing plans.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Minimum size of requests and responses of short connections that are not empty.
    pub short_min: u64,
    /// Maximum size of requests and responses of short connections.
    pub short_max: u64,
    /// Minimum size of bulk transfers.
    pub bulk_min: u64,
    /// Maximum size of bulk transfers.
    pub bulk_max: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { short_min: 1, short_max: 8 << 10, bulk_min: 16 << 10, bulk_max: 1 << 20 }
    }
}

impl Kind {
    /// Kinds of short connections with an orderly end.
    pub const ORDERLY: &'static [Kind] =
        &[Kind::ServerCloses, Kind::ClientCloses, Kind::HalfClose, Kind::BothShut, Kind::ServerFirst, Kind::PingPong];
    /// Kinds that end in a RST.
    pub const RUDE: &'static [Kind] = &[Kind::ClientAborts, Kind::ServerAborts, Kind::UnreadClose, Kind::Refused];
    /// Kinds that move many bytes.
    pub const BULK: &'static [Kind] = &[Kind::BulkUp, Kind::BulkDown, Kind::BulkBoth, Kind::SlowReader];

    /// Returns true if an end may be reset without an error.
    pub fn resets(self) -> bool {
        Kind::RUDE.contains(&self)
    }

    /// Returns the end that enters TIME-WAIT.
    pub fn first_fin(self) -> FirstFin {
        match self {
            Kind::ServerCloses | Kind::ServerFirst => FirstFin::Server,
            Kind::ClientCloses | Kind::HalfClose | Kind::PingPong | Kind::Sleepy => FirstFin::Client,
            Kind::BulkUp | Kind::BulkDown | Kind::SlowReader | Kind::Stream => FirstFin::Client,
            Kind::BothShut | Kind::BulkBoth | Kind::SimultaneousOpen => FirstFin::Any,
            Kind::ClientAborts | Kind::ServerAborts | Kind::UnreadClose | Kind::Refused => FirstFin::Reset,
        }
    }

    /// Draws both scripts: (client, server).
    pub fn scripts(self, rng: &mut Rng, sizes: &Sizes) -> (Vec<Step>, Vec<Step>) {
        use Step::*;
        let short = |rng: &mut Rng| if rng.chance(50_000) { 0 } else { rng.log_size(sizes.short_min, sizes.short_max) };
        let (req, resp) = (short(rng), short(rng));
        let bulk = rng.log_size(sizes.bulk_min, sizes.bulk_max);
        let back = rng.log_size(sizes.bulk_min, sizes.bulk_max);
        match self {
            Kind::ServerCloses => (
                vec![Exchange(req, 0), Exchange(0, resp), ExpectEof, Close],
                vec![Exchange(0, req), Exchange(resp, 0), Close],
            ),
            Kind::ClientCloses => (
                vec![Exchange(req, 0), Exchange(0, resp), Close],
                vec![Exchange(0, req), Exchange(resp, 0), ExpectEof, Close],
            ),
            Kind::HalfClose => (
                vec![Exchange(req, 0), ShutdownWrite, Exchange(0, resp), ExpectEof, Close],
                vec![Exchange(0, req), ExpectEof, Exchange(resp, 0), Close],
            ),
            Kind::BothShut | Kind::SimultaneousOpen => (
                vec![Exchange(req, resp), ShutdownWrite, ExpectEof, Close],
                vec![Exchange(resp, req), ShutdownWrite, ExpectEof, Close],
            ),
            Kind::ServerFirst => (
                vec![Exchange(0, resp), Exchange(req, 0), ExpectEof, Close],
                vec![Exchange(resp, 0), Exchange(0, req), Close],
            ),
            Kind::PingPong => {
                let (mut client, mut server) = (Vec::new(), Vec::new());
                for _ in 0..rng.range(2, 10) {
                    let (there, back) = (rng.range(1, 200), rng.range(1, 2000));
                    client.extend([Exchange(there, 0), Exchange(0, back)]);
                    server.extend([Exchange(0, there), Exchange(back, 0)]);
                }
                client.push(Close);
                server.extend([ExpectEof, Close]);
                (client, server)
            }
            Kind::Sleepy => {
                let (mut client, mut server) = (Vec::new(), Vec::new());
                for _ in 0..rng.range(2, 6) {
                    let (there, back) = (rng.range(1, 20_000), rng.log_size(1, 200_000));
                    let nap = rng.duration(Duration::from_millis(1), Duration::from_secs(120));
                    let nap = if rng.chance(500_000) { nap } else { nap / 100 };
                    client.extend([Exchange(there, 0), Exchange(0, back), Pause(nap)]);
                    server.extend([Exchange(0, there), Exchange(back, 0)]);
                }
                client.push(Close);
                server.extend([ExpectEof, Close]);
                (client, server)
            }
            Kind::ClientAborts => (vec![Exchange(req, 0), Abort], vec![ExpectReset, Close]),
            Kind::ServerAborts => {
                (vec![Exchange(req, 0), ExpectReset, Close], vec![Exchange(0, req), Exchange(resp, 0), Abort])
            }
            Kind::UnreadClose => (
                vec![Exchange(req, 0), Exchange(0, resp), Close],
                vec![Exchange(0, req), SendUntilReset((1 << 20).max(2 * resp)), Close],
            ),
            Kind::Refused => (Vec::new(), Vec::new()),
            Kind::BulkUp | Kind::Stream => (
                vec![Exchange(bulk, 0), Exchange(0, 1), Close],
                vec![Exchange(0, bulk), Exchange(1, 0), ExpectEof, Close],
            ),
            Kind::BulkDown => (
                vec![Exchange(req, 0), Exchange(0, bulk), Close],
                vec![Exchange(0, req), Exchange(bulk, 0), ExpectEof, Close],
            ),
            Kind::BulkBoth => (
                vec![Exchange(bulk, back), ShutdownWrite, ExpectEof, Close],
                vec![Exchange(back, bulk), ShutdownWrite, ExpectEof, Close],
            ),
            Kind::SlowReader => {
                let (mut client, mut left) = (vec![Exchange(req, 0)], bulk);
                while left > 0 {
                    let part = rng.range(1, bulk / 4 + 1).min(left);
                    client.extend([Pause(rng.duration(Duration::ZERO, Duration::from_secs(8))), Exchange(0, part)]);
                    left -= part;
                }
                client.push(Close);
                (client, vec![Exchange(0, req), Exchange(bulk, 0), ExpectEof, Close])
            }
        }
    }
}

/// Draws options of one end. Kinds in which a RST may be lost need keepalive to detect that the
/// peer is gone.
pub fn options(rng: &mut Rng, keepalive: bool) -> TcpOptions {
    let probes = Keepalive { idle: Duration::from_secs(rng.range(5, 20)), interval: Duration::from_secs(1), count: 20 };
    TcpOptions {
        nodelay: rng.chance(500_000),
        keepalive: (keepalive || rng.chance(100_000)).then_some(probes),
        // Not `CongestionControl::ALL`: seeds that have found errors (tests/quick.rs) were drawn
        // from these three. Hosts draw their default from all, which applies to sockets without
        // their own.
        congestion_control: rng.pick(&[None, Some(CongestionControl::Cubic), Some(CongestionControl::NewReno)]),
        receive_buffer: rng.pick(&[None, None, None, Some(8 << 10), Some(256 << 10)]),
        send_buffer: rng.pick(&[None, None, None, Some(8 << 10), Some(256 << 10)]),
        ..TcpOptions::default()
    }
}

/// Returns the bytes that each script sends: (client, server). Scripts that send until they fail
/// count as 0.
pub fn totals(plan: &Plan) -> (u64, u64) {
    let sum = |script: &[Step]| script.iter().map(|s| if let Step::Exchange(n, _) = s { *n } else { 0 }).sum();
    (sum(&plan.client_script), sum(&plan.server_script))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In every kind with an orderly end, each end reads what the other sends.
    #[test]
    fn scripts_match() {
        let mut rng = Rng::new(5);
        for &kind in Kind::ORDERLY.iter().chain(Kind::BULK).chain(&[Kind::SimultaneousOpen]) {
            for _ in 0..200 {
                let (client, server) = kind.scripts(&mut rng, &Sizes::default());
                let sent =
                    |s: &[Step]| -> u64 { s.iter().map(|s| if let Step::Exchange(n, _) = s { *n } else { 0 }).sum() };
                let read =
                    |s: &[Step]| -> u64 { s.iter().map(|s| if let Step::Exchange(_, n) = s { *n } else { 0 }).sum() };
                assert_eq!(sent(&client), read(&server), "{kind:?}");
                assert_eq!(sent(&server), read(&client), "{kind:?}");
                assert_eq!(client.last(), Some(&Step::Close));
                assert_eq!(server.last(), Some(&Step::Close));
            }
        }
    }
}
