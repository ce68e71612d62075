//! The messages.

use super::object::Object;
use super::wire::Text;
use core::net::{IpAddr, SocketAddr};

/// The version that both sides have to speak: of the messages in the upper half, of the layout in memory in the lower.
pub const VERSION: u32 = 14 << 16 | crate::layout::VERSION;

/// No message but an admin reply is longer.
pub const MESSAGE_MAX: usize = 512;

/// No admin reply is longer.
pub const ADMIN_MAX: usize = 16 << 10;

/// Descriptors that a message carries at most.
pub const FDS_MAX: usize = 2 * GROUP_MAX;

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
    /// The daemon's configuration leaves it to the kernel.
    Policy = 12,
    /// Rules of the kernel's firewall, or programs of its cgroup, could have a say in it.
    Firewall = 13,
    /// Processes hold the listener that may not see each other's connections.
    Holders = 14,
}

impl KernelReason {
    /// All, in the order of their codes.
    pub const ALL: [KernelReason; 14] = [
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
        KernelReason::Policy,
        KernelReason::Firewall,
        KernelReason::Holders,
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
            KernelReason::Policy => "policy",
            KernelReason::Firewall => "firewall",
            KernelReason::Holders => "holders",
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
    /// This process has closed its last descriptor of a listener. → [`Reply::Done`], [`Reply::PortInUse`]
    Unlisten {
        /// Its number.
        listener: u32,
    },
    /// This process has closed its last descriptor of a listener that others hold, and says that an epoll set of it has a registration,
    /// which lasts as long as the socket (epoll(7)): it holds the listener no more, and is shown the arenas on, until [`Request::Unwatch`]. →
    /// [`Reply::Done`]; on failure it holds it still, `ENOENT`: nobody else does, `EACCES`: those who do are another user's, or have memory
    /// of their own
    Watch {
        /// Its number.
        listener: u32,
    },
    /// One [`Request::Watch`] is over. No answer
    Unwatch {
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
    /// Asks for an arena that this process takes part in. → [`Reply::Arena`], and what of it was asked for
    Arena {
        /// Its number.
        arena: u32,
        /// The side that this process has, of which it gets the locks.
        side: super::PeerSide,
        /// What of it.
        part: super::ArenaPart,
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
    /// This process is about to exec, and this connection lives on. One end of a socketpair comes along whose other end is
    /// close-on-exec: it ends when the exec happens. → [`Reply::Done`]
    Exec,
    /// The exec did not happen. → [`Reply::Done`]
    ExecFailed,
    /// A child was made by posix_spawn(3): it has its new image. → [`Reply::Done`]
    Spawned {
        /// The child's attachment.
        child: u32,
    },
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
    /// allowed. → [`Reply::Claimed`] and the arena's memory with the locks of its side, or listener's page; [`Reply::Kernel`] when
    /// it is not ours
    Claim,
    /// Whether the ends that a connection's memory names (its opener's, its acceptor's) are true of an arena that this process
    /// takes part in: the opener could have written any. → [`Reply::Vouched`]; `EACCES` when they are not
    Vouch {
        /// Its number.
        arena: u32,
        /// Address of side A, address of side B.
        ends: [SocketAddr; 2],
    },
    /// Sockets of all processes, for root and who runs the daemon, or else of this user's, from a place in the list on. → [`Reply::Sockets`]
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
    /// What connections carry, for `fastsock capture`: all, for root and who runs the daemon; another user's own for him. One end of a socketpair of type
    /// SOCK_SEQPACKET comes along, on which [`super::CaptureRecord`]s are sent until this connection ends. → [`Reply::Done`]
    Capture {
        /// Arenas between processes, those that there are and those to come.
        memory: bool,
        /// Frames of the device.
        wire: bool,
    },
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
    /// A connection that this process has opened in an arena is kept out ([`crate::Channel::is_kept_out`]): what others leave of its
    /// listener's room is to be shared anew. Nothing is answered.
    Room {
        /// The arena's number.
        arena: u32,
    },
    /// The slot that the next connection in an arena takes has no port to come from ([`crate::OpenArgs::lent`]): it is given one that the
    /// daemon has bound, and so are some slots behind it. → [`Reply::Done`]; an error where there is none
    Lend {
        /// The arena's number, of which this process has side A.
        arena: u32,
        /// The slot.
        slot: u32,
    },
    /// A port that connections have kept in use is let go if they do not any more; 0: those that are to be kept are taken now.
    /// → [`Reply::Done`]
    Ports {
        /// Its number.
        port: u16,
    },
}

/// What the daemon answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done.
    Done,
    /// Done, and connections keep the listener's port in use: the daemon is to take it when the socket is closed
    /// ([`Request::Ports`]).
    PortInUse,
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
        /// One arena for each listener of the group, of which `arenas[..count]` are given, each with its memory and the locks of
        /// side A.
        arenas: [u32; GROUP_MAX],
        /// See `arenas`; at least 1.
        count: u8,
    },
    /// The connection goes over the wire, by this arena, whose memory comes along, and the locks of side A.
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
    /// The arena, with its memory and the locks of the side that was asked for.
    Arena,
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
    /// They are.
    Vouched {
        /// So is whatever else this arena's memory names: a core of the daemon's writes it.
        all: bool,
    },
    /// A part of the list of sockets: `rows[..len]` are `SocketRow`s.
    Sockets {
        /// Where the next part begins; 0 at the end.
        next: u64,
        /// Rows that follow in the message's tail.
        count: u16,
    },
    /// A part of the counters: `count` `CounterRow`s are the message's tail.
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
