//! Generates programs from seeds. A sketch of the slots' contents makes most steps meaningful; some
//! are random nevertheless.

mod steps;

use crate::program::{Call, Mode, Program, SLOTS, Step};
use crate::random::Random;
use crate::values::OPTION;

/// Profiles and their weights.
pub const PROFILES: &[(&str, usize)] = &[
    ("single", 30),
    ("ring", 40),
    ("signals", 1),
    ("options", 14),
    ("ready", 25),
    ("sets", 10),
    ("buffers", 1),
    ("actors", 6),
    ("racing", 1),
    ("mixed", 1),
    ("foreign", 2),
    ("loops", 1),
    // Only by name.
    ("shared", 0),
];

/// Kinds of the other actors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Others {
    /// All run under preload.
    Ours,
    /// Actor 1 runs without the library.
    Kernel,
}

/// The transport of a connection within the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carrier {
    Ours,
    Kernel,
    /// Undetermined: for a socket with its own port or options, or from before a fork.
    Unknown,
}

/// The content of a slot, as far as the sketch knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotContent {
    Nothing,
    Fresh,
    Bound(i32),
    Listener(i32),
    /// A listener on the program's last port, with a short queue: no other step connects to it.
    Short,
    Connection,
    Set,
    Reader,
    Writer,
    Unix,
    File,
}

pub(crate) struct Maker {
    pub(crate) random: Random,
    pub(crate) steps: Vec<Step>,
    pub(crate) held: [SlotContent; SLOTS],
    pub(crate) six: [bool; SLOTS],
    pub(crate) actor: u8,
    /// Descriptors may block: for programs with several actors.
    pub(crate) blocking: bool,
    /// Other actors exist.
    pub(crate) several: bool,
    /// Upper bound of unread bytes.
    pub(crate) unread: i32,
    /// An actor waits for space in a listener's queue. No step may make space: the kernel's client
    /// retries after a second, and ours at once. Contains the slots of that queue's clients; a
    /// connection's slot may have been closed and reused for the listener.
    pub(crate) full: Vec<i32>,
    /// A connection was shut down; or a set was requested with edges without EPOLLIN, or with edges
    /// of a set in it. A program has one of them, not both: the end that has shut down also gets an
    /// edge for the acknowledgment, which arrives with the peer's next segment or its delayed ACK.
    pub(crate) shuts: bool,
    pub(crate) edges_of_room: bool,
    /// A call that blocks may have requested no bytes. Excludes a shutdown as well: its
    /// acknowledgment ends the kernel's call.
    pub(crate) asks_for_nothing: bool,
    /// A set was requested with edges or one-shots.
    pub(crate) edges: bool,
    /// Actors without the library.
    pub(crate) plain: Vec<u8>,
    /// Connections that may wait for accept, by port. The kernel's and ours wait in two queues
    /// (docs/LIMITS.md), so at one time all connections of a port have one kind.
    pub(crate) queued: Vec<(i32, Carrier)>,
}

/// Generates the program of this seed; an empty `profile` allows any profile.
pub fn generate(seed: u64, profile: &str) -> Program {
    let mut random = Random::new(seed);
    let mut profile = profile;
    if profile.is_empty() {
        let table: Vec<(usize, &str)> = PROFILES.iter().map(|(name, weight)| (*weight, *name)).collect();
        profile = random.weighted(&table);
    }
    let mut maker = Maker {
        random,
        steps: Vec::new(),
        held: [SlotContent::Nothing; SLOTS],
        six: [false; SLOTS],
        actor: 0,
        blocking: false,
        several: false,
        unread: 0,
        full: Vec::new(),
        shuts: false,
        edges_of_room: false,
        asks_for_nothing: false,
        edges: false,
        plain: Vec::new(),
        queued: Vec::new(),
    };
    let mode = match profile {
        "actors" => maker.several(Others::Ours),
        "mixed" => maker.several(Others::Kernel),
        "racing" => maker.race(),
        "signals" => maker.signals(),
        "sets" => maker.sets(),
        "foreign" => maker.foreign(),
        "loops" => maker.loops(),
        "shared" => maker.shared(),
        _ => maker.single(profile),
    };
    Program { profile: profile.into(), seed, mode, steps: maker.steps }
}

