//! Programs of a namespace are served over a veth pair. They and their clients observe the same as
//! on the kernel. Needs root, and python3, nginx, curl and redis.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

const SERVER: &str = "10.78.0.1";
const SERVER6: &str = "fd78::1";
const PORT: u16 = 7601;

/// Runs the tests one after the other, because the machine has few processors.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A server's namespace with device `relay0`, and a client's. `None` without root.
struct Lab {
    prefix: String,
    dir: PathBuf,
    _serial: MutexGuard<'static, ()>,
}

/// A process that is killed when this is dropped.
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

impl Running {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn input(&mut self) -> &mut ChildStdin {
        self.child.stdin.as_mut().unwrap()
    }

    /// Sends a line and returns the next one.
    fn asks(&mut self, line: &str) -> String {
        writeln!(self.input(), "{line}").unwrap();
        self.line()
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Stops a relay and returns its counters.
    fn end(&mut self) -> String {
        self.signal("TERM");
        let counters = self.line();
        assert!(self.child.wait().unwrap().success());
        counters
    }
}

fn ip(args: &str) {
    let output = Command::new("ip").args(args.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
}

fn has(counters: &str, name: &str, wanted: impl Fn(u64) -> bool) {
    let value = counters.split([' ', ',', '}']).skip_while(|word| *word != format!("{name}:")).nth(1);
    let value = value.and_then(|value| value.parse().ok());
    assert!(value.is_some_and(wanted), "{name} of {counters}");
}

impl Lab {
    fn up() -> Option<Self> {
        let serial = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        if !rustix::process::geteuid().is_root() {
            println!("skipped: not root");
            return None;
        }
        let prefix = format!("{}-r{}", std::env::var("FS_LAB").unwrap_or_else(|_| "fst".into()), std::process::id());
        let dir = std::env::temp_dir().join(format!("fs-relay-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("www")).unwrap();
        let lab = Self { prefix, dir, _serial: serial };
        let (s, c) = (lab.ns("s"), lab.ns("c"));
        ip(&format!("netns add {s}"));
        ip(&format!("netns add {c}"));
        // Two queues: two cores.
        let queues = "numrxqueues 2 numtxqueues 2";
        ip(&format!("link add relay0 netns {s} {queues} type veth peer name relay1 netns {c} {queues}"));
        for (ns, device, host) in [(&s, "relay0", 1), (&c, "relay1", 2)] {
            ip(&format!("-n {ns} addr add 10.78.0.{host}/24 dev {device}"));
            ip(&format!("-n {ns} addr add fd78::{host}/64 dev {device} nodad"));
            ip(&format!("-n {ns} link set {device} up"));
            ip(&format!("-n {ns} link set lo up"));
        }
        Some(lab)
    }

    fn ns(&self, side: &str) -> String {
        format!("{}{side}", self.prefix)
    }

    /// Runs a command in a namespace that has the host's mounts, and with them its cgroups.
    fn command(&self, side: &str, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.ns(side))).arg(program).current_dir(&self.dir);
        command
    }

    fn spawn(&self, command: &mut Command) -> Running {
        let log = File::options().append(true).create(true).open(self.dir.join("log")).unwrap();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Running { child, output }
    }

    fn output(&self, side: &str, program: &str, args: &[&str]) -> String {
        let output = self.command(side, program).args(args).output().unwrap();
        let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{program} {args:?}: {text}{error}\n{}", self.log());
        text.trim_end().to_owned()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn python(&self, side: &str, args: &[&str]) -> Command {
        let mut command = self.command(side, "python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peer.py")).args(args);
        command
    }

    /// Runs a client of tests/peer.py to its end.
    fn client(&self, args: &[&str]) -> String {
        let output = self.python("c", args).output().unwrap();
        let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{args:?}: {text}{error}\n{}", self.log());
        text.into_owned()
    }

    fn server(&self, address: &str, port: u16, option: &str) -> Running {
        let mut server = self.spawn(&mut self.python("s", &["server", address, &port.to_string(), option]));
        assert_eq!(server.line(), "listens");
        server
    }

    fn relay_command(&self, config: &str) -> Command {
        let file = self.dir.join("wire.toml");
        std::fs::write(&file, config).unwrap();
        let mut program = std::env::current_exe().unwrap();
        program.pop();
        program.pop();
        let mut command = self.command("s", program.join("examples/relay").to_str().unwrap());
        command.arg(file);
        command
    }

    /// Starts a relay of these ports.
    fn relay(&self, ports: &[u16]) -> Running {
        self.relay_until(ports, 10)
    }

    /// The relay leaves open connections this time at its end.
    fn relay_until(&self, ports: &[u16], seconds: u64) -> Running {
        let mut config = String::from("device = 'relay0'\npartial_checksums = true\n");
        ports.iter().for_each(|port| config += &format!("[[port]]\nport = {port}\n"));
        let mut relay = self.spawn(self.relay_command(&config).arg(seconds.to_string()));
        assert_eq!(relay.line(), "ready", "{}", self.log());
        relay
    }

    /// The error of a relay that cannot start.
    fn refused(&self, config: &str) -> String {
        let output = self.relay_command(config).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn xdp_is_attached(&self) -> bool {
        self.output("s", "ip", &["-d", "link", "show", "dev", "relay0"]).contains("prog/xdp")
    }

    /// Lines of `ss` with these arguments in the server's namespace.
    fn sockets(&self, args: &str) -> usize {
        self.output("s", "ss", &[vec!["-Htn"], args.split(' ').collect()].concat())
            .lines()
            .filter(|line| !line.is_empty())
            .count()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.log());
        }
        for side in ["s", "c"] {
            let _gone = Command::new("ip").args(["netns", "del", &self.ns(side)]).status();
        }
        let _gone = std::fs::remove_dir_all(&self.dir);
    }
}

fn wait_for(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        sleep(Duration::from_millis(50));
    }
}

