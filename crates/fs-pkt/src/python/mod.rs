//! The Python subset of scripts' code blocks: assertions, assignments and prints over integers.
//! Names persist between blocks, as in the single program that packetdrill makes of them.

mod eval;
mod lex;
mod parse;
#[cfg(test)]
mod tests;

use eval::Value;
use std::collections::BTreeMap;

/// The names that code blocks can use.
#[derive(Debug, Default)]
pub struct Python {
    names: BTreeMap<String, Value>,
    /// Output that was not taken yet.
    printed: String,
}

impl Python {
    /// Sets a name to a number.
    pub fn set(&mut self, name: &str, value: i64) {
        self.names.insert(name.into(), Value::Int(value));
    }

    /// Runs a block. `Err` contains the failed assertion or the error in the code.
    pub fn run(&mut self, code: &str) -> Result<(), String> {
        let statements = parse::parse(&lex::lex(code)?)?;
        statements.iter().try_for_each(|statement| self.execute(statement))
    }

    /// Returns the output since the last call.
    pub fn take_printed(&mut self) -> String {
        std::mem::take(&mut self.printed)
    }
}