impl Maker {
    pub(crate) fn push(&mut self, call: Call, args: &[i32]) {
        if call == Call::SetTimeout && self.has_others_clients(args[0] as usize) {
            return;
        }
        self.steps.push(Step { actor: self.actor, call, args: args.to_vec() });
    }

    /// Returns true if connections wait at this listener that another process may accept: it would
    /// apply the current timeouts instead of those at their arrival (docs/LIMITS.md).
    fn has_others_clients(&self, slot: usize) -> bool {
        self.steps.iter().any(|step| step.call == Call::Fork)
            && match self.held[slot] {
                SlotContent::Listener(port) => self.queued.iter().any(|&(at, _)| at == port),
                SlotContent::Short => true,
                _ => false,
            }
    }

    /// Returns an empty slot; any slot if there is none.
    pub(crate) fn free(&mut self) -> usize {
        match self.held.iter().position(|held| *held == SlotContent::Nothing) {
            Some(slot) => slot,
            None => self.random.below(SLOTS),
        }
    }

    /// Returns one of the slots with such a content.
    pub(crate) fn which(&mut self, wanted: impl Fn(SlotContent) -> bool) -> Option<usize> {
        let fitting: Vec<usize> = (0..SLOTS).filter(|slot| wanted(self.held[*slot])).collect();
        (!fitting.is_empty()).then(|| fitting[self.random.below(fitting.len())])
    }

    /// Returns a connection, or sometimes any slot.
    pub(crate) fn connection(&mut self) -> usize {
        if !self.random.percent(8)
            && let Some(slot) = self.which(|held| held == SlotContent::Connection)
        {
            return slot;
        }
        self.any()
    }

    /// Returns a socket, or sometimes any slot.
    pub(crate) fn any(&mut self) -> usize {
        if !self.random.percent(5)
            && let Some(slot) = self.which(|held| held != SlotContent::Nothing)
        {
            return slot;
        }
        self.random.below(6)
    }

    fn single(&mut self, profile: &str) -> Mode {
        let length = self.random.one(&[6, 10, 14, 18, 24, 40]);
        if !self.random.percent(10) {
            self.listener();
            for _ in 0..=self.random.below(2) {
                self.connect_pair();
                if profile == "ring" {
                    self.warm();
                }
            }
        }
        if profile == "ready" {
            self.epoll_set();
        }
        while self.steps.len() < length {
            // A job takes as long as several programs.
            if profile == "ring" && self.random.below(300) == 0 {
                self.job();
            } else {
                self.step(profile);
            }
        }
        Mode::Alone
    }

    /// Generates steps during which another program has a connection.
    pub(crate) fn job(&mut self) {
        let (slot, how) = (self.connection(), self.random.below(2) as i32);
        // The program does not see unread ring bytes, so the connection would be reset.
        self.drain_before_hand_over(slot);
        self.push(Call::Job, &[slot as i32, how]);
        for _ in 0..self.random.below(8) {
            self.step("ring");
        }
        self.push(Call::JobEnd, &[]);
    }

    pub(crate) fn new_socket(&mut self, six: bool) -> usize {
        let slot = self.free();
        let mut flags = if self.blocking && self.random.percent(70) { 0 } else { libc::SOCK_NONBLOCK };
        if self.random.percent(10) {
            flags |= libc::SOCK_CLOEXEC;
        }
        self.push(Call::Socket, &[slot as i32, if six { libc::AF_INET6 } else { libc::AF_INET }, flags]);
        self.held[slot] = SlotContent::Fresh;
        self.six[slot] = six;
        slot
    }

