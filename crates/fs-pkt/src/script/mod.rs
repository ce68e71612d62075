//! The language: words, grammar, and what a script is.

pub mod ast;
mod display;
mod lex;
mod parse;
mod parse_packet;
mod variants;

pub use parse::{Defines, parse};
pub use variants::{Notes, Side, select};

use std::fmt;

/// A script that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Its path.
    pub file: String,
    /// Where.
    pub line: u32,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: syntax error: {}", self.file, self.line, self.message)
    }
}

impl std::error::Error for SyntaxError {}
