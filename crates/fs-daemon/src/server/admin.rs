//! Lists for `fastsock ss` and `fastsock stat`.

use super::arenas::{Acceptor, Opener};
use super::{Answer, Server};
use crate::counters::add;
use fs_shm::control::{ADMIN_MAX, CounterRow, Kind, Object, Reply, Row, SocketRow, Text};
use fs_shm::{Channel, Side};
use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};

/// `TCP_CLOSE` and `TCP_LISTEN` of `include/net/tcp_states.h`.
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;

/// Rows go into one message as long as there is room for this much more.
const ROW_MAX: usize = 160;

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

    pub(super) fn counter_rows(&self, cursor: u64) -> Answer {
        let (bytes, next, count) = pack(&self.all_counters(), cursor);
        Answer { reply: Reply::Counters { next, count }, fds: Vec::new(), rows: bytes }
    }

    fn all_counters(&self) -> Vec<CounterRow> {
        let mut rows = Vec::new();
        let mut row = |name: &str, label: &str, gauge, value| {
            let (name, label) = (Text::new(name.as_bytes()), Text::new(label.as_bytes()));
            rows.push(CounterRow { name, label, gauge, value });
        };
        let (mut local, mut wire) = (self.counters.local, self.counters.wire);
        for (&id, entry) in &self.arenas {
            if let Some(arena) = self.map(id, Side::A) {
                add(if entry.wire { &mut wire } else { &mut local }, arena.totals());
            }
        }
        row("local_connections", "", false, local.connections);
        row("local_bytes", "", false, local.bytes);
        row("wire_connections", "", false, wire.connections);
        row("wire_bytes", "", false, wire.bytes);
        row("attachments", "", true, self.attachments.len() as u64);
        row("attachments_total", "", false, self.counters.attached);
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

    pub(super) fn sockets(&self, cursor: u64) -> Answer {
        let mut rows = Vec::new();
        let mut ids: Vec<u32> = self.attachments.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.sockets_of(id, &mut rows));
        let (bytes, next, count) = pack(&rows, cursor);
        Answer { reply: Reply::Sockets { next, count }, fds: Vec::new(), rows: bytes }
    }

    /// Each socket once, however many descriptors the process has of it.
    fn sockets_of(&self, id: u32, rows: &mut Vec<SocketRow>) {
        let Some(attachment) = self.attachments.get(&id) else { return };
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
        for (fd, object, _) in attachment.holds() {
            let plain = SocketRow { fd: fd.unsigned_abs(), ..plain };
            let row = match object {
                Object::Kernel(reason) => Some(SocketRow { kind: Kind::Kernel, reason: Some(reason), ..plain }),
                _ if !seen.insert(object) => None,
                Object::Listener(listener) => self.listener_row(listener, plain),
                Object::Channel { arena, slot, side } => self.channel_row(arena, slot, side, plain),
            };
            rows.extend(row);
        }
    }

    fn listener_row(&self, id: u32, plain: SocketRow) -> Option<SocketRow> {
        let listener = self.listeners.get(id)?;
        let waiting = self.arenas_of(id).filter_map(|id| self.map(id, Side::B));
        Some(SocketRow {
            state: LISTEN,
            kind: if listener.more.on_wire { Kind::Wire } else { Kind::Local },
            recv_queue: waiting.map(|arena| arena.pending()).fold(0, u32::saturating_add),
            send_queue: listener.backlog,
            local: listener.at,
            ..plain
        })
    }

    fn channel_row(&self, arena: u32, slot: u32, side: Side, plain: SocketRow) -> Option<SocketRow> {
        let entry = self.arenas.get(&arena)?;
        let mapped = self.map(arena, side)?;
        let channel = Channel::at(&mapped, slot)?;
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

/// Encodes rows from `first` on, as many as fit; answers the bytes, where to go on (0: nowhere) and how many.
fn pack<R: Row>(rows: &[R], first: u64) -> (Vec<u8>, u64, u16) {
    let mut bytes = vec![0; ADMIN_MAX - 64];
    let (mut len, mut count) = (0, 0u16);
    let first = usize::try_from(first).unwrap_or(usize::MAX);
    for row in rows.iter().skip(first) {
        if bytes.len() - len < ROW_MAX {
            break;
        }
        let Ok(n) = row.encode(&mut bytes[len..]) else { break };
        len += n;
        count += 1;
    }
    bytes.truncate(len);
    let next = first.saturating_add(usize::from(count));
    (bytes, if next < rows.len() && count > 0 { next as u64 } else { 0 }, count)
}
