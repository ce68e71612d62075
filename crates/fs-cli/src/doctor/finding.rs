//! The result of a check.

use std::fmt;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Grade {
    Good,
    /// Works, but slower or with a restriction.
    Note,
    /// AF_XDP will not work.
    Bad,
}

/// One check and its result.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) what: &'static str,
    pub(super) grade: Grade,
    pub(super) says: String,
    /// The action that the operator should take.
    pub(super) cure: Option<String>,
}

impl Finding {
    pub(super) fn good(what: &'static str, says: impl Into<String>) -> Self {
        Self { what, grade: Grade::Good, says: says.into(), cure: None }
    }

    pub(super) fn note(what: &'static str, says: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { what, grade: Grade::Note, says: says.into(), cure: Some(cure.into()) }
    }

    pub(super) fn bad(what: &'static str, says: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { what, grade: Grade::Bad, says: says.into(), cure: Some(cure.into()) }
    }
}

impl Grade {
    pub(super) fn name(self) -> &'static str {
        match self {
            Grade::Good => "ok",
            Grade::Note => "note",
            Grade::Bad => "BAD",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grade = self.grade.name();
        let mut lines = self.says.lines();
        write!(f, "{grade:<5}{:<13}{}", self.what, lines.next().unwrap_or_default())?;
        for line in lines {
            write!(f, "\n{:18}{}", "", line.trim_start())?;
        }
        if let Some(cure) = &self.cure {
            write!(f, "\n{:18}do: {cure}", "")?;
        }
        Ok(())
    }
}
