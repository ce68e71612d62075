//! The options of sockets that mean more than the kernel's placeholder can do, in one table: names and values as in socket(7), ip(7),
//! ipv6(7) and tcp(7). Whatever else setsockopt(2) takes means something to the placeholder only, or to who reads and writes
//! (`fs-socket/src/options`).

use super::options::{Algorithm, Options};
use libc::{
    IP_MINTTL, IP_OPTIONS, IP_TOS, IP_TRANSPARENT, IP_TTL, IPV6_DSTOPTS, IPV6_HOPOPTS, IPV6_MINHOPCOUNT, IPV6_RTHDR,
    IPV6_TCLASS, IPV6_TRANSPARENT, IPV6_UNICAST_HOPS, SO_ATTACH_BPF, SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF,
    SO_ATTACH_REUSEPORT_EBPF, SO_BINDTODEVICE, SO_BINDTOIFINDEX, SO_DONTROUTE, SO_KEEPALIVE, SO_LINGER, SO_MARK,
    SO_MAX_PACING_RATE, SO_PEEK_OFF, SO_RCVBUF, SO_RCVBUFFORCE, SO_SNDBUF, SO_SNDBUFFORCE, SO_TIMESTAMPING, SO_TXTIME,
    SO_ZEROCOPY, SOL_IP, SOL_IPV6, SOL_SOCKET, SOL_TCP, TCP_CONGESTION, TCP_CORK, TCP_KEEPCNT, TCP_KEEPIDLE,
    TCP_KEEPINTVL, TCP_LINGER2, TCP_MAXSEG, TCP_MD5SIG, TCP_MD5SIG_EXT, TCP_NODELAY, TCP_NOTSENT_LOWAT, TCP_REPAIR,
    TCP_SAVE_SYN, TCP_SYNCNT, TCP_ULP, TCP_USER_TIMEOUT, TCP_WINDOW_CLAMP,
};

/// Of asm-generic/socket.h; libc has it not for each processor.
const SO_TIMESTAMPING_NEW: i32 = 65;
/// Of linux/tcp.h; libc has them not, or not for each C library.
const TCP_TX_DELAY: i32 = 37;
const TCP_AO_ADD_KEY: i32 = 38;

/// Where an option that is the kernel's work has a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matters {
    /// On the wire: it is about packets, of which there are none between two processes of this host.
    OnWire,
    /// On every connection.
    Everywhere,
}

/// Who does what an option says.
#[derive(Clone, Copy, Debug)]
pub enum Doer {
    /// A core of the daemon: the value that getsockopt(2) gives is noted among [`Options`].
    Core {
        /// Notes it.
        note: fn(&mut Options, Value<'_>),
        /// The value of an option that was not set cannot be told from one that was: what an inherited socket has is not carried over.
        is_ambiguous: bool,
    },
    /// The kernel alone: it makes or takes other packets, or says more with them, than the stack.
    Kernel(Matters),
}

/// An option.
#[derive(Clone, Copy, Debug)]
pub struct SocketOption {
    /// SOL_SOCKET, SOL_TCP, SOL_IP or SOL_IPV6.
    pub level: i32,
    /// Its name at that level.
    pub name: i32,
    /// Who does what it says.
    pub doer: Doer,
}

/// A value as getsockopt(2) gives it, at least a byte.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a>(&'a [u8]);

impl Value<'_> {
    fn int(self) -> i32 {
        match self.0 {
            [a, b, c, d, ..] => i32::from_ne_bytes([*a, *b, *c, *d]),
            // IP_TOS may be a byte.
            [byte, ..] => i32::from(*byte),
            [] => 0,
        }
    }

    fn is_on(self) -> bool {
        self.int() != 0
    }

    /// A negative value is the system's default.
    fn count(self) -> u32 {
        u32::try_from(self.int()).unwrap_or(0)
    }

    fn byte(self) -> u8 {
        u8::try_from(self.int()).unwrap_or(0)
    }

