//! An arena: the memory shared by one opener and one acceptor group, as one side maps it.

use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::fence;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::bell::Bells;
use crate::channel::CAPTURED;
use crate::layout::{Block, Geometry, Head, LaneHead, Lanes, LocksHead, MAGIC, Marks, Side, SlotLocks, VERSION};
use crate::region_unsafe::{NOTHING_BESIDE, Region};
use crate::word::AtomicU64;

/// What an arena is made of: sealed memfds.
#[derive(Debug)]
pub struct Memory {
    /// What both sides map.
    pub shared: OwnedFd,
    /// The locks of each side, which the other one does not map.
    pub locks: [OwnedFd; 2],
}

impl Memory {
    /// What the holders of `side` map.
    pub fn of(&self, side: Side) -> [BorrowedFd<'_>; 2] {
        [self.shared.as_fd(), self.locks[side.index()].as_fd()]
    }
}

/// One side's mapping of an arena; unmapped on drop. Allocates nothing: a process may place it where it likes.
pub struct Arena {
    region: Region,
    geometry: Geometry,
    /// Offsets of the lanes, of the blocks, of the rings and of the large rings: computed once.
    lanes: Lanes,
    blocks: usize,
    rings: usize,
    larges: usize,
    side: Side,
    bells: &'static dyn Bells,
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("geometry", &self.geometry).field("side", &self.side).finish_non_exhaustive()
    }
}

