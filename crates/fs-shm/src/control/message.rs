//! The messages, and their encoding: version-3 bytes, little-endian, a fixed order of fields.
//!
//! A message is one SOCK_SEQPACKET record: kind u16, 0 u16, number u32, then the kind's fields. A reply carries its
//! request's number. Descriptors travel beside it (SCM_RIGHTS), in the order that each kind names.

use super::object::Object;
use super::wire::{Malformed, Reader, Text, Writer};
use core::net::{IpAddr, SocketAddr};

/// The version that both sides have to speak: of the messages in the upper half, of the layout in memory in the lower.
pub const VERSION: u32 = 7 << 16 | crate::layout::VERSION;

/// No message but an admin reply is longer.
pub const MESSAGE_MAX: usize = 512;

/// No admin reply is longer.
pub const ADMIN_MAX: usize = 16 << 10;

/// Descriptors that a message carries at most.
pub const FDS_MAX: usize = 8;

/// Arenas that a local route names at most: of a larger reuseport group, that many, chosen by rotation.
pub const GROUP_MAX: usize = 7;

/// Why a socket is on the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum KernelReason {
    /// The process has no daemon (none runs, it does not answer, another version).
    NoDaemon = 1,
    /// The address is this host's, but no accelerated process listens there.
    NoListener = 2,
    /// The address is behind an interface that is not accelerated (or none is).
    NotServed = 3,
    /// Family, type or protocol is not ours: UDP, Unix, raw …
    Protocol = 4,
    /// An option was set that we cannot honour.
    Option = 5,
    /// The process's network namespace cannot be read, or is not served.
    Namespace = 6,
    /// A limit of the daemon (arenas, attachments, listeners) is reached.
    Limit = 7,
    /// The daemon is being shut down.
    Draining = 8,
    /// It was accepted from the kernel's queue: the client is not accelerated.
    Accepted = 9,
    /// The device could not take the port (it is in use on another queue owner, or privileged for the daemon).
    Port = 10,
    /// The socket came from outside (inherited or received) and the daemon does not know it.
    Foreign = 11,
}

impl KernelReason {
    /// All, in the order of their codes.
    pub const ALL: [KernelReason; 11] = [
        KernelReason::NoDaemon,
        KernelReason::NoListener,
        KernelReason::NotServed,
        KernelReason::Protocol,
        KernelReason::Option,
        KernelReason::Namespace,
        KernelReason::Limit,
        KernelReason::Draining,
        KernelReason::Accepted,
        KernelReason::Port,
        KernelReason::Foreign,
    ];

    /// The reason of a code in messages and objects.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// A few words for `fastsock ss` and counters.
    pub fn name(self) -> &'static str {
        match self {
            KernelReason::NoDaemon => "no-daemon",
            KernelReason::NoListener => "no-listener",
            KernelReason::NotServed => "not-served",
            KernelReason::Protocol => "protocol",
            KernelReason::Option => "option",
            KernelReason::Namespace => "namespace",
            KernelReason::Limit => "limit",
            KernelReason::Draining => "draining",
            KernelReason::Accepted => "accepted-from-kernel",
            KernelReason::Port => "port",
            KernelReason::Foreign => "foreign",
        }
    }
}

/// The sizes of an arena. They come with [`Reply::Welcome`] and hold for all arenas of this daemon's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaGeometry {
    /// Channels of an arena.
    pub slots: u32,
    /// Logarithm of the room of each ring.
    pub stride_log2: u8,
    /// Logarithm of the size that a ring starts with.
    pub ring_log2: u8,
    /// Version of the layout in memory.
    pub layout: u32,
}

