//! Unsafe code's fence. The lint `unsafe_code` is denied in the whole workspace; this rule says where it may be allowed again.
//! `clippy::undocumented_unsafe_blocks` asks each block for its `// SAFETY:`.

use super::files::Files;

/// Places outside of `sys/` and `*_unsafe.rs` that allow unsafe code.
pub(super) fn opened_elsewhere(files: &Files) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let fenced = path.ends_with("_unsafe.rs") || path.split('/').any(|folder| folder == "sys");
        for (number, line) in (1..).zip(text.lines()) {
            let attribute = line.trim_start().starts_with("#[") || line.trim_start().starts_with("#![");
            let opens = line.contains("allow(unsafe_code")
                || line.contains("expect(unsafe_code")
                || line.contains("warn(unsafe_code");
            if attribute && opens && !fenced {
                broken.push(format!("{path}:{number}: unsafe code is allowed in sys/ and *_unsafe.rs only"));
            }
        }
    }
    broken
}

/// Packages that do not take the workspace's lints: `unsafe_code` would not be denied there. Projects of their own (`[workspace]`)
/// have none to take.
pub(super) fn manifests_without_lints(files: &Files) -> Vec<String> {
    files
        .iter()
        .filter(|(path, text)| path.ends_with("Cargo.toml") && !text.lines().any(|line| line.starts_with("[workspace")))
        .filter(|(_, text)| !text.contains("[lints]\nworkspace = true"))
        .map(|(path, _)| format!("{path}: no [lints] workspace = true"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allows_unsafe_code_behind_the_fence_only() {
        let allow = "//! Calls.\n#![allow(unsafe_code)]\n";
        let files = Files::of(&[
            ("crates/a/src/sys/mod.rs", allow),
            ("crates/a/src/ring_unsafe.rs", allow),
            ("crates/a/src/lib.rs", "#![forbid(unsafe_code)]\n"),
            ("crates/a/src/ring.rs", allow),
            ("tests/tests/x.rs", "    #[expect(unsafe_code, reason = \"r\")]\n"),
        ]);
        assert_eq!(
            opened_elsewhere(&files),
            [
                "crates/a/src/ring.rs:2: unsafe code is allowed in sys/ and *_unsafe.rs only",
                "tests/tests/x.rs:1: unsafe code is allowed in sys/ and *_unsafe.rs only"
            ]
        );
    }

    #[test]
    fn asks_each_package_for_the_lints() {
        let files = Files::of(&[
            ("Cargo.toml", "[workspace]\n"),
            ("fuzz/Cargo.toml", "[package]\n[workspace]\n"),
            ("crates/a/Cargo.toml", "[package]\n\n[lints]\nworkspace = true\n"),
            ("crates/b/Cargo.toml", "[package]\n"),
        ]);
        assert_eq!(manifests_without_lints(&files), ["crates/b/Cargo.toml: no [lints] workspace = true"]);
    }
}
