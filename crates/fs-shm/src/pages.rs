//! The pages that the daemon shares with one process or with all: attachment, listener, directory.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use libc::{FUTEX_OWNER_DIED, FUTEX_WAITERS};
use rustix::fs::SealFlags;
use rustix::io::Errno;

use crate::arena::sealed_memfd;
use crate::control::Object;
use crate::futex;
use crate::region_unsafe::Region;
use crate::word::{AtomicU32, AtomicU64};

/// Descriptor numbers that an attachment page has room for (2^20, the usual hard limit of RLIMIT_NOFILE).
pub const DESCRIPTORS: usize = 1 << 20;

/// One descriptor number's entry.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct Entry {
    object: AtomicU64,
    cookie: AtomicU64,
}

/// Behind the entries: whether the process is in the middle of changing them.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Changes {
    /// Changes under way.
    now: AtomicU32,
    /// Changes begun.
    begun: AtomicU32,
}

/// What a process holds, for the daemon to see when it dies, forks or execs. Sparse, 16 MiB.
#[derive(Debug)]
pub struct AttachmentPage {
    region: Region,
}

impl AttachmentPage {
    /// Makes the memfd (the daemon).
    ///
    /// # Errors
    /// Those of memfd_create(2) and ftruncate(2).
    pub fn create() -> Result<OwnedFd, Errno> {
        sealed_memfd("fastsock-attachment", ATTACHMENT_BYTES, &[])
    }

    /// Maps it.
    ///
    /// # Errors
    /// As [`crate::Arena::map`].
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        Ok(AttachmentPage { region: Region::map(fd, ATTACHMENT_BYTES, true)? })
    }

    /// From here until [`AttachmentPage::end_change`] entries and the references of channels may not agree.
    pub fn begin_change(&self) {
        let changes = self.changing();
        changes.now.fetch_add(1, SeqCst);
        changes.begun.fetch_add(1, SeqCst);
    }

    /// See [`AttachmentPage::begin_change`].
    pub fn end_change(&self) {
        // Not below 0: what was begun in the name of a daemon that has gone is ended in that of the next.
        let _none = self.changing().now.fetch_update(SeqCst, SeqCst, |now| now.checked_sub(1));
    }

    /// Changes begun so far; `None`: one is under way. Between two equal answers nothing has changed.
    pub fn unchanged_since(&self) -> Option<u32> {
        let changes = self.changing();
        let begun = changes.begun.load(SeqCst);
        (changes.now.load(SeqCst) == 0).then_some(begun)
    }

    /// The threads that were in the middle of changes are gone.
    pub fn end_all_changes(&self) {
        self.changing().now.store(0, SeqCst);
    }

    fn changing(&self) -> &Changes {
        self.region.at(DESCRIPTORS * size_of::<Entry>())
    }

    /// The entry of `fd`: object and cookie. `None`: nothing of ours, or out of range.
    pub fn entry(&self, fd: i32) -> Option<(Object, u64)> {
        let entry = self.at(fd)?;
        let object = Object::from_word(entry.object.load(Acquire))?;
        Some((object, entry.cookie.load(Relaxed)))
    }

    /// Writes the entry of `fd`. `false`: the number is out of range, the socket must stay with the kernel.
    #[must_use]
    pub fn set(&self, fd: i32, object: Object, cookie: u64) -> bool {
        let Some(entry) = self.at(fd) else { return false };
        entry.cookie.store(cookie, Relaxed);
        entry.object.store(object.to_word(), Release);
        true
    }

    /// What `fd` stands for.
    pub fn object(&self, fd: i32) -> Option<Object> {
        Object::from_word(self.at(fd)?.object.load(SeqCst))
    }

    /// Changes what `fd` stands for, without a cookie, if it is `from`. `None`: the number is out of range.
    pub fn replace(&self, fd: i32, from: Option<Object>, to: Option<Object>) -> Option<bool> {
        let entry = self.at(fd)?;
        if from.is_none() {
            entry.cookie.store(0, Relaxed);
        }
        let word = |object: Option<Object>| object.map_or(0, Object::to_word);
        Some(entry.object.compare_exchange(word(from), word(to), SeqCst, Relaxed).is_ok())
    }

    /// Writes the cookie of what `fd` stands for, if that is `object` still. `false`: it is not.
    #[must_use]
    pub fn set_cookie(&self, fd: i32, object: Object, cookie: u64) -> bool {
        self.at(fd).filter(|entry| entry.object.load(SeqCst) == object.to_word()).is_some_and(|entry| {
            entry.cookie.store(cookie, Relaxed);
            true
        })
    }

    /// Takes the cookie from the entry of `fd`.
    pub fn clear_cookie(&self, fd: i32) {
        if let Some(entry) = self.at(fd) {
            entry.cookie.store(0, Relaxed);
        }
    }

    /// Clears the entry of `fd`.
    pub fn clear(&self, fd: i32) {
        if let Some(entry) = self.at(fd) {
            entry.object.store(0, SeqCst);
        }
    }

    /// All entries that are set: fd, object, cookie. Touches only pages that hold something if `fd` (the page's memfd)
    /// is given, by asking for the file's data ranges.
    pub fn entries<'a>(&'a self, fd: Option<BorrowedFd<'a>>) -> impl Iterator<Item = (i32, Object, u64)> + 'a {
        self.entries_among(0..DESCRIPTORS, fd)
    }

    /// The same of some numbers; the others are not looked at.
    pub fn entries_among<'a>(
        &'a self,
        numbers: Range<usize>,
        fd: Option<BorrowedFd<'a>>,
    ) -> impl Iterator<Item = (i32, Object, u64)> + 'a {
        let end = numbers.end.min(DESCRIPTORS);
        let mut next = numbers.start;
        let mut data_end = if fd.is_some() { 0 } else { end };
        std::iter::from_fn(move || {
            loop {
                if next >= end {
                    return None;
                }
                if let Some(fd) = fd
                    && next >= data_end
                {
                    (next, data_end) = data_range(fd, next)?;
                }
                let number = next as i32;
                next += 1;
                if let Some((object, cookie)) = self.entry(number) {
                    return Some((number, object, cookie));
                }
            }
        })
    }

    /// The first number from `from` on whose place may hold something: one of the file's data ranges. `fd`: the page's memfd.
    pub fn next_used(&self, from: usize, fd: BorrowedFd<'_>) -> Option<usize> {
        data_range(fd, from).map(|(first, _)| first).filter(|&first| first < DESCRIPTORS)
    }

    fn at(&self, fd: i32) -> Option<&Entry> {
        let index = usize::try_from(fd).ok().filter(|&index| index < DESCRIPTORS)?;
        Some(self.region.at(index * size_of::<Entry>()))
    }
}

