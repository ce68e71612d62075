//! Errors in the text of a script.

use std::fmt;

/// Error of a script that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Path of the script.
    pub file: String,
    /// The line.
    pub line: u32,
    /// The message.
    pub message: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: syntax error: {}", self.file, self.line, self.message)
    }
}

impl std::error::Error for SyntaxError {}
