//! Which calls of setsockopt(2) mean which of [`Options`]: names and values as in socket(7), ip(7), ipv6(7) and tcp(7).

use super::options::{Algorithm, Options};
use libc::{SO_RCVBUFFORCE, SO_SNDBUFFORCE, SOL_IP, SOL_IPV6, SOL_SOCKET, SOL_TCP};

impl Options {
    /// Level and name (asm-generic/socket.h, linux/in.h, linux/in6.h, linux/tcp.h) of each option; the place is its number.
    pub const NAMES: [(i32, i32); 20] = [
        // TCP_NODELAY, TCP_CORK, TCP_SYNCNT, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL
        (SOL_TCP, 1),
        (SOL_TCP, 3),
        (SOL_TCP, 7),
        (SOL_TCP, 6),
        (SOL_TCP, 4),
        (SOL_TCP, 5),
        // TCP_USER_TIMEOUT, TCP_MAXSEG, TCP_NOTSENT_LOWAT, TCP_WINDOW_CLAMP, TCP_CONGESTION
        (SOL_TCP, 18),
        (SOL_TCP, 2),
        (SOL_TCP, 25),
        (SOL_TCP, 10),
        (SOL_TCP, 13),
        // SO_KEEPALIVE, SO_LINGER, SO_RCVBUF, SO_SNDBUF, SO_MAX_PACING_RATE
        (SOL_SOCKET, 9),
        (SOL_SOCKET, 13),
        (SOL_SOCKET, 8),
        (SOL_SOCKET, 7),
        (SOL_SOCKET, 47),
        // IP_TTL, IP_TOS, IPV6_UNICAST_HOPS, IPV6_TCLASS
        (SOL_IP, 2),
        (SOL_IP, 1),
        (SOL_IPV6, 16),
        (SOL_IPV6, 67),
    ];

    /// Longest value of an option: TCP_CONGESTION.
    pub const VALUE_MAX: usize = 16;

    /// The number of an option; `None`: it is not one of these.
    pub fn number(level: i32, name: i32) -> Option<usize> {
        let name = match (level, name) {
            (SOL_SOCKET, SO_SNDBUFFORCE) => 7,
            (SOL_SOCKET, SO_RCVBUFFORCE) => 8,
            _ => name,
        };
        Self::NAMES.iter().position(|&known| known == (level, name))
    }

    /// Notes the value that getsockopt(2) gives for option `number`. False: there is no such option, or the stack has
    /// nothing for this value (a congestion control that only the kernel has).
    pub fn note(&mut self, number: usize, value: &[u8]) -> bool {
        let Some(&(level, name)) = Self::NAMES.get(number) else { return false };
        let int = match value {
            [a, b, c, d, ..] => i32::from_ne_bytes([*a, *b, *c, *d]),
            // IP_TOS may be a byte.
            [byte, ..] => i32::from(*byte),
            [] => return false,
        };
        // Negative values are the system's defaults.
        let count = u32::try_from(int).unwrap_or(0);
        let byte = u8::try_from(int).unwrap_or(0);
        match (level, name) {
            (SOL_TCP, 1) => self.nodelay = int != 0,
            (SOL_TCP, 3) => self.cork = int != 0,
            (SOL_TCP, 7) => self.syn_retries = byte,
            (SOL_TCP, 6) => self.keep_count = byte,
            (SOL_TCP, 4) => self.keep_idle = count,
            (SOL_TCP, 5) => self.keep_interval = count,
            (SOL_TCP, 18) => self.user_timeout = count,
            (SOL_TCP, 2) => self.max_segment = count,
            (SOL_TCP, 25) => self.not_sent_low = count,
            (SOL_TCP, 10) => self.window_clamp = count,
            (SOL_TCP, 13) => match Algorithm::from_name(value) {
                Some(algorithm) => self.congestion = Some(algorithm),
                None => return false,
            },
            (SOL_SOCKET, 9) => self.keepalive = int != 0,
            (SOL_SOCKET, 13) => self.reset_on_close = int != 0 && value.get(4..8) == Some(&[0; 4]),
            // The kernel doubles them for its bookkeeping.
            (SOL_SOCKET, 8) => self.receive_buffer = count / 2,
            (SOL_SOCKET, 7) => self.send_buffer = count / 2,
            (SOL_SOCKET, 47) => {
                let rate = value.first_chunk().map_or(u64::from(int as u32), |bytes| u64::from_ne_bytes(*bytes));
                self.pacing = if rate == u64::MAX || rate == u64::from(u32::MAX) { 0 } else { rate };
            }
            (SOL_IP, 2) | (SOL_IPV6, 16) => self.ttl = byte,
            (SOL_IP, 1) | (SOL_IPV6, 67) => self.tos = byte,
            _ => return false,
        }
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
        let ints = Options::NAMES.iter().filter(|name| ![(6, 13), (1, 13), (0, 1), (0, 2)].contains(name));
        let mut seen: Vec<Options> = ints.map(|&(level, name)| noted(level, name, &6_i32.to_ne_bytes())).collect();
        seen.push(noted(6, 13, b"bbr\0"));
        seen.push(noted(1, 13, &[1, 0, 0, 0, 0, 0, 0, 0]));
        for (i, options) in seen.iter().enumerate() {
            assert_ne!(*options, Options::default(), "{i}");
            assert!(!seen[..i].contains(options), "{i}: {options:?}");
        }
    }

    #[test]
    fn values_are_read_as_the_kernel_writes_them() {
        assert_eq!(noted(1, 8, &131_072_i32.to_ne_bytes()).receive_buffer, 65_536);
        assert_eq!(noted(1, 33, &131_072_i32.to_ne_bytes()).receive_buffer, 65_536);
        assert_eq!(noted(0, 1, &[0x10]).tos, 0x10);
        assert_eq!(noted(6, 25, &(-1_i32).to_ne_bytes()), Options::default());
        assert_eq!(noted(1, 13, &[1, 0, 0, 0, 5, 0, 0, 0]), Options::default(), "5 seconds: no reset");
        assert_eq!(noted(1, 47, &u64::MAX.to_ne_bytes()), Options::default());
        assert_eq!(noted(1, 47, &(1_u64 << 33).to_ne_bytes()).pacing, 1 << 33);
        assert_eq!(Options::number(6, 11), None);
        assert!(
            !Options::default().note(10, b"vegas\0")
                && !Options::default().note(0, b"")
                && !Options::default().note(99, &[0; 4])
        );
    }
}
