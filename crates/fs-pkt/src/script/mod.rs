//! The language: tokens, grammar, syntax tree.

pub mod ast;
mod display;
mod lex;
mod parse;
mod parse_packet;
mod syntax_error;
mod variants;

pub use parse::{Defines, parse};
pub use syntax_error::SyntaxError;
pub use variants::{Notes, Side, select};
