//! The number that an accept which waits has taken already, as accept4() of the kernel does before it looks for a connection:
//! what is opened meanwhile gets another one.

use core::sync::atomic::{
    AtomicI32, AtomicU32, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use fs_shm::holder;
use libc::{F_SETFD, SOCK_CLOEXEC};
use rustix::{
    fd::IntoRawFd,
    fs::{Mode, OFlags},
    io::Errno,
};

use crate::{
    descriptor::{
        kept::{self, Made},
        numbers, table,
    },
    process::held::{Held, Note},
    sys::{call, thread},
    types::Fd,
};

/// Accepts that have a number while they wait; more take theirs at the end.
const MOST: usize = 64;

/// Whose number, and which: a forked child has it, and not the thread.
struct Place {
    thread: AtomicUsize,
    number: AtomicI32,
    /// Of the socket that is behind it ([`kept`]).
    ticket: AtomicU32,
}

static PLACES: [Place; MOST] =
    [const { Place { thread: AtomicUsize::new(0), number: AtomicI32::new(-1), ticket: AtomicU32::new(0) } }; MOST];

/// Counts this process's forks, and those of who it was forked from: a socket that was made before the last one is the other process's
/// too.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Before a fork, while the tables are held still for it.
pub(crate) fn forking() {
    FORKS.fetch_add(1, Relaxed);
}

/// Stands while the call waits. Behind the number is what all calls but a few answer EBADF to, as they do on the kernel (O_PATH of
/// open(2)). Where the process has no other thread it may be the socket that the connection is going to have: it is made while the call
/// would only wait, and no other number has to be put in its place. A handler, or a thread that one begins, finds that socket behind the
/// number by those calls that do not ask [`is_taken`]: not connected, and nobody's.
#[derive(Debug)]
pub(super) struct Number {
    fd: Fd,
    /// Such a socket is behind it, made after so many of [`FORKS`].
    socket_of: Option<(u32, Made)>,
    note: Option<Note>,
}

impl Number {
    /// For an accept with these flags on a socket of that family. `ahead`: the connection is likely to be one of ours, whose socket may be
    /// made now. `Ok(None)`: it is taken at the end.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn take(family: u32, flags: i32, ahead: bool) -> Result<Option<Self>, Errno> {
        if fs_shm::wait::is_confined() {
            // It may be allowed accept(2) and not open(2).
            return Ok(None);
        }
        let _changing = table::Changing::begin();
        let socket_of = (ahead && holder::is_single_threaded()).then(|| FORKS.load(Relaxed));
        let made = match socket_of {
            // Close-on-exec while it is nobody's, whatever was asked for.
            Some(_) => kept::socket(family, SOCK_CLOEXEC | flags, 0, flags & SOCK_CLOEXEC != 0),
            None => rustix::fs::open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                .map(|file| Made::plain(file.into_raw_fd())),
        };
        let made = match made {
            Ok(made) => made,
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => return Err(errno),
            Err(_) => return Ok(None),
        };
        let me = thread::me();
        let free = |place: &&Place| place.thread.compare_exchange(0, me, AcqRel, Relaxed).is_ok();
        let Some(place) = PLACES.iter().find(free) else {
            made.close();
            return Ok(None);
        };
        let fd = made.fd;
        place.ticket.store(made.ticket(), Relaxed);
        place.number.store(fd, Release);
        table::set_internal(fd);
        let socket_of = socket_of.map(|forks| (forks, made));
        Ok(Some(Number { fd, socket_of, note: Some(Note::new(Held::Number(fd))) }))
    }

    /// The socket that is behind it, if it is one, and this process's alone. No fork comes between while the tables are being changed.
    pub(super) fn socket(&self) -> Option<Made> {
        self.socket_of.filter(|(forks, _)| *forks == FORKS.load(Relaxed)).map(|(_, made)| made)
    }

    /// Gives the number to a new descriptor, or to the socket that is behind it.
    pub(super) fn give_to(mut self, new: Fd, flags: i32) -> Fd {
        self.note = None;
        let number = self.fd;
        core::mem::forget(self);
        let ticket = unlist(number);
        if new != number {
            kept::let_go(ticket);
        }
        if new == number {
            if flags & SOCK_CLOEXEC == 0 {
                // It cannot fail: the number is there.
                let _ = call::fcntl(number, F_SETFD, 0);
            }
            return number;
        }
        match call::dup3(new, number, flags & SOCK_CLOEXEC) {
            Ok(number) => {
                // The caller's, which has two numbers now.
                let _ = call::close(new);
                number
            }
            Err(_) => {
                // Ours until now.
                let _ = call::close(number);
                new
            }
        }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.note = None;
        let_go(self.fd);
    }
}

fn place_of(number: Fd) -> Option<&'static Place> {
    PLACES.iter().find(|place| place.number.load(Acquire) == number && place.thread.load(Acquire) != 0)
}

/// Whether an accept that waits has it.
pub(crate) fn is_taken(number: Fd) -> bool {
    place_of(number).is_some()
}

fn unlist(number: Fd) -> kept::Ticket {
    table::unset_internal(number);
    let Some(place) = place_of(number) else { return 0 };
    let ticket = place.ticket.swap(0, Relaxed);
    place.number.store(-1, Relaxed);
    place.thread.store(0, Release);
    ticket
}

/// The call ends without a connection, or a handler jumped out of it.
pub(crate) fn let_go(number: Fd) {
    let _changing = table::Changing::begin();
    let ticket = unlist(number);
    // Ours until now.
    let _ = call::close(number);
    kept::let_go(ticket);
}

/// In a forked child: the other threads' calls go on in the parent only.
pub(crate) fn forked() {
    let me = thread::me();
    for place in &PLACES {
        let (thread, number) = (place.thread.load(Acquire), place.number.load(Acquire));
        if thread != 0 && thread != me && number >= 0 {
            let_go(number);
        }
    }
}

/// A new descriptor for a call that has its number already: one more may be needed for a moment.
pub(super) fn beside<T>(has: bool, mut make: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match make() {
        Err(Errno::MFILE) if has => {
            let _room = numbers::Room::open();
            make()
        }
        answer => answer,
    }
}
