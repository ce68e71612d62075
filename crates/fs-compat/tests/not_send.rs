//! The compiler's error for a core's socket on another thread leads to the page that explains it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOCKETS: [&str; 3] = ["TcpStream", "TcpListener", "UdpSocket"];

/// Returns all builds of this package's library, the newest first.
fn libraries(deps: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(deps).unwrap().map(|entry| entry.unwrap().path());
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libfs_compat-") && name.ends_with(".rlib")
    };
    let mut libraries: Vec<_> = files.filter(is_ours).collect();
    libraries.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().modified().unwrap()));
    libraries
}

/// Returns the compiler's output for a program.
fn said(program: &str) -> String {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let mut last = String::new();
    for library in libraries(&deps) {
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "-o", "/dev/null", "-"]);
        rustc.arg("-L").arg(format!("dependency={}", deps.display()));
        rustc.arg("--extern").arg(format!("fs_compat={}", library.display()));
        let mut rustc = rustc.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut rustc.stdin.take().unwrap(), program.as_bytes()).unwrap();
        let output = rustc.wait_with_output().unwrap();
        assert!(!output.status.success(), "it compiles: {program}");
        last = String::from_utf8_lossy(&output.stderr).into_owned();
        // A library of an earlier build may refer to files that are gone, and then it cannot be
        // read.
        if last.contains("sent between threads safely") {
            break;
        }
    }
    last
}

#[test]
fn error_for_not_send_socket_names_the_page() {
    if std::env::var_os("RUSTFLAGS").is_some() {
        // A compiler without these flags cannot read the library.
        println!("skipped: built with RUSTFLAGS");
        return;
    }
    for socket in SOCKETS {
        let program = |what: &str| {
            said(&format!("fn any<T: Send>(_: T) {{}}\npub fn main(socket: fs_compat::{socket}) {{ any({what}) }}"))
        };
        let named = format!("SeeDocsSendMd` is not implemented for `fs_compat::{socket}`");
        let alone = program("socket");
        assert!(alone.contains(&named), "{alone}");
        let in_a_task = program("async move { drop(socket) }");
        for hint in [&*named, "docs/SEND.md of fastsock explains it", "`fastsock::net` has", "`fastsock::spawn_local`"]
        {
            assert!(in_a_task.contains(hint), "{hint}\n{in_a_task}");
        }
    }
}
