//! The compiler's message for a core's socket on another thread names the page that explains it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs as a user writes them, following tokio's examples.
const PROGRAMS: &[(&str, &str)] = &[
    ("TcpStream", "pub fn give(stream: fs_compat::TcpStream) { std::thread::spawn(move || drop(stream)); }"),
    (
        "TcpStream",
        "pub fn share(stream: &'static fs_compat::TcpStream) { std::thread::spawn(move || stream.nodelay()); }",
    ),
    (
        "TcpListener",
        "fn spawn<F: Future<Output = ()> + Send + 'static>(_: F) {}
         pub fn serve() {
             spawn(async {
                 let listener = fs_compat::TcpListener::bind(\"0.0.0.0:80\").await.unwrap();
                 listener.accept().await.unwrap();
             });
         }",
    ),
    ("UdpSocket", "pub fn give(socket: fs_compat::UdpSocket) { std::thread::spawn(move || drop(socket)); }"),
];

const PERMITTED: &str = "fn is_send<T: Send + Sync>() {}
    pub fn check() { is_send::<fs_compat::net::TcpStream>(); is_send::<fs_compat::net::TcpListener>();
        is_send::<fs_compat::net::UdpSocket>(); is_send::<fs_compat::net::OwnedReadHalf>(); }";

/// Compiles a program with the library that this test was built with, and returns the compiler's
/// output.
fn compile(library: &Path, program: &str) -> (bool, String) {
    let dir = std::env::temp_dir().join(format!("fs-messages-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("program.rs");
    std::fs::write(&file, program).unwrap();
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    rustc.args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "-o"]).arg(dir.join("program.rmeta"));
    rustc.arg("-L").arg(format!("dependency={}", library.parent().unwrap().display()));
    rustc.arg("--extern").arg(format!("fs_compat={}", library.display())).arg(&file);
    let output = rustc.output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Returns the newest library that this compiler can read, next to the test.
fn library() -> PathBuf {
    let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let entries = std::fs::read_dir(beside).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libfs_compat-") && name.ends_with(".rlib")
    };
    let mut found: Vec<_> = entries.filter(named).collect();
    found.sort_by_key(|path| std::fs::metadata(path).and_then(|meta| meta.modified()).unwrap());
    let usable = found.into_iter().rev().find(|library| compile(library, PERMITTED).0);
    usable.expect("a library with sockets that are Send")
}

#[test]
fn message_names_the_page() {
    if std::env::var("RUSTFLAGS").is_ok_and(|flags| flags.contains("sanitizer")) {
        println!("skipped: the compiler takes no library of this kind without the flags that it was built with");
        return;
    }
    let library = library();
    for (name, program) in PROGRAMS {
        let (compiles, said) = compile(&library, program);
        assert!(!compiles, "{program}");
        for words in [name, "docs/SEND.md", "fastsock::net", "spawn_local"] {
            assert!(said.contains(words), "{words} is not in what the compiler says of\n{program}\n\n{said}");
        }
    }
}
