//! libfastsock.so loaded into programs that have no daemon: everything is the C library's, and nothing is different.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::LazyLock,
};

/// The library, which cargo builds for nobody's sake: nothing can link it.
fn library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
        // `cargo xtask test` has built it together with the tests, and says so.
        if std::env::var_os("FS_BUILT").is_none() {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--quiet", "-p", "fs-capi", "--target-dir"]).arg(folder.parent().unwrap());
            if folder.ends_with("release") {
                build.arg("--release");
            }
            let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
            assert!(built.success(), "the library is not built");
        }
        folder.join("libfastsock.so")
    });
    &LIBRARY
}

/// Compiles a program of `tests/programs`.
fn compiled(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).with_extension("c");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}{}", flags.join("")));
    let built = Command::new("cc").args(flags).arg("-w").arg("-pthread").arg(&source).arg("-o").arg(&program).status();
    assert!(built.unwrap().success(), "{} does not compile", source.display());
    program
}

fn run(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str], preloaded: bool) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("FASTSOCK_CONTROL", "/nonexistent/control.sock");
    if preloaded {
        command.env("LD_PRELOAD", library());
    }
    command.output().unwrap()
}

/// The same program with and without the library says the same.
fn same(name: &str, flags: &[&str]) -> String {
    let program = compiled(name, flags);
    let (plain, preloaded) = (run(&program, &[], false), run(&program, &[], true));
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text(&plain), text(&preloaded));
    assert_eq!(plain.status, preloaded.status);
    assert_eq!(String::from_utf8_lossy(&preloaded.stderr), String::from_utf8_lossy(&plain.stderr));
    text(&preloaded)
}

#[test]
fn every_way_into_another_program() {
    // Fortified: its calls are the `__*_chk` ones.
    same("exec", &["-O2", "-D_FORTIFY_SOURCE=2"]);
    let said = same("exec", &[]);
    let printed = "1 two 3.00 4 5 6 7.0 8 9 10.000 11.0 12.0 13.0 14.0 15.0 16.0 end";
    assert!(said.lines().any(|said| said == printed), "dprintf: {said}");
    for line in ["l 2 3 4 5 6 7 8 9", "lp", "ALONE=1", "fexecve", "syscall", "spawnp", "popen", "forkpty: a terminal"] {
        assert!(said.lines().any(|said| said == line), "no line {line:?} in\n{said}");
    }
    assert!(said.contains("daemon in / leads its session: 1"), "{said}");
    assert!(said.contains("-1 No such file or directory"), "{said}");
}

#[test]
fn cancelled_threads_unwind() {
    let said = same("cancel", &[]);
    assert_eq!(said.matches("cleaned").count(), 6, "{said}");
    assert!(said.ends_with("all joined\n"), "{said}");
}

/// The symbols that the library must have (beside the C library's other names for them).
const SYMBOLS: &str = "socket bind listen accept accept4 connect shutdown close dup dup2 dup3 fcntl fcntl64 ioctl prctl \
    getsockopt setsockopt getsockname getpeername send sendto sendmsg sendmmsg recv recvfrom recvmsg recvmmsg read readv \
    write writev pread pwrite preadv pwritev pread64 pwrite64 preadv64 pwritev64 preadv2 pwritev2 preadv64v2 pwritev64v2 \
    sendfile sendfile64 splice poll ppoll select pselect epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait \
    epoll_pwait2 fork vfork _Fork clone forkpty daemon posix_spawn posix_spawnp execve execv execvp execvpe execl execlp execle \
    fexecve execveat syscall __read_chk __recv_chk __recvfrom_chk __pread_chk __pread64_chk __poll_chk __ppoll_chk \
    sigaction signal bsd_signal sysv_signal __sysv_signal sigset siginterrupt longjmp _longjmp siglongjmp __longjmp_chk \
    getrlimit getrlimit64 setrlimit setrlimit64 prlimit prlimit64 sysconf getdtablesize close_range closefrom fdopen sockatmark pthread_cancel __register_atfork dprintf vdprintf __dprintf_chk __vdprintf_chk __read __write __close __connect __send __recv __poll __select \
    __fcntl __dup2 __fork __vfork __pread64 __pwrite64 __sendmmsg";

#[test]
fn every_symbol_is_there() {
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let defined: Vec<&str> = listed.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    let missing: Vec<&str> = SYMBOLS.split_whitespace().filter(|name| !defined.contains(name)).collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
}

#[test]
fn a_program_without_sockets_is_left_alone() {
    let (plain, preloaded) = (run("sh", &["-c", "ls / | wc -l"], false), run("sh", &["-c", "ls / | wc -l"], true));
    assert!(preloaded.status.success());
    assert_eq!(plain.stdout, preloaded.stdout);
}
