//! Generates programs of several processes and threads.

use crate::generate::{Maker, Others, SlotContent};
use crate::program::{ACTORS, Call, Mode, SLOTS};

/// Contents of a process's slots.
type Sketch = ([SlotContent; SLOTS], [bool; SLOTS]);

impl Maker {
    /// Switches to another actor, whose process has its own descriptors.
    fn turn(&mut self, to: u8, sketches: &mut [Sketch]) {
        sketches[usize::from(self.actor)] = (self.held, self.six);
        self.actor = to;
        (self.held, self.six) = sketches[usize::from(to)];
    }

    /// Generates steps in order: each is complete, or blocks, before the next begins. Actor 1 is of
    /// another kind from the start, or like actor 0.
    pub(crate) fn several(&mut self, others: Others) -> Mode {
        let mixed = others != Others::Ours;
        self.several = true;
        let mut sketches: Vec<Sketch> = vec![(self.held, self.six); ACTORS];
        if !mixed && self.random.percent(25) {
            // Promotes as programs of users do: not at the first byte, so steps come before it.
            let calls = self.random.one(&[1, 2]);
            self.push(Call::Calls, &[calls]);
            self.push(Call::Exec, &[]);
        }
        if mixed {
            self.push(Call::Fork, &[1]);
            self.actor = 1;
            self.push(Call::ExecPlain, &[]);
            self.plain.push(1);
            self.actor = self.random.below(2) as u8;
        }
        self.blocking = self.random.percent(35);
        let length = self.random.one(&[10, 16, 24, 34]);
        self.listener();
        let mut profile = "single";
        if self.random.percent(60) {
            self.connect_pair();
            // A connection that several processes will have.
            if !mixed && self.random.percent(70) {
                self.warm();
                profile = "ring";
            }
        }
        let mut alive = vec![0u8];
        let mut known = 1;
        // Process of each actor: 0, 1 and every forked actor have their own.
        let mut process: [usize; ACTORS] = core::array::from_fn(|actor| actor);
        // The lowest limit of descriptors. The library's descriptors are just above a limit, and
        // would be in the way if it were raised.
        let mut limited = None;
        if mixed {
            alive.push(1);
            known = 2;
            self.turn(1 - self.actor, &mut sketches);
            let host = self.random.one(&[1, 2, 1]);
            let slot = self.new_socket(false);
            // Connections of two kinds must not wait together: see `queued`.
            for _ in 0..self.queued.len() {
                self.turn(1 - self.actor, &mut sketches);
                self.accept();
                self.turn(1 - self.actor, &mut sketches);
            }
            self.queue(0, slot);
            self.push(Call::Connect, &[slot as i32, host, 0]);
            self.held[slot] = SlotContent::Connection;
            self.turn(1 - self.actor, &mut sketches);
            self.accept();
        } else if self.random.percent(85) {
            self.push(Call::Fork, &[1]);
            sketches[1] = (self.held, self.six);
            alive.push(1);
            known = 2;
        }
        while self.steps.len() < length {
            let next = self.random.one(&alive);
            self.turn(next, &mut sketches);
            match self.random.below(100) {
                0..14 if known < ACTORS => {
                    let call = if self.random.percent(75) && !self.edges { Call::Fork } else { Call::Thread };
                    self.push(call, &[known as i32]);
                    sketches[known] = (self.held, self.six);
                    if call == Call::Thread {
                        process[known] = process[usize::from(self.actor)];
                    }
                    alive.push(known as u8);
                    if self.plain.contains(&self.actor) {
                        self.plain.push(known as u8);
                    }
                    known += 1;
                }
                14..17 if alive.len() > 1 => {
                    self.push(Call::Exit, &[]);
                    alive.retain(|actor| *actor != self.actor);
                }
                17..20 if alive.len() > 1 => {
                    let target = self.random.one(&alive);
                    if target != 0 {
                        self.turn(0, &mut sketches);
                        self.push(Call::Signal, &[i32::from(target), libc::SIGKILL]);
                        alive.retain(|actor| *actor != target);
                    }
                }
                20..24 if limited.is_some() => {}
                20..22 if self.has_watched_ones_closed() => {}
                // A connection with unread ring bytes is reset, and a step that waits for them is
                // not drained (docs/PRELOAD.md).
                20..22 if self.blocking && profile == "ring" => {}
                20..22 if !mixed => {
                    for slot in 0..SLOTS {
                        self.drain_before_hand_over(slot);
                    }
                    self.push(Call::Exec, &[]);
                }
                22..24 if !self.blocking && self.random.percent(60) => {
                    self.job();
                }
                22..24 => {
                    let slot = self.any();
                    self.push(Call::Spawn, &[slot as i32]);
                }
                24..27 => {
                    let signal = self.random.one(&[libc::SIGUSR1, libc::SIGUSR2]);
                    let how = self.random.below(3) as i32;
                    self.push(Call::Handler, &[signal, how]);
                    let target = self.random.one(&alive);
                    if target == self.actor {
                        self.push(Call::Signal, &[i32::from(target), signal]);
                    }
                }
                27 if alive.len() > 1 && !self.asks_for_nothing => {
                    let target = self.random.one(&alive);
                    // A thread of a stopped process cannot resume it.
                    if process[usize::from(target)] != process[usize::from(self.actor)] {
                        self.push(Call::Signal, &[i32::from(target), libc::SIGSTOP]);
                        self.step(profile);
                        self.push(Call::Signal, &[i32::from(target), libc::SIGCONT]);
                    }
                }
                28 if self.blocking && self.may_send_very_much() && !self.has_large_reader() => {
                    let (slot, length) = (self.connection(), self.random.one(&[100_000, 600_000]));
                    self.push(Call::Send, &[slot as i32, 2, length, 0]);
                    self.unread += length;
                }
                27..29 => self.push(Call::Pause, &[80]),
                29..31 => {
                    // A program that is started then cannot open its libraries.
                    let limit = self.random.one(&[6, 8, 10, 64]).min(limited.unwrap_or(64));
                    limited = Some(limit);
                    self.push(Call::NoFile, &[limit]);
                }
                31..34 => {
                    let (slot, which) = (self.any(), self.random.one(&[libc::SO_RCVTIMEO, libc::SO_SNDTIMEO]));
                    // On a listener, a timeout that expires at once is not visible to processes
                    // other than the one that set it.
                    let is_listener = matches!(self.held[slot], SlotContent::Listener(_) | SlotContent::Short);
                    let time = if is_listener { self.random.one(&[0, 15]) } else { self.random.one(&[0, 15, -1]) };
                    self.push(Call::SetTimeout, &[slot as i32, which, time]);
                }
                34..40 => {
                    let first = self.which(|held| held == SlotContent::Unix);
                    match first {
                        None => {
                            let (one, other) = (self.free(), 15);
                            self.push(Call::Pair, &[one as i32, other, 0]);
                            (self.held[one], self.held[15]) = (SlotContent::Unix, SlotContent::Unix);
                        }
                        Some(unix) if self.random.percent(50) => self.give(unix),
                        Some(unix) => {
                            let into = self.free();
                            self.push(Call::Take, &[unix as i32, into as i32]);
                            self.held[into] = SlotContent::Connection;
                        }
                    }
                }
                _ => {
                    let profile = self.random.one(&["single", "ready", "single"]);
                    self.step(profile);
                }
            }
        }
        Mode::Ordered
    }

