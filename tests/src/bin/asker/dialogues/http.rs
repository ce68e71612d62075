//! HTTP/1.1.

use super::{Dialogue, value};
use crate::wire::{Wire, Wrong};
use std::path::Path;

/// A response's head and body.
struct Answer {
    status: String,
    body: Vec<u8>,
    kept: bool,
}

/// Reads one answer.
fn answer(wire: &mut Wire) -> Result<Answer, Wrong> {
    let first = wire.line()?;
    let status = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut length, mut chunked, mut kept) = (None, false, first.starts_with("HTTP/1.1"));
    loop {
        let line = wire.line()?.to_ascii_lowercase();
        let Some((name, value)) = line.split_once(':') else { break };
        match (name, value.trim()) {
            ("content-length", value) => length = value.parse().ok(),
            ("transfer-encoding", "chunked") => chunked = true,
            ("connection", "close") => kept = false,
            _ => {}
        }
    }
    let body = if chunked {
        let mut body = Vec::new();
        loop {
            let size = wire.line()?;
            let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)
                .map_err(|_| Wrong::answer("chunk"))?;
            body.extend(wire.bytes(size)?);
            wire.line()?;
            if size == 0 {
                break body;
            }
        }
    } else if let Some(length) = length {
        wire.bytes(length)?
    } else {
        kept = false;
        wire.rest()?
    };
    Ok(Answer { status, body, kept })
}

/// Files of a folder: mostly small ones.
pub(crate) struct Files(Vec<(&'static str, Vec<u8>)>);

impl Files {
    pub(crate) fn new(files: &Path) -> Files {
        let read = |name| (name, std::fs::read(files.join(name)).unwrap_or_default());
        Files(["64", "10k", "1m"].map(read).into())
    }

    fn file(&self, number: u64) -> &(&'static str, Vec<u8>) {
        &self.0[match number & 0xffff_ffff {
            n if n % 100 == 99 => 2,
            n if n % 5 == 4 => 1,
            _ => 0,
        }]
    }
}

impl Dialogue for Files {
    fn request(&mut self, number: u64, keep: bool) -> Vec<u8> {
        let connection = if keep { "keep-alive" } else { "close" };
        let name = self.file(number).0;
        format!("GET /{name} HTTP/1.1\r\nHost: lab\r\nConnection: {connection}\r\n\r\n").into()
    }

    fn answer(&mut self, wire: &mut Wire, number: u64, _: bool) -> Result<bool, Wrong> {
        let answer = answer(wire)?;
        if answer.status != "200" {
            return Err(Wrong::answer(answer.status));
        }
        if answer.body != self.file(number).1 {
            return Err(Wrong::answer("with another body"));
        }
        Ok(answer.kept)
    }
}

/// Bodies that the server echoes.
pub(crate) struct Echo;

impl Dialogue for Echo {
    fn request(&mut self, number: u64, keep: bool) -> Vec<u8> {
        let connection = if keep { "keep-alive" } else { "close" };
        let body = value(number);
        let head = format!(
            "POST /echo HTTP/1.1\r\nHost: lab\r\nConnection: {connection}\r\nContent-Type: text/plain\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        [head.into_bytes(), body].concat()
    }

    fn answer(&mut self, wire: &mut Wire, number: u64, _: bool) -> Result<bool, Wrong> {
        let answer = answer(wire)?;
        if answer.status != "200" {
            return Err(Wrong::answer(answer.status));
        }
        if answer.body != value(number) {
            return Err(Wrong::answer("with another body"));
        }
        Ok(answer.kept)
    }
}
