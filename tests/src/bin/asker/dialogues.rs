//! What is asked, and when an answer is right.

mod http;
mod stores;

use crate::wire::{Wire, Wrong};
use std::path::Path;

/// One client's side of a protocol.
pub(crate) trait Dialogue {
    /// What is said on a new connection before the first request.
    fn greet(&mut self, _wire: &mut Wire) -> Result<(), Wrong> {
        Ok(())
    }

    /// The bytes of a request, or of its first part; `keep`: others follow on the same connection.
    fn request(&mut self, number: u64, keep: bool) -> Vec<u8>;

    /// Reads the answer to it, and says whether the connection may be used again.
    fn answer(&mut self, wire: &mut Wire, number: u64, keep: bool) -> Result<bool, Wrong>;

    /// Ends a connection that was kept, as the protocol wants it.
    fn bye(&mut self, _wire: &mut Wire) {}
}

/// The dialogue of this name.
pub(crate) fn named(name: &str, files: &Path) -> Box<dyn Dialogue> {
    let (name, argument) = name.split_once('=').unwrap_or((name, ""));
    match name {
        "http-files" => Box::new(http::Files::new(files)),
        "redis" => Box::new(stores::Redis),
        "memcached" => Box::new(stores::Memcached),
        "postgres" => Box::new(stores::Postgres),
        _ => {
            eprintln!("asker: nobody knows how to ask {name} {argument}");
            std::process::exit(2)
        }
    }
}
