//! Real firewalls: the rules of firewalld, ufw, dockerd and kube-proxy, loaded in a namespace. With
//! them, services under fastsock look the same from outside and inside as kernel services, the
//! kernel carries their connections, and `fastsock ss` shows the reason.
//!
//! `lab/install firewalls` installs the programs. If one is missing, its test is skipped.

use anyhow::{Context, Result, ensure};
use fs_tests::Lab;
use fs_tests::apps::READY_LIMIT;
use fs_tests::lab::{BACKEND, CLIENT, FRONT, Ns};
use fs_tests::process::Proc;
use fs_tests::unmodified::daemon::{Daemon, Reach};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Sends its name, and the client's address.
const SERVER: &str = "import socket, sys
s = socket.create_server(('0.0.0.0', int(sys.argv[1])), backlog=16)
print('ready', flush=True)
while True:
    try:
        c, a = s.accept()
        c.sendall(f'{sys.argv[2]} for {a[0]}'.encode())
        c.close()
    except OSError: pass";

/// The same over HTTP: it reads the request, so that no reset overtakes its response.
const WEB: &str = r"import socket, sys
s = socket.create_server(('0.0.0.0', int(sys.argv[1])), backlog=16)
print('ready', flush=True)
while True:
    try:
        c, a = s.accept()
        c.settimeout(50)
        asked = b''
        while b'\r\n\r\n' not in asked:
            part = c.recv(1000)
            if not part: break
            asked += part
        if asked:
            c.sendall(f'HTTP/1.0 200 OK\r\n\r\n{sys.argv[2]} for {a[0]}'.encode())
            c.shutdown(socket.SHUT_WR)
            while c.recv(1000): pass
        c.close()
    except OSError: pass";

/// Prints the result of a connect to each address, a line for each.
const LOOK: &str = "import errno, socket, sys
for at in sys.argv[1:]:
    host, port = at.rsplit(':', 1)
    try:
        c = socket.create_connection((host, int(port)), 3)
        c.settimeout(20)
        print(c.recv(100).decode())
    except TimeoutError: print('TIMEOUT')
    except OSError as e: print(errno.errorcode.get(e.errno, e))";

/// Stays connected until it is ended.
const HOLDER: &str = "import socket, sys, time
c = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 50)
print(c.recv(100).decode(), 'ready', flush=True)
time.sleep(300)";

/// Ports of services, one that the rules permit from outside and one that they do not: under
/// fastsock, and on the kernel.
const OURS: [u16; 2] = [7622, 7623];
const KERNELS: [u16; 2] = [7632, 7633];
/// Addresses of both services in kube-proxy's rules, and of dockerd's container.
const CLUSTER: &str = "10.96.0.10";
const PUBLISHED: u16 = 8081;

/// `firewalld` with a zone that permits both, on its own bus. Ends the processes that it starts.
const FIREWALLD: &str = r#"mkdir -p firewalld/zones
cp -a /etc/firewalld/. firewalld/
cat >firewalld/zones/public.xml <<END
<?xml version="1.0" encoding="utf-8"?>
<zone><short>Public</short><service name="ssh"/><port port="7622" protocol="tcp"/><port port="7632" protocol="tcp"/></zone>
END
dbus-daemon --session --nofork --print-address=3 3>bus >/dev/null 2>&1 &
bus=$!
until [ -s bus ]; do sleep 0.05; done
DBUS_SYSTEM_BUS_ADDRESS=$(cat bus) firewalld --nofork --nopid --system-config "$PWD/firewalld" --log-file "$PWD/firewalld.said" &
fw=$!
trap 'kill $fw $bus; exit 0' TERM
until nft list ruleset | grep -q 7632; do sleep 0.1; kill -0 $fw; done
echo loaded
wait"#;

/// `ufw` with such rules, in its own root.
const UFW: &str = r#"mkdir ufw && cd ufw
cp -a --parents /etc/ufw /lib/ufw /etc/default/ufw .
sed -i s/ENABLED=no/ENABLED=yes/ etc/ufw/ufw.conf
for port in 7622 7632; do
    sed -i "s/^### RULES ###/&\n\n### tuple ### allow tcp $port 0.0.0.0\/0 any 0.0.0.0\/0 in\n-A ufw-user-input -p tcp --dport $port -j ACCEPT\n/" \
        etc/ufw/user.rules
