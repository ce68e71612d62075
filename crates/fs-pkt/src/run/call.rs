//! System calls as targets get them, and what they answer.

use std::net::SocketAddr;

/// A system call with its arguments evaluated; descriptors are the target's.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "names and arguments are those of the manual pages")]
pub enum SysCall {
    Socket {
        domain: i32,
        kind: i32,
        protocol: i32,
    },
    Bind {
        fd: i32,
        at: SocketAddr,
    },
    Listen {
        fd: i32,
        backlog: i32,
    },
    Accept {
        fd: i32,
    },
    /// `to` none: an address of family `AF_UNSPEC`, which disconnects.
    Connect {
        fd: i32,
        to: Option<SocketAddr>,
    },
    /// read, readv, recv, recvfrom, recvmsg. `lens` are the buffers' sizes.
    Receive {
        fd: i32,
        by: Transfer,
        lens: Vec<usize>,
        null: bool,
        flags: i32,
        control: usize,
    },
    /// write, writev, send, sendto, sendmsg: zeros unless the script says what.
    Send {
        fd: i32,
        by: Transfer,
        lens: Vec<usize>,
        null: bool,
        flags: i32,
        to: Destination,
    },
    Close {
        fd: i32,
    },
    Shutdown {
        fd: i32,
        how: i32,
    },
    Fcntl {
        fd: i32,
        command: i32,
        arg: Option<i32>,
    },
    Ioctl {
        fd: i32,
        request: i32,
        arg: bool,
    },
    GetOption {
        fd: i32,
        level: i32,
        name: i32,
        len: usize,
    },
    SetOption {
        fd: i32,
        level: i32,
        name: i32,
        value: Vec<u8>,
        len: usize,
    },
    Poll {
        fds: Vec<(i32, i16)>,
        timeout: i32,
    },
    EpollCreate {
        size: i32,
    },
    EpollControl {
        epoll: i32,
        operation: i32,
        fd: i32,
        events: u32,
        data: u64,
    },
    EpollWait {
        epoll: i32,
        max: i32,
        timeout: i32,
    },
    Pipe,
    Open {
        path: String,
        flags: i32,
    },
    Sendfile {
        to: i32,
        from: i32,
        offset: i64,
        count: usize,
    },
    Splice {
        from: i32,
        to: i32,
        len: usize,
        flags: u32,
    },
    /// cap_set: nothing that a socket call here depends on.
    CapSet,
}

/// Which of the calls that move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// read(2), write(2).
    Plain,
    /// readv(2), writev(2).
    Vector,
    /// recv(2), send(2).
    Flags,
    /// recvfrom(2), sendto(2).
    Address,
    /// recvmsg(2), sendmsg(2).
    Message,
}

/// Where a send goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Where the socket is connected to.
    Connected,
    /// An address.
    To(SocketAddr),
    /// An address of family `AF_UNSPEC`.
    Unspecified,
}

/// What a call returned.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The result; -1 with `errno`.
    pub result: i64,
    /// Set when `result` is -1.
    pub errno: i32,
    /// What it wrote.
    pub out: Out,
}

/// What a call wrote to memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Out {
    /// Nothing that scripts look at.
    #[default]
    Nothing,
    /// accept's peer.
    Peer(SocketAddr),
    /// recvmsg's flags and control messages.
    Message {
        /// msg_flags.
        flags: i32,
        /// msg_control.
        control: Vec<Control>,
    },
    /// An option's value.
    Bytes(Vec<u8>),
    /// ioctl's result.
    Int(i32),
    /// poll's revents.
    Revents(Vec<i16>),
    /// epoll_wait's events and data.
    Events(Vec<(u32, u64)>),
    /// pipe's two ends.
    Pair(i32, i32),
}

/// A control message.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// cmsg_level.
    pub level: i32,
    /// cmsg_type.
    pub kind: i32,
    /// What it carries.
    pub data: Vec<u8>,
}

impl Outcome {
    /// Success.
    pub fn ok(result: i64) -> Self {
        Self { result, errno: 0, out: Out::Nothing }
    }

    /// Success, with what was written.
    pub fn with(result: i64, out: Out) -> Self {
        Self { result, errno: 0, out }
    }

    /// Failure.
    pub fn err(errno: i32) -> Self {
        Self { result: -1, errno, out: Out::Nothing }
    }
}
