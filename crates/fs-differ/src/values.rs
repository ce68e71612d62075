//! Names of the numbers in programs.

/// A name and its number.
pub type Named = (&'static str, i32);

/// Flags for making a socket, an epoll set or an accepted connection.
pub const MAKE: &[Named] = &[
    ("nonblock", libc::SOCK_NONBLOCK),
    ("cloexec", libc::SOCK_CLOEXEC),
    // Without it TCP_NODELAY is set at once: the delays of Nagle's algorithm depend on time.
    ("nagle", NAGLE),
];
/// A flag of programs, not of socket(2).
pub const NAGLE: i32 = 0x1000_0000;

/// Address families.
pub const FAMILY: &[Named] = &[("inet", libc::AF_INET), ("inet6", libc::AF_INET6)];

/// Hosts in addresses.
pub const HOST: &[Named] =
    &[("any4", 0), ("lo4", 1), ("lo4b", 2), ("any6", 3), ("lo6", 4), ("mapped", 5), ("unspec", 6), ("short", 7)];

/// Ports: `none` is 0, the others are the program's own.
pub const PORT: &[Named] = &[("p0", 0), ("p1", 1), ("p2", 2), ("p3", 3), ("none", -1)];

/// The call that accepts.
pub const ACCEPT: &[Named] = &[("accept", 0), ("accept4", 1), ("noaddr", 2)];

/// The call that sends.
pub const SEND: &[Named] = &[
    ("write", 0),
    ("writev", 1),
    ("send", 2),
    ("sendto", 3),
    ("sendmsg", 4),
    ("sendmmsg", 5),
    ("sendtoaddr", 6),
    ("syscall", 7),
    ("aio", 8),
    ("uring", 9),
    ("direct", 10),
];

/// The call that receives.
pub const RECV: &[Named] = &[
    ("read", 0),
    ("readv", 1),
    ("recv", 2),
    ("recvfrom", 3),
    ("recvmsg", 4),
    ("recvmmsg", 5),
    ("syscall", 6),
    ("aio", 7),
    ("uring", 8),
    ("direct", 9),
];

/// Flags of messages.
pub const MSG: &[Named] = &[
    ("dontwait", libc::MSG_DONTWAIT),
    ("nosignal", libc::MSG_NOSIGNAL),
    ("peek", libc::MSG_PEEK),
    ("waitall", libc::MSG_WAITALL),
    ("oob", libc::MSG_OOB),
    ("trunc", libc::MSG_TRUNC),
    ("more", libc::MSG_MORE),
    ("eor", libc::MSG_EOR),
    ("waitforone", libc::MSG_WAITFORONE),
    ("cmsg_cloexec", libc::MSG_CMSG_CLOEXEC),
    ("errqueue", libc::MSG_ERRQUEUE),
    ("dontroute", libc::MSG_DONTROUTE),
];

/// Arguments of shutdown(2).
pub const HOW: &[Named] = &[("rd", libc::SHUT_RD), ("wr", libc::SHUT_WR), ("rdwr", libc::SHUT_RDWR), ("bad", 3)];

/// Close-on-exec, as in dup3(2) and fcntl(2).
pub const CLOEXEC: &[Named] = &[("keep", 0), ("cloexec", 1)];

/// Requests of ioctl(2).
pub const IOCTL: &[Named] = &[("fionread", 0), ("siocoutq", 1), ("siocatmark", 2), ("outqnsd", 3)];

/// Events of poll(2).
pub const POLL: &[Named] = &[
    ("in", libc::POLLIN as i32),
    ("out", libc::POLLOUT as i32),
    ("pri", libc::POLLPRI as i32),
    ("rdhup", libc::POLLRDHUP as i32),
    ("rdnorm", libc::POLLRDNORM as i32),
    ("wrnorm", libc::POLLWRNORM as i32),
];

/// The call that polls.
pub const POLLER: &[Named] = &[("poll", 0), ("ppoll", 1), ("select", 2), ("pselect", 3)];

/// Events of epoll_ctl(2).
pub const EVENTS: &[Named] = &[
    ("in", libc::EPOLLIN),
    ("out", libc::EPOLLOUT),
    ("pri", libc::EPOLLPRI),
    ("rdhup", libc::EPOLLRDHUP),
    ("et", libc::EPOLLET),
    ("oneshot", libc::EPOLLONESHOT),
    ("exclusive", libc::EPOLLEXCLUSIVE),
];

/// Operations of epoll_ctl(2).
pub const CTL: &[Named] = &[("add", libc::EPOLL_CTL_ADD), ("mod", libc::EPOLL_CTL_MOD), ("del", libc::EPOLL_CTL_DEL)];

/// The call that waits.
pub const WAIT: &[Named] = &[("epoll_wait", 0), ("epoll_pwait", 1), ("epoll_pwait2", 2)];

/// Signals.
pub const SIGNAL: &[Named] = &[
    ("kill", libc::SIGKILL),
    ("usr1", libc::SIGUSR1),
    ("usr2", libc::SIGUSR2),
    ("stop", libc::SIGSTOP),
    ("cont", libc::SIGCONT),
];

/// Actions of a timer's handler.
pub const DOES: &[Named] = &[
    ("count", 0),
    ("names", 1),
    ("poll", 2),
    ("dup", 3),
    ("spare", 4),
    ("write", 5),
    ("send", 6),
    ("fork", 7),
    ("fork_close", 8),
    ("fork_send", 9),
    ("fork_leave", 10),
];

/// Flags with which a handler is installed: SA_RESTART, SA_SIGINFO.
pub const INSTALLED: &[Named] = &[("plain", 0), ("restart", 1), ("info", 2), ("restart_info", 3)];

/// A timer: setitimer(2), timer_create(2) for the process, or for the thread.
pub const CLOCK: &[Named] = &[("itimer", 0), ("timer", 1), ("thread", 2)];

/// Ways in which a step of many calls waits; `timeo`: by SO_RCVTIMEO and SO_SNDTIMEO, repeatedly.
pub const WAY: &[Named] = &[
    ("block", 0),
    ("poll", 1),
    ("ppoll", 2),
    ("select", 3),
    ("epoll", 4),
    ("timeo", 5),
    // The timer's handler runs only in these calls, whose mask permits it.
    ("let_ppoll", 6),
    ("let_pselect", 7),
    ("let_epoll", 8),
];

/// Ways in which a step waits for a signal that only the call's mask permits.
pub const DOZE: &[Named] = &[("ppoll", 6), ("pselect", 7), ("epoll_pwait", 8)];

/// How a program is started whose standard output is a connection.
pub const JOB: &[Named] = &[("vfork", 0), ("posix_spawn", 1)];

/// The process that reads an accepted connection: the acceptor, or a child forked for it.
pub const READER: &[Named] = &[("itself", 0), ("child", 1)];

/// Whether a client waits for a reply.
pub const ANSWER: &[Named] = &[("alone", 0), ("answered", 1)];

/// A signal of which at most one is pending, and one that queues.
pub const NEWS: &[Named] = &[("usr2", 0), ("rt", 1)];

/// Calls of `churn`.
pub const CHURN: &[Named] = &[
    ("open", CHURN_OPEN),
    ("options", CHURN_OPTIONS),
    ("names", CHURN_NAMES),
    ("dup", CHURN_DUP),
    ("epoll", CHURN_EPOLL),
    ("poll", CHURN_POLL),
    ("fork", CHURN_FORK),
    ("listen", CHURN_LISTEN),
    ("refused", CHURN_REFUSED),
    ("dial", CHURN_DIAL),
    ("spare", CHURN_SPARE),
    ("spawn", CHURN_SPAWN),
];
/// socket(2), close(2).
pub const CHURN_OPEN: i32 = 1;
/// A socket's options.
pub const CHURN_OPTIONS: i32 = 1 << 1;
/// getsockname(2), getpeername(2).
pub const CHURN_NAMES: i32 = 1 << 2;
/// dup(2), dup2(2).
pub const CHURN_DUP: i32 = 1 << 3;
/// An epoll set for one use.
pub const CHURN_EPOLL: i32 = 1 << 4;
/// poll(2) that does not block.
pub const CHURN_POLL: i32 = 1 << 5;
/// A child that exits at once.
pub const CHURN_FORK: i32 = 1 << 6;
/// listen(2) on a port that the kernel chooses.
pub const CHURN_LISTEN: i32 = 1 << 7;
/// connect(2) without a listener.
pub const CHURN_REFUSED: i32 = 1 << 8;
/// A connection to itself.
pub const CHURN_DIAL: i32 = 1 << 9;
/// Copies that handlers close.
pub const CHURN_SPARE: i32 = 1 << 10;
/// posix_spawn(3).
pub const CHURN_SPAWN: i32 = 1 << 11;

/// How an event loop with many connections works.
pub const LOOP: &[Named] = &[
    ("level", LOOP_LEVEL),
    ("out", LOOP_OUT),
    ("rdhup", LOOP_HANG_UP),
    ("oneshot", LOOP_ONCE),
    ("short", LOOP_SHORT),
    ("few", LOOP_FEW),
    ("spin", LOOP_SPIN),
    ("timed", LOOP_TIMED),
    ("worker", LOOP_WORKER),
    ("two", LOOP_TWO),
    ("part", LOOP_PART),
    ("small", LOOP_SMALL),
    ("del", LOOP_DELETE),
    ("cork", LOOP_CORK),
];
/// Level-triggered, not edge-triggered.
pub const LOOP_LEVEL: i32 = 1;
/// EPOLLOUT is registered from the beginning, and not after a send that found no room.
pub const LOOP_OUT: i32 = 1 << 1;
/// EPOLLRDHUP is registered.
pub const LOOP_HANG_UP: i32 = 1 << 2;
/// EPOLLONESHOT: the registration is renewed after each event.
pub const LOOP_ONCE: i32 = 1 << 3;
/// A receive that does not fill the buffer is the last one until the next event, as in tokio.
pub const LOOP_SHORT: i32 = 1 << 4;
/// epoll_wait(2) has a place for one event.
pub const LOOP_FEW: i32 = 1 << 5;
/// epoll_wait(2) never waits.
pub const LOOP_SPIN: i32 = 1 << 6;
/// epoll_wait(2) waits for 2 ms at a time.
pub const LOOP_TIMED: i32 = 1 << 7;
/// Another thread sends and receives.
pub const LOOP_WORKER: i32 = 1 << 8;
/// Two threads wait in the set.
pub const LOOP_TWO: i32 = 1 << 9;
/// After one receive the other connections come first, as in nginx.
pub const LOOP_PART: i32 = 1 << 10;
/// Receives have a small buffer.
pub const LOOP_SMALL: i32 = 1 << 11;
/// EPOLL_CTL_DEL comes before close(2).
pub const LOOP_DELETE: i32 = 1 << 12;
/// Each turn of sends is between TCP_CORK of 1 and of 0, and its first half has MSG_MORE.
pub const LOOP_CORK: i32 = 1 << 13;

/// Treatment of a signal.
pub const HANDLER: &[Named] = &[("plain", 0), ("restart", 1), ("ignore", 2)];

/// Timeouts of sockets.
pub const TIMEOUT: &[Named] = &[("rcv", libc::SO_RCVTIMEO), ("snd", libc::SO_SNDTIMEO)];

/// Options by name: the index in `OPTIONS`.
pub const OPTION: &[Named] = &[
    ("reuseaddr", 0),
    ("reuseport", 1),
    ("keepalive", 2),
    ("oobinline", 3),
    ("linger", 4),
    ("error", 5),
    ("type", 6),
    ("acceptconn", 7),
    ("domain", 8),
    ("protocol", 9),
    ("priority", 10),
    ("rcvlowat", 11),
    ("nodelay", 12),
    ("cork", 13),
    ("keepidle", 14),
    ("keepintvl", 15),
    ("keepcnt", 16),
    ("syncnt", 17),
    ("linger2", 18),
    ("defer_accept", 19),
    ("window_clamp", 20),
    ("quickack", 21),
    ("user_timeout", 22),
    ("inq", 23),
    ("notsent_lowat", 24),
    ("maxseg", 25),
    ("tos", 26),
    ("ttl", 27),
    ("v6only", 28),
    ("unicast_hops", 29),
    ("tclass", 30),
    ("freebind", 31),
    ("timestamp", 32),
    ("mark", 33),
    ("sndbuf", 34),
    ("rcvbuf", 35),
    ("fastopen", 36),
    ("bind_no_port", 37),
    ("incoming_cpu", 38),
    ("dontroute", 39),
    ("broadcast", 40),
    ("addrform", 41),
    ("mtu_discover", 42),
    ("recvtos", 43),
    ("zerocopy", 44),
    ("passcred", 45),
    ("peek_off", 46),
    ("busy_poll", 47),
    ("reserved", 48),
];

/// Level and name of each of `OPTION`.
pub const OPTIONS: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_ERROR),
    (libc::SOL_SOCKET, libc::SO_TYPE),
    (libc::SOL_SOCKET, libc::SO_ACCEPTCONN),
    (libc::SOL_SOCKET, libc::SO_DOMAIN),
    (libc::SOL_SOCKET, libc::SO_PROTOCOL),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, 36), // TCP_INQ
    (libc::IPPROTO_TCP, 25), // TCP_NOTSENT_LOWAT
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IP, libc::IP_FREEBIND),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
    (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::IPPROTO_IPV6, libc::IPV6_ADDRFORM),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IP, libc::IP_RECVTOS),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_PASSCRED),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::IPPROTO_TCP, 9999),
];

/// Returns the number's name.
pub fn name_of(table: &[Named], value: i32) -> Option<&'static str> {
    table.iter().find(|(_, number)| *number == value).map(|(name, _)| *name)
}

/// Returns the name's number.
pub fn number_of(table: &[Named], name: &str) -> Option<i32> {
    table.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// Returns the names of the bits, joined by `|`; `0` for 0.
pub fn bits(table: &[Named], value: i32) -> String {
    let mut rest = value;
    let mut names: Vec<String> = Vec::new();
    for (name, bit) in table {
        if rest & bit == *bit && *bit != 0 {
            names.push((*name).into());
            rest &= !bit;
        }
    }
    if rest != 0 || names.is_empty() {
        names.push(if rest == 0 { "0".into() } else { format!("{rest:#x}") });
    }
    names.join("|")
}

/// Returns the bits of joined names.
pub fn bits_of(table: &[Named], text: &str) -> Option<i32> {
    text.split('|').try_fold(0, |all, name| {
        let bit = match number_of(table, name) {
            Some(bit) => bit,
            None => match name.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16).ok()? as i32,
                None => name.parse().ok()?,
            },
        };
        Some(all | bit)
    })
}