done
lib/ufw/ufw-init --rootdir "$PWD" --datadir "$PWD" start"#;

/// Returns dockerd's rules for a published port (`docker run -p 8081:7640`).
fn docker() -> String {
    format!(
        "iptables-nft-restore <<'END'
*nat
:PREROUTING ACCEPT
:INPUT ACCEPT
:OUTPUT ACCEPT
:POSTROUTING ACCEPT
:DOCKER -
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -o back0 -j MASQUERADE
-A DOCKER ! -i back0 -p tcp -m tcp --dport {PUBLISHED} -j DNAT --to-destination {BACKEND}:7640
COMMIT
*filter
:INPUT ACCEPT
:FORWARD DROP
:OUTPUT ACCEPT
:DOCKER -
:DOCKER-USER -
:DOCKER-ISOLATION-STAGE-1 -
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o back0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o back0 -j DOCKER
-A FORWARD -i back0 ! -o back0 -j ACCEPT
-A DOCKER -d {BACKEND}/32 ! -i back0 -o back0 -p tcp -m tcp --dport 7640 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
END"
    )
}

/// Returns kube-proxy's rules for two services with one endpoint each, on this node.
fn kube_proxy() -> String {
    let [ours, kernels] = [(80, OURS[0]), (81, KERNELS[0])].map(|(port, to)| {
        format!(
            "-A KUBE-SERVICES -d {CLUSTER}/32 -p tcp -m comment --comment \"default/web\" -m tcp --dport {port} -j KUBE-SVC-{port}
-A KUBE-SVC-{port} ! -s 10.244.0.0/16 -d {CLUSTER}/32 -p tcp -m tcp --dport {port} -j KUBE-MARK-MASQ
-A KUBE-SVC-{port} -m comment --comment \"default/web -> {FRONT}:{to}\" -j KUBE-SEP-{port}
-A KUBE-SEP-{port} -s {FRONT}/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-{port} -p tcp -m tcp -j DNAT --to-destination {FRONT}:{to}"
        )
    });
    format!(
        "iptables-nft-restore <<'END'
*nat
:PREROUTING ACCEPT
:INPUT ACCEPT
:OUTPUT ACCEPT
:POSTROUTING ACCEPT
:KUBE-SERVICES -
:KUBE-POSTROUTING -
:KUBE-MARK-MASQ -
:KUBE-SVC-80 -
:KUBE-SEP-80 -
:KUBE-SVC-81 -
:KUBE-SEP-81 -
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
{ours}
{kernels}
COMMIT
END"
    )
}

/// Starts a server; `daemon`: the daemon that it uses.
fn server(lab: &Lab, ns: Ns, daemon: Option<&Daemon>, port: u16, name: &str) -> Result<Proc> {
    program(lab, ns, daemon, SERVER, port, name)
}

