//! `cargo xtask sources`: rules about sources and documents that no compiler or linter checks, one
//! module each.

pub(crate) mod circles;
mod constants;
mod fence;
mod files;
pub(crate) mod imports;
mod links;
mod merges;
mod parts_table;
mod scripts;
mod walks;

pub(crate) use files::{Files, without_tests};

use crate::run::root;

/// A rule: returns a line for each violation.
type Rule = fn(&Files) -> Vec<String>;

const RULES: [(&str, Rule); 9] = [
    ("undecided merges", merges::undecided),
    ("unsafe code's fence", fence::opened_elsewhere),
    ("lints", fence::manifests_without_lints),
    ("constants of libc", constants::functions_of_libc),
    ("circles", circles::in_free_crates),
    ("parts", parts_table::broken),
    ("walks", walks::broken),
    ("links", links::dead),
    ("shellcheck", scripts::shellcheck),
];

/// Prints all violations. `Ok(true)` if there are none.
pub(crate) fn sources() -> Result<bool, String> {
    let files = Files::read(root())?;
    let mut good = true;
    for (name, rule) in RULES {
        let broken = rule(&files);
        good &= broken.is_empty();
        broken.iter().for_each(|line| println!("{name}: {line}"));
    }
    println!("{} files, {} rules: {}", files.len(), RULES.len(), if good { "good" } else { "broken" });
    Ok(good)
}
