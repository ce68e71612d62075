//! A channel: one connection, seen from one side, with the socket calls' meaning.
//!
//! All calls return at once; who wants to wait uses [`crate::wait`] or a lane. Errors are the errno that the kernel
//! gives for a TCP socket in the same situation. A [`Channel`] is a handle (arena, slot, generation): copying it
//! counts nothing. What counts are the side's references, one for each descriptor in each process: [`Channel::retain`]
//! at dup and fork, [`Channel::close`] at close. A handle whose slot was freed and used again answers `EBADF`.

mod close;
mod due;
mod io;
mod open;
mod options;
mod port;
mod ready;
mod short;
pub mod sockopt;
pub mod state;
#[cfg(test)]
mod tests;

use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::fence;

use rustix::io::Errno;

pub use self::close::Shutdown;
pub use self::due::now;
pub use self::io::{Marks, Reading, RecvFlags, Writing};
pub use self::open::OpenArgs;
pub use self::options::{Algorithm, Answer, INFO, Options};
pub use self::port::{PortUse, Waits};
pub use self::ready::Readiness;
use self::state::State;
use crate::addr::Addr;
use crate::arena::Arena;
use crate::holder::{self, Users};
use crate::lanes::{Changes, Lane, set_bit};
use crate::layout::{Block, Out, OutPair, Side, SideOwn, SlotLocks};
use crate::ring::{Broken, DEFAULT_BUFFERS, Ring};
use crate::sleep;

/// `SideOwn::flags`: shutdown(SHUT_RD) was called.
pub(crate) const RCV_SHUT: u32 = 1;
/// `SideOwn::flags`: nothing more may be sent.
pub(crate) const SND_SHUT: u32 = 2;
/// `SideOwn::flags`: the peer's reset was taken notice of.
pub(crate) const RESET_SEEN: u32 = 4;
/// `SideOwn::flags`: SO_OOBINLINE.
pub(crate) const OOB_INLINE: u32 = 8;
/// `SideOwn::flags`: the side is a core of the daemon.
pub(crate) const CORE: u32 = 16;
/// `SideOwn::flags`: it is not in the inbox yet, as its opener has said nothing (TCP_DEFER_ACCEPT).
pub(crate) const DEFERRED: u32 = 64;
/// `SideOwn::flags`: TCP_CORK.
pub(crate) const CORKED: u32 = 128;
/// `SideOwn::flags`: some bytes are held back.
pub(crate) const HOLDING: u32 = 256;
/// `SideOwn::flags`: a call had not room for all of its bytes, and the next one may be for the rest of them.
pub(crate) const CUT: u32 = 8192;
/// `SideOwn::flags`: it has ended its direction before the peer did.
pub(crate) const ENDED_FIRST: u32 = 512;
/// `SideOwn::flags`: the connection is followed, so this side writes nothing inline, where the next message would overwrite it.
pub(crate) const CAPTURED: u32 = 1024;
/// `SideOwn::flags`: SO_REUSEADDR was set on the connection, or taken away; neither: it is as its listener has it.
pub(crate) const SHARES: u32 = 2048;
pub(crate) const SHARES_NOT: u32 = 4096;

/// O_NONBLOCK.
const NONBLOCK: u32 = rustix::fs::OFlags::NONBLOCK.bits();

impl SlotLocks {
    /// Who can meet at the locks.
    #[inline]
    pub(crate) fn users(&self) -> Users {
        if self.several.load(Relaxed) == 0 { Users::One } else { Users::Several }
    }
}

/// A handle to one side of a channel: three words, copied freely.
#[derive(Clone, Copy)]
pub struct Channel<'a> {
    arena: &'a Arena,
    block: &'a Block,
    slot: u32,
    generation: u32,
}

impl std::fmt::Debug for Channel<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Channel({:?} of slot {}, {:?})", self.side(), self.slot, State(self.block.state.load(Acquire)))
    }
}

