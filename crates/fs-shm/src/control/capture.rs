//! What the daemon sends to who captures ([`super::Request::Capture`]): records on a socket of type SOCK_SEQPACKET.

use super::wire::{Malformed, Reader, Writer};
use crate::layout::Geometry;

/// Bytes of a record before a frame's.
pub const CAPTURE_HEADER: usize = 32;

/// Kinds of records. None is a kind of request: who passes an end that leads to the daemon itself has it told nothing.
const ARENA: u16 = 0xca01;
const FRAME: u16 = 0xca02;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureRecord {
    /// An arena between two processes, whose memory comes along, to be read only ([`crate::follow`]).
    Arena {
        /// Its number.
        arena: u32,
        /// It was made just now: its connections are still to come.
        fresh: bool,
        /// Arenas before this one that could not be sent.
        missed: u32,
        /// Its sizes.
        geometry: Geometry,
    },
    /// A frame of the device, from its link-layer header on, which follows: what a core has received, or is about to send.
    Frame {
        /// The core.
        core: u16,
        /// It is sent.
        sent: bool,
        /// Frames of all cores before this one that there was no room for. A record of no bytes says this alone.
        missed: u64,
        /// When: nanoseconds since 1970.
        time: u64,
        /// Its bytes. Fewer follow where the socket does not take so many at once: the frame is cut.
        len: u32,
    },
}

impl CaptureRecord {
    /// Writes it, in [`CAPTURE_HEADER`] bytes; a frame's follow.
    ///
    /// # Errors
    /// The buffer is shorter.
    pub fn encode(&self, buffer: &mut [u8]) -> Result<(), Malformed> {
        let mut w = Writer::new(buffer);
        let (kind, flag, core, word, missed, third) = match *self {
            CaptureRecord::Arena { arena, fresh, missed, geometry } => {
                (ARENA, fresh, 0, arena, u64::from(missed), geometry.to_word())
            }
            CaptureRecord::Frame { core, sent, missed, time, len } => (FRAME, sent, core, len, missed, time),
        };
        w.u16(kind);
        w.u16(core);
        w.u32(word);
        w.u64(missed);
        w.u64(third);
        w.u64(u64::from(flag));
        w.finish().map(drop)
    }

    /// Reads one; a frame's bytes come with it.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut r = Reader::new(bytes);
        let (kind, core, word) = (r.u16()?, r.u16()?, r.u32()?);
        let (missed, third, flag) = (r.u64()?, r.u64()?, r.u64()? != 0);
        let rest = r.rest();
        let record = match kind {
            ARENA => CaptureRecord::Arena {
                arena: word,
                fresh: flag,
                missed: missed as u32,
                geometry: Geometry::from_word(third).ok_or(Malformed("not sizes of an arena"))?,
            },
            FRAME if rest.len() <= word as usize => {
                CaptureRecord::Frame { core, sent: flag, missed, time: third, len: word }
            }
            FRAME => return Err(Malformed("more than a frame's length")),
            _ => return Err(Malformed("unknown kind of record")),
        };
        Ok((record, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let frame = CaptureRecord::Frame { core: 7, sent: true, missed: 1 << 40, time: u64::MAX, len: 3 };
        let arena = CaptureRecord::Arena { arena: 9, fresh: true, missed: 2, geometry: Geometry::STANDARD };
        for (record, payload) in [(frame, &b"abc"[..]), (arena, b"")] {
            let mut bytes = vec![0; CAPTURE_HEADER];
            record.encode(&mut bytes).unwrap();
            assert!(crate::control::Request::decode(&bytes).is_err(), "the daemon takes it for a request");
            bytes.extend_from_slice(payload);
            assert_eq!(CaptureRecord::decode(&bytes), Ok((record, payload)));
            for len in 0..CAPTURE_HEADER {
                assert!(CaptureRecord::decode(&bytes[..len]).is_err());
            }
            assert!(record.encode(&mut [0; CAPTURE_HEADER - 1]).is_err());
        }
        assert!(CaptureRecord::decode(&[3; 40]).is_err());
        // Cut, and more than it was.
        let mut bytes = vec![0; CAPTURE_HEADER];
        frame.encode(&mut bytes).unwrap();
        assert_eq!(CaptureRecord::decode(&[&bytes[..], b"a"].concat()), Ok((frame, &b"a"[..])));
        assert!(CaptureRecord::decode(&[&bytes[..], b"abcd"].concat()).is_err());
    }
}