/// What a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message of a connection. → [`Reply::Welcome`], attachment page, directory page.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The program's name, for lists only.
        name: Text<32>,
    },
    /// Makes a poller. → [`Reply::Poller`] and the epoll set to sleep on: readable, with a new edge, when it was rung by
    /// whomever. If an eventfd comes along, that is what is slept on, nothing is answered beside the number, and the daemon
    /// alone rings it: for who cannot call epoll_wait(2).
    Poller,
    /// Asks for the poller that all who accept from a listener share: one sleeper is woken by each ring.
    /// → [`Reply::Poller`] and the epoll set to sleep on
    ListenerPoller {
        /// The listener's number.
        listener: u32,
    },
    /// Asks for the poller that all epoll sets share which watch a listener with EPOLLEXCLUSIVE: one that sleeps is woken by
    /// each ring. → [`Reply::Poller`] and the eventfd to watch, with EPOLLEXCLUSIVE, which the daemon alone rings
    ExclusivePoller {
        /// The listener's number.
        listener: u32,
        /// The poller of the set that asks.
        set: u32,
        /// Whether that one is rung for each arena that is new all the same.
        told: bool,
    },
    /// A poller is gone. → [`Reply::Done`]
    PollerGone {
        /// Its number.
        poller: u32,
    },
    /// Asks for what to ring a poller with. → [`Reply::Done`] and an eventfd that nobody else has; `ENOENT` when the poller
    /// is gone, `EOPNOTSUPP` when the daemon alone rings it ([`Request::Ring`]), `ENOBUFS` when this process has been given
    /// some already.
    Bell {
        /// Its number.
        poller: u32,
    },
    /// Which way a connection of the placeholder that comes along goes: its network namespace and bound address are
    /// read from it. → [`Reply::Local`], [`Reply::Wire`], [`Reply::Kernel`], [`Reply::Refused`]
    Route {
        /// Where to.
        to: SocketAddr,
    },
    /// Announces the placeholder that comes along, which has to be listening: address, backlog, options and namespace are
    /// read from it, so nobody announces a port that the kernel did not give him. Again: backlog and options are read anew.
    /// → [`Reply::Listener`] and its page, [`Reply::Kernel`], [`Reply::Refused`]
    Listen,
    /// This process has closed its last descriptor of a listener. → [`Reply::Done`]
    Unlisten {
        /// Its number.
        listener: u32,
    },
    /// A listener was shut down (shutdown(2)), which all see that hold it: those that wait are reset, and its page is closed until
    /// one of them announces it again. → [`Reply::Done`]
    Shut {
        /// Its number.
        listener: u32,
    },
    /// New connections to a listener are the kernel's from here on; those that wait are accepted. → [`Reply::Done`]
    Leave {
        /// Its number.
        listener: u32,
    },
    /// Asks for an arena that this process takes part in. → [`Reply::Arena`] and the memory
    Arena {
        /// Its number.
        arena: u32,
    },
    /// Asks for the page of a listener that this process holds. → [`Reply::Listener`] and the page
    Listener {
        /// Its number.
        listener: u32,
    },
    /// This process is about to fork; a descriptor comes along: the daemon's end of the child's connection (a
    /// socketpair of type SOCK_SEQPACKET). → [`Reply::Forked`] and the child's page
    Fork,
    /// The first half of [`Request::Fork`], for a process that will not be able to pass descriptors when it forks: a child that
    /// holds nothing yet. → [`Reply::Forked`] and the child's page
    Prepare,
    /// The second half: this process is about to fork that child. → [`Reply::Done`]
    Inherit {
        /// The child's attachment.
        child: u32,
    },
    /// The fork did not happen. → [`Reply::Done`]
    ForkFailed {
        /// The child's attachment.
        child: u32,
    },
    /// This process is about to exec, and this connection lives on. → [`Reply::Done`]
    Exec,
    /// The exec did not happen. → [`Reply::Done`]
    ExecFailed,
    /// First message of a new image on the connection that it was left. → [`Reply::Welcome`], pages as for `Hello`
    Resume {
        /// [`VERSION`].
        version: u32,
        /// The program's name, for lists only.
        name: Text<32>,
    },
    /// A descriptor of this process is about to be sent with SCM_RIGHTS: the object lives on until it is claimed, or until its
    /// placeholder, which comes along, exists no more. → [`Reply::Done`]
    Share {
        /// What it stands for.
        object: Object,
        /// The placeholder's SO_COOKIE.
        cookie: u64,
        /// The descriptor's number, whose entry in the attachment page says so.
        fd: u32,
    },
    /// The message that [`Request::Share`] was for was not sent. → [`Reply::Done`]
    Unshare {
        /// The placeholder's SO_COOKIE.
        cookie: u64,
    },
    /// The descriptor that comes along was received or inherited; what is it? Holding it is the proof that asking is
    /// allowed. → [`Reply::Claimed`] and the arena's memory or listener's page; [`Reply::Kernel`] when it is not ours
    Claim,
    /// Sockets of all processes, from a place in the list on. → [`Reply::Sockets`]
    Sockets {
        /// 0, or what the last answer gave.
        cursor: u64,
    },
    /// All counters, from a place on. → [`Reply::Counters`]
    Counters {
        /// 0, or what the last answer gave.
        cursor: u64,
    },
    /// What the daemon is doing. → [`Reply::Status`]
    Status,
    /// Rings a poller, for a process whose filter of system calls (seccomp) or limit of descriptors keeps it from
    /// having the eventfd: it is one write(2). Nothing is answered.
    Ring {
        /// Its number.
        poller: u32,
    },
    /// The daemon is to see to what this process holds and has set a time for ([`crate::Channel::set_due`]). Nothing is answered.
    Due {
        /// In so many milliseconds.
        after: u32,
    },
    /// Something was freed in an arena: its memory can go back. Nothing is answered.
    Trim {
        /// Its number.
        arena: u32,
    },
}

