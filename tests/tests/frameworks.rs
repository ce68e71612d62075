//! axum, tonic, hyper-util's pooled client, quinn, tokio-rustls, tungstenite, hyper on a core, and
//! reqwest: over AF_XDP, with the same frameworks on kernel sockets at the other end, and curl.
//! Compares the digest of every body, 0 to 100 MB, in both directions at once. One program also
//! reaches loopback, the wire, another device, PostgreSQL and redis at once, while a device of it
//! goes and comes back.

use anyhow::{Context, Result, ensure};
use fs_tests::apps::{Program, READY_LIMIT};
use fs_tests::body::{self, Body};
use fs_tests::lab::{BACK, BACKEND, CLIENT, FRONT};
use fs_tests::process::Proc;
use fs_tests::unmodified::Daemon;
use fs_tests::unmodified::programs::postgres_programs;
use fs_tests::{Lab, Ns};
use std::process::{Command, Stdio};
use std::time::Duration;

const BYTES: &str = "0,1,65537,100000000";
const BODIES: usize = 4;
const ON_FASTSOCK: &[&str] = &["--stack", "fastsock", "--device", "front0"];
const ON_KERNEL: &[&str] = &["--stack", "kernel"];

fn serve(lab: &Lab, ns: Ns, on: &[&str]) -> Result<Proc> {
    let address = if ns == Ns::Host { FRONT } else { CLIENT };
    ready(lab, "servers", Program::Frameworks.command(lab, ns)?.arg("serve").args(on).arg(address))
}

/// Starts the servers and waits until they serve.
fn ready(lab: &Lab, name: &str, command: &mut Command) -> Result<Proc> {
    let mut proc = lab.spawn(name, command)?;
    let log = proc.log_path().to_owned();
    let says = || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().any(|line| line == "ready"));
    proc.wait_for("ready", READY_LIMIT, says)?;
    Ok(proc)
}

/// The program itself compares the digests; here it is seen that it did, of each body.
fn ask(said: &str, names: &[&str]) -> Result<()> {
    for name in names {
        let answered = said.lines().filter(|line| line.split(' ').next() == Some(*name)).count();
        ensure!(answered == BODIES, "{name}: {answered} of {BODIES} bodies\n{said}");
    }
    print!("{said}");
    Ok(())
}

const ALL: &[&str] = &["pooled", "tonic", "quinn", "tls", "tungstenite", "h2"];

/// POSTs a file and compares the echo.
fn curl(lab: &Lab, body: &Body) -> Result<()> {
    let mut curl = lab.command(Ns::Client, "curl");
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "120", "--header", "Expect:", "--data-binary"]);
    curl.arg(format!("@{}", body.path.display())).arg(format!("http://{FRONT}:8001/echo"));
    let mut child = curl.stdout(Stdio::piped()).spawn().context("cannot run curl")?;
    let (sha256, len) = body::sha256(child.stdout.take().context("curl's output")?)?;
    ensure!(child.wait()?.success(), "curl failed");
    ensure!((len, &sha256) == (body.len, &body.sha256), "{} bytes came back as {len} others", body.len);
    Ok(())
}

#[test]
#[ignore = "needs fs-frameworks, which takes long to compile: make proof"]
fn servers_on_fastsock() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let mut servers = serve(lab, Ns::Host, ON_FASTSOCK)?;
        // The kernel's own tools first: axum as in its documentation.
        let who = lab.run(Ns::Client, "curl", &["--silent", "--show-error", &format!("http://{FRONT}:8001/who")])?;
        ensure!(who.starts_with(&format!("{CLIENT}:")), "axum was told of a peer {who:?}");
        for of in [body::EMPTY, body::ONE, body::TEN_MIB] {
            curl(lab, &body::body(of)?)?;
        }
        ask(&lab.run(Ns::Client, &path()?, &[&["ask"][..], ON_KERNEL, &["--bytes", BYTES, FRONT]].concat())?, ALL)?;
        ensure!(servers.ended()?.is_none(), "the servers have ended:\n{}", servers.log());
        // The kernel's sockets must not have carried it.
        let held = lab.run(Ns::Host, "ss", &["-Htn", "state", "established"])?;
        ensure!(held.trim().is_empty(), "connections of the kernel: {held}");
        servers.kill()
    })
}

#[test]
#[ignore = "needs fs-frameworks, which takes long to compile: make proof"]
fn clients_on_fastsock() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let mut servers = serve(lab, Ns::Client, ON_KERNEL)?;
        ask(&lab.run(Ns::Host, &path()?, &[&["ask"][..], ON_FASTSOCK, &["--bytes", BYTES, CLIENT]].concat())?, ALL)?;
        servers.kill()
    })
}

