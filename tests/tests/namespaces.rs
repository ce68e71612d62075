//! Users, network namespaces and the configuration: which connections get a ring. The kernel alone
//! decides which program may connect to which.

use anyhow::{Context, Result, ensure};
use fs_tests::lab::{CLIENT, FRONT};
use fs_tests::process::Proc;
use fs_tests::unmodified::Daemon;
use fs_tests::unmodified::stage::finish;
use fs_tests::{Lab, Ns};
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(150);

/// Names itself, then echoes: a server for one connection after the other.
const SERVER: &str = "import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])))
print('ready', flush=True)
while True:
    c, a = s.accept()
    try:
        c.sendall(sys.argv[3].encode())
        while data := c.recv(1000): c.sendall(data)
    except OSError: pass
    c.close()";

/// Prints the server's name, exchanges messages, and stays until its input ends.
const ASKS: &str = "import socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
name = c.recv(100).decode()
for i in range(300):
    c.sendall(b'%06d' % i)
    assert c.recv(6, socket.MSG_WAITALL) == b'%06d' % i
print(name, c.getsockname()[0], flush=True)
sys.stdin.read()";

/// Returns a command of `user` in `ns` with the library.
fn command_of(lab: &Lab, daemon: &Daemon, ns: Ns, user: &str) -> Command {
    let mut command = lab.command(ns, "setpriv");
    if user != "root" {
        command.args(["--reuid", user, "--clear-groups"]);
    }
    command.arg("env").args(daemon.environment());
    command
}

fn serve(lab: &Lab, mut command: Command, at: &str, port: u16, name: &str) -> Result<Proc> {
    command.args(["/usr/bin/python3", "-c", SERVER, at, &port.to_string(), name]);
    let mut server = lab.spawn(&format!("server-{name}-{port}"), &mut command)?;
    let log = server.log_path().to_owned();
    server.wait_for("listen", PATIENCE, || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready")))?;
    Ok(server)
}

/// Starts a client; its connection has carried all its messages when this returns.
fn ask(lab: &Lab, mut command: Command, at: &str, port: u16) -> Result<Proc> {
    command.args(["/usr/bin/python3", "-c", ASKS, at, &port.to_string()]);
    let log = lab.dir().join(format!("client-{port}.log"));
    let mut client = Proc::spawn_fed("client", &log, &mut command)?;
    client.wait_for("answers", PATIENCE, || std::fs::read_to_string(&log).is_ok_and(|text| text.ends_with('\n')))?;
    Ok(client)
}

/// Returns what `fastsock ss` shows to a user, with a copy of the program that every user may run.
fn shown_to(lab: &Lab, daemon: &Daemon, user: &str) -> Result<String> {
    let copy = lab.dir().join("fastsock");
    if !copy.exists() {
        std::fs::copy(fs_tests::unmodified::daemon::program(), &copy)?;
    }
    let mut command = command_of(lab, daemon, daemon.ns(), user);
    finish(command.args(["env", "-u", "LD_PRELOAD"]).arg(copy).args(["ss", "-H"]), "fastsock ss")
}

#[test]
fn connections_between_users_get_a_ring() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.eager();
        for (port, server, client) in [(7601, "root", "nobody"), (7602, "nobody", "games"), (7603, "nobody", "nobody")]
        {
            let mut serving = serve(lab, command_of(lab, &daemon, Ns::Host, server), "127.0.0.1", port, server)?;
            let mut asking = ask(lab, command_of(lab, &daemon, Ns::Host, client), "127.0.0.1", port)?;
            let pairs = daemon.with_ring(lab, port)?;
            ensure!(pairs.len() == 1 && pairs[0].ring_bytes > 0, "{server} and {client}: {pairs:?}");
            // A user sees the connections of its own processes, root sees all.
            for user in ["root", "nobody", "games"] {
                let sees = shown_to(lab, &daemon, user)?.contains(&format!(":{port} "));
                ensure!(
                    sees == (["root", server, client].contains(&user)),
                    "{user} sees {server}'s and {client}'s: {sees}"
                );
            }
            asking.kill()?;
            serving.kill()?;
        }
        daemon.stop()
    })
}

/// Makes a container that shares the network: mounts, processes, IPC and host name of its own,
/// another root folder, and nothing in /tmp but the folder of the test.
const CONTAINER: &str = "set -e
mount --make-rprivate /
mount --rbind / \"$0\"
mount -t proc p \"$0/proc\"
mkdir -p \"$0$1\"
mount -t tmpfs t \"$0/tmp\"
mkdir -p \"$0$1\"
mount --bind \"$1\" \"$0$1\"
hostname contained
dir=$0
shift
exec chroot \"$dir\" \"$@\"";

