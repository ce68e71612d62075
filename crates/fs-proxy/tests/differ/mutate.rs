//! Messages, and changes of them.

/// A random number generator.
pub(crate) struct Rng(pub(crate) fastrand::Rng);

impl Rng {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.usize(..bound.max(1))
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'a>(&mut self, from: &[&'a [u8]]) -> &'a [u8] {
        from[self.below(from.len())]
    }
}

pub(crate) const REQUESTS: [&[u8]; 8] = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /a/b?c=d&e HTTP/1.1\r\nHost: a.example:81\r\nConnection: keep-alive\r\nAccept: */*\r\n\r\n",
    b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n3;a=b\r\nabc\r\nA\r\n0123456789\r\n0\r\nX: 1\r\n\r\n",
    b"HEAD http://u@b.example/q HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 1.2.3.4\r\nTE: trailers\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"DELETE /x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 0\r\nVia: 1.0 a\r\n\r\n",
];

pub(crate) const ANSWERS: [&[u8]; 8] = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer: a\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n3;a\r\nabc\r\n0\r\nX: 1\r\nHost: y\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nuntil the end",
    b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 9\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 404 Not Found\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\nContent-Length: 0\r\n\r\n",
];

const PIECES: [&[u8]; 48] = [
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b":",
    b",",
    b";",
    b"\0",
    b"\x0b",
    b"\x7f",
    b"\xff",
    b"\"",
    b"<",
    b"`",
    b"#",
    b"%",
    b"@",
    b"0",
    b"5",
    b"f",
    b"A",
    b"-",
    b"+",
    b"_",
    b"/",
    b"?",
    b"*",
    b"http://",
    b"HTTP/1.0",
    b"HTTP/1.1",
    b"chunked",
    b"Content-Length: 3\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Host: y\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive, X\r\n",
    b"Connection: upgrade\r\n",
    b"Upgrade: h2c\r\n",
    b"X: y\r\n",
    b" folded\r\n",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b"GET / HTTP/1.1\r\nHost: z\r\n\r\n",
    b"\r\n\r\n",
    b"0x",
];

/// Changes bytes in up to six places, or in none.
pub(crate) fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.below(7) {
        let at = rng.below(bytes.len() + 1);
        match rng.below(6) {
            0 if at < bytes.len() => bytes[at] = rng.0.u8(..),
            1 if at < bytes.len() => drop(bytes.remove(at)),
            2 => drop(bytes.splice(at..at, rng.pick(&PIECES).to_vec())),
            3 => {
                // The start of a line, where fields are.
                let line = bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |lf| at + lf + 1);
                drop(bytes.splice(line..line, rng.pick(&PIECES).to_vec()));
            }
            4 => {
                let end = (at + rng.below(12)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = rng.below(bytes.len() + 1);
                drop(bytes.splice(to..to, part));
            }
            _ => bytes.truncate(bytes.len() - rng.below(bytes.len() / 8 + 1)),
        }
    }
}
