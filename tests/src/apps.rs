//! The programs under test and the servers behind them.

use crate::body::Body;
use crate::lab::{Lab, Ns};
use crate::process::Proc;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Limit for a server's first response on a busy machine.
pub const READY_LIMIT: Duration = Duration::from_secs(150);

/// The stack of one of our programs: its `--stack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// Ours, over AF_XDP.
    Fastsock,
    /// The kernel's.
    Kernel,
}

impl Stack {
    /// The value of `--stack`.
    pub fn name(self) -> &'static str {
        match self {
            Stack::Fastsock => "fastsock",
            Stack::Kernel => "kernel",
        }
    }

    /// Returns the stack under test: fastsock, or the kernel's with `FS_TEST_STACK=kernel`, to test
    /// the harness itself.
    pub fn under_test() -> Result<Stack> {
        match std::env::var("FS_TEST_STACK").as_deref() {
            Err(_) | Ok("fastsock") => Ok(Stack::Fastsock),
            Ok("kernel") => Ok(Stack::Kernel),
            Ok(other) => anyhow::bail!("FS_TEST_STACK={other}: fastsock or kernel"),
        }
    }
}

/// How fastsock reaches the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChoice {
    /// AF_XDP, with the host's addresses.
    Xdp,
    /// AF_PACKET in standalone addressing, which works without root in a user namespace.
    Packet,
}

/// The options that every program of ours has for its stack.
#[derive(Clone, Debug)]
pub struct StackOptions {
    /// The stack.
    pub stack: Stack,
    /// See [`LinkChoice`].
    pub link: LinkChoice,
    /// CPUs, one core of the program on each.
    pub cores: Vec<usize>,
    /// Spin instead of sleeping.
    pub busy_poll: bool,
    /// Further options of fastsock.
    pub more: Vec<String>,
}

impl StackOptions {
    /// Core 0, AF_XDP, adaptive parking.
    pub fn new(stack: Stack) -> Self {
        Self { stack, link: LinkChoice::Xdp, cores: vec![0], busy_poll: false, more: Vec::new() }
    }

    /// The arguments, for devices and their addresses (`10.77.1.1/24,fd77:1::1/64`, used with
    /// AF_PACKET only).
    pub fn arguments(&self, devices: &[(&str, &str)]) -> Vec<String> {
        let cores: Vec<String> = self.cores.iter().map(usize::to_string).collect();
        let mut args = vec!["--stack".into(), self.stack.name().into(), "--cores".into(), cores.join(",")];
        if self.stack == Stack::Kernel {
            return args;
        }
        for (device, addresses) in devices {
            args.extend(["--device".into(), (*device).into()]);
            if self.link == LinkChoice::Packet {
                args.extend(["--standalone-addr".into(), (*addresses).into()]);
            }
        }
        if self.link == LinkChoice::Packet {
            args.extend(["--link".into(), "packet".into()]);
        }
        // The lab's links are veth: TCP packets of the kernel at the other end have partial
        // checksums.
        args.push("--partial-checksums".into());
        if self.busy_poll {
            args.push("--busy-poll".into());
        }
        args.extend(self.more.iter().cloned());
        args
    }
}

/// The root of the tree.
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns the target folder of the running program, else cargo's default.
pub fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    let found = exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").exists());
    found.map_or_else(|| workspace().join("target"), Path::to_owned)
}

/// The folder of the programs and libraries that were built together with the running program, by
/// the same profile.
pub fn programs_dir() -> PathBuf {
    let mut folder = std::env::current_exe().unwrap_or_default();
    folder.pop();
    // Cargo puts test programs into a folder of their own.
    if folder.ends_with("deps") {
        folder.pop();
    }
    folder
}

/// Returns the path of a program in [`programs_dir`]. The error says how to build it.
pub fn built(name: &str) -> Result<PathBuf> {
    let folder = programs_dir();
    let path = folder.join(name);
    let release = if folder.ends_with("release") { " --release" } else { "" };
    ensure!(path.exists(), "{} is not there: cargo build{release} --workspace --lib --bins", path.display());
    Ok(path)
}