/// ECN of quinn's datagrams (RFC 9000, 13.4): it continues to mark them only while its peer reports
/// the received marks, including each congestion mark. Counted by the kernel at the client's end,
/// where every hundredth becomes a congestion mark.
const MARKS: &str = "
    table inet marks {
        counter sent { }
        counter sent_without { }
        counter came { }
        counter came_without { }
        chain quinns_out {
            ip ecn != not-ect counter name sent
            ip ecn not-ect counter name sent_without
            ip ecn ect0 numgen inc mod 100 == 50 ip ecn set ce
        }
        chain quinns_in {
            ip ecn != not-ect counter name came
            ip ecn not-ect counter name came_without
        }
        chain out {
            type filter hook output priority 0;
            udp dport PORT jump quinns_out
            udp sport PORT jump quinns_out
        }
        chain in {
            type filter hook input priority 0;
            udp dport PORT jump quinns_in
            udp sport PORT jump quinns_in
        }
    }";

/// The counters of `MARKS`.
fn marks(lab: &Lab) -> Result<[u64; 4]> {
    let mut counts = [0; 4];
    for (count, name) in counts.iter_mut().zip(["sent", "sent_without", "came", "came_without"]) {
        let said = lab.run(Ns::Client, "nft", &["list", "counter", "inet", "marks", name])?;
        let packets = said.split("packets ").nth(1).and_then(|rest| rest.split(' ').next()).context("a counter")?;
        *count = packets.parse()?;
    }
    Ok(counts)
}

#[test]
#[ignore = "needs fs-frameworks, which takes long to compile: make proof"]
fn congestion_marks_of_quinn() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        lab.run(Ns::Client, "nft", &[&MARKS.replace("PORT", "8003")])?;
        for (of, server, client, to) in
            [("server", Ns::Host, Ns::Client, FRONT), ("client", Ns::Client, Ns::Host, CLIENT)]
        {
            let (serving, asking) =
                if server == Ns::Host { (ON_FASTSOCK, ON_KERNEL) } else { (ON_KERNEL, ON_FASTSOCK) };
            let before = marks(lab)?;
            let mut servers = serve(lab, server, serving)?;
            let args = [&["ask"][..], asking, &["--only", "quinn", "--bytes", "20000000", to]].concat();
            lab.run(client, &path()?, &args)?;
            let now = marks(lab)?;
            let [sent, sent_without, came, came_without] = std::array::from_fn(|i| now[i] - before[i]);
            println!("{of} on fastsock: {sent} marked and {sent_without} not to it, {came} and {came_without} from it");
            ensure!(came > 5000 && came_without * 10 < came, "the {of} does not mark what it sends");
            ensure!(sent > 500 && sent_without * 10 < sent, "the {of} does not tell the marks that come to it");
            servers.kill()?;
        }
        Ok(())
    })
}

/// reqwest opens its connections itself and has no interface for others: it runs unchanged under
/// `fastsock run`, as does its server.
#[test]
#[ignore = "needs fs-frameworks, which takes long to compile: make proof"]
fn reqwest_with_the_library() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.eager();
        let mut command = daemon.command(lab, path()?);
        let mut servers = ready(lab, "servers", command.arg("serve").args(ON_KERNEL).arg(FRONT))?;
        let mut command = daemon.command(lab, path()?);
        command.args([&["ask"][..], ON_KERNEL, &["--only", "reqwest", "--bytes", BYTES, FRONT]].concat());
        let output = command.output().context("reqwest")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        ask(&said, &["reqwest"])?;
        // Not every body uses a ring: each body has a connection of its own, and a reader that
        // never catches up stays with the kernel (C5 in docs/PRELOAD.md).
        let promoted = daemon.reported("promoted");
        ensure!(promoted > 0, "no socket got a ring");
        servers.kill()?;
        daemon.stop()
    })
}

/// PostgreSQL on 127.0.0.1.
fn postgres(lab: &Lab) -> Result<Proc> {
    let programs = postgres_programs()?;
    let dir = lab.dir().join("postgres");
    std::fs::create_dir_all(&dir)?;
    let owner = ["--reuid", "postgres", "--regid", "postgres", "--clear-groups"];
    let data = dir.join("data").display().to_string();
    ensure!(Command::new("chown").arg("postgres").arg(&dir).status()?.success(), "chown");
    let mut initdb = Command::new("setpriv");
    initdb.args(owner).arg(programs.join("initdb")).args(["-A", "trust", "-U", "postgres", "--no-sync", "-D", &data]);
    let made = initdb.current_dir(&dir).output().context("initdb")?;
    ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
    let mut command = lab.command(Ns::Host, "setpriv");
    command.args(owner).arg(programs.join("postgres")).args(["-D", &data, "-c", "listen_addresses=127.0.0.1"]);
    command.args(["-c", "fsync=off", "-c", &format!("unix_socket_directories={}", dir.display())]);
    let mut proc = lab.spawn("postgres", &mut command)?;
    let log = proc.log_path().to_owned();
    let says = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("is ready to accept connections"));
    proc.wait_for("readiness", READY_LIMIT, says)?;
    Ok(proc)
}

