//! Arenas that this process has mapped: never moved, and known by (life of the attachment, number, side).
//!
//! An [`Arena`] lives for ever: a thread that looked a socket up just before another closed it, and pollers, may still look
//! at it. Its memory goes when it is closed and nothing of it is in use ([`sweep`]), by this process's own books.

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use fs_shm::{
    Arena, Channel, Side,
    control::{ArenaPart, Client, Due, Error, Object, PeerSide, SideMemory},
    lanes::Lane,
};
use rustix::io::Errno;

use crate::{
    descriptor::numbers,
    process::{self, Attachment},
    socket::Socket,
    sys::{array::Array, pointer::Pointer, signals::Section},
};

/// One mapped arena.
#[derive(Debug)]
pub(crate) struct Mapped {
    arena: Arena,
    id: u32,
    life: u32,
    opened: AtomicU32,
    /// Nanoseconds of CLOCK_MONOTONIC: the daemon has refused ports, and is not asked for others before.
    no_port_until: AtomicU64,
    /// Bit n: a socket here has had one of its slots 64 n … 64 n + 63; the last bit is for all slots from there on. One word, as
    /// what describes an arena stays.
    used: AtomicU64,
    /// The last sweep that has found a socket of it; and the first since then that found it over and in nobody's use here, 0: none has.
    in_use: AtomicU32,
    idle_since: AtomicU32,
    /// For the listener that it leads to: its place there + 1.
    place: AtomicU32,
    /// The same, by [`Shared`]: poller << 32 | its lane.
    lanes: [AtomicU64; 2],
    /// What has been found in its inbox since the last connection that was accepted, as [`Mapped::refused`] counts it.
    vain: AtomicU32,
    /// Nanoseconds of CLOCK_MONOTONIC: nothing is accepted from it before; 0: everything is.
    aside_until: AtomicU64,
    /// Not 0: whatever its memory says of ends is a core's word.
    trusted: AtomicU32,
    /// Ends that are true, as the daemon says.
    ends: [Ends; ENDS],
}

/// An arena has 65536 slots at most, and so many groups of 64.
const GROUPS: u32 = 1024;

/// Entries of an inbox in a row that are no connection, of which no honest opener has as many. Lower: one whose connections give up
/// by hundreds is set aside. Higher: each call of accept(2) can be kept for longer.
const VAIN: u32 = 1024;
/// One whose addresses are not true counts as so many, as the daemon is asked about it.
pub(crate) const UNTRUE: u32 = 64;
/// How long such an inbox is not looked at.
const ASIDE: u64 = 1_000_000_000;

/// Pairs of addresses that one client and one listener use; others are asked for each time.
const ENDS: usize = 4;

/// The address of side A and that of side B with its port; written once.
#[derive(Debug)]
struct Ends {
    /// 0: free, 1: being written, 2: written.
    written: AtomicU32,
    words: [AtomicU64; 5],
}

impl Ends {
    const fn new() -> Self {
        Ends { written: AtomicU32::new(0), words: [const { AtomicU64::new(0) }; 5] }
    }

    fn is(&self, words: &[u64; 5]) -> bool {
        self.written.load(Acquire) == 2 && self.words.iter().zip(words).all(|(have, want)| have.load(Relaxed) == *want)
    }

    /// `false`: it is another's.
    fn take(&self, words: &[u64; 5]) -> bool {
        if self.written.compare_exchange(0, 1, Relaxed, Relaxed).is_err() {
            return false;
        }
        self.words.iter().zip(words).for_each(|(place, word)| place.store(*word, Relaxed));
        self.written.store(2, Release);
        true
    }
}

/// In the form that the daemon compares them in: mapped IPv4 is IPv4.
fn words(from: IpAddr, to: SocketAddr) -> [u64; 5] {
    let halves = |ip: IpAddr| {
        let bits = match ip.to_canonical() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        [(bits >> 64) as u64, bits as u64]
    };
    let ([a, b], [c, d]) = (halves(from), halves(to.ip()));
    [a, b, c, d, to.port().into()]
}

/// A poller that several share, in all processes that hold a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shared {
    /// Those who sleep in accept.
    Accept,
    /// Epoll sets that watch the listener with EPOLLEXCLUSIVE.
    Exclusive,
}

/// Arenas of a process at once; beyond them connections are the kernel's.
const COUNT: usize = 1 << 14;
/// By a hash of number, life and side, next free place.
static MAPPED: Array<Pointer<Mapped>, COUNT> = Array::new();