impl<'a> Channel<'a> {
    /// The channel that lives in `slot` now, as an inherited or passed descriptor names it. References are not
    /// touched. `None`: no such slot, or free.
    pub fn at(arena: &'a Arena, slot: u32) -> Option<Self> {
        if slot >= arena.geometry().slots {
            return None;
        }
        let block = arena.block(slot);
        let state = State(block.state.load(Acquire));
        let generation = state.generation();
        (state.phase() != state::Phase::Free).then_some(Channel { arena, block, slot, generation })
    }

    /// The slot, whatever lives in it: for its locks.
    pub(crate) fn in_any_life(arena: &'a Arena, slot: u32) -> Option<Self> {
        let stale = Self::with_generation(arena, slot, 0)?;
        Some(Channel { generation: State(stale.block.state.load(Acquire)).generation(), ..stale })
    }

    /// The handle that was taken apart into slot and generation. `None`: no such slot. Whether it is stale, each call
    /// finds out by itself.
    #[inline]
    pub fn with_generation(arena: &'a Arena, slot: u32, generation: u32) -> Option<Self> {
        (slot < arena.geometry().slots).then(|| Channel { arena, block: arena.block(slot), slot, generation })
    }

    /// The arena.
    pub fn arena(&self) -> &'a Arena {
        self.arena
    }

    /// The slot's number.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The slot's generation that this handle means.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Own side.
    #[inline]
    pub fn side(&self) -> Side {
        self.arena.side()
    }

    /// `None`: the slot was freed, and perhaps used again.
    #[inline]
    pub fn state(&self) -> Option<State> {
        let state = State(self.block().state.load(Acquire));
        (state.generation() == self.generation && state.phase() != state::Phase::Free).then_some(state)
    }

    /// `EBADF` if the handle is stale or this side has closed.
    #[inline]
    pub(crate) fn live(&self) -> Result<State, Errno> {
        self.state().filter(|state| !state.is_closed(self.side())).ok_or(Errno::BADF)
    }

    /// Whether somebody holds this side.
    pub fn is_held(&self) -> bool {
        self.live().is_ok()
    }

    /// Own address.
    pub fn local_addr(&self) -> Addr {
        Addr::load(&self.block().addr[self.side().index()])
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> Addr {
        Addr::load(&self.block().addr[self.side().other().index()])
    }

    /// Network namespaces (inode numbers) of this side and of the peer, as the opener wrote them.
    pub fn netns(&self) -> (u64, u64) {
        let netns = &self.block().netns;
        (netns[self.side().index()].load(Relaxed), netns[self.side().other().index()].load(Relaxed))
    }

    /// Counts one more descriptor of this side in the same process: dup.
    pub fn retain(&self) {
        self.own().refs.fetch_add(1, SeqCst);
    }

    /// Counts one more descriptor of this side in another process: one that is passed, fork (for each entry). Before that
    /// process can use it, and while the one that gives it makes no call on it (it waits for the daemon's answer).
    pub fn retain_for_other(&self) {
        self.locks().several.store(1, SeqCst);
        self.retain();
    }

    /// Whether another process holds this side too, or did once.
    pub fn was_shared(&self) -> bool {
        self.locks().users() == Users::Several
    }

    /// Descriptors of this side.
    pub fn refs(&self) -> u32 {
        self.own().refs.load(Acquire)
    }

    /// Status flags (O_NONBLOCK, O_ASYNC …), shared by all descriptors of this side. Where this side has another connection in the slot
    /// already, whatever the state word says, no call waits for this one.
    pub fn status(&self) -> u32 {
        let locks = self.locks();
        if locks.life.load(Relaxed) == self.generation { locks.status.load(Relaxed) } else { NONBLOCK }
    }

    /// Sets the status flags in `mask` to those in `flags`.
    pub fn set_status(&self, mask: u32, flags: u32) {
        let locks = self.locks();
        if locks.life.load(Relaxed) != self.generation {
            return;
        }
        let status = &locks.status;
        if flags & mask != 0 {
            status.fetch_or(flags & mask, SeqCst);
        }
        status.fetch_and(flags | !mask, SeqCst);
    }

    /// SO_RCVLOWAT: readable from so many bytes on (0 counts as 1; at most half of the largest ring).
    pub fn set_rcvlowat(&self, bytes: u32) {
        let max = 1u32 << (self.arena.geometry().ring_max_log2() - 1);
        self.locks().rcvlowat.store(bytes.min(max), Relaxed);
    }

    /// SO_RCVLOWAT, at least 1.
    pub fn rcvlowat(&self) -> usize {
        self.locks().rcvlowat.load(Relaxed).max(1) as usize
    }

    /// So many unread bytes make it readable: SO_RCVLOWAT, or all that there is room for, as the peer has said, so that no more
    /// come before some are read (tcp_epollin_ready() of the kernel: the window is about to close). The last bytes of a call that
    /// had to wait for room do too: the kernel's sender has taken all of them in before.
    #[inline]
    pub(crate) fn is_enough(&self, unread: u64) -> bool {
        unread >= self.rcvlowat() as u64 || unread != 0 && self.is_pushed()
    }

    fn is_pushed(&self) -> bool {
        let rx = self.rx();
        let pushed = rx.rare.pushed.load(SeqCst);
        let ahead = || pushed.wrapping_sub(rx.inn.head.load(Relaxed)).cast_signed() > 0;
        rx.rare.want_space.load(SeqCst) != 0 || pushed == u64::MAX || ahead()
    }

    /// The peer has said that nothing more comes (FIN); bytes may be unread still.
    pub fn has_ended(&self) -> bool {
        self.rx().rare.fin.load(Acquire) != 0
    }

    /// The connection was reset, by either side.
    pub fn is_reset(&self) -> bool {
        let by_state = self.state().is_none_or(|state| state.is_reset(Side::A) || state.is_reset(Side::B));
        by_state || self.own().flags.load(Acquire) & RESET_SEEN != 0
    }

    /// TCP_CORK between processes: bytes that do not fill a segment are held back until it is taken off.
    pub fn set_cork(&self, on: bool) {
        if on {
            // The daemon may come to the send lock from here on.
            self.locks().several.store(1, SeqCst);
            self.own().flags.fetch_or(CORKED, SeqCst);
        } else if self.own().flags.fetch_and(!CORKED, SeqCst) & CORKED != 0 {
            self.let_go();
        }
    }

    /// Whether bytes are held back.
    #[inline]
    pub fn is_holding(&self) -> bool {
        self.own().flags.load(Relaxed) & HOLDING != 0
    }

    /// Bytes that are held back.
    pub fn held(&self) -> usize {
        self.tx().held() as usize
    }

    /// Nothing is held back any more.
    #[cold]
    pub fn let_go(&self) {
        if self.is_holding()
            && let Ok(_held) = self.lock_send()
        {
            self.let_go_locked();
        }
    }

    /// [`Channel::let_go`] for who has the send lock.
    pub(crate) fn let_go_locked(&self) {
        self.own().flags.fetch_and(!HOLDING, SeqCst);
        self.tx().tx.due.store(0, Relaxed);
        let reset = self.tx().held() != 0 && self.state().is_some_and(|state| self.is_answered_by_reset(state));
        if !reset && self.tx().let_go() {
            self.announce_deferred_now();
            self.notify_published(self.side().other(), true, false);
        }
    }

    /// SO_OOBINLINE.
    pub fn set_oob_inline(&self, on: bool) {
        if on {
            self.own().flags.fetch_or(OOB_INLINE, SeqCst);
        } else {
            self.own().flags.fetch_and(!OOB_INLINE, SeqCst);
        }
    }

    /// SO_REUSEADDR.
    pub fn set_shares(&self, on: bool) {
        let (is, is_not) = if on { (SHARES, SHARES_NOT) } else { (SHARES_NOT, SHARES) };
        self.own().flags.fetch_or(is, SeqCst);
        self.own().flags.fetch_and(!is_not, SeqCst);
    }

    /// SO_SNDBUF (`sending`) or SO_RCVBUF, as getsockopt(2) gives it: bounds what may be unread from now on, together with the
    /// peer's. Writers that wait for room look again if there is more of it.
    pub fn set_buffer(&self, sending: bool, bytes: u32) {
        let place = usize::from(!sending);
        let before = match self.own().buffers[place].swap(bytes, SeqCst) {
            0 => DEFAULT_BUFFERS[place],
            before => before,
        };
        if bytes > before {
            self.notify(if sending { self.side() } else { self.side().other() }, false, true);
        }
    }

    /// Who waits for room to write on this side looks again.
    pub fn rouse_writers(&self) {
        self.notify(self.side(), false, true);
    }

    /// The port that the opener's connections in this slot come from, by the daemon's word; 0: none.
    pub fn lent_port(&self) -> u16 {
        self.arena.lent_port(self.slot)
    }

    /// Three words for the owner of this side, whose peer has no part in them; 0 when the channel is new.
    pub fn user(&self) -> &[crate::word::AtomicU64; 3] {
        &self.locks().user
    }

    /// The lane hears of this channel from now on. Look at [`Channel::readiness`] after it: what happened before is
    /// not told.
    pub fn watch(&self, lane: Lane) {
        set_bit(&self.block().inn[self.side().index()].wake.watch, lane, true);
        fence(SeqCst);
    }

    /// The lane hears of this channel no more.
    pub fn unwatch(&self, lane: Lane) {
        set_bit(&self.block().inn[self.side().index()].wake.watch, lane, false);
    }

    /// Frees the locks of this side that a dead attachment holds (the daemon; after the process is gone, or has exec'ed). Whether there
    /// was one: it ended in the middle of a call.
    pub fn break_locks(&self, attachment: u32) -> bool {
        let locks = self.locks();
        let received = holder::break_lock(&locks.receive, attachment);
        let sent = holder::is_of(&locks.send, attachment);
        if sent {
            // First: whoever gets the lock marks again.
            self.writer().store(0, SeqCst);
            holder::break_lock(&locks.send, attachment);
        }
        received || sent
    }

    /// Frees the locks of this side that this very thread holds, which has jumped out of the call that took them.
    pub fn break_own_locks(&self) {
        let locks = self.locks();
        holder::break_own(&locks.receive);
        if holder::is_own(&locks.send) {
            self.writer().store(0, SeqCst);
            holder::break_own(&locks.send);
        }
    }

    /// Gives back so many references of a process that is gone (the daemon), and wakes those who may wait for what it was in the middle
    /// of; `interrupted`: it held a lock. Where others hold the side still and all was told there is nothing to tell lanes, and an edge
    /// in vain would be one that the kernel does not give: who publishes bytes or room tells of it before the lock is let go.
    pub fn release_gone(&self, references: u32, interrupted: bool) {
        let was_last = self.release_dead(references);
        if was_last || interrupted || !self.has_told() {
            self.rouse();
        } else {
            [Side::A, Side::B].into_iter().for_each(|side| self.rouse_waiters(side));
        }
    }

    /// Made, and no process can have ended with something of it published and not told. Of a close, and of a reset that it was, the state
    /// says whether it was; of another reset and of an error nothing does.
    fn has_told(&self) -> bool {
        let has_told_of = |state: State, side: Side| {
            let own = &self.block().own[side.index()];
            let ends = if state.is_closed(side) { state.is_told(side) } else { !state.is_reset(side) };
            let fails = own.flags.load(Acquire) & RESET_SEEN != 0 || own.error.load(Acquire) != 0;
            // It is what its peer's close has left behind.
            let is_reset_by_close = state.is_closed(side.other()) && state.is_reset(side.other());
            own.telling.load(SeqCst) == 0 && ends && (!fails || is_reset_by_close)
        };
        let is_made = |state: &State| state.phase() == state::Phase::Open;
        let all_told = |state| has_told_of(state, Side::A) && has_told_of(state, Side::B);
        self.state().filter(is_made).is_some_and(all_told)
    }

    /// Tells who waits that one side has closed, if it is not known that they were told: who has closed it may have ended before he did
    /// (the daemon). Whether there was something to tell.
    pub fn tell_end(&self) -> bool {
        let untold = |state: State| state.half_closed().filter(|side| !state.is_told(*side));
        let Some(side) = self.state().and_then(untold) else { return false };
        self.rouse();
        self.change(|state| Some(state.with(state::told_bit(side))));
        true
    }

    /// Wakes everybody who may wait on either side, whatever the flags say: one that had taken a flag has died before it woke
    /// whom the flag was of (the daemon).
    pub fn rouse(&self) {
        for side in [Side::A, Side::B] {
            self.rouse_waiters(side);
            let watch = self.block().inn[side.index()].wake.watch.load(SeqCst);
            self.arena.mark(side, watch, self.slot, Changes::ALL);
        }
    }

    /// The same of those who sleep on the channel itself: they look again, which nobody else sees.
    fn rouse_waiters(&self, side: Side) {
        let wake = &self.block().inn[side.index()].wake;
        for (flag, word) in [(&wake.rx_sleep, &wake.rx_word), (&wake.tx_sleep, &wake.tx_word)] {
            flag.store(0, SeqCst);
            word.fetch_add(1, SeqCst);
            crate::futex::wake_all(word);
        }
    }

    /// Wakes whoever waits on `side`, for reading, writing or in a lane; after a change was published.
    #[inline]
    pub(crate) fn notify(&self, side: Side, readers: bool, writers: bool) {
        fence(SeqCst);
        self.notify_published(side, readers, writers);
    }

    /// [`Channel::notify`] after a publication that was sequentially consistent, as each load here is (`sleep.rs`).
    #[inline]
    pub(crate) fn notify_published(&self, side: Side, readers: bool, writers: bool) {
        let wake = &self.block().inn[side.index()].wake;
        if readers && sleep::claim(&wake.rx_sleep) {
            wake.rx_word.fetch_add(1, SeqCst);
            crate::futex::wake_all(&wake.rx_word);
        }
        if writers && sleep::claim(&wake.tx_sleep) {
            wake.tx_word.fetch_add(1, SeqCst);
            crate::futex::wake_all(&wake.tx_word);
        }
        let watch = wake.watch.load(SeqCst);
        if watch != 0 {
            self.arena.mark(side, watch, self.slot, Changes::new(readers, writers));
        }
    }

    #[inline]
    pub(crate) fn block(&self) -> &'a Block {
        self.block
    }

    /// This side's locks, and what says how its calls wait.
    #[inline]
    pub(crate) fn locks(&self) -> &'a SlotLocks {
        self.arena.slot_locks(self.slot)
    }

    /// The mark of who has the send lock of this side.
    #[inline]
    pub(crate) fn writer(&self) -> &'a crate::word::AtomicU64 {
        &self.block().tx[self.side().index()].writer
    }

    #[inline]
    pub(crate) fn own(&self) -> &'a SideOwn {
        &self.block().own[self.side().index()]
    }

    /// The direction that `producer` writes.
    #[inline]
    pub(crate) fn ring(&self, producer: Side) -> Ring<'a> {
        let block = self.block();
        let (p, c) = (producer.index(), producer.other().index());
        Ring {
            arena: self.arena,
            base: self.arena.ring_offset(self.slot, producer),
            inline: self.arena.block_offset(self.slot)
                + offset_of!(Block, out)
                + p * size_of::<OutPair>()
                + offset_of!(Out, inline),
            out: &block.out[p].hot,
            rare: &block.out[p].rare,
            tx: &block.tx[p],
            inn: &block.inn[c].hot,
            back: &block.out[c].hot,
            ack: &block.inn[p].hot,
            buffers: [&block.own[p].buffers[0], &block.own[c].buffers[1]],
        }
    }

    /// The direction that this side reads.
    #[inline]
    pub(crate) fn rx(&self) -> Ring<'a> {
        self.ring(self.side().other())
    }

    /// The direction that this side writes.
    #[inline]
    pub(crate) fn tx(&self) -> Ring<'a> {
        self.ring(self.side())
    }

    /// Resets a channel whose memory makes no sense.
    #[cold]
    pub(crate) fn broken(&self, _: Broken) -> Errno {
        self.reset_both(Errno::CONNRESET);
        self.take_error().unwrap_or(Errno::CONNRESET)
    }
}