    pub(crate) fn host(&mut self, six: bool, listening: bool) -> i32 {
        let hosts: &[(usize, i32)] = match (six, listening) {
            (false, true) => &[(5, 1), (4, 0), (1, 2)],
            (true, true) => &[(5, 3), (4, 4), (1, 5)],
            (false, false) => &[(20, 1), (2, 2), (1, 0)],
            (true, false) => &[(12, 4), (6, 5), (1, 3)],
        };
        if self.random.percent(2) { self.random.below(8) as i32 } else { self.random.weighted(hosts) }
    }

    pub(crate) fn listener(&mut self) -> usize {
        let six = self.random.percent(25);
        let slot = self.new_socket(six);
        let port = self.random.weighted(&[(10, 0), (3, 1), (1, 2)]);
        if self.random.percent(60) {
            self.push(Call::SetOption, &[slot as i32, 0, 1]);
        }
        let host = self.host(six, true);
        self.push(Call::Bind, &[slot as i32, host, port]);
        let backlog = self.random.weighted(&[(20, 32), (5, 128), (1, 64), (1, -1)]);
        self.push(Call::Listen, &[slot as i32, backlog]);
        self.held[slot] = SlotContent::Listener(port);
        slot
    }

    pub(crate) fn port(&mut self) -> i32 {
        match self.which(|held| matches!(held, SlotContent::Listener(_))) {
            Some(slot) if !self.random.percent(5) => match self.held[slot] {
                SlotContent::Listener(port) => port,
                _ => 0,
            },
            _ => self.random.one(&[0, 0, 1, 2, -1]),
        }
    }

    pub(crate) fn connect(&mut self) {
        let listener = self.which(|held| matches!(held, SlotContent::Listener(_)));
        let six = listener.is_some_and(|slot| self.six[slot]) != self.random.percent(8);
        let slot = match self.which(|held| matches!(held, SlotContent::Fresh | SlotContent::Bound(_))) {
            Some(slot) if self.random.percent(30) => slot,
            _ => self.new_socket(six),
        };
        let (host, port) = (self.host(self.six[slot], false), self.port());
        if !self.queue(port, slot) {
            return;
        }
        // Unless the listener's queue is short, a loopback connection is established at once,
        // without waiting.
        let waits = !self.blocking && (0..2).contains(&port) && self.random.percent(25);
        if waits {
            self.push(Call::SetFl, &[slot as i32, 0]);
        }
        self.push(Call::Connect, &[slot as i32, host, port]);
        if waits {
            self.push(Call::SetFl, &[slot as i32, libc::SOCK_NONBLOCK]);
        }
        self.held[slot] = SlotContent::Connection;
    }

    /// Records that a connection of this slot's socket is about to wait at this port. Returns false
    /// if one of another kind may wait there.
    pub(crate) fn queue(&mut self, port: i32, slot: usize) -> bool {
        // Without a listener no connection waits.
        let listens = |step: &Step| step.call == Call::Bind && step.args[2] == port;
        if !self.steps.iter().any(listens) {
            return true;
        }
        let made = self.steps.iter().rposition(|step| step.call == Call::Socket && step.args[0] == slot as i32);
        let later = &self.steps[made.unwrap_or(0)..];
        let is_set = |step: &Step| matches!(step.call, Call::Bind | Call::SetOption) && step.args[0] == slot as i32;
        // Sockets that other processes, or this one's previous image, have connect through the
        // kernel.
        let is_shared = |step: &Step| matches!(step.call, Call::Fork | Call::Spawn | Call::Job | Call::Exec);
        let carrier = match () {
            () if self.plain.contains(&self.actor) => Carrier::Kernel,
            () if later.iter().any(|step| is_set(step) || is_shared(step)) => Carrier::Unknown,
            () => Carrier::Ours,
        };
        let mixes = |other: Carrier| other != carrier || carrier == Carrier::Unknown;
        if self.queued.iter().any(|&(at, other)| at == port && mixes(other)) {
            return false;
        }
        self.queued.push((port, carrier));
        true
    }