/// The next range of entries from `from` on that lies in pages which exist.
fn data_range(fd: BorrowedFd<'_>, from: usize) -> Option<(usize, usize)> {
    let size = size_of::<Entry>() as u64;
    let start = rustix::fs::seek(fd, rustix::fs::SeekFrom::Data(from as u64 * size)).ok()?;
    let end = rustix::fs::seek(fd, rustix::fs::SeekFrom::Hole(start)).ok()?;
    let first = usize::try_from(start / size).ok()?.max(from);
    Some((first, usize::try_from(end.div_ceil(size)).ok()?.min(DESCRIPTORS).max(first + 1)))
}

const PAGE: usize = 4096;

const ATTACHMENT_BYTES: usize = DESCRIPTORS * size_of::<Entry>() + PAGE;

/// Head of the directory page.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct DirectoryHead {
    generation: AtomicU64,
    epoch: AtomicU64,
    stopping: AtomicU32,
    life: AtomicU32,
    _pad: [AtomicU32; 10],
}

/// Whether a [`DirectoryPage::life`] tells of its holder's end.
pub(crate) fn is_held(life: u32) -> bool {
    life & FUTEX_WAITERS != 0 && life & FUTEX_OWNER_DIED == 0
}

/// What every process may know cheaply: whether routes changed, and which daemon this is. The daemon writes; everyone
/// else can only map it for reading (sealed FUTURE_WRITE).
#[derive(Debug)]
pub struct DirectoryPage {
    region: Region,
}

impl DirectoryPage {
    /// Makes memfd and the daemon's writable mapping; then nobody can map it for writing any more.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2), mmap(2), fcntl(2).
    pub fn create(epoch: u64) -> Result<(OwnedFd, Self), Errno> {
        let (fd, region) = one_writer("fastsock-directory", PAGE)?;
        let page = DirectoryPage { region };
        page.head().epoch.store(epoch, SeqCst);
        page.head().generation.store(1, SeqCst);
        Ok((fd, page))
    }

    /// Maps it for reading.
    ///
    /// # Errors
    /// As [`crate::Arena::map`].
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        Ok(DirectoryPage { region: Region::map(fd, PAGE, false)? })
    }

    /// Changes with every listener, address or rule. A cached route is good while this stands.
    pub fn generation(&self) -> u64 {
        self.head().generation.load(Acquire)
    }

    /// Which run of the daemon this is.
    pub fn epoch(&self) -> u64 {
        self.head().epoch.load(Relaxed)
    }

    /// Whether the daemon is draining and takes nothing new.
    pub fn is_stopping(&self) -> bool {
        self.head().stopping.load(Acquire) != 0
    }

    /// Daemon only (others have no writable mapping and would fault).
    pub fn bump(&self) {
        self.head().generation.fetch_add(1, SeqCst);
    }

    /// Daemon only.
    pub fn set_stopping(&self) {
        self.head().stopping.store(1, SeqCst);
        self.bump();
    }

    /// A robust futex of the daemon's control thread, so that who sleeps on it as well is woken by the daemon's death. 0: it
    /// keeps none.
    pub fn life(&self) -> &AtomicU32 {
        &self.head().life
    }

    /// Daemon only: what [`DirectoryPage::life`] is while the thread lives that holds it.
    pub fn held_by(thread: u32) -> u32 {
        thread | FUTEX_WAITERS
    }

    /// The daemon has ended; false: it may have, all the same.
    pub fn is_abandoned(&self) -> bool {
        self.life().load(Acquire) & FUTEX_OWNER_DIED != 0
    }

    /// The kernel has told one sleeper of the daemon's end: tells the others.
    pub fn tell_all(&self) {
        futex::wake_all(self.life());
    }

    fn head(&self) -> &DirectoryHead {
        self.region.at(0)
    }
}

