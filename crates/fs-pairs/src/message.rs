//! Messages: records of 32 bytes on a Unix socket of type SOCK_SEQPACKET.
//!
//! | message | descriptor | direction |
//! |---|---|---|
//! | [`Request::Offer`] | a TCP socket | process to service |
//! | [`Request::Forget`] | | process to service |
//! | [`Request::List`] | | process to service; the answer is a record of [`crate::listing`] |
//! | [`Request::Count`] | | process to service; the answer is a record of [`crate::counters`] |
//! | [`Request::Device`] | | process to service, which gives the connection to the broker |
//! | [`Answer::Matched`] | the region's file | service to process |
//! | [`Answer::Refused`] | | service to process |
//!
//! ```text
//! 0       4      5      6       8        16       24       32
//! | magic | kind | what | zeros | number | first  | second |
//! ```
//! All integers are in the machine's byte order. Decoding takes the bytes for hostile: it returns
//! nothing instead of a panic.

use fs_carrier::exact::Carried;
use fs_carrier::region::{End, MAX_RING, MIN_RING};

/// Bytes of each message.
pub const LEN: usize = 32;
/// The start of each message. It changes with the protocol, so that a peer of another version is
/// rejected.
const MAGIC: [u8; 4] = *b"fsK1";

const OFFER: u8 = 1;
const FORGET: u8 = 2;
const MATCHED: u8 = 3;
const REFUSED: u8 = 4;
const LIST: u8 = 5;
const ROWS: u8 = 6;
const COUNT: u8 = 7;
const COUNTERS: u8 = 8;
const DEVICE: u8 = 9;

/// An offer's number, which its process chooses. A process does not use a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Number(pub u64);

/// Number of reasons.
pub(crate) const REASONS: usize = Reason::ALL.len();

/// A message of a process to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A socket whose other end is to be found. The message carries a duplicate of its descriptor.
    Offer {
        /// The number of the offer.
        number: Number,
        /// The bytes that the process itself has counted.
        carried: Carried,
    },
    /// The socket is about to be closed, or the pair has ended. The service drops its duplicate.
    Forget(Number),
    /// Requests rows of the list.
    List {
        /// Position at which the previous record ended; 0 for the first.
        after: u64,
    },
    /// Requests the service's counters.
    Count,
    /// Hands the connection over to the broker, which shares devices (`fs_rt::broker`).
    Device,
}

/// A message of the service to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The other end was found. The message carries the region's file.
    Matched {
        /// The number of the offer.
        number: Number,
        /// Which end the process is.
        end: End,
        /// Bytes of each ring.
        ring: usize,
    },
    /// There is no region for this offer.
    Refused {
        /// The number of the offer.
        number: Number,
        /// Why.
        reason: Reason,
    },
}

impl Answer {
    pub(crate) fn number(self) -> Number {
        match self {
            Answer::Matched { number, .. } | Answer::Refused { number, .. } => number,
        }
    }
}

macro_rules! reasons {
    ($($(#[$text:meta])* $name:ident = $number:literal, $said:literal;)*) => {
        /// Why an offer was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$text])* $name = $number,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &[Reason] = &[$(Reason::$name),*];

            pub(crate) fn of(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Reason::$name),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for Reason {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(match self { $(Reason::$name => $said,)* })
            }
        }
    };
}

reasons! {
    /// No offer came from the other end in time: its process does not use the library, or the address was translated.
    NoPeer = 1, "the other end was not offered";
    /// The descriptor is no TCP socket, or the kernel returns no TCP_INFO for it.
    NotTcp = 2, "not a TCP socket";
    /// The connection is not established, or has ended.
    NotEstablished = 3, "not established";
    /// The process has counted more bytes than the kernel.
    Counts = 4, "the byte counts are wrong";
    /// The socket is bound to a device: its addresses may exist twice in its namespace.
    Device = 5, "bound to a device";
    /// More than one socket may be the other end.
    Ambiguous = 6, "several sockets may be the other end";
    /// The process, its user or the service has reached its limit of offers or pairs.
    Limit = 7, "too many connections";
    /// A policy leaves the connection to the kernel.
    Policy = 8, "a policy says so";
    /// The socket is offered already.
    Twice = 9, "offered already";
    /// The service failed to make the region.
    Failed = 10, "the service has no memory or descriptors";
}

impl Request {
    /// Returns the message's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LEN] {
        match *self {
            Request::Offer { number, carried } => put(OFFER, 0, number, carried.sent, carried.taken),
            Request::Forget(number) => put(FORGET, 0, number, 0, 0),
            Request::List { after } => put(LIST, 0, Number(after), 0, 0),
            Request::Count => put(COUNT, 0, Number(0), 0, 0),
            Request::Device => put(DEVICE, 0, Number(0), 0, 0),
        }
    }

    /// Decodes a message. Returns `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match get(bytes)? {
            (OFFER, 0, number, sent, taken) => Some(Request::Offer { number, carried: Carried { sent, taken } }),
            (FORGET, 0, number, 0, 0) => Some(Request::Forget(number)),
            (LIST, 0, after, 0, 0) => Some(Request::List { after: after.0 }),
            (COUNT, 0, Number(0), 0, 0) => Some(Request::Count),
            (DEVICE, 0, Number(0), 0, 0) => Some(Request::Device),
            _ => None,
        }
    }
}