    /// Generates programs with one epoll set that several processes share: a change by one of them
    /// applies to all.
    pub(crate) fn shared(&mut self) -> Mode {
        const LISTENER: usize = 0;
        const SET: usize = 1;
        self.several = true;
        self.push(Call::Socket, &[LISTENER as i32, libc::AF_INET, libc::SOCK_NONBLOCK]);
        self.push(Call::Bind, &[LISTENER as i32, 1, 0]);
        self.push(Call::Listen, &[LISTENER as i32, 64]);
        self.held[LISTENER] = SlotContent::Listener(0);
        let (early, late) = (self.random.below(3), self.random.below(2));
        let mut next = 4;
        for _ in 0..early {
            next = self.shared_pair(next);
        }
        self.push(Call::Epoll, &[SET as i32, 0]);
        self.held[SET] = SlotContent::Set;
        // A set without any of our sockets when its process forks is not tracked (docs/LIMITS.md).
        self.shared_change(SET, next, 1);
        for _ in 0..self.random.below(3) {
            let operation = self.random.weighted(&[(3, 1), (1, 2)]);
            self.shared_change(SET, next, operation);
        }
        let actors = 1 + self.random.below(2);
        for child in 1..=actors {
            if child == 2 && self.random.percent(40) {
                self.actor = 1;
            }
            self.push(Call::Fork, &[child as i32]);
            self.actor = 0;
        }
        for _ in 0..late {
            // Other processes do not track a connection that they do not have, so it stays out of
            // the set.
            self.actor = self.random.below(actors + 1) as u8;
            let slot = 12;
            self.push(Call::Socket, &[slot, libc::AF_INET, 0]);
            self.push(Call::Connect, &[slot, 1, 0]);
        }
        let length = self.steps.len() + self.random.one(&[8, 14, 24]);
        let mut known = actors + 1;
        let mut alive: Vec<u8> = (0..known as u8).collect();
        // Process of each actor.
        let mut process: [usize; ACTORS] = core::array::from_fn(|actor| actor);
        // It is undefined which of several sleepers is woken, so there is one.
        let sleeper = self.random.one(&alive);
        let mut has_died = false;
        while self.steps.len() < length {
            self.actor = self.random.one(&alive);
            let me = process[usize::from(self.actor)];
            match self.random.below(100) {
                0..5 if known < ACTORS => {
                    let call = self.random.weighted(&[(2, Call::Fork), (1, Call::Thread)]);
                    self.push(call, &[known as i32]);
                    process[known] = if call == Call::Fork { known } else { me };
                    alive.push(known as u8);
                    if call == Call::Fork && self.random.percent(50) {
                        // A client with its own memory.
                        self.actor = known as u8;
                        self.push(Call::Socket, &[14, libc::AF_INET, 0]);
                        self.push(Call::Connect, &[14, 1, 0]);
                    }
                    known += 1;
                    continue;
                }
                5..8 if alive.iter().any(|&actor| process[usize::from(actor)] != me) => {
                    if self.random.percent(50) {
                        self.push(Call::Exit, &[]);
                    } else {
                        let target = i32::from(self.actor);
                        let others = alive.iter().copied().filter(|&actor| process[usize::from(actor)] != me);
                        let others: Vec<u8> = others.collect();
                        self.actor = self.random.one(&others);
                        self.push(Call::Signal, &[target, libc::SIGKILL]);
                    }
                    alive.retain(|&actor| process[usize::from(actor)] != me);
                    has_died = true;
                    continue;
                }
                // The daemon detects some time later that it may have been about to wake a dead
                // process.
                8..12 if !has_died => {
                    self.actor = sleeper;
                    self.push(Call::Wait, &[SET as i32, 16, -1, 0]);
                    continue;
                }
                _ => {}
            }
            match self.random.below(100) {
                0..30 => {
                    let most = self.random.weighted(&[(8, 16), (1, 1), (1, 2)]);
                    self.push(Call::Wait, &[SET as i32, most, 0, 0]);
                }
                30..55 => {
                    let operation = self.random.weighted(&[(5, 1), (4, 3), (3, 2)]);
                    self.shared_change(SET, next, operation);
                }
                55..72 if next > 4 => {
                    let end = (4 + self.random.below(next - 4)) as i32;
                    let length = self.random.one(&[1, 5, 100]);
                    self.push(Call::Send, &[end, 2, length, libc::MSG_DONTWAIT]);
                }
                72..82 if next > 4 => {
                    let end = (4 + self.random.below(next - 4)) as i32;
                    self.push(Call::Recv, &[end, 2, 100, libc::MSG_DONTWAIT]);
                }
                82..88 => self.push(Call::Accept, &[LISTENER as i32, 13, 1, libc::SOCK_NONBLOCK]),
                88..95 => self.push(Call::Poll, &[SET as i32, LISTENER as i32, 5, 0, 0]),
                _ => {
                    let slot = 14;
                    self.push(Call::Socket, &[slot, libc::AF_INET, 0]);
                    self.push(Call::Connect, &[slot, 1, 0]);
                }
            }
        }
        Mode::Ordered
    }

