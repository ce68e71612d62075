//! Every structure in shared memory. Version [`VERSION`]; `docs/SHM.md` explains who writes what and in which order.
//!
//! All fields are atomics: another process writes them at any time, and may be hostile. No value read here is used
//! as an offset or a length before it was checked against the [`Geometry`], which comes from the control plane.

use crate::word::{AtomicU32, AtomicU64};

/// Changes whenever the meaning or place of anything in this file changes. Part of `Hello`.
pub const VERSION: u32 = 15;

/// First word of an arena: "fsarena" and a zero byte.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"fsarena\0");

/// Lanes of each side of an arena: pollers that can watch it at once. A channel's watch mask is a `u32`.
pub const LANES: usize = 32;

/// Bytes that travel in the producer's own line beside `tail`, so that a short message costs one cache-line transfer
/// instead of two.
pub const INLINE: usize = 40;

/// Large rings of an arena, at most.
pub(crate) const LARGES: usize = 256;

/// A ring position is counted in 64 bits; where it is packed beside other fields, in this many.
pub(crate) const POSITION_BITS: u32 = 48;

/// Which end of an arena: the opener (A) or the acceptors (B).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Side {
    /// The process that opens connections; for connections from the wire, the daemon's core.
    A = 0,
    /// All holders of the listener; for connections to the wire, the daemon's core.
    B = 1,
}

impl Side {
    /// The peer's side.
    pub const fn other(self) -> Self {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }

    /// 0 for A, 1 for B.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The sizes of an arena. Told by the daemon over the control connection, never read from the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Channels; a power of two, 64 ..= 65536.
    pub slots: u32,
    /// log2 of the bytes reserved (not used) for one direction; 14 ..= 24. The largest ring is half of it.
    pub stride_log2: u8,
    /// log2 of the bytes a ring starts with; 12 ..= `stride_log2` - 1.
    pub ring_log2: u8,
}

impl Default for Geometry {
    fn default() -> Self {
        Geometry::STANDARD
    }
}

impl Geometry {
    /// 16384 channels, rings of 16 KiB that grow to 256 KiB, 256 large rings of up to 16 MiB; 20 GiB of address space, sparse.
    pub const STANDARD: Geometry = Geometry { slots: 16384, stride_log2: 19, ring_log2: 14 };

    /// 64 channels, rings of 4 KiB that grow to 16 KiB, two large rings of up to 1 MiB; for tests.
    pub const SMALL: Geometry = Geometry { slots: 64, stride_log2: 15, ring_log2: 12 };

    /// Whether the limits above hold.
    pub const fn is_valid(self) -> bool {
        self.slots.is_power_of_two()
            && self.slots >= 64
            && self.slots <= 1 << 16
            && self.stride_log2 >= 14
            && self.stride_log2 <= 24
            && self.ring_log2 >= 12
            && self.ring_log2 < self.stride_log2
    }

    /// As one word, for messages: slots | stride_log2 << 32 | ring_log2 << 40.
    pub const fn to_word(self) -> u64 {
        self.slots as u64 | (self.stride_log2 as u64) << 32 | (self.ring_log2 as u64) << 40
    }

    /// The reverse of [`Geometry::to_word`]; `None` if not valid.
    pub const fn from_word(word: u64) -> Option<Self> {
        let geometry = Geometry { slots: word as u32, stride_log2: (word >> 32) as u8, ring_log2: (word >> 40) as u8 };
        if geometry.is_valid() && word >> 48 == 0 { Some(geometry) } else { None }
    }

    /// What `Welcome` says. `None`: another layout version, or not valid.
    pub fn from_welcome(told: crate::control::ArenaGeometry) -> Option<Self> {
        let crate::control::ArenaGeometry { slots, stride_log2, ring_log2, layout } = told;
        let geometry = Geometry { slots, stride_log2, ring_log2 };
        (layout == VERSION && geometry.is_valid()).then_some(geometry)
    }

    /// What the daemon puts into `Welcome`.
    pub fn to_welcome(self) -> crate::control::ArenaGeometry {
        let Geometry { slots, stride_log2, ring_log2 } = self;
        crate::control::ArenaGeometry { slots, stride_log2, ring_log2, layout: VERSION }
    }

    /// Largest ring of a stride, as log2 of bytes.
    pub(crate) const fn ring_max_log2(self) -> u8 {
        self.stride_log2 - 1
    }

    /// log2 of the bytes reserved for a large ring, and of the most that one direction may hold unread.
    pub(crate) const fn large_log2(self) -> u8 {
        if self.stride_log2 < 19 { self.stride_log2 + 5 } else { 24 }
    }

