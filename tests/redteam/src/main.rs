//! A client of the daemon that executes arbitrary commands instead of our library's protocol, for
//! the attacks of `cargo xtask redteam`.
//!
//! Reads one command per line on standard input, and prints one line for each: `ok …` or `error …`.
//! Sockets, memory, arenas and channels are numbered in the order of their creation. The tree's
//! library encodes messages and defines the layout, so the client stays up to date. The attack
//! chooses the contents.

mod commands;
mod memory;

use std::io::{BufRead, Write};

fn main() -> anyhow::Result<()> {
    let mut liar = commands::Liar::default();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let Some((command, arguments)) = words.split_first() else { continue };
        match liar.obey(command, arguments) {
            Ok(said) => writeln!(out, "ok {said}")?,
            Err(error) => writeln!(out, "error {}", format!("{error:#}").replace('\n', " "))?,
        }
        out.flush()?;
    }
    Ok(())
}
