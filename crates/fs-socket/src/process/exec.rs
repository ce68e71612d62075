//! exec and posix_spawn: a new image with the same descriptors.
//!
//! The connection to the daemon survives (its number is in the environment), and with it the attachment. The new image
//! is given the page again, and finds its sockets by number and SO_COOKIE.

use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Relaxed},
};
use std::sync::{Mutex, MutexGuard, TryLockError};

use fs_shm::{
    control::{Client, Fd as PageFd, Object},
    pages::{AttachmentPage, ListenerPage},
};
use libc::{F_GETFD, F_SETFD, FD_CLOEXEC, SO_COOKIE, SO_DOMAIN, SOL_SOCKET};
use rustix::{
    fd::{AsFd, AsRawFd, OwnedFd},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType},
};

use crate::{
    address,
    descriptor::{
        kept,
        numbers::{self, Room, Turn},
        table::{self, Still},
    },
    listen, poll,
    process::{self, Attachment, arenas, fork},
    socket::{Kind, Socket, mark},
    stream::{channel, connect},
    sys::{self, call, signals::Section},
    types::Fd,
};

/// The environment variable that names the control descriptor which survives an exec.
pub const CONTROL_VARIABLE: &str = "FASTSOCK_CTL";

/// What the new image must be given: `FASTSOCK_CTL=<control>` or `FASTSOCK_CTL=<control>,<sets>` in its environment (replacing one
/// that is there).
#[derive(Debug)]
#[must_use]
pub struct Surviving {
    /// The descriptor number of the control connection; not close-on-exec while this stands. `None`: no socket of ours survives,
    /// leave the environment alone.
    pub control: Option<Fd>,
    /// What the epoll sets hold that survive, if that is anything of ours.
    sets: Option<PageFd>,
    child: Option<Box<Attachment>>,
    /// Close-on-exec: its end tells the daemon that there is a new image.
    moment: Option<OwnedFd>,
    /// Dropped last: the child's connection is closed here by then.
    _alone: Alone,
}

/// Held while a control connection is not close-on-exec, and by whoever makes a child or execs: what another thread starts
/// meanwhile would have that connection too, and the daemon would not see the end of the process that it is for.
static ALONE: Mutex<()> = Mutex::new(());

/// See [`ALONE`]. Handlers wait while it stands, as far as they can be put off: one that forks would wait for what its own thread has.
#[derive(Debug)]
pub(crate) struct Alone(
    #[allow(dead_code, reason = "is let go")] Option<MutexGuard<'static, ()>>,
    #[allow(dead_code, reason = "is let go")] Option<Turn>,
    /// Ends last.
    Option<Section>,
);

impl Alone {
    /// Waits for a second: the one who holds it may be stopped.
    pub(crate) fn begin() -> Self {
        const ROUNDS: u32 = 20_000;
        let section = Some(Section::begin());
        for rounds in 0..ROUNDS {
            match ALONE.try_lock() {
                Ok(guard) => return Alone(Some(guard), Turn::begin(), section),
                Err(TryLockError::Poisoned(poisoned)) => {
                    return Alone(Some(poisoned.into_inner()), Turn::begin(), section);
                }
                Err(TryLockError::WouldBlock) => table::pause(rounds),
            }
        }
        Alone(None, Turn::begin(), section)
    }

    /// Handlers run all the same: what was put off would be lost by an exec.
    fn let_handlers(mut self) -> Self {
        self.2 = None;
        self
    }

    /// Together with [`Still`]. Who changes a table may need the turn in the middle of that (for a bell, for one): it is not
    /// kept from them while they are waited for.
    pub(crate) fn begin_still() -> (Self, Still) {
        let (still, alone) = Still::begin_with(Alone::begin);
        (alone, still)
    }
}

/// Numbers that file actions of posix_spawn duplicate, one bit each: a child may have a socket under another number although
/// its own is close-on-exec. Set, never cleared: what is not there in the child is let go when that starts.
static DUPLICATED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// posix_spawn_file_actions_adddup2(3) was called with this source.
pub fn record_duplicated(fd: Fd) {
    if let Some(word) = DUPLICATED.get(fd as usize / 64) {
        word.fetch_or(1 << (fd % 64), Relaxed);
    }
    kept::spoil_number(fd);
}

fn is_duplicated(fd: Fd) -> bool {
    DUPLICATED.get(fd as usize / 64).is_some_and(|word| word.load(Relaxed) >> (fd % 64) & 1 != 0)
}