/// What the daemon answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done.
    Done,
    /// It did not work.
    Failed {
        /// Why, as an errno.
        errno: i32,
    },
    /// Answer to [`Request::Hello`] and [`Request::Resume`], with the attachment page and the directory page.
    Welcome {
        /// The process's number.
        attachment: u32,
        /// Which start of the daemon this is: it differs between any two.
        epoch: u64,
        /// Sizes of all arenas.
        geometry: ArenaGeometry,
    },
    /// Answer to [`Request::Poller`], [`Request::ListenerPoller`] and [`Request::ExclusivePoller`].
    Poller {
        /// The poller's number.
        poller: u32,
    },
    /// The listener is another accelerated process's (or this one's).
    Local {
        /// The directory's generation that this answer is of.
        generation: u64,
        /// The address that the connection comes from.
        source: IpAddr,
        /// One arena for each listener of the group, of which `arenas[..count]` are given, each with its memory.
        arenas: [u32; GROUP_MAX],
        /// See `arenas`; at least 1.
        count: u8,
    },
    /// The connection goes over the wire, by this arena, whose memory comes along.
    Wire {
        /// The directory's generation that this answer is of.
        generation: u64,
        /// The arena to the core.
        arena: u32,
        /// The core's number.
        core: u16,
    },
    /// The kernel's.
    Kernel {
        /// The directory's generation that this answer is of.
        generation: u64,
        /// Why.
        reason: KernelReason,
    },
    /// A rule of the daemon's denies it.
    Refused {
        /// The directory's generation that this answer is of.
        generation: u64,
        /// What the call is to answer.
        errno: i32,
    },
    /// The listener, with its page.
    Listener {
        /// Its number.
        listener: u32,
    },
    /// The arena, with its memory.
    Arena {
        /// The side that this process may use.
        side: super::PeerSide,
    },
    /// The child's attachment, with its page.
    Forked {
        /// The child's number.
        child: u32,
    },
    /// What the descriptor is, with the memory.
    Claimed {
        /// The object.
        object: Object,
    },
    /// A part of the list of sockets: `rows[..len]` are [`SocketRow`]s.
    Sockets {
        /// Where the next part begins; 0 at the end.
        next: u64,
        /// Rows that follow in the message's tail.
        count: u16,
    },
    /// A part of the counters: `count` [`CounterRow`]s are the message's tail.
    Counters {
        /// Where the next part begins; 0 at the end.
        next: u64,
        /// Rows that follow in the message's tail.
        count: u16,
    },
    /// What the daemon is doing.
    Status {
        /// Its process.
        pid: u32,
        /// Its cores; 0 when it serves this host only.
        cores: u16,
        /// It takes no new work.
        draining: bool,
        /// Processes attached.
        attachments: u32,
        /// The device, or nothing.
        device: Text<32>,
    },
}

/// What carries a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// TCP on the accelerated device.
    Wire = 1,
    /// Another process of this host, by shared memory.
    Local = 2,
    /// The kernel.
    Kernel = 3,
}

/// One socket in a list. Its size is fixed by what it holds: at most 128 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketRow {
    /// TCP's state, as `include/net/tcp_states.h` numbers it (1 ESTABLISHED … 10 LISTEN).
    pub state: u8,
    /// What carries it.
    pub kind: Kind,
    /// The core, for the wire.
    pub core: Option<u16>,
    /// Why it is the kernel's.
    pub reason: Option<KernelReason>,
    /// Bytes to read (of a listener: connections to accept).
    pub recv_queue: u32,
    /// Bytes that the peer has not taken (of a listener: the backlog).
    pub send_queue: u32,
    /// Own address; port 0 and the unspecified address when it is not known.
    pub local: SocketAddr,
    /// The peer's.
    pub peer: Option<SocketAddr>,
    /// The process.
    pub pid: u32,
    /// Its descriptor.
    pub fd: u32,
    /// Its name.
    pub name: Text<32>,
}

