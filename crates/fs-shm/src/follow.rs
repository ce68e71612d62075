//! What connections carry, for who only watches: `fastsock capture`.
//!
//! A [`Follow`] has an arena mapped for reading, and looks again and again at what its connections have published since. It
//! writes nothing and nobody waits for it, so a producer may overwrite bytes before they were seen. What is handed on
//! ([`Seen::Bytes`]) was certainly sent at these positions; whatever is not certain is said to be missing ([`Seen::Gap`]).
//!
//! Bytes are copied first, and judged by what the words say afterwards:
//! 1. Positions from the consumer's `head` on are unread: nobody may write there, and where they lie is what the consumer
//!    would find (`ring.rs`, 5 to 7).
//! 2. Positions before it are whole as long as nobody has written a ring's capacity beyond them. With the send lock free,
//!    `tail` and what is held back tell how far that is; while it is held, they do not.
//! 3. Where those lie is certain only if nothing was inline and no large ring came or went since the look before. Connections
//!    that begin while somebody follows are marked (`CAPTURED`), so that nothing of them is inline; the others' words are compared.
//! 4. A slot that was freed keeps its words and bytes until it is taken again or its memory is given back; both can be seen in the
//!    bitmaps.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::fence;

use rustix::io::Errno;

use crate::addr::Addr;
use crate::arena::Arena;
use crate::channel::state::{Phase, State};
use crate::channel::{CAPTURED, Channel};
use crate::large::Large;
use crate::layout::{Geometry, Side};
use crate::ring::{Broken, Map, POSITION_MASK, Ring};

/// Bytes that are copied at once.
const PIECE: u64 = 64 << 10;

/// Bytes of a direction, in large rings, that are looked at after a look; what came before them was overwritten. A `tail` that was scribbled
/// on costs no more than that.
const RINGS: u64 = 2;

/// How often bytes are copied again while their sender is at work.
const TRIES: u32 = 64;

/// So many of these looks an answer waits for the question that is not seen yet.
const PATIENCE: u32 = 64;

/// Looks of which each found the sender at work, after which its bytes count as missed: a sender that has stopped within a call keeps
/// nobody for ever.
const LOOKS: u32 = 20_000;

/// One connection of an arena: its slot, and which of those that were in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// The slot.
    pub slot: u32,
    /// The slot's generation.
    pub generation: u32,
}

/// What was seen of a connection. Bytes and gaps of a direction come in its order, without anything left out between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// It is there.
    Opened {
        /// The opener's address and the acceptor's; `None`: it has none that makes sense.
        addrs: [Option<SocketAddr>; 2],
        /// How many bytes each has sent before, none of which is seen; `None`: it is seen from its beginning.
        joined: Option<[u64; 2]>,
    },
    /// Bytes that this side has sent.
    Bytes {
        /// Who.
        from: Side,
        /// How many came before them.
        at: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Bytes that this side has sent and that were not seen in time.
    Gap {
        /// Who.
        from: Side,
        /// How many came before them.
        at: u64,
        /// How many.
        len: u64,
    },
    /// This side sends nothing more.
    End {
        /// Who.
        from: Side,
    },
    /// This side has reset the connection.
    Reset {
        /// Who.
        from: Side,
    },
    /// It is over: nothing more comes of it.
    Closed {
        /// Its slot was another connection's before all of it was seen: what came last is missing.
        cut: bool,
    },
}

/// The producer's words that say where bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Words {
    map: u64,
    inline_at: u64,
    large: u64,
    last_lease: u64,
}

impl Words {
    fn of(ring: &Ring<'_>) -> Self {
        Words {
            map: ring.rare.map.load(Acquire),
            inline_at: ring.out.inline_at.load(Acquire),
            large: ring.rare.large.load(Acquire),
            last_lease: ring.tx.last_lease.load(Acquire),
        }
    }

    /// Which memory has `position`, and how many bytes from there on it has at most.
    fn place(self, geometry: Geometry, position: u64) -> Result<(Place, u64), Broken> {
        let map = Map::from_word(self.map, geometry)?;
        let (before, after) = match Large::from_word(self.large, geometry)? {
            None => (u64::MAX, None),
            Some(large) => (large.before(position), Some(large)),
        };
        Ok(match (after, map.old_until(position)) {
            (Some(large), _) if before == 0 => (Place::Large(large.capacity()), u64::MAX),
            (_, Some((capacity, rest))) => {
                (Place::Old { capacity, switch: position.wrapping_add(rest) }, rest.min(before))
            }
            _ => (Place::Ring(map.capacity()), before),
        })
    }

