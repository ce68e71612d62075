//! Unresolved merge conflicts, which no compiler finds in documents and scripts.

use super::files::Files;

/// Returns lines that start with conflict markers.
pub(super) fn undecided(files: &Files) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in files.iter() {
        for (number, line) in (1..).zip(text.lines()) {
            let mark = ["<", ">"].iter().find_map(|mark| line.strip_prefix(&mark.repeat(7)));
            if mark.is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')) {
                broken.push(format!("{path}:{number}: {line}"));
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_conflict_markers() {
        let page = format!("a\n{} HEAD\nb\n=======\nc\n{} branch\n{}\n", "<".repeat(7), ">".repeat(7), "<".repeat(8));
        let broken = undecided(&Files::of(&[("docs/a.md", &page), ("docs/b.md", "a << b\n")]));
        assert_eq!(
            broken,
            [format!("docs/a.md:2: {} HEAD", "<".repeat(7)), format!("docs/a.md:6: {} branch", ">".repeat(7))]
        );
    }
}
