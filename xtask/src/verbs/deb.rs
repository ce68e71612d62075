//! `cargo xtask deb`: builds Debian packages in target/debian with cargo-deb. `--test` also tests
//! them in clean roots of Debian 12 and 13.

use crate::run::{root, target};
use crate::tools::{Arguments, cargo, release, succeeds};
use std::fs;
use std::process::Command;

/// Builds `fastsock_*.deb` (daemon, library, program, units, manual pages, completions) and
/// `fastsock-dbgsym_*.deb`.
pub(crate) fn deb(given: &[String]) -> Result<bool, String> {
    let arguments = Arguments::split(given, &["--test"], &[])?;
    packages()?;
    Ok(!arguments.has("--test") || succeeds(Command::new(root().join("lab/deb-test")).args(arguments.names))?)
}

fn packages() -> Result<(), String> {
    let tools = target().join("tools/cargo-deb");
    let must = |command: &mut Command| match succeeds(command)? {
        true => Ok(()),
        false => Err(format!("failed: {command:?}")),
    };
    if !tools.join("bin/cargo-deb").exists() {
        must(cargo(&["install", "--quiet", "--locked", "--root"]).arg(&tools).arg("cargo-deb"))?;
    }
    must(&mut cargo(&["build", "--quiet", "--release", "-p", "fs-cli", "-p", "fs-preload"]))?;
    // Files of the packages that the program itself generates.
    let extra = target().join("packaging");
    let program = release("fastsock");
    let told = |error| format!("{}: {error}", extra.display());
    let _ = fs::remove_dir_all(&extra);
    fs::create_dir_all(extra.join("man")).map_err(told)?;
    fs::create_dir_all(extra.join("completions")).map_err(told)?;
    must(Command::new(&program).args(["man", "--to"]).arg(extra.join("man")))?;
    must(Command::new("sh").args(["-c", "gzip -9n \"$0\"/*.[17]"]).arg(extra.join("man")))?;
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(&program).args(["completions", shell]).output().map_err(|error| error.to_string())?;
        fs::write(extra.join("completions").join(shell), output.stdout).map_err(told)?;
    }
    let debian = target().join("debian");
    for old in fs::read_dir(&debian).into_iter().flatten().flatten() {
        let name = old.file_name().to_string_lossy().into_owned();
        if name.starts_with("fastsock") && name.ends_with("deb") {
            fs::remove_file(old.path()).map_err(told)?;
        }
    }
    must(Command::new(tools.join("bin/cargo-deb")).args(["--quiet", "--no-build", "--dbgsym", "-p", "fs-cli"]))?;
    // Debian has used this name for packages of symbols since 2015; `.ddeb` is Ubuntu's.
    for package in fs::read_dir(&debian).map_err(told)?.flatten() {
        if package.path().extension().is_some_and(|kind| kind == "ddeb") {
            fs::rename(package.path(), package.path().with_extension("deb")).map_err(told)?;
        }
        println!("{}", package.path().display());
    }
    Ok(())
}
