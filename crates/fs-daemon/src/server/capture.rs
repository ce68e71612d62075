//! `fastsock capture`: who captures gets arenas to read, and frames of the device, for as long as the connection lasts that
//! asked for it. Nobody waits for him: what he does not take in time is counted, and left out.
//!
//! Root and who runs the daemon see all. Any other user of root's daemon sees arenas whose connections are all of his own
//! processes, on one side or the other, as far as the kernel lets him look into these (ptrace(2)).

use super::Server;
use super::arenas::{ArenaEntry, Opener};
use super::requests::Answer;
use fs_shm::control::{CAPTURE_HEADER, CaptureRecord, Reply, socket};
use fs_shm::{Geometry, Side};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketType, sockopt};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Captures at the same time; of users who see their own, so many and one each.
const MOST: usize = 8;
const MOST_OF_USERS: usize = 4;

/// Between two beginnings of users' captures: each looks into every arena of that user.
const EASE: Duration = Duration::from_millis(50);

/// One who captures.
#[derive(Debug)]
struct Capture {
    socket: Arc<OwnedFd>,
    /// Whose connections he sees; `None`: all.
    uid: Option<u32>,
    memory: bool,
    /// What he was sent.
    arenas: HashSet<u32>,
    /// Arenas that could not be sent since the last one that was.
    missed: u32,
}

impl Capture {
    fn send(&mut self, arena: u32, entry: &ArenaEntry, fresh: bool, geometry: Geometry) {
        let record = CaptureRecord::Arena { arena, fresh, missed: self.missed, geometry };
        let mut bytes = [0; CAPTURE_HEADER];
        let sent = record.encode(&mut bytes).map_err(|_| Errno::INVAL).and_then(|()| {
            let memory = to_read(&entry.memory.shared)?;
            socket::send(self.socket.as_fd(), &bytes, &[memory.as_fd()])
        });
        match sent {
            Ok(()) => self.missed = 0,
            Err(error) => {
                self.missed = self.missed.saturating_add(1);
                tracing::debug!(%error, arena, "cannot capture an arena");
            }
        }
        self.arenas.insert(arena);
    }
}

/// Who captures, by the connection that asked for it.
#[derive(Debug, Default)]
pub(super) struct Captures {
    entries: HashMap<u64, Capture>,
    /// When a user's began last.
    last_of_users: Option<Instant>,
}

impl Captures {
    /// Whether one may begin. `uid` as in [`Capture`]; `is_his`: another number of the same user's.
    fn may_begin(&self, id: u64, uid: Option<u32>, now: Instant, is_his: impl Fn(u32) -> bool) -> Result<(), Errno> {
        if self.entries.contains_key(&id) {
            return Err(Errno::ALREADY);
        }
        let of_users = || self.entries.values().filter_map(|capture| capture.uid);
        let users_have_all = of_users().count() >= MOST_OF_USERS || of_users().any(is_his);
        let is_soon = self.last_of_users.is_some_and(|before| now.duration_since(before) < EASE);
        if self.entries.len() >= MOST || uid.is_some() && (users_have_all || is_soon) {
            return Err(Errno::BUSY);
        }
        Ok(())
    }

    /// Its number is another's some time. Answers whether somebody was sent it.
    pub(super) fn arena_gone(&mut self, id: u32) -> bool {
        let mut sent = false;
        for capture in self.entries.values_mut() {
            sent |= capture.arenas.remove(&id);
        }
        sent
    }

    /// One has ended: answers the arenas that nobody captures any more.
    fn end(&mut self, id: u64) -> Option<Vec<u32>> {
        let over = self.entries.remove(&id)?;
        let is_left = |arena: &u32| !self.entries.values().any(|other| other.arenas.contains(arena));
        Some(over.arenas.into_iter().filter(is_left).collect())
    }
}

