//! Circles of modules that import each other: none of them can be read, tested or moved alone.

use super::files::Files;
use super::imports::Imports;
use std::collections::BTreeSet;

/// Crates without circles, which must stay so. `cargo xtask tree CRATE` lists the circles of
/// others.
const FREE: [&str; 29] = [
    "benches",
    "benches/experiments",
    "benches/memory",
    "benches/organisations",
    "benches/tools/loadgen",
    "fastsock",
    "fastsock-macros",
    "fs-carrier",
    "fs-cli",
    "fs-compat",
    "fs-broker",
    "fs-core",
    "fs-daemon",
    "fs-differ",
    "fs-fuzz",
    "fs-models",
    "fs-pairs",
    "fs-pkt",
    "fs-prefetch",
    "fs-preload",
    "fs-probe",
    "fs-proxy",
    "fs-relay",
    "fs-rt",
    "fs-sim",
    "fs-splice",
    "fs-stacks",
    "fs-xdp",
    "xtask",
];

/// Returns the circles in these crates.
pub(super) fn in_free_crates(files: &Files) -> Vec<String> {
    let circles_of = |name| {
        let imports = Imports::of(&files.of_crate(name));
        circles(&imports).iter().map(|circle| format!("{name}: {}", circle.join(", "))).collect::<Vec<_>>()
    };
    FREE.into_iter().flat_map(circles_of).collect()
}

/// Returns groups of modules in which each reaches every other one, the largest group first.
pub(crate) fn circles(imports: &Imports) -> Vec<Vec<&str>> {
    let reach = |from: &str| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(module) = left.pop() {
            for next in imports.0.get(&module).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    left.push(next.clone());
                }
            }
        }
        seen
    };
    let reached: Vec<(&str, BTreeSet<String>)> =
        imports.0.keys().map(|module| (module.as_str(), reach(module))).collect();
    let mut groups: Vec<Vec<&str>> = Vec::new();
    for (module, theirs) in reached.iter().filter(|(module, theirs)| theirs.contains(*module)) {
        if groups.iter().any(|group| group.contains(module)) {
            continue;
        }
        let back = |(other, others): &&(&str, BTreeSet<String>)| theirs.contains(*other) && others.contains(*module);
        groups.push(reached.iter().filter(back).map(|(other, _)| *other).collect());
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_circle_in_a_crate_without() {
        let files = Files::of(&[
            ("crates/fs-core/src/a.rs", "use crate::b::X;"),
            ("crates/fs-core/src/b.rs", "use crate::a::X;"),
            ("crates/fs-core/src/a/tests.rs", "use crate::a::X;"),
        ]);
        assert_eq!(in_free_crates(&files), ["fs-core: a, b"]);
    }

    #[test]
    fn finds_indirect_circles() {
        let sources = [
            ("a.rs", "use crate::b::X;"),
            ("b.rs", "use crate::c::X;"),
            ("c.rs", "use crate::a::X;"),
            ("d.rs", "use crate::a::X;"),
            ("e.rs", "use crate::f::X;"),
            ("f.rs", "use crate::e::X;"),
        ];
        assert_eq!(circles(&Imports::of(&sources)), [vec!["a", "b", "c"], vec!["e", "f"]]);
        assert!(circles(&Imports::of(&sources[..2])).is_empty());
    }
}