/// Arenas that one listener can have at once.
pub const LISTENER_ARENAS: usize = 4096;

/// Head of a listener page; the arena ids follow.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ListenerHead {
    generation: AtomicU64,
    count: AtomicU32,
    closed: AtomicU32,
    holders: AtomicU32,
    _pad0: AtomicU32,
    _pad: [AtomicU64; 5],
}

const LISTENER_BYTES: usize = (size_of::<ListenerHead>() + LISTENER_ARENAS * 4).next_multiple_of(PAGE);

/// What [`ListenerHead::closed`] says of a listener that nobody has open any more; 1: it was shut down.
const OVER: u32 = 2;

/// Which arenas have connections for a listener. The daemon writes, those read who hold the listener or watch it.
#[derive(Debug)]
pub struct ListenerPage {
    region: Region,
}

impl ListenerPage {
    /// Makes memfd and the daemon's writable mapping.
    ///
    /// # Errors
    /// As [`DirectoryPage::create`].
    pub fn create() -> Result<(OwnedFd, Self), Errno> {
        let (fd, region) = one_writer("fastsock-listener", LISTENER_BYTES)?;
        Ok((fd, ListenerPage { region }))
    }

    /// Maps it for reading.
    ///
    /// # Errors
    /// As [`crate::Arena::map`].
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        Ok(ListenerPage { region: Region::map(fd, LISTENER_BYTES, false)? })
    }

    /// Puts it in place of another one, whose listener is gone: that one's memory is let go, and who looks at it sees this one.
    ///
    /// # Errors
    /// This page: the kernel refuses, or the process has confined itself.
    pub fn put_over(self, other: &ListenerPage) -> Result<(), Self> {
        if crate::wait::is_confined() {
            return Err(self);
        }
        self.region.put_over(&other.region).map_err(|(region, _)| ListenerPage { region })
    }

    /// Changes with the list.
    pub fn generation(&self) -> u64 {
        self.head().generation.load(Acquire)
    }

    /// The listener is gone, or was shut down.
    pub fn is_closed(&self) -> bool {
        self.head().closed.load(Acquire) != 0
    }

    /// The listener is gone: nobody has it open any more.
    pub fn is_over(&self) -> bool {
        self.head().closed.load(Acquire) == OVER
    }

    /// Arena ids, as of about [`ListenerPage::generation`]: read the generation before the list, and read both again
    /// when it moves. A 0 is a place being written.
    pub fn arenas(&self) -> impl Iterator<Item = u32> + '_ {
        let count = (self.head().count.load(Acquire) as usize).min(LISTENER_ARENAS);
        self.ids()[..count].iter().map(|id| id.load(Acquire)).filter(|&id| id != 0)
    }

    /// Whether an arena is on the list, which is in order.
    pub fn contains(&self, arena: u32) -> bool {
        let count = (self.head().count.load(Acquire) as usize).min(LISTENER_ARENAS);
        self.ids()[..count].binary_search_by_key(&arena, |id| id.load(Acquire)).is_ok()
    }

    /// How many attachments hold the listener, or watch it.
    pub fn holders(&self) -> u32 {
        self.head().holders.load(Relaxed)
    }

    /// Daemon only.
    pub fn set_holders(&self, holders: u32) {
        self.head().holders.store(holders, SeqCst);
    }

    /// Daemon only: replaces the list, which has to be in order. `false`: too many, the rest is left out.
    #[must_use]
    pub fn set(&self, arenas: &[u32]) -> bool {
        let fit = &arenas[..arenas.len().min(LISTENER_ARENAS)];
        for (place, id) in self.ids().iter().zip(fit) {
            place.store(*id, Release);
        }
        self.head().count.store(fit.len() as u32, SeqCst);
        self.head().generation.fetch_add(1, SeqCst);
        fit.len() == arenas.len()
    }

    /// Daemon only.
    pub fn close(&self) {
        let _is_over = self.head().closed.compare_exchange(0, 1, SeqCst, SeqCst);
        self.head().generation.fetch_add(1, SeqCst);
    }

    /// Daemon only: nobody holds it any more.
    pub fn end(&self) {
        self.head().closed.store(OVER, SeqCst);
    }

    /// Daemon only: one that was shut down listens again.
    pub fn open(&self) {
        self.head().closed.store(0, SeqCst);
        self.head().generation.fetch_add(1, SeqCst);
    }

    fn head(&self) -> &ListenerHead {
        self.region.at(0)
    }

    fn ids(&self) -> &[AtomicU32] {
        self.region.slice(size_of::<ListenerHead>(), LISTENER_ARENAS)
    }
}

/// A memfd with one writable mapping; later mappings can only read.
fn one_writer(name: &str, len: usize) -> Result<(OwnedFd, Region), Errno> {
    let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    let region = Region::map(std::os::fd::AsFd::as_fd(&fd), len, true)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
    Ok((fd, region))
}
