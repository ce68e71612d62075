//! The service's counters.
//!
//! A client asks with [`crate::message::Request::Count`] and gets a record: a header of
//! [`crate::message::LEN`] bytes whose first number is how many words follow, then the words. Every
//! user may ask.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use fs_carrier::traffic::traffic;

use crate::ask::Asker;
use crate::message::{self, LEN, REASONS, Request};

macro_rules! counters {
    ($($(#[$text:meta])* $name:ident;)*) => {
        /// Counters since the service began, and current numbers.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$text])* pub $name: u64,)*
            /// The number of refused offers for each reason, in the order of
            /// [`crate::Reason::ALL`].
            pub refused: [u64; REASONS],
        }

        /// Words of a record.
        const WORDS: usize = [$(stringify!($name)),*].len() + REASONS;

        impl Counters {
            fn words(&self) -> [u64; WORDS] {
                let mut words = [0; WORDS];
                let all = [$(self.$name),*].into_iter().chain(self.refused);
                words.iter_mut().zip(all).for_each(|(word, value)| *word = value);
                words
            }

            fn of_words(words: [u64; WORDS]) -> Self {
                let mut words = words.into_iter();
                let mut next = || words.next().unwrap_or_default();
                Counters { $($name: next(),)* refused: std::array::from_fn(|_| next()) }
            }
        }
    };
}

counters! {
    /// Processes that are connected now, except the one that asks.
    processes;
    /// Pairs now.
    pairs;
    /// Offers that wait for their other end now.
    waiting;
    /// Offers.
    offers;
    /// Pairs that were promoted.
    promoted;
    /// Clients that were cut off because they broke the protocol.
    malformed;
    /// Bytes that passed through rings, in both directions of all pairs, as counted by the
    /// processes at both ends.
    ring_bytes;
    /// Bytes that passed through the kernel, counted like `ring_bytes`.
    kernel_bytes;
    /// Connections over a device that the daemon has accepted for programs.
    wire_accepted;
    /// Connections that are open now.
    wire_open;
    /// Connections that were reset because no program could be reached at the port.
    wire_refused;
    /// Connections that one end reset.
    wire_reset;
}

impl Counters {
    /// Adds the bytes of a pair whose region is `file`.
    pub(crate) fn add(&mut self, file: Option<&OwnedFd>) {
        for way in file.and_then(|file| traffic(file).ok()).into_iter().flatten() {
            // Both ends can write any value there, so the sum may overflow.
            self.ring_bytes = self.ring_bytes.wrapping_add(way.ring);
            self.kernel_bytes = self.kernel_bytes.wrapping_add(way.kernel);
        }
    }
}

/// The longest record.
const RECORD: usize = LEN + 8 * WORDS;

/// Makes a record.
pub(crate) fn record(counters: &Counters) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD);
    bytes.extend(message::counters_header(WORDS));
    bytes.extend(counters.words().iter().flat_map(|word| word.to_ne_bytes()));
    bytes
}

/// Decodes a record. Returns `None` if it is malformed.
fn read_record(bytes: &[u8]) -> Option<Counters> {
    let count = message::read_counters_header(bytes.get(..LEN)?)?;
    let (words, rest) = bytes[LEN..].as_chunks::<8>();
    let words: &[[u8; 8]; WORDS] = words.try_into().ok()?;
    (count == WORDS && rest.is_empty()).then(|| Counters::of_words(words.map(u64::from_ne_bytes)))
}

/// Requests the counters of the service at `path`.
///
/// # Errors
/// No service runs there, it does not reply within five seconds, or its reply is malformed.
pub fn count(path: &Path) -> io::Result<Counters> {
    let mut buffer = [0; RECORD];
    let len = Asker::connect(path)?.ask(&Request::Count, &mut buffer)?;
    Ok(read_record(&buffer[..len]).ok_or(io::ErrorKind::InvalidData)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_come_back(words in proptest::array::uniform32(any::<u64>())) {
            let counters = Counters::of_words(std::array::from_fn(|i| words[i]));
            let bytes = record(&counters);
            prop_assert_eq!(bytes.len(), RECORD);
            prop_assert_eq!(read_record(&bytes), Some(counters));
            prop_assert_eq!(read_record(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2 * RECORD)) {
            let _any = read_record(&bytes);
        }
    }
}
