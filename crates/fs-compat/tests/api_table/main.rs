//! docs/API.md says where our methods differ from those of tokio's sockets; `methods.txt` lists all of
//! ours. `WRITE_API_TABLE=1` writes both. The test fails if one is out of date, or a method is missing
//! without a reason.
//!
//! It reads the crates' sources without a parser, relying on rustfmt: an `impl` starts and ends in
//! column 0, and its methods are indented by 4, or by 8 within a macro.

mod signature;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const CONNECTION: &str = "the kernel has no call to export or import a connection's sequence numbers, windows and data in \
     flight: `connect`, or `accept`; for a descriptor use `fastsock::blocking::TcpStream`, which is std's";
const LISTENER: &str = "a listener of std has only the kernel's queue, and this one also has the cores': \
     `bind` to its address; for a descriptor use `fastsock::blocking::TcpListener`, which is std's";
const ON_A_CORE: &str = "on a core: `fastsock::local::TcpStream` has it for connections that the kernel carries; \
     for a descriptor use `fastsock::blocking::TcpStream`, which is std's";
const ALL_CORES: &str =
    "each core must bind its socket, which is an async call: `bind`; on a core `fastsock::local::UdpSocket::from_std`";

/// Type (of `net`: with its module's name), method, and why it is missing.
const MISSING: &[(&str, &str, &str)] = &[
    ("TcpListener", "into_std", LISTENER),
    ("TcpSocket", "from_std_stream", CONNECTION),
    ("net::TcpStream", "from_std", ON_A_CORE),
    ("net::TcpStream", "into_std", ON_A_CORE),
    ("net::TcpListener", "from_std", LISTENER),
    ("net::TcpListener", "into_std", LISTENER),
    ("net::UdpSocket", "from_std", ALL_CORES),
];

/// Type, crate, the crate's files, our folder.
const TYPES: &[(&str, &str, &[&str], &str)] = &[
    ("TcpStream", "tokio", &["src/net/tcp/stream.rs"], "local"),
    ("TcpListener", "tokio", &["src/net/tcp/listener.rs"], "local"),
    ("TcpSocket", "tokio", &["src/net/tcp/socket.rs"], "local"),
    ("UdpSocket", "tokio", &["src/net/udp.rs"], "local"),
    ("ReadHalf", "tokio", &["src/net/tcp/split.rs"], "local"),
    ("WriteHalf", "tokio", &["src/net/tcp/split.rs"], "local"),
    ("OwnedReadHalf", "tokio", &["src/net/tcp/split_owned.rs"], "local"),
    ("OwnedWriteHalf", "tokio", &["src/net/tcp/split_owned.rs"], "local"),
    ("TcpStream", "tokio", &["src/net/tcp/stream.rs"], "net"),
    ("TcpListener", "tokio", &["src/net/tcp/listener.rs"], "net"),
    ("UdpSocket", "tokio", &["src/net/udp.rs"], "net"),
    ("ReadHalf", "tokio", &["src/net/tcp/split.rs"], "net"),
    ("WriteHalf", "tokio", &["src/net/tcp/split.rs"], "net"),
    ("OwnedReadHalf", "tokio", &["src/net/tcp/split_owned.rs"], "net"),
    ("OwnedWriteHalf", "tokio", &["src/net/tcp/split_owned.rs"], "net"),
];

/// If a type has fewer methods than this, the sources were not understood.
const FEWEST: usize = 6;

