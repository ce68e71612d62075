//! Connecting and accepting.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use rustix::io::Errno;

use super::close::Locks;
use super::options::Options;
use super::state::{ACCEPTED, Phase, State, closed_bit, reset_bit};
use super::{CAPTURED, CORE, Channel, DEFERRED};
use crate::addr::Addr;
use crate::arena::Arena;
use crate::holder::{self, Users};
use crate::layout::{Block, Side, SlotLocks};
use crate::ring::Map;
use crate::{sleep, wait};

/// What the opener says of a new connection.
#[derive(Clone, Copy, Debug)]
pub struct OpenArgs {
    /// The opener's address.
    pub local: Addr,
    /// The acceptor's.
    pub peer: Addr,
    /// Network namespaces (inode numbers): opener's, acceptor's.
    pub netns: [u64; 2],
    /// The acceptor is a core that has to connect on the wire first.
    pub connecting: bool,
    /// The opener's status flags (O_NONBLOCK …).
    pub status: u32,
    /// Refuse if so many connections wait for accept already.
    pub backlog: u32,
    /// The opener is a core, which has the connection from the wire.
    pub from_core: bool,
    /// It comes from the port that the daemon has lent for the slot, and not from that of `local`. The slot is [`Arena::next_free`] from this
    /// one on ([`Arena::turn`]).
    pub lent: Option<u32>,
    /// Options of TCP: the opener's and, for those that a listener's connections inherit, the acceptor's.
    pub options: [Options; 2],
}

impl Default for OpenArgs {
    fn default() -> Self {
        OpenArgs {
            local: Addr::default(),
            peer: Addr::default(),
            netns: [0; 2],
            connecting: false,
            status: 0,
            backlog: u32::MAX,
            from_core: false,
            lent: None,
            options: [Options::default(); 2],
        }
    }
}

impl<'a> Channel<'a> {
    /// Opens a connection (side A): takes a slot, fills it, puts it into the inbox, tells who watches that. One
    /// reference. `OPEN` at once, or `CONNECTING` as `args` say.
    ///
    /// # Errors
    /// `ECONNREFUSED`: the arena is closed, or this is side B. `ENOBUFS`: no free slot. `EAGAIN`: the backlog is full.
    /// `EADDRNOTAVAIL`: no port is lent for the slot ([`OpenArgs::lent`]).
    /// `EINTR`: a signal handler interrupted its own thread's connect on this arena.
    pub fn open(arena: &'a Arena, args: &OpenArgs) -> Result<Self, Errno> {
        if arena.is_closed() || arena.side() != Side::A {
            return Err(Errno::CONNREFUSED);
        }
        let phase = if args.connecting { Phase::Connecting } else { Phase::Open };
        // A slot marked free whose state word says otherwise was tampered with: it stays marked as used.
        for _ in 0..8 {
            let slot = args.lent.map_or_else(|| arena.take_slot(), |from| arena.take_slot_from(from));
            let slot = slot.ok_or(Errno::NOBUFS)?;
            // Who follows and sees anything of what is written from here on sees that the slot is taken (`follow.rs`, 4): nothing on x86.
            fence(Release);
            let block = arena.block(slot);
            let seen = State(block.state.load(Acquire));
            if seen.phase() != Phase::Free {
                continue;
            }
            let local = match arena.lent_port(slot) {
                _ if args.lent.is_none() => args.local,
                0 => {
                    arena.give_slot(slot);
                    return Err(Errno::ADDRNOTAVAIL);
                }
                port => args.local.with_port(port),
            };
            let generation = seen.generation();
            let captured = arena.head().captured.load(Relaxed) != 0;
            prepare(block, first_map(arena, captured), args, local);
            if !args.from_core && !args.connecting && arena.defer() != 0 {
                block.own[Side::A.index()].flags.store(DEFERRED, Relaxed);
            }
            let mark = || {
                for own in &block.own {
                    own.flags.fetch_or(CAPTURED, Relaxed);
                }
            };
            if captured {
                mark();
            }
            if !args.from_core {
                // The acceptor's first wait is for who needs the CPU that both may share.
                block.inn[Side::A.index()].wake.cpu.store(wait::this_cpu(), Relaxed);
            }
            if block.state.compare_exchange(seen.0, State::new(generation, phase).0, AcqRel, Relaxed).is_err() {
                continue;
            }
            // Somebody who follows since has not seen that the slot is taken, or has marked it before it was prepared.
            sleep::barrier_after_swap();
            if !captured && arena.head().captured.load(Relaxed) != 0 {
                mark();
            }
            let channel = Channel { arena, block, slot, generation };
            channel.begin_own(args.status);
            let pushed = if channel.own().flags.load(Relaxed) & DEFERRED == 0 {
                let keep_out = || channel.keep_out();
                let lock = holder::lock(&arena.locks().inbox, Users::Several);
                lock.and_then(|held| arena.push(held, channel.entry(), args.backlog, keep_out))
            } else {
                Ok(())
            };
            if let Err(errno) = pushed {
                block.state.store(State::new(generation.wrapping_add(1), Phase::Free).0, Release);
                arena.give_slot(slot);
                return Err(errno);
            }
            // Who closes the arena refuses what it finds in the inbox afterwards: it has found this one, or it is taken back
            // here. (`push` ends with a full barrier.)
            if arena.is_closed() && channel.take_unaccepted() {
                block.state.store(State::new(generation.wrapping_add(1), Phase::Free).0, Release);
                arena.give_slot(slot);
                return Err(Errno::CONNREFUSED);
            }
            if args.lent.is_some() {
                arena.record_turn(slot);
            }
            return Ok(channel);
        }
        Err(Errno::NOBUFS)
    }