fn program(lab: &Lab, ns: Ns, daemon: Option<&Daemon>, script: &str, port: u16, name: &str) -> Result<Proc> {
    let python = "/usr/bin/python3";
    let mut command = daemon.map_or_else(|| lab.command(ns, python), |daemon| daemon.command(lab, python));
    let mut server = lab.spawn(&format!("server-{port}"), command.args(["-c", script, &port.to_string(), name]))?;
    let log = server.log_path().to_owned();
    server
        .wait_for("listen", READY_LIMIT, || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready")))?;
    Ok(server)
}

fn look(mut command: Command, places: &[String]) -> Result<Vec<String>> {
    let output = command.args(["200", "/usr/bin/python3", "-c", LOOK]).args(places).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(text.lines().map(str::to_owned).collect())
}

/// Returns what clients see of both services from outside and inside, and at further addresses.
fn seen(lab: &Lab, daemon: Option<&Daemon>, ports: [u16; 2], further: &[String]) -> Result<Vec<String>> {
    let places =
        |host: &str| ports.iter().map(|port| format!("{host}:{port}")).chain(further.iter().cloned()).collect();
    let outside: Vec<String> = places(FRONT);
    let mut all = look(lab.command(Ns::Client, "timeout"), &outside)?;
    for host in ["127.0.0.1", FRONT] {
        let inside: Vec<String> = places(host);
        let command = daemon.map_or_else(|| lab.command(Ns::Host, "timeout"), |daemon| daemon.command(lab, "timeout"));
        all.extend(look(command, &inside)?);
    }
    Ok(all)
}

/// Loads rules while the services run, and compares. `is_shut`: from outside one of the two ports
/// is not reached.
fn compare(programs: &[&str], load: &str, is_shut: bool, further: [&[String]; 2]) -> Result<()> {
    if let Some(missing) = programs.iter().find(|program| !Path::new(program).exists()) {
        println!("skipped: no {missing} (lab/install firewalls)");
        return Ok(());
    }
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        lab.run(Ns::Host, "sysctl", &["-qw", "net.ipv4.ip_forward=1"])?;
        lab.run(Ns::Client, "ip", &["route", "replace", "10.96.0.0/24", "via", FRONT])?;
        lab.run(Ns::Host, "ip", &["route", "replace", "10.96.0.0/24", "via", CLIENT])?;
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::Wire)?;
        let mut servers = vec![server(lab, Ns::Backend, None, 7640, "a container")?];
        for (ports, of) in [(OURS, Some(&daemon)), (KERNELS, None)] {
            servers.push(server(lab, Ns::Host, of, ports[0], "the open one")?);
            servers.push(server(lab, Ns::Host, of, ports[1], "the other one")?);
        }
        // Packets of connections on the cores, which publish counters a few times per second, and
        // connections through memory.
        let fast = |before: &_| -> Result<[u64; 2]> {
            std::thread::sleep(Duration::from_millis(700));
            let now = daemon.counters(lab)?;
            let names = ["stack_rx_packets{core=\"0\"}", "local_connections"];
            Ok(names.map(|name| now.since(before, name)))
        };
        let before = daemon.counters(lab)?;
        seen(lab, Some(&daemon), OURS, &[])?;
        let until = Instant::now() + READY_LIMIT;
        loop {
            let by_us = fast(&before)?;
            if by_us[0] >= 6 && by_us[1] >= 4 {
                break;
            }
            ensure!(Instant::now() < until, "without rules {by_us:?} packets to the core, connections by memory");
        }
        let load = format!("set -e\n{load}\necho loaded\nexec sleep 500");
        let mut firewall = lab.spawn("firewall", lab.command(Ns::Host, "sh").args(["-c", &load]))?;
        let log = firewall.log_path().to_owned();
        let loaded = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("loaded"));
        firewall.wait_for("load its rules", READY_LIMIT, loaded)?;
        // The daemon notices them after at most a second, if it gets the CPU.
        let until = Instant::now() + READY_LIMIT;
        let ours = loop {
            std::thread::sleep(Duration::from_secs(1));
            let before = daemon.counters(lab)?;
            let ours = seen(lab, Some(&daemon), OURS, further[0])?;
            let by_us = fast(&before)?;
            if by_us[0] < 3 && by_us[1] == 0 {
                break ours;
            }
            ensure!(Instant::now() < until, "with rules {by_us:?} packets to the core, connections by memory");
        };
        let kernels = seen(lab, None, KERNELS, further[1])?;
        ensure!(ours == kernels, "under fastsock {ours:#?}, on the kernel {kernels:#?}");
        println!("{ours:?}");
        ensure!(ours[0].starts_with("the open one") && ours[1].starts_with("the other one") != is_shut, "{ours:?}");
        ensure!(further[0].iter().zip(&ours[2..]).all(|(_, said)| said.contains(" for ")), "{ours:?}");
        let mut holder = daemon.command(lab, "/usr/bin/python3");
        let mut holder = lab.spawn("holder", holder.args(["-c", HOLDER, &OURS[0].to_string()]))?;
        let log = holder.log_path().to_owned();
        holder.wait_for("connect", READY_LIMIT, || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready"))
        })?;
        let sockets = daemon.sockets(lab);
        let row = sockets.lines().find(|line| line.contains("firewall")).with_context(|| sockets.clone())?;
        ensure!(row.contains("kernel"), "{row}");
        holder.kill()?;
        // A firewall that has loaded its rules may have ended.
        let _ended = firewall.terminate(READY_LIMIT);
        for server in &mut servers {
            server.kill()?;
        }
        daemon.stop()
    })
}

