//! `cargo xtask deb`: builds Debian packages in target/debian with cargo-deb. `--test` also tests
//! them in clean roots of Debian 12 and 13.

use crate::run::{root, target};
use crate::tools::{cargo, succeeds};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Options of `cargo xtask deb`.
#[derive(Debug, clap::Args)]
pub(crate) struct DebOptions {
    /// Also tests the packages in clean roots of these suites; by default Debian 12 and 13
    #[arg(long, value_name = "SUITE", num_args = 0..)]
    test: Option<Vec<String>>,
}

/// Builds `fastsock_*.deb` (daemon, library, program, units, manual pages, completions) and
/// `fastsock-dbgsym_*.deb`.
pub(crate) fn deb(options: &DebOptions) -> Result<bool, String> {
    packages()?;
    let Some(suites) = &options.test else { return Ok(true) };
    succeeds(Command::new(root().join("lab/deb-test")).args(suites))
}

/// A package: the crate whose Cargo.toml describes it, its folder in `target/release/packaging`,
/// and its documents.
struct Package {
    of: &'static str,
    folder: &'static str,
    documents: &'static [&'static str],
}

const PACKAGES: [Package; 2] = [
    Package {
        of: "fs-cli",
        folder: "",
        documents: &[
            "README.md",
            "docs/COMPATIBILITY.md",
            "docs/COUNTERS.md",
            "docs/GLOSSARY.md",
            "docs/LIMITS.md",
            "docs/LIMITS-REFERENCE.md",
            "docs/OPERATING.md",
            "docs/PLATFORMS.md",
            "docs/SECURITY.md",
            "docs/SHARED_DEVICE.md",
            "docs/TASKS.md",
        ],
    },
    Package { of: "fs-proxy", folder: "proxy", documents: &["docs/PROXY.md"] },
];

fn must(command: &mut Command) -> Result<(), String> {
    if succeeds(command)? { Ok(()) } else { Err(format!("failed: {command:?}")) }
}

fn packages() -> Result<(), String> {
    let tools = target().join("tools/cargo-deb");
    if !tools.join("bin/cargo-deb").exists() {
        must(cargo(&["install", "--quiet", "--locked", "--root"]).arg(&tools).arg("cargo-deb"))?;
    }
    must(&mut cargo(&["build", "--quiet", "--release", "-p", "fs-cli", "-p", "fs-preload", "-p", "fs-proxy"]))?;
    let extra = target().join("release/packaging");
    let told = |error| format!("{}: {error}", extra.display());
    let _ = fs::remove_dir_all(&extra);
    generated(&extra)?;
    for Package { folder, documents: names, .. } in PACKAGES {
        let folder = extra.join(folder);
        must(Command::new("sh").args(["-c", "gzip -9n \"$0\"/*.[1578]"]).arg(folder.join("man")))?;
        documents(names, &folder.join("doc")).map_err(told)?;
        let changelog = "gzip -9nc CHANGELOG.md >\"$0\"/doc/changelog.gz";
        must(Command::new("sh").args(["-c", changelog]).arg(&folder).current_dir(root()))?;
    }
    let debian = target().join("debian");
    for old in fs::read_dir(&debian).into_iter().flatten().flatten() {
        let name = old.file_name().to_string_lossy().into_owned();
        if name.starts_with("fastsock") && name.ends_with("deb") {
            fs::remove_file(old.path()).map_err(told)?;
        }
    }
    for Package { of, .. } in PACKAGES {
        must(Command::new(tools.join("bin/cargo-deb")).args(["--quiet", "--no-build", "--dbgsym", "-p", of]))?;
    }
    // Debian has used this name for packages of symbols since 2015; `.ddeb` is Ubuntu's.
    for package in fs::read_dir(&debian).map_err(told)?.flatten() {
        if package.path().extension().is_some_and(|kind| kind == "ddeb") {
            fs::rename(package.path(), package.path().with_extension("deb")).map_err(told)?;
        }
        println!("{}", package.path().display());
    }
    Ok(())
}

/// Writes manual pages and completions, most of which the programs generate from their own options.
fn generated(extra: &Path) -> Result<(), String> {
    let told = |error| format!("{}: {error}", extra.display());
    let program = target().join("release/fastsock");
    fs::create_dir_all(extra.join("completions")).map_err(told)?;
    must(Command::new(&program).args(["man", "--to"]).arg(extra.join("man")))?;
    for page in fs::read_dir(root().join("packaging/man")).map_err(told)?.flatten() {
        fs::copy(page.path(), extra.join("man").join(page.file_name())).map_err(told)?;
    }
    let proxy = ["run", "--quiet", "--release", "-p", "fs-proxy", "--example", "man", "--"];
    must(cargo(&proxy).arg(extra.join("proxy/man")))?;
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(&program).args(["completions", shell]).output().map_err(|error| error.to_string())?;
        fs::write(extra.join("completions").join(shell), output.stdout).map_err(told)?;
    }
    Ok(())
}

/// Copies a package's documents into one folder. A link to a document that is not there names the
/// file in the source tree instead.
fn documents(names: &[&str], folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    for document in names {
        let text = fs::read_to_string(root().join(document))?;
        let name = document.rsplit('/').next().unwrap_or(document);
        fs::write(folder.join(name), without_dead_links(names, document, &text))?;
    }
    Ok(())
}