/// Before exec(3)'s kernel call.
pub fn before_exec() -> Surviving {
    let alone = Alone::begin().let_handlers();
    let mut surviving = Surviving { control: None, sets: None, child: None, moment: None, _alone: alone };
    let Some(attachment) = process::current() else { return surviving };
    if prepare(attachment, |_| false).is_none() {
        return surviving;
    }
    forget_others(attachment.page(), |_| false);
    let (here, there) = moment().unzip();
    if let Err(error) = attachment.client().exec(there.as_ref().map(AsFd::as_fd)) {
        attachment.failed(&error);
        return surviving;
    }
    let control = attachment.client().fd().as_raw_fd();
    // A number of ours, open.
    let _ = call::fcntl(control, F_SETFD, 0);
    (surviving.control, surviving.moment) = (Some(control), here);
    surviving.sets = sets_that_survive(|_| false);
    surviving
}

impl Surviving {
    /// The number of what the surviving epoll sets hold.
    pub fn sets(&self) -> Option<Fd> {
        self.sets.as_ref().map(|sets| sets.as_fd().as_raw_fd())
    }
}

/// What those sets hold, in a file that survives too.
fn sets_that_survive(stays: impl Fn(Fd) -> bool) -> Option<PageFd> {
    let sets = poll::inherit::leave(|fd| does_survive(fd, &stays))?;
    // A number of ours, open.
    let _ = call::fcntl(sets.as_fd().as_raw_fd(), F_SETFD, 0);
    Some(sets)
}

/// Two ends, both close-on-exec; `None`: no number is free.
fn moment() -> Option<(OwnedFd, OwnedFd)> {
    let pair = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()
    };
    let _room = Room::open();
    pair()
}

/// When exec came back with an error.
pub fn after_exec_failed(surviving: Surviving) {
    let (Some(control), Some(attachment)) = (surviving.control, process::current()) else { return };
    // As above.
    let _ = call::fcntl(control, F_SETFD, FD_CLOEXEC as usize);
    if let Err(error) = attachment.client().exec_failed() {
        attachment.failed(&error);
    }
}

/// Before posix_spawn, with file actions or without. When the child inherits sockets of ours an attachment for it has been
/// made: spawn with `FASTSOCK_CTL=<control>` added. [`after_spawn`] in any case.
///
/// # Errors
/// `EAGAIN`: none can be made, and what the child inherits would be dead in it.
pub fn before_spawn(actions: bool) -> Result<Surviving, Errno> {
    let stays = |fd| actions && is_duplicated(fd);
    if actions {
        // Whatever they stand for: the child has the open file, and may keep it.
        table::each(0, u32::MAX, |fd, socket| {
            if is_duplicated(fd) {
                kept::spoil(socket);
            }
        });
    }
    // Where nothing survives, which is what most programs see to, nobody is held up.
    let alone = Alone::begin();
    if process::current().and_then(|attachment| prepare(attachment, stays)).is_none() {
        return Ok(Surviving { control: None, sets: None, child: None, moment: None, _alone: alone });
    }
    drop(alone);
    let (alone, still) = Alone::begin_still();
    let mut surviving = Surviving { control: None, sets: None, child: None, moment: None, _alone: alone };
    let Some(attachment) = process::current().filter(|attachment| prepare(attachment, stays).is_some()) else {
        still.end();
        return Ok(surviving);
    };
    Socket::share_all();
    let child = fork::make_child(attachment);
    if let Some(child) = &child {
        // The numbers are what they were when they were inherited.
        forget_others(child.page(), stays);
    }
    still.end();
    let Some(child) = child else {
        return if attachment.check() { Err(Errno::AGAIN) } else { Ok(surviving) };
    };
    let control = child.client().fd().as_raw_fd();
    // A number of ours, open.
    let _ = call::fcntl(control, F_SETFD, 0);
    (surviving.control, surviving.child) = (Some(control), Some(child));
    surviving.sets = sets_that_survive(stays);
    Ok(surviving)
}

/// After the spawn: the child's end is closed here. `made`: there is a child, which has its image.
pub fn after_spawn(surviving: Surviving, made: bool) {
    // A child without this library does not say that what was close-on-exec is closed.
    if let (true, Some(child), Some(parent)) = (made, &surviving.child, process::current())
        && let Err(error) = parent.client().spawned(child.id())
    {
        parent.failed(&error);
    }
    // With the last copy of the connection the daemon lets go what the child did not take over.
    drop(surviving);
}

