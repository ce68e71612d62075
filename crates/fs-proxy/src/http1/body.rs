//! Bodies on the lean path: finding the end, and forwarding the bytes (RFC 9112 6 and 7).
//!
//! Pure functions: bytes in, a count and possibly replaced bytes out. A length is counted. Chunks
//! pass unchanged, but extensions are removed and trailers are filtered. A body that ends with its
//! connection is converted into chunks.

use crate::fields::{may_be_trailer, write_line};
use std::io::Write;

/// Limit for chunk extensions in one body, in bytes. Too low: an honest sender is refused. Too
/// high: a sender of extensions makes the proxy work for nothing. hyper has the same limit.
const EXTENSIONS_MAX: u32 = 16 << 10;
/// Limit for a trailer section, which is buffered until it is complete.
const TRAILERS_MAX: usize = 8 << 10;
/// Lines of it.
const TRAILER_LINES: usize = 64;
/// Digits of a chunk's size: 60 bits.
const DIGITS_MAX: u8 = 15;

/// The rest of a message's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// This number of bytes.
    Length(u64),
    /// Chunks.
    Chunks(Chunks),
    /// All bytes until the end of the connection. Only a response can have that.
    UntilEnd,
}

/// The result of [`Body::take`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Bytes that belong to the body. Bytes after them belong to the next message.
    pub used: usize,
    /// Content bytes among them.
    pub content: u64,
    /// The output contains replacement bytes. Otherwise the bytes are forwarded unchanged.
    pub rewritten: bool,
}

/// The framing is invalid, so the following bytes cannot be interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Body {
    /// No body.
    pub const NONE: Self = Self::Length(0);

    /// Returns a chunked body at its start.
    #[must_use]
    pub fn chunked() -> Self {
        Self::Chunks(Chunks { state: State::Size(0, 0), extensions: 0, trailers: Vec::new() })
    }

    /// Returns true if all of it has been taken.
    #[inline]
    #[must_use]
    pub fn is_done(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunks(chunks) => chunks.state == State::Done,
            Self::UntilEnd => false,
        }
    }

    /// Takes the body's part of `bytes`. Writes replacement bytes to `out` if they differ.
    ///
    /// # Errors
    /// If the bytes are not valid chunks.
    #[inline]
    pub fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Taken, Malformed> {
        match self {
            Self::Length(left) => {
                let used = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= used as u64;
                Ok(Taken { used, content: used as u64, rewritten: false })
            }
            Self::Chunks(chunks) => chunks.take(bytes, out),
            Self::UntilEnd => {
                if !bytes.is_empty() {
                    // Writing to a Vec cannot fail.
                    let _ = write!(out, "{:x}\r\n", bytes.len());
                    out.extend_from_slice(bytes);
                    out.extend_from_slice(b"\r\n");
                }
                Ok(Taken { used: bytes.len(), content: bytes.len() as u64, rewritten: true })
            }
        }
    }

    /// Ends a body that lasts until the end of the connection, which has arrived.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        *self = Self::NONE;
        out.extend_from_slice(b"0\r\n\r\n");
    }
}

/// A chunked body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    state: State,
    /// Bytes of extensions up to now.
    extensions: u32,
    /// The first part of the trailer section.
    trailers: Vec<u8>,
}

/// The expected next part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A digit of the size, and how many came before.
    Size(u64, u8),
    /// White space after a size, as some old servers send.
    Padding(u64),
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// The first byte after the last chunk.
    Last,
    LastLf,
    Trailers,
    Done,
}

/// Forwards bytes in runs. After the first removal, the rest is written as a replacement.
struct Runs<'a> {
    from: &'a [u8],
    out: &'a mut Vec<u8>,
    start: usize,
    rewritten: bool,
}

impl Runs<'_> {
    fn leave_out(&mut self, at: usize) {
        self.out.extend_from_slice(&self.from[self.start..at]);
        (self.start, self.rewritten) = (at + 1, true);
    }

    fn end(&mut self, at: usize) {
        if self.rewritten {
            self.out.extend_from_slice(&self.from[self.start..at]);
            self.start = at;
        }
    }
}

impl Chunks {
    fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Taken, Malformed> {
        let mut runs = Runs { from: bytes, out, start: 0, rewritten: false };
        let (mut at, mut content) = (0, 0);
        while at < bytes.len() {
            let byte = bytes[at];
            self.state = match (self.state, byte) {
                (State::Size(n, digits), _) if byte.is_ascii_hexdigit() && digits < DIGITS_MAX => {
                    let digit = (byte as char).to_digit(16).unwrap_or(0);
                    State::Size(n << 4 | u64::from(digit), digits + 1)
                }
                (State::Size(n, 1..) | State::Padding(n), b' ' | b'\t') => {
                    self.count_extension()?;
                    runs.leave_out(at);
                    State::Padding(n)
                }
                (State::Size(n, 1..) | State::Padding(n), b';') => {
                    runs.leave_out(at);
                    State::Extension(n)
                }
                (State::Size(n, 1..) | State::Padding(n) | State::Extension(n), b'\r') => State::SizeLf(n),
                (State::Extension(_), b'\n') => return Err(Malformed),
                (State::Extension(n), _) => {
                    self.count_extension()?;
                    runs.leave_out(at);
                    State::Extension(n)
                }
                (State::SizeLf(0), b'\n') => State::Last,
                (State::SizeLf(n), b'\n') => State::Data(n),
                (State::Data(n), _) => {
                    let some = usize::try_from(n).unwrap_or(usize::MAX).min(bytes.len() - at);
                    at += some;
                    content += some as u64;
                    self.state = if some as u64 == n { State::DataCr } else { State::Data(n - some as u64) };
                    continue;
                }
                (State::DataCr, b'\r') => State::DataLf,
                (State::DataLf, b'\n') => State::Size(0, 0),
                (State::Last, b'\r') => State::LastLf,
                (State::LastLf, b'\n') => State::Done,
                (State::Last | State::Trailers, _) => {
                    runs.leave_out(at);
                    if self.trailers.len() == TRAILERS_MAX {
                        return Err(Malformed);
                    }
                    self.trailers.push(byte);
                    if self.trailers.ends_with(b"\r\n\r\n") {
                        filter_trailers(&std::mem::take(&mut self.trailers), runs.out)?;
                        State::Done
                    } else {
                        State::Trailers
                    }
                }
                (State::Done, _) => break,
                _ => return Err(Malformed),
            };
            at += 1;
        }
        runs.end(at);
        Ok(Taken { used: at, content, rewritten: runs.rewritten })
    }

