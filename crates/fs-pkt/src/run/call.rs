//! System calls and their outcomes, as targets see them.

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
    /// `to: None`: an address of family `AF_UNSPEC`, which disconnects.
    Connect {
        fd: i32,
        to: Option<SocketAddr>,
    },
    /// read, readv, recv, recvfrom, recvmsg. `lens` contains the buffers' sizes.
    Receive {
        fd: i32,
        by: Transfer,
        lens: Vec<usize>,
        null: bool,
        flags: i32,
        control: usize,
    },
    /// write, writev, send, sendto, sendmsg. The data is zeros unless the script gives it.
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
    /// cap_set: no socket call here depends on it.
    CapSet,
}

/// The variant of a call that moves bytes.
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

/// Destination of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The socket's peer.
    Connected,
    /// An address.
    To(SocketAddr),
    /// An address of family `AF_UNSPEC`.
    Unspecified,
}

/// Result of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The return value; -1 with `errno`.
    pub result: i64,
    /// Set when `result` is -1.
    pub errno: i32,
    /// The call's output.
    pub out: Out,
}

/// Output of a call in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Out {
    /// Nothing that scripts compare.
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
    /// pipe's two descriptors.
    Pair(i32, i32),
}

/// A control message.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// cmsg_level.
    pub level: i32,
    /// cmsg_type.
    pub kind: i32,
    /// The control message's data.
    pub data: Vec<u8>,
}

impl Outcome {
    /// Makes a success.
    pub fn ok(result: i64) -> Self {
        Self { result, errno: 0, out: Out::Nothing }
    }

    /// Makes a success with output.
    pub fn with(result: i64, out: Out) -> Self {
        Self { result, errno: 0, out }
    }

    /// Makes a failure.
    pub fn err(errno: i32) -> Self {
        Self { result: -1, errno, out: Out::Nothing }
    }
}