/// Writes the cookies of all that survives into the page, which is what is not close-on-exec and what `stays` says; `None`:
/// nothing does. Never what a number stands for: other threads may have closed it since, and it would be an entry without a reference.
fn prepare(attachment: &Attachment, stays: impl Fn(Fd) -> bool) -> Option<()> {
    let mut any = false;
    each_object(stays, |fd, object, survives| {
        if let Some(socket) = table::find(fd).filter(|_| survives) {
            // The new image knows of no listener that an accepted one has its options from.
            crate::options::sync(fd, socket);
        }
        any |= survives && cookie(fd).is_some_and(|cookie| attachment.page().set_cookie(fd, object, cookie));
    });
    any.then_some(())
}

/// Takes the cookies of what does not survive from the page of the process that is about to have a new image: the daemon closes
/// that.
fn forget_others(page: &AttachmentPage, stays: impl Fn(Fd) -> bool) {
    each_object(stays, |fd, _, survives| {
        if !survives {
            page.clear_cookie(fd);
        }
    });
}

/// Each number of ours, what it stands for, and whether it survives an exec.
fn each_object(stays: impl Fn(Fd) -> bool, mut visit: impl FnMut(Fd, Object, bool)) {
    table::each(0, u32::MAX, |fd, socket| {
        let object = match (socket.kind(), socket.channel()) {
            (Kind::Channel, Some(channel)) => socket.mapped().map(|mapped| mapped.object(channel.slot())),
            (Kind::Listener, _) => listen::object(socket),
            _ => None,
        };
        if let Some(object) = object {
            visit(fd, object, does_survive(fd, &stays));
        }
    });
}

fn does_survive(fd: Fd, stays: &impl Fn(Fd) -> bool) -> bool {
    stays(fd) || call::fcntl(fd, F_GETFD, 0).is_ok_and(|flags| flags & FD_CLOEXEC == 0)
}

/// SO_COOKIE: one number for each socket that the kernel ever made.
pub(crate) fn cookie(fd: Fd) -> Option<u64> {
    let mut value = [0; 8];
    call::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &mut value).ok()?;
    Some(u64::from_ne_bytes(value))
}

static STARTED: AtomicBool = AtomicBool::new(false);

/// Called once before `main`: with [`CONTROL_VARIABLE`] in the environment this is a new image of an attached process,
/// and takes its sockets over. Costs nothing otherwise.
pub fn start() {
    if STARTED.swap(true, AcqRel) {
        return;
    }
    fs_shm::addresses::start();
    process::start();
    let Some(number) = std::env::var_os(CONTROL_VARIABLE) else { return };
    sys::remove_variable(CONTROL_VARIABLE);
    let Some(text) = number.to_str() else { return };
    let (number, sets) = text.split_once(',').unwrap_or((text, ""));
    let Some(control) = number.parse::<Fd>().ok().filter(|&fd| is_control(fd)) else { return };
    let sets = sets.parse::<Fd>().ok().filter(|&fd| is_memory(fd)).map(sys::owned);
    let client = Client::from_fd(sys::owned(control));
    if let Some((attachment, memory)) = process::enter(client, true) {
        take_over(attachment, &memory);
        if let Some(sets) = sets {
            poll::inherit::resume(sets.as_fd());
        }
    }
}

/// Whether the number is a connection as the daemon's are: an application may have put something else there.
fn is_control(fd: Fd) -> bool {
    use libc::{AF_UNIX, SO_TYPE, SOCK_SEQPACKET};
    call::int_option(fd, SOL_SOCKET, SO_DOMAIN) == Ok(AF_UNIX)
        && call::int_option(fd, SOL_SOCKET, SO_TYPE) == Ok(SOCK_SEQPACKET)
}

/// Whether the number is a memory file, which alone can be sealed.
fn is_memory(fd: Fd) -> bool {
    use libc::F_GET_SEALS;
    call::fcntl(fd, F_GET_SEALS, 0).is_ok()
}

/// Numbers that are looked at, beside the page's own, where /proc does not tell which there are.
const USUAL: Fd = 1024;

/// The numbers that are open: sockets may have moved (dup2 by an image without this library, file actions of posix_spawn).
fn open_numbers(highest: Fd) -> Vec<Fd> {
    let number = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return (0..=highest.max(USUAL)).collect() };
    let mut numbers: Vec<Fd> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// Finds the page's sockets among the descriptors that there are.
