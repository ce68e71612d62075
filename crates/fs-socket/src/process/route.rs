//! Where connections go: answers of the daemon, kept while its directory's generation stands.
//!
//! A cache of fixed size, read without a lock: an entry is a sequence lock; a reader that finds it being written, and a
//! writer that finds it taken, go to the daemon or on without it.

use core::{
    net::{IpAddr, SocketAddr},
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
        fence,
    },
};

use fs_shm::{
    Side,
    control::{GROUP_MAX, KernelReason, Way as Answer},
};
use rustix::{
    fd::{AsRawFd, BorrowedFd},
    io::Errno,
};

use crate::{
    descriptor::{kept, numbers},
    process::{
        Attachment,
        arenas::{self, Mapped},
        probe,
    },
    sys::{array::Array, call, pointer::Pointer, signals::Section},
};

/// Where a connection goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// To another process: side A of this arena; the address that it comes from.
    Local { arena: &'static Mapped, source: IpAddr },
    /// Over the wire.
    Wire { arena: &'static Mapped },
    /// The kernel's.
    Kernel(KernelReason),
    /// Denied.
    Refused(Errno),
}

/// One destination's answer.
#[derive(Debug)]
struct Entry {
    /// Odd: being written.
    sequence: AtomicU32,
    /// Life of the attachment.
    life: AtomicU32,
    generation: AtomicU64,
    /// Destination: address, then port | family << 16; the socket's network namespace.
    key: [AtomicU64; 4],
    /// Source address, then its family.
    source: [AtomicU64; 3],
    /// 1 local, 2 wire, 3 kernel; count of arenas << 8; reason << 16.
    way: AtomicU32,
    /// The next of the group.
    turn: AtomicU32,
    arenas: [Pointer<Mapped>; GROUP_MAX],
}

crate::sys::array::zeroed!(Entry);

const COUNT: usize = 512;
static ENTRIES: Array<Entry, COUNT> = Array::new();

const LOCAL: u32 = 1;
const WIRE: u32 = 2;
const KERNEL: u32 = 3;

/// The way to `to` for a socket; when it is bound the answer is its own, and not kept.
pub(crate) fn way(attachment: &Attachment, to: SocketAddr, bound: bool, placeholder: BorrowedFd<'_>) -> Way {
    if fs_shm::wait::is_confined() {
        // Whether the filter lets it connect is seen by calling connect(2).
        return Way::Kernel(KernelReason::Firewall);
    }
    let key = key(to, namespace(placeholder));
    let entry = ENTRIES.make(hash(&key));
    let known = if bound { None } else { entry.and_then(|entry| entry.read(attachment, &key)) };
    let is_kernels = matches!(known, Some(Way::Kernel(_) | Way::Refused(_)));
    // As for `arenas::ask_whether`.
    let _section = (known.is_none() || probe::is_restricted()).then(Section::begin);
    if (known.is_none() || probe::is_restricted() && !is_kernels)
        && let Some(reason) = probe::refused(to)
    {
        return Way::Kernel(reason);
    }
    if let Some(way) = known {
        return way;
    }
    // The daemon has it too for a moment.
    kept::spoil_number(placeholder.as_raw_fd());
    let routed = match numbers::make(|| attachment.client().route(to, placeholder)) {
        Ok(routed) => routed,
        Err(error) => {
            attachment.failed(&error);
            return Way::Kernel(KernelReason::NoDaemon);
        }
    };
    let mut known = [None; GROUP_MAX];
    let (kind, source) = match &routed.way {
        Answer::Local { source, arenas } => {
            let given = arenas.iter().flatten();
            let mapped = given.filter_map(|(id, memory)| arenas::map(attachment, *id, Side::A, memory));
            let mapped = mapped.inspect(|mapped| mapped.record_ends(*source, to));
            known.iter_mut().zip(mapped).for_each(|(place, arena)| *place = Some(arena));
            (LOCAL, *source)
        }
        Answer::Wire { arena, memory, core: _ } => {
            known[0] = arenas::map(attachment, *arena, Side::A, memory).inspect(|mapped| mapped.trust());
            (WIRE, to.ip())
        }
        Answer::Kernel(reason) => (KERNEL | (*reason as u32) << 16, to.ip()),
        // Asked anew each time: a rule may be of the socket.
        Answer::Refused(errno) => return Way::Refused(*errno),
    };
    let count = known.iter().flatten().count() as u32;
    let kind = if kind & 0xff != KERNEL && count == 0 { KERNEL | (KernelReason::Limit as u32) << 16 } else { kind };
    if let (false, Some(entry)) = (bound, entry) {
        entry.write(attachment, routed.generation, &key, kind | count << 8, source, &known);
    }
    choose(kind | count << 8, source, &known, turn(entry))
}

/// Which of a group is next.
fn turn(entry: Option<&Entry>) -> u32 {
    entry.map_or(0, |entry| entry.turn.fetch_add(1, Relaxed))
}

fn choose(way: u32, source: IpAddr, known: &[Option<&'static Mapped>; GROUP_MAX], turn: u32) -> Way {
    let count = (way >> 8 & 0xff).clamp(1, GROUP_MAX as u32);
    let arena = known[(turn % count) as usize];
    match (way & 0xff, arena) {
        (LOCAL, Some(arena)) => Way::Local { arena, source },
        (WIRE, Some(arena)) => Way::Wire { arena },
        _ => Way::Kernel(KernelReason::from_code((way >> 16) as u8).unwrap_or(KernelReason::Limit)),
    }
}

impl Entry {
    fn read(&self, attachment: &Attachment, key: &[u64; 4]) -> Option<Way> {
        let sequence = self.sequence.load(Acquire);
        let same = sequence & 1 == 0
            && self.life.load(Relaxed) == attachment.life()
            && self.generation.load(Relaxed) == attachment.directory().generation()
            && self.key.iter().zip(key).all(|(have, want)| have.load(Relaxed) == *want);
        if !same {
            return None;
        }
        let (way, source) = (self.way.load(Relaxed), self.source.each_ref().map(|word| word.load(Relaxed)));
        let known = self.arenas.each_ref().map(Pointer::load);
        fence(Acquire);
        if self.sequence.load(Relaxed) != sequence {
            return None;
        }
        Some(choose(way, address(source), &known, self.turn.fetch_add(1, Relaxed)))
    }

    fn write(
        &self,
        attachment: &Attachment,
        generation: u64,
        key: &[u64; 4],
        way: u32,
        source: IpAddr,
        known: &[Option<&'static Mapped>; GROUP_MAX],
    ) {
        let sequence = self.sequence.load(Relaxed);
        let taken = sequence & 1 != 0
            || self.sequence.compare_exchange(sequence, sequence.wrapping_add(1), Acquire, Relaxed).is_err();
        if taken {
            return;
        }
        fence(Release);
        self.life.store(attachment.life(), Relaxed);
        self.generation.store(generation, Relaxed);
        self.key.iter().zip(key).for_each(|(place, word)| place.store(*word, Relaxed));
        self.source.iter().zip(words(source)).for_each(|(place, word)| place.store(word, Relaxed));
        self.way.store(way, Relaxed);
        self.arenas.iter().zip(known).for_each(|(place, arena)| place.store(*arena));
        self.sequence.store(sequence.wrapping_add(2), Release);
    }
}

/// Address in two words, family in the third.
fn words(ip: IpAddr) -> [u64; 3] {
    let (octets, family) = match ip {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped().octets(), 4),
        IpAddr::V6(ip) => (ip.octets(), 6),
    };
    let bits = u128::from_be_bytes(octets);
    [(bits >> 64) as u64, bits as u64, family]
}

fn address([high, low, family]: [u64; 3]) -> IpAddr {
    let ip = core::net::Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
    if family == 4 { ip.to_ipv4_mapped().map_or(ip.into(), IpAddr::V4) } else { ip.into() }
}

/// The network namespace of a socket: what is behind an address in another one is somebody else. A process goes from one to the
/// other by unshare(2) and setns(2), by whatever system call.
fn namespace(placeholder: BorrowedFd<'_>) -> u64 {
    use libc::{SO_NETNS_COOKIE, SOL_SOCKET};
    let mut cookie = [0; 8];
    match call::getsockopt(placeholder.as_raw_fd(), SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie) {
        Ok(8) => u64::from_ne_bytes(cookie),
        // The daemon does not start on such a kernel.
        _ => 0,
    }
}

fn key(to: SocketAddr, namespace: u64) -> [u64; 4] {
    let [high, low, family] = words(to.ip());
    let scope = if let SocketAddr::V6(to) = to { to.scope_id() } else { 0 };
    [high, low, family << 16 | u64::from(to.port()) | u64::from(scope) << 32, namespace]
}

/// By the destination: the same in all namespaces.
fn hash([destination @ .., _]: &[u64; 4]) -> usize {
    let mixed =
        destination.iter().fold(0_u64, |sum, word| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
    (mixed >> 20) as usize % COUNT
}

/// Forgets an answer that turned out to be wrong (its arena was closed).
pub(crate) fn forget(to: SocketAddr) {
    if let Some(entry) = ENTRIES.at(hash(&key(to, 0))) {
        entry.generation.store(0, Relaxed);
    }
}

/// In a forked child: the arenas are the parent's to open connections in.
pub(crate) fn forked() {
    for place in 0..COUNT {
        let Some(entry) = ENTRIES.at(place) else { return };
        entry.generation.store(0, Relaxed);
        // Another thread of the parent's was writing it.
        if entry.sequence.load(Relaxed) & 1 != 0 {
            entry.sequence.fetch_add(1, Relaxed);
        }
    }
}