    /// Takes the oldest connection out of the inbox (side B). One reference. It may have been closed or reset by its
    /// opener already, as on the kernel. `None`: nobody waits.
    pub fn accept(arena: &'a Arena) -> Option<Self> {
        let mut vain = u32::MAX;
        Self::accept_within(arena, &mut vain)
    }

    /// [`Channel::accept`], but for so many entries at most that are no connection to accept: none's, others', or given up. Each counts
    /// one of them away. With none left there may be one behind them.
    pub fn accept_within(arena: &'a Arena, vain: &mut u32) -> Option<Self> {
        if arena.side() != Side::B {
            return None;
        }
        // Not more than fit: a hostile opener could go on pushing.
        for _ in 0..=arena.geometry().slots {
            if *vain == 0 {
                return None;
            }
            let (position, entry) = arena.oldest()?;
            let (slot, generation) = (entry as u32, (entry >> 32) as u32);
            let channel = Channel::with_generation(arena, slot, generation);
            let taken = channel.zip(channel.and_then(|channel| channel.take_for_accept()));
            if let Some((channel, _)) = taken {
                channel.begin_own(0);
                channel.own().refs.store(1, Release);
            }
            arena.pass(position);
            let next_gave_up = taken.is_some()
                && arena.pending() != 0
                && arena.oldest().is_some_and(|(_, entry)| {
                    let next = Channel::with_generation(arena, entry as u32, (entry >> 32) as u32);
                    next.and_then(|next| next.state()).is_some_and(|state| state.gave_up())
                });
            if next_gave_up {
                arena.drop_gave_up();
            }
            if arena.has_kept_out() {
                arena.admit();
            }
            *vain -= 1;
            let Some((channel, before)) = taken else { continue };
            if before.gave_up() && !channel.is_core() {
                // Nobody was told that it is connected.
                channel.abort_dead(None);
                continue;
            }
            return Some(channel);
        }
        None
    }

    /// The connection that [`Channel::accept`] would look at first, to look at it: others may take it meanwhile.
    pub fn next(arena: &'a Arena) -> Option<Self> {
        let (_, entry) = arena.oldest().filter(|_| arena.side() == Side::B)?;
        Channel::with_generation(arena, entry as u32, (entry >> 32) as u32)
    }

    /// As the inbox has it.
    pub(super) fn entry(&self) -> u64 {
        u64::from(self.slot()) | u64::from(self.generation()) << 32
    }

    pub(crate) fn is_core(&self) -> bool {
        self.own().flags.load(Relaxed) & CORE != 0
    }

    /// There is no room in the acceptor's queue: it is still being made. Before anybody else knows of it.
    fn keep_out(&self) {
        self.change(|state| (state.phase() == Phase::Open).then(|| state.with_phase(Phase::Connecting)));
    }