fn take_over(attachment: &Attachment, memory: &PageFd) {
    let _changing = table::Changing::begin();
    // A look at entries that nobody has written gives them memory: 16 MiB for all.
    let entries = attachment.page().entries(Some(memory.as_fd()));
    let entries: Vec<(Fd, Object, u64)> =
        entries.filter(|(_, object, _)| !matches!(object, Object::Kernel(_))).collect();
    let highest = entries.iter().map(|(fd, ..)| *fd).max().unwrap_or(0);
    let open: Vec<(Fd, u64)> = open_numbers(highest).into_iter().filter_map(|fd| Some((fd, cookie(fd)?))).collect();
    for (fd, ..) in &entries {
        attachment.page().clear(*fd);
    }
    let mut done: Vec<Object> = Vec::new();
    for (_, object, _) in &entries {
        if done.contains(object) {
            continue;
        }
        done.push(*object);
        let same = || entries.iter().filter(|(_, other, cookie)| other == object && *cookie != 0);
        let cookies: Vec<u64> = same().map(|(.., cookie)| *cookie).collect();
        let numbers: Vec<Fd> = open.iter().filter(|(_, cookie)| cookies.contains(cookie)).map(|(fd, _)| *fd).collect();
        let references = entries.iter().filter(|(_, other, _)| other == object).count();
        resume(attachment, *object, &numbers, references);
    }
}

/// Takes one object over that `references` entries stood for and that `numbers` stand for now.
fn resume(attachment: &Attachment, object: Object, numbers: &[Fd], references: usize) {
    match object {
        Object::Channel { arena, slot, side } => {
            let Some(mapped) = arenas::ask(attachment, arena, side) else { return };
            let Some(channel) = fs_shm::Channel::at(mapped.arena(), slot) else { return };
            for extra in 0..references.max(numbers.len()) {
                if extra >= numbers.len() {
                    channel::give_back(&channel);
                } else if extra >= references {
                    channel.retain();
                }
            }
            let Some((&first, others)) = numbers.split_first() else { return };
            let Some(socket) = enter(first) else { return };
            others.iter().for_each(|fd| connect::enter_again(*fd, socket));
            socket.resume_channel(attachment.life(), mapped, &channel);
            for fd in numbers {
                // It was in the page before.
                let _ = process::enter_page(attachment, *fd, object);
            }
        }
        Object::Listener(id) => {
            let Some((&first, others)) = numbers.split_first() else {
                if let Err(error) = attachment.client().unlisten(id) {
                    attachment.failed(&error);
                }
                return;
            };
            let page = numbers::make(|| attachment.client().listener(id))
                .ok()
                .and_then(|page| ListenerPage::map(page.as_fd()).ok());
            let (Some(page), Some(socket)) = (page, enter(first)) else { return };
            others.iter().for_each(|fd| connect::enter_again(*fd, socket));
            listen::resume(attachment, socket, id, page);
        }
        Object::Kernel(_) => {}
    }
}

/// A socket for an inherited descriptor, with what the kernel knows of it.
pub(crate) fn enter(fd: Fd) -> Option<&'static Socket> {
    use libc::F_GETFL;
    let family = call::int_option(fd, SOL_SOCKET, SO_DOMAIN).ok()? as u32;
    (family == address::AF_INET || family == address::AF_INET6).then_some(())?;
    let socket = connect::enter(fd, Kind::Fresh, family)?;
    socket.set_status(call::fcntl(fd, F_GETFL, 0).unwrap_or(0) as u32 & crate::stream::channel::O_NONBLOCK);
    socket.mark(mark::SHARED);
    crate::options::recall(fd, socket);
    Some(socket)
}

#[cfg(test)]
mod tests {
    use core::{sync::atomic::Ordering::SeqCst, time::Duration};
    use std::thread;

    use super::*;
    use crate::descriptor::table::Changing;

    /// Who changes a table asks the daemon for a bell in the middle of that, and needs the turn for its number, while another
    /// thread forks. Each once waited for the other until both had given up.
    #[test]
    fn who_changes_a_table_gets_the_turn_while_another_thread_forks() {
        static CHANGED: AtomicBool = AtomicBool::new(false);
        let changing = Changing::begin();
        let forks = thread::spawn(|| {
            let (alone, still) = Alone::begin_still();
            let changed = CHANGED.load(SeqCst);
            still.end();
            drop(alone);
            changed
        });
        // So that it is waiting, most likely.
        thread::sleep(Duration::from_millis(50));
        let turn = Turn::begin();
        assert!(turn.is_some(), "the turn was not to be had");
        drop(turn);
        CHANGED.store(true, SeqCst);
        drop(changing);
        assert!(forks.join().unwrap(), "the fork went on in the middle of a change");
    }
}