/// Replaces each `[text](FILE#place)` of `document` by the text, and the file's path if that is not the
/// text, unless the file is one of `names`. Paths are relative to the document.
fn without_dead_links(names: &[&str], document: &str, text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("](") {
        let Some(length) = rest[at..].find(')') else { break };
        let target = &rest[at + 2..at + length];
        let (file, place) = target.split_once('#').map_or((target, None), |(file, place)| (file, Some(place)));
        let source = from_root(document, file);
        let name = source.rsplit('/').next().unwrap_or(file);
        let begin = rest[..at].rfind('[');
        match begin {
            _ if target.starts_with("http") || file.is_empty() => out.push_str(&rest[..=at + length]),
            _ if names.contains(&&*source) => {
                out.push_str(&rest[..at + 2]);
                out.push_str(name);
                place.iter().for_each(|place| out.extend(["#", place]));
                out.push(')');
            }
            Some(begin) => {
                let label = &rest[begin + 1..at];
                out.push_str(&rest[..begin]);
                out.push_str(label);
                // A document of that name may be there, and be another one.
                if !label.contains(name) || names.iter().any(|document| document.ends_with(&format!("/{name}"))) {
                    out.extend([" (", &source, " in the sources)"]);
                }
            }
            None => out.push_str(&rest[..=at + length]),
        }
        rest = &rest[at + length + 1..];
    }
    out + rest
}

/// Returns the path of a link's file from the root of the source tree.
fn from_root(document: &str, file: &str) -> String {
    let mut path: Vec<&str> = document.split('/').collect();
    path.pop();
    for part in file.split('/') {
        match part {
            ".." => drop(path.pop()),
            "." | "" => {}
            part => path.push(part),
        }
    }
    path.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_shipped_documents_lead_somewhere() {
        let text = "a [b](OPERATING.md#watch), [PRELOAD.md](PRELOAD.md), [c](../crates/x) [d](#e) [f](TASKS.md) [g](https://h) \
                    [SECURITY.md](SECURITY.md) [../SECURITY.md](../SECURITY.md)";
        let expected = "a [b](OPERATING.md#watch), PRELOAD.md, c (crates/x in the sources) [d](#e) [f](TASKS.md) [g](https://h) \
                        [SECURITY.md](SECURITY.md) ../SECURITY.md (SECURITY.md in the sources)";
        assert_eq!(without_dead_links(PACKAGES[0].documents, "docs/LIMITS.md", text), expected);
        let readme = without_dead_links(PACKAGES[0].documents, "README.md", "[a](SECURITY.md) [b](docs/SECURITY.md)");
        assert_eq!(readme, "a (SECURITY.md in the sources) [b](SECURITY.md)");
        for Package { documents, .. } in PACKAGES {
            for document in documents {
                let source = fs::read_to_string(root().join(document)).unwrap();
                let text = without_dead_links(documents, document, &source);
                // Each link that is left is one of the sources, to a document that is shipped.
                let sources: Vec<String> = links(&source).map(|file| from_root(document, file)).collect();
                for file in links(&text).filter(|file| !file.is_empty() && !file.starts_with("http")) {
                    let is_it = |shipped: &&&str| shipped.rsplit('/').next() == Some(file);
                    let shipped = documents.iter().find(is_it).unwrap_or_else(|| panic!("{document}: {file}"));
                    assert!(sources.iter().any(|source| source == shipped), "{document}: {file} is not {shipped}");
                }
            }
        }
        // The guides refer to its rows.
        assert!(PACKAGES[0].documents.contains(&"docs/SECURITY.md"));
        let rpm = fs::read_to_string(root().join("packaging/rpm/fastsock.spec")).unwrap();
        let pages = rpm.lines().find_map(|line| line.strip_prefix("for page in ")?.strip_suffix("; do")).unwrap();
        assert_eq!(pages.split(' ').collect::<Vec<_>>(), PACKAGES[0].documents);
    }

    /// A restart with a file that the new program refuses would end a service that works.
    #[test]
    fn rpm_checks_the_configuration_before_it_replaces_a_program() {
        let spec = fs::read_to_string(root().join("packaging/rpm/fastsock.spec")).unwrap();
        assert!(!spec.contains("_with_restart"));
        for (section, replaces) in [("\n%posttrans\n", "systemctl try-restart"), ("\n%posttrans proxy\n", "SIGUSR2")] {
            let script = spec.split_once(section).unwrap_or_else(|| panic!("{section}")).1;
            let script = script.split_once("\n%").unwrap().0;
            let reload = script.find("if systemctl reload").unwrap();
            assert!(reload < script.find(replaces).unwrap(), "{section}");
        }
    }

    /// A process from before SIGUSR2 writes lines too. If only the main process got the signal, they would go to the
    /// rotated file, and be lost when it is compressed.
    #[test]
    fn rotation_of_the_proxys_log_reaches_all_processes() {
        let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
        let text = read("packaging/proxy/logrotate");
        assert!(text.contains("\n\tnocreate\n") && text.contains("\n\tdelaycompress\n"), "{text}");
        assert!(!text.contains("systemctl reload") && !text.contains("kill-whom"), "{text}");
        let command = "systemctl kill --signal=SIGUSR1 fs-proxy";
        assert!(text.contains(command) && read("docs/PROXY.md").contains(command));
        for file in ["crates/fs-proxy/Cargo.toml", "packaging/rpm/fastsock.spec"] {
            let text = read(file);
            // It is installed, and a file of the administrator's.
            assert!(text.contains("packaging/proxy/logrotate"), "{file}");
            assert_eq!(text.matches("/logrotate.d/fs-proxy").count(), 2, "{file}");
        }
    }

    /// Returns the files that a text links to.
    fn links(text: &str) -> impl Iterator<Item = &str> {
        text.match_indices("](").map(|(at, _)| text[at + 2..].split([')', '#']).next().unwrap())
    }
}
