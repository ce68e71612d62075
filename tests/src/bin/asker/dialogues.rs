//! Requests, and checks of their responses.

mod http;
mod lines;
mod stores;

use crate::wire::{Wire, Wrong};
use std::path::Path;

/// One client's side of a protocol.
pub(crate) trait Dialogue {
    /// Sends what the protocol needs on a new connection before the first request.
    fn greet(&mut self, _wire: &mut Wire) -> Result<(), Wrong> {
        Ok(())
    }

    /// The bytes of a request, or of its first part; `keep`: others follow on the same connection.
    fn request(&mut self, number: u64, keep: bool) -> Vec<u8>;

    /// Reads the response, and returns whether the connection may be used again.
    fn answer(&mut self, wire: &mut Wire, number: u64, keep: bool) -> Result<bool, Wrong>;

    /// Ends a kept connection as the protocol requires.
    fn bye(&mut self, _wire: &mut Wire) {}
}

/// The dialogue of this name.
pub(crate) fn named(name: &str, files: &Path) -> Box<dyn Dialogue> {
    match name {
        "http-files" => Box::new(http::Files::new(files)),
        "http-echo" => Box::new(http::Echo),
        "mysql" => Box::new(stores::Mysql),
        "smtp" => Box::new(lines::Smtp),
        "ftp" => Box::new(lines::Ftp::new(files)),
        "redis" => Box::new(stores::Redis),
        "memcached" => Box::new(stores::Memcached),
        "postgres" => Box::new(stores::Postgres),
        _ => {
            eprintln!("asker: unknown protocol {name}");
            std::process::exit(2)
        }
    }
}

/// The value that belongs to a number: mostly short.
fn value(number: u64) -> Vec<u8> {
    let len = match number & 0xffff_ffff {
        n if n % 200 == 199 => 300_000,
        n if n % 10 == 9 => 5_000,
        _ => 40,
    };
    let mut value = format!("{number:x}-").into_bytes();
    while value.len() < len {
        value.extend_from_within(..value.len().min(len - value.len()));
    }
    value
}
