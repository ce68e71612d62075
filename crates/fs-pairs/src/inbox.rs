//! The messages of one process.

use std::os::fd::AsFd;
use std::sync::Arc;

use fs_carrier::exact::Carried;
use rustix::io::Errno;

use crate::closing::{Foreign, User};
use crate::facts::Seen;
use crate::message::{LEN, Number, Reason, Request};
use crate::sys::receive;

/// A received message.
#[derive(Debug)]
pub(crate) enum Message {
    Offer {
        number: Number,
        carried: Carried,
        fd: Foreign,
        /// What a thread of the user has read from the socket.
        seen: Option<Result<Seen, Reason>>,
    },
    /// The service had no descriptor for the offered socket.
    Lost(Number),
    Forget(Number),
    List {
        after: u64,
    },
    Count,
    /// Later messages are the broker's.
    Device,
    /// The process has ended the connection.
    End,
    /// Against the protocol.
    Broken,
}

impl Message {
    /// Returns true if the service reads no message after this one.
    pub(crate) fn is_last(&self) -> bool {
        matches!(self, Message::Device | Message::End | Message::Broken)
    }

    /// Receives a message without blocking. Its descriptors belong to `user`.
    ///
    /// # Errors
    /// The errors of recvmsg(2).
    pub(crate) fn receive(socket: impl AsFd, user: &Arc<User>) -> Result<Self, Errno> {
        let mut bytes = [0; LEN];
        let received = receive(socket.as_fd(), &mut bytes, |fd| user.own(fd.into_owned()))?;
        if received.is_long {
            return Ok(Message::Broken);
        }
        Ok(match (bytes.get(..received.len).and_then(Request::decode), received.fd) {
            (Some(Request::Offer { number, carried }), Some(fd)) => Message::Offer { number, carried, fd, seen: None },
            (Some(Request::Offer { number, .. }), None) if received.is_lost => Message::Lost(number),
            (Some(Request::Forget(number)), None) => Message::Forget(number),
            (Some(Request::List { after }), None) => Message::List { after },
            (Some(Request::Count), None) => Message::Count,
            (Some(Request::Device), None) => Message::Device,
            // An empty message is the end of the connection, not a protocol error.
            _ if received.len == 0 => Message::End,
            _ => Message::Broken,
        })
    }
}