#[test]
fn table_is_current_and_missing_methods_have_reasons() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let peers = peers(here);
    let mut wrong = String::new();
    let (mut table, mut only_here, mut all) = (String::new(), String::new(), String::new());
    for (name, peer, files, folder) in TYPES {
        let (version, root) = &peers[*peer];
        let theirs: BTreeMap<String, String> = files.iter().flat_map(|file| methods(&root.join(file), name)).collect();
        assert!(theirs.len() >= FEWEST, "{peer} {version}: {name} has only {theirs:?}");
        let ours: BTreeMap<String, String> =
            rust_files(&here.join("src").join(folder)).iter().flat_map(|file| methods(file, name)).collect();
        let key = if *folder == "net" { format!("net::{name}") } else { (*name).to_owned() };
        let reason = |method: &str| MISSING.iter().find(|(of, m, _)| *of == key && *m == method).map(|(.., why)| *why);
        let missing: BTreeSet<&String> = theirs.keys().filter(|method| !ours.contains_key(*method)).collect();
        let own: Vec<_> =
            ours.keys().filter(|method| !theirs.contains_key(*method)).map(|method| format!("`{method}`")).collect();
        for (method, theirs) in &theirs {
            if let Some(ours) = ours.get(method).filter(|ours| *ours != theirs) {
                writeln!(wrong, "{key}::{method} is {ours}, but {peer}'s is {theirs}").unwrap();
            }
        }
        let mut rows: Vec<(&str, String)> = Vec::new();
        for method in theirs.keys() {
            match (missing.contains(method), reason(method)) {
                (false, None) => {}
                (true, Some(why)) => match rows.last_mut() {
                    Some((last, methods)) if *last == why => write!(methods, ", `{method}`").unwrap(),
                    _ => rows.push((why, format!("`{method}`"))),
                },
                (true, None) => writeln!(wrong, "{key}::{method} is missing without a reason").unwrap(),
                (false, Some(_)) => writeln!(wrong, "{key}::{method} is here, but is listed as missing").unwrap(),
            }
        }
        for (why, methods) in rows {
            writeln!(table, "| `{folder}::{name}` | {methods} | {why} |").unwrap();
        }
        if !own.is_empty() {
            only_here += &item(&format!("`{folder}::{name}`: {}", own.join(", ")));
        }
        ours.keys().for_each(|method| writeln!(all, "{folder}::{name}::{method}").unwrap());
        for (_, method, _) in MISSING.iter().filter(|(of, m, _)| *of == key && !theirs.contains_key(*m)) {
            writeln!(wrong, "{key}::{method} is listed as missing, but {peer} does not have it").unwrap();
        }
    }
    let version = &peers["tokio"].0;
    let page = format!(
        "# Methods compared with tokio\n\n\
         The sockets of `local` (on a core) and `net` (any thread) have tokio {version}'s methods, with the\n\
         same signatures, except these. `net` has no `TcpSocket`. No type has a descriptor (`AsFd`, `TryFrom`\n\
         of std's types): options that programs set through `socket2::SockRef` are methods here, such as\n\
         `set_keepalive`.\n\n\
         | type | method | why it is missing, and what to use |\n|---|---|---|\n{table}\n\
         ## Methods that tokio does not have\n\n{only_here}\n\
         `WRITE_API_TABLE=1 cargo test -p fs-compat --test api_table` writes this page from the sources of\n\
         the crates that this tree is built with, and a list of all methods (`methods.txt` next to the test).\n\
         The test fails if one of them is out of date, or if a method's signature differs from tokio's.\n\
         Names of parameters may differ.\n",
    );
    for (file, text) in [("../../docs/API.md", page), ("tests/api_table/methods.txt", all)] {
        let path = here.join(file);
        if std::env::var_os("WRITE_API_TABLE").is_some() {
            std::fs::write(&path, &text).unwrap();
        } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
            writeln!(wrong, "{file} is out of date: WRITE_API_TABLE=1 cargo test -p fs-compat --test api_table")
                .unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Formats an item of a list, wrapped at 100 columns.
fn item(text: &str) -> String {
    let mut lines = vec![String::from("-")];
    for word in text.split(' ') {
        if lines.last().expect("the first line").len() + 1 + word.len() > 100 {
            lines.push(String::from(" "));
        }
        let line = lines.last_mut().expect("the first line");
        line.push(' ');
        line.push_str(word);
    }
    lines.join("\n") + "\n"
}

/// Returns version and folder of the crates that this build uses.
fn peers(here: &Path) -> BTreeMap<String, (String, PathBuf)> {
    // Not `--offline`: a fresh machine has only the crates that this build needed, not those of
    // other workspace members.
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(here)
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata's JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let known = packages.iter().map(|package| {
        let text = |key: &str| package[key].as_str().expect("a string").to_owned();
        let root = Path::new(&text("manifest_path")).parent().expect("a folder").to_owned();
        (text("name"), (text("version"), root))
    });
    known.filter(|(name, _)| name == "tokio").collect()
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("our sources").map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let own = files.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "rs"));
    own.chain(folders.iter().flat_map(|folder| rust_files(folder))).collect()
}

/// Returns the public methods of `name` in a file, with their signatures.
fn methods(path: &Path, name: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut found = Vec::new();
    // The current line belongs to an `impl` of this type, or to a list of options from which a
    // macro makes methods.
    let (mut within, mut listed) = (false, false);
    // The end of the names of the types for which the current macro is called.
    let mut of_macro = "no type";
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let impl_of = line.trim_start().strip_prefix("impl ").and_then(|rest| rest.strip_suffix(" {"));
        match impl_of {
            Some(of) if !line.starts_with(' ') => {
                let of = of.strip_suffix("<'_>").unwrap_or(of);
                within = of == name || of == format!("crate::{name}");
            }
            // One of our macros, called for both types.
            Some("$socket") => within = matches!(name, "TcpStream" | "TcpSocket"),
            Some("$half") => within = name.ends_with(of_macro),
            _ => {}
        }
        if let Some(called) = line.strip_prefix("macro_rules! ") {
            of_macro = match called {
                "both_halves {" => "Half",
                "read_half {" => "ReadHalf",
                "write_half {" => "WriteHalf",
                _ => "no type",
            };
        }
        if line == "options! {" {
            listed = matches!(name, "TcpStream" | "TcpSocket");
        } else if line == "}" {
            (within, listed) = (false, false);
        }
        let words = line.trim_start();
        if listed && !words.starts_with('/') {
            found.extend(listed_options(words));
        }
        let Some(rest) = words.strip_prefix("pub ").filter(|_| within) else { continue };
        let Some(at) = rest
            .find("fn ")
            .filter(|&at| rest[..at].split(' ').all(|w| matches!(w, "" | "const" | "async" | "unsafe")))
        else {
            continue;
        };
        let method = rest[at + 3..].split(['(', '<']).next().unwrap_or_default().to_owned();
        // Up to the body. A signature of several lines ends with `{` on its own line.
        let mut whole = rest.to_owned();
        while !whole.contains('{') {
            let Some(next) = lines.next() else { break };
            whole.push(' ');
            whole.push_str(next.trim());
        }
        let signature = whole.split('{').next().and_then(|text| signature::of_method(text.trim(), name));
        found.push((method, signature.unwrap_or_else(|| panic!("{}: {whole}", path.display()))));
    }
    found
}

/// Parses `get, set, field: Type;` or `get, set: Type = LEVEL, NAME;`.
fn listed_options(line: &str) -> Vec<(String, String)> {
    let Some((names, rest)) = line.split_once(':') else { return Vec::new() };
    let kind = rest.split([';', '=']).next().unwrap_or_default().trim();
    let names = names.split(',').map(str::trim).take(2).enumerate().filter(|(_, name)| is_name(name));
    names.map(|(at, name)| (name.to_owned(), signature::of_option(kind, at == 1))).collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}
