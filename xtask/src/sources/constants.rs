//! Under preload, libc's functions are the library's own symbols. Code that runs there must not
//! call functions of the crate `libc`, and may only use its constants and types.

use super::files::Files;

const FOLDERS: [&str; 1] = ["crates/fs-carrier/src/"];

/// Returns lines that name a lower-case item of `libc`, except types under another name
/// (`libc::sockaddr as Address`).
pub(super) fn functions_of_libc(files: &Files) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| FOLDERS.iter().any(|folder| path.starts_with(folder))) {
        for (number, line) in (1..).zip(text.lines()) {
            if !line.contains(" as ") && names(line).any(|name| name.starts_with(|first: char| first.is_lowercase())) {
                broken.push(format!("{path}:{number}: not a constant of libc: {}", line.trim()));
            }
        }
    }
    broken
}

/// Returns what a line uses from libc: `libc::NAME`, `libc::{NAME, NAME}`.
fn names(line: &str) -> impl Iterator<Item = &str> {
    line.split("libc::").skip(1).flat_map(|rest| {
        let list = rest.strip_prefix('{').map(|list| list.split('}').next().unwrap_or_default());
        list.unwrap_or(rest).split(',').map(str::trim_start).take(if list.is_some() { usize::MAX } else { 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_functions() {
        let files = Files::of(&[
            ("crates/fs-carrier/src/a.rs", "use libc::{AF_INET, sockaddr_in as Address};\nlet x = libc::AF_INET;\n"),
            ("crates/fs-carrier/src/b.rs", "use libc::{AF_INET, poll};\n"),
            ("crates/fs-carrier/src/c.rs", "let x = libc::AF_INET;\nlibc::read(0)\n"),
            ("crates/fs-xdp/src/d.rs", "libc::read(0)\n"),
        ]);
        assert_eq!(
            functions_of_libc(&files),
            [
                "crates/fs-carrier/src/b.rs:1: not a constant of libc: use libc::{AF_INET, poll};",
                "crates/fs-carrier/src/c.rs:2: not a constant of libc: libc::read(0)"
            ]
        );
    }
}
