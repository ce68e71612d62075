//! A client of the daemon that does what it is told and not what our library would do: the hand of `cargo xtask redteam`'s attacks.
//!
//! One command a line on standard input; one line each is answered: `ok …`, or `error …`. Sockets, memory, arenas and channels
//! are numbers, in the order in which they were made. The library of the tree encodes messages and knows the layout, so that
//! this follows both; what it says in them is the attack's to choose.

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
