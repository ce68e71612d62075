//! Lists for `fastsock ss` and `fastsock stat`.

use super::Server;
use super::arenas::{Acceptor, Opener};
use super::attach::Attachment;
use super::limits::FOUND_BELOW;
use super::requests::Answer;
use crate::counters::add;
use crate::listeners::Takes;
use fs_shm::control::{ADMIN_MAX, CounterRow, Kind, Object, Reply, Row, SocketRow, Text};
use fs_shm::{Arena, Channel, Side};
use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// `TCP_CLOSE` and `TCP_LISTEN` of `include/net/tcp_states.h`.
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;

/// No row is longer.
const ROW_MAX: usize = 256;

/// Counters that were read. Reading them looks into every arena: who asks all the time gets those of a moment ago, so that
/// he cannot keep the control thread busy.
pub(super) struct Counted {
    rows: Vec<CounterRow>,
    /// Time that went into reading them and was not paid back yet, at `at`: a twentieth of the time that passes is.
    debt: Duration,
    at: Instant,
}

/// See [`Counted`]; with more debt than this no new ones are read.
const REST: u32 = 20;
const MOST: Duration = Duration::from_millis(50);

/// Processes that one page of a list is about. More: who has thousands that hold nothing keeps others waiting by his lists. Fewer: more
/// pages.
const PROCESSES: usize = 64;

impl Server {
    pub(super) fn status(&self) -> Reply {
        let device = self.wire.as_ref().map(|wire| Text::new(wire.device().1.as_bytes())).unwrap_or_default();
        Reply::Status {
            pid: std::process::id(),
            cores: self.wire.as_ref().map_or(0, |wire| wire.cores()),
            draining: self.draining.is_some(),
            attachments: self.attachments.len() as u32,
            device,
        }
    }

    pub(super) fn counter_rows(&mut self, cursor: u64) -> Answer {
        let begun = Instant::now();
        let debt = self.counted.as_ref().map(|counted| counted.debt.saturating_sub(counted.at.elapsed() / REST));
        // Further pages are of the same list as the first.
        if debt.is_none_or(|debt| cursor == 0 && debt < MOST) {
            let rows = self.all_counters();
            let debt = debt.unwrap_or_default() + begun.elapsed();
            self.counted = Some(Counted { rows, debt, at: Instant::now() });
        }
        let rows = self.counted.as_ref().map_or(&[][..], |counted| &counted.rows);
        let mut page = Page::new();
        let first = usize::try_from(cursor).unwrap_or(usize::MAX);
        let rest = rows.iter().enumerate().skip(first);
        let next = rest.filter(|(_, row)| !page.put(*row)).map(|(at, _)| at as u64).next().unwrap_or(0);
        Answer::page(Reply::Counters { next, count: page.count }, page.bytes)
    }

    fn all_counters(&self) -> Vec<CounterRow> {
        let mut rows = Vec::new();
        let mut row = |name: &str, label: &str, gauge, value| {
            let (name, label) = (Text::new(name.as_bytes()), Text::new(label.as_bytes()));
            rows.push(CounterRow { name, label, gauge, value });
        };
        let (mut local, mut wire) = (self.counters.local, self.counters.wire);
        for (id, entry) in self.arenas.iter() {
            if let Some(arena) = self.map(id, Side::A) {
                add(if entry.wire { &mut wire } else { &mut local }, arena.totals());
            }
        }
        row("local_connections", "", false, local.connections);
        row("local_bytes", "", false, local.bytes);
        row("wire_connections", "", false, wire.connections);
        row("wire_bytes", "", false, wire.bytes);
        row("attachments", "", true, self.attachments.len() as u64);
        row("attached", "", false, self.counters.attached);
        row("listeners", "", true, self.listeners.len() as u64);
        row("arenas", "", true, self.arenas.len() as u64);
        row("namespaces", "", true, self.namespaces.len() as u64);
        row("routes_local", "", false, self.counters.routes_local);
        row("routes_wire", "", false, self.counters.routes_wire);
        row("refused", "", false, self.counters.refused);
        row("requests", "", false, self.counters.requests);
        row("requests_malformed", "", false, self.counters.malformed);
        for (reason, count) in &self.counters.kernel {
            row("kernel_fallbacks", reason.name(), false, *count);
        }
        for (name, label, gauge, value) in self.wire.iter().flat_map(|wire| wire.counters()) {
            row(&name, &label, gauge, value);
        }
        rows
    }

