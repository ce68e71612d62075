//! `cargo xtask tree [CRATE…]`: the size of a crate's modules, and which of them import each other
//! in a circle.

use crate::run::root;
use crate::sources::Files;
use crate::sources::circles::circles;
use crate::sources::imports::Imports;

/// Number of lines of each list.
const LIST_LEN: usize = 8;

/// Prints sizes and circles of the named crates, or of those of the data path. Ignores tests.
pub(crate) fn tree(names: &[String]) -> Result<bool, String> {
    let files = Files::read(root())?;
    let default: Vec<String> = ["fs-core", "fs-xdp", "fs-rt"].map(String::from).into();
    for name in if names.is_empty() { &default } else { names } {
        let sources = files.of_crate(name);
        if sources.is_empty() {
            return Err(format!("no crate {name}"));
        }
        let sizes = Sizes::of(&sources);
        println!(
            "{name}: {} files, {} lines",
            sizes.files.len(),
            sizes.files.iter().map(|(lines, _)| lines).sum::<usize>()
        );
        print_largest("largest files", sizes.files);
        print_largest("longest functions", sizes.functions);
        print_largest("types by fields", sizes.types);
        let imports = Imports::of(&sources);
        let circles = circles(&imports);
        for circle in &circles {
            println!("  circle of {}: {}", circle.len(), circle.join(", "));
            for (from, to) in imports.pairs().filter(|(from, to)| circle.contains(from) && circle.contains(to)) {
                println!("    {from} imports {to}");
            }
        }
        if circles.is_empty() {
            println!("  no circles");
        }
    }
    Ok(true)
}

fn print_largest(what: &str, mut list: Vec<(usize, String)>) {
    list.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    println!("  {what}:");
    list.iter().take(LIST_LEN).for_each(|(size, name)| println!("    {size:>4}  {name}"));
}

/// Sizes, each with a name.
#[derive(Default)]
struct Sizes {
    files: Vec<(usize, String)>,
    functions: Vec<(usize, String)>,
    types: Vec<(usize, String)>,
}

impl Sizes {
    fn of(sources: &[(&str, &str)]) -> Self {
        let mut sizes = Self::default();
        for (file, text) in sources {
            sizes.read(file, text);
        }
        sizes
    }

    /// Relies on rustfmt's layout: a function or a type ends at the column where it started.
    fn read(&mut self, file: &str, text: &str) {
        let lines: Vec<&str> = crate::sources::without_tests(text).collect();
        self.files.push((lines.len(), file.into()));
        // The open item: its closing line, and where it started.
        let mut open: Option<(String, usize, bool)> = None;
        for (number, line) in lines.iter().enumerate() {
            if let Some((close, began, is_type)) = &open {
                if line.starts_with(close.as_str()) {
                    let inside = &lines[began + 1..number];
                    let name = format!("{file} {}", name_of(lines[*began]));
                    if *is_type {
                        let fields = inside.iter().filter(|line| is_field(line)).count();
                        self.types.push((fields, name));
                    } else {
                        self.functions.push((number - began + 1, name));
                    }
                    open = None;
                }
                continue;
            }
            let indent = line.len() - line.trim_start().len();
            let is_type = line.contains("struct ") && line.ends_with('{') && indent == 0;
            let is_function =
                line.contains("fn ") && !line.trim_start().starts_with("//") && !line.ends_with([';', '}']);
            if is_type || is_function {
                open = Some((" ".repeat(indent) + "}", number, is_type));
            }
        }
    }
}

fn name_of(line: &str) -> &str {
    let after = ["fn ", "struct "].iter().find_map(|word| Some(line.split_once(word)?.1)).unwrap_or(line);
    after.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
}

fn is_field(line: &str) -> bool {
    let indent = line.len() - line.trim_start().len();
    let code = line.trim_start();
    let name = if code.starts_with("pub") { code.rsplit_once("pub").map_or("", |(_, rest)| rest) } else { code };
    let name = name.split(") ").last().unwrap_or_default().trim_start();
    indent == 4 && name.split_once(':').is_some_and(|(name, _)| name.chars().all(|c| c.is_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_functions_and_types() {
        let text = "pub struct A {\n    pub(crate) x: u8,\n    // not: this\n    y: u8,\n}\n\nimpl A {\n    fn f(&self) {\n        if true {\n        }\n    }\n}\n\
            #[cfg(test)]\nmod tests {\n    fn g() {\n    }\n}\n";
        let sizes = Sizes::of(&[("a.rs", text)]);
        assert_eq!(sizes.files, [(12, "a.rs".into())]);
        assert_eq!(sizes.functions, [(4, "a.rs f".into())]);
        assert_eq!(sizes.types, [(2, "a.rs A".into())]);
    }
}
