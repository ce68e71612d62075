//! The scenarios: each sets an engine up and performs `n` pieces of work.

use anyhow::Result;
use fs_memory::ours::{App, Closer, Ours, Setup};
use fs_memory::smol::Smol;
use fs_memory::{BATCH, Server};

/// One line of the table.
pub(crate) struct Scenario {
    /// The name, also on the command line.
    pub(crate) name: &'static str,
    /// Description of one piece of work.
    pub(crate) what: &'static str,
    /// Pieces in the short run; the long one has twice as many.
    pub(crate) pieces: u64,
    /// Performs at least this number of pieces. Returns the actual number.
    pub(crate) run: fn(u64) -> Result<u64>,
    /// True if the figure is checked. smoltcp's figures are for comparison only.
    pub(crate) checked: bool,
}

/// Returns `n` for a scenario that performs exactly `n` pieces.
fn exactly(n: u64, _: impl Sized) -> Result<u64> {
    Ok(n)
}

fn ours(open: usize, app: App) -> Ours {
    Ours::with(Setup { open, timestamps: true, v6: false, app, batch: BATCH })
}

fn echo(open: usize) -> Ours {
    ours(open, App::Echo(Closer::Client))
}

/// All scenarios, in the table's order.
pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "transaction",
        what: "64 B request and response, 1,000 connections",
        pieces: 16_000,
        run: |n| exactly(n, echo(1000).transactions(n, 64)),
        checked: true,
    },
    Scenario {
        name: "transaction-single",
        what: "the same, one packet a turn",
        pieces: 4_000,
        run: |n| {
            let setup = Setup { open: 1000, timestamps: true, v6: false, app: App::Echo(Closer::Client), batch: 1 };
            exactly(n, Ours::with(setup).transactions(n, 64))
        },
        checked: true,
    },
    Scenario {
        name: "transaction-v6",
        what: "the same over IPv6, 32 packets a turn",
        pieces: 16_000,
        run: |n| {
            let setup = Setup { open: 1000, timestamps: true, v6: true, app: App::Echo(Closer::Client), batch: BATCH };
            exactly(n, Ours::with(setup).transactions(n, 64))
        },
        checked: true,
    },
    Scenario {
        name: "transaction-many",
        what: "the same over IPv4, 10,000 connections",
        pieces: 16_000,
        run: |n| exactly(n, echo(10_000).transactions(n, 64)),
        checked: true,
    },
    Scenario {
        name: "transaction-bare",
        what: "the same, 1,000 connections without timestamps",
        pieces: 16_000,
        run: |n| exactly(n, Ours::new(1000, false, Closer::Client).transactions(n, 64)),
        checked: true,
    },
    Scenario {
        name: "segment-in",
        what: "full segment received in order, read, acknowledged",
        pieces: 16_000,
        run: |n| Ok(ours(1, App::Sink).bulk_in(n, false)),
        checked: true,
    },
    Scenario {
        name: "segment-in-swapped",
        what: "the same, each pair of segments swapped",
        pieces: 8_000,
        run: |n| Ok(ours(1, App::Sink).bulk_in(n, true)),
        checked: true,
    },
    Scenario {
        name: "segment-out",
        what: "full segment written, sent, acknowledged (ACK for two)",
        pieces: 16_000,
        run: |n| Ok(ours(1, App::Source).bulk_out(n, 0)),
        checked: true,
    },
    Scenario {
        name: "segment-out-lossy",
        what: "the same, every 100th segment lost, SACK",
        pieces: 16_000,
        run: |n| Ok(ours(1, App::Source).bulk_out(n, 100)),
        checked: true,
    },
    Scenario {
        name: "pure-ack",
        what: "pure ACK of a 64 B response, 1,000 connections",
        pieces: 8_000,
        run: |n| Ok(echo(1000).pure_acks(n)),
        checked: true,
    },
    Scenario {
        name: "short-server",
        what: "short connection, server (5 packets in)",
        pieces: 4_000,
        run: |n| exactly(n, echo(0).short(n)),
        checked: true,
    },
    Scenario {
        name: "short-server-time-wait",
        what: "the same, TIME-WAIT is the server's",
        pieces: 4_000,
        run: |n| exactly(n, ours(0, App::Echo(Closer::Server)).short(n)),
        checked: true,
    },
    Scenario {
        name: "short-client",
        what: "short connection, client (3 packets in), TIME-WAIT",
        pieces: 4_000,
        run: |n| Ok(ours(0, App::Client).connects(n)),
        checked: true,
    },
    Scenario {
        name: "idle-turn",
        what: "turn without a packet, 1,000 idle connections",
        pieces: 4_000,
        run: |n| Ok(echo(1000).idle(n)),
        checked: true,
    },
    Scenario {
        name: "smoltcp-transaction",
        what: "smoltcp: 64 B request and response, 1,000 connections, no timestamps",
        pieces: 8_000,
        run: |n| exactly(n, Smol::new(1000, 2048, true).transactions(n, 64)),
        checked: false,
    },
    Scenario {
        name: "smoltcp-short",
        what: "smoltcp: short connection, server, no timestamps",
        pieces: 4_000,
        run: |n| exactly(n, Smol::new(1024, 256, false).short(n)),
        checked: false,
    },
];