    /// Large rings that there is room for.
    pub(crate) const fn larges(self) -> usize {
        let wanted = self.slots as usize / 32;
        if wanted < LARGES { wanted } else { LARGES }
    }

    pub(crate) const fn words(self) -> usize {
        self.slots as usize / 64
    }

    /// Where the bitmap of taken slots begins.
    pub const fn slot_map(self) -> usize {
        4096
    }

    pub(crate) const fn touched(self) -> usize {
        self.slot_map() + self.words() * 8
    }

    /// Where the lanes are.
    pub const fn lanes(self) -> Lanes {
        Lanes((self.touched() + self.words() * 8).next_multiple_of(4096))
    }

    /// Where the entries of the inbox begin.
    pub const fn inbox(self) -> usize {
        self.lanes().marks(Side::A, 0, self.words()).next_multiple_of(4096)
    }

    /// Where the blocks begin.
    pub const fn blocks(self) -> usize {
        (self.inbox() + self.slots as usize * 8).next_multiple_of(4096)
    }

    /// Where the rings begin: a multiple of the stride, so that each is aligned to its size.
    pub const fn rings(self) -> usize {
        (self.blocks() + self.slots as usize * size_of::<Block>()).next_multiple_of(1 << self.stride_log2)
    }

    pub(crate) const fn large_rings(self) -> usize {
        self.rings() + ((self.slots as usize * 2) << self.stride_log2)
    }

    /// Size of the memfd, in bytes; nearly all of it holes.
    pub const fn bytes(self) -> usize {
        self.large_rings() + (self.larges() << self.large_log2())
    }
}

impl Geometry {
    /// Size of the memfd with the locks of one side, in bytes.
    pub const fn locks_bytes(self) -> usize {
        self.slot_locks(self.slots).next_multiple_of(4096)
    }

    /// Where the locks of a slot are in it.
    #[inline]
    pub const fn slot_locks(self, slot: u32) -> usize {
        size_of::<LocksHead>() + slot as usize * size_of::<SlotLocks>()
    }
}

/// Where the lanes are: the heads of side A's and of side B's, then, for each 64 slots, the [`Marks`] of all. So few slots in use
/// take few pages, however many lanes there are.
#[derive(Clone, Copy, Debug)]
pub struct Lanes(usize);

impl Lanes {
    const HEADS: usize = (2 * LANES * size_of::<LaneHead>()).next_multiple_of(4096);

    /// Where the head of one begins.
    #[inline]
    pub const fn head(self, side: Side, lane: usize) -> usize {
        self.0 + (side.index() * LANES + lane) * size_of::<LaneHead>()
    }

    /// Where the marks of one for the 64 slots of `word` begin.
    #[inline]
    pub const fn marks(self, side: Side, lane: usize, word: usize) -> usize {
        self.0 + Self::HEADS + ((word * 2 + side.index()) * LANES + lane) * size_of::<Marks>()
    }
}

