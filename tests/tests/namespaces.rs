//! Decisions of the daemon by a process's user and namespace: joining processes of two network
//! namespaces, rules for users and cgroups, and the ports that it holds itself.

use anyhow::{Context, Result, ensure};
use fs_tests::Lab;
use fs_tests::apps::READY_LIMIT;
use fs_tests::lab::{BACKEND, FRONT, Ns};
use fs_tests::unmodified::daemon::{Daemon, Reach};
use fs_tests::unmodified::stage::finish;
use std::process::{Command, Output};

/// A server that handles one connection after the other and returns the data twice.
const SERVER: &str = "import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])))
print('ready', flush=True)
while True:
    c, a = s.accept()
    data = c.recv(100000, socket.MSG_WAITALL)
    c.sendall(data + data)
    c.close()";

/// Sends 100,000 bytes, and wants 200,000.
const CLIENT: &str = "import socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
c.sendall(b'x' * 100000)
assert len(c.recv(200000, socket.MSG_WAITALL)) == 200000
print(c.getsockname()[0])";

fn python(lab: &Lab, daemon: &Daemon, ns: Ns, script: &str, port: u16) -> Command {
    let mut command = lab.command(ns, "env");
    command.args(daemon.environment()).args([
        "timeout",
        "60",
        "/usr/bin/python3",
        "-c",
        script,
        FRONT,
        &port.to_string(),
    ]);
    command
}

#[test]
fn processes_of_two_namespaces_share_memory() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let config = lab.dir().join("join.toml");
        let names = [lab.ns(Ns::Client), lab.ns(Ns::Backend)];
        let join = |name: &str| format!("[[join]]\nnamespaces = [\"self\", \"{name}\"]\n");
        std::fs::write(&config, join(&names[0]) + &join(&names[1]))?;
        let options = ["--config", config.to_str().context("the path")?];
        let mut daemon = Daemon::start_with(lab, Ns::Host, Reach::OnlyLocal, &options)?;
        ensure!(daemon.proc.log().contains(&format!(", {} (net:[", names[0])), "{}", daemon.proc.log());
        let mut server = lab.spawn("server", &mut python(lab, &daemon, Ns::Host, SERVER, 7601))?;
        let log = server.log_path().to_owned();
        server.wait_for("answer", READY_LIMIT, || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready"))
        })?;
        let before = daemon.counters(lab)?;
        let said = finish(&mut python(lab, &daemon, Ns::Client, CLIENT, 7601), "client")?;
        ensure!(said.trim() == fs_tests::lab::CLIENT, "it comes from {said}, not from its namespace's address");
        let bytes = daemon.counters(lab)?.since(&before, "local_bytes");
        ensure!(bytes >= 300_000, "{bytes} bytes went through memory: the kernel carried the rest");
        // A namespace without a way there: no shared memory either.
        lab.run(Ns::Backend, "ip", &["route", "flush", "table", "main"])?;
        let lost = python(lab, &daemon, Ns::Backend, CLIENT, 7601).output()?;
        ensure!(!lost.status.success(), "a client without a route was connected");
        server.kill()?;
        daemon.stop()
    })
}

/// The kernel's server, and the server of a user who has made a namespace with the same address:
/// which one a client reaches.
const NAMED: &str = "import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])))
print('ready', flush=True)
while True:
    c, a = s.accept()
    c.sendall(sys.argv[3].encode())
    c.close()";
const ASK: &str = "import socket, sys
print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 10).recv(100).decode())";

/// Any user may create a namespace, give it another host's address and listen there, but no other
/// client reaches it.
#[test]
fn namespace_that_is_not_joined_is_not_reached() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::OnlyLocal)?;
        let ready = |path: &std::path::Path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("ready"));
        let arguments = ["/usr/bin/python3", "-c", NAMED, BACKEND, "7605"];
        let mut real = lab.spawn("real", lab.command(Ns::Backend, arguments[0]).args(&arguments[1..]).arg("real"))?;
        let log = real.log_path().to_owned();
        real.wait_for("answer", READY_LIMIT, || ready(&log))?;
        let script = "ip link set lo up && ip address add \"$0\" dev lo && exec \"$@\"";
        let mut other = lab.command(Ns::Host, "setpriv");
        other.args([
            "--reuid",
            "nobody",
            "--regid",
            "nogroup",
            "--clear-groups",
            "unshare",
            "-Urn",
            "sh",
            "-c",
            script,
        ]);
        other.args([BACKEND, "env"]).args(daemon.environment()).args(arguments).arg("the namespace of nobody");
        let mut other = lab.spawn("other", &mut other)?;
        let log = other.log_path().to_owned();
        if other.wait_for("answer", READY_LIMIT, || ready(&log)).is_err() {
            println!("skipped: no user namespaces here: {}", other.log());
            return Ok(());
        }
        let mut client = lab.command(Ns::Host, "env");
        client.args(daemon.environment()).args(["timeout", "20", "/usr/bin/python3", "-c", ASK, BACKEND, "7605"]);
        let said = finish(&mut client, "client")?;
        ensure!(said.trim() == "real", "the client was given to {said}");
        ensure!(ss(lab, &daemon)?.contains("7605"), "the other listener is unknown: {}", ss(lab, &daemon)?);
        real.kill()?;
        other.kill()?;
        daemon.stop()
    })
}

