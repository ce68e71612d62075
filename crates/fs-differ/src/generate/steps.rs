//! The draw of the next step.

use super::*;

impl Maker {
    /// Generates a step, or a few that belong together.
    pub(crate) fn step(&mut self, profile: &str) {
        if !self.full.is_empty() {
            return self.step_beside_full();
        }
        let ready = match profile {
            "ready" => 30,
            "ring" => 14,
            _ => 4,
        };
        let options = if profile == "options" { 40 } else { 4 };
        let buffers = if profile == "buffers" { 12 } else { 0 };
        let bytes = if profile == "ring" { 60 } else { 14 };
        type Generator = fn(&mut Maker);
        let ways: &[(usize, Generator)] = &[
            (bytes, Maker::send),
            (bytes, Maker::receive),
            (5, Maker::connect),
            (6, Maker::accept),
            (4, Maker::connect_pair),
            (4, |maker| {
                let slot = maker.connection();
                let how = maker.random.weighted(&[(3, 0), (6, 1), (3, 2), (1, 3)]);
                // How much of a large unread transfer a reader has after shutdown depends on its
                // receive buffer.
                let reads_on = maker.unread <= 60_000 || how == libc::SHUT_WR;
                if !maker.edges_of_room && !maker.asks_for_nothing && reads_on {
                    maker.shuts = true;
                    maker.push(Call::Shutdown, &[slot as i32, how]);
                }
            }),
            (5, Maker::close),
            (2, |maker| {
                maker.listener();
            }),
            (1, |maker| {
                let six = maker.random.percent(25);
                maker.new_socket(six);
            }),
            (options, Maker::option),
            (6, Maker::descriptor),
            (5, Maker::across),
            (4, Maker::names),
            (3, |maker| {
                if maker.random.percent(15) {
                    let (slot, length) = (maker.connection(), maker.random.one(&[-1, 0, 5, 16, 1000]));
                    return maker.push(Call::NameLength, &[slot as i32, length]);
                }
                let (slot, what) = (maker.any(), maker.random.weighted(&[(5, 0), (1, 2)]));
                if what != 0 || maker.unread <= 60_000 {
                    maker.push(Call::Ioctl, &[slot as i32, what]);
                }
            }),
            (ready, Maker::wait),
            (ready, |maker| {
                let set = maker.set();
                maker.control(set);
            }),
            (5 + ready / 3, Maker::poll),
            (1, |maker| {
                // As many connections as the queue accepts, or one more. For one actor only: beyond
                // the backlog, each process has one further place for connections between processes
                // (docs/LIMITS.md).
                let has_short =
                    |maker: &Maker| maker.steps.iter().any(|step| step.call == Call::Bind && step.args[2] == 3);
                if maker.blocking
                    || maker.which(|held| held == SlotContent::Short).is_some()
                    || maker.several && has_short(maker)
                {
                    return;
                }
                let listener = maker.new_socket(false);
                maker.push(Call::Bind, &[listener as i32, 1, 3]);
                let backlog = maker.random.below(3) as i32;
                maker.push(Call::Listen, &[listener as i32, backlog]);
                let full = maker.actor == 0 && !maker.several && maker.random.percent(50);
                let mut clients = Vec::new();
                for _ in 0..backlog + 1 + i32::from(full) {
                    let slot = maker.new_socket(false);
                    maker.push(Call::Connect, &[slot as i32, 1, 3]);
                    maker.held[slot] = SlotContent::Connection;
                    clients.push(slot as i32);
                }
                maker.held[listener] = SlotContent::Short;
                if full {
                    maker.full = clients;
                }
                if !full && maker.random.percent(50) {
                    maker.accept();
                }
            }),
            (buffers, |maker| {
                // How much has arrived before it is read, and how much a reset discards, depends on
                // time.
                let Some(listener) = maker.which(|held| matches!(held, SlotContent::Listener(_))) else { return };
                if maker.six[listener] {
                    return;
                }
                let SlotContent::Listener(port) = maker.held[listener] else { return };
                // Bytes for another waiting connection, accepted instead of this one, might never
                // be read.
                if !maker.may_send_very_much() || maker.queued.iter().any(|&(at, _)| at == port) {
                    return;
                }
                let client = maker.new_socket(false);
                maker.push(Call::Connect, &[client as i32, 1, port]);
                let server = maker.free();
                maker.push(Call::Accept, &[listener as i32, server as i32, 1, libc::SOCK_NONBLOCK]);
                let (from, to) = if maker.random.percent(50) { (client, server) } else { (server, client) };
                let length = maker.random.one(&[30_000, 100_000, 200_000, 400_000]);
                maker.push(Call::Fill, &[from as i32, length]);
                maker.push(Call::Poll, &[from as i32, to as i32, 1, 0, 0]);
                maker.push(Call::Drain, &[to as i32]);
                // A connection that waited earlier may have been accepted instead of this one.
                let others = (0..SLOTS).filter(|slot| maker.held[*slot] == SlotContent::Connection && *slot != to);
                for other in others.collect::<Vec<_>>() {
                    maker.push(Call::Drain, &[other as i32]);
                }
                maker.push(Call::Poll, &[from as i32, to as i32, 5, 0, 0]);
                (maker.held[client], maker.held[server]) = (SlotContent::Connection, SlotContent::Connection);
            }),
            (buffers + 2, |maker| {
                let slot = maker.connection();
                // Bytes on other connections are still unread: `unread` counts all of them.
                maker.push(Call::Drain, &[slot as i32]);
            }),
        ];
        let way = self.random.weighted(ways);
        way(self);
    }

    /// Generates a step that does not change listeners.
    fn step_beside_full(&mut self) {
        let Some(slot) = self.which(|held| held == SlotContent::Connection) else { return self.poll() };
        match self.random.below(8) {
            0 => self.send(),
            1 => self.receive(),
            2 => self.poll(),
            3 => self.wait(),
            4 => self.push(Call::Peer, &[slot as i32]),
            5 => self.push(Call::Name, &[slot as i32]),
            6 => {
                let (client, how) = (self.random.below(self.full.len()), self.random.below(3) as i32);
                self.push(Call::Shutdown, &[self.full[client], how]);
            }
            _ => self.push(Call::GetOption, &[slot as i32, 5]),
        }
    }
}
