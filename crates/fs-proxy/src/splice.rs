//! The decision whether a relay leaves user space (`splice` of a listener).
//!
//! `fs_splice` does it; this is when.

use crate::flows::{Entry, FlowEnds};
use crate::stats::ListenerStats;
use fs_splice::{Attempt, Flow, Splicer, Table, Watched};
use fs_stacks::Stream;
use std::cell::OnceCell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

/// Reads and writes after which a relay is a candidate: eight pieces, four requests with their
/// answers. Fewer: short connections pay for it, about 50 µs. More: those that last gain later.
const MOVES: u64 = 16;
/// Bytes after which a relay is a candidate. Fewer: as above. More: a busy transfer may have no
/// quiet moment any more, because its buffers have grown.
const BYTES: u64 = 64 << 10;
/// Attempts of one relay, which come ever more rarely. Fewer: packets may come later. More: a relay
/// that cannot leave costs more; an attempt costs about 3 µs.
const ATTEMPTS: u32 = 40;
/// Attempts in a row while many bytes are under way. Fewer: a fast transfer has filled windows of
/// several MB, which must be used up first. More: as above.
const BUSY_ATTEMPTS: u32 = 400;

thread_local! {
    static TABLE: OnceCell<Option<Rc<Table>>> = const { OnceCell::new() };
}

/// Returns the core's table of spliced flows. If this host lacks something, that is logged once, and
/// all relays stay in user space.
pub(crate) fn table() -> Option<Rc<Table>> {
    static SPLICER: OnceLock<Option<Arc<Splicer>>> = OnceLock::new();
    let warn = |error: fs_splice::Error| tracing::warn!("{error}: connections stay in user space");
    let splicer = SPLICER.get_or_init(|| Splicer::load().map_err(warn).ok()).as_ref()?;
    TABLE.with(|table| table.get_or_init(|| Table::open(splicer).map_err(warn).ok()).clone())
}

/// A relay that may leave user space.
pub(crate) struct Candidate<'a> {
    stage: Stage<'a>,
    listener: &'a str,
    stats: &'a ListenerStats,
    client: SocketAddr,
    /// The next attempt is at this number of moves.
    next: u64,
    attempts: u32,
    busy: u32,
}

enum Stage<'a> {
    /// The relay stays in user space.
    Stays,
    Young(&'a Rc<Table>),
    Watched(Watched),
}

/// Counts and lists a spliced flow while it is open.
pub(crate) struct Open<'a> {
    stats: &'a ListenerStats,
    entry: Entry,
    /// What the program has moved: to the client, to the server.
    moved: [u64; 2],
}

impl Open<'_> {
    /// Records all bytes that were relayed, and those that the program has moved. Each: to the client,
    /// to the server.
    pub(crate) fn moved(&mut self, all: [u64; 2], moved: [u64; 2]) {
        self.entry.moved(all);
        for ((now, before), counter) in
            moved.iter().zip(&self.moved).zip([&self.stats.spliced_out, &self.stats.spliced_in])
        {
            counter.add(now.saturating_sub(*before));
        }
        self.moved = moved;
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.stats.spliced.sub(1);
    }
}

impl<'a> Candidate<'a> {
    /// A connection, or tunnel, of a client of `listener`, which splices with a table only.
    pub(crate) fn new(
        table: Option<&'a Rc<Table>>,
        listener: &'a str,
        stats: &'a ListenerStats,
        client: SocketAddr,
    ) -> Self {
        let stage = table.map_or(Stage::Stays, Stage::Young);
        Self { stage, listener, stats, client, next: 0, attempts: 0, busy: 0 }
    }

    /// Counts its flow as open.
    pub(crate) fn open(&self, flow: &Flow) -> Open<'a> {
        self.stats.splices.add(1);
        self.stats.spliced.add(1);
        let (proxy, server) = flow.server();
        let (listener, client) = (self.listener.to_owned(), self.client);
        Open { stats: self.stats, entry: Entry::new(FlowEnds { listener, client, proxy, server }), moved: [0; 2] }
    }

    /// Must be called after bytes have moved, when all that were read are written. Returns the flow
    /// that goes on without the sockets.
    #[inline]
    pub(crate) fn poll(&mut self, client: &Stream, server: &Stream, moves: u64, bytes: u64) -> Option<Box<Flow>> {
        match self.stage {
            Stage::Stays => None,
            _ if moves < self.next || (moves < MOVES && bytes < BYTES) => None,
            _ => self.attempt(client, server, moves),
        }
    }

    fn attempt(&mut self, client: &Stream, server: &Stream, moves: u64) -> Option<Box<Flow>> {
        self.attempts += 1;
        // Every read and every write is a move.
        self.next = moves + (moves / 8).max(2);
        let (Some(client), Some(server)) = (socket(client), socket(server)) else {
            self.stage = Stage::Stays;
            self.stays(&"the proxy encrypts or decrypts its bytes");
            return None;
        };
        let is_last = self.attempts >= ATTEMPTS;
        match std::mem::replace(&mut self.stage, Stage::Stays) {
            Stage::Stays => {}
            Stage::Young(table) => match Watched::new(table, client, server) {
                Ok(watched) => self.stage = Stage::Watched(watched),
                Err(refusal) if refusal.is_for_now() && !is_last => self.stage = Stage::Young(table),
                Err(refusal) => self.stays(&refusal),
            },
            Stage::Watched(watched) => match watched.splice(client, server) {
                Attempt::Spliced(flow) => return Some(flow),
                Attempt::Unseen(watched) if !is_last => self.stage = Stage::Watched(watched),
                Attempt::Unseen(watched) => {
                    watched.give_up(client, server);
                    self.stays(&"packets do not come by the devices of the routes, or with other addresses");
                }
                Attempt::Busy(watched) if self.busy < BUSY_ATTEMPTS => {
                    self.stage = Stage::Watched(watched);
                    (self.busy, self.attempts) = (self.busy + 1, self.attempts - 1);
                    self.next = moves + 1;
                }
                Attempt::Busy(watched) => {
                    watched.give_up(client, server);
                    self.stays(&"no quiet moment");
                }
                Attempt::Never(refusal) => self.stays(&refusal),
            },
        }
        None
    }

    fn stays(&self, why: &dyn std::fmt::Display) {
        self.stats.splices_refused.add(1);
        tracing::debug!("{}: stays in user space: {why}", self.client);
    }
}

fn socket(stream: &Stream) -> Option<BorrowedFd<'_>> {
    match stream {
        Stream::Kernel(stream) => Some(stream.as_fd()),
        _ => None,
    }
}
