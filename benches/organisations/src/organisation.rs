//! The threading models: how a core accesses the instance of a packet or a call.

mod turns;

use crate::lock::{Class, Counters, Lock};
use crate::shard::{Ready, Shard};
use crate::wire::{Batch, Load, Sent, Wire};
use fs_core::Instant;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;

/// Packets per turn.
const BATCH: usize = 32;

/// Instances of MsgP. With more connections some share an instance and its lock, by the remainder
/// of their number. An instance takes 0.2 MB, and with this number two of a hundred packets in
/// flight rarely share one.
const MSGP_LOCKS: usize = 1024;

/// A threading model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One instance, one thread.
    Up,
    /// A lock for each connection and for each shared structure.
    MsgP,
    /// A protocol thread on each core.
    ConnPT,
    /// This number of groups of connections, each with a lock.
    ConnPL(usize),
    /// A thread and an instance per core, nothing shared.
    PerCore,
}

impl Kind {
    /// Parses the names of the command line: `up`, `msgp`, `connp-t`, `connp-l:128`, `per-core`.
    pub fn parse(name: &str) -> Option<Kind> {
        Some(match name {
            "up" => Kind::Up,
            "msgp" => Kind::MsgP,
            "connp-t" => Kind::ConnPT,
            "per-core" => Kind::PerCore,
            other => Kind::ConnPL(other.strip_prefix("connp-l:")?.parse().ok().filter(|&n| n > 0)?),
        })
    }
}

/// State that all threads share.
pub struct Shared {
    kind: Kind,
    cores: usize,
    load: Load,
    shards: Vec<Lock<Shard>>,
    /// Address and port of a client → the index of its connection in `shards`.
    table: Lock<HashMap<(u32, u16), u32>>,
    timers: Lock<BTreeSet<(Instant, u32)>>,
    /// For each core: packets to the clients of its queue.
    devices: Vec<Lock<Vec<Sent>>>,
    /// For each core: ready sockets of its application.
    sockets: Vec<Lock<Vec<Ready>>>,
    /// The queue of each protocol thread.
    messages: Vec<Lock<VecDeque<Message>>>,
    notifiers: Vec<Notifier>,
    /// True if a thread without work sleeps (ConnP-T, with real threads).
    pub sleeps: bool,
    /// Tells threads to end.
    pub stop: AtomicBool,
}

/// A message to a protocol thread.
enum Message {
    Packets(Batch),
    Calls(Vec<Ready>),
}

/// Wakes a sleeping thread.
#[derive(Default)]
struct Notifier {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Notifier {
    fn notify(&self, counters: &mut Counters) {
        if self.asleep.swap(false, Ordering::AcqRel)
            && let Some(thread) = self.thread.get()
        {
            counters.wakes += 1;
            thread.unpark();
        }
    }

    /// Sleeps unless `busy` returns true.
    fn sleep(&self, busy: impl Fn() -> bool) {
        let _first = self.thread.set(std::thread::current());
        self.asleep.store(true, Ordering::SeqCst);
        if busy() {
            self.asleep.store(false, Ordering::Release);
        } else {
            // Limited, so that the thread sees the end of the run.
            std::thread::park_timeout(std::time::Duration::from_millis(20));
            self.asleep.store(false, Ordering::Release);
        }
    }
}

impl Shared {
    /// Creates the instances of these connections.
    pub fn new(kind: Kind, cores: usize, connections: usize, load: Load) -> Shared {
        let count = match kind {
            Kind::Up | Kind::PerCore => 0,
            Kind::MsgP => connections.min(MSGP_LOCKS),
            Kind::ConnPT => cores,
            Kind::ConnPL(groups) => groups,
        };
        let mut sizes = vec![0; count];
        if count > 0 {
            (0..connections as u32).for_each(|flow| sizes[group(kind, count, flow)] += 1);
        }
        let class = if kind == Kind::MsgP { Class::Connection } else { Class::Group };
        let each = |class: Class| (0..cores).map(|_| Lock::new(class, Vec::new())).collect();
        Shared {
            kind,
            cores,
            load,
            shards: sizes.into_iter().map(|size| Lock::new(class, Shard::new(size, load))).collect(),
            table: Lock::new(Class::Table, HashMap::new()),
            timers: Lock::new(Class::Timers, BTreeSet::new()),
            devices: each(Class::Device),
            sockets: (0..cores).map(|_| Lock::new(Class::Sockets, Vec::new())).collect(),
            messages: (0..cores).map(|_| Lock::new(Class::Messages, VecDeque::new())).collect(),
            notifiers: (0..2 * cores).map(|_| Notifier::default()).collect(),
            sleeps: false,
            stop: AtomicBool::new(false),
        }
    }

    /// Returns the core whose device queue receives a flow.
    fn nic(&self, flow: u32) -> usize {
        flow as usize % self.cores
    }