/// Compiles the C program `tests/NAME/*.c` and returns its path. `allowed`: permitted warnings. Does
/// nothing if the program is newer than its sources and than the running test.
pub fn compile(name: &str, allowed: &[&str]) -> Result<PathBuf> {
    let program = target_dir().join(name);
    let mut files: Vec<PathBuf> = std::fs::read_dir(workspace().join("tests").join(name))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.sort();
    let is_c = |path: &&PathBuf| path.extension().is_some_and(|kind| kind == "c");
    // Tests of several processes need it at the same time: one of them compiles it.
    let lock = std::fs::File::create(target_dir().join(format!("{name}.lock")))?;
    lock.lock()?;
    if is_newer(&program, files.iter().cloned().chain(std::env::current_exe())) {
        return Ok(program);
    }
    made(&program, |program| {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu17", "-O1", "-D_GNU_SOURCE", "-pthread", "-Wall", "-Werror"]).args(allowed);
        cc.arg("-o").arg(program).args(files.iter().filter(is_c));
        let output = cc.output().context("cannot run cc")?;
        ensure!(output.status.success(), "cc:\n{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    })?;
    Ok(program)
}

/// Returns whether a file exists and is newer than all of `sources`.
fn is_newer(file: &Path, sources: impl IntoIterator<Item = PathBuf>) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    let Some(made) = changed(file) else { return false };
    sources.into_iter().all(|source| changed(&source).is_some_and(|changed| changed < made))
}

/// Creates a file that several test processes use. Creates it under another name first, so that no
/// process sees a part of it.
pub fn made<T>(path: &Path, make: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let mut name = path.file_name().context("no name")?.to_owned();
    name.push(format!(".{}", std::process::id()));
    let part = path.with_file_name(name);
    let result = make(&part).and_then(|made| {
        std::fs::rename(&part, path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(made)
    });
    if result.is_err() {
        // The file may not exist.
        let _ = std::fs::remove_file(&part);
    }
    result
}

/// Programs of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// crates/fs-proxy
    Proxy,
    /// benches/tools/httpd
    Httpd,
    /// benches/tools/loadgen
    Loadgen,
    /// benches/tools/echo
    Echo,
    /// tests/frameworks
    Frameworks,
    /// `src/bin/workers.rs` of this package
    Workers,
    /// `src/bin/relay` of this package
    Relay,
    /// `src/bin/exchange.rs` of this package
    Exchange,
}

impl Program {
    /// The program's name.
    pub fn name(self) -> &'static str {
        match self {
            Program::Proxy => "fs-proxy",
            Program::Httpd => "fs-httpd",
            Program::Loadgen => "fs-loadgen",
            Program::Echo => "fs-echo",
            Program::Frameworks => "fs-frameworks",
            Program::Workers => "workers",
            Program::Relay => "relay",
            Program::Exchange => "exchange",
        }
    }

    /// Returns the built program. The error says how to build it.
    pub fn path(self) -> Result<PathBuf> {
        built(self.name())
    }

    /// A command that runs it in a namespace.
    pub fn command(self, lab: &Lab, ns: Ns) -> Result<Command> {
        Ok(lab.command(ns, self.path()?))
    }
}

/// An nginx that serves files and takes uploads (`PUT /up/NAME`).
pub struct Nginx {
    /// The process.
    pub proc: Proc,
    uploads: PathBuf,
}

impl Nginx {
    /// Starts it in `ns` on every address of `listen` (in nginx's form: `10.77.2.2:80`,
    /// `[fd77:2::2]:80`). It serves the files of [`crate::body::folder`], and responds to `/hello`
    /// with the 5 bytes of "hello".
    pub fn start(lab: &Lab, ns: Ns, name: &str, listen: &[String], bodies: &[&Body]) -> Result<Nginx> {
        let dir = lab.dir().join(name);
        let uploads = dir.join("files/up");
        std::fs::create_dir_all(&uploads)?;
        for body in bodies {
            let link = dir.join("files").join(body.name);
            if !link.exists() {
                std::os::unix::fs::symlink(&body.path, link)?;
            }
        }
        let config = dir.join("nginx.conf");
        let listens: String = listen.iter().map(|at| format!("    listen {at} backlog=4096;\n")).collect();
        let d = dir.display();
        // "user root" lets workers read the directories of the user that runs the test. The lab is
        // not reachable from outside.
        std::fs::write(
            &config,
            format!(
                "user root;\nworker_processes 1;\ndaemon off;\npid {d}/pid;\nerror_log {d}/error.log;\n\
                 events {{ worker_connections 16384; }}\nworker_rlimit_nofile 65536;\n\
                 http {{\n  access_log off;\n  default_type application/octet-stream;\n  keepalive_requests 100000000;\n\
                   sendfile on;\n  client_max_body_size 0;\n  client_body_temp_path {d}/body;\n\
                   proxy_temp_path {d}/t1;\n  fastcgi_temp_path {d}/t2;\n  uwsgi_temp_path {d}/t3;\n  scgi_temp_path {d}/t4;\n\
                   server {{\n{listens}    root {d}/files;\n    location = /hello {{ return 200 hello; }}\n\
                     location /up/ {{ dav_methods PUT; create_full_put_path on; }}\n  }}\n}}\n"
            ),
        )?;
        let mut command = lab.command(ns, "nginx");
        command.arg("-e").arg(dir.join("error.log")).arg("-c").arg(&config);
        let mut proc = lab.spawn(name, &mut command)?;
        let (host, port) = split(listen.first().context("nginx needs an address")?)?;
        proc.wait_for("answer", READY_LIMIT, || lab.reaches(ns, &host, port))?;
        Ok(Nginx { proc, uploads })
    }

    /// Where uploads arrive.
    pub fn uploads(&self) -> &Path {
        &self.uploads
    }
}

/// Starts a redis without persistence in `ns`, on port 6379 of every address.
pub fn redis(lab: &Lab, ns: Ns, addresses: &[&str]) -> Result<Proc> {
    let mut command = lab.command(ns, "redis-server");
    command.args(["--save", "", "--appendonly", "no", "--protected-mode", "no", "--port", "6379", "--bind"]);
    command.args(addresses);
    let mut proc = lab.spawn("redis", &mut command)?;
    let first = *addresses.first().context("redis needs an address")?;
    proc.wait_for("answer", READY_LIMIT, || lab.reaches(ns, first, 6379))?;
    Ok(proc)
}

fn split(listen: &str) -> Result<(String, u16)> {
    let (host, port) = listen.rsplit_once(':').with_context(|| format!("{listen}: no port"))?;
    Ok((host.trim_matches(['[', ']']).to_owned(), port.parse()?))
}