/// Returns a command of root in a container with the library.
fn contained(lab: &Lab, daemon: &Daemon, name: &str) -> Result<Command> {
    let root = lab.dir().join(format!("root-{name}"));
    std::fs::create_dir_all(&root)?;
    let mut command = lab.command(Ns::Host, "unshare");
    command.args(["--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "sh", "-c", CONTAINER]);
    command.arg(&root).arg(lab.dir()).arg("env").args(daemon.environment());
    Ok(command)
}

#[test]
fn connections_of_containers_in_one_network_get_a_ring() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.eager();
        for (port, is_server_contained, is_client_contained) in
            [(7621, true, false), (7622, false, true), (7623, true, true)]
        {
            let command = |name: &str, is_contained: bool| match is_contained {
                true => contained(lab, &daemon, &format!("{name}-{port}")),
                false => Ok(command_of(lab, &daemon, Ns::Host, "nobody")),
            };
            let mut serving = serve(lab, command("server", is_server_contained)?, "127.0.0.1", port, "contained")?;
            let mut asking = ask(lab, command("client", is_client_contained)?, "127.0.0.1", port)?;
            let pairs = daemon.with_ring(lab, port)?;
            ensure!(pairs.len() == 1 && pairs[0].ring_bytes > 0, "{port}: {pairs:?}");
            asking.kill()?;
            serving.kill()?;
        }
        daemon.stop()
    })
}

/// Two namespaces with the same address and port, and one daemon: each client reaches the server of
/// its own namespace, by a ring. A client of another host's namespace reaches it by the kernel.
#[test]
fn namespaces_are_kept_apart() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.eager();
        let spaces = [(Ns::Host, "host"), (Ns::Backend, "backend")];
        let serving: Vec<Proc> = spaces
            .into_iter()
            .map(|(ns, name)| serve(lab, command_of(lab, &daemon, ns, "nobody"), "127.0.0.1", 7611, name))
            .collect::<Result<_>>()?;
        let mut asking = Vec::new();
        for (ns, name) in spaces {
            let client = ask(lab, command_of(lab, &daemon, ns, "nobody"), "127.0.0.1", 7611)?;
            ensure!(client.log().trim() == format!("{name} 127.0.0.1"), "{name}: {}", client.log());
            asking.push(client);
        }
        let pairs = daemon.with_ring(lab, 7611)?;
        ensure!(pairs.len() == 2 && pairs.iter().all(|pair| pair.ring_bytes > 0), "{pairs:?}");
        let mut serving_all = serve(lab, command_of(lab, &daemon, Ns::Host, "root"), "0.0.0.0", 7612, "all")?;
        let mut far = ask(lab, command_of(lab, &daemon, Ns::Client, "root"), FRONT, 7612)?;
        ensure!(far.log().trim() == format!("all {CLIENT}"), "{}", far.log());
        ensure!(daemon.with_ring(lab, 7612)?.is_empty(), "a connection of two namespaces has a ring");
        let is_told = |text: &str| text.lines().any(|line| line.contains(":7612 ") && line.contains("not-offered"));
        let start = Instant::now();
        while !is_told(&daemon.sockets(lab)) {
            ensure!(start.elapsed() < PATIENCE, "the reason is not shown:\n{}", daemon.sockets(lab));
            std::thread::sleep(Duration::from_millis(50));
        }
        for proc in asking.iter_mut().chain([&mut far, &mut serving_all]) {
            proc.kill()?;
        }
        drop(serving);
        daemon.stop()
    })
}

