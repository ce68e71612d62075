//! The *book* of an epoll set that several processes have: another epoll set of the kernel's, which nobody waits in, with what was
//! asked for of each registration that has been changed since the fork ([`super::shared`]). Words are events and a stamp; they are read
//! in /proc/thread-self/fdinfo. Beside it a count of changes, and a bell for those who sleep.

use core::sync::atomic::Ordering::SeqCst;

use rustix::{
    event::epoll::{self, CreateFlags},
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair},
};

use super::{
    EpollEvent,
    fired::each_line,
    forget,
    interest::{ET, EXCLUSIVE, ONESHOT},
    set::{ADD, DEL, MOD, SHARED},
    sys::{kernel, page::Page},
};
use crate::{
    descriptor::{numbers, table},
    sys,
    types::Fd,
};

/// What the kernel keeps of events beside EPOLLEXCLUSIVE (which it refuses to change) and EPOLLWAKEUP (which needs a right): what
/// poll(2) may answer.
const EVENTS: u32 = 0x27ff;
/// EPOLLERR, EPOLLHUP: the kernel adds them.
const ALWAYS: u32 = 0x18;
/// In bits of the events that mean nothing to the kernel: EPOLLEXCLUSIVE; the registration is over; which change it was, by its low
/// bits.
const IS_EXCLUSIVE: u32 = 1 << 27;
pub(super) const ENDED: u32 = 1 << 26;
const STAMP: u32 = 16;
/// What does not fit there: bits between those of poll(2). Not 15, which has the kernel poll the device (POLL_BUSY_LOOP).
const MORE: [u32; 3] = [11, 12, 14];
const STAMPS: u64 = 1 << 13;
/// What this process has of a book.
#[derive(Debug)]
pub(super) struct Book {
    /// An epoll set of the kernel's.
    set: Fd,
    /// A socket that a byte for each change is sent to, and its other end, which is watched. Sending does not wait, whatever who shares
    /// it does to it: MSG_DONTWAIT is of the call, O_NONBLOCK (all that a write to an eventfd has) of the open file. (A timer that runs
    /// out at once rings as well, for 18 us in a virtual machine.)
    bell: [Fd; 2],
    /// The outer set has it.
    rings: bool,
    /// Changes, and stamps that were given out.
    page: Page,
    /// How many changes there were when the book was read last.
    seen: u64,
}

/// Which open file: inode and device, as the kernel has them. Numbers of inodes are of their file system, and those of a FIFO can be
/// chosen. Both 0: not known.
pub(super) type File = (u64, u32);

/// An entry of the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) fd: Fd,
    pub(super) word: u32,
    pub(super) data: u64,
    pub(super) file: File,
}

/// The events as the book has them.
pub(super) fn encoded(events: u32, stamp: u64) -> u32 {
    let exclusive = if events & EXCLUSIVE != 0 { IS_EXCLUSIVE } else { 0 };
    let stamp = (stamp % STAMPS) as u32;
    let more = MORE.iter().enumerate().fold(0, |more, (i, bit)| more | (stamp >> (10 + i) & 1) << bit);
    events & (EVENTS | ET | ONESHOT) | ALWAYS | exclusive | (stamp & 0x3ff) << STAMP | more
}

pub(super) fn decoded(word: u32) -> u32 {
    word & (EVENTS | ET | ONESHOT) | if word & IS_EXCLUSIVE != 0 { EXCLUSIVE } else { 0 }
}

/// `tfd: FD events: HEX data: HEX pos:N ino:HEX sdev:HEX` (ep_show_fdinfo(), fs/eventpoll.c).
fn line_of(line: &[u8]) -> Option<Line> {
    let mut words = core::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let mut value = |name: &str| if words.next() == Some(name) { words.next() } else { None };
    let fd = value("tfd:")?.parse().ok().filter(|&fd| (0..table::LIMIT as Fd).contains(&fd))?;
    let word = u32::from_str_radix(value("events:")?, 16).ok()?;
    let data = u64::from_str_radix(value("data:")?, 16).ok()?;
    let inode = words.find_map(|word| word.strip_prefix("ino:"))?;
    let device = words.find_map(|word| word.strip_prefix("sdev:"))?;
    let file = (u64::from_str_radix(inode, 16).ok()?, u32::from_str_radix(device, 16).ok()?);
    Some(Line { fd, word, data, file })
}

/// Shows the entries of a book until one is answered false.
///
/// # Errors
/// It cannot be read ([`each_line`]).
pub(super) fn each(set: Fd, mut goes_on: impl FnMut(Line) -> bool) -> Result<(), Errno> {
    each_line(set, |line| line_of(line).is_none_or(&mut goes_on))
}

