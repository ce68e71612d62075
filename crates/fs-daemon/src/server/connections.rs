//! The connections of processes: who may have one, and when it ends.

use super::Server;
use super::arenas::no_descriptor;
use super::events::Token;
use crate::seldom::Seldom;
use crate::sys::{self, Credentials};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// A connection of a process.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    /// As the kernel said with what was received last.
    pub(super) who: Credentials,
    /// None before `Hello`, and for programs that only ask for lists.
    pub(super) attachment: Option<u32>,
}

/// All of them. A number is never used again: what is known by one (a capture) is never taken for another's.
#[derive(Debug, Default)]
pub(super) struct Connections {
    entries: HashMap<u64, Connection>,
    next: u64,
}

impl Connections {
    /// The number that the next one gets.
    fn vacant(&self) -> u64 {
        self.next
    }

    fn insert(&mut self, connection: Connection) -> u64 {
        let id = self.next;
        self.next += 1;
        self.entries.insert(id, connection);
        id
    }

    fn remove(&mut self, id: u64) -> Option<Connection> {
        self.entries.remove(&id)
    }

    pub(super) fn get(&self, id: u64) -> Option<&Connection> {
        self.entries.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Connection> {
        self.entries.get_mut(&id)
    }

    /// The attachment that speaks on one.
    pub(super) fn attachment(&self, id: u64) -> Option<u32> {
        self.get(id)?.attachment
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    /// Those of users for whom this is so.
    fn count_of(&self, is_meant: impl Fn(u32) -> bool) -> usize {
        self.entries.values().filter(|connection| is_meant(connection.who.uid)).count()
    }
}

impl Server {
    pub(super) fn accept(&mut self) {
        loop {
            let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.control, flags) {
                Ok(socket) => {
                    // Who is over the limit is hung up on, which is answer enough: it uses the kernel.
                    if let Err(error) = self.connect(socket) {
                        static SELDOM: Seldom = Seldom::new();
                        if let Some(left_out) = SELDOM.due() {
                            tracing::warn!(%error, left_out, "refused a process: it uses the kernel");
                        }
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    // Out of descriptors, most likely. epoll tells again; not at full speed.
                    no_descriptor(&error);
                    tracing::debug!(%error, "accept failed on the control socket");
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
        }
    }

    /// Enters a connection; answers its number.
    pub(super) fn connect(&mut self, socket: OwnedFd) -> io::Result<u64> {
        let limit = self.config.limits.attachments;
        let who = sys::peer(socket.as_fd())?;
        if self.connections.len() >= limit && !self.is_trusted(who.uid) {
            return Err(io::Error::other("the limit `attachments` is reached"));
        }
        if self.strangers.is_full(who.uid) {
            return Err(io::Error::other(format!("user {} has sent descriptors that cannot be closed", who.uid)));
        }
        let theirs = || self.connections.count_of(|uid| self.is_one_user(uid, who.uid));
        if !self.has_room(who.uid, limit, self.connections.len(), theirs) {
            return Err(io::Error::other(format!(
                "user {} has half of all attachments, the limit for one user",
                self.owners.of(who.uid)
            )));
        }
        rustix::net::sockopt::set_socket_passcred(&socket, true)?;
        self.events.watch(socket.as_fd(), Token::Connection(self.connections.vacant()))?;
        Ok(self.connections.insert(Connection { socket, who, attachment: None }))
    }

    pub(super) fn disconnect(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(id) else { return };
        self.events.unwatch(connection.socket.as_fd());
        drop(connection.socket);
        self.capture_over(id);
        if let Some(attachment) = connection.attachment {
            self.detach(attachment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_number_is_never_anothers() {
        let mut all = Connections::default();
        let mut insert = |uid| {
            let (socket, _) = UnixStream::pair().unwrap();
            let who = Credentials { pid: 1, uid };
            all.insert(Connection { socket: socket.into(), who, attachment: None })
        };
        let ids = [insert(1), insert(2), insert(1)];
        assert_eq!((ids, all.count_of(|uid| uid == 1), all.len()), ([0, 1, 2], 2, 3));
        assert!(all.remove(2).is_some() && all.remove(2).is_none());
        assert_eq!((all.vacant(), all.count_of(|uid| uid == 1)), (3, 1));
        all.get_mut(1).unwrap().attachment = Some(7);
        assert_eq!([all.attachment(0), all.attachment(1), all.attachment(2)], [None, Some(7), None]);
    }
}