impl Mapped {
    fn new(arena: Arena, id: u32, life: u32) -> Self {
        Mapped {
            arena,
            id,
            life,
            opened: AtomicU32::new(0),
            no_port_until: AtomicU64::new(0),
            used: AtomicU64::new(0),
            in_use: AtomicU32::new(0),
            idle_since: AtomicU32::new(0),
            place: AtomicU32::new(0),
            lanes: [const { AtomicU64::new(0) }; 2],
            vain: AtomicU32::new(0),
            aside_until: AtomicU64::new(0),
            trusted: AtomicU32::new(0),
            ends: [const { Ends::new() }; ENDS],
        }
    }

    /// The memory.
    #[inline]
    pub(crate) fn arena(&'static self) -> &'static Arena {
        &self.arena
    }

    /// Its number, as the daemon counts.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// The channel of `slot` in its life `generation`.
    #[inline]
    pub(crate) fn channel(&'static self, slot: u32, generation: u32) -> Option<Channel<'static>> {
        Channel::with_generation(&self.arena, slot, generation)
    }

    /// So many entries of its inbox were none to accept: with [`VAIN`] in a row it is set aside for a second. Who fills it is
    /// as fast as who looks, and accept(2), which must not wait, would never return.
    pub(crate) fn refused(&self, entries: u32) {
        if self.vain.fetch_add(entries, Relaxed).saturating_add(entries) >= VAIN {
            self.vain.store(0, Relaxed);
            self.aside_until.store(fs_shm::now().saturating_add(ASIDE), Relaxed);
        }
    }

    /// A connection of it was accepted.
    pub(crate) fn accepted(&self) {
        if self.vain.load(Relaxed) != 0 {
            self.vain.store(0, Relaxed);
        }
    }

    /// Takes the oldest connection out of its inbox; `None`: there is none, or none yet behind much that is none.
    pub(crate) fn accept(&'static self) -> Option<Channel<'static>> {
        let mut left = VAIN;
        let channel = Channel::accept_within(&self.arena, &mut left);
        if channel.is_none() && left != VAIN {
            self.refused(VAIN - left);
        }
        channel
    }

    /// Connections wait in its inbox, about.
    pub(crate) fn waits(&self) -> bool {
        self.arena.pending() != 0 && !self.is_aside()
    }

    /// Since when the oldest one waits ([`Arena::waiting_since`]).
    pub(crate) fn waiting_since(&self) -> Option<u64> {
        self.arena.waiting_since().filter(|_| !self.is_aside())
    }

    fn is_aside(&self) -> bool {
        let until = self.aside_until.load(Relaxed);
        if until != 0 && until <= fs_shm::now() {
            // Lost: another thread has set it aside again.
            let _lost = self.aside_until.compare_exchange(until, 0, Relaxed, Relaxed);
            return false;
        }
        until != 0
    }

    /// A port for an opener that the kernel gives none: of the kernel's ephemeral range; arenas begin at different places.
    pub(crate) fn ephemeral_port(&self) -> u16 {
        const FIRST: u32 = 32768;
        const COUNT: u32 = 28232;
        let count = self.opened.fetch_add(1, Relaxed);
        (FIRST + self.id.wrapping_mul(509).wrapping_add(count) % COUNT) as u16
    }

    /// The daemon may have a port for a slot that has none.
    pub(crate) fn may_have_port(&self) -> bool {
        let until = self.no_port_until.load(Relaxed);
        until == 0 || until <= fs_shm::now()
    }

    /// It has none. Who connects all the time does not ask it all the time.
    pub(crate) fn record_no_port(&self) {
        /// Shorter: a limit makes the daemon busy with those who have met it. Longer: they are the kernel's though there are ports again.
        const KEPT: u64 = 100_000_000;
        self.no_port_until.store(fs_shm::now().saturating_add(KEPT), Relaxed);
    }

    /// A socket stands for a connection in this slot.
    pub(crate) fn record_use(&self, slot: u32) {
        let bit = 1 << (slot / 64).min(63);
        if self.used.load(Relaxed) & bit == 0 {
            self.used.fetch_or(bit, Relaxed);
        }
    }

    /// A thread of this process is in the middle of a call on it.
    fn is_in_call(&self) -> bool {
        let used = self.used.load(Relaxed);
        let mut groups = (0..GROUPS).filter(|group| used >> (*group).min(63) & 1 != 0);
        groups.any(|group| self.arena.is_locked_here(group as usize))
    }

    /// What the attachment page says of a channel of it.
    pub(crate) fn object(&self, slot: u32) -> Object {
        let side = match self.arena.side() {
            Side::A => PeerSide::A,
            Side::B => PeerSide::B,
        };
        Object::Channel { arena: self.id, slot, side }
    }

    /// Its memory is a core's.
    pub(crate) fn trust(&self) {
        self.trusted.store(1, Relaxed);
    }

    /// The daemon has said that connections by it come from this address and go there.
    pub(crate) fn record_ends(&self, from: IpAddr, to: SocketAddr) {
        let words = words(from, to);
        if !self.ends.iter().any(|ends| ends.is(&words)) {
            // Without a place they are asked for.
            let _noted = self.ends.iter().any(|ends| ends.take(&words));
        }
    }

    /// The own address of a connection and its peer's. They are what its memory says, which others write, if the daemon says the
    /// same.
    ///
    /// # Errors
    /// They are not true, or nobody can say.
    pub(crate) fn ends_of(&self, channel: &Channel<'static>) -> Result<(SocketAddr, SocketAddr), Errno> {
        let ends = channel.local_addr().to_std().zip(channel.peer_addr().to_std()).ok_or(Errno::NOTCONN)?;
        if self.trusted.load(Relaxed) != 0 {
            return Ok(ends);
        }
        let (a, b) = if channel.side() == Side::A { ends } else { (ends.1, ends.0) };
        let words = words(a.ip(), b);
        if !self.ends.iter().any(|ends| ends.is(&words)) {
            let attachment = process::current().filter(|now| now.life() == self.life).ok_or(Errno::NOTCONN)?;
            let all = vouch(attachment.client(), &IN_VAIN, self.id, [a, b]).map_err(|error| {
                attachment.failed(&error);
                Errno::NOTCONN
            })?;
            if all {
                self.trust();
                return Ok(ends);
            }
            self.record_ends(a.ip(), b);
        }
        let is_its = a.port() != 0 && a.port() == channel.lent_port();
        is_its.then_some(ends).ok_or(Errno::NOTCONN)
    }

    /// Has the daemon say who has opened the connection that waits longest: who takes it need not ask then. What becomes of it
    /// meanwhile, and what the answer is, is for [`Mapped::ends_of`].
    pub(crate) fn ask_for_next(&'static self) {
        if let Some(channel) = Channel::next(&self.arena) {
            // As it is taken it is asked again.
            let _ = self.ends_of(&channel);
        }
    }

    /// Whether [`Mapped::ask_for_next`] has a use: it is not known, and the answer can be kept.
    pub(crate) fn should_ask_for_next(&'static self) -> bool {
        let has_place = || self.ends.iter().any(|ends| ends.written.load(Relaxed) == 0);
        self.trusted.load(Relaxed) == 0
            && has_place()
            && Channel::next(&self.arena).is_some_and(|channel| {
                let ends = channel.peer_addr().to_std().zip(channel.local_addr().to_std());
                ends.is_some_and(|(a, b)| {
                    let words = words(a.ip(), b);
                    !self.ends.iter().any(|ends| ends.is(&words))
                })
            })
    }

    /// Its place among its listener's arenas, as last noted.
    pub(crate) fn place(&self) -> Option<usize> {
        self.place.load(Relaxed).checked_sub(1).map(|place| place as usize)
    }

    pub(crate) fn record_place(&self, place: usize) {
        self.place.store(place as u32 + 1, Relaxed);
    }

    /// The lane of this poller, joined now if it was not. `None`: none is left.
    pub(crate) fn lane(&'static self, shared: Shared, poller: u32) -> Option<Lane> {
        let of = &self.lanes[shared as usize];
        let known = of.load(Relaxed);
        if known >> 32 == u64::from(poller)
            && let Some(lane) = Lane::at(known as u32 as usize)
        {
            return Some(lane);
        }
        let lane = self.arena.join(poller)?;
        self.arena.watch_inbox(lane, true);
        self.arena.share_inbox(lane, true);
        of.store(u64::from(poller) << 32 | lane.index() as u64, Relaxed);
        Some(lane)
    }

    fn is(&self, life: u32, id: u32, side: Side) -> bool {
        self.life == life && self.id == id && self.arena.side() == side
    }
}

fn places(life: u32, id: u32, side: Side) -> impl Iterator<Item = usize> {
    let first = (id as usize).wrapping_mul(2).wrapping_add(side.index()).wrapping_add(life as usize * 7919);
    (0..64).map(move |next| first.wrapping_add(next) % COUNT)
}

/// So often a daemon that is alive is asked who has opened a connection, for [`TIMEOUT`](fs_shm::control::TIMEOUT) each time: one that
/// its opener knows of is lost where nobody can say. Fewer: on a host that is too busy for the daemon connections are lost. More:
/// servers stand still for longer beside one that is stopped. Not one request for all of the time: what other threads ask would wait
/// behind it.
const ASKED: u32 = 5;

/// The daemon has not said the last time who has opened a connection.
static IN_VAIN: AtomicBool = AtomicBool::new(false);

/// [`Client::vouch`], again where that is not answered in time; once, where the last one was in vain.
fn vouch(client: &Client, in_vain: &AtomicBool, arena: u32, ends: [SocketAddr; 2]) -> Result<bool, Error> {
    let is_known = in_vain.load(Relaxed);
    let (due, most) = if is_known { (Due::AsKnown, 1) } else { (Due::InFull, ASKED) };
    let mut answer = client.vouch_within(arena, ends, due);
    for _ in 1..most {
        if !matches!(answer, Err(Error::TimedOut)) || in_vain.load(Relaxed) {
            break;
        }
        fs_shm::wait::give_way();
        answer = client.vouch_within(arena, ends, due);
    }
    in_vain.store(matches!(answer, Err(Error::TimedOut)), Relaxed);
    answer
}

/// The arena, if it is mapped.
pub(crate) fn find(life: u32, id: u32, side: Side) -> Option<&'static Mapped> {
    places(life, id, side).filter_map(|place| MAPPED.at(place)?.load()).find(|mapped| mapped.is(life, id, side))
}

/// Every arena that is mapped and not over.
pub(crate) fn all() -> impl Iterator<Item = &'static Arena> {
    let mapped = (0..COUNT).filter_map(|place| MAPPED.at(place)?.load());
    mapped.map(Mapped::arena).filter(|arena| !arena.is_retired())
}

/// How many arenas have been mapped.
static NEW: AtomicU32 = AtomicU32::new(0);

/// Sweeps between the first that finds an arena in nobody's use and the one that gives it back. One would be as good as none where two
/// threads sweep at once.
const REST: u32 = 2;

/// How many arenas are mapped between two looks for dead ones: each is 20 GiB of the 128 TiB of addresses there are.
const SWEEP: u32 = 32;

/// Gives back the memory of arenas that are over: their opener or their listener is gone, and so are all connections. That its
/// words say so does not suffice, as its peer writes them: no socket of this process is one of its connections, and no thread has a
/// lock in it, in this sweep and for [`REST`] before it, so that those who looked at one last have looked away. By the next sweep
/// what they wrote there goes too, and the arena is forgotten. `number`: counts up, from 1.
fn sweep(number: u32) {
    Socket::each(|socket| {
        if let Some(mapped) = socket.mapped() {
            // Another thread may be in a later sweep.
            mapped.in_use.fetch_max(number, Relaxed);
        }
    });
    for place in (0..COUNT).filter_map(|place| MAPPED.at(place)) {
        let Some(mapped) = place.load() else { continue };
        if mapped.arena.is_retired() {
            place.store(None);
            mapped.arena.clear_retired();
            continue;
        }
        let is_over = mapped.arena.is_closed() && mapped.arena.used() == 0;
        if !is_over || mapped.in_use.load(Relaxed) >= number || mapped.is_in_call() {
            mapped.idle_since.store(0, Relaxed);
            continue;
        }
        match mapped.idle_since.load(Relaxed) {
            0 => mapped.idle_since.store(number, Relaxed),
            since if number.saturating_sub(since) >= REST => mapped.arena.retire(),
            _ => {}
        }
    }
}

/// The arena with this memory, mapped now if it is not. `None`: no memory, no room, not an arena.
pub(crate) fn map(attachment: &Attachment, id: u32, side: Side, memory: &SideMemory) -> Option<&'static Mapped> {
    if let Some(mapped) = find(attachment.life(), id, side) {
        return Some(mapped);
    }
    enter(attachment, id, side, || Arena::map(memory.fds(), attachment.geometry(), side, process::bells()))
}