/// One counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRow {
    /// Its name, as Prometheus wants it, without the `fastsock_` in front.
    pub name: Text<48>,
    /// A label's value, or nothing: the reason, the core.
    pub label: Text<32>,
    /// It can go down.
    pub gauge: bool,
    /// The value.
    pub value: u64,
}

/// Bytes before the fields.
const HEADER: usize = 8;

fn header(w: &mut Writer<'_>, kind: u16, number: u32) {
    w.u16(kind);
    w.u16(0);
    w.u32(number);
}

fn read_header(bytes: &[u8]) -> Result<(u16, u32, Reader<'_>), Malformed> {
    let mut r = Reader::new(bytes);
    let kind = r.u16()?;
    if r.u16()? != 0 {
        return Err(Malformed("reserved field is not 0"));
    }
    let number = r.u32()?;
    Ok((kind, number, r))
}

impl Request {
    /// Writes the message; answers its length.
    pub fn encode(&self, number: u32, buffer: &mut [u8]) -> Result<usize, Malformed> {
        let mut w = Writer::new(buffer);
        header(&mut w, self.kind(), number);
        match *self {
            Request::Hello { version, ref name } | Request::Resume { version, ref name } => {
                w.u32(version);
                w.text(name);
            }
            Request::Poller
            | Request::Fork
            | Request::Prepare
            | Request::Exec
            | Request::ExecFailed
            | Request::Claim
            | Request::Listen
            | Request::Status => {}
            Request::PollerGone { poller } | Request::Bell { poller } | Request::Ring { poller } => w.u32(poller),
            Request::Due { after } => w.u32(after),
            Request::Route { to } => w.addr(to),
            Request::Unlisten { listener }
            | Request::Shut { listener }
            | Request::Leave { listener }
            | Request::Listener { listener }
            | Request::ListenerPoller { listener } => w.u32(listener),
            Request::ExclusivePoller { listener, set, told } => {
                w.u32(listener);
                w.u32(set);
                w.u32(u32::from(told));
            }
            Request::Arena { arena } | Request::Trim { arena } => w.u32(arena),
            Request::ForkFailed { child } | Request::Inherit { child } => w.u32(child),
            Request::Share { object, cookie, fd } => {
                w.u64(object.to_word());
                w.u64(cookie);
                w.u32(fd);
            }
            Request::Sockets { cursor } | Request::Counters { cursor } => w.u64(cursor),
            Request::Unshare { cookie } => w.u64(cookie),
        }
        w.finish()
    }

    fn kind(&self) -> u16 {
        match self {
            Request::Hello { .. } => 1,
            Request::Poller => 2,
            Request::PollerGone { .. } => 3,
            Request::Bell { .. } => 4,
            Request::Route { .. } => 5,
            Request::Listen => 6,
            Request::Unlisten { .. } => 7,
            Request::Arena { .. } => 8,
            Request::Listener { .. } => 9,
            Request::Fork => 10,
            Request::ForkFailed { .. } => 11,
            Request::Exec => 12,
            Request::ExecFailed => 13,
            Request::Resume { .. } => 14,
            Request::Share { .. } => 15,
            Request::Claim => 16,
            Request::Sockets { .. } => 17,
            Request::Counters { .. } => 18,
            Request::Status => 19,
            Request::Ring { .. } => 20,
            Request::ListenerPoller { .. } => 21,
            Request::ExclusivePoller { .. } => 22,
            Request::Unshare { .. } => 23,
            Request::Prepare => 24,
            Request::Inherit { .. } => 25,
            Request::Due { .. } => 26,
            Request::Shut { .. } => 27,
            Request::Leave { .. } => 28,
            Request::Trim { .. } => 29,
        }
    }