    /// Returns the core of a flow's application: as often another core as the one that receives its
    /// packets.
    fn application(&self, flow: u32) -> usize {
        match self.kind {
            Kind::Up | Kind::PerCore => self.nic(flow),
            _ => flow as usize / self.cores % self.cores,
        }
    }

    fn group(&self, flow: u32) -> usize {
        group(self.kind, self.shards.len(), flow)
    }

    /// Moves sent packets to their devices and ready sockets to their applications, which empties
    /// both.
    fn deliver(&self, core: usize, sent: &mut Vec<Sent>, ready: &mut Vec<Ready>, counters: &mut Counters) {
        if !sent.is_empty() {
            // Most batches have one destination.
            for to in 0..self.cores {
                if sent.iter().any(|sent| self.nic(sent.flow) == to) {
                    let mut device = self.devices[to].take(counters);
                    device.extend(sent.iter().filter(|sent| self.nic(sent.flow) == to));
                    drop(device);
                    if self.sleeps && to != core {
                        self.notifiers[to].notify(counters);
                    }
                }
            }
            sent.clear();
        }
        if !ready.is_empty() {
            for to in 0..self.cores {
                if ready.iter().any(|ready| self.application(ready.flow) == to) {
                    let mut sockets = self.sockets[to].take(counters);
                    sockets.extend(ready.iter().filter(|ready| self.application(ready.flow) == to));
                    drop(sockets);
                    if self.sleeps {
                        self.notifiers[to].notify(counters);
                    }
                }
            }
            ready.clear();
        }
    }

    /// Updates the shared timers with an instance's next deadline (MsgP).
    fn arm(&self, place: u32, shard: &mut Shard, counters: &mut Counters) {
        let next = shard.next_deadline();
        if next != shard.armed {
            let mut timers = self.timers.take(counters);
            if let Some(at) = shard.armed {
                timers.remove(&(at, place));
            }
            if let Some(at) = next {
                timers.insert((at, place));
            }
            shard.armed = next;
        }
    }

    fn send_message(&self, to: usize, message: Message, counters: &mut Counters) {
        counters.messages += 1;
        self.messages[to].take(counters).push_back(message);
        if self.sleeps {
            self.notifiers[self.cores + to].notify(counters);
        }
    }

    /// Returns the established connections of the shared instances, and the packets that they
    /// dropped.
    pub fn connections(&self) -> (usize, u64) {
        let all = self.shards.iter().map(|shard| {
            let shard = shard.take_uncounted();
            (shard.connections(), shard.drops())
        });
        all.fold((0, 0), |(count, drops), (c, d)| (count + c, drops + d))
    }
}

/// Returns the instance of a flow, by a hash: groups are independent of the device's queues.
fn group(kind: Kind, count: usize, flow: u32) -> usize {
    match kind {
        Kind::MsgP => flow as usize % count,
        _ => (flow.wrapping_mul(0x9e37_79b1) >> 16) as usize % count,
    }
}

/// A core: its device queue, its application, and in UP and ours its instance.
pub struct Worker {
    core: usize,
    wire: Wire,
    own: Option<Shard>,
    batch: Batch,
    sent: Vec<Sent>,
    ready: Vec<Ready>,
    served: Vec<Ready>,
    came: Vec<Sent>,
    buffer: Vec<u8>,
    idle: u32,
    /// Counters of this thread.
    pub counters: Counters,
}

impl Worker {
    /// Creates a core's worker. Its flows are those whose packets this core receives.
    pub fn new(shared: &Shared, core: usize, connections: usize) -> Worker {
        let flows = (0..connections as u32).filter(|&flow| shared.nic(flow) == core).count();
        let alone = matches!(shared.kind, Kind::Up | Kind::PerCore);
        Worker {
            core,
            wire: Wire::new(connections, shared.load),
            own: alone.then(|| Shard::new(flows, shared.load)),
            batch: Batch::default(),
            sent: Vec::new(),
            ready: Vec::new(),
            served: Vec::new(),
            came: Vec::new(),
            buffer: vec![0; 16 << 10],
            idle: 0,
            counters: Counters::default(),
        }
    }

    /// Opens this core's connections, before the measurement.
    pub fn open(&mut self, shared: &Shared, connections: usize, now: Instant) {
        let flows: Vec<u32> = (0..connections as u32).filter(|&flow| shared.nic(flow) == self.core).collect();
        self.wire.set_now(now.as_millis() as u32);
        for flows in flows.chunks(BATCH) {
            for step in [Wire::open, Wire::opened] {
                self.batch.clear();
                for &flow in flows {
                    step(&mut self.wire, flow, &mut self.batch);
                }
                let mut batch = std::mem::take(&mut self.batch);
                match &mut self.own {
                    Some(shard) => {
                        shard.receive(batch.all(), now, &mut self.ready);
                        shard.transmit(&mut self.sent);
                        self.served.append(&mut self.ready);
                    }
                    None => {
                        batch.sort_by_key(|flow| shared.group(flow));
                        for (group, run) in batch.runs(|flow| shared.group(flow)) {
                            let mut shard = shared.shards[group].take_uncounted();
                            shard.receive(run, now, &mut self.ready);
                            shard.transmit(&mut self.sent);
                        }
                        for ready in self.ready.drain(..) {
                            shared.sockets[shared.application(ready.flow)].take_uncounted().push(ready);
                        }
                        let mut table = shared.table.take_uncounted();
                        if shared.kind == Kind::MsgP {
                            table.extend(flows.iter().map(|&flow| (key(&batch, flow), shared.group(flow) as u32)));
                        }
                    }
                }
                self.wire.came(&self.sent, &mut self.counters);
                self.sent.clear();
                self.batch = batch;
            }
        }
    }

