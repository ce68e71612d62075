//! The static tracepoints of crate fs-probe: their notes in this program, and hits that bpftrace
//! sees if it is installed and permitted.

mod common;

use common::{both, server};
use fs_compat::{TcpListener, TcpStream};
use std::collections::BTreeMap;
use std::process::Command;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Name, and number of arguments.
const PROBES: [(&str, usize); 7] = [
    ("closed", 5),
    ("drop", 2),
    ("established", 5),
    ("handover", 5),
    ("receive_reset", 4),
    ("retransmit", 6),
    ("send_reset", 4),
];

/// Returns the notes of provider `fastsock` in readelf's output: the number of arguments by name.
fn notes(text: &str) -> BTreeMap<String, usize> {
    let mut notes = BTreeMap::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if !line.ends_with("Provider: fastsock") {
            continue;
        }
        let mut said = |what: &str| {
            let line = lines.next().unwrap_or_default();
            line.strip_prefix(what).unwrap_or_else(|| panic!("not {what}: {line}")).trim().to_owned()
        };
        let name = said("Name:");
        let _addresses = said("Location:");
        let arguments = said("Arguments:").split_whitespace().count();
        assert_eq!(*notes.entry(name).or_insert(arguments), arguments, "one probe, other arguments");
    }
    notes
}

#[test]
fn every_probe_has_a_note() {
    let readelf = Command::new("readelf").args(["--notes", "--wide"]).arg(std::env::current_exe().unwrap()).output();
    let Ok(readelf) = readelf else {
        eprintln!("skipped: no readelf");
        return;
    };
    assert!(readelf.status.success());
    let notes = notes(&String::from_utf8_lossy(&readelf.stdout));
    assert_eq!(notes, PROBES.map(|(name, arguments)| (name.to_owned(), arguments)).into());
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/OPERATING.md")).unwrap();
    for (name, _) in PROBES {
        assert!(page.contains(&format!("\n| `{name}` |")), "docs/OPERATING.md says nothing of {name}");
    }
}

/// A connection that ends normally, and one that is refused.
#[test]
fn traced_connections() {
    both(
        |_| async {
            let listener = TcpListener::bind("0.0.0.0:7777").await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"seen").await.unwrap();
        },
        |_| async {
            let mut stream = TcpStream::connect(server(7777)).await.unwrap();
            let mut text = Vec::new();
            stream.read_to_end(&mut text).await.unwrap();
            assert_eq!(text, b"seen");
            TcpStream::connect(server(7)).await.unwrap_err();
        },
    );
}

#[test]
fn bpftrace_sees_the_probes() {
    let program = std::env::current_exe().unwrap();
    let at = |name: &str, action: &str| format!("usdt:{}:fastsock:{name} {{ {action} }}\n", program.display());
    let ends = r#"arg0, arg1, ntop(2, *(uint32 *)arg2), arg3"#;
    let script = [
        at("established", &format!(r#"printf("established %d %d %s %d %d\n", {ends}, arg4);"#)),
        at("closed", &format!(r#"printf("closed %d %d %s %d %d\n", {ends}, arg4);"#)),
        at("receive_reset", &format!(r#"printf("receive_reset %d %d %s %d\n", {ends});"#)),
        at("send_reset", &format!(r#"printf("send_reset %d %d %s %d\n", {ends});"#)),
        at("drop", r#"printf("drop %s\n", str(arg0, arg1));"#),
    ]
    .concat();
    // In a container tracing may be forbidden or incomplete. Then this trivial script fails too.
    let may = Command::new("bpftrace").args(["-e", "BEGIN { exit(); }"]).output();
    let Ok(may) = may else {
        eprintln!("skipped: no bpftrace");
        return;
    };
    if !may.status.success() {
        eprintln!("skipped: bpftrace may not here: {}", String::from_utf8_lossy(&may.stderr));
        return;
    }
    // bpftrace runs the other test after it has attached.
    let traced = format!("{} --exact traced_connections", program.display());
    let output = Command::new("bpftrace").args(["-q", "-e", &script, "-c", &traced]).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "bpftrace: {}\n{errors}", output.status);
    for line in [
        // Both ends are in this program; the server's end is passive.
        "established 7777 ",
        " 7777 10.9.0.1 4 0\n",
        "closed 7777 ",
        "send_reset 7 ",
        "receive_reset ",
        "drop no_socket\n",
    ] {
        assert!(said.contains(line), "not {line:?}:\n{said}{errors}");
    }
    let passive = said.lines().find(|line| line.starts_with("established 7777 ")).unwrap();
    assert!(passive.ends_with(" 10.9.0.2 4 1"), "{passive}");
}