    /// There is room now; true for one caller.
    pub(crate) fn let_in(&self) -> bool {
        let is_waiting = |state: State| state.phase() == Phase::Connecting && !state.gave_up() && !state.is_accepted();
        let before = self.change(|state| is_waiting(state).then(|| state.with_phase(Phase::Open)));
        if before.is_some() {
            self.notify(Side::A, true, true);
        }
        before.is_some()
    }

    /// Marks it as accepted, for one caller, who is told what it was. One that was kept out is connected by that.
    fn take_for_accept(&self) -> Option<State> {
        let is_core = self.is_core();
        let before = self.change(|state| {
            let connects = !is_core && state.phase() == Phase::Connecting && !state.gave_up();
            let next = if connects { state.with_phase(Phase::Open) } else { state };
            (!state.is_accepted() && !state.is_closed(Side::B)).then(|| next.with(ACCEPTED))
        })?;
        if before.phase() == Phase::Connecting && !is_core {
            self.notify(Side::A, true, true);
        }
        Some(before)
    }

    /// TCP_DEFER_ACCEPT: whether it is kept from its acceptor, for so many milliseconds yet at most.
    pub fn deferred(&self) -> Option<u32> {
        (self.own().flags.load(Relaxed) & DEFERRED != 0).then(|| self.arena().defer())
    }

    /// It is kept from its acceptor no longer, as it has something to say.
    #[cold]
    pub(super) fn announce_deferred(&self, locks: Locks) {
        if self.own().flags.fetch_and(!DEFERRED, SeqCst) & DEFERRED == 0 {
            return;
        }
        let word = &self.arena().locks().inbox;
        let held = match locks {
            Locks::Take => holder::lock(word, Users::Several).ok(),
            Locks::Break => holder::try_lock(word),
        };
        let Some(held) = held else {
            // A signal handler that interrupted its own thread's connect, or a process that is gone: at the next occasion.
            self.own().flags.fetch_or(DEFERRED, SeqCst);
            return;
        };
        // Without a limit there is room for all that have a slot.
        let _pushed = self.arena().push(held, self.entry(), u32::MAX, || {});
        self.arena().notify_inbox(self.slot(), 0);
        // As in `open`.
        if self.arena().is_closed() && self.take_unaccepted() {
            let (peer, ends) = (Side::B, closed_bit(Side::B) | reset_bit(Side::B));
            self.change(|state| (!state.is_closed(peer)).then(|| state.with(ends)));
        }
    }

    /// What this side alone has, in the slot's new life. A process that was killed after it had closed its side may have left its locks
    /// held.
    fn begin_own(&self, status: u32) {
        let SlotLocks { receive, send, life, status: flags, rcvlowat, several, user, port: _, _pad } = self.locks();
        life.store(self.generation(), Relaxed);
        flags.store(status, Relaxed);
        for word in [rcvlowat, several] {
            word.store(0, Relaxed);
        }
        user.iter().for_each(|word| word.store(0, Relaxed));
        for lock in [receive, send] {
            let holder = lock.load(Relaxed);
            // A thread of this process has a handle of the life before, and gives it back.
            if holder != 0 && holder >> 32 != u64::from(holder::attachment()) {
                lock.store(0, Relaxed);
            }
        }
    }

    /// Marks it as accepted; true for one caller.
    pub(crate) fn take_unaccepted(&self) -> bool {
        self.change(|state| (!state.is_accepted()).then(|| state.with(ACCEPTED))).is_some()
    }

    /// The connection is made (the core that connects, side B): the addresses as side A shall see them.
    pub fn set_connected(&self, local_of_a: Addr, peer_of_a: Addr) {
        local_of_a.store(&self.block().addr[Side::A.index()]);
        peer_of_a.store(&self.block().addr[Side::B.index()]);
        self.change(|state| (state.phase() == Phase::Connecting).then(|| state.with_phase(Phase::Open)));
        self.notify(self.side().other(), true, true);
    }

