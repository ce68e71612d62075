//! Protocols of lines with a number in front: SMTP, FTP.

use super::{Dialogue, value};
use crate::wire::{Wire, Wrong};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

/// Reads a response of one or more lines. Fails unless it has this number.
fn expect(wire: &mut Wire, wanted: &str) -> Result<String, Wrong> {
    loop {
        let line = wire.line()?;
        if line.as_bytes().get(3) == Some(&b'-') || line.starts_with(' ') {
            continue;
        }
        let number = line.get(..3).unwrap_or_default();
        return if number == wanted { Ok(line) } else { Err(Wrong::answer(number)) };
    }
}

fn say(wire: &mut Wire, line: &str, wanted: &str) -> Result<String, Wrong> {
    wire.write(format!("{line}\r\n").as_bytes())?;
    expect(wire, wanted)
}

/// A message for each request.
pub(crate) struct Smtp;

impl Dialogue for Smtp {
    fn greet(&mut self, wire: &mut Wire) -> Result<(), Wrong> {
        expect(wire, "220")?;
        say(wire, "EHLO lab.example", "250").map(drop)
    }

    fn request(&mut self, _: u64, _: bool) -> Vec<u8> {
        b"MAIL FROM:<from@lab.example>\r\n".into()
    }

    fn answer(&mut self, wire: &mut Wire, number: u64, _: bool) -> Result<bool, Wrong> {
        expect(wire, "250")?;
        say(wire, "RCPT TO:<to@lab.example>", "250")?;
        say(wire, "DATA", "354")?;
        let mut message = b"Subject: lab\r\n\r\n".to_vec();
        for line in value(number).chunks(70) {
            message.extend_from_slice(line);
            message.extend(b"\r\n");
        }
        message.extend(b".\r\n");
        wire.write(&message)?;
        expect(wire, "250")?;
        Ok(true)
    }

    fn bye(&mut self, wire: &mut Wire) {
        let _ = say(wire, "QUIT", "221");
    }
}

/// A file for each request; every second one over a connection that the server opens.
pub(crate) struct Ftp(Vec<(&'static str, Vec<u8>)>);

impl Ftp {
    pub(crate) fn new(files: &Path) -> Ftp {
        Ftp(["64", "10k", "1m"].map(|name| (name, std::fs::read(files.join(name)).unwrap_or_default())).into())
    }
}

impl Dialogue for Ftp {
    fn greet(&mut self, wire: &mut Wire) -> Result<(), Wrong> {
        expect(wire, "220")?;
        say(wire, "USER anonymous", "331")?;
        say(wire, "PASS lab", "230")?;
        say(wire, "TYPE I", "200").map(drop)
    }

    fn request(&mut self, _: u64, _: bool) -> Vec<u8> {
        b"NOOP\r\n".into()
    }

    fn answer(&mut self, wire: &mut Wire, number: u64, _: bool) -> Result<bool, Wrong> {
        expect(wire, "200")?;
        let number = number & 0xffff_ffff;
        let (name, body) = &self.0[if number % 100 == 99 { 2 } else { usize::from(number.is_multiple_of(5)) }];
        let retrieve = format!("RETR {name}");
        let to = wire.peer()?;
        let mut data = if number.is_multiple_of(2) {
            let said = say(wire, "EPSV", "229")?;
            let port = said.split('|').nth(3).and_then(|port| port.parse().ok()).ok_or(Wrong::answer("to EPSV"))?;
            let data = Wire::connect(SocketAddr::new(to.ip(), port), None)?;
            say(wire, &retrieve, "150")?;
            data
        } else {
            let listener = TcpListener::bind((to.ip(), 0)).map_err(|error| Wrong::of("bind", &error))?;
            let port = listener.local_addr().map_err(|error| Wrong::of("getsockname", &error))?.port();
            let address = to.ip().to_string().replace('.', ",");
            say(wire, &format!("PORT {address},{},{}", port >> 8, port & 255), "200")?;
            say(wire, &retrieve, "150")?;
            Wire::accepted(listener.accept().map_err(|error| Wrong::of("accept", &error))?.0)
        };
        let came = data.rest()?;
        drop(data);
        expect(wire, "226")?;
        if came == *body { Ok(true) } else { Err(Wrong::answer("with another file")) }
    }

    fn bye(&mut self, wire: &mut Wire) {
        let _ = say(wire, "QUIT", "221");
    }
}
