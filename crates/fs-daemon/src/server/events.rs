//! What the control thread waits for: one epoll set, and what each of its descriptors stands for.

use crate::listeners::Netns;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// What has an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// The control socket: processes connect to it.
    Control,
    /// Other threads have sent commands.
    Wake,
    /// A process's connection, by its number.
    Connection(u64),
    /// A listener's placeholder.
    Listener(u32),
    /// What ends when an attachment has done the exec that it has announced.
    Exec(u32),
    /// Addresses and routes of a namespace.
    Namespace(Netns),
    /// Rules of its firewall.
    Firewall(Netns),
}

/// The kind of a token is in the four upper bits of epoll's word, a number in the others: connections are counted from 0, and
/// an inode number of nsfs, which a namespace is known by, has 32 bits.
const KIND: u32 = 60;
const NUMBER: u64 = (1 << KIND) - 1;

impl Token {
    fn word(self) -> u64 {
        let (kind, number) = match self {
            Token::Control => (0, 0),
            Token::Wake => (1, 0),
            Token::Connection(id) => (2, id),
            Token::Listener(id) => (3, id.into()),
            Token::Exec(id) => (4, id.into()),
            Token::Namespace(netns) => (5, netns),
            Token::Firewall(netns) => (6, netns),
        };
        kind << KIND | number & NUMBER
    }

    fn from_word(word: u64) -> Option<Self> {
        let number = word & NUMBER;
        Some(match word >> KIND {
            0 => Token::Control,
            1 => Token::Wake,
            2 => Token::Connection(number),
            3 => Token::Listener(number as u32),
            4 => Token::Exec(number as u32),
            5 => Token::Namespace(number),
            6 => Token::Firewall(number),
            _ => return None,
        })
    }
}

/// The set.
#[derive(Debug)]
pub(super) struct Events(OwnedFd);

impl Events {
    pub(super) fn new() -> Result<Self, Errno> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(Self)
    }

    /// Something can be read.
    pub(super) fn watch(&self, fd: BorrowedFd<'_>, token: Token) -> Result<(), Errno> {
        epoll::add(&self.0, fd, epoll::EventData::new_u64(token.word()), epoll::EventFlags::IN)
    }

    /// Its end, which is always told, and nothing else.
    pub(super) fn watch_end(&self, fd: BorrowedFd<'_>, token: Token) -> Result<(), Errno> {
        epoll::add(&self.0, fd, epoll::EventData::new_u64(token.word()), epoll::EventFlags::empty())
    }

    /// A descriptor that a process has passed, or could have a copy of, is about to be closed: the set would keep it for as long as that
    /// copy is open.
    pub(super) fn unwatch(&self, fd: BorrowedFd<'_>) {
        // Not there: it was taken out before.
        let _absent = epoll::delete(&self.0, fd);
    }

    /// Waits for events, or until the time is over; `tokens` has those that came.
    pub(super) fn wait(&self, timeout: Option<&Timespec>, tokens: &mut Vec<Token>) -> Result<(), Errno> {
        tokens.clear();
        let mut events = Vec::with_capacity(256);
        match epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        tokens.extend(events.iter().filter_map(|event| Token::from_word(event.data.u64())));
        Ok(())
    }

    /// Whether no more than a sixteenth of the descriptors that this process can have are left: as many as follow the lowest free number
    /// at most.
    pub(super) fn are_descriptors_scarce(&self) -> bool {
        let Some(most) = getrlimit(Resource::Nofile).current else { return false };
        let lowest = rustix::io::fcntl_dupfd_cloexec(self.0.as_fd(), 0);
        lowest.map_or(true, |lowest| lowest.as_raw_fd() as u64 >= most - most / 16)
    }

    /// Whether this process can have one more descriptor.
    pub(super) fn is_descriptor_left(&self) -> bool {
        rustix::io::fcntl_dupfd_cloexec(self.0.as_fd(), 0).map(drop) != Err(Errno::MFILE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

    #[test]
    fn a_token_comes_back_as_it_was_given() {
        let all = [
            Token::Control,
            Token::Wake,
            Token::Connection(0),
            Token::Connection(NUMBER),
            Token::Listener(u32::MAX),
            Token::Exec(u32::MAX),
            Token::Namespace(0xf000_0000),
            Token::Firewall(0xffff_ffff),
        ];
        for token in all {
            assert_eq!(Token::from_word(token.word()), Some(token));
        }
        assert_eq!(Token::from_word(u64::MAX), None);
    }

    #[test]
    fn what_is_watched_is_told_until_it_is_watched_no_more() {
        let set = Events::new().unwrap();
        let (one, other) = (eventfd(1, EventfdFlags::CLOEXEC).unwrap(), eventfd(1, EventfdFlags::CLOEXEC).unwrap());
        set.watch(one.as_fd(), Token::Exec(7)).unwrap();
        set.watch_end(other.as_fd(), Token::Listener(7)).unwrap();
        assert_eq!(set.watch(one.as_fd(), Token::Exec(7)), Err(Errno::EXIST));
        let mut tokens = vec![Token::Wake];
        set.wait(Some(&NOW), &mut tokens).unwrap();
        assert_eq!(tokens, [Token::Exec(7)]);
        set.unwatch(one.as_fd());
        set.unwatch(one.as_fd());
        set.wait(Some(&NOW), &mut tokens).unwrap();
        assert_eq!(tokens, []);
        assert!(set.is_descriptor_left());
    }
}
