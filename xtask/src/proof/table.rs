//! The results of the parts, the latest run of each. Stored as tab-separated lines, shown as a
//! table.

use crate::part::Part;
use std::fmt::Write as _;
use std::path::Path;

/// The file to which `--keep` writes the table.
pub(super) const PAGE: &str = "docs/PROOF-RUN.md";

/// A run of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) part: String,
    /// The commit, with `+` if the sources differed from it.
    pub(crate) commit: String,
    pub(crate) date: String,
    pub(crate) seconds: u64,
    pub(crate) result: String,
}

impl Row {
    /// Returns true if the part need not run again on `commit`: it passed there, with the settings that `is_set`
    /// confirms. What could not run here may be able to by now, and says so at once otherwise.
    pub(crate) fn holds_for(&self, commit: &str, is_set: impl Fn(&str) -> bool) -> bool {
        let mut words = self.result.split(", ");
        let passed = words.next().is_some_and(|word| word.starts_with("passed: "));
        let settings = words.filter(|word| !word.ends_with(" skipped"));
        self.commit == commit && !commit.ends_with('+') && passed && settings.into_iter().all(is_set)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.result.starts_with("failed")
    }
}

/// The rows.
#[derive(Default)]
pub(crate) struct Table(Vec<Row>);

impl Table {
    /// Reads the stored results, or none if the file does not exist.
    pub(crate) fn read(path: &Path) -> Self {
        Self::parse(&std::fs::read_to_string(path).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let row = |line: &str| {
            let mut words = line.splitn(5, '\t').map(str::to_owned);
            let mut word = || words.next();
            Some(Row { part: word()?, commit: word()?, date: word()?, seconds: word()?.parse().ok()?, result: word()? })
        };
        Self(text.lines().filter_map(row).collect())
    }

    /// Formats the results for [`read`](Self::read).
    pub(crate) fn text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, Row { part, commit, date, seconds, result }| {
            let _ = writeln!(text, "{part}\t{commit}\t{date}\t{seconds}\t{result}");
            text
        })
    }

    /// Returns the latest run of a part.
    pub(crate) fn row(&self, part: &str) -> Option<&Row> {
        self.0.iter().find(|row| row.part == part)
    }

    /// Replaces the earlier run of the same part.
    pub(crate) fn put(&mut self, row: Row) {
        self.0.retain(|earlier| earlier.part != row.part);
        self.0.push(row);
    }

    /// Formats the page, with a row for each of `parts`.
    pub(crate) fn markdown<'a>(&self, parts: impl IntoIterator<Item = &'a Part>) -> String {
        let mut text = String::from(
            "# The last run of `make proof`\n\n\
             Each part with its latest run: the commit (`+`: with other sources than the commit's), the date, how long it\n\
             took and what it came to. Written by `cargo xtask proof --keep`; `cargo xtask proof PART` runs a part again.\n\n\
             | part | what it shows | commit | date | seconds | result |\n|---|---|---|---|--:|---|\n",
        );
        for part in parts {
            let _ = match self.row(part.name) {
                Some(Row { commit, date, seconds, result, .. }) => writeln!(
                    text,
                    "| {} | {} | {commit} | {date} | {seconds} | {} |",
                    part.name,
                    part.about,
                    result.replace('|', "/")
                ),
                None => writeln!(text, "| {} | {} | | | | not run |", part.name, part.about),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::Outcome;

    fn row(part: &str, commit: &str, result: &str) -> Row {
        Row { part: part.into(), commit: commit.into(), date: "2026-01-02".into(), seconds: 7, result: result.into() }
    }

    #[test]
    fn keeps_the_latest_run_of_each_part() {
        let mut table = Table::default();
        table.put(row("loom", "aaa", "failed: 1 of 2: x"));
        table.put(row("docs", "aaa", "passed: 1"));
        table.put(row("loom", "bbb", "passed: 2"));
        let table = Table::parse(&table.text());
        assert_eq!(table.0, [row("docs", "aaa", "passed: 1"), row("loom", "bbb", "passed: 2")]);
        let part = |name| Part { name, about: "it", run: |_| Outcome::skipped() };
        let page = table.markdown(&[part("loom"), part("miri")]);
        assert!(
            page.contains("| loom | it | bbb | 2026-01-02 | 7 | passed: 2 |\n| miri | it | | | | not run |"),
            "{page}"
        );
    }

    #[test]
    fn repeats_failed_parts_and_those_of_other_sources() {
        let holds = |row: Row, commit| row.holds_for(commit, |_| false);
        assert!(holds(row("a", "c", "passed: 1"), "c") && holds(row("a", "c", "passed: 1, 2 skipped"), "c"));
        assert!(!holds(row("a", "c", "failed: 1"), "c") && !holds(row("a", "b", "passed: 1"), "c"));
        assert!(!holds(row("a", "c+", "passed: 1"), "c+"));
        assert!(!holds(row("a", "c", "skipped: no QEMU"), "c"), "it may be there by now");
    }

    #[test]
    fn repeats_parts_with_other_settings() {
        let row = row("soak", "c", "passed: 1, 2 skipped, SECONDS=5, debug build");
        assert!(row.holds_for("c", |setting| ["SECONDS=5", "debug build"].contains(&setting)));
        assert!(!row.holds_for("c", |setting| setting == "debug build"), "the next run is not as short");
    }
}
