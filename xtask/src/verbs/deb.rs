//! `cargo xtask deb`: builds Debian packages in target/debian with cargo-deb. `--test` also tests
//! them in clean roots of Debian 12 and 13.

use crate::run::{root, target};
use crate::tools::{Arguments, cargo, release, succeeds};
use std::fs;
use std::path::Path;
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
    let extra = target().join("release/packaging");
    let program = release("fastsock");
    let told = |error| format!("{}: {error}", extra.display());
    let _ = fs::remove_dir_all(&extra);
    fs::create_dir_all(extra.join("man")).map_err(told)?;
    fs::create_dir_all(extra.join("completions")).map_err(told)?;
    must(Command::new(&program).args(["man", "--to"]).arg(extra.join("man")))?;
    for page in fs::read_dir(root().join("packaging/man")).map_err(told)?.flatten() {
        fs::copy(page.path(), extra.join("man").join(page.file_name())).map_err(told)?;
    }
    must(Command::new("sh").args(["-c", "gzip -9n \"$0\"/*.[157]"]).arg(extra.join("man")))?;
    documents(&extra.join("doc")).map_err(told)?;
    must(
        Command::new("sh")
            .args(["-c", "gzip -9nc CHANGELOG.md >\"$0\"/doc/changelog.gz"])
            .arg(&extra)
            .current_dir(root()),
    )?;
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

/// Documents of the packages. A link to one that is not there names the file in the source tree instead.
const DOCUMENTS: [&str; 7] = [
    "README.md",
    "SECURITY.md",
    "docs/COMPATIBILITY.md",
    "docs/COUNTERS.md",
    "docs/LIMITS.md",
    "docs/OPERATING.md",
    "docs/TASKS.md",
];

/// Copies the documents into one folder.
fn documents(folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    for document in DOCUMENTS {
        let text = fs::read_to_string(root().join(document))?;
        let name = document.rsplit('/').next().unwrap_or(document);
        fs::write(folder.join(name), without_dead_links(&text))?;
    }
    Ok(())
}

/// Replaces `[text](FILE#place)` by the text, and the file's name if that is not the text, unless the file is a shipped document.
fn without_dead_links(text: &str) -> String {
    let shipped = |target: &str| DOCUMENTS.iter().find(|document| document.rsplit('/').next() == Some(target));
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("](") {
        let Some(length) = rest[at..].find(')') else { break };
        let target = &rest[at + 2..at + length];
        let (file, place) = target.split_once('#').map_or((target, None), |(file, place)| (file, Some(place)));
        let name = file.rsplit('/').next().unwrap_or(file);
        let begin = rest[..at].rfind('[');
        match begin {
            _ if target.starts_with("http") || file.is_empty() => out.push_str(&rest[..=at + length]),
            _ if shipped(name).is_some() => {
                out.push_str(&rest[..at + 2]);
                out.push_str(name);
                place.iter().for_each(|place| out.extend(["#", place]));
                out.push(')');
            }
            Some(begin) => {
                let label = &rest[begin + 1..at];
                out.push_str(&rest[..begin]);
                out.push_str(label);
                if !label.contains(name) {
                    out.extend([" (", file.trim_start_matches("../"), " in the sources)"]);
                }
            }
            None => out.push_str(&rest[..=at + length]),
        }
        rest = &rest[at + length + 1..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_shipped_documents_lead_somewhere() {
        let text = "a [b](OPERATING.md#watch), [PRELOAD.md](PRELOAD.md), [c](../crates/x) [d](#e) [f](docs/TASKS.md) [g](https://h)";
        let expected =
            "a [b](OPERATING.md#watch), PRELOAD.md, c (crates/x in the sources) [d](#e) [f](TASKS.md) [g](https://h)";
        assert_eq!(without_dead_links(text), expected);
        for document in DOCUMENTS {
            let text = without_dead_links(&fs::read_to_string(root().join(document)).unwrap());
            for (at, _) in text.match_indices("](") {
                let target = text[at + 2..].split([')', '#']).next().unwrap();
                let is_there = DOCUMENTS.iter().any(|document| document.rsplit('/').next() == Some(target));
                assert!(is_there || target.is_empty() || target.starts_with("http"), "{document}: {target}");
            }
        }
    }
}
