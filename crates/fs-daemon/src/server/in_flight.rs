//! Which sockets still exist, without holding them.
//!
//! An epoll set has its entries for as long as their open file exists, and holds none of them: when the last descriptor is
//! closed and the last message that carries one is thrown away, the kernel removes the entry. Nobody waits on this set; its
//! entries are read from /proc, which shows the word that each was added with: here the socket's cookie.

use rustix::event::epoll;
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The sockets that were added, until they exist no more.
#[derive(Debug, Default)]
pub(super) struct InFlight(Option<OwnedFd>);

impl InFlight {
    /// Adds a socket by its cookie. `false`: what becomes of it cannot be known.
    pub(super) fn add(&mut self, socket: BorrowedFd<'_>, cookie: u64) -> bool {
        if self.0.is_none() {
            self.0 = epoll::create(epoll::CreateFlags::CLOEXEC).ok();
        }
        let Some(set) = &self.0 else { return false };
        match epoll::add(set, socket, epoll::EventData::new_u64(cookie), epoll::EventFlags::empty()) {
            // EEXIST: it was added before, under the same number.
            Ok(()) | Err(Errno::EXIST) => true,
            Err(_) => false,
        }
    }

    /// The cookies of those that exist; `None`: /proc cannot be read.
    pub(super) fn existing(&self) -> Option<HashSet<u64>> {
        let Some(set) = &self.0 else { return Some(HashSet::new()) };
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", set.as_fd().as_raw_fd())).ok()?;
        Some(text.lines().filter_map(cookie_of).collect())
    }

    /// Nobody asks for any of them any more.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}

/// Of a line `tfd: 5 events: 18 data: 2a pos:0 ino:1 sdev:9` (fs/eventpoll.c, ep_show_fdinfo()).
fn cookie_of(line: &str) -> Option<u64> {
    let mut words = line.strip_prefix("tfd:")?.split_ascii_whitespace();
    words.find(|word| *word == "data:")?;
    u64::from_str_radix(words.next()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_socket_exists_until_its_last_descriptor_is_closed() {
        let mut known = InFlight::default();
        assert_eq!(known.existing(), Some(HashSet::new()));
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let copy = socket.try_clone().unwrap();
        assert!(known.add(copy.as_fd(), 0x1234_5678_9abc_def0));
        assert!(known.add(copy.as_fd(), 0x1234_5678_9abc_def0), "again");
        drop(copy);
        assert_eq!(known.existing(), Some(HashSet::from([0x1234_5678_9abc_def0])));
        drop(socket);
        assert_eq!(known.existing(), Some(HashSet::new()));
    }
}