    fn count_extension(&mut self) -> Result<(), Malformed> {
        self.extensions += 1;
        if self.extensions > EXTENSIONS_MAX { Err(Malformed) } else { Ok(()) }
    }
}

/// Writes the permitted fields of a trailer section, and its end.
fn filter_trailers(section: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let mut before = 0;
    for &byte in section {
        if byte == b'\n' && before != b'\r' {
            return Err(Malformed);
        }
        before = byte;
    }
    let mut lines = [httparse::EMPTY_HEADER; TRAILER_LINES];
    match httparse::parse_headers(section, &mut lines) {
        Ok(httparse::Status::Complete((len, lines))) if len == section.len() => {
            for line in lines.iter().filter(|line| may_be_trailer(line.name)) {
                write_line(out, line.name.as_bytes(), line.value);
            }
            out.extend_from_slice(b"\r\n");
            Ok(())
        }
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forwards a chunked body that arrives in these pieces. Returns the result, and how many bytes
    /// of the last piece are left.
    fn pass(pieces: &[&[u8]]) -> Result<(String, usize), Malformed> {
        let (mut body, mut sent, mut left) = (Body::chunked(), Vec::new(), 0);
        for piece in pieces {
            let mut out = Vec::new();
            let taken = body.take(piece, &mut out)?;
            sent.extend_from_slice(if taken.rewritten { &out } else { &piece[..taken.used] });
            assert!(taken.rewritten || out.is_empty());
            left = piece.len() - taken.used;
        }
        assert!(body.is_done(), "{body:?}");
        Ok((String::from_utf8(sent).unwrap(), left))
    }

    #[test]
    fn plain_chunks_pass_unchanged_for_any_split() {
        let whole = b"5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\nNEXT";
        let expected = String::from_utf8(whole[..whole.len() - 4].to_vec()).unwrap();
        for cut in 0..whole.len() - 4 {
            assert_eq!(pass(&[&whole[..cut], &whole[cut..]]), Ok((expected.clone(), 4)), "{cut}");
        }
    }

    #[test]
    fn extensions_are_removed_and_trailers_filtered() {
        let whole = b"5;a=\"b\"\r\nhello\r\n3 \t;x\r\nabc\r\n0;last\r\nX-Sum: 1\r\nHost: evil\r\nX-L:\r\n\r\nNEXT";
        let expected = "5\r\nhello\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\nX-L: \r\n\r\n".to_owned();
        for cut in 0..whole.len() - 4 {
            assert_eq!(pass(&[&whole[..cut], &whole[cut..]]), Ok((expected.clone(), 4)), "{cut}");
        }
    }

    #[test]
    fn invalid_chunks_are_refused() {
        for bad in [
            "5\n",
            "\r\n",
            ";x\r\n",
            "G\r\n",
            "1\r\nab",
            "1\r\na\n",
            "fffffffffffffffff\r\n",
            " 5\r\n",
            "0x5\r\n",
            "5;a\nb\r\n",
            "5 5\r\n",
            "0\r\nA: b\n\r\n\r\n",
            "0\r\nA : b\r\n\r\n",
            "0\r\n A: b\r\n\r\n",
            "-1\r\n",
        ] {
            assert_eq!(Body::chunked().take(bad.as_bytes(), &mut Vec::new()), Err(Malformed), "{bad:?}");
        }
        let long = [b"1;".to_vec(), vec![b'x'; EXTENSIONS_MAX as usize + 1]].concat();
        assert_eq!(Body::chunked().take(&long, &mut Vec::new()), Err(Malformed));
        let long = [b"0\r\n".to_vec(), vec![b'x'; TRAILERS_MAX + 1]].concat();
        assert_eq!(Body::chunked().take(&long, &mut Vec::new()), Err(Malformed));
    }

    #[test]
    fn length_is_counted_and_open_end_becomes_chunks() {
        let mut body = Body::Length(5);
        let taken = body.take(b"123", &mut Vec::new()).unwrap();
        assert_eq!((taken.used, body.is_done()), (3, false));
        let taken = body.take(b"45NEXT", &mut Vec::new()).unwrap();
        assert_eq!((taken.used, taken.content, body.is_done()), (2, 2, true));
        let (mut body, mut out) = (Body::UntilEnd, Vec::new());
        assert!(body.take(b"0123456789abcdef", &mut out).unwrap().rewritten);
        body.end(&mut out);
        assert!(body.is_done());
        assert_eq!(out, b"10\r\n0123456789abcdef\r\n0\r\n\r\n");
    }
}
