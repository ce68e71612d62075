//! The walks of ARCHITECTURE.md, tables of | step | file | function | …: each function is in its
//! file, no file occurs twice in a walk, and the file of an earlier step calls each step's
//! function, unless the application or the core's turn calls it.

use super::files::Files;

const PAGE: &str = "ARCHITECTURE.md";
/// Minimum number of walks on the page.
const WALKS: usize = 4;

/// Returns steps that do not match the sources.
pub(super) fn broken(files: &Files) -> Vec<String> {
    let mut broken = Vec::new();
    let (mut walks, mut walking) = (0, false);
    // Files of the walk's earlier steps: path, and text.
    let mut visited: Vec<(&str, &str)> = Vec::new();
    for (number, line) in (1..).zip(files.text(PAGE).unwrap_or_default().lines()) {
        if line.starts_with("| step | file | function |") {
            (walks, walking) = (walks + 1, true);
            visited.clear();
            continue;
        }
        walking &= line.starts_with('|');
        let cells: Vec<&str> = line.split('|').collect();
        if !walking || cells.len() < 5 || !cells[2].contains('`') {
            continue;
        }
        let (step, file, function) = (cells[1], cells[2].trim().trim_matches('`'), cells[3].trim().trim_matches('`'));
        let Some(text) = files.text(&format!("crates/{file}")) else {
            broken.push(format!("{PAGE}:{number}: {file} does not exist"));
            continue;
        };
        if !defines(text, function) {
            broken.push(format!("{PAGE}:{number}: no function {function} in {file}"));
        } else if visited.iter().any(|(earlier, _)| *earlier == file) {
            broken.push(format!("{PAGE}:{number}: {file} is visited twice in one walk"));
        } else if !visited.is_empty()
            && !step.contains("application's task")
            && !step.contains("core's turn")
            && !visited.iter().any(|(_, text)| calls(text, function))
        {
            broken.push(format!("{PAGE}:{number}: {function} is called by no file of an earlier step"));
        }
        visited.push((file, text));
    }
    if walks < WALKS {
        broken.push(format!("{PAGE}: {walks} walks, and there were {WALKS}"));
    }
    broken
}

/// Returns true if `text` defines the function: in Rust, or at the start of a line in C.
fn defines(text: &str, function: &str) -> bool {
    let rust = words(text, function).any(|at| text[..at].ends_with("fn "));
    rust || text
        .lines()
        .any(|line| line.starts_with(|c: char| c.is_ascii_lowercase()) && line.contains(&format!(" {function}(")))
}

/// Returns true if `text` calls the function, possibly with generics.
fn calls(text: &str, function: &str) -> bool {
    words(text, function).any(|at| {
        let after = &text[at + function.len()..];
        let after = after.strip_prefix("::<").and_then(|generic| Some(generic.split_once('>')?.1)).unwrap_or(after);
        after.starts_with('(')
    })
}

/// Returns the positions of `word` as a separate word.
fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| !text[..at].ends_with(is_name) && !text[at + word.len()..].starts_with(is_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "| step | file | function | owner |\n|---|---|---|---|\n";

    fn of(rows: &str, sources: &[(&str, &str)]) -> Vec<String> {
        let page = HEAD.to_owned() + rows + "\n" + &format!("{HEAD}\n").repeat(WALKS - 1);
        let mut files = vec![(PAGE, page.as_str())];
        files.extend(sources);
        broken(&Files::of(&files))
    }

    #[test]
    fn follows_calls() {
        let rows = "| 1. It comes | `x/a.c` | `steer` | |\n| 2. The core's turn | `x/b.rs` | `turn` | |\n| 3. Read | `x/c.rs` | `read` | |\n";
        let sources = [
            ("crates/x/a.c", "int steer(void)\n"),
            ("crates/x/b.rs", "fn turn() { read::<8>(1) }"),
            ("crates/x/c.rs", "pub fn read<const N: usize>() {}"),
        ];
        assert_eq!(of(rows, &sources), [""; 0]);
    }

    #[test]
    fn finds_each_wrong_step() {
        let rows = "| 1. a | `x/a.rs` | `a` | |\n| 2. b | `x/gone.rs` | `b` | |\n| 3. c | `x/c.rs` | `missing` | |\n\
            | 4. d | `x/d.rs` | `uncalled` | |\n| 5. a | `x/a.rs` | `a` | |\n";
        let sources =
            [("crates/x/a.rs", "fn a() { xuncalled() }"), ("crates/x/c.rs", ""), ("crates/x/d.rs", "fn uncalled() {}")];
        assert_eq!(
            of(rows, &sources),
            [
                "ARCHITECTURE.md:4: x/gone.rs does not exist",
                "ARCHITECTURE.md:5: no function missing in x/c.rs",
                "ARCHITECTURE.md:6: uncalled is called by no file of an earlier step",
                "ARCHITECTURE.md:7: x/a.rs is visited twice in one walk"
            ]
        );
        assert_eq!(broken(&Files::of(&[])), ["ARCHITECTURE.md: 0 walks, and there were 4"]);
    }
}