    /// Bytes a second; the largest is none.
    fn rate(self) -> u64 {
        let rate = self.0.first_chunk().map_or(u64::from(self.int() as u32), |bytes| u64::from_ne_bytes(*bytes));
        if rate == u64::MAX || rate == u64::from(u32::MAX) { 0 } else { rate }
    }

    /// `struct linger`.
    fn resets(self) -> bool {
        self.is_on() && self.0.get(4..8) == Some(&[0; 4])
    }
}

const fn core(level: i32, name: i32, note: fn(&mut Options, Value<'_>)) -> SocketOption {
    SocketOption { level, name, doer: Doer::Core { note, is_ambiguous: false } }
}

const fn core_if_told(level: i32, name: i32, note: fn(&mut Options, Value<'_>)) -> SocketOption {
    SocketOption { level, name, doer: Doer::Core { note, is_ambiguous: true } }
}

const fn on_wire(level: i32, name: i32) -> SocketOption {
    SocketOption { level, name, doer: Doer::Kernel(Matters::OnWire) }
}

const fn everywhere(level: i32, name: i32) -> SocketOption {
    SocketOption { level, name, doer: Doer::Kernel(Matters::Everywhere) }
}

/// Options that cores do; the place is the option's number.
const CORES: [SocketOption; 20] = [
    core(SOL_TCP, TCP_NODELAY, |to, value| to.nodelay = value.is_on()),
    core(SOL_TCP, TCP_CORK, |to, value| to.cork = value.is_on()),
    core(SOL_TCP, TCP_SYNCNT, |to, value| to.syn_retries = value.byte()),
    core(SOL_TCP, TCP_KEEPCNT, |to, value| to.keep_count = value.byte()),
    core(SOL_TCP, TCP_KEEPIDLE, |to, value| to.keep_idle = value.count()),
    core(SOL_TCP, TCP_KEEPINTVL, |to, value| to.keep_interval = value.count()),
    core(SOL_TCP, TCP_USER_TIMEOUT, |to, value| to.user_timeout = value.count()),
    core_if_told(SOL_TCP, TCP_MAXSEG, |to, value| to.max_segment = value.count()),
    core(SOL_TCP, TCP_NOTSENT_LOWAT, |to, value| to.not_sent_low = value.count()),
    core_if_told(SOL_TCP, TCP_WINDOW_CLAMP, |to, value| to.window_clamp = value.count()),
    core_if_told(SOL_TCP, TCP_CONGESTION, |to, value| to.congestion = Algorithm::from_name(value.0)),
    core(SOL_SOCKET, SO_KEEPALIVE, |to, value| to.keepalive = value.is_on()),
    core(SOL_SOCKET, SO_LINGER, |to, value| to.reset_on_close = value.resets()),
    // The kernel doubles buffers for its bookkeeping.
    core_if_told(SOL_SOCKET, SO_RCVBUF, |to, value| to.receive_buffer = value.count() / 2),
    core_if_told(SOL_SOCKET, SO_SNDBUF, |to, value| to.send_buffer = value.count() / 2),
    core_if_told(SOL_SOCKET, SO_MAX_PACING_RATE, |to, value| to.pacing = value.rate()),
    core(SOL_IP, IP_TTL, |to, value| to.ttl = value.byte()),
    core(SOL_IP, IP_TOS, |to, value| to.tos = value.byte()),
    core(SOL_IPV6, IPV6_UNICAST_HOPS, |to, value| to.ttl = value.byte()),
    core(SOL_IPV6, IPV6_TCLASS, |to, value| to.tos = value.byte()),
];

/// Options with which a socket stays on the kernel.
const KERNELS: [SocketOption; 29] = [
    on_wire(SOL_SOCKET, SO_DONTROUTE),
    on_wire(SOL_SOCKET, SO_BINDTODEVICE),
    everywhere(SOL_SOCKET, SO_ATTACH_FILTER),
    on_wire(SOL_SOCKET, SO_MARK),
    everywhere(SOL_SOCKET, SO_TIMESTAMPING),
    everywhere(SOL_SOCKET, SO_PEEK_OFF),
    everywhere(SOL_SOCKET, SO_ATTACH_BPF),
    everywhere(SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF),
    everywhere(SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF),
    everywhere(SOL_SOCKET, SO_ZEROCOPY),
    everywhere(SOL_SOCKET, SO_TXTIME),
    on_wire(SOL_SOCKET, SO_BINDTOIFINDEX),
    everywhere(SOL_SOCKET, SO_TIMESTAMPING_NEW),
    on_wire(SOL_TCP, TCP_LINGER2),
    everywhere(SOL_TCP, TCP_MD5SIG),
    everywhere(SOL_TCP, TCP_REPAIR),
    on_wire(SOL_TCP, TCP_SAVE_SYN),
    everywhere(SOL_TCP, TCP_ULP),
    everywhere(SOL_TCP, TCP_MD5SIG_EXT),
    on_wire(SOL_TCP, TCP_TX_DELAY),
    everywhere(SOL_TCP, TCP_AO_ADD_KEY),
    on_wire(SOL_IP, IP_OPTIONS),
    on_wire(SOL_IP, IP_TRANSPARENT),
    on_wire(SOL_IP, IP_MINTTL),
    on_wire(SOL_IPV6, IPV6_HOPOPTS),
    on_wire(SOL_IPV6, IPV6_RTHDR),
    on_wire(SOL_IPV6, IPV6_DSTOPTS),
    on_wire(SOL_IPV6, IPV6_MINHOPCOUNT),
    on_wire(SOL_IPV6, IPV6_TRANSPARENT),
];

fn place(table: &[SocketOption], level: i32, name: i32) -> Option<usize> {
    table.iter().position(|option| (option.level, option.name) == (level, name))
}

/// Where it matters that an option was set to this value, which the kernel alone does; `None`: nowhere.
pub fn matters(level: i32, name: i32, value: &[u8]) -> Option<Matters> {
    // A congestion control that the kernel has and the stack has not.
    if (level, name) == (SOL_TCP, TCP_CONGESTION) {
        return Algorithm::from_name(value).is_none().then_some(Matters::Everywhere);
    }
    let Doer::Kernel(matters) = KERNELS[place(&KERNELS, level, name)?].doer else { return None };
    // An offset of 0 is one; what is off is negative.
    let is_off = if (level, name) == (SOL_SOCKET, SO_PEEK_OFF) {
        value.first_chunk().is_some_and(|value| i32::from_ne_bytes(*value) < 0)
    } else {
        (4..=8).contains(&value.len()) && value.iter().all(|&byte| byte == 0)
    };
    (!is_off).then_some(matters)
}

impl Options {
    /// Longest value of an option: TCP_CONGESTION.
    pub const VALUE_MAX: usize = 16;

    /// The options that cores do; the place of each is its number, below 32.
    pub const fn table() -> &'static [SocketOption] {
        &CORES
    }

    /// The number of an option; `None`: it is not one of these.
    pub fn number(level: i32, name: i32) -> Option<usize> {
        let name = match (level, name) {
            (SOL_SOCKET, SO_SNDBUFFORCE) => SO_SNDBUF,
            (SOL_SOCKET, SO_RCVBUFFORCE) => SO_RCVBUF,
            _ => name,
        };
        place(&CORES, level, name)
    }

    /// Notes the value that getsockopt(2) gives for option `number`. False: there is no such option, or the stack has
    /// nothing for this value (a congestion control that only the kernel has).
    pub fn note(&mut self, number: usize, value: &[u8]) -> bool {
        let Some(&SocketOption { level, name, doer: Doer::Core { note, .. } }) = CORES.get(number) else {
            return false;
        };
        let is_unknown = (level, name) == (SOL_TCP, TCP_CONGESTION) && Algorithm::from_name(value).is_none();
        if value.is_empty() || is_unknown {
            return false;
        }
        note(self, Value(value));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(level: i32, name: i32, value: &[u8]) -> Options {
        let mut options = Options::default();
        assert!(options.note(Options::number(level, name).unwrap(), value));
        options
    }

    #[test]
    fn each_name_changes_a_field_of_its_own() {
        // Names that say the same of IPv6; what is no number.
        let others = [(SOL_IP, IP_TOS), (SOL_IP, IP_TTL), (SOL_TCP, TCP_CONGESTION), (SOL_SOCKET, SO_LINGER)];
        let mut seen: Vec<Options> = CORES
            .iter()
            .map(|option| (option.level, option.name))
            .filter(|name| !others.contains(name))
            .map(|(level, name)| noted(level, name, &6_i32.to_ne_bytes()))
            .collect();
        seen.push(noted(SOL_TCP, TCP_CONGESTION, b"bbr\0"));
        seen.push(noted(SOL_SOCKET, SO_LINGER, &[1, 0, 0, 0, 0, 0, 0, 0]));
        for (i, options) in seen.iter().enumerate() {
            assert_ne!(*options, Options::default(), "{i}");
            assert!(!seen[..i].contains(options), "{i}: {options:?}");
        }
    }

    #[test]
    fn no_option_stands_in_the_tables_twice() {
        let all: Vec<_> = CORES.iter().chain(&KERNELS).map(|option| (option.level, option.name)).collect();
        for (i, name) in all.iter().enumerate() {
            assert!(!all[..i].contains(name), "{name:?}");
        }
        const { assert!(CORES.len() <= 32, "bits of a word") };
    }

    #[test]
    fn values_are_read_as_the_kernel_writes_them() {
        let int = |level, name, value: i32| noted(level, name, &value.to_ne_bytes());
        assert_eq!(int(SOL_SOCKET, SO_RCVBUF, 131_072).receive_buffer, 65_536);
        assert_eq!(int(SOL_SOCKET, SO_RCVBUFFORCE, 131_072).receive_buffer, 65_536);
        assert_eq!(noted(SOL_IP, IP_TOS, &[0x10]).tos, 0x10);
        assert_eq!(int(SOL_TCP, TCP_NOTSENT_LOWAT, -1), Options::default());
        let five_seconds = noted(SOL_SOCKET, SO_LINGER, &[1, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(five_seconds, Options::default(), "no reset");
        let rate = |value: u64| noted(SOL_SOCKET, SO_MAX_PACING_RATE, &value.to_ne_bytes()).pacing;
        assert_eq!((rate(u64::MAX), rate(1 << 33)), (0, 1 << 33));
        assert_eq!(Options::number(SOL_TCP, libc::TCP_INFO), None);
        let congestion = Options::number(SOL_TCP, TCP_CONGESTION).unwrap();
        let mut options = noted(SOL_TCP, TCP_CONGESTION, b"reno\0");
        assert!(!options.note(congestion, b"vegas\0") && !options.note(0, b"") && !options.note(99, &[0; 4]));
        assert_eq!(options.congestion, Some(Algorithm::Reno));
    }

    #[test]
    fn what_stays_on_the_kernel() {
        let on = 1_i32.to_ne_bytes();
        assert_eq!(matters(SOL_SOCKET, SO_MARK, &on), Some(Matters::OnWire));
        assert_eq!(matters(SOL_TCP, TCP_ULP, b"tls"), Some(Matters::Everywhere));
        assert_eq!(matters(SOL_SOCKET, SO_MARK, &[0; 4]), None, "SO_MARK 0 is none");
        assert_eq!(matters(SOL_SOCKET, SO_PEEK_OFF, &[0; 4]), Some(Matters::Everywhere));
        assert_eq!(matters(SOL_SOCKET, SO_PEEK_OFF, &[255; 4]), None);
        assert_eq!(matters(SOL_TCP, TCP_NODELAY, &on), None);
        assert_eq!(matters(SOL_TCP, TCP_CONGESTION, b"vegas"), Some(Matters::Everywhere));
        assert_eq!(matters(SOL_TCP, TCP_CONGESTION, b"bbr"), None);
    }
}
