//! What processes ask, and what they are answered.

use super::arenas::no_descriptor;
use super::{Server, strangers};
use crate::sys;
use fs_shm::control::{ADMIN_MAX, MESSAGE_MAX, Reply, Request, is_reply, socket};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests of one connection that are answered before the next connection's turn.
const TURN: usize = 16;

/// What a connection's turn may take, but for one request.
const LONG: Duration = Duration::from_micros(500);

/// What a request is answered with.
pub(super) struct Answer {
    reply: Reply,
    fds: Vec<Arc<OwnedFd>>,
    /// Of a list, behind the reply.
    rows: Vec<u8>,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Answer { reply, fds: Vec::new(), rows: Vec::new() }
    }
}

impl Answer {
    pub(super) fn with(reply: Reply, fds: impl IntoIterator<Item = Arc<OwnedFd>>) -> Self {
        Answer { reply, fds: fds.into_iter().collect(), rows: Vec::new() }
    }

    /// A page of a list.
    pub(super) fn page(reply: Reply, rows: Vec<u8>) -> Self {
        Answer { reply, fds: Vec::new(), rows }
    }
}

impl Server {
    /// Answers what has come on a connection.
    pub(super) fn serve(&mut self, id: u64) {
        let mut buffer = [0; MESSAGE_MAX];
        let begun = Instant::now();
        for request in 0..TURN {
            // Who asks for what takes long waits for the others after each.
            if request > 0 && begun.elapsed() > LONG {
                return;
            }
            let Some(connection) = self.connections.get_mut(id) else { return };
            let record = match sys::receive(connection.socket.as_fd(), &mut buffer) {
                Ok(record) => record,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::debug!(%error, "a control connection failed");
                    return self.disconnect(id);
                }
            };
            let (fds, strange): (Vec<OwnedFd>, Vec<OwnedFd>) = record.fds.into_iter().partition(strangers::is_expected);
            if !strange.is_empty() {
                let uid = connection.who.uid;
                self.strangers.close(uid, strange);
                if self.strangers.is_full(uid) {
                    tracing::debug!(uid, "cannot close descriptors that a process sent");
                    return self.disconnect(id);
                }
            }
            if record.len == 0 {
                return self.disconnect(id);
            }
            if record.cut && !self.events.is_descriptor_left() {
                // The kernel leaves out what there is no number for.
                no_descriptor(&Errno::MFILE);
            }
            let Some(connection) = self.connections.get_mut(id) else { return };
            if let Some(sender) = record.sender {
                connection.who = sender;
            }
            if is_reply(&buffer[..record.len]) {
                // A process has passed both ends of a pair: what the daemon says at one it hears at the other.
                self.counters.malformed += 1;
                return self.disconnect(id);
            }
            let request = Request::decode(&buffer[..record.len]);
            match request {
                Ok((_, Request::Ring { poller })) => {
                    self.ring(id, poller);
                    continue;
                }
                Ok((_, Request::Due { after })) => {
                    self.record_due(id, after);
                    continue;
                }
                Ok((_, Request::Trim { arena })) => {
                    self.asked_to_trim(id, arena);
                    continue;
                }
                Ok((_, Request::Room { arena })) => {
                    self.want_room(id, arena);
                    continue;
                }
                Ok((_, Request::Unwatch { listener })) => {
                    self.unwatch_listener(id, listener);
                    continue;
                }
                _ => {}
            }
            let (number, answer) = match request {
                _ if record.cut => (number_of(&buffer[..record.len]), Err(Errno::MSGSIZE)),
                Ok((number, request)) => (number, self.answer(id, request, fds)),
                Err(malformed) => {
                    tracing::debug!(%malformed, "rejected a malformed request");
                    self.counters.malformed += 1;
                    (number_of(&buffer[..record.len]), Err(Errno::BADMSG))
                }
            };
            let answer = answer.unwrap_or_else(|errno| Reply::Failed { errno: errno.raw_os_error() }.into());
            if !self.reply(id, number, &answer) {
                return self.disconnect(id);
            }
        }
    }

    fn answer(&mut self, id: u64, request: Request, fds: Vec<OwnedFd>) -> Result<Answer, Errno> {
        self.counters.requests += 1;
        match request {
            Request::Hello { version, name } => return self.hello(id, version, name),
            Request::Status => return Ok(self.status().into()),
            Request::Sockets { cursor } => {
                let who = self.connections.get(id).ok_or(Errno::BADF)?.who;
                return Ok(self.sockets(cursor, who.uid));
            }
            Request::Counters { cursor } => return Ok(self.counter_rows(cursor)),
            Request::Capture { memory, wire } => return self.capture(id, memory, wire, fds.into_iter().next()),
            _ => {}
        }
        let connection = self.connections.get(id).ok_or(Errno::BADF)?;
        let who = connection.who;
        let me = connection.attachment.ok_or(Errno::NOTCONN)?;
        // A forked child, or who has changed its user since: as the kernel says it is now.
        let attachment = self.attachments.get_mut(me).ok_or(Errno::NOTCONN)?;
        let has_changed = attachment.who.uid != who.uid;
        (attachment.who, attachment.parent) = (who, None);
        if has_changed {
            self.has_changed_user(me);
        }
        let fd = fds.into_iter().next();
        match request {
            Request::Hello { .. }
            | Request::Status
            | Request::Sockets { .. }
            | Request::Counters { .. }
            | Request::Capture { .. }
            | Request::Ring { .. }
            | Request::Due { .. }
            | Request::Trim { .. }
            | Request::Room { .. }
            | Request::Unwatch { .. } => Err(Errno::INVAL),
            Request::Poller => self.poller(me, fd),
            Request::ListenerPoller { listener } => self.listener_poller(me, listener),
            Request::ExclusivePoller { listener, set, told } => self.exclusive_poller(me, listener, set, told),
            Request::PollerGone { poller } => {
                if self.pollers.leave(poller, me) {
                    self.evict(me, &[poller]);
                }
                Ok(Reply::Done.into())
            }
            Request::Bell { poller } => self.bell(me, poller),
            Request::Route { to } => self.route(me, to, fd.ok_or(Errno::BADF)?),
            Request::Listen => self.listen(me, fd.ok_or(Errno::BADF)?),
            Request::Unlisten { listener } => {
                let in_use = self.unlisten(me, listener);
                Ok(if in_use { Reply::PortInUse } else { Reply::Done }.into())
            }
            Request::Watch { listener } => self.watch_listener(me, listener),
            Request::Lend { arena, slot } => self.lend(me, arena, slot),
            Request::Ports { port } => {
                self.see_to_ports(port);
                Ok(Reply::Done.into())
            }
            Request::Shut { listener } => self.shut_listener(me, listener),
            Request::Leave { listener } => self.leave_listener(me, listener),
            Request::Arena { arena, side, part } => self.arena(me, arena, side, part),
            Request::Listener { listener } => self.listener_page(me, listener),
            Request::Fork => self.fork(me, fd.ok_or(Errno::BADF)?),
            Request::Prepare => self.prepare(me, fd.ok_or(Errno::BADF)?),
            Request::Inherit { child } => self.inherit_prepared(me, child),
            Request::ForkFailed { child } => self.fork_failed(me, child),
            Request::Exec => self.exec(me, fd),
            Request::ExecFailed => self.exec_failed(me),
            Request::Spawned { child } => self.spawned(me, child),
            Request::Resume { version, name } => self.resume(me, version, name),
            Request::Share { object, cookie, fd: number } => self.share(me, object, cookie, number, fd),
            Request::Unshare { cookie } => self.unshare(me, cookie),
            Request::Vouch { arena, ends } => self.vouch(me, arena, ends),
            Request::Claim => self.claim(me, fd.ok_or(Errno::BADF)?),
        }
    }

    /// `false`: the process does not take its answers, or is gone.
    fn reply(&self, id: u64, number: u32, answer: &Answer) -> bool {
        let Some(connection) = self.connections.get(id) else { return true };
        let mut buffer = [0; ADMIN_MAX];
        let Ok(len) = answer.reply.encode(number, &mut buffer) else {
            tracing::error!(reply = ?answer.reply, "cannot encode a reply");
            return false;
        };
        let end = len + answer.rows.len();
        let Some(room) = buffer.get_mut(len..end) else { return false };
        room.copy_from_slice(&answer.rows);
        let fds: Vec<BorrowedFd<'_>> = answer.fds.iter().map(|fd| fd.as_fd()).collect();
        match socket::send(connection.socket.as_fd(), &buffer[..end], &fds) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "cannot send a reply");
                false
            }
        }
    }
}

/// The number of a message that is not understood otherwise.
fn number_of(bytes: &[u8]) -> u32 {
    bytes.get(4..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_not_understood_has_its_number() {
        let mut bytes = [0; MESSAGE_MAX];
        let len = Request::Status.encode(0x0102_0304, &mut bytes).unwrap();
        assert_eq!(number_of(&bytes[..len]), 0x0102_0304);
        bytes[..4].fill(0xff);
        assert_eq!(number_of(&bytes[..len]), 0x0102_0304);
        assert_eq!(number_of(&bytes[..7]), 0);
    }
}