    /// Runs one turn. Returns false if there was no work.
    #[inline(never)]
    pub fn turn(&mut self, shared: &Shared, now: Instant) -> bool {
        self.wire.set_now(now.as_millis() as u32);
        self.wire.batch(BATCH, &mut self.batch);
        let worked = match shared.kind {
            Kind::Up | Kind::PerCore => self.turn_alone(now),
            Kind::MsgP => self.turn_msgp(shared, now),
            Kind::ConnPL(_) => self.turn_locked(shared, now),
            Kind::ConnPT => self.turn_messages(shared),
        };
        if !matches!(shared.kind, Kind::Up | Kind::PerCore) {
            // The device's own work is not counted.
            std::mem::swap(&mut self.came, &mut *shared.devices[self.core].take_uncounted());
            self.wire.came(&self.came, &mut self.counters);
        }
        let worked = worked | !self.came.is_empty();
        self.came.clear();
        self.counters.turns += u64::from(worked);
        worked
    }

    /// Waits for work: sleeps if threads of the run may sleep, otherwise spins.
    pub fn rest(&mut self, shared: &Shared) {
        if shared.sleeps {
            let core = self.core;
            shared.notifiers[core].sleep(|| {
                !shared.devices[core].take_uncounted().is_empty() || !shared.sockets[core].take_uncounted().is_empty()
            });
            return;
        }
        self.idle += 1;
        if self.idle.is_multiple_of(64) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }

    /// Returns the connections of its own instance, and the packets that it dropped.
    pub fn connections(&self) -> (usize, u64) {
        self.own.as_ref().map_or((0, 0), |shard| (shard.connections(), shard.drops()))
    }
}

/// A protocol thread (ConnP-T). Only this thread uses its instance, so the instance's lock is never
/// contended.
pub struct Protocol {
    core: usize,
    sent: Vec<Sent>,
    ready: Vec<Ready>,
    buffer: Vec<u8>,
    taken: VecDeque<Message>,
    /// Counters of this thread.
    pub counters: Counters,
}

impl Protocol {
    /// Creates the protocol thread of this core.
    pub fn new(core: usize) -> Protocol {
        Protocol {
            core,
            sent: Vec::new(),
            ready: Vec::new(),
            buffer: vec![0; 16 << 10],
            taken: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Handles its messages. Returns false if there are none.
    #[inline(never)]
    pub fn turn(&mut self, shared: &Shared, now: Instant) -> bool {
        std::mem::swap(&mut *shared.messages[self.core].take(&mut self.counters), &mut self.taken);
        if self.taken.is_empty() {
            return false;
        }
        let mut shard = shared.shards[self.core].take_uncounted();
        touch(&mut shard, self.core, &mut self.counters);
        for message in self.taken.drain(..) {
            match message {
                Message::Packets(batch) => {
                    self.counters.packets_in += shard.receive(batch.all(), now, &mut self.ready);
                }
                Message::Calls(calls) => {
                    for ready in calls {
                        shard.serve(ready, &mut self.buffer);
                    }
                }
            }
        }
        shard.transmit(&mut self.sent);
        drop(shard);
        // The protocol thread does not notify itself.
        shared.deliver(usize::MAX, &mut self.sent, &mut self.ready, &mut self.counters);
        self.counters.turns += 1;
        true
    }

    /// Sleeps until a message comes.
    pub fn rest(&mut self, shared: &Shared) {
        let core = self.core;
        shared.notifiers[shared.cores + core].sleep(|| !shared.messages[core].take_uncounted().is_empty());
    }
}

fn touch(shard: &mut Shard, core: usize, counters: &mut Counters) {
    if std::mem::replace(&mut shard.last_core, core) != core {
        counters.moves += 1;
    }
}

/// Returns a packet's key in the shared table.
fn key_of(bytes: &[u8]) -> (u32, u16) {
    let at = crate::wire::ETHERNET;
    let ip = u32::from_be_bytes([bytes[at + 12], bytes[at + 13], bytes[at + 14], bytes[at + 15]]);
    (ip, u16::from_be_bytes([bytes[at + 20], bytes[at + 21]]))
}

/// Returns the key of a flow with a packet in this batch.
fn key(batch: &Batch, flow: u32) -> (u32, u16) {
    batch.iter().find(|(of, _)| *of == flow).map_or((0, 0), |(_, bytes)| key_of(bytes))
}