/// Offset 0 of an arena.
#[repr(C, align(64))]
pub struct Head {
    /// `MAGIC`. Informational, as is the geometry: the truth comes over the control connection.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    pub(crate) _pad0: AtomicU32,
    /// [`Geometry::to_word`].
    pub geometry: AtomicU64,
    /// The daemon's number of the arena, which it writes. A hint.
    pub number: AtomicU32,
    /// 1: the daemon has been told that memory can go back (`trim.rs`).
    pub trim: AtomicU32,
    pub(crate) _pad1: [AtomicU64; 4],
    /// Not 0: no new channels (listener closed, side gone). Anyone sets it, nobody clears it.
    pub closed: AtomicU32,
    /// Connections that may wait for accept (the listener's backlog and one); 0: any number. Those behind them are still being
    /// made. The daemon writes it.
    pub accept_limit: AtomicU32,
    /// Milliseconds that a connection without data is kept from its acceptor (TCP_DEFER_ACCEPT). The daemon writes it.
    pub defer: AtomicU32,
    /// Not 0: somebody follows the arena (`follow.rs`). The daemon writes it; new connections are marked accordingly.
    pub captured: AtomicU32,
    pub(crate) _pad2: [AtomicU32; 12],
    /// Entries pushed, free-running. Opener only, under [`LocksHead::inbox`].
    pub inbox_tail: AtomicU64,
    /// Entries before this one may wait, as `accept_limit` says. Whoever makes room, or finds some, advances it.
    pub inbox_admitted: AtomicU64,
    pub(crate) _pad3: [AtomicU64; 6],
    /// Entries popped, free-running; acceptors advance it by compare-exchange.
    pub inbox_head: AtomicU64,
    pub(crate) _pad4: [AtomicU64; 7],
    /// Lanes of side B that watch the inbox.
    pub inbox_watch: AtomicU32,
    /// Futex: bumped when an entry is pushed while `inbox_sleep` is set.
    pub(crate) inbox_word: AtomicU32,
    /// Not 0: somebody sleeps on `inbox_word`.
    pub(crate) inbox_sleep: AtomicU32,
    /// Of `inbox_watch`: one of these is rung for each entry.
    pub(crate) inbox_one_of: AtomicU32,
    /// Of `inbox_one_of`: rung if none of the others sleeps.
    pub(crate) inbox_last: AtomicU32,
    pub(crate) _pad5: [AtomicU32; 11],
    /// Connections that have ended, for statistics only: either side may have scribbled on it.
    pub ended: AtomicU64,
    /// Bytes that they carried, both directions.
    pub(crate) ended_bytes: AtomicU64,
    /// When one ended that side B had ended first, as TCP would have it wait there: nanoseconds of CLOCK_MONOTONIC.
    pub waits: AtomicU64,
    /// The same of those for which `waits_at` has no room.
    pub(crate) waits_elsewhere: AtomicU64,
    pub(crate) _pad6: [AtomicU64; 4],
    /// Large rings: who has each. Bits 0..20: 0: nobody, or (slot * 2 + producer's side) + 1; bit 20: has been used since its
    /// memory was last given back; bits 32..: how often it was taken.
    pub(crate) larges: [AtomicU64; LARGES],
    /// Where they wait, by a hash of the address.
    pub(crate) waits_at: [WaitsAt; WAITS],
}

/// How many addresses of one listener are told apart.
pub(crate) const WAITS: usize = 8;

/// When a connection ended that waits (`Head::waits`), of one local address.
#[repr(C)]
pub(crate) struct WaitsAt {
    /// The address ([`crate::Addr`]).
    pub(crate) addr: [AtomicU64; 4],
    /// As `Head::waits`; 0: the entry is free.
    pub(crate) at: AtomicU64,
}

/// One lane: what one poller has to look at.
#[repr(C, align(64))]
pub struct LaneHead {
    /// Poller id; 0: the lane is free.
    pub poller: AtomicU32,
    /// 1: the poller sleeps, whoever swaps it to 0 rings its bell.
    pub sleeping: AtomicU32,
    /// 1: the poller asks in which order the channels changed ([`Marks::since`]).
    pub ordered: AtomicU32,
    pub(crate) _pad0: AtomicU32,
    pub(crate) _pad: [AtomicU64; 6],
    /// Bit w of this bitmap: a dirty word of the lane's [`Marks`] w is perhaps not 0.
    pub summary: [AtomicU64; 16],
}

/// Of one lane and 64 slots: which of them changed, in two ways: something to read, and room to write. What is no more of one
/// than of the other (an end, an error) is in both.
#[repr(C, align(64))]
pub struct Marks {
    /// Bit s: slot s of the 64.
    pub dirty: [AtomicU64; 2],
    pub(crate) _pad: [AtomicU64; 6],
    /// In an ordered lane: when the bit was set ([`now`](crate::now())). A hint: it decides what is reported first, nothing else. Here, and not in the channel's block, as the poller looks at several at once: eight of them are one line.
    pub since: [[AtomicU64; 64]; 2],
}

/// A slot's block.
#[repr(C, align(64))]
pub struct Block {
    /// [`crate::channel::state`].
    pub state: AtomicU64,
    /// Network namespace of side A and of side B (inode number), informational.
    pub netns: [AtomicU64; 2],
    pub(crate) _pad: [AtomicU64; 5],
    /// Address of side A, address of side B ([`crate::Addr`]).
    pub addr: [[AtomicU64; 4]; 2],
    /// Written by the side of that index as producer. Each pair of lines (`Out`, `OutRare`) is 128-byte aligned.
    pub out: [OutPair; 2],
    /// Written by the side of that index as consumer.
    pub inn: [InPair; 2],
    /// Notes of the producer of that index; its peer does not look at them.
    pub tx: [TxOwn; 2],
    /// Of the side as a whole.
    pub own: [SideOwn; 2],
    /// What the side of that index asks of TCP.
    pub wish: [Wish; 2],
}

/// Producer's two lines.
#[repr(C, align(64))]
pub struct OutPair {
    /// Written with every message.
    pub hot: Out,
    /// Written seldom, read often: stays shared in both caches.
    pub rare: OutRare,
}