/// Ends, resets, slow readers and names: both ends observe the same as without the relay.
#[test]
fn both_ends_see_what_they_see_on_the_kernel() {
    let Some(lab) = Lab::up() else { return };
    let mut seen = Vec::new();
    for relayed in [false, true] {
        let mut relay = relayed.then(|| lab.relay(&[PORT]));
        for address in [SERVER, SERVER6] {
            let mut server = lab.server("::", PORT, "");
            let client = lab.client(&["client", address, &PORT.to_string()]);
            assert!(client.starts_with("names right\n"), "{client}");
            let mut of_server: Vec<String> = (0..9).map(|_| server.line()).collect();
            // Every connection has its own thread, so the order is undefined.
            of_server.sort();
            seen.push((client, of_server));
        }
        if let Some(relay) = &mut relay {
            let counters = relay.end();
            // One connection each for names, echo, upload, download and the client's early end, and
            // six resets.
            has(&counters, "accepted", |count| count == 22);
            has(&counters, "reset", |count| count == 12);
            has(&counters, "open", |count| count == 0);
        }
    }
    println!("{seen:#?}");
    assert_eq!(seen[0], seen[2], "IPv4");
    assert_eq!(seen[1], seen[3], "IPv6");
}

/// A listener for IPv4 only, and one with TCP_DEFER_ACCEPT.
#[test]
fn names_are_right_for_each_kind_of_listener() {
    let Some(lab) = Lab::up() else { return };
    let mut relay = lab.relay(&[PORT, PORT + 1, PORT + 2]);
    let _servers =
        [lab.server(SERVER, PORT, ""), lab.server("0.0.0.0", PORT + 1, "defer"), lab.server("::", PORT + 2, "defer")];
    for (address, port) in [(SERVER, PORT), (SERVER, PORT + 1), (SERVER, PORT + 2), (SERVER6, PORT + 2)] {
        for _ in 0..20 {
            assert_eq!(lab.client(&["names", address, &port.to_string()]), "right\n", "{address} {port}");
        }
    }
    // Connections that do not use the device keep their own names.
    assert_eq!(
        lab.output("s", "python3", &[concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peer.py"), "names", SERVER, "7601"]),
        "right"
    );
    has(&relay.end(), "accepted", |count| count == 80);
}

#[test]
fn thousand_connections_at_once() {
    let Some(lab) = Lab::up() else { return };
    let mut relay = lab.relay(&[PORT]);
    let _server = lab.server("::", PORT, "");
    assert_eq!(lab.client(&["many", SERVER, &PORT.to_string(), "1000"]), "all\n");
    has(&relay.end(), "accepted", |count| count == 1000);
}

/// The kernel finds ports for other connections of the host, however many connections are relayed.
#[test]
fn ports_are_left_to_the_host() {
    let Some(lab) = Lab::up() else { return };
    lab.output("s", "sh", &["-c", "echo 40000 40019 > /proc/sys/net/ipv4/ip_local_port_range"]);
    let mut relay = lab.relay(&[PORT]);
    let _server = lab.server("::", PORT, "");
    let mut elsewhere = lab.spawn(&mut lab.python("c", &["server", "::", "7701"]));
    assert_eq!(elsewhere.line(), "listens");
    let held = [(SERVER, "30"), (SERVER6, "10")].map(|(address, count)| {
        let mut many = lab.spawn(&mut lab.python("c", &["many", address, &PORT.to_string(), count, "held"]));
        assert_eq!(many.line(), "all");
        for peer in ["10.78.0.2", "fd78::2"] {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peer.py");
            assert_eq!(lab.output("s", "python3", &[script, "names", peer, "7701"]), "right");
        }
        many
    });
    drop(held);
    has(&relay.end(), "accepted", |count| count == 40);
}

/// Connects to the port without a listener, with one, and with a new one.
#[test]
fn server_may_come_later_and_restart() {
    let Some(lab) = Lab::up() else { return };
    let mut relay = lab.relay(&[PORT]);
    let port = PORT.to_string();
    for _ in 0..3 {
        let mut client = lab.spawn(&mut lab.python("c", &["hold", SERVER, &port]));
        if client.line() == "connected" {
            assert!(client.asks("x").starts_with("Connection") || client.asks("x").starts_with("BrokenPipe"));
        }
    }
    wait_for("it is logged", || lab.log().contains("cannot reach a program"));
    for _ in 0..2 {
        let server = lab.server("::", PORT, "");
        let mut client = lab.spawn(&mut lab.python("c", &["hold", SERVER, &port]));
        assert_eq!((client.line(), client.asks("x")), ("connected".into(), "x".into()));
        drop(server);
        let after = [client.asks("y"), client.asks("z")];
        assert!(after.iter().any(|line| line.contains("Error") || line.is_empty()), "{after:?}");
    }
    has(&relay.end(), "refused", |count| count == 3);
}

/// Kernel connections at the port, over this device and another, go on while a relay starts, is
/// killed, starts again and ends. The relay's connections end with the killed relay.
#[test]
fn killed_relay_leaves_the_service_to_the_kernel() {
    let Some(lab) = Lab::up() else { return };
    let _server = lab.server("::", PORT, "");
    let port = PORT.to_string();
    let hold = |side: &str, address: &str| {
        let mut client = lab.spawn(&mut lab.python(side, &["hold", address, &port]));
        assert_eq!((client.line(), client.asks("x")), ("connected".into(), "x".into()));
        client
    };
    let mut kernels = [hold("c", SERVER), hold("c", SERVER6), hold("s", "127.0.0.1"), hold("s", SERVER)];
    let mut go_on = || kernels.iter_mut().for_each(|client| assert_eq!(client.asks("again"), "again"));
    let mut relay = lab.relay(&[PORT]);
    go_on();
    let mut relayed = hold("c", SERVER);
    let mut local = hold("s", "127.0.0.1");
    relay.signal("KILL");
    relay.child.wait().unwrap();
    wait_for("no XDP program is left", || !lab.xdp_is_attached());
    go_on();
    let lost = [relayed.asks("y"), relayed.asks("z")];
    assert!(lost.iter().any(|line| line.contains("Error")), "{lost:?}");
    let mut by_kernel = hold("c", SERVER);
    let mut next = lab.relay(&[PORT]);
    go_on();
    assert_eq!((by_kernel.asks("b"), local.asks("l")), ("b".into(), "l".into()));
    let relayed = || lab.sockets("state established dst 127.64.0.0/10");
    wait_for("those of the killed relay end", || relayed() == 0);
    let mut open = hold("c", SERVER);
    // The relay drains: open connections continue, and the kernel gets new ones.
    next.signal("TERM");
    let mut accepted = 1;
    let mut new = loop {
        let new = hold("c", SERVER);
        if relayed() == 1 {
            break new;
        }
        // The relay has not handled the signal yet.
        drop(new);
        accepted += 1;
        wait_for("it ends", || relayed() == 1);
    };
    assert_eq!(open.asks("still"), "still");
    drop(open);
    let counters = next.line();
    assert!(next.child.wait().unwrap().success());
    has(&counters, "accepted", |count| count == accepted);
    assert!(!lab.xdp_is_attached());
    assert_eq!((new.asks("n"), by_kernel.asks("b")), ("n".into(), "b".into()));
    go_on();
    // No socket of a relay is left, except in TIME-WAIT.
    wait_for("no socket of a relay is left", || relayed() == 0);
}

/// FIN would mean that all bytes have arrived.
#[test]
fn end_of_the_relay_resets_both_ends() {
    let Some(lab) = Lab::up() else { return };
    let mut server = lab.server("::", PORT, "");
    for (signal, address) in [("TERM", SERVER), ("TERM", SERVER6), ("KILL", SERVER), ("KILL", SERVER6)] {
        let mut relay = lab.relay_until(&[PORT], 0);
        let mut client = lab.spawn(&mut lab.python("c", &["end", address, &PORT.to_string()]));
        assert_eq!(client.line(), "connected");
        relay.signal(signal);
        assert_eq!(server.line(), "x ConnectionResetError", "{signal} {address}");
        relay.child.wait().unwrap();
        // The killed relay's connection over the device is nobody's.
        if signal == "TERM" {
            assert_eq!(client.line(), "ConnectionResetError", "{address}");
        }
        wait_for("no XDP program is left", || !lab.xdp_is_attached());
    }
}

#[test]
fn real_servers() {
    let Some(lab) = Lab::up() else { return };
    let mut relay = lab.relay(&[PORT, PORT + 1]);
    let dir = lab.dir.display();
    let big: Vec<u8> = (0..20_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(lab.dir.join("www/big"), &big).unwrap();
    let config = format!(
        "master_process off; daemon off; user root; pid {dir}/pid; error_log {dir}/error; events {{}}
         http {{ access_log off; client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f;
           uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
           server {{ listen {PORT}; listen [::]:{PORT}; root {dir}/www; location /who {{ return 200 $remote_addr; }} }} }}"
    );
    std::fs::write(lab.dir.join("nginx.conf"), config).unwrap();
    let conf = lab.dir.join("nginx.conf");
    let _nginx = lab.spawn(lab.command("s", "nginx").arg("-c").arg(&conf));
    let redis_port = (PORT + 1).to_string();
    let _redis = lab.spawn(lab.command("s", "redis-server").args([
        "--port",
        &redis_port,
        "--save",
        "",
        "--protected-mode",
        "no",
        "--bind",
        "*",
    ]));
    wait_for("nginx listens", || lab.sockets("state listening sport = :7601") > 0);
    wait_for("redis listens", || lab.sockets("state listening sport = :7602") > 0);
    for address in [SERVER.to_owned(), format!("[{SERVER6}]")] {
        let url = |path: &str| format!("http://{address}:{PORT}/{path}");
        let who = lab.output("c", "curl", &["-gsS", &url("who")]);
        assert_eq!(who, if address == SERVER { "10.78.0.2" } else { "fd78::2" });
        let file = lab.dir.join("got");
        lab.output(
            "c",
            "curl",
            &["-gsS", "-o", file.to_str().unwrap(), &url("big"), "--next", "-gsS", "-o", "/dev/null", &url("big")],
        );
        assert!(std::fs::read(&file).unwrap() == big, "the body over {address}");
    }
    let sum = |side: &str, args: &[&str]| lab.output(side, "sha256sum", args);
    assert_eq!(sum("c", &["got"]).split(' ').next(), sum("c", &["www/big"]).split(' ').next());
    let redis = |args: &[&str]| lab.output("c", "redis-cli", &[&["-h", SERVER, "-p", &redis_port], args].concat());
    assert_eq!(redis(&["set", "key", "value"]), "OK");
    assert_eq!(redis(&["get", "key"]), "value");
    assert!(redis(&["client", "list"]).contains("addr=10.78.0.2:"));
    let load = lab.output(
        "c",
        "redis-benchmark",
        &["-h", SERVER, "-p", &redis_port, "-n", "20000", "-c", "20", "-t", "get", "-q"],
    );
    assert!(load.contains("requests per second"), "{load}");
    has(&relay.end(), "accepted", |count| count >= 28);
}

/// Each invalid configuration is rejected with its cause, and leaves nothing behind.
#[test]
fn mistakes_are_said_at_the_start() {
    let Some(lab) = Lab::up() else { return };
    let port = "[[port]]\nport = 7601\n";
    for (config, says) in [
        (format!("device = 'nothere0'\n{port}"), "no device nothere0"),
        (format!("device = 'lo'\n{port}"), "loopback"),
        (format!("device = 'relay0'\n{port}addresses = ['10.78.0.9']"), "relay0 does not have the address 10.78.0.9"),
        (format!("device = 'relay0'\n{port}addresses = ['10.78.0.1', 'fd78::7']"), "does not have the address fd78::7"),
        (format!("device = 'relay0'\ncores = [4095]\n{port}"), "CPU 4095"),
        ("device = 'relay0'\n".to_owned(), "no port"),
    ] {
        let error = lab.refused(&config);
        assert!(error.contains(says), "{config}: {error}");
    }
    assert!(!lab.xdp_is_attached());
    let mut first = lab.relay(&[PORT]);
    let error = lab.refused(&format!("device = 'relay0'\n[[port]]\nport = {}", PORT + 1));
    assert!(error.contains("relay0"), "{error}");
    assert!(lab.xdp_is_attached());
    first.end();
    // With an address that the device has.
    let config = format!("device = 'relay0'\npartial_checksums = true\n{port}addresses = ['{SERVER}', '{SERVER6}']");
    let mut relay = lab.spawn(&mut lab.relay_command(&config));
    assert_eq!(relay.line(), "ready", "{}", lab.log());
    let _server = lab.server("::", PORT, "");
    for address in [SERVER, SERVER6] {
        assert_eq!(lab.client(&["names", address, &PORT.to_string()]), "right\n");
    }
    has(&relay.end(), "accepted", |count| count == 2);
}