    /// Makes a connection that all actors will have, in this slot and the next.
    fn shared_pair(&mut self, slot: usize) -> usize {
        self.push(Call::Socket, &[slot as i32, libc::AF_INET, 0]);
        self.push(Call::Connect, &[slot as i32, 1, 0]);
        self.push(Call::Accept, &[0, slot as i32 + 1, 1, libc::SOCK_NONBLOCK]);
        (self.held[slot], self.held[slot + 1]) = (SlotContent::Connection, SlotContent::Connection);
        slot + 2
    }

    fn shared_change(&mut self, set: usize, next: usize, operation: i32) {
        let what = if next > 4 && !self.random.percent(20) { 4 + self.random.below(next - 4) } else { 0 };
        // Edges and one-shots are reported in each process.
        let events = self.random.weighted(&[(6, 1), (2, 4), (5, 5), (1, 0)]);
        self.push(Call::Ctl, &[set as i32, operation, what as i32, events]);
    }

    /// Generates concurrent programs: servers that accept connections, and clients that connect,
    /// send and exit.
    pub(crate) fn race(&mut self) -> Mode {
        self.blocking = true;
        let six = self.random.percent(25);
        let (host, family) = if six { (4, libc::AF_INET6) } else { (1, libc::AF_INET) };
        let server = 0;
        self.push(Call::Socket, &[server, family, 0]);
        self.push(Call::Bind, &[server, host, 0]);
        self.push(Call::Listen, &[server, 64]);
        let servers = 1 + usize::from(self.random.percent(40));
        let clients = 1 + self.random.below(ACTORS - servers);
        let way = self.random.below(4);
        let busy = self.random.percent(30);
        // Messages in both directions, so that both ends wait for each other.
        let rounds = self.random.one(&[0, 0, 1, 4]);
        if servers == 2 {
            self.push(Call::Fork, &[1]);
        }
        let mut asked = vec![0usize; servers];
        for client in servers..servers + clients {
            asked[client % servers] += 1 + client % 2;
            self.actor = 0;
            self.push(Call::Fork, &[client as i32]);
            self.client(client, [host, family], rounds);
        }
        for (server_actor, connections) in asked.iter().enumerate() {
            self.actor = server_actor as u8;
            if busy && server_actor == 0 {
                self.push(Call::Pause, &[90]);
            }
            if way == 1 && servers == 1 {
                self.push(Call::Epoll, &[2, 0]);
                let events = self.random.one(&[1, 1 | libc::EPOLLEXCLUSIVE]);
                self.push(Call::Ctl, &[2, 1, server, events]);
            }
            for connection in 0..*connections as i32 {
                let into = 4 + connection;
                match way {
                    0 if servers == 1 => self.push(Call::Poll, &[server, server, 1, -1, 0]),
                    1 if servers == 1 => self.push(Call::Wait, &[2, 4, -1, 0]),
                    _ => {}
                }
                self.push(Call::Accept, &[server, into, 0, 0]);
                for _ in 0..rounds {
                    self.push(Call::Recv, &[into, 2, 5, libc::MSG_WAITALL]);
                    self.push(Call::Send, &[into, 2, 5, libc::MSG_NOSIGNAL]);
                }
                self.push(Call::Recv, &[into, 2, 100, libc::MSG_WAITALL]);
                if self.random.percent(50) {
                    self.push(Call::Close, &[into]);
                }
            }
        }
        Mode::Racing
    }

    /// Generates a client that connects once or twice, sends, and exits.
    fn client(&mut self, client: usize, [host, family]: [i32; 2], rounds: i32) {
        self.actor = client as u8;
        for again in 0..=(client % 2) as i32 {
            let slot = 10 + again;
            self.push(Call::Socket, &[slot, family, 0]);
            if self.random.percent(20) {
                self.push(Call::Pause, &[1 + 10 * client as i32]);
            }
            self.push(Call::Connect, &[slot, host, 0]);
            for _ in 0..rounds {
                self.push(Call::Send, &[slot, 2, 5, libc::MSG_NOSIGNAL]);
                self.push(Call::Recv, &[slot, 2, 5, libc::MSG_WAITALL]);
            }
            if self.random.percent(80) {
                self.push(Call::Send, &[slot, 2, 1 + client as i32, 0]);
            }
            match self.random.below(4) {
                // The server serves the next one after this one's end.
                _ if rounds > 0 => self.push(Call::Close, &[slot]),
                0 => self.push(Call::Shutdown, &[slot, libc::SHUT_WR]),
                1 => self.push(Call::Close, &[slot]),
                _ => {}
            }
        }
        self.push(Call::Exit, &[]);
    }
}