    /// Returns true if a set has a socket that is closed, or will be by an exec, and that another
    /// process may have: only on the kernel its registration outlives the exec (docs/LIMITS.md).
    pub(crate) fn has_watched_ones_closed(&self) -> bool {
        let is_watched = |slot: i32| self.steps.iter().any(|step| step.call == Call::Ctl && step.args[2] == slot);
        let is_closed = |step: &Step| match step.call {
            Call::Close => is_watched(step.args[0]),
            Call::Socket => step.args[2] & libc::SOCK_CLOEXEC != 0 && is_watched(step.args[0]),
            Call::Accept => step.args[3] & libc::SOCK_CLOEXEC != 0 && is_watched(step.args[1]),
            Call::Dup3 | Call::DupFd => step.args[2] != 0 && is_watched(step.args[1]),
            Call::SetFd => step.args[1] != 0 && is_watched(step.args[0]),
            _ => false,
        };
        self.steps.iter().any(|step| step.call == Call::Fork) && self.steps.iter().any(is_closed)
    }

    pub(crate) fn accept(&mut self) {
        let listener = match self.which(|held| matches!(held, SlotContent::Listener(_) | SlotContent::Short)) {
            Some(slot) if !self.random.percent(3) => slot,
            _ => self.any(),
        };
        if let SlotContent::Listener(port) = self.held[listener]
            && let Some(first) = self.queued.iter().position(|&(at, _)| at == port)
        {
            self.queued.remove(first);
        }
        let into = self.free();
        let cloexec = if self.random.percent(15) { libc::SOCK_CLOEXEC } else { 0 };
        if self.blocking {
            let form = self.random.below(3) as i32;
            self.push(Call::Accept, &[listener as i32, into as i32, form, cloexec]);
        } else {
            let form = self.random.weighted(&[(4, 1), (1, 0), (1, 2)]);
            self.push(Call::Accept, &[listener as i32, into as i32, form, libc::SOCK_NONBLOCK | cloexec]);
            if form != 1 {
                self.push(Call::SetFl, &[into as i32, libc::SOCK_NONBLOCK]);
            }
        }
        self.held[into] = SlotContent::Connection;
        self.six[into] = self.six[listener];
    }

    pub(crate) fn connect_pair(&mut self) {
        self.connect();
        self.accept();
    }

    /// Sends and receives each way on the newest connection whose two ends this process has, so
    /// that both rings are used from then on.
    pub(crate) fn warm(&mut self) {
        let Some((client, server)) = self.newest_pair() else { return };
        for (from, to) in [(client, server), (server, client), (client, server)] {
            self.push(Call::Send, &[from, 2, 5, libc::MSG_DONTWAIT]);
            self.push(Call::Recv, &[to, 2, 100, libc::MSG_DONTWAIT]);
        }
    }

    /// Returns the slots of the newest connection whose two ends this process has: the client's and the server's.
    pub(crate) fn newest_pair(&self) -> Option<(i32, i32)> {
        let last = |call: Call, which: usize| {
            let step = self.steps.iter().rev().find(|step| step.call == call && step.actor == self.actor)?;
            Some(step.args[which])
        };
        Some((last(Call::Connect, 0)?, last(Call::Accept, 1)?))
    }

    pub(crate) fn close(&mut self) {
        let slot = self.any();
        self.push(Call::Close, &[slot as i32]);
        if !self.random.percent(15) {
            self.held[slot] = SlotContent::Nothing;
        }
    }

    /// Returns true if a step has set the option of this name.
    pub(crate) fn has_set(&self, name: &str) -> bool {
        let option = OPTION.iter().find(|(of, _)| *of == name).map(|(_, option)| *option);
        self.steps.iter().any(|step| step.call == Call::SetOption && step.args.get(1).copied() == option)
    }
}
