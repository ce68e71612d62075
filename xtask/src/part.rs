//! A part of `make test` or `make proof`, and its outcome.

use crate::run::Run;

/// One part: its name, purpose and function.
pub(crate) struct Part {
    /// The part's name in `cargo xtask test NAME`.
    pub(crate) name: &'static str,
    /// The part's purpose, in one line.
    pub(crate) about: &'static str,
    /// Runs it.
    pub(crate) run: fn(&mut Run) -> Outcome,
}

/// Counts of tests, and the names of those that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Tests that passed.
    pub(crate) passed: usize,
    /// Tests that could not run here. Their logs have the reason.
    pub(crate) skipped: usize,
    /// Names of the tests that failed.
    pub(crate) failed: Vec<String>,
}

impl Outcome {
    /// Returns the outcome of one test.
    pub(crate) fn one(name: &str, passed: bool) -> Self {
        if passed {
            Self { passed: 1, ..Self::default() }
        } else {
            Self { failed: vec![name.into()], ..Self::default() }
        }
    }

    /// Returns the outcome of one test that could not run here.
    pub(crate) fn skipped() -> Self {
        Self { skipped: 1, ..Self::default() }
    }

    /// Adds the counts of `other`.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.skipped += other.skipped;
        self.failed.extend(other.failed);
    }

    /// The last line of a run: "N passed, N failed", and the number of skipped tests if any.
    pub(crate) fn verdict(&self) -> String {
        let mut text = format!("{} passed, {} failed", self.passed, self.failed.len());
        if self.skipped > 0 {
            text += &format!(", {} skipped", self.skipped);
        }
        text
    }

    /// Returns true if something ran and nothing failed.
    pub(crate) fn is_good(&self) -> bool {
        self.failed.is_empty() && self.passed > 0
    }
}