/// Returns the output of `fastsock ss`.
fn ss(lab: &Lab, daemon: &Daemon) -> Result<String> {
    let mut command = lab.command(Ns::Host, fs_tests::unmodified::daemon::program());
    finish(command.arg("ss").env("FASTSOCK_CONTROL", daemon.control()), "fastsock ss")
}

#[test]
fn rules_name_users_and_cgroups() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let config = lab.dir().join("rules.toml");
        let rules = "[[rule]]\naction = \"deny\"\ncall = \"connect\"\ncgroup = \"/fastsock-test/inner\"\nports = 7602\n\
                     [[rule]]\naction = \"deny\"\ncall = \"connect\"\nuser = \"nobody\"\nports = [7602]\n\
                     [[rule]]\naction = \"deny\"\ncall = \"bind\"\nports = \"7603-7604\"\n";
        std::fs::write(&config, rules)?;
        let path = config.to_str().context("the path")?;
        let mut daemon = Daemon::start_with(lab, Ns::Host, Reach::OnlyLocal, &["--config", path])?;
        let mut server = lab.spawn("server", &mut python(lab, &daemon, Ns::Host, SERVER, 7602))?;
        let log = server.log_path().to_owned();
        server.wait_for("answer", READY_LIMIT, || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready"))
        })?;
        // Allowed: another user than the denied one.
        finish(&mut python(lab, &daemon, Ns::Host, CLIENT, 7602), "client")?;
        // A listing that is made while its process changes the listener may lack it.
        server.wait_for("be listed", READY_LIMIT, || ss(lab, &daemon).is_ok_and(|list| list.contains("LISTEN")))?;
        let refused = |output: Output, what: &str| {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(said.contains("Permission denied"), "{what}: {} {said}", output.status);
            Ok(())
        };
        let mut nobody = lab.command(Ns::Host, "setpriv");
        nobody.args(["--reuid", "nobody", "--clear-groups", "env"]).args(daemon.environment());
        nobody.args(["/usr/bin/python3", "-c", CLIENT, FRONT, "7602"]);
        refused(nobody.output()?, "nobody")?;
        refused(python(lab, &daemon, Ns::Host, SERVER, 7603).output()?, "bind")?;
        in_cgroup(lab, &daemon, refused)?;
        server.kill()?;
        daemon.stop()
    })
}

/// A client in its own cgroup, two levels deep, in a mount of the unified hierarchy that only its
/// shell sees.
fn in_cgroup(lab: &Lab, daemon: &Daemon, refused: impl Fn(Output, &str) -> Result<()>) -> Result<()> {
    let root = lab.dir().join("cgroup");
    std::fs::create_dir_all(&root)?;
    let script = "mount -t cgroup2 none \"$0\" || exit 77
        trap 'echo $$ > \"$0/cgroup.procs\"; rmdir \"$0/fastsock-test/inner\" \"$0/fastsock-test\"' EXIT
        mkdir -p \"$0/fastsock-test/inner\" || exit 77
        echo $$ > \"$0/fastsock-test/inner/cgroup.procs\" || exit 77
        \"$@\"";
    let mut command = lab.command(Ns::Host, "unshare");
    command.args(["--mount", "sh", "-c", script]).arg(&root).arg("env").args(daemon.environment());
    let output = command.args(["/usr/bin/python3", "-c", CLIENT, FRONT, "7602"]).output()?;
    if output.status.code() == Some(77) {
        println!("skipped: cgroup rules: no cgroup can be made here");
        return Ok(());
    }
    refused(output, "a process in the cgroup")
}

/// The first of the daemon's ports for outgoing connections: the daemon has bound it, and it is
/// free after the daemon's end.
#[test]
fn reserved_ports_are_free_after_the_daemons_end() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let bind = "import socket; [socket.create_server(('', port)) for port in (28672, 32767)]";
        let is_free = || lab.output(Ns::Host, "/usr/bin/python3", &["-c", bind]).map(|output| output.status.success());
        ensure!(is_free()?, "another process has them");
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::Wire)?;
        ensure!(!is_free()?, "a program could bind the daemon's ports");
        daemon.proc.kill()?;
        ensure!(is_free()?, "a killed daemon's ports are not free");
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::Wire)?;
        daemon.stop()?;
        ensure!(is_free()?, "an ended daemon's ports are not free");
        Ok(())
    })
}
