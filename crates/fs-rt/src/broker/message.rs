//! Messages between a program and the daemon that shares a device: records of [`LEN`] bytes on a
//! Unix socket of type SOCK_SEQPACKET. The program sends one request and waits for its answer.
//!
//! | request | descriptors | answer | descriptors |
//! |---|---|---|---|
//! | [`Request::Device`] | | [`Answer::Device`] | |
//! | [`Request::Attach`] | memory | [`Answer::Attached`] | two rtnetlink sockets, a packet socket if asked for, queues |
//! | [`Request::Bind`] | | [`Answer::Done`] | a bound socket |
//! | [`Request::Lease`] | bound sockets | [`Answer::Done`] | |
//! | [`Request::Release`] | | [`Answer::Done`] | |
//! | [`Request::Resume`], [`Request::Resumed`] | | [`Answer::Done`] | |
//!
//! Each may be answered by [`Answer::Failed`]. All integers are in the machine's byte order.
//! Decoding takes the bytes for hostile: it returns nothing instead of a panic.

use fs_core::Protocol;
use fs_xdp::{QueueConfig, UmemConfig};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of each message.
pub const LEN: usize = 8 + 8 * WORDS + TEXT;
/// Most descriptors of a message. The kernel's limit is 253.
pub const MAX_DESCRIPTORS: usize = 128;
/// Most queues of a program.
pub const MAX_QUEUES: u32 = 64;
const WORDS: usize = 10;
/// Room for a device's name and for an error.
const TEXT: usize = 160;
/// Begins each message. It changes with the protocol.
const MAGIC: [u8; 4] = *b"fsD1";

/// A program's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Does the daemon share this device?
    Device(String),
    /// A pair for this program, with at most so many queues. `segments`: and a packet socket for
    /// super-segments.
    Attach { name: String, queues: u32, memory: UmemConfig, rings: QueueConfig, segments: bool },
    /// A socket in the daemon's namespace that reserves an address.
    Bind { protocol: Protocol, at: SocketAddr, v6_only: bool },
    /// The packets for what these bound sockets reserve.
    Lease,
    /// An end that is not used any more.
    Release { protocol: Protocol, at: SocketAddr },
    /// The slot that a daemon before gave to this program.
    Resume { slot: u16, token: [u64; 2] },
    /// All leases have been asked for again.
    Resumed,
}

/// The daemon's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The daemon shares the device.
    Device(Device),
    /// The program's pair.
    Attached { slot: u16, token: [u64; 2], queues: u32 },
    /// The request was carried out.
    Done,
    /// An error of errno(3), and why.
    Failed { errno: i32, why: String },
}

/// A shared device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Device and inode of the network namespace.
    pub namespace: (u64, u64),
    /// Its index there.
    pub index: u32,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Its link address.
    pub mac: [u8; 6],
    /// Queues that a program can have.
    pub queues: u32,
}

/// The bytes of a message in parts.
#[derive(Default)]
struct Record {
    kind: u32,
    words: [u64; WORDS],
    text: String,
}

impl Record {
    fn bytes<const N: usize>(kind: u32, words: [u64; N], text: &str) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&kind.to_ne_bytes());
        for (at, word) in bytes[8..8 + 8 * WORDS].chunks_exact_mut(8).zip(words) {
            at.copy_from_slice(&word.to_ne_bytes());
        }
        // Whole characters, and a zero at the end.
        let fits = (0..TEXT).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0).min(text.len());
        bytes[8 + 8 * WORDS..][..fits].copy_from_slice(&text.as_bytes()[..fits]);
        bytes
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (kind, rest) = rest.split_first_chunk::<4>()?;
        let mut record = Record { kind: u32::from_ne_bytes(*kind), ..Record::default() };
        let (words, text) = rest.split_at_checked(8 * WORDS)?;
        for (word, at) in record.words.iter_mut().zip(words.chunks_exact(8)) {
            *word = u64::from_ne_bytes(at.try_into().ok()?);
        }
        let end = text.iter().position(|&byte| byte == 0)?;
        record.text = std::str::from_utf8(&text[..end]).ok()?.to_owned();
        Some(record)
    }

    fn small<T: TryFrom<u64>>(&self, word: usize) -> Option<T> {
        self.words.get(word).copied().and_then(|word| T::try_from(word).ok())
    }

    /// The end in the first words.
    fn end(&self) -> Option<(Protocol, SocketAddr, bool)> {
        let octets = (u128::from(self.words[0]) << 64) | u128::from(self.words[1]);
        let (port, scope) = (self.small(2)?, self.small(3)?);
        let ip = Ipv6Addr::from(octets);
        let at = match ip.to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(v4.into(), port),
            None => SocketAddrV6::new(ip, port, 0, scope).into(),
        };
        let protocol = match self.words[4] {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            _ => return None,
        };
        Some((protocol, at, self.words[5] != 0))
    }
}

fn end(protocol: Protocol, at: SocketAddr, v6_only: bool) -> [u64; 6] {
    let ip = match at.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let scope = if let SocketAddr::V6(at) = at { at.scope_id() } else { 0 };
    let number = match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    };
    let octets = u128::from(ip);
    [(octets >> 64) as u64, octets as u64, at.port().into(), scope.into(), number, v6_only.into()]
}