impl Arena {
    /// Makes an arena's memfds: sized, initialised, sealed (the daemon).
    ///
    /// # Errors
    /// `EINVAL`: the geometry is not valid. Those of memfd_create(2), ftruncate(2), pwrite(2).
    pub fn create(name: &str, geometry: Geometry) -> Result<Memory, Errno> {
        if !geometry.is_valid() {
            return Err(Errno::INVAL);
        }
        let mut head = [0; 24];
        head[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        head[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        head[16..].copy_from_slice(&geometry.to_word().to_ne_bytes());
        let locks = || sealed_memfd("fastsock-locks", geometry.locks_bytes(), &[]);
        Ok(Memory { shared: sealed_memfd(name, geometry.bytes(), &head)?, locks: [locks()?, locks()?] })
    }

    /// Writes the daemon's number of an arena into it: what it is told by [`Bells::trim`].
    ///
    /// # Errors
    /// Those of pwrite(2).
    pub fn set_number(fd: BorrowedFd<'_>, number: u32) -> Result<(), Errno> {
        rustix::io::pwrite(fd, &number.to_ne_bytes(), offset_of!(Head, number) as u64).map(drop)
    }

    /// Says which port connections of a slot come from, 0: none (the daemon). It stands with the locks of each side, `locks`, so no side
    /// can tell the other a different one. Side A has it only while side B has it too: another thread of the opener may take the slot at
    /// once, and an acceptor whose word differs resets the connection.
    ///
    /// # Errors
    /// `EINVAL`: no such slot. Those of pwrite(2); then side A has no port that side B has not.
    pub fn set_port(locks: [BorrowedFd<'_>; 2], geometry: Geometry, slot: u32, port: u16) -> Result<(), Errno> {
        if slot >= geometry.slots {
            return Err(Errno::INVAL);
        }
        let at = geometry.slot_locks(slot) + offset_of!(SlotLocks, port);
        let write = |side: Side, port: u16| {
            let written = rustix::io::pwrite(locks[side.index()], &u32::from(port).to_ne_bytes(), at as u64).map(drop);
            // Nothing else orders what two memfds say to who maps both.
            fence(SeqCst);
            written
        };
        if port == 0 {
            return write(Side::A, 0).and_then(|()| write(Side::B, 0));
        }
        write(Side::B, port)?;
        write(Side::A, port).inspect_err(|_| {
            // It has had room for that word just now.
            let _taken_back = write(Side::B, 0);
        })
    }

    /// Maps an arena as `side`: its memory and that side's locks ([`Memory::of`]). `geometry` as the control plane told it.
    /// `bells`: of the process.
    ///
    /// # Errors
    /// `EINVAL`: not an arena of this version, not sealed, too short, or the geometry is not valid. Those of mmap(2).
    pub fn map(
        memory: [BorrowedFd<'_>; 2],
        geometry: Geometry,
        side: Side,
        bells: &'static dyn Bells,
    ) -> Result<Self, Errno> {
        let [shared, locks] = memory;
        Self::map_in_turn(shared, || Ok(locks), geometry, side, bells)
    }

    /// The same with one descriptor after the other: `locks` gives the second once the first is closed.
    ///
    /// # Errors
    /// As [`Arena::map`]; those of `locks`.
    pub fn map_in_turn<Locks: AsFd>(
        shared: impl AsFd,
        locks: impl FnOnce() -> Result<Locks, Errno>,
        geometry: Geometry,
        side: Side,
        bells: &'static dyn Bells,
    ) -> Result<Self, Errno> {
        let arena = Self::map_unchecked(shared, locks, geometry, side, bells)?;
        let head = arena.head();
        if head.magic.load(Relaxed) != MAGIC || head.version.load(Relaxed) != VERSION {
            return Err(Errno::INVAL);
        }
        Ok(arena)
    }

    /// [`Arena::map`] for the daemon, which has made the memfd itself: processes may have scribbled on its head since.
    ///
    /// # Errors
    /// As [`Arena::map`], but for what the head says.
    pub fn map_own(
        [shared, locks]: [BorrowedFd<'_>; 2],
        geometry: Geometry,
        side: Side,
        bells: &'static dyn Bells,
    ) -> Result<Self, Errno> {
        Self::map_unchecked(shared, || Ok(locks), geometry, side, bells)
    }

    fn map_unchecked<Locks: AsFd>(
        shared: impl AsFd,
        locks: impl FnOnce() -> Result<Locks, Errno>,
        geometry: Geometry,
        side: Side,
        bells: &'static dyn Bells,
    ) -> Result<Self, Errno> {
        if !geometry.is_valid() {
            return Err(Errno::INVAL);
        }
        // The rings by themselves: see `retire`.
        let beside = Some((locks, geometry.locks_bytes()));
        let region = Region::map_split(shared, geometry.bytes(), geometry.rings(), true, beside)?;
        let (lanes, blocks) = (geometry.lanes(), geometry.blocks());
        let (rings, larges) = (geometry.rings(), geometry.large_rings());
        Ok(Arena { region, geometry, lanes, blocks, rings, larges, side, bells })
    }

    /// Maps an arena for who only reads it ([`crate::follow`]), and never takes a lock.
    pub(crate) fn map_to_read(fd: BorrowedFd<'_>, geometry: Geometry) -> Result<Self, Errno> {
        if !geometry.is_valid() {
            return Err(Errno::INVAL);
        }
        let region = Region::map_split(fd, geometry.bytes(), geometry.rings(), false, NOTHING_BESIDE)?;
        let (lanes, blocks) = (geometry.lanes(), geometry.blocks());
        let (rings, larges) = (geometry.rings(), geometry.large_rings());
        Ok(Arena { region, geometry, lanes, blocks, rings, larges, side: Side::A, bells: &crate::bell::NoBells })
    }

    /// Somebody follows the arena from here on, or nobody does any more (the daemon): its connections are marked, so that what they
    /// carry can be seen.
    pub fn set_captured(&self, on: bool) {
        // New ones first: those that begin meanwhile are marked by who opens them, or below.
        self.head().captured.store(u32::from(on), SeqCst);
        fence(SeqCst);
        for slot in 0..self.geometry.slots {
            let taken = self.slot_map()[(slot / 64) as usize].load(Acquire) >> (slot % 64) & 1 != 0;
            for own in self.block(slot).own.iter().filter(|_| taken) {
                if on {
                    own.flags.fetch_or(CAPTURED, SeqCst);
                } else {
                    own.flags.fetch_and(!CAPTURED, SeqCst);
                }
            }
        }
    }

    /// Both sides of an arena in ordinary memory, for Miri.
    #[cfg(test)]
    pub(crate) fn in_memory(geometry: Geometry, bells: &'static dyn Bells) -> (Self, Self) {
        let (a, b) = Region::in_memory(geometry.bytes(), geometry.locks_bytes());
        let (lanes, blocks) = (geometry.lanes(), geometry.blocks());
        let (rings, larges) = (geometry.rings(), geometry.large_rings());
        let arena = |region, side| Arena { region, geometry, lanes, blocks, rings, larges, side, bells };
        (arena(a, Side::A), arena(b, Side::B))
    }

    /// The side that this mapping acts as.
    #[inline]
    pub fn side(&self) -> Side {
        self.side
    }

    /// As told by the control plane.
    #[inline]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Takes no more new channels: the listener was closed, or a side is gone. Those that are open stay.
    pub fn close(&self) {
        self.head().closed.store(1, SeqCst);
        self.notify_end();
        // Whoever took the flag and has ended before it woke anybody.
        self.head().inbox_word.fetch_add(1, SeqCst);
        crate::futex::wake_all(&self.head().inbox_word);
    }

    /// Whether [`Arena::close`] was called by anyone.
    pub fn is_closed(&self) -> bool {
        // In this order: what was retired reads as zeros.
        self.head().closed.load(Acquire) != 0 || self.region.is_retired()
    }

    /// Nothing is opened any more and nothing is in use: the memory goes back, and its address space nearly all. Those
    /// who still look at it see an arena that is closed and without connections.
    pub fn retire(&self) {
        self.region.retire();
    }

    /// Whether [`Arena::retire`] has given its memory back.
    pub fn is_retired(&self) -> bool {
        self.region.is_retired()
    }

    /// Some time after [`Arena::retire`]: those who looked at it last have written there (a poller that leaves its lane), in
    /// memory of this process alone, which goes back too.
    pub fn clear_retired(&self) {
        self.region.clear_retired();
    }

    /// Slots in use now, or waiting for their second side to close.
    pub fn used(&self) -> u32 {
        self.slot_map().iter().map(|word| word.load(Relaxed).count_ones()).sum()
    }

    /// Takes the lowest free slot.
    pub(crate) fn take_slot(&self) -> Option<u32> {
        for (i, word) in self.slot_map().iter().enumerate() {
            let mut seen = word.load(Relaxed);
            while seen != u64::MAX {
                let bit = seen.trailing_ones();
                match word.compare_exchange_weak(seen, seen | 1 << bit, AcqRel, Relaxed) {
                    Ok(_) => return Some(i as u32 * 64 + bit),
                    Err(now) => seen = now,
                }
            }
        }
        None
    }

    /// The daemon's number of the arena, as its memory has it: a hint.
    pub fn number(&self) -> u32 {
        self.head().number.load(Relaxed)
    }

    /// The port that the daemon has lent for a slot, by this side's word; 0: none.
    pub(crate) fn lent_port(&self, slot: u32) -> u16 {
        let port = self.slot_locks(slot).port.load(Acquire) as u16;
        // Who holds this side can write there. No port that the kernel gives to root alone is ever lent.
        if port < LOWEST_PORT { 0 } else { port }
    }

    /// Which of the first slots is next: of those that take turns the first free one from `from` on, whether it has a port or is to get
    /// one; with 0 any that has a port, else the first free one. `taken`: the first word of the slot map.
    fn in_turn(&self, taken: u64, from: u32) -> Option<u32> {
        let count = self.geometry.slots.min(64);
        let turns = count.min(IN_TURN);
        let is_free = |slot: &u32| taken >> slot & 1 == 0;
        if from == 0 {
            let with_port = (0..count).filter(is_free).find(|&slot| self.lent_port(slot) != 0);
            return with_port.or_else(|| (0..turns).find(is_free));
        }
        let from = from.min(turns);
        (from..turns).chain(0..from).find(is_free)
    }

    /// The slot behind that of the last connection that was opened with a lent port. It is kept with this side's locks, whose line who
    /// opens has anyway, so that who maps the arena again (a new image after exec) goes on from there.
    pub fn turn(&self) -> u32 {
        self.locks().turn.load(Relaxed)
    }

    /// A connection was opened in this slot. Of two threads at once either may be the last.
    pub(crate) fn record_turn(&self, slot: u32) {
        self.locks().turn.store(slot.wrapping_add(1), Relaxed);
    }

    /// Takes the slot of [`Arena::next_free`].
    pub(crate) fn take_slot_from(&self, from: u32) -> Option<u32> {
        let first = self.slot_map().first()?;
        let mut seen = first.load(Relaxed);
        loop {
            let Some(bit) = self.in_turn(seen, from) else { return self.take_slot() };
            match first.compare_exchange_weak(seen, seen | 1 << bit, AcqRel, Relaxed) {
                Ok(_) => return Some(bit),
                Err(now) => seen = now,
            }
        }
    }

    /// The slot that [`Channel::open`](crate::Channel::open) would take now: of the first ones the next that is free from `from` on, as each
    /// has a port of its own and one that has just been used is used again late; else the lowest. With 0 any that has a port.
    pub fn next_free(&self, from: u32) -> Option<u32> {
        let in_turn = self.in_turn(self.slot_map().first()?.load(Relaxed), from);
        if in_turn.is_some() {
            return in_turn;
        }
        let mut words = self.slot_map().iter().map(|word| word.load(Relaxed)).enumerate();
        words.find(|(_, word)| *word != u64::MAX).map(|(i, word)| i as u32 * 64 + word.trailing_ones())
    }

    /// Does `work` while nobody can open a connection in a slot. `false`: somebody has one there, or is about to.
    pub fn while_free(&self, slot: u32, work: impl FnOnce()) -> bool {
        let bit = 1 << (slot % 64);
        let Some(word) = self.slot_map().get((slot / 64) as usize) else { return false };
        if word.fetch_or(bit, AcqRel) & bit != 0 {
            return false;
        }
        // One that lives in a slot that is marked as free was made by who writes what he likes.
        let is_free = crate::channel::Channel::at(self, slot).is_none();
        if is_free {
            work();
        }
        self.give_slot(slot);
        is_free
    }

    pub(crate) fn give_slot(&self, slot: u32) {
        if let Some(word) = self.slot_map().get((slot / 64) as usize) {
            word.fetch_and(!(1 << (slot % 64)), AcqRel);
        }
    }

    /// `number` < `larges()`.
    #[inline]
    pub(crate) fn large_offset(&self, number: usize) -> usize {
        self.larges + (number << self.geometry.large_log2())
    }

    /// Slots that have been used since their memory was last given back.
    pub(crate) fn touched(&self) -> &[AtomicU64] {
        self.region.slice(self.geometry.touched(), self.geometry.words())
    }

    pub(crate) fn slot_map(&self) -> &[AtomicU64] {
        self.region.slice(self.geometry.slot_map(), self.geometry.words())
    }

    pub(crate) fn head(&self) -> &Head {
        self.region.at(0)
    }

    /// Locks of this side as a whole.
    pub(crate) fn locks(&self) -> &LocksHead {
        self.region.beside(0)
    }

    /// This side's locks of a slot, which was checked when the channel was made.
    #[inline]
    pub(crate) fn slot_locks(&self, slot: u32) -> &SlotLocks {
        self.region.beside(self.geometry.slot_locks(slot))
    }

    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn bells(&self) -> &dyn Bells {
        self.bells
    }

    #[inline]
    pub(crate) fn block_offset(&self, slot: u32) -> usize {
        self.blocks + slot as usize * size_of::<Block>()
    }

    /// The stride of the direction that `producer` writes.
    #[inline]
    pub(crate) fn ring_offset(&self, slot: u32, producer: Side) -> usize {
        self.rings + ((slot as usize * 2 + producer.index()) << self.geometry.stride_log2)
    }

    /// slot * 2 + side of the direction whose stride is at `base`.
    pub(crate) fn direction(&self, base: usize) -> usize {
        (base - self.rings) >> self.geometry.stride_log2
    }

    /// `slot` was checked when the channel was made.
    #[inline]
    pub(crate) fn block(&self, slot: u32) -> &Block {
        self.region.at(self.block_offset(slot))
    }

    pub(crate) fn inbox_entry(&self, position: u64) -> &AtomicU64 {
        let index = position as usize & (self.geometry.slots as usize - 1);
        self.region.at(self.geometry.inbox() + index * 8)
    }

    /// `lane` < 32.
    pub(crate) fn lane_head(&self, side: Side, lane: usize) -> &LaneHead {
        self.region.at(self.lanes.head(side, lane))
    }

    /// `lane` < 32; `None`: there are no such 64 slots.
    #[inline]
    pub(crate) fn marks(&self, side: Side, lane: usize, word: usize) -> Option<&Marks> {
        (word < self.geometry.words()).then(|| self.region.at(self.lanes.marks(side, lane, word)))
    }
}

/// Slots that take turns. More: as many ports, and as much memory, are used by who connects again and again. Fewer: a port comes again sooner.
pub(crate) const IN_TURN: u32 = 32;

/// Below, a port says that root has bound it (IPPORT_RESERVED): none is lent.
pub const LOWEST_PORT: u16 = 1024;

/// A memfd of `len` bytes that begins with `head` and cannot change its size any more.
pub(crate) fn sealed_memfd(name: &str, len: usize, head: &[u8]) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    if !head.is_empty() && rustix::io::pwrite(&fd, head, 0)? != head.len() {
        return Err(Errno::IO);
    }
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;
    use crate::bell::NoBells;
    use crate::channel::{Channel, OpenArgs};
    use crate::lanes::Lane;

    /// What each client process costs.
    #[test]
    fn an_arena_with_one_connection_takes_few_pages() {
        let geometry = Geometry::default();
        let memory = Arena::create("fastsock-test", geometry).unwrap();
        let [a, b] = [Side::A, Side::B].map(|side| Arena::map(memory.of(side), geometry, side, &NoBells).unwrap());
        let (near, far) = (a.join(1).unwrap(), b.join(2).unwrap());
        b.watch_inbox(far, true);
        let client = Channel::open(&a, &OpenArgs::default()).unwrap();
        let server = Channel::accept(&b).unwrap();
        client.watch(near);
        server.watch(far);
        client.send_one(b"x").unwrap();
        server.send_one(b"y").unwrap();
        a.drain(near, |_| {});
        b.drain(far, |_| {});
        let bytes = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_blocks * 512;
        let (shared, locks) = (bytes(&memory.shared), memory.locks.iter().map(bytes).sum::<i64>());
        assert!(shared <= 48 << 10 && locks <= 8 << 10, "{shared} + {locks} bytes");
    }

    /// A thread that takes the slot between the two writes would come from a port that its acceptor knows nothing of.
    #[test]
    fn an_opener_has_no_port_that_its_acceptor_has_not() {
        let geometry = Geometry::default();
        let memory = Arena::create("fastsock-test", geometry).unwrap();
        let [a, b] = [Side::A, Side::B].map(|side| Arena::map(memory.of(side), geometry, side, &NoBells).unwrap());
        let read_only = |side: Side| {
            use std::os::fd::AsRawFd;
            std::fs::File::open(format!("/proc/self/fd/{}", memory.locks[side.index()].as_raw_fd())).unwrap()
        };
        let both = || memory.locks.each_ref().map(|locks| locks.as_fd());
        let [shut_a, shut_b] = [Side::A, Side::B].map(read_only);
        let cannot_a = || [shut_a.as_fd(), memory.locks[1].as_fd()];
        let cannot_b = || [memory.locks[0].as_fd(), shut_b.as_fd()];
        let ports = || [a.lent_port(9), b.lent_port(9)];
        assert_eq!(Arena::set_port(cannot_b(), geometry, 9, 40_000), Err(Errno::BADF));
        assert_eq!(ports(), [0, 0]);
        assert_eq!(Arena::set_port(cannot_a(), geometry, 9, 40_000), Err(Errno::BADF));
        assert_eq!(ports(), [0, 0], "what the acceptor was told is taken back");
        Arena::set_port(both(), geometry, 9, 40_000).unwrap();
        assert_eq!(ports(), [40_000, 40_000]);
        assert_eq!(Arena::set_port(cannot_a(), geometry, 9, 0), Err(Errno::BADF));
        assert_eq!(ports(), [40_000, 40_000]);
        assert_eq!(Arena::set_port(cannot_b(), geometry, 9, 0), Err(Errno::BADF));
        assert_eq!(ports(), [0, 40_000], "the opener loses it first");
        // A holder of a side writes there what he likes, but none of root's.
        for (port, seen) in [(1023, 0), (1024, 1024)] {
            b.slot_locks(9).port.store(port, SeqCst);
            assert_eq!(ports()[1], seen);
        }
    }

    #[test]
    fn slots_take_turns_and_with_0_any_that_has_a_port_is_as_good() {
        let geometry = Geometry::default();
        let memory = Arena::create("fastsock-test", geometry).unwrap();
        let a = Arena::map(memory.of(Side::A), geometry, Side::A, &NoBells).unwrap();
        let set = |slot, port| a.slot_locks(slot).port.store(port, SeqCst);
        assert_eq!([0, 5, 32, 99].map(|from| a.next_free(from)), [Some(0), Some(5), Some(0), Some(0)]);
        for slot in [1, 10, 40] {
            set(slot, 40_000 + slot);
        }
        let open =
            |from| Channel::open(&a, &OpenArgs { lent: Some(from), ..OpenArgs::default() }).map(|one| one.slot());
        assert_eq!([0, 1, 2, 10, 32, 99].map(|from| a.next_free(from)), [1, 1, 2, 10, 0, 0].map(Some));
        assert_eq!(open(2), Err(Errno::ADDRNOTAVAIL), "one that has none is asked for");
        assert_eq!([open(10), open(1)], [Ok(10), Ok(1)]);
        assert_eq!(open(0), Ok(40), "behind those that take turns, where there are no more ports");
        assert_eq!(open(0), Err(Errno::ADDRNOTAVAIL));
        set(3, 40_003);
        assert_eq!(open(0), Ok(3));
    }

    /// A new image after exec maps the arena anew, and its next connection comes from another port than the last one of the image before.
    #[test]
    fn whose_turn_it_is_outlives_the_mapping() {
        let geometry = Geometry::SMALL;
        let memory = Arena::create("fastsock-test", geometry).unwrap();
        let map = |side| Arena::map(memory.of(side), geometry, side, &NoBells).unwrap();
        let slots = [0, 1, 2].map(|_| {
            let (a, b) = (map(Side::A), map(Side::B));
            (0..4).for_each(|slot| a.slot_locks(slot).port.store(40_000 + slot, SeqCst));
            let opened = Channel::open(&a, &OpenArgs { lent: Some(a.turn()), ..OpenArgs::default() }).unwrap();
            Channel::accept(&b).unwrap().close(false).unwrap();
            opened.close(false).unwrap();
            assert_eq!(a.used(), 0, "the slot is free again");
            opened.slot()
        });
        assert_eq!(slots, [0, 1, 2]);
    }

    /// A server that is never restarted maps an arena for each client process.
    #[test]
    fn ten_thousand_arenas_come_and_go() {
        if crate::emulated::is_emulated() {
            println!("skipped: the tables and mappings are QEMU's, and each takes it longer than the one before");
            return;
        }
        let geometry = Geometry::default();
        let arenas: Vec<Arena> = (0..10_000)
            .map(|number| {
                let memory = Arena::create("fastsock-test", geometry).unwrap();
                let arena = Arena::map(memory.of(Side::B), geometry, Side::B, &NoBells);
                let arena = arena.unwrap_or_else(|error| panic!("arena {number}: {error}"));
                arena.close();
                arena.retire();
                assert!(arena.is_closed());
                arena
            })
            .collect();
        assert_eq!(arenas.iter().map(Arena::used).sum::<u32>(), 0, "who comes late sees them without connections");
        let late = &arenas[5];
        late.arm(Lane::at(3).unwrap());
        assert!(!late.arm(Lane::at(3).unwrap()));
        late.clear_retired();
        assert!(late.arm(Lane::at(3).unwrap()), "what was written late is gone");
        arenas.iter().for_each(Arena::clear_retired);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let tables = status.lines().find_map(|line| line.strip_prefix("VmPTE:")?.trim().strip_suffix(" kB")).unwrap();
        // The sanitizer has one for the shadow of each.
        let is_sanitized = std::env::var_os("ASAN_OPTIONS").is_some();
        assert!(
            is_sanitized || tables.parse::<u32>().unwrap() < 4000,
            "{tables} KiB of page tables: one for each is left"
        );
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        assert!(maps < 2000, "{maps} mappings: what is left of each is not one with the next");
    }
}