    /// Reads a message; answers its number with it.
    pub fn decode(bytes: &[u8]) -> Result<(u32, Request), Malformed> {
        let (kind, number, mut r) = read_header(bytes)?;
        let request = match kind {
            1 => Request::Hello { version: r.u32()?, name: r.text()? },
            2 => Request::Poller,
            3 => Request::PollerGone { poller: r.u32()? },
            4 => Request::Bell { poller: r.u32()? },
            5 => Request::Route { to: r.addr()? },
            6 => Request::Listen,
            7 => Request::Unlisten { listener: r.u32()? },
            8 => Request::Arena { arena: r.u32()? },
            9 => Request::Listener { listener: r.u32()? },
            10 => Request::Fork,
            11 => Request::ForkFailed { child: r.u32()? },
            12 => Request::Exec,
            13 => Request::ExecFailed,
            14 => Request::Resume { version: r.u32()?, name: r.text()? },
            15 => Request::Share { object: object(r.u64()?)?, cookie: r.u64()?, fd: r.u32()? },
            16 => Request::Claim,
            17 => Request::Sockets { cursor: r.u64()? },
            18 => Request::Counters { cursor: r.u64()? },
            19 => Request::Status,
            20 => Request::Ring { poller: r.u32()? },
            21 => Request::ListenerPoller { listener: r.u32()? },
            23 => Request::Unshare { cookie: r.u64()? },
            24 => Request::Prepare,
            25 => Request::Inherit { child: r.u32()? },
            26 => Request::Due { after: r.u32()? },
            29 => Request::Trim { arena: r.u32()? },
            22 => Request::ExclusivePoller { listener: r.u32()?, set: r.u32()?, told: r.u32()? != 0 },
            27 => Request::Shut { listener: r.u32()? },
            28 => Request::Leave { listener: r.u32()? },
            _ => return Err(Malformed("unknown kind of request")),
        };
        r.finish((number, request))
    }
}

fn object(word: u64) -> Result<Object, Malformed> {
    Object::from_word(word).ok_or(Malformed("not an object"))
}

impl Reply {
    /// Writes the message; answers its length.
    pub fn encode(&self, number: u32, buffer: &mut [u8]) -> Result<usize, Malformed> {
        let mut w = Writer::new(buffer);
        header(&mut w, self.kind(), number);
        match *self {
            Reply::Done => {}
            Reply::Failed { errno } => w.u32(errno as u32),
            Reply::Welcome { attachment, epoch, geometry } => {
                w.u32(attachment);
                w.u64(epoch);
                w.u32(geometry.slots);
                w.u8(geometry.stride_log2);
                w.u8(geometry.ring_log2);
                w.u32(geometry.layout);
            }
            Reply::Poller { poller } => w.u32(poller),
            Reply::Local { generation, source, arenas, count } => {
                w.u64(generation);
                w.ip(source);
                w.u8(count);
                let given = arenas.get(..usize::from(count)).ok_or(Malformed("too many arenas"))?;
                given.iter().for_each(|&arena| w.u32(arena));
            }
            Reply::Wire { generation, arena, core } => {
                w.u64(generation);
                w.u32(arena);
                w.u16(core);
            }
            Reply::Kernel { generation, reason } => {
                w.u64(generation);
                w.u8(reason as u8);
            }
            Reply::Refused { generation, errno } => {
                w.u64(generation);
                w.u32(errno as u32);
            }
            Reply::Listener { listener } => w.u32(listener),
            Reply::Arena { side } => w.u8(side as u8),
            Reply::Forked { child } => w.u32(child),
            Reply::Claimed { object } => w.u64(object.to_word()),
            Reply::Sockets { next, count } | Reply::Counters { next, count } => {
                w.u64(next);
                w.u16(count);
            }
            Reply::Status { pid, cores, draining, attachments, ref device } => {
                w.u32(pid);
                w.u16(cores);
                w.bool(draining);
                w.u32(attachments);
                w.text(device);
            }
        }
        w.finish()
    }

    fn kind(&self) -> u16 {
        0x8000
            + match self {
                Reply::Done => 1,
                Reply::Failed { .. } => 2,
                Reply::Welcome { .. } => 3,
                Reply::Poller { .. } => 4,
                Reply::Local { .. } => 5,
                Reply::Wire { .. } => 6,
                Reply::Kernel { .. } => 7,
                Reply::Refused { .. } => 8,
                Reply::Listener { .. } => 9,
                Reply::Arena { .. } => 10,
                Reply::Forked { .. } => 11,
                Reply::Claimed { .. } => 12,
                Reply::Sockets { .. } => 13,
                Reply::Counters { .. } => 14,
                Reply::Status { .. } => 15,
            }
    }