    /// The connection could not be made (the core that connects, side B); side A finds `errno` in SO_ERROR.
    pub fn set_failed(&self, errno: Errno) {
        let errno = errno.raw_os_error() as u16;
        self.change(|state| {
            (state.phase() == Phase::Connecting).then(|| state.with_phase(Phase::Failed).with_errno(errno))
        });
        self.notify(self.side().other(), true, true);
    }

    /// [`Channel::set_failed`] of a connection that was kept out, for side A.
    pub(super) fn fail_connecting(&self, errno: Errno) {
        let errno = errno.raw_os_error() as u16;
        let fail = |state: State| state.with_phase(Phase::Failed).with_errno(errno).with(closed_bit(Side::B));
        self.change(|state| (state.phase() == Phase::Connecting && !state.is_accepted()).then(|| fail(state)));
        self.notify(Side::A, true, true);
    }

    /// Changes the state word unless the handle is stale; `None` from `f` leaves it. Returns what was before.
    pub(crate) fn change(&self, mut f: impl FnMut(State) -> Option<State>) -> Option<State> {
        let word = &self.block().state;
        let mut seen = word.load(Acquire);
        loop {
            let state = State(seen);
            if state.generation() != self.generation || state.phase() == Phase::Free {
                return None;
            }
            match word.compare_exchange_weak(seen, f(state)?.0, AcqRel, Acquire) {
                Ok(_) => return Some(state),
                Err(now) => seen = now,
            }
        }
    }
}

/// The rings that a connection begins with: small, or, where somebody follows the arena and there is memory, as large as a slot has,
/// so that what it has sent is there for a while.
fn first_map(arena: &Arena, captured: bool) -> Map {
    let geometry = arena.geometry();
    let most = geometry.ring_max_log2();
    let is_large = captured && arena.bells().may_use(2 << most);
    Map::uniform(if is_large { most } else { geometry.ring_log2 })
}

/// Sets a free block to that of a new connection. What each side alone has it begins by itself ([`Channel::begin_own`]).
fn prepare(block: &Block, map: Map, args: &OpenArgs, local: Addr) {
    let Block { state: _, netns, _pad, addr, out, inn, tx, own, wish } = block;
    for side in 0..2 {
        netns[side].store(args.netns[side], Relaxed);
        let out = &out[side];
        let rare = [&out.rare.urgent, &out.rare.more, &out.rare.skipped];
        for word in [&out.hot.tail, &out.hot.ack, &out.hot.inline_at].into_iter().chain(rare) {
            word.store(0, Relaxed);
        }
        out.rare.map.store(map.to_word(), Relaxed);
        out.rare.large.store(0, Relaxed);
        tx[side].lease.store(0, Relaxed);
        tx[side].short.store(0, Relaxed);
        out.rare.fin.store(0, Relaxed);
        out.rare.want_space.store(0, Relaxed);
        out.rare.pushed.store(0, Relaxed);
        out.rare.asks.store(0, Relaxed);
        args.options[side].put(&wish[side]);
        let inn = &inn[side];
        inn.hot.head.store(0, Relaxed);
        inn.hot.urgent_read.store(0, Relaxed);
        inn.hot.sent_before.store(u64::MAX, Relaxed);
        for word in [&inn.wake.watch, &inn.wake.rx_sleep, &inn.wake.tx_sleep, &inn.wake.cpu] {
            word.store(0, Relaxed);
        }
        tx[side].head_seen.store(0, Relaxed);
        tx[side].due.store(0, Relaxed);
        tx[side].held.store(0, Relaxed);
        tx[side].writer.store(0, Relaxed);
        let own = &own[side];
        for word in [&own.refs, &own.telling, &own.error, &own.flags] {
            word.store(0, Relaxed);
        }
        own.buffers.iter().for_each(|bytes| bytes.store(0, Relaxed));
    }
    local.store(&addr[Side::A.index()]);
    args.peer.store(&addr[Side::B.index()]);
    own[Side::A.index()].refs.store(1, Relaxed);
    for (side, is_core) in [(Side::A, args.from_core), (Side::B, args.connecting)] {
        if is_core {
            own[side.index()].flags.store(CORE, Relaxed);
            // It takes bytes for TCP, which has a buffer of its own behind it.
            own[side.index()].buffers[1].store(1, Relaxed);
        }
    }
}
