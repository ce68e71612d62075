//! Stores of values: redis, memcached, PostgreSQL, MariaDB.

use super::{Dialogue, value};
use crate::wire::{Wire, Wrong};

fn expect(wire: &mut Wire, wanted: &str) -> Result<(), Wrong> {
    let line = wire.line()?;
    if line == wanted { Ok(()) } else { Err(Wrong::answer(line.chars().take(40).collect::<String>())) }
}

/// SET, GET and DEL of a key, sent together.
pub(crate) struct Redis;

impl Dialogue for Redis {
    fn request(&mut self, number: u64, _: bool) -> Vec<u8> {
        let key = format!("key:{number:x}");
        let mut bytes = Vec::new();
        for parts in [
            vec![&b"SET"[..], key.as_bytes(), &value(number)],
            vec![b"GET", key.as_bytes()],
            vec![b"DEL", key.as_bytes()],
        ] {
            bytes.extend(format!("*{}\r\n", parts.len()).bytes());
            for part in parts {
                bytes.extend(format!("${}\r\n", part.len()).bytes());
                bytes.extend_from_slice(part);
                bytes.extend(b"\r\n");
            }
        }
        bytes
    }

    fn answer(&mut self, wire: &mut Wire, number: u64, _: bool) -> Result<bool, Wrong> {
        let value = value(number);
        expect(wire, "+OK")?;
        expect(wire, &format!("${}", value.len()))?;
        if wire.bytes(value.len() + 2)?[..value.len()] != value {
            return Err(Wrong::answer("another value"));
        }
        expect(wire, ":1")?;
        Ok(true)
    }
}

/// set, get and delete of a key, one after the other.
pub(crate) struct Memcached;

impl Dialogue for Memcached {
    fn request(&mut self, number: u64, _: bool) -> Vec<u8> {
        let value = value(number);
        let mut bytes = format!("set key-{number:x} 0 0 {}\r\n", value.len()).into_bytes();
        bytes.extend(value);
        bytes.extend(b"\r\n");
        bytes
    }

    fn answer(&mut self, wire: &mut Wire, number: u64, _: bool) -> Result<bool, Wrong> {
        let value = value(number);
        expect(wire, "STORED")?;
        wire.write(format!("get key-{number:x}\r\n").as_bytes())?;
        expect(wire, &format!("VALUE key-{number:x} 0 {}", value.len()))?;
        if wire.bytes(value.len() + 2)?[..value.len()] != value {
            return Err(Wrong::answer("another value"));
        }
        expect(wire, "END")?;
        wire.write(format!("delete key-{number:x}\r\n").as_bytes())?;
        expect(wire, "DELETED")?;
        Ok(true)
    }
}

/// PostgreSQL's protocol, version 3, as a trusted user: one row with one column per query.
pub(crate) struct Postgres;

fn message(wire: &mut Wire) -> Result<(u8, Vec<u8>), Wrong> {
    let head = wire.bytes(5)?;
    let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    Ok((head[0], wire.bytes(len.saturating_sub(4))?))
}

/// Reads until the server is ready for a query. Returns the columns of the rows before that.
fn until_ready(wire: &mut Wire) -> Result<Vec<Vec<u8>>, Wrong> {
    let mut columns = Vec::new();
    loop {
        match message(wire)? {
            (b'Z', _) => return Ok(columns),
            (b'D', row) => columns.push(row.get(6..).unwrap_or_default().to_vec()),
            (b'E', error) => {
                let fields = error.split(|byte| *byte == 0);
                let code = fields.filter_map(|field| field.strip_prefix(b"C")).next().unwrap_or_default();
                return Err(Wrong::answer(String::from_utf8_lossy(code)));
            }
            _ => {}
        }
    }
}

impl Dialogue for Postgres {
    fn greet(&mut self, wire: &mut Wire) -> Result<(), Wrong> {
        let parameters = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
        let mut bytes = (parameters.len() as u32 + 4).to_be_bytes().to_vec();
        bytes.extend(parameters);
        wire.write(&bytes)?;
        until_ready(wire).map(drop)
    }

    fn request(&mut self, number: u64, _: bool) -> Vec<u8> {
        let len = value(number).len();
        let query = format!("select repeat('{number:x}-', {len})\0");
        let mut bytes = vec![b'Q'];
        bytes.extend((query.len() as u32 + 4).to_be_bytes());
        bytes.extend(query.bytes());
        bytes
    }

    fn answer(&mut self, wire: &mut Wire, number: u64, _: bool) -> Result<bool, Wrong> {
        let wanted = format!("{number:x}-").repeat(value(number).len()).into_bytes();
        match &until_ready(wire)?[..] {
            [column] if *column == wanted => Ok(true),
            _ => Err(Wrong::answer("another row")),
        }
    }

    fn bye(&mut self, wire: &mut Wire) {
        let _ = wire.write(b"X\0\0\0\x04");
    }
}

/// MariaDB's protocol as a trusted user: one row with one column per query.
pub(crate) struct Mysql;

/// One packet without its head.
fn packet(wire: &mut Wire) -> Result<Vec<u8>, Wrong> {
    let head = wire.bytes(4)?;
    let packet = wire.bytes(u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize)?;
    match packet[..] {
        [0xff, low, high, ..] => Err(Wrong::answer(u16::from_le_bytes([low, high]))),
        _ => Ok(packet),
    }
}

fn framed(number: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_le_bytes().to_vec();
    bytes[3] = number;
    bytes.extend_from_slice(payload);
    bytes
}

impl Dialogue for Mysql {
    fn greet(&mut self, wire: &mut Wire) -> Result<(), Wrong> {
        packet(wire)?;
        // CLIENT_LONG_PASSWORD, CLIENT_PROTOCOL_41, CLIENT_SECURE_CONNECTION, CLIENT_PLUGIN_AUTH.
        let mut login = (0x1_u32 | 0x200 | 0x8000 | 0x8_0000).to_le_bytes().to_vec();
        login.extend((1_u32 << 24).to_le_bytes());
        login.push(33);
        login.extend([0; 23]);
        login.extend(b"root\0\0mysql_native_password\0");
        wire.write(&framed(1, &login))?;
        match packet(wire)?.first() {
            Some(0) => Ok(()),
            first => Err(Wrong::answer(format!("{first:?} to a login"))),
        }
    }

    fn request(&mut self, number: u64, _: bool) -> Vec<u8> {
        let query = format!("\x03select repeat('{number:x}-', {})", value(number).len());
        framed(0, query.as_bytes())
    }

    fn answer(&mut self, wire: &mut Wire, number: u64, _: bool) -> Result<bool, Wrong> {
        let wanted = format!("{number:x}-").repeat(value(number).len()).into_bytes();
        // The number of columns, the column, the end of columns.
        for _ in 0..3 {
            packet(wire)?;
        }
        let row = packet(wire)?;
        let head = match row.first() {
            Some(0xfc) => 3,
            Some(0xfd) => 4,
            _ => 1,
        };
        packet(wire)?;
        if row.get(head..) == Some(&wanted) { Ok(true) } else { Err(Wrong::answer("another row")) }
    }

    fn bye(&mut self, wire: &mut Wire) {
        let _ = wire.write(&framed(0, b"\x01"));
    }
}