impl Request {
    /// Returns the message's bytes.
    pub fn encode(&self) -> [u8; LEN] {
        match *self {
            Request::Device(ref name) => Record::bytes(1, [], name),
            Request::Attach { ref name, queues, memory, rings, segments } => {
                let UmemConfig { chunks, chunk_size } = memory;
                let QueueConfig { rx, tx, fill, lent, completion } = rings;
                let words =
                    [queues, chunks, chunk_size, rx, tx, fill, lent, completion, segments.into()].map(u64::from);
                Record::bytes(2, words, name)
            }
            Request::Bind { protocol, at, v6_only } => Record::bytes(3, end(protocol, at, v6_only), ""),
            Request::Lease => Record::bytes(4, [], ""),
            Request::Release { protocol, at } => Record::bytes(5, end(protocol, at, false), ""),
            Request::Resume { slot, token: [a, b] } => Record::bytes(6, [slot.into(), a, b], ""),
            Request::Resumed => Record::bytes(7, [], ""),
        }
    }

    /// Reads a message. Nothing: it makes no sense.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let record = Record::of(bytes)?;
        Some(match record.kind {
            1 => Request::Device(record.text),
            2 => {
                let n = |word| record.small::<u32>(word);
                let memory = UmemConfig { chunks: n(1)?, chunk_size: n(2)? };
                let rings = QueueConfig { rx: n(3)?, tx: n(4)?, fill: n(5)?, lent: n(6)?, completion: n(7)? };
                let segments = record.words[8] != 0;
                Request::Attach { queues: n(0)?, memory, rings, segments, name: record.text }
            }
            3 => {
                let (protocol, at, v6_only) = record.end()?;
                Request::Bind { protocol, at, v6_only }
            }
            4 => Request::Lease,
            5 => {
                let (protocol, at, _) = record.end()?;
                Request::Release { protocol, at }
            }
            6 => Request::Resume { slot: record.small(0)?, token: [record.words[1], record.words[2]] },
            7 => Request::Resumed,
            _ => return None,
        })
    }
}

impl Answer {
    /// Returns the message's bytes.
    pub fn encode(&self) -> [u8; LEN] {
        match self {
            Answer::Device(Device { namespace, index, mtu, mac: [a, b, c, d, e, f], queues }) => {
                let mac = u64::from_be_bytes([0, 0, *a, *b, *c, *d, *e, *f]);
                let words = [namespace.0, namespace.1, (*index).into(), (*mtu).into(), mac, (*queues).into()];
                Record::bytes(1, words, "")
            }
            Answer::Attached { slot, token: [a, b], queues } => {
                Record::bytes(2, [(*slot).into(), *a, *b, (*queues).into()], "")
            }
            Answer::Done => Record::bytes(3, [], ""),
            Answer::Failed { errno, why } => Record::bytes(4, [u64::from(errno.unsigned_abs())], why),
        }
    }

    /// Reads a message. Nothing: it makes no sense.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let record = Record::of(bytes)?;
        Some(match record.kind {
            1 => {
                let [_, _, mac @ ..] = record.words[4].to_be_bytes();
                let namespace = (record.words[0], record.words[1]);
                let (index, mtu, queues) = (record.small(2)?, record.small(3)?, record.small(5)?);
                Answer::Device(Device { namespace, index, mtu, mac, queues })
            }
            2 => {
                let (slot, queues) = (record.small(0)?, record.small(3)?);
                Answer::Attached { slot, token: [record.words[1], record.words[2]], queues }
            }
            3 => Answer::Done,
            4 => Answer::Failed { errno: record.small(0)?, why: record.text },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        let memory = UmemConfig { chunks: 16_384, chunk_size: 2048 };
        let v6: SocketAddr = SocketAddrV6::new("fe80::1".parse().unwrap(), 80, 0, 7).into();
        let requests = [
            Request::Device("eth0".into()),
            Request::Attach { name: "eth0".into(), queues: 2, memory, rings: QueueConfig::default(), segments: true },
            Request::Bind { protocol: Protocol::Udp, at: v6, v6_only: true },
            Request::Bind { protocol: Protocol::Tcp, at: "10.0.0.1:65535".parse().unwrap(), v6_only: false },
            Request::Lease,
            Request::Release { protocol: Protocol::Tcp, at: "[::]:1".parse().unwrap() },
            Request::Resume { slot: 255, token: [u64::MAX, 3] },
            Request::Resumed,
        ];
        for request in requests {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        let device = Device { namespace: (4, 5), index: 2, mtu: 9000, mac: [2, 0, 0, 0, 0, 9], queues: 4 };
        let why = "no slot is free".to_owned();
        let answers = [
            Answer::Device(device),
            Answer::Attached { slot: 1, token: [1, 2], queues: 3 },
            Answer::Done,
            Answer::Failed { errno: 98, why },
        ];
        for answer in answers {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let mut state = 1_u64;
        for n in 0..20_000 {
            let mut bytes = [0; LEN];
            for byte in &mut bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (state >> 56) as u8;
            }
            if n % 2 == 0 {
                bytes[..4].copy_from_slice(&MAGIC);
                let kind = u32::from(bytes[4] % 9);
                bytes[4..8].copy_from_slice(&kind.to_ne_bytes());
            }
            let cut = &bytes[..if n % 3 == 0 { n % LEN } else { LEN }];
            let _may_be_none = (Request::decode(cut), Answer::decode(cut));
        }
        let long = Answer::Failed { errno: 1, why: "é".repeat(500) };
        assert!(matches!(Answer::decode(&long.encode()), Some(Answer::Failed { why, .. }) if why.len() > 150));
    }
}