/// Returns the state of ports from outside by nmap(1) and curl(1), and the response to a client of
/// each.
fn scan(lab: &Lab, ports: [u16; 2]) -> Result<Vec<String>> {
    let wanted = ports.map(|port| port.to_string()).join(",");
    let mut all = Vec::new();
    for way in ["-sT", "-sS"] {
        let mut nmap = lab.command(Ns::Client, "nmap");
        let output = nmap.args(["-n", "-Pn", "--max-retries", "6", way, "-oG", "-", "-p", &wanted, FRONT]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let row = text.lines().find_map(|line| line.split_once("Ports: ")).with_context(|| text.clone())?.1;
        let states = row.split(", ").map(|port| port.split('/').nth(1).unwrap_or_default().to_owned());
        all.extend(states.map(|state| format!("nmap {way}: {state}")));
    }
    for port in ports {
        let mut curl = lab.command(Ns::Client, "curl");
        let output = curl.args(["-sS", "--max-time", "6", &format!("http://{FRONT}:{port}/")]).output()?;
        all.push(format!("curl: {:?} {}", output.status.code(), String::from_utf8_lossy(&output.stdout)));
    }
    Ok(all)
}

/// Open, closed by a rule that drops, and by one that resets: from outside each looks as on the
/// kernel.
#[test]
fn scanners_see_the_same_ports() -> Result<()> {
    let programs = ["/usr/bin/nmap", "/usr/bin/curl", "/usr/sbin/nft"];
    if let Some(missing) = programs.iter().find(|program| !Path::new(program).exists()) {
        println!("skipped: no {missing} (lab/install firewalls)");
        return Ok(());
    }
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::Wire)?;
        let mut servers = Vec::new();
        for (ports, of) in [(OURS, Some(&daemon)), (KERNELS, None)] {
            for port in ports {
                servers.push(program(lab, Ns::Host, of, WEB, port, "served")?);
            }
        }
        let rules = [
            "add table ip t",
            "add chain ip t in { type filter hook input priority 0; }",
            "add rule ip t in tcp dport { 7623, 7633 } drop",
        ];
        for (what, rules) in [("no rule", ""), ("a rule", &rules.join("; "))] {
            if !rules.is_empty() {
                lab.run(Ns::Host, "nft", &[rules])?;
            }
            let shut = |said: &[String]| said.iter().filter(|said| said.contains("filtered")).count();
            let wanted = if rules.is_empty() { 0 } else { 2 };
            // The daemon notices rules after at most a second, if it gets the CPU.
            let until = Instant::now() + READY_LIMIT;
            let ours = loop {
                std::thread::sleep(Duration::from_secs(1));
                let ours = scan(lab, OURS)?;
                if shut(&ours) == wanted || Instant::now() > until {
                    break ours;
                }
            };
            let kernels = scan(lab, KERNELS)?;
            println!("{what}: {ours:?}");
            ensure!(ours == kernels, "{what}: under fastsock {ours:#?}, on the kernel {kernels:#?}");
            ensure!(shut(&ours) == wanted, "{what}: {ours:?}");
        }
        for server in &mut servers {
            server.kill()?;
        }
        daemon.stop()
    })
}

#[test]
fn firewalld() -> Result<()> {
    compare(&["/usr/sbin/firewalld", "/usr/bin/dbus-daemon"], FIREWALLD, true, [&[], &[]])
}

#[test]
fn ufw() -> Result<()> {
    compare(&["/lib/ufw/ufw-init"], UFW, true, [&[], &[]])
}

#[test]
fn published_port_of_a_container() -> Result<()> {
    let published = [format!("{FRONT}:{PUBLISHED}")];
    compare(&["/usr/sbin/iptables-nft-restore"], &docker(), false, [&published, &published])
}

#[test]
fn address_of_a_service() -> Result<()> {
    let [ours, kernels] = [80, 81].map(|port| [format!("{CLUSTER}:{port}")]);
    compare(&["/usr/sbin/iptables-nft-restore"], &kube_proxy(), false, [&ours, &kernels])
}