    /// Those of a user, or all for one who is trusted, as /proc shows descriptors.
    ///
    /// From a process and a descriptor number of it on: the cursor is the attachment's number << 32 | that.
    pub(super) fn sockets(&self, cursor: u64, uid: u32) -> Answer {
        let (first, mut place) = ((cursor >> 32) as u32, cursor as u32 as usize);
        let all = self.is_trusted(uid);
        let may_see = |(id, of): (u32, &Attachment)| (id >= first && (all || of.who.uid == uid)).then_some(id);
        let mut ids: Vec<u32> = self.attachments.iter().filter_map(may_see).collect();
        ids.sort_unstable();
        let mut page = Page::new();
        let mut next = 0;
        for (looked_at, id) in ids.into_iter().enumerate() {
            if looked_at >= PROCESSES {
                next = u64::from(id) << 32;
                break;
            }
            let from = if id == first { std::mem::take(&mut place) } else { 0 };
            if let Some(at) = self.sockets_of(id, from, &mut page) {
                next = u64::from(id) << 32 | at as u64;
                break;
            }
        }
        Answer::page(Reply::Sockets { next, count: page.count }, page.bytes)
    }

    /// Each socket once on a page, however many descriptors the process has of it. Answers where to go on when there is more.
    fn sockets_of(&self, id: u32, from: usize, page: &mut Page) -> Option<usize> {
        let attachment = self.attachments.get(id)?;
        let plain = SocketRow {
            state: CLOSE,
            kind: Kind::Local,
            core: None,
            reason: None,
            recv_queue: 0,
            send_queue: 0,
            local: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            peer: None,
            pid: attachment.who.pid,
            fd: 0,
            name: attachment.name,
        };
        let mut seen = HashSet::new();
        // The last arena that was looked into: a process's connections are often in one.
        let mut mapped = None;
        // Numbers of one turn: a process that fills its page makes the list longer, and nobody wait.
        let next = |from| attachment.page.next_used(from, attachment.memory.as_fd());
        let from = next(from)?;
        let until = from.saturating_add(FOUND_BELOW);
        for (fd, object, _) in attachment.holds_among(from..until) {
            if !matches!(object, Object::Kernel(_)) && !seen.insert(object) {
                continue;
            }
            let plain = SocketRow { fd: fd.unsigned_abs(), ..plain };
            let row = match object {
                Object::Kernel(reason) => Some(SocketRow { kind: Kind::Kernel, reason: Some(reason), ..plain }),
                Object::Listener(listener) => self.listener_row(listener, plain),
                Object::Channel { arena, slot, side } => {
                    if mapped.as_ref().is_none_or(|&(id, of, _)| (id, of) != (arena, side)) {
                        mapped = self.map(arena, side).map(|memory| (arena, side, memory));
                    }
                    mapped.as_ref().and_then(|(_, _, memory)| self.channel_row(arena, memory, slot, plain))
                }
            };
            if row.is_some_and(|row| !page.put(&row)) {
                return usize::try_from(fd).ok();
            }
        }
        next(until)
    }

    fn listener_row(&self, id: u32, plain: SocketRow) -> Option<SocketRow> {
        let listener = self.listeners.get(id)?;
        let waiting = self.arenas_of(id).filter_map(|id| {
            let (pending, entry) = (self.map(id, Side::B)?.pending(), self.arenas.get(id)?);
            // How long it may be lies in the client's memory too: what is beyond that has not come into the queue.
            Some(if matches!(entry.of.0, Opener::Core(_)) { pending } else { pending.min(entry.room) })
        });
        let left = listener.takes == Takes::Waiting;
        Some(SocketRow {
            state: if listener.takes == Takes::None { CLOSE } else { LISTEN },
            kind: match listener.more.on_wire {
                true => Kind::Wire,
                false if left => Kind::Kernel,
                false => Kind::Local,
            },
            reason: left.then_some(listener.more.left_for),
            recv_queue: waiting.fold(0, u32::saturating_add),
            send_queue: listener.backlog,
            local: listener.at,
            ..plain
        })
    }

    fn channel_row(&self, id: u32, arena: &Arena, slot: u32, plain: SocketRow) -> Option<SocketRow> {
        let entry = self.arenas.get(id)?;
        let channel = Channel::at(arena, slot)?;
        let core = match (entry.opener, entry.acceptor) {
            (Some(Opener::Core(core)), _) | (_, Some(Acceptor::Core(core))) => Some(core),
            _ => None,
        };
        Some(SocketRow {
            state: channel.tcp_state(),
            kind: if entry.wire { Kind::Wire } else { Kind::Local },
            core,
            recv_queue: channel.queued_in() as u32,
            send_queue: channel.queued_out() as u32,
            local: channel.local_addr().to_std().unwrap_or(plain.local),
            peer: channel.peer_addr().to_std(),
            ..plain
        })
    }
}

/// The rows of one answer.
struct Page {
    bytes: Vec<u8>,
    count: u16,
}

impl Page {
    fn new() -> Self {
        Self { bytes: Vec::with_capacity(ADMIN_MAX), count: 0 }
    }

    /// Encodes a row; `false`: the page is full.
    fn put(&mut self, row: &impl Row) -> bool {
        let mut buffer = [0; ROW_MAX];
        // Rows are shorter than the buffer; what is not is left out.
        let Ok(len) = row.encode(&mut buffer) else { return true };
        if self.bytes.len() + len > ADMIN_MAX - 64 {
            return false;
        }
        self.bytes.extend_from_slice(&buffer[..len]);
        self.count += 1;
        true
    }
}