    /// Whether what was written since these words were read lies where `now` says, by the map.
    fn grown_once_to(self, now: Self, geometry: Geometry) -> bool {
        let maps =
            Map::from_word(self.map, geometry).and_then(|before| Ok((before, Map::from_word(now.map, geometry)?)));
        self.map == now.map || maps.is_ok_and(|(before, now)| now.has_grown_from(before))
    }
}

/// Which memory has bytes.
#[derive(Clone, Copy, Debug)]
enum Place {
    Ring(u64),
    /// A ring that was left for a larger one at a position.
    Old {
        capacity: u64,
        switch: u64,
    },
    Large(u64),
}

/// One direction, as it was at the last look.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Bytes that were told of.
    at: u64,
    ended: bool,
    marked: bool,
    words: Words,
    /// Looks that have found its sender at work since the last one that has not.
    busy: u32,
}

#[derive(Clone, Copy, Debug)]
struct Followed {
    generation: u32,
    ways: [Way; 2],
    reset: [bool; 2],
}

/// Whether a connection's slot is in use, or was freed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    Over,
}

/// An arena that is followed.
#[derive(Debug)]
pub struct Follow {
    arena: Arena,
    connections: HashMap<u32, Followed>,
    /// The generation that comes next in each slot.
    next: Vec<u32>,
    /// What was there before it was followed, by slot and generation.
    before: HashMap<u32, u32>,
    /// The last leases of large rings in slots whose last connection was seen to its end: words that outlive it.
    leases: HashMap<u32, [u64; 2]>,
    missed: u64,
    buffer: Vec<u8>,
}