/// Policies for users, cgroups, ports and destinations: what they name is the kernel's, and works.
/// SIGHUP changes them for connections that come later.
#[test]
fn policies_leave_connections_to_the_kernel() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let config = lab.dir().join("rules.toml");
        let rules = "[[policy]]\nring = false\nuser = \"nobody\"\nports = [7621]\n\
                     [[policy]]\nring = false\ncall = \"connect\"\ncgroup = \"/fastsock-test/inner\"\nports = 7622\n\
                     [[policy]]\nring = false\ncall = \"bind\"\nports = \"7623-7624\"\n\
                     [[policy]]\nring = false\ncall = \"connect\"\nto = [\"127.0.0.3\"]\n";
        std::fs::write(&config, rules)?;
        let path = config.to_str().context("the path")?;
        let mut daemon = Daemon::start_with(lab, Ns::Host, &["--config", path])?.eager();
        let has_ring = |daemon: &Daemon, user: &str, at: &str, port: u16| -> Result<bool> {
            let mut server = serve(lab, command_of(lab, daemon, Ns::Host, "root"), at, port, "it")?;
            let mut client = ask(lab, command_of(lab, daemon, Ns::Host, user), at, port)?;
            let has = !daemon.with_ring(lab, port)?.is_empty();
            client.kill()?;
            server.kill()?;
            Ok(has)
        };
        for (user, at, port, wanted) in [
            ("root", "127.0.0.1", 7621, true),
            ("nobody", "127.0.0.1", 7621, false),
            ("nobody", "127.0.0.1", 7622, true),
            ("root", "127.0.0.1", 7623, false),
            ("root", "127.0.0.2", 7625, true),
            ("root", "127.0.0.3", 7625, false),
        ] {
            ensure!(has_ring(&daemon, user, at, port)? == wanted, "{user} at {at}:{port}: a ring is {}", !wanted);
        }
        in_cgroup(lab, &daemon)?;
        std::fs::write(&config, rules.replace("7621", "7626"))?;
        daemon.proc.signal("HUP")?;
        let log = daemon.proc.log_path().to_owned();
        let reloaded = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("reloaded"));
        daemon.proc.wait_for("a reload", PATIENCE, reloaded)?;
        for (port, wanted) in [(7621, true), (7626, false)] {
            ensure!(
                has_ring(&daemon, "nobody", "127.0.0.1", port)? == wanted,
                "after SIGHUP, port {port}: a ring is {}",
                !wanted
            );
        }
        daemon.stop()
    })
}

/// A client in its own cgroup, two levels deep, in a mount of the unified hierarchy that only its
/// shell sees.
fn in_cgroup(lab: &Lab, daemon: &Daemon) -> Result<()> {
    let root = lab.dir().join("cgroup");
    std::fs::create_dir_all(&root)?;
    let script = "mount -t cgroup2 none \"$0\" || exit 77
        trap 'echo $$ > \"$0/cgroup.procs\"; rmdir \"$0/fastsock-test/inner\" \"$0/fastsock-test\"' EXIT
        mkdir -p \"$0/fastsock-test/inner\" || exit 77
        echo $$ > \"$0/fastsock-test/inner/cgroup.procs\" || exit 77
        \"$@\"";
    let mut server = serve(lab, command_of(lab, daemon, Ns::Host, "root"), "127.0.0.1", 7622, "it")?;
    let mut command = lab.command(Ns::Host, "unshare");
    command.args(["--mount", "sh", "-c", script]).arg(&root).arg("env").args(daemon.environment());
    command.args(["/usr/bin/python3", "-c", ASKS, "127.0.0.1", "7622"]);
    let log = lab.dir().join("client-cgroup.log");
    let mut client = Proc::spawn_fed("client", &log, &mut command)?;
    let start = Instant::now();
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    while !said().contains("it 127.0.0.1") {
        if client.ended()?.is_some_and(|status| status.code() == Some(77)) {
            println!("skipped: cgroup rules: no cgroup can be made here");
            return server.kill();
        }
        ensure!(start.elapsed() < PATIENCE, "{}", said());
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(daemon.with_ring(lab, 7622)?.is_empty(), "a process in the cgroup has a ring");
    // Its input ends, and with it the program and the cgroup.
    client.end_input();
    ensure!(client.wait_end(PATIENCE)?.success(), "{}", said());
    server.kill()
}

/// What the kernel refuses stays refused: a process that has confined itself by Landlock connects
/// nowhere, although an earlier connection of it has a ring, which goes on.
#[test]
fn landlocked_process_keeps_its_ring_and_connects_nowhere() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.eager();
        let mut server = serve(lab, command_of(lab, &daemon, Ns::Host, "root"), "127.0.0.1", 7631, "it")?;
        let script = "import ctypes, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
c = socket.create_connection(('127.0.0.1', 7631)); c.recv(100)
def ask():
    for i in range(100):
        c.sendall(b'x'); assert c.recv(1) == b'x'
ask()
class Attr(ctypes.Structure):
    _fields_ = [('fs', ctypes.c_uint64), ('net', ctypes.c_uint64)]
ruleset = libc.syscall(444, ctypes.byref(Attr(0, 2)), 16, 0)
if ruleset < 0:
    print('skipped: this kernel has no Landlock for TCP')
    sys.exit()
libc.prctl(38, 1, 0, 0, 0)
assert libc.syscall(446, ruleset, 0) == 0
ask()
try: socket.create_connection(('127.0.0.1', 7631))
except PermissionError: print('refused')";
        let mut command = command_of(lab, &daemon, Ns::Host, "nobody");
        let said = finish(command.args(["/usr/bin/python3", "-c", script]), "landlock")?;
        println!("{}", said.trim());
        ensure!(said.trim() == "refused" || said.starts_with("skipped: "), "{said}");
        ensure!(daemon.reported("promoted") > 0, "it had no ring");
        server.kill()?;
        daemon.stop()
    })
}
