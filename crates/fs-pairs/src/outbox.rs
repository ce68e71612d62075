//! The answers to one process, which may read them later than they are made.
//!
//! The two ends of many connections are matched as fast as one end offers them. The other end's
//! process may be off its processor for that time: its socket takes about 280 answers, and the
//! others wait here.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{Errno, IoSlice};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::closing::Foreign;
use crate::message::{Answer, Number, Reason};

/// Answers that wait, as many as offers of a process may. More: memory for a process that does not
/// read. Fewer: a process with as many connections is disconnected, and looks for the service again
/// after a second.
const WAITING: usize = 1024;

/// A client's socket, and the answers that it has no space for.
#[derive(Debug)]
pub(crate) struct Outbox {
    socket: Foreign,
    /// Each with the region's file, if the pair has not ended. The registry shares the file.
    waiting: VecDeque<(Answer, Option<Arc<OwnedFd>>)>,
}

impl Outbox {
    pub(crate) fn new(socket: Foreign) -> Self {
        Outbox { socket, waiting: VecDeque::new() }
    }

    pub(crate) fn into_socket(self) -> Foreign {
        self.socket
    }

    /// Returns true if answers wait for space.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends an answer, or keeps it until [`Outbox::flush`].
    ///
    /// # Errors
    /// `TOOMANYREFS`: nothing was sent. Any other error: the client is gone, or does not read.
    pub(crate) fn answer(&mut self, answer: Answer, file: Option<&Arc<OwnedFd>>) -> Result<(), Errno> {
        let sent = if self.is_waiting() {
            Err(Errno::AGAIN)
        } else {
            self.send(&answer.encode(), file.map(|file| file.as_fd()))
        };
        match sent {
            Err(Errno::AGAIN) if self.waiting.len() < WAITING => {
                self.waiting.push_back((answer, file.map(Arc::clone)));
                Ok(())
            }
            result => result,
        }
    }

    /// Sends the answers that wait, as far as there is space.
    ///
    /// # Errors
    /// The client is gone.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        while let Some((answer, file)) = self.waiting.front() {
            let sent = match self.send(&answer.encode(), file.as_ref().map(|file| file.as_fd())) {
                // The other end has its region alone, and stays on the kernel.
                Err(Errno::TOOMANYREFS) => self.send(&refused(*answer, Reason::Limit).encode(), None),
                result => result,
            };
            match sent {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The client has ended this offer or pair. It still gets its answer, because it counts them,
    /// and no file waits for a pair that has ended.
    pub(crate) fn withdraw(&mut self, number: Number) {
        if let Some((answer, file)) = self.waiting.iter_mut().find(|(answer, _)| answer.number() == number) {
            (*answer, *file) = (refused(*answer, Reason::NoPeer), None);
        }
    }

    /// Sends a message without blocking.
    ///
    /// # Errors
    /// The errors of sendmsg(2).
    pub(crate) fn send(&self, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = file.map(|file| [file]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags).map(|_| ())
    }
}

impl AsFd for Outbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn refused(answer: Answer, reason: Reason) -> Answer {
    Answer::Refused { number: answer.number(), reason }
}
