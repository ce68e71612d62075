//! Shell scripts under shellcheck.

use super::files::Files;
use crate::run::root;
use std::process::Command;

/// Returns shellcheck's warnings.
pub(super) fn shellcheck(files: &Files) -> Vec<String> {
    let scripts: Vec<&str> = files.iter().filter(|(_, text)| is_script(text)).map(|(path, _)| path).collect();
    let output = Command::new("shellcheck")
        .args(["--severity=warning", "--format=gcc"])
        .args(&scripts)
        .current_dir(root())
        .output();
    match output {
        Ok(output) if output.status.success() => Vec::new(),
        Ok(output) => String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect(),
        Err(error) => vec![format!("cannot run shellcheck ({error}): lab/install test")],
    }
}

fn is_script(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    first.starts_with("#!") && (first.ends_with("sh") || first.ends_with("bash"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_a_script_by_its_first_line() {
        assert!(is_script("#!/bin/sh\n") && is_script("#!/usr/bin/env bash\nx"));
        assert!(!is_script("#!/usr/bin/python3\n") && !is_script("#![no_std]\n") && !is_script(""));
    }
}