impl Answer {
    /// Returns the message's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LEN] {
        match *self {
            Answer::Matched { number, end, ring } => put(MATCHED, end as u8, number, ring as u64, 0),
            Answer::Refused { number, reason } => put(REFUSED, reason as u8, number, 0, 0),
        }
    }

    /// Decodes a message. Returns `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match get(bytes)? {
            (MATCHED, end, number, ring, 0) => {
                let end = match end {
                    0 => End::A,
                    1 => End::B,
                    _ => return None,
                };
                let ring = usize::try_from(ring).ok()?;
                let is_valid = ring.is_power_of_two() && (MIN_RING..=MAX_RING).contains(&ring);
                is_valid.then_some(Answer::Matched { number, end, ring })
            }
            (REFUSED, reason, number, 0, 0) => Some(Answer::Refused { number, reason: Reason::of(reason)? }),
            _ => None,
        }
    }
}

/// Returns the header of a record of `count` rows. `next` is the position of the next record.
pub(crate) fn rows_header(count: usize, next: u64) -> [u8; LEN] {
    put(ROWS, 0, Number(next), count as u64, 0)
}

/// Reads what [`rows_header`] made.
pub(crate) fn read_rows_header(bytes: &[u8]) -> Option<(usize, u64)> {
    match get(bytes)? {
        (ROWS, 0, next, count, 0) => Some((usize::try_from(count).ok()?, next.0)),
        _ => None,
    }
}

/// Returns the header of a record of `count` words.
pub(crate) fn counters_header(count: usize) -> [u8; LEN] {
    put(COUNTERS, 0, Number(0), count as u64, 0)
}

/// Reads what [`counters_header`] made.
pub(crate) fn read_counters_header(bytes: &[u8]) -> Option<usize> {
    match get(bytes)? {
        (COUNTERS, 0, Number(0), count, 0) => usize::try_from(count).ok(),
        _ => None,
    }
}

fn put(kind: u8, what: u8, number: Number, first: u64, second: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = kind;
    bytes[5] = what;
    bytes[8..16].copy_from_slice(&number.0.to_ne_bytes());
    bytes[16..24].copy_from_slice(&first.to_ne_bytes());
    bytes[24..32].copy_from_slice(&second.to_ne_bytes());
    bytes
}

fn get(bytes: &[u8]) -> Option<(u8, u8, Number, u64, u64)> {
    let bytes: &[u8; LEN] = bytes.try_into().ok()?;
    if bytes[..4] != MAGIC || bytes[6..8] != [0, 0] {
        return None;
    }
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(word)
    };
    Some((bytes[4], bytes[5], Number(word(8)), word(16), word(24)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn requests() -> impl Strategy<Value = Request> {
        prop_oneof![
            any::<(u64, u64, u64)>().prop_map(|(number, sent, taken)| Request::Offer {
                number: Number(number),
                carried: Carried { sent, taken }
            }),
            any::<u64>().prop_map(|number| Request::Forget(Number(number))),
            any::<u64>().prop_map(|after| Request::List { after }),
            Just(Request::Count),
            Just(Request::Device),
        ]
    }

    fn answers() -> impl Strategy<Value = Answer> {
        prop_oneof![
            (any::<u64>(), any::<bool>(), 12..=24_u32).prop_map(|(number, is_b, ring)| Answer::Matched {
                number: Number(number),
                end: if is_b { End::B } else { End::A },
                ring: 1 << ring,
            }),
            (any::<u64>(), 0..Reason::ALL.len())
                .prop_map(|(number, i)| Answer::Refused { number: Number(number), reason: Reason::ALL[i] }),
        ]
    }

    proptest! {
        #[test]
        fn requests_come_back(request in requests()) {
            prop_assert_eq!(Request::decode(&request.encode()), Some(request));
            prop_assert_eq!(Answer::decode(&request.encode()), None);
        }

        #[test]
        fn answers_come_back(answer in answers()) {
            prop_assert_eq!(Answer::decode(&answer.encode()), Some(answer));
            prop_assert_eq!(Request::decode(&answer.encode()), None);
        }

        /// A record that can be decoded has exactly the encoded bytes: none is ignored.
        #[test]
        fn no_byte_is_ignored(request in requests(), answer in answers(), at in 0..LEN, with in 1..=255_u8) {
            for mut bytes in [request.encode(), answer.encode()] {
                bytes[at] ^= with;
                if let Some(other) = Request::decode(&bytes) {
                    prop_assert_eq!(other.encode(), bytes);
                }
                if let Some(other) = Answer::decode(&bytes) {
                    prop_assert_eq!(other.encode(), bytes);
                }
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(bytes.len() == LEN || Request::decode(&bytes).is_none() && Answer::decode(&bytes).is_none());
        }
    }
}
