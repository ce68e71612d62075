//! What recvmsg(2) tells beside the bytes: how many are left (TCP_INQ), and when they came (SO_TIMESTAMP and its relatives).
//!
//! What was asked for belongs to the connection, and so lies in the channel ([`Channel::user`]); before there is one, in the
//! socket's marks. Nobody notes when bytes come: the time that is told is that of the call which takes them.

use core::sync::atomic::Ordering::Relaxed;
use libc::{SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW, SOL_SOCKET, SOL_TCP, TCP_INQ};

use fs_shm::Channel;

use crate::{
    descriptor::table,
    socket::{Socket, mark},
    sys::call,
    types::Fd,
};

const SO_TIMESTAMP_OLD: i32 = 29;
const SO_TIMESTAMPNS_OLD: i32 = 35;

/// The options, each with what it asks for. A message has its option's number as its type.
const NAMES: [(i32, i32, u32); 5] = [
    (SOL_SOCKET, SO_TIMESTAMP_OLD, mark::STAMP),
    (SOL_SOCKET, SO_TIMESTAMPNS_OLD, mark::STAMP | mark::STAMP_NS),
    (SOL_SOCKET, SO_TIMESTAMP_NEW, mark::STAMP | mark::STAMP_NEW),
    (SOL_SOCKET, SO_TIMESTAMPNS_NEW, mark::STAMP | mark::STAMP_NS | mark::STAMP_NEW),
    (SOL_TCP, TCP_INQ, mark::INQ),
];
const STAMPS: u32 = mark::STAMP | mark::STAMP_NS | mark::STAMP_NEW;
const ALL: u32 = STAMPS | mark::INQ;

/// The word of [`Channel::user`].
const WORD: usize = 0;

/// A control message, of which C's header is the caller's to write.
#[derive(Clone, Copy, Debug)]
pub struct Ancillary {
    /// `cmsg_level`.
    pub level: i32,
    /// `cmsg_type`.
    pub kind: i32,
    bytes: [u8; 16],
    len: usize,
}

impl Ancillary {
    /// Its data.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What the call that has just received `bytes` tells, in the order of the kernel (tcp_recvmsg()).
pub fn ancillary(fd: Fd, bytes: usize) -> impl Iterator<Item = Ancillary> {
    let channel = table::find(fd).and_then(Socket::channel);
    let asked = channel.map_or(0, |channel| channel.user()[WORD].load(Relaxed) as u32);
    let stamp = (asked & mark::STAMP != 0 && bytes != 0).then(|| stamp(asked));
    let left = channel.filter(|_| asked & mark::INQ != 0).map(|channel| left(&channel));
    stamp.into_iter().chain(left)
}

/// tcp_inq_hint() of the kernel: the end of the stream counts as a byte.
fn left(channel: &Channel<'static>) -> Ancillary {
    let left = channel.queued_in() as i32 + i32::from(channel.has_ended());
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&left.to_ne_bytes());
    Ancillary { level: SOL_TCP, kind: TCP_INQ, bytes, len: 4 }
}

fn stamp(asked: u32) -> Ancillary {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let fraction = if asked & mark::STAMP_NS != 0 { now.tv_nsec } else { now.tv_nsec / 1000 };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&now.tv_sec.to_ne_bytes());
    bytes[8..].copy_from_slice(&fraction.to_ne_bytes());
    let option = NAMES.iter().find(|&&(.., bits)| bits == asked & STAMPS);
    Ancillary { level: SOL_SOCKET, kind: option.map_or(SO_TIMESTAMP_OLD, |&(_, name, _)| name), bytes, len: 16 }
}

/// The kernel has taken an option; false: it is none of these.
pub(crate) fn was_set(socket: &Socket, level: i32, name: i32, on: bool) -> bool {
    let Some(&(.., bits)) = NAMES.iter().find(|&&(of, option, _)| (of, option) == (level, name)) else { return false };
    // __sock_set_timestamps() of the kernel: whoever turns one off turns off all.
    socket.unmark(if level == SOL_SOCKET { STAMPS } else { bits });
    if on {
        socket.mark(bits);
    }
    if let Some(channel) = socket.channel() {
        let word = &channel.user()[WORD];
        let others = word.load(Relaxed) as u32 & if level == SOL_SOCKET { !STAMPS } else { !bits };
        word.store(u64::from(others | if on { bits } else { 0 }), Relaxed);
    }
    true
}

/// A connection has what its socket was asked for before.
pub(crate) fn apply(socket: &Socket, channel: &Channel<'static>) {
    let asked = socket.marks() & ALL;
    if asked != 0 {
        channel.user()[WORD].store(u64::from(asked), Relaxed);
    }
}

/// What an accepted socket has of its listener.
pub(crate) fn inherit(socket: &Socket, listener: &Socket) {
    socket.mark(listener.marks() & ALL);
}

/// What was set on a socket that is inherited without a connection.
pub(crate) fn recall(fd: Fd, socket: &Socket) {
    for (level, name, bits) in NAMES {
        if call::int_option(fd, level, name).is_ok_and(|on| on != 0) {
            socket.mark(bits);
        }
    }
}