/// The same memory, to be mapped for reading only. (Who gets it has it mapped for writing by a process of his own, or is root.)
fn to_read(memory: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether the kernel would let a user look into a process of his (PTRACE_MODE_ATTACH): one that has privileges, or had some, is
/// root's in /proc (its directory there is not).
fn is_open_to(pid: u32, uid: u32) -> bool {
    rustix::fs::stat(format!("/proc/{pid}/mem")).is_ok_and(|process| process.st_uid == uid)
}

/// Whether the kernel lets a user look into processes that are not his children (Yama's ptrace_scope).
fn is_scope_classic() -> bool {
    std::fs::read("/proc/sys/kernel/yama/ptrace_scope").map_or(true, |scope| scope.first() == Some(&b'0'))
}

impl Server {
    /// Answers [`fs_shm::control::Request::Capture`].
    pub(super) fn capture(&mut self, id: u64, memory: bool, wire: bool, fd: Option<OwnedFd>) -> Result<Answer, Errno> {
        let who = self.connections.get(id).ok_or(Errno::BADF)?.who;
        let uid = (!self.is_trusted(who.uid)).then_some(who.uid);
        // Frames of the device are everybody's.
        if uid.is_some() && (wire || !rustix::process::geteuid().is_root() || !is_scope_classic()) {
            return Err(Errno::PERM);
        }
        let now = Instant::now();
        self.captures.may_begin(id, uid, now, |other| self.is_one_user(other, who.uid))?;
        if uid.is_some() {
            self.captures.last_of_users = Some(now);
        }
        let socket = Arc::new(fd.ok_or(Errno::BADF)?);
        if (sockopt::socket_domain(&socket)?, sockopt::socket_type(&socket)?)
            != (AddressFamily::UNIX, SocketType::SEQPACKET)
        {
            return Err(Errno::PROTOTYPE);
        }
        // One end of a pair has no name. One that leads to a socket with a name could lead to the daemon's.
        let is_named = |peer: SocketAddrAny| peer.addr_len() as usize > size_of::<u16>();
        if rustix::net::getpeername(&socket)?.is_some_and(is_named) {
            return Err(Errno::PROTOTYPE);
        }
        if wire {
            let cores = self.wire.as_ref().ok_or(Errno::NODEV)?;
            cores.tap(socket.clone()).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        }
        let mut capture = Capture { socket, uid, memory, arenas: HashSet::new(), missed: 0 };
        if memory {
            let mut all = self.arenas.ids_where(|_| true);
            all.sort_unstable();
            for arena in all {
                if let Some(entry) = self.arenas.get(arena).filter(|entry| self.sees(&capture, entry)) {
                    self.mark_captured(arena, true);
                    capture.send(arena, entry, false, self.geometry);
                }
            }
        }
        self.captures.entries.insert(id, capture);
        tracing::info!(pid = who.pid, uid = who.uid, memory, wire, "capture started");
        Ok(Reply::Done.into())
    }

    /// Whether an arena is for who captures.
    fn sees(&self, capture: &Capture, entry: &ArenaEntry) -> bool {
        if !capture.memory || entry.wire {
            return false;
        }
        let Some(uid) = capture.uid else { return true };
        let is_his = |process: &u32| {
            let who = self.attachments.get(*process).map(|attachment| attachment.who);
            who.is_some_and(|who| who.uid == uid && is_open_to(who.pid, uid))
        };
        // All connections of an arena are of one opener, and any holder of the listener may accept each.
        let opens = matches!(entry.opener, Some(Opener::Process(opener)) if is_his(&opener));
        opens
            || entry.listener().is_some_and(|listener| {
                self.listeners
                    .get(listener)
                    .is_some_and(|listener| !listener.holders.is_empty() && listener.holders.iter().all(is_his))
            })
    }

    /// An arena is new: before anybody else has it.
    pub(super) fn capture_arena(&mut self, id: u32) {
        let mut captures = std::mem::take(&mut self.captures.entries);
        if let Some(entry) = self.arenas.get(id) {
            for capture in captures.values_mut() {
                if self.sees(capture, entry) {
                    self.mark_captured(id, true);
                    capture.send(id, entry, true, self.geometry);
                }
            }
        }
        self.captures.entries = captures;
    }

    /// A connection has ended.
    pub(super) fn capture_over(&mut self, id: u64) {
        let Some(left) = self.captures.end(id) else { return };
        tracing::info!("capture ended");
        left.into_iter().for_each(|arena| self.mark_captured(arena, false));
    }

    fn mark_captured(&self, id: u32, on: bool) {
        if let Some(arena) = self.map(id, Side::A) {
            arena.set_captured(on);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(all: &mut Captures, id: u64, uid: Option<u32>, now: Instant) -> Result<(), Errno> {
        all.may_begin(id, uid, now, |other| Some(other) == uid)?;
        let socket = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let capture = Capture { socket: Arc::new(socket), uid, memory: true, arenas: HashSet::new(), missed: 0 };
        all.entries.insert(id, capture);
        all.last_of_users = uid.map(|_| now).or(all.last_of_users);
        Ok(())
    }

    #[test]
    fn a_user_has_one_and_all_users_half() {
        let mut all = Captures::default();
        let mut now = Instant::now();
        assert_eq!(begin(&mut all, 1, Some(1000), now), Ok(()));
        assert_eq!(begin(&mut all, 1, None, now), Err(Errno::ALREADY));
        assert_eq!(begin(&mut all, 2, Some(1001), now), Err(Errno::BUSY), "one after the other");
        now += EASE;
        assert_eq!(begin(&mut all, 2, Some(1000), now), Err(Errno::BUSY), "has one");
        for id in 2..=MOST_OF_USERS as u64 {
            assert_eq!(begin(&mut all, id, Some(1000 + id as u32), now), Ok(()));
            now += EASE;
        }
        assert_eq!(begin(&mut all, 9, Some(1009), now), Err(Errno::BUSY), "users have theirs");
        for id in 10..10 + (MOST - MOST_OF_USERS) as u64 {
            assert_eq!(begin(&mut all, id, None, now), Ok(()));
        }
        assert_eq!(begin(&mut all, 20, None, now), Err(Errno::BUSY));
    }

    #[test]
    fn an_arena_is_captured_until_its_last_capture_ends() {
        let mut all = Captures::default();
        let now = Instant::now();
        for (id, arenas) in [(1, [7, 8]), (2, [8, 9])] {
            begin(&mut all, id, None, now).unwrap();
            all.entries.get_mut(&id).unwrap().arenas.extend(arenas);
        }
        assert!(all.arena_gone(9));
        assert!(!all.arena_gone(9));
        assert_eq!(all.end(1), Some(vec![7]));
        assert_eq!(all.end(1), None);
        assert_eq!(all.end(2), Some(vec![8]));
    }
}
