//! Variants of a script for the engine and for Linux, by comments that packetdrill ignores. See the
//! crate's documentation.

use super::syntax_error::SyntaxError;

/// The side that a script is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Our engine.
    Engine,
    /// The kernel.
    Linux,
}

/// A script's comments for the runner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Why it differs from Linux.
    pub differs: Option<String>,
    /// Why it does not apply to the side that it was read for.
    pub skip: Option<String>,
}

const NOTE: &str = "// fastsock:";

/// Returns the script's lines for `side` (with unchanged line numbers), and its notes.
pub fn select(text: &str, file: &str, side: Side) -> Result<(String, Notes), SyntaxError> {
    let mut notes = Notes::default();
    let mut first_marked = None;
    let mut out = String::with_capacity(text.len());
    for (number, line) in text.lines().enumerate() {
        let number = number as u32 + 1;
        let error = |message: String| SyntaxError { file: file.into(), line: number, message };
        let trimmed = line.trim_start();
        if let Some(note) = trimmed.strip_prefix(NOTE) {
            let (what, reason) =
                note.split_once(':').ok_or_else(|| error("a reason must follow, after a colon".into()))?;
            let reason = reason.trim().to_string();
            match what.trim() {
                "differs from Linux" => notes.differs = Some(reason),
                "engine only" if side == Side::Linux => notes.skip = Some(reason),
                "linux only" if side == Side::Engine => notes.skip = Some(reason),
                "engine only" | "linux only" => {}
                other => return Err(error(format!("unknown note to the runner: '{other}'"))),
            }
        }
        let engine = trimmed.strip_prefix("// @engine");
        let linux = line.trim_end().ends_with("// @linux");
        if engine.is_some() || linux {
            first_marked.get_or_insert(number);
        }
        match (engine, side) {
            (Some(rest), Side::Engine) => out.push_str(rest),
            (None, Side::Engine) if linux => {}
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    if let (Some(line), None) = (first_marked, &notes.differs) {
        let message = format!("lines for one side need a '{NOTE} differs from Linux: REASON' in the file");
        return Err(SyntaxError { file: file.into(), line, message });
    }
    Ok((out, notes))
}