/// Which file this number is of.
pub(super) fn file_of(fd: Fd) -> Option<File> {
    let file = rustix::fs::fstat(sys::borrowed(fd)?).ok()?;
    // MKDEV() of the kernel, include/linux/kdev_t.h.
    Some((file.st_ino, rustix::fs::major(file.st_dev) << 20 | rustix::fs::minor(file.st_dev)))
}

impl Book {
    pub(super) fn new() -> Option<Self> {
        let page = Page::new()?;
        let made = || {
            let set = epoll::create(CreateFlags::CLOEXEC)?;
            let bell = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            Ok::<_, Errno>((set, bell))
        };
        let (set, bell) = made()
            .or_else(|_| {
                let _room = numbers::Room::open();
                made()
            })
            .ok()?;
        let (set, bell) = (numbers::keep(set.into()), [bell.0, bell.1].map(|end| numbers::keep(end.into())));
        Some(Book { set, bell, rings: false, page, seen: 0 })
    }

    /// Whether others have changed the set since the book was read.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.page.counts()[0].load(SeqCst) != self.seen
    }

    /// Which change this one is.
    pub(super) fn stamp(&self) -> u64 {
        self.page.counts()[1].fetch_add(1, SeqCst).wrapping_add(1)
    }

    /// The next word on a registration, of which the book has said `last`. It is never the same: stamps are repeated, and who has read
    /// that one would take this for no change.
    pub(super) fn next_word(&self, events: u32, last: u32) -> u32 {
        match encoded(events, self.stamp()) {
            word if word == last => encoded(events, self.stamp()),
            word => word,
        }
    }

    /// Puts the newest word on a registration in. `is_new`: there may be none yet. Else there is one as long as the socket is open
    /// anywhere, and where there is none the number is another file's by now.
    pub(super) fn put(&self, fd: Fd, word: u32, data: u64, is_new: bool) -> Result<(), Errno> {
        let put = |operation| kernel::epoll_ctl(self.set, operation, fd, Some(EpollEvent { events: word, data }));
        match put(if is_new { ADD } else { MOD }) {
            Err(Errno::EXIST) => put(MOD),
            answer => answer,
        }
    }

    /// Puts the first word on a registration in.
    ///
    /// # Errors
    /// EEXIST: there is one. Else there is no room, or what is registered is no file of epoll's.
    pub(super) fn add(&self, fd: Fd, word: u32, data: u64) -> Result<(), Errno> {
        kernel::epoll_ctl(self.set, ADD, fd, Some(EpollEvent { events: word, data }))
    }

    /// Where it is read, and the changes that are in it by then: what comes after these is another change.
    pub(super) fn now(&self) -> (Fd, u64) {
        (self.set, self.page.counts()[0].load(SeqCst))
    }

    /// It has been read as of [`Book::now`].
    pub(super) fn has_read(&mut self, changes: u64) {
        self.seen = changes;
    }

    /// The book has been changed by this process, and nobody has to be woken: something has been taken out.
    pub(super) fn is_less(&mut self) {
        let before = self.page.counts()[0].fetch_add(1, SeqCst);
        // Else others have changed it too, which is read next.
        if before == self.seen {
            self.seen = before.wrapping_add(1);
        }
    }

    /// The book has been changed by this process.
    pub(super) fn changed(&mut self) {
        self.is_less();
        self.ring();
    }

    /// Wakes who sleeps on an outer set that has the bell, in all processes.
    fn ring(&self) {
        let [Some(to), Some(from)] = self.bell.map(sys::borrowed) else { return };
        let is_full = || rustix::net::send(to, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) == Err(Errno::AGAIN);
        // Nobody reads it but who finds it full, and not all: who has not looked yet since an earlier one must find it readable.
        let (mut room, mut most) = ([0; 4096], 128);
        for _ in 0..64 {
            if !is_full() || rustix::net::recv(from, &mut room[..most], RecvFlags::DONTWAIT).is_err() {
                break;
            }
            most = room.len();
        }
    }

    /// Has an outer set tell of changes by others.
    pub(super) fn watch(&mut self, outer: Fd) {
        let event = EpollEvent { events: 1 | ET, data: SHARED };
        // Where it cannot, the book is looked at in intervals ([`Inner::must_ask`]).
        self.rings = matches!(kernel::epoll_ctl(outer, ADD, self.bell[1], Some(event)), Ok(()) | Err(Errno::EXIST));
    }

    /// An outer set tells of changes no more.
    pub(super) fn unwatch(&self, outer: Fd) {
        // The others keep the file open.
        let _ = kernel::epoll_ctl(outer, DEL, self.bell[1], None);
    }

    /// The outer set has gone.
    pub(super) fn is_not_watched(&mut self) {
        self.rings = false;
    }

    /// Whether changes by others are found only by looking.
    pub(super) fn must_ask(&self) -> bool {
        !self.rings || self.is_behind()
    }

    pub(super) fn end(self) {
        forget(self.set);
        self.bell.into_iter().for_each(forget);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rustix::{
        event::{EventfdFlags, eventfd},
        fd::{AsRawFd, OwnedFd},
    };

    use super::*;

    /// The same set in another process: the same book and bell under the same numbers, the same page, and a count of its own.
    fn twin(book: &Book) -> Book {
        Book { page: book.page.twin(), ..*book }
    }

    fn files(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect()
    }

    fn lines(book: &Book) -> Vec<Line> {
        let mut lines = Vec::new();
        each_line(book.set, |line| {
            lines.extend(line_of(line));
            true
        })
        .unwrap();
        lines
    }

    #[test]
    fn what_the_kernel_says_of_an_entry_is_read() {
        let line = b"tfd:       12 events: 84030019 data:         abcdef01  pos:0 ino:9f sdev:8";
        let is = Line { fd: 12, word: 0x8403_0019, data: 0xabcd_ef01, file: (0x9f, 8) };
        assert_eq!(line_of(line), Some(is));
        for other in
            [&b"flags:\t02000002"[..], b"", b"tfd: 12 events: 1 data: 2", b"tfd: 12 events: 1 data: 2  pos:0 ino:9"]
        {
            assert_eq!(line_of(other), None);
        }
        let beyond = format!("tfd: {} events: 1 data: 2  pos:0 ino:9 sdev:8", table::LIMIT);
        assert_eq!(line_of(beyond.as_bytes()), None);
    }

    #[test]
    fn what_is_asked_for_is_in_the_word_and_changes_with_each_stamp() {
        for events in [0, 0x1, 0x2005, ET | 1, ONESHOT | ET | 4, EXCLUSIVE | 1] {
            let word = encoded(events, 7);
            assert_eq!(decoded(word) & !ALWAYS, events & !ALWAYS, "{events:x}");
            assert_eq!(word & (ENDED | EXCLUSIVE), 0);
            assert_ne!(encoded(events, 8), word);
            assert_ne!(encoded(events, 7 + STAMPS - 1), word);
        }
        let all: std::collections::HashSet<u32> = (0..STAMPS).map(|stamp| encoded(EVENTS | ET, stamp)).collect();
        assert_eq!(all.len() as u64, STAMPS);
    }

    /// As many changes of others as there are stamps lie between two of one registration.
    #[test]
    fn two_words_on_a_registration_that_follow_each_other_differ() {
        let book = Book::new().unwrap();
        let mut last = book.next_word(ONESHOT | 1, 0);
        for others in [STAMPS - 2, STAMPS - 1, STAMPS, 2 * STAMPS - 1, 3] {
            for _ in 0..others {
                book.stamp();
            }
            let word = book.next_word(ONESHOT | 1, last);
            assert_ne!(word, last, "{others}");
            last = word;
        }
        book.end();
    }

    /// A FIFO, whose inode its maker can choose, is never taken for a socket.
    #[test]
    fn files_of_different_devices_are_told_apart_as_the_kernel_prints_them() {
        let book = Book::new().unwrap();
        let path = std::env::temp_dir().join(format!("fs-book-{}", std::process::id()));
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let fifo = rustix::fs::open(&path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for fd in [fifo.as_raw_fd(), socket.as_raw_fd()] {
            book.put(fd, encoded(1, 1), 5, true).unwrap();
        }
        let lines = lines(&book);
        assert_eq!(lines.len(), 2);
        for line in &lines {
            assert_eq!(file_of(line.fd), Some(line.file));
        }
        assert_ne!(lines[0].file.1, lines[1].file.1);
        book.end();
    }

    #[test]
    fn the_newest_word_on_a_registration_stands_in_the_book_until_its_file_is_closed() {
        let book = Book::new().unwrap();
        let file = files(1).remove(0);
        let fd = file.as_raw_fd();
        book.put(fd, encoded(1, 1), 5, true).unwrap();
        // The kernel keeps every bit.
        let word = encoded(EXCLUSIVE | ONESHOT | 4, STAMPS - 1);
        book.put(fd, word, u64::MAX, true).unwrap();
        assert_eq!(lines(&book), [Line { fd, word, data: u64::MAX, file: file_of(fd).unwrap() }]);
        book.put(fd, encoded(0, 3) | ENDED, 0, false).unwrap();
        assert!(matches!(lines(&book)[..], [line] if line.word & ENDED != 0));
        drop(file);
        assert!(lines(&book).is_empty());
        book.end();
    }

    #[test]
    fn who_has_changed_the_set_has_not_seen_what_others_did() {
        let mut mine = Book::new().unwrap();
        let mut other = twin(&mine);
        mine.changed();
        assert!(!mine.is_behind() && other.is_behind());
        other.changed();
        assert!(mine.is_behind() && other.is_behind());
        mine.changed();
        assert!(mine.is_behind());
        core::mem::forget(other);
        mine.end();
    }

    /// What another process has done to the bell: made it block, read it, filled it. More often than there is room for.
    #[test]
    fn the_bell_rings_each_time_whatever_who_shares_it_did_to_it() {
        let mut book = Book::new().unwrap();
        let outer = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let none = Some(core::time::Duration::ZERO);
        if kernel::epoll_wait(outer.as_raw_fd(), &mut [EpollEvent::default()], none, None) == Err(Errno::NOSYS) {
            println!("skipped: this kernel has no epoll_pwait2 (QEMU's emulation)");
            return;
        }
        book.watch(outer.as_raw_fd());
        assert!(!book.must_ask());
        let [to, from] = book.bell.map(|end| sys::borrowed(end).unwrap());
        for end in [to, from] {
            rustix::fs::fcntl_setfl(end, rustix::fs::OFlags::empty()).unwrap();
        }
        for round in 0..2000 {
            book.changed();
            let mut woken = [EpollEvent::default(); 2];
            let time = Some(core::time::Duration::from_secs(20));
            assert_eq!(kernel::epoll_wait(outer.as_raw_fd(), &mut woken, time, None), Ok(1), "round {round}");
            assert_eq!({ woken[0].data }, SHARED);
            if round % 700 == 300 {
                while rustix::net::recv(from, &mut [0; 64], RecvFlags::DONTWAIT).is_ok() {}
            }
            if round % 700 == 500 {
                while rustix::net::send(to, &[0; 3000], SendFlags::DONTWAIT).is_ok() {}
                // What that was is no change.
                let _ = kernel::epoll_wait(outer.as_raw_fd(), &mut woken, Some(core::time::Duration::ZERO), None);
            }
        }
        book.end();
    }

    /// Several processes that change one set, each in its turn, and look now and then: who has looked has what a single list would have,
    /// and who changes it is told of what is and is not there as by the kernel.
    #[test]
    fn all_who_look_find_the_same_list() {
        let first = Book::new().unwrap();
        type List = BTreeMap<Fd, (u32, u64)>;
        let mut processes: Vec<(Book, List)> = (0..3).map(|_| (twin(&first), List::new())).collect();
        let files = files(5);
        let mut model: BTreeMap<Fd, u64> = BTreeMap::new();
        let mut random = 88_172_645_463_325_252_u64;
        let mut below = |limit: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % limit) as usize
        };
        for round in 0..20_000_u64 {
            let who = below(3);
            let fd = files[below(5)].as_raw_fd();
            let (book, list) = &mut processes[who];
            if book.is_behind() {
                let seen = book.page.counts()[0].load(SeqCst);
                for line in lines(book) {
                    if line.word & ENDED != 0 {
                        list.remove(&line.fd);
                    } else {
                        list.insert(line.fd, (line.word, line.data));
                    }
                }
                book.seen = seen;
            }
            let is: BTreeMap<Fd, u64> = list.iter().map(|(&fd, &(_, data))| (fd, data)).collect();
            assert_eq!(is, model, "round {round}, process {who}");
            let word = encoded(1, book.stamp());
            match (list.contains_key(&fd), below(3)) {
                (true, 0) => {
                    book.put(fd, encoded(0, book.stamp()) | ENDED, 0, false).unwrap();
                    list.remove(&fd);
                    model.remove(&fd);
                }
                (true, 1) | (false, 0) => {
                    book.put(fd, word, round, !list.contains_key(&fd)).unwrap();
                    list.insert(fd, (word, round));
                    model.insert(fd, round);
                }
                _ => continue,
            }
            book.changed();
        }
        processes.into_iter().for_each(|(book, _)| core::mem::forget(book));
        first.end();
    }
}
