//! Each type that the facade exports has an example in its documentation, which rustdoc compiles.
//! If modules have types of the same name, such as the `TcpStream`s of `net` and `local`, each of
//! them has one. (Those of `blocking` and `socket2` are other crates'.)

use std::collections::BTreeMap;
use std::path::Path;

/// Of another crate, a value of `Builder`'s settings, whose methods say how, or a field's type.
const ELSEWHERE: [&str; 13] = [
    "ToSocketAddrs",
    "Ecn",
    "FastOpen",
    "Limits",
    "PortLease",
    "Secret",
    "TcpConfig",
    "CaState",
    "Cidr",
    "IfaceId",
    "Linger",
    "Share",
    "TcpState",
];

/// Collects each public type of the sources, and whether its comment has an example.
fn documented(folder: &Path, types: &mut BTreeMap<String, bool>) {
    for entry in std::fs::read_dir(folder).expect("our sources") {
        let path = entry.unwrap().path();
        if path.is_dir() {
            documented(&path, types);
            continue;
        }
        if path.extension().is_none_or(|kind| kind != "rs") {
            continue;
        }
        let mut example = false;
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            if let Some(name) = ["pub struct ", "pub enum "].iter().find_map(|kind| line.strip_prefix(kind)) {
                let end = name.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(name.len());
                *types.entry(name[..end].to_owned()).or_insert(true) &= example;
            }
            // The comment continues, or attributes follow it before the type.
            example = line.starts_with("/// ```") || example && line.starts_with(['/', '#']);
        }
    }
}

#[test]
fn each_type_has_an_example() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let facade = std::fs::read_to_string(here.join("src/lib.rs")).unwrap();
    // The two lists without features. Types behind features have examples in their crate.
    let lists = ["pub use fs_compat::{", "pub use fs_rt::{"]
        .map(|list| facade.split_once(list).and_then(|(_, rest)| rest.split_once('}')).expect("the facade's lists").0);
    let names: Vec<&str> = lists
        .iter()
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .filter(|name| name.starts_with(char::is_uppercase) && !ELSEWHERE.contains(name))
        .chain(["Background", "TcpListener", "TcpStream", "TcpSocket", "UdpSocket"])
        .chain(["ReadHalf", "WriteHalf", "OwnedReadHalf", "OwnedWriteHalf"])
        .collect();
    assert!(names.len() > 20, "{names:?}");
    let mut types = BTreeMap::new();
    for of in ["fs-core", "fs-rt", "fs-compat"] {
        documented(&here.join("..").join(of).join("src"), &mut types);
    }
    let without: Vec<&str> = names.into_iter().filter(|name| types.get(*name) != Some(&true)).collect();
    assert!(without.is_empty(), "without an example: {without:?}");
}

/// Collects lines of examples that name a crate which programs do not depend on.
fn inner_names(path: &Path, found: &mut Vec<String>) {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).unwrap();
        return entries.for_each(|entry| inner_names(&entry.unwrap().path(), found));
    }
    let page = path.extension().is_some_and(|kind| kind == "md");
    if !page && path.extension().is_none_or(|kind| kind != "rs") {
        return;
    }
    let mut example = false;
    for (number, line) in std::fs::read_to_string(path).unwrap().lines().enumerate() {
        let text = match page {
            true => Some(line),
            false => line.trim_start().strip_prefix("//").and_then(|line| line.strip_prefix(['/', '!'])),
        };
        let text = text.map(str::trim_start);
        example = match text {
            Some(fence) if fence.starts_with("```") => !example && (!page || fence.starts_with("```rust")),
            Some(text) => {
                if example && ["fs_core::", "fs_rt::", "fs_compat::", "fs_xdp::"].iter().any(|name| text.contains(name))
                {
                    found.push(format!("{}:{}: {text}", path.display(), number + 1));
                }
                example
            }
            None => false,
        };
    }
}

#[test]
fn examples_name_the_facade_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for of in ["crates/fastsock", "crates/fs-core/src", "crates/fs-rt/src", "crates/fs-compat/src", "README.md", "docs"]
    {
        inner_names(&root.join(of), &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}