    /// Reads a message; answers its number with it, and the rows behind it for the two kinds that have some.
    pub fn decode(bytes: &[u8]) -> Result<(u32, Reply, &[u8]), Malformed> {
        let (kind, number, mut r) = read_header(bytes)?;
        let reply = match kind.wrapping_sub(0x8000) {
            1 => Reply::Done,
            2 => Reply::Failed { errno: errno(r.u32()?)? },
            3 => Reply::Welcome {
                attachment: r.u32()?,
                epoch: r.u64()?,
                geometry: ArenaGeometry { slots: r.u32()?, stride_log2: r.u8()?, ring_log2: r.u8()?, layout: r.u32()? },
            },
            4 => Reply::Poller { poller: r.u32()? },
            5 => {
                let (generation, source, count) = (r.u64()?, r.ip()?, r.u8()?);
                let mut arenas = [0; GROUP_MAX];
                let given = arenas.get_mut(..usize::from(count)).ok_or(Malformed("too many arenas"))?;
                if given.is_empty() {
                    return Err(Malformed("no arena"));
                }
                for arena in given {
                    *arena = r.u32()?;
                }
                Reply::Local { generation, source, arenas, count }
            }
            6 => Reply::Wire { generation: r.u64()?, arena: r.u32()?, core: r.u16()? },
            7 => Reply::Kernel {
                generation: r.u64()?,
                reason: KernelReason::from_code(r.u8()?).ok_or(Malformed("unknown reason"))?,
            },
            8 => Reply::Refused { generation: r.u64()?, errno: errno(r.u32()?)? },
            9 => Reply::Listener { listener: r.u32()? },
            10 => Reply::Arena { side: if r.bool()? { super::PeerSide::B } else { super::PeerSide::A } },
            11 => Reply::Forked { child: r.u32()? },
            12 => Reply::Claimed { object: object(r.u64()?)? },
            // The rows are the caller's to read.
            13 => return Ok((number, Reply::Sockets { next: r.u64()?, count: r.u16()? }, &bytes[HEADER + 10..])),
            14 => return Ok((number, Reply::Counters { next: r.u64()?, count: r.u16()? }, &bytes[HEADER + 10..])),
            15 => Reply::Status {
                pid: r.u32()?,
                cores: r.u16()?,
                draining: r.bool()?,
                attachments: r.u32()?,
                device: r.text()?,
            },
            _ => return Err(Malformed("unknown kind of reply")),
        };
        r.finish((number, reply, &[]))
    }
}

/// 1 to 4095, as the kernel's are.
fn errno(value: u32) -> Result<i32, Malformed> {
    if (1..4096).contains(&value) { Ok(value as i32) } else { Err(Malformed("not an errno")) }
}

/// Rows of admin replies.
pub trait Row: Sized {
    /// Writes it; answers its length.
    fn encode(&self, buffer: &mut [u8]) -> Result<usize, Malformed>;
    /// Reads one and answers what is behind it.
    fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed>;
}

impl Row for SocketRow {
    fn encode(&self, buffer: &mut [u8]) -> Result<usize, Malformed> {
        let mut w = Writer::new(buffer);
        w.u8(self.state);
        w.u8(self.kind as u8);
        w.bool(self.core.is_some());
        w.u16(self.core.unwrap_or(0));
        w.u8(self.reason.map_or(0, |reason| reason as u8));
        w.u32(self.recv_queue);
        w.u32(self.send_queue);
        w.addr(self.local);
        w.some_addr(self.peer);
        w.u32(self.pid);
        w.u32(self.fd);
        w.text(&self.name);
        w.finish()
    }

    fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut r = Reader::new(bytes);
        let state = r.u8()?;
        let kind = match r.u8()? {
            1 => Kind::Wire,
            2 => Kind::Local,
            3 => Kind::Kernel,
            _ => return Err(Malformed("unknown kind of socket")),
        };
        let (has_core, core) = (r.bool()?, r.u16()?);
        let reason = match r.u8()? {
            0 => None,
            code => Some(KernelReason::from_code(code).ok_or(Malformed("unknown reason"))?),
        };
        let row = Self {
            state,
            kind,
            core: has_core.then_some(core),
            reason,
            recv_queue: r.u32()?,
            send_queue: r.u32()?,
            local: r.addr()?,
            peer: r.some_addr()?,
            pid: r.u32()?,
            fd: r.u32()?,
            name: r.text()?,
        };
        Ok((row, r.rest()))
    }
}

impl Row for CounterRow {
    fn encode(&self, buffer: &mut [u8]) -> Result<usize, Malformed> {
        let mut w = Writer::new(buffer);
        w.text(&self.name);
        w.text(&self.label);
        w.bool(self.gauge);
        w.u64(self.value);
        w.finish()
    }

    fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut r = Reader::new(bytes);
        let row = Self { name: r.text()?, label: r.text()?, gauge: r.bool()?, value: r.u64()? };
        Ok((row, r.rest()))
    }
}