fn enter(
    attachment: &Attachment,
    id: u32,
    side: Side,
    map: impl FnOnce() -> Result<Arena, Errno>,
) -> Option<&'static Mapped> {
    let new = NEW.fetch_add(1, Relaxed).wrapping_add(1);
    if new.is_multiple_of(SWEEP) {
        sweep(new / SWEEP);
    }
    let arena = map().ok()?;
    let mapped: &'static Mapped = Box::leak(Box::new(Mapped::new(arena, id, attachment.life())));
    for place in places(attachment.life(), id, side) {
        let place = MAPPED.make(place)?;
        if place.claim(mapped) {
            return Some(mapped);
        }
        // Another thread was first with the same: this mapping stays unused.
        if let Some(other) = place.load().filter(|other| other.is(attachment.life(), id, side)) {
            return Some(other);
        }
    }
    None
}

/// The arena, asked of the daemon if it is not mapped (this process must take part in it).
pub(crate) fn ask(attachment: &Attachment, id: u32, side: Side) -> Option<&'static Mapped> {
    ask_whether(attachment, id, side).ok()
}

/// The same.
///
/// # Errors
/// `EACCES`: it is not for this process, but for another holder of the listener. Any other: it cannot be had now.
pub(crate) fn ask_whether(attachment: &Attachment, id: u32, side: Side) -> Result<&'static Mapped, Errno> {
    if let Some(mapped) = find(attachment.life(), id, side) {
        return Ok(mapped);
    }
    // Its memory is kept, or not asked for, where a handler jumps; nor does one jump out of malloc(3), where the program was not.
    let _section = Section::begin();
    match numbers::make(|| attachment.client().arena(id, side)) {
        Ok(memory) => map(attachment, id, side, &memory).ok_or(Errno::NOMEM),
        // There may be a number for one at a time.
        Err(Error::System(Errno::MFILE | Errno::MSGSIZE)) => {
            let part = |part| {
                let part = numbers::make(|| attachment.client().part_of_arena(id, side, part));
                part.inspect_err(|error| attachment.failed(error)).map_err(|_| Errno::MFILE)
            };
            let shared = part(ArenaPart::Shared)?;
            let (geometry, bells) = (attachment.geometry(), process::bells());
            let map = || Arena::map_in_turn(shared, || part(ArenaPart::Locks), geometry, side, bells);
            enter(attachment, id, side, map).ok_or(Errno::MFILE)
        }
        Err(Error::Failed(errno)) => Err(errno),
        Err(error) => {
            attachment.failed(&error);
            Err(Errno::IO)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_shm::{Geometry, NoBells, OpenArgs};
    use std::time::Duration;

    fn both() -> (&'static Arena, &'static Mapped) {
        let memory = Arena::create("fastsock-test", Geometry::SMALL).unwrap();
        let [a, b] =
            [Side::A, Side::B].map(|side| Arena::map(memory.of(side), Geometry::SMALL, side, &NoBells).unwrap());
        (Box::leak(Box::new(a)), Box::leak(Box::new(Mapped::new(b, 1, 1))))
    }

    /// Others are accepted meanwhile, and accept(2), which must not wait, comes to an end.
    #[test]
    fn an_inbox_of_refused_connections_is_set_aside_for_a_while() {
        let (a, mapped) = both();
        let open = || Channel::open(a, &OpenArgs::default()).unwrap();
        open();
        (0..VAIN / UNTRUE - 1).for_each(|_| mapped.refused(UNTRUE));
        assert!(mapped.waits(), "few are nothing");
        mapped.accept().unwrap();
        mapped.accepted();
        open();
        (0..VAIN / UNTRUE - 1).for_each(|_| mapped.refused(UNTRUE));
        assert!(mapped.waits() && mapped.waiting_since().is_some(), "one that was accepted is a new beginning");
        mapped.refused(UNTRUE);
        assert!(!mapped.waits() && mapped.waiting_since().is_none());
        mapped.aside_until.store(1, Relaxed);
        assert!(mapped.waits());
        assert!(mapped.accept().is_some());
    }

    /// A daemon that is late has as much to do already as it can.
    #[test]
    fn a_daemon_that_does_not_answer_is_asked_a_few_times_and_then_once() {
        let (mut client, daemon) = Client::pair().unwrap();
        client.set_timeout(Duration::from_millis(5));
        let in_vain = AtomicBool::new(false);
        let ends = [([127, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 2).into()];
        let asked = || {
            let answer = vouch(&client, &in_vain, 7, ends);
            assert_eq!(answer, Err(Error::TimedOut));
            let mut buffer = [0; 4096];
            let receive = || rustix::net::recv(&daemon, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT);
            std::iter::repeat_with(receive).take_while(Result::is_ok).count()
        };
        assert_eq!([asked(), asked(), asked()], [ASKED as usize, 1, 1]);
    }

    /// By the locks, which its peer does not write.
    #[test]
    fn who_is_in_a_call_is_seen_by_his_lock() {
        let (a, mapped) = both();
        let near = Channel::open(a, &OpenArgs::default()).unwrap();
        let far = mapped.accept().unwrap();
        assert_eq!((near.slot(), far.slot()), (0, 0));
        mapped.record_use(far.slot());
        assert!(!mapped.is_in_call());
        near.send_one(b"x").unwrap();
        let reading = far.reading().unwrap();
        assert!(mapped.is_in_call());
        drop(reading);
        assert!(!mapped.is_in_call());
    }
}
