//! Programs under the library, with a match service of the test's own.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fs_pairs::{Handle, Service};

/// The library, which cargo does not build for a test: nothing can link it.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
        // `cargo xtask test` has built it together with the tests, and says so.
        if std::env::var_os("FS_BUILT").is_none() {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--quiet", "-p", "fs-preload", "--target-dir"]).arg(folder.parent().unwrap());
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
pub(crate) fn compiled(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).with_extension("c");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("preload-{name}"));
    // Tests are concurrent processes, and none may see a partly written program.
    let part = program.with_extension(std::process::id().to_string());
    let built = Command::new("cc").args(["-O1", "-w", "-pthread"]).arg(&source).arg("-o").arg(&part).status();
    assert!(built.unwrap().success(), "{} does not compile", source.display());
    std::fs::rename(&part, &program).unwrap();
    program
}

/// Counters of the processes under the library.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub promoted: u64,
    pub ring_sends: u64,
    pub kernel_sends: u64,
    pub pins: u64,
    pub report: String,
}

/// A match service, and a folder for its socket and the programs' counters.
pub(crate) struct World {
    folder: PathBuf,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl World {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("fs-preload-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let service = Service::bind(&folder.join("control")).unwrap();
        let handle = service.handle();
        let thread = std::thread::spawn(move || service.run().unwrap());
        World { folder, handle, thread: Some(thread) }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A program under the library.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", library())
            .env("FASTSOCK_CONTROL", self.folder.join("control"))
            // On a busy machine a wait that spins would take the processor that its peer needs to
            // send.
            .env("FASTSOCK_YIELDS", "2000")
            .env("FASTSOCK_REPORT", self.folder.join("report"));
        command
    }

    /// Sums up what the programs that have ended have counted.
    pub(crate) fn counted(&self) -> Counted {
        let text = std::fs::read_to_string(self.folder.join("report")).unwrap_or_default();
        let sum = |name: &str| {
            let values = text.split_whitespace().filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            values.map(|value| value.parse::<u64>().unwrap()).sum()
        };
        Counted {
            promoted: sum("promoted"),
            ring_sends: sum("ring_sends"),
            kernel_sends: sum("kernel_sends"),
            pins: sum("pins"),
            report: text.clone(),
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.handle.stop();
        self.thread.take().unwrap().join().unwrap();
        let _removed = std::fs::remove_dir_all(&self.folder);
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a case of a program on the kernel and under the library. Both must print the same, and both
/// ends must be promoted. Returns the counters.
pub(crate) fn same(program: &str, case: &str) -> Counted {
    same_with(program, case, 2)
}

/// Like [`same`], if `ends` ends write counters.
pub(crate) fn same_with(program: &str, case: &str, ends: u64) -> Counted {
    let program = compiled_once(program);
    let plain = Command::new(program).arg(case).output().unwrap();
    assert!(plain.status.success(), "{case} on the kernel: {}", text(&plain));
    let end = Instant::now() + Duration::from_secs(60);
    let mut attempts = 0;
    loop {
        attempts += 1;
        let world = World::new();
        let ours = world.command(program).arg(case).output().unwrap();
        assert!(ours.status.success(), "{case} under the library: {:?} {}", ours.status, text(&ours));
        assert_eq!(text(&ours), text(&plain), "{case}");
        let counted = world.counted();
        if counted.promoted >= ends && counted.ring_sends > 0 {
            return counted;
        }
        // On a busy machine the program may end before the service has answered both ends, and one run may take a
        // minute.
        assert!(attempts < 5 || Instant::now() < end, "{case}: no promotion, or no bytes by the ring: {counted:?}");
    }
}

fn compiled_once(name: &str) -> &'static Path {
    static PROGRAMS: LazyLock<std::sync::Mutex<std::collections::HashMap<String, &'static Path>>> =
        LazyLock::new(Default::default);
    PROGRAMS.lock().unwrap().entry(name.to_owned()).or_insert_with(|| Box::leak(compiled(name).into_boxed_path()))
}
