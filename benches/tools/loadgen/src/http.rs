//! The part of HTTP/1.1 that finds the end of a response.

use crate::errors::{self, Kind};

/// Longest head of a response.
const HEAD_MAX: usize = 16 << 10;

/// Parses one response from the pieces in which it arrives.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// An incomplete head. In the usual case of one piece it is empty and has no memory.
    head: Vec<u8>,
    state: State,
    closes: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Body {
        left: u64,
    },
}

impl Answer {
    /// Returns true if the head says that the server closes the connection after the response.
    pub(crate) fn closes(&self) -> bool {
        self.closes
    }

    /// Takes the next bytes. Returns true if they complete the response.
    ///
    /// `length` is the expected length of the body. Bytes after the response are an error, because
    /// there was no other request.
    pub(crate) fn feed(&mut self, bytes: &[u8], length: Option<usize>) -> Result<bool, Kind> {
        let body = match self.state {
            State::Body { .. } => bytes,
            State::Head if self.head.is_empty() => match head_end(bytes, 0) {
                Some(end) => {
                    (self.state, self.closes) = (parse(&bytes[..end], length)?, closes(&bytes[..end]));
                    &bytes[end..]
                }
                None => return self.keep(bytes).map(|()| false),
            },
            State::Head => {
                let before = self.head.len();
                // Only the head has a limit, not the bytes after it.
                let (taken, rest) = bytes.split_at(bytes.len().min(HEAD_MAX - before));
                self.keep(taken)?;
                let end = head_end(&self.head, before.saturating_sub(3));
                let Some(end) = end else { return if rest.is_empty() { Ok(false) } else { Err(errors::PROTOCOL) } };
                (self.state, self.closes) = (parse(&self.head[..end], length)?, closes(&self.head[..end]));
                self.head = Vec::new();
                &bytes[end - before..]
            }
        };
        let State::Body { left } = &mut self.state else { return Ok(false) };
        *left = left.checked_sub(body.len() as u64).ok_or(errors::PROTOCOL)?;
        Ok(*left == 0)
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), Kind> {
        if self.head.len() + bytes.len() > HEAD_MAX {
            return Err(errors::PROTOCOL);
        }
        self.head.extend_from_slice(bytes);
        Ok(())
    }
}

/// Returns the end of the head, including its empty line. Starts at `from`.
fn head_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    // Advances by 4 if the byte cannot be part of the end, so that most of a head is checked at
    // every fourth byte only.
    while at + 4 <= bytes.len() {
        match bytes[at + 3] {
            b'\n' if bytes[at..at + 3] == *b"\r\n\r" => return Some(at + 4),
            b'\n' | b'\r' => at += 1,
            _ => at += 4,
        }
    }
    None
}

fn parse(head: &[u8], wanted: Option<usize>) -> Result<State, Kind> {
    let status = head.strip_prefix(b"HTTP/1.").ok_or(errors::PROTOCOL)?.get(2..5).ok_or(errors::PROTOCOL)?;
    if status[0] != b'2' {
        return Err(errors::STATUS);
    }
    let length = if status == b"204" { 0 } else { content_length(head)? };
    if wanted.is_some_and(|wanted| wanted as u64 != length) {
        return Err(errors::LENGTH);
    }
    Ok(State::Body { left: length })
}

fn closes(head: &[u8]) -> bool {
    const LINE: &[u8] = b"connection: close\r";
    head.split(|&byte| byte == b'\n').any(|line| line.len() == LINE.len() && line.eq_ignore_ascii_case(LINE))
}

fn content_length(head: &[u8]) -> Result<u64, Kind> {
    const NAME: &[u8] = b"content-length:";
    for line in head.split(|&byte| byte == b'\n').skip(1) {
        if line.len() > NAME.len() && line[..NAME.len()].eq_ignore_ascii_case(NAME) {
            let digits = line[NAME.len()..].trim_ascii();
            let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            return number.ok_or(errors::PROTOCOL);
        }
    }
    Err(errors::PROTOCOL)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\ncontent-LENGTH: 5\r\n\r\nhello";

    #[test]
    fn response_is_complete_however_it_is_split() {
        for first in 0..OK.len() {
            for second in first..OK.len() {
                let mut answer = Answer::default();
                let pieces = [&OK[..first], &OK[first..second], &OK[second..]];
                let done: Vec<bool> = pieces.iter().map(|piece| answer.feed(piece, Some(5)).unwrap()).collect();
                assert_eq!(done, [false, false, true], "{first} {second}");
            }
        }
    }

    #[test]
    fn empty_body_ends_with_the_head() {
        let mut answer = Answer::default();
        assert_eq!(answer.feed(b"HTTP/1.1 204 No Content\r\n\r\n", None), Ok(true));
        let mut answer = Answer::default();
        assert_eq!(answer.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", None), Ok(true));
    }

    #[test]
    fn head_says_whether_the_server_closes() {
        for (line, closes) in
            [("Connection: close", true), ("connection: keep-alive", false), ("Age: 12345678901", false)]
        {
            let text = format!("HTTP/1.1 200 OK\r\n{line}\r\nContent-Length: 0\r\n\r\n");
            for first in 0..text.len() {
                let mut answer = Answer::default();
                assert!(!answer.feed(&text.as_bytes()[..first], None).unwrap());
                assert!(answer.feed(&text.as_bytes()[first..], None).unwrap());
                assert_eq!(answer.closes(), closes, "{line} {first}");
            }
        }
    }

    #[test]
    fn errors_have_their_kind() {
        let feed = |bytes: &[u8], length| Answer::default().feed(bytes, length);
        assert_eq!(feed(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", None), Err(errors::STATUS));
        assert_eq!(feed(OK, Some(6)), Err(errors::LENGTH));
        assert_eq!(feed(b"SSH-2.0-OpenSSH\r\n\r\n", None), Err(errors::PROTOCOL));
        assert_eq!(feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None), Err(errors::PROTOCOL));
        assert_eq!(feed(&[OK, b"!"].concat(), None), Err(errors::PROTOCOL));
        assert_eq!(feed(&[b'x'; HEAD_MAX + 1], None), Err(errors::PROTOCOL));
    }
}