/// The client's address on a device that the program's runtime does not use.
const OTHER: &str = "10.77.3.2";

/// A device of the host with a device of another namespace as its peer.
fn veth(lab: &Lab, [device, address]: [&str; 2], peer: Ns, [at_peer, peer_address]: [&str; 2]) -> Result<()> {
    lab.run(Ns::Host, "ip", &["link", "add", device, "type", "veth", "peer", "name", at_peer])?;
    lab.run(Ns::Host, "ip", &["link", "set", at_peer, "netns", &lab.ns(peer)])?;
    for (ns, device, address) in [(Ns::Host, device, address), (peer, at_peer, peer_address)] {
        lab.run(ns, "ip", &["addr", "add", &format!("{address}/24"), "dev", device])?;
        lab.run(ns, "ip", &["link", "set", device, "up"])?;
    }
    Ok(())
}

#[test]
#[ignore = "needs fs-frameworks, which takes long to compile: make proof"]
fn one_program_reaches_everything() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    if let Err(reason) = postgres_programs() {
        println!("skipped: {reason}: lab/install");
        return Ok(());
    }
    lab.check(|lab| {
        veth(lab, ["other0", "10.77.3.1"], Ns::Client, ["other1", OTHER])?;
        let serve_at = |name: &str, ns, address: &str| {
            ready(lab, name, Program::Frameworks.command(lab, ns)?.arg("serve").args(ON_KERNEL).arg(address))
        };
        let _wire = serve_at("client", Ns::Client, "0.0.0.0")?;
        let _behind = serve_at("backend", Ns::Backend, BACKEND)?;
        let (_postgres, _redis) = (postgres(lab)?, fs_tests::apps::redis(lab, Ns::Host, &["127.0.0.1"])?);
        let mut command = Program::Frameworks.command(lab, Ns::Host)?;
        let targets = ["127.0.0.1", FRONT, CLIENT, OTHER];
        command.args(["everywhere", "--device", "front0", "--device", "back0", "--ask", &targets.join(",")]);
        command.args(["--postgres", "127.0.0.1:5432", "--redis", "127.0.0.1:6379", "--visit", BACKEND]);
        let mut one = ready(lab, "everywhere", &mut command)?;
        let log = one.log_path().to_owned();
        let reached =
            || std::fs::read_to_string(&log).map_or(0, |log| log.lines().filter(|line| *line == "reached").count());
        one.wait_for("a visit", READY_LIMIT, || reached() > 0)?;
        // Its servers are asked from the wire and by loopback, while a device of it goes and comes.
        let ask_it = |name: &str, ns, at: &str| {
            let mut command = Program::Frameworks.command(lab, ns)?;
            command.args([&["ask"][..], ON_KERNEL, &["--bytes", BYTES, at]].concat());
            lab.spawn(name, &mut command)
        };
        let mut asking = [ask_it("wire", Ns::Client, FRONT)?, ask_it("loopback", Ns::Host, "127.0.0.1")?];
        lab.run(Ns::Host, "ip", &["link", "del", "back0"])?;
        asking[0].wait_for("an echo without the device", READY_LIMIT, {
            let (log, before) = (asking[0].log_path().to_owned(), asking[0].log().len());
            move || std::fs::metadata(&log).is_ok_and(|log| log.len() as usize > before)
        })?;
        let held = lab.run(Ns::Host, "ss", &["-Htn", "state", "established", "dst", CLIENT])?;
        ensure!(held.trim().is_empty(), "connections of the kernel: {held}");
        let before = reached();
        veth(lab, ["back0", BACK], Ns::Backend, ["backend0", BACKEND])?;
        one.wait_for("a visit after the device is back", READY_LIMIT, || reached() > before + 1)?;
        for asks in &mut asking {
            let status = asks.wait_end(Duration::from_secs(300))?;
            ensure!(status.success(), "{status}:\n{}", asks.log());
            ask(&asks.log(), ALL)?;
        }
        let status = one.terminate(Duration::from_secs(120))?;
        let said = one.log();
        ensure!(status.success(), "{status}:\n{said}");
        print!("{said}");
        let carriers = ["Kernel(ThisHost)", "Kernel(ThisHost)", "Core", "Kernel(OtherRoute)"];
        for (target, carrier) in targets.into_iter().zip(carriers) {
            ensure!(said.contains(&format!("\n{target}: {carrier}\n")), "{target} is not reached by {carrier}");
            let clients = said.lines().filter(|line| line.split(' ').nth(1) == Some(target)).count();
            ensure!(clients == ALL.len(), "{clients} clients have reached {target}");
        }
        for store in ["tokio-postgres", "redis"] {
            ensure!(said.contains(&format!("\n{store} Kernel(ThisHost) ")), "no {store}");
        }
        Ok(())
    })
}

fn path() -> Result<String> {
    Ok(Program::Frameworks.path()?.display().to_string())
}
