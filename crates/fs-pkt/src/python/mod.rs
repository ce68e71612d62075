//! The Python that scripts' code blocks are written in: assertions, assignments and prints over integers. Names live
//! from block to block, as in the one program that packetdrill makes of them.

mod eval;
mod lex;
mod parse;
#[cfg(test)]
mod tests;

use eval::Value;
use std::collections::BTreeMap;

/// The names that code blocks see.
#[derive(Debug, Default)]
pub struct Python {
    names: BTreeMap<String, Value>,
    /// What was printed and not yet taken.
    printed: String,
}

impl Python {
    /// Sets a name to a number.
    pub fn set(&mut self, name: &str, value: i64) {
        self.names.insert(name.into(), Value::Int(value));
    }

    /// Runs a block. `Err`: a failed assertion or what is wrong with the code.
    pub fn run(&mut self, code: &str) -> Result<(), String> {
        let statements = parse::parse(&lex::lex(code)?)?;
        statements.iter().try_for_each(|statement| self.execute(statement))
    }

    /// What has been printed since the last call.
    pub fn take_printed(&mut self) -> String {
        std::mem::take(&mut self.printed)
    }
}
