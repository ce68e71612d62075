//! The fence around unsafe code. The lint `unsafe_code` is denied in the whole workspace, and this
//! rule limits where it may be allowed. `clippy::undocumented_unsafe_blocks` requires a `//
//! SAFETY:` for each block.

use super::files::Files;

/// Returns places outside `sys/` and `*_unsafe.rs` that allow unsafe code.
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

/// Returns packages without the workspace's lints, in which `unsafe_code` would not be denied.
/// Separate projects (`[workspace]`) are exempt.
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
    fn requires_the_lints_in_each_package() {
        let files = Files::of(&[
            ("Cargo.toml", "[workspace]\n"),
            ("fuzz/Cargo.toml", "[package]\n[workspace]\n"),
            ("crates/a/Cargo.toml", "[package]\n\n[lints]\nworkspace = true\n"),
            ("crates/b/Cargo.toml", "[package]\n"),
        ]);
        assert_eq!(manifests_without_lints(&files), ["crates/b/Cargo.toml: no [lints] workspace = true"]);
    }
}