/// Who is told.
type Each<'e> = &'e mut dyn FnMut(Connection, Seen<'_>);

impl Follow {
    /// Follows an arena. `fresh`: it was made just now, so that all of its connections are seen from their beginning; else those
    /// that have carried something are joined where they are.
    ///
    /// # Errors
    /// As [`Arena::map`].
    pub fn new(fd: BorrowedFd<'_>, geometry: Geometry, fresh: bool) -> Result<Self, Errno> {
        let arena = Arena::map_to_read(fd, geometry)?;
        let generation = |slot| if fresh { 0 } else { state(&arena, slot).generation() };
        let next = (0..geometry.slots).map(generation).collect();
        let is_there = |slot: &u32| !fresh && state(&arena, *slot).phase() != Phase::Free;
        let before =
            (0..geometry.slots).filter(is_there).map(|slot| (slot, state(&arena, slot).generation())).collect();
        Ok(Follow {
            next,
            before,
            connections: HashMap::new(),
            leases: HashMap::new(),
            missed: 0,
            buffer: vec![0; PIECE as usize],
            arena,
        })
    }

    /// Connections that came and went between two looks, since the last call.
    pub fn take_missed(&mut self) -> u64 {
        std::mem::take(&mut self.missed)
    }

    /// Nothing is opened any more, and nothing is open.
    pub fn is_over(&self) -> bool {
        self.arena.is_closed() && self.connections.is_empty()
    }

    /// Looks once at all connections; whether there was anything new.
    pub fn look(&mut self, each: Each<'_>) -> bool {
        let mut news = false;
        for word in 0..self.next.len() / 64 {
            // What was freed keeps its bit in `touched` until its memory goes back.
            let mut bits = self.arena.slot_map()[word].load(Acquire) | self.arena.touched()[word].load(Acquire);
            while bits != 0 {
                let slot = word as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                news |= self.look_at(slot, each);
            }
        }
        // Those whose slots' memory went back since.
        let is_gone = |(&slot, followed): (&u32, &Followed)| {
            (state(&self.arena, slot).generation() != followed.generation).then_some(slot)
        };
        let gone: Vec<u32> = self.connections.iter().filter_map(is_gone).collect();
        gone.into_iter().fold(news, |news, slot| self.look_at(slot, each) | news)
    }

    fn look_at(&mut self, slot: u32, each: Each<'_>) -> bool {
        let state = state(&self.arena, slot);
        let mut news = false;
        if let Some(mut followed) = self.connections.remove(&slot) {
            if state.generation() == followed.generation && state.phase() != Phase::Free {
                let news = self.follow(slot, &mut followed, Life::Open, each);
                self.connections.insert(slot, followed);
                return news;
            }
            self.finish(slot, followed, each);
            self.next[slot as usize] = followed.generation.wrapping_add(1);
            news = true;
        }
        let passed = state.generation().wrapping_sub(self.next[slot as usize]);
        // A word that was scribbled on counts for nothing.
        if passed > u32::MAX / 2 {
            return news;
        }
        if passed != 0 {
            // The last of those that are over is there still, if nothing has taken its place.
            let last = state.generation().wrapping_sub(1);
            let is_free = state.phase() == Phase::Free;
            let over = is_free.then(|| self.begin(slot, last, false, Life::Over, each)).flatten();
            self.missed += u64::from(passed) - u64::from(over.is_some());
            if let Some(over) = over {
                self.finish(slot, over, each);
            }
            self.next[slot as usize] = state.generation();
            news = true;
        }
        if state.phase() == Phase::Open {
            let joins = self.before.get(&slot) == Some(&state.generation());
            if let Some(mut followed) = self.begin(slot, state.generation(), joins, Life::Open, each) {
                self.follow(slot, &mut followed, Life::Open, each);
                self.connections.insert(slot, followed);
                news = true;
            }
        }
        news
    }

    /// The first look at a connection. `None`: it cannot be told of yet, or not any more.
    fn begin(&mut self, slot: u32, generation: u32, joins: bool, life: Life, each: Each<'_>) -> Option<Followed> {
        let channel = Channel::with_generation(&self.arena, slot, generation)?;
        let block = channel.block();
        let geometry = self.arena.geometry();
        // A ring that has grown is never of one size again.
        let large = Map::uniform(geometry.ring_max_log2()).to_word();
        let small = Map::uniform(geometry.ring_log2).to_word();
        let ways = [Side::A, Side::B].map(|side| {
            let ring = channel.ring(side);
            let marked = block.own[side.index()].flags.load(Acquire) & CAPTURED != 0;
            let words = Words::of(&ring);
            let at = ring.out.tail.load(Acquire);
            let is_idle = ring.tx.writer.load(SeqCst) == 0 && Words::of(&ring) == words;
            let last_lease = self.leases.get(&slot).map_or(0, |leases| leases[side.index()]);
            let map = if words.map == large { large } else { small };
            let born = Words { map, inline_at: 0, large: 0, last_lease };
            let (at, words) = if joins { (at, words) } else { (0, born) };
            (Way { at, ended: false, marked, words, busy: 0 }, is_idle)
        });
        // Who is sending just now may do it inline still.
        if joins && ways.iter().any(|(_, is_idle)| !is_idle) {
            return None;
        }
        let ways = ways.map(|(way, _)| way);
        let addrs = [&block.addr[0], &block.addr[1]].map(|addr| Addr::load(addr).to_std());
        fence(Acquire);
        if !holds(&self.arena, slot, generation, life) {
            return None;
        }
        let joined = joins.then(|| ways.map(|way| way.at));
        each(Connection { slot, generation }, Seen::Opened { addrs, joined });
        Some(Followed { generation, ways, reset: [false; 2] })
    }

    /// What is left of a connection that is over.
    fn finish(&mut self, slot: u32, mut followed: Followed, each: Each<'_>) {
        self.follow(slot, &mut followed, Life::Over, each);
        let connection = Connection { slot, generation: followed.generation };
        let leases = [0, 1].map(|side| self.arena.block(slot).tx[side].last_lease.load(Acquire));
        fence(Acquire);
        let cut = !holds(&self.arena, slot, followed.generation, Life::Over);
        if !cut {
            self.leases.insert(slot, leases);
        }
        // Who closes without an end resets; of two one may have found the reset of the other.
        if !cut && followed.reset == [false; 2] {
            for (side, other) in [(Side::A, Side::B), (Side::B, Side::A)] {
                if !followed.ways[side.index()].ended && followed.ways[other.index()].ended {
                    each(connection, Seen::Reset { from: side });
                }
            }
        }
        each(connection, Seen::Closed { cut });
    }

    /// Tells what is new of a connection, while its slot is its own.
    fn follow(&mut self, slot: u32, followed: &mut Followed, life: Life, each: Each<'_>) -> bool {
        let connection = Connection { slot, generation: followed.generation };
        let Some(channel) = Channel::with_generation(&self.arena, slot, followed.generation) else { return false };
        let block = channel.block();
        let state = state(&self.arena, slot);
        // The ends first: what was sent before them is seen below.
        let ended = [0, 1].map(|side| block.out[side].rare.fin.load(Acquire) != 0);
        // Who has answered comes after what it has read.
        let [a, b] = [0, 1].map(|side| block.out[side].hot.ack.load(Acquire));
        let is_behind = |at: u64, ack: u64| ack.wrapping_sub(at).cast_signed() > 0;
        let b_first = is_behind(followed.ways[1].at, a) && !is_behind(followed.ways[0].at, b);
        let most = (RINGS << self.arena.geometry().large_log2()) / PIECE + 2;
        let mut news = false;
        let mut all_seen = [false; 2];
        let mut waits = false;
        for side in if b_first { [Side::B, Side::A] } else { [Side::A, Side::B] } {
            let way = &mut followed.ways[side.index()];
            // Its sender may go on as fast as this: the other connections have their turn.
            for _ in 0..most {
                let at = way.at;
                let Some((low, end)) = take(&channel, side, way, life, &mut self.buffer) else {
                    all_seen[side.index()] = true;
                    break;
                };
                if end == at {
                    waits = way.busy < PATIENCE;
                    break;
                }
                news = true;
                if low != at {
                    each(connection, Seen::Gap { from: side, at, len: low.wrapping_sub(at) });
                }
                if low != end {
                    let bytes = low.wrapping_sub(at) as usize..end.wrapping_sub(at) as usize;
                    each(connection, Seen::Bytes { from: side, at: low, bytes: &self.buffer[bytes] });
                }
            }
            if waits {
                break;
            }
        }
        if !holds(&self.arena, slot, followed.generation, life) {
            return news;
        }
        for side in [Side::A, Side::B] {
            let index = side.index();
            if ended[index] && all_seen[index] && !std::mem::replace(&mut followed.ways[index].ended, true) {
                each(connection, Seen::End { from: side });
                news = true;
            }
            let is_reset = life == Life::Open && state.is_reset(side);
            if is_reset && !std::mem::replace(&mut followed.reset[index], true) {
                each(connection, Seen::Reset { from: side });
                news = true;
            }
        }
        news
    }
}

fn state(arena: &Arena, slot: u32) -> State {
    State(arena.block(slot).state.load(Acquire))
}

/// Whether the slot's words and bytes are this connection's, still or yet.
fn holds(arena: &Arena, slot: u32, generation: u32, life: Life) -> bool {
    let (word, bit) = ((slot / 64) as usize, 1u64 << (slot % 64));
    match life {
        Life::Open => {
            let state = state(arena, slot);
            state.generation() == generation && state.phase() != Phase::Free
        }
        // A slot is taken before anything of it changes. Who frees it is about to say so.
        Life::Over => {
            arena.touched()[word].load(SeqCst) & bit != 0
                && (0..TRIES).any(|_| arena.slot_map()[word].load(SeqCst) & bit == 0)
                && state(arena, slot).generation() == generation.wrapping_add(1)
                && state(arena, slot).phase() == Phase::Free
        }
    }
}

/// Copies what a direction has sent since into `buffer`, from `way.at` on: the first position that is certain, and the end, which
/// is `way.at` from here on, or it is `way.at` still and its sender is at work. `None`: nothing is new, or the slot is another's.
fn take(channel: &Channel<'_>, side: Side, way: &mut Way, life: Life, buffer: &mut [u8]) -> Option<(u64, u64)> {
    let (arena, ring) = (channel.arena(), channel.ring(side));
    // In this order: what is sent from `tail` on is written with these words, or with others that the next look finds.
    let marked = channel.block().own[side.index()].flags.load(Acquire) & CAPTURED != 0;
    let first = Words::of(&ring);
    let tail = ring.out.tail.load(Acquire);
    let at = way.at;
    let news = tail.wrapping_sub(at);
    if news == 0 || news > POSITION_MASK / 2 {
        // Backwards, or further than any connection gets: who shares the memory has scribbled there.
        way.at = tail;
        return None;
    }
    let most = RINGS << arena.geometry().large_log2();
    if news > most {
        way.at = tail.wrapping_sub(most);
        return Some((way.at, way.at));
    }
    let mut answer = (tail, tail);
    for last in (0..TRIES).rev().map(|left| left == 0) {
        let words = Words::of(&ring);
        let end = copy(&ring, words, at, at.wrapping_add(news.min(buffer.len() as u64)), buffer);
        fence(Acquire);
        if !holds(arena, channel.slot(), channel.generation(), life) {
            return None;
        }
        // Words that make no sense: nothing of it is certain.
        let Ok(end) = end else { break };
        let unlocked = life == Life::Over || ring.tx.writer.load(SeqCst) == 0;
        if words == Words::of(&ring) {
            let low = certain(&ring, way, words, marked, (unlocked, life), end);
            answer = (low, end);
            if low == at || unlocked {
                break;
            }
            if last && way.busy < LOOKS {
                // Where its bytes are is known when it is done.
                way.busy += 1;
                return Some((at, at));
            }
        }
        std::hint::spin_loop();
    }
    way.at = answer.1;
    way.busy = 0;
    if way.at == tail {
        (way.marked, way.words) = (marked, first);
    }
    Some(answer)
}

/// Copies from `at` on what lies in one memory, at most to `end`; answers to where.
fn copy(ring: &Ring<'_>, words: Words, at: u64, end: u64, buffer: &mut [u8]) -> Result<u64, Broken> {
    let (_, most) = words.place(ring.arena.geometry(), at)?;
    let len = end.wrapping_sub(at).min(most);
    let mut done = 0;
    while done < len {
        let piece = ring.piece(at.wrapping_add(done), len - done)?;
        let copied = buffer.get_mut(done as usize..).map_or(0, |rest| piece.copy_to(rest));
        if copied == 0 {
            return Err(Broken);
        }
        done += copied as u64;
    }
    Ok(at.wrapping_add(len))
}

/// The first position from `way.at` on that is certain, of those to `end`, which were copied as `words` say; after that.
fn certain(ring: &Ring<'_>, way: &Way, words: Words, marked: bool, (unlocked, life): (bool, Life), end: u64) -> u64 {
    let (at, before, geometry) = (way.at, way.words, ring.arena.geometry());
    let lease = ring.tx.lease.load(SeqCst);
    let tail = ring.out.tail.load(Acquire).wrapping_add(ring.tx.held.load(Acquire));
    // As far as it is between both.
    let clamp = |position: u64| match position.wrapping_sub(at).cast_signed() {
        ..0 => at,
        ahead => at.wrapping_add(ahead.cast_unsigned().min(end.wrapping_sub(at))),
    };
    let head = clamp(ring.inn.head.load(Acquire));
    let Ok((place, _)) = words.place(geometry, at) else { return end };
    let smallest = 1 << geometry.ring_log2;
    let whole_from = match place {
        // Given back: another connection may have it.
        Place::Large(_) if lease == 0 => return end,
        // Given back with the slot (`Channel::free`), but for those that are marked.
        Place::Old { capacity, .. } | Place::Ring(capacity)
            if life == Life::Over && capacity != smallest && !(marked && way.marked) =>
        {
            return end;
        }
        Place::Old { capacity, switch } => clamp(switch.wrapping_sub(capacity)),
        Place::Ring(capacity) | Place::Large(capacity) if unlocked => clamp(tail.wrapping_sub(capacity)),
        Place::Ring(_) | Place::Large(_) => head,
    };
    let same_large = words.large != 0 && words.large == before.large && lease != 0;
    let is_placed = marked
        && way.marked
        && (words.inline_at == before.inline_at || words.inline_at == 0)
        && before.grown_once_to(words, geometry)
        && (words.last_lease == before.last_lease || same_large);
    // What is unread is whole, and where the consumer would find it.
    let low = if is_placed { whole_from } else { head };
    if low.wrapping_sub(at) > head.wrapping_sub(at) { head } else { low }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests;