/// Consumer's two lines.
#[repr(C, align(64))]
pub struct InPair {
    /// Written with every receive.
    pub hot: In,
    /// What the peer must look at after publishing.
    pub wake: Wake,
}

/// The producer's line: one transfer of this line carries a short message, and the credit for the other direction.
#[repr(C, align(64))]
pub struct Out {
    /// Bytes produced, free-running. Stored last (release).
    pub tail: AtomicU64,
    /// This side's `In::head` when it published: saves its peer from reading that line.
    pub ack: AtomicU64,
    /// Low 48 bits: position of the first inline byte; bits 48..: their number, 0 = none.
    pub inline_at: AtomicU64,
    /// The inline bytes. Written only while the ring is empty.
    pub inline: [AtomicU64; INLINE / 8],
}

/// What changes seldom at the producer.
#[repr(C, align(64))]
pub struct OutRare {
    /// Ring sizes: low 48 bits position S, bits 48..56 log2 of the size that holds positions before S, bits 56..64
    /// of the size that holds the others.
    pub map: AtomicU64,
    /// Urgent byte: its position + 1; 0: none so far.
    pub urgent: AtomicU64,
    /// 1: nothing follows `tail`.
    pub fin: AtomicU32,
    /// 1: the producer wants to be told when there is space.
    pub(crate) want_space: AtomicU32,
    /// Counts up when something in this side's [`Wish`] has changed: a core looks at it with each batch of bytes.
    pub asks: AtomicU32,
    pub(crate) _pad0: AtomicU32,
    /// MSG_MORE: if the bytes end here, more are about to follow. A hint; 0: none so far.
    pub more: AtomicU64,
    /// The large ring in use; 0: none. Low 48 bits: the position from which on bytes are in it; bits 48..58: its number + 1;
    /// bits 58..64: log2 of its size. Means nothing once [`TxOwn::lease`] is 0, until the producer clears it.
    pub large: AtomicU64,
    /// Unread bytes in front of this position are skipped: urgent ones, each next when another came; 0: none so far.
    pub skipped: AtomicU64,
    /// SO_RCVLOWAT keeps no unread bytes in front of this position from the reader (`Channel::is_enough`); `u64::MAX`: none at all.
    pub(crate) pushed: AtomicU64,
}

/// The consumer's line.
#[repr(C, align(64))]
pub struct In {
    /// Bytes consumed, free-running.
    pub head: AtomicU64,
    /// Urgent position + 1 that was read out of band.
    pub(crate) urgent_read: AtomicU64,
    /// This side's own `Out::tail` when it last waited for data: the same again means that it only receives.
    pub(crate) sent_before: AtomicU64,
    pub(crate) _pad: [AtomicU64; 5],
}

/// What the peer looks at after it published: who waits here.
#[repr(C, align(64))]
pub struct Wake {
    /// Lanes (of this side) that watch the channel.
    pub watch: AtomicU32,
    /// Not 0: somebody sleeps on `rx_word`.
    pub(crate) rx_sleep: AtomicU32,
    /// Not 0: somebody sleeps on `tx_word`.
    pub(crate) tx_sleep: AtomicU32,
    /// Futex of readers.
    pub(crate) rx_word: AtomicU32,
    /// Futex of writers.
    pub(crate) tx_word: AtomicU32,
    /// CPU + 1 on which this side last began to wait; 0: unknown.
    pub cpu: AtomicU32,
    /// When the channel came into the inbox (side B), on the same clock, and a hint, as [`Marks::since`].
    pub came: AtomicU64,
    pub(crate) _pad: [AtomicU64; 4],
}

/// The producer's private line.
#[repr(C, align(64))]
pub struct TxOwn {
    /// Not 0: somebody has the lock of this side's senders ([`SlotLocks::send`]). For those who only look: it keeps nobody from anything.
    pub writer: AtomicU64,
    /// The consumer's `head` as last seen.
    pub head_seen: AtomicU64,
    /// Who holds the large ring that `OutRare::large` names: 0: nobody; odd: the producer, writing; even: whoever takes it
    /// by compare-exchange. Counts up with each write.
    pub lease: AtomicU64,
    /// The last lease there was, of this connection or of one before it in the slot: none comes twice.
    pub(crate) last_lease: AtomicU64,
    /// When the daemon is to see to this side, in nanoseconds of CLOCK_MONOTONIC; 0: never.
    pub due: AtomicU64,
    /// Bytes behind `tail` that are written, and held back (TCP_CORK, MSG_MORE).
    pub held: AtomicU64,
    /// Bytes from the large ring's first position on that may be used: there was memory for them.
    pub backed: AtomicU64,
    /// Not 0: there was no memory for more when so many bytes were unread. A writer waits until fewer are.
    pub short: AtomicU64,
}

