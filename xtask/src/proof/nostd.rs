//! fs-core needs no std: it is built for a bare-metal target if rustup has one, else with a system
//! root that has core and alloc but no std.

use super::commands::host;
use crate::part::Outcome;
use crate::run::{Run, target};
use crate::tools::{cargo, output_of};
use std::fs;
use std::path::Path;
use std::process::Command;

const BARE: &str = "x86_64-unknown-none";
const CRATES: [&str; 5] =
    ["core", "alloc", "compiler_builtins", "rustc_std_workspace_core", "rustc_std_workspace_alloc"];

/// Builds the engine without std.
pub(super) fn nostd(run: &mut Run) -> Outcome {
    let installed = output_of(Command::new("rustup").args(["target", "list", "--installed"])).unwrap_or_default();
    if installed.lines().any(|line| line == BARE) {
        let passed = run.succeeds(&mut cargo(&["build", "-p", "fs-core", "--target", BARE]), 1800);
        return Outcome::one(run.name(), passed);
    }
    // A fixed path, because cargo rebuilds everything if the flags change.
    let work = target().join("proof/nostd");
    let root = work.join("sysroot");
    if let Err(error) = bare_root(&root) {
        run.note(&format!("{}: {error}", root.display()));
        return Outcome::one(run.name(), false);
    }
    // Checks that the root has no std: a crate that uses std must fail to compile with it.
    let uses_std = root.join("uses_std.rs");
    let written = fs::write(&uses_std, "pub fn f() -> std::string::String { std::string::String::new() }\n");
    let mut rustc = Command::new("rustc");
    rustc
        .arg("--sysroot")
        .arg(&root)
        .args(["--target", &host(), "--crate-type", "rlib", "-o"])
        .arg(root.join("x.rlib"));
    if written.is_err() || run.succeeds(rustc.arg(&uses_std), 60) {
        run.note("the bare system root has a std");
        return Outcome::one(run.name(), false);
    }
    // An explicit target keeps the flags away from build scripts and procedural macros, which need
    // std.
    let mut build = cargo(&["build", "-p", "fs-core", "--target", &host()]);
    build.env("CARGO_TARGET_DIR", &work).env("RUSTFLAGS", format!("--sysroot {}", root.display()));
    Outcome::one(run.name(), run.succeeds(&mut build, 1800))
}

fn bare_root(root: &Path) -> std::io::Result<()> {
    let _ = fs::remove_dir_all(root);
    let bare = root.join("lib/rustlib").join(host()).join("lib");
    fs::create_dir_all(&bare)?;
    let libraries = output_of(Command::new("rustc").args(["--print", "target-libdir"])).unwrap_or_default();
    for file in fs::read_dir(libraries.trim())?.flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let is_wanted = |library: &str| name.starts_with(&format!("lib{library}-"));
        if (name.ends_with(".rlib") || name.ends_with(".rmeta")) && CRATES.iter().any(|library| is_wanted(library)) {
            fs::copy(file.path(), bare.join(name))?;
        }
    }
    Ok(())
}