/// What all descriptors of one side share.
#[repr(C, align(64))]
pub struct SideOwn {
    /// Descriptors (in all processes) that stand for this side.
    pub refs: AtomicU32,
    /// shutdown(2)s under way that have not told of the end yet; also those of processes that were killed in the middle.
    pub(crate) telling: AtomicU32,
    /// SO_ERROR: an errno, 0: none.
    pub error: AtomicU32,
    /// [`crate::channel`]: RCV_SHUT, SND_SHUT, RESET_SEEN, OOB_INLINE, CAPTURED.
    pub flags: AtomicU32,
    pub(crate) _pad1: AtomicU32,
    /// SO_SNDBUF and SO_RCVBUF, as getsockopt(2) gives them; 0: the system's default.
    pub buffers: [AtomicU32; 2],
    pub(crate) _pad2: [AtomicU32; 9],
}

/// What a side asks of TCP, if its peer is a core: options ([`crate::channel::Options`]), and questions.
#[repr(C, align(64))]
pub struct Wish {
    /// [`crate::channel::Options`] in words.
    pub words: [AtomicU32; WISH_WORDS],
    /// TCP_QUICKACK: counts up by two with each setting, bit 0 is the value.
    pub quick: AtomicU32,
    /// Questions asked: TCP_INFO, SIOCOUTQ.
    pub asked: AtomicU32,
    /// The last one that the core has answered; the answer is in the first page of the core's stride. Futex.
    pub answered: AtomicU32,
    pub(crate) _pad: [AtomicU32; 1],
}

/// Offset 0 of the memory with a side's locks, and what says how its calls wait. The holders of that side map it, and its peer does
/// not: so nobody but they can keep one of them waiting. A lock is a word ([`crate::holder`]).
#[repr(C, align(64))]
pub struct LocksHead {
    /// Of the opener's threads, which push into the inbox.
    pub inbox: AtomicU64,
    /// The slot whose turn it is, for the opener ([`Arena::turn`](crate::Arena::turn)). A hint.
    pub(crate) turn: AtomicU32,
    pub(crate) _pad0: AtomicU32,
    pub(crate) _pad: [AtomicU64; 6],
}

/// What a side alone has of a slot, in one line: who answers takes both locks, and two lines for each of many connections are not in
/// the cache. Threads that read and write one connection at once pass it to and fro. What is not a lock is seldom written. The side
/// sets all of it when its part of a connection begins, as its peer cannot.
#[repr(C, align(64))]
pub struct SlotLocks {
    /// Of those who receive.
    pub receive: AtomicU64,
    /// Of those who send.
    pub send: AtomicU64,
    /// The generation of the slot that the words below are of. The one in the state word may be the peer's doing.
    pub life: AtomicU32,
    /// O_NONBLOCK, O_ASYNC … as fcntl(F_GETFL) gives them.
    pub status: AtomicU32,
    /// SO_RCVLOWAT; 0 counts as 1.
    pub rcvlowat: AtomicU32,
    /// Not 0: another process holds this side too, or did once, or the daemon comes to its send lock.
    pub several: AtomicU32,
    /// Free for the owner of the side (fs-socket: time-outs among them); zeroed with the slot.
    pub user: [AtomicU64; 3],
    /// The port that connections in this slot come from, which the daemon holds in the kernel; 0: none. The daemon alone writes it, the
    /// same for both sides; it outlives the connections.
    pub port: AtomicU32,
    pub(crate) _pad: AtomicU32,
}

/// Words of [`Wish::words`].
pub(crate) const WISH_WORDS: usize = 12;

const _: () = {
    assert!(size_of::<Block>() == 1024);
    assert!(size_of::<Wish>() == 64);
    assert!(size_of::<Out>() == 64);
    assert!(size_of::<OutRare>() == 64);
    assert!(size_of::<In>() == 64);
    assert!(size_of::<Wake>() == 64);
    assert!(size_of::<TxOwn>() == 64);
    assert!(size_of::<SideOwn>() == 64);
    assert!(size_of::<LocksHead>() == 64 && size_of::<SlotLocks>() == 64);
    assert!(size_of::<LaneHead>() == 192);
    assert!(size_of::<Marks>() == 1088);
    assert!(size_of::<Head>() <= 4096);
    assert!(Geometry::STANDARD.is_valid() && Geometry::SMALL.is_valid());
};
