//! Alternatives that a user could choose, in the same table from the same run.

use crate::Run;
use crate::cpu;
use crate::outcome::{Goal, Item, Table, number, times};
use crate::sockmap::Sockmap;
use anyhow::{Context, Result, ensure};
use fs_benches::parts::median;
use fs_tests::apps::{StackOptions, target_dir};
use fs_tests::clients::{self, WrkOptions};
use fs_tests::lab::{BACKEND, BACKEND6, FRONT, Lab, Ns};
use fs_tests::loadgen::{Load, Mode as LoadMode};
use fs_tests::proxy::{HTTP_PORT, Mode, Proxy, ProxyOptions, TCP_PORT};
use fs_tests::servers::{self, ECHO_PORT};
use fs_tests::unmodified::{Placement, Stage};
use fs_tests::wire::Gvisor;
use fs_tests::{Nginx, Proc, Stack, body};
use serde_json::json;
use std::process::Command;
use std::time::Duration;

pub(crate) const ABOUT: &str = "\
Proxies: one core on CPU 0 in front of nginx on CPU 1, wrk with 64 connections on the kernel's sockets on CPU 1; HAProxy with `nbthread 1` and `http-reuse always`, nginx with one worker and kept
upstream connections, Envoy with `--concurrency 1`, Pingora with one thread. Requests per CPU second are of the proxy's own. Servers: an echo of 64 bytes on 64 connections, loaded by `fs-loadgen` on the
kernel's sockets. One host: redis.";

pub(crate) fn run(run: &mut Run) -> Result<()> {
    proxies(run)?;
    servers(run);
    one_host(run);
    Ok(())
}

/// A proxy of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Ours(Stack),
    Haproxy,
    Nginx,
    Envoy,
    Pingora,
}

const PROXIES: [(&str, Which); 6] = [
    ("fs-proxy on fastsock", Which::Ours(Stack::Fastsock)),
    ("fs-proxy on the kernel's sockets", Which::Ours(Stack::Kernel)),
    ("HAProxy", Which::Haproxy),
    ("nginx", Which::Nginx),
    ("Envoy", Which::Envoy),
    ("Pingora", Which::Pingora),
];

struct Rates {
    per_cpu_second: f64,
    rate: f64,
    p99_us: f64,
}

/// Processes whose CPU time counts, and the handles that keep them alive.
struct Running {
    pids: Vec<u32>,
    proc: Option<Proc>,
    ours: Option<Proxy>,
}

fn start(lab: &Lab, which: Which, mode: Mode) -> Result<Running> {
    let port = if mode == Mode::Http { HTTP_PORT } else { TCP_PORT };
    let haproxy = || -> Result<std::path::PathBuf> {
        let path = lab.dir().join("haproxy.cfg");
        let (kind, reuse) = if mode == Mode::Http { ("http", "  http-reuse always\n") } else { ("tcp", "") };
        std::fs::write(
            &path,
            format!(
                "global\n  nbthread 1\n  maxconn 4000\ndefaults\n  mode {kind}\n{reuse}  timeout connect 10s\n  timeout client 30s\n  timeout server 30s\n\
                 listen front\n  bind {FRONT}:{port}\n  server back {BACKEND}:80\n"
            ),
        )?;
        Ok(path)
    };
    match which {
        Which::Ours(stack) => {
            let proxy = Proxy::start(lab, &ProxyOptions { cores: vec![0], ..ProxyOptions::new(stack) })?;
            Ok(Running { pids: vec![proxy.proc.pid()], proc: None, ours: Some(proxy) })
        }
        Which::Haproxy => {
            let mut command = lab.command(Ns::Host, "taskset");
            command.args(["-c", "0", "haproxy", "-db", "-f"]).arg(haproxy()?);
            serve(lab, "haproxy", &mut command, port)
        }
        Which::Nginx => {
            let d = lab.dir().display();
            let path = lab.dir().join("nginx-proxy.conf");
            let stream = "/usr/lib/nginx/modules/ngx_stream_module.so";
            ensure!(
                mode == Mode::Http || std::path::Path::new(stream).exists(),
                "nginx's stream module is not installed (libnginx-mod-stream)"
            );
            let body = match mode {
                Mode::Http => format!(
                    "http {{\n  access_log off;\n  client_body_temp_path {d}/np1;\n  proxy_temp_path {d}/np2;\n  fastcgi_temp_path {d}/np3;\n  uwsgi_temp_path {d}/np4;\n\
                     scgi_temp_path {d}/np5;\n  keepalive_requests 10000000;\n  upstream back {{ server {BACKEND}:80; keepalive 128; keepalive_requests 10000000; }}\n\
                     server {{ listen {FRONT}:{port}; location / {{ proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }}\n}}\n"
                ),
                Mode::Tcp => format!("stream {{ server {{ listen {FRONT}:{port}; proxy_pass {BACKEND}:80; }} }}\n"),
            };
            let load = if mode == Mode::Tcp { format!("load_module {stream};\n") } else { String::new() };
            std::fs::write(
                &path,
                format!(
                    "{load}user root;\nworker_processes 1;\ndaemon off;\npid {d}/np.pid;\nerror_log {d}/np.log;\nevents {{ worker_connections 4096; }}\n{body}"
                ),
            )?;
            let mut command = lab.command(Ns::Host, "taskset");
            command.args(["-c", "0", "nginx", "-e"]).arg(lab.dir().join("np.log")).arg("-c").arg(&path);
            serve(lab, "nginx-proxy", &mut command, port)
        }
        Which::Envoy => {
            let envoy = target_dir().join("experiments/envoy/envoy/_bin/envoy");
            ensure!(envoy.exists(), "{} is not there: cargo xtask experiments loads it with pip", envoy.display());
            let path = lab.dir().join("envoy.json");
            std::fs::write(&path, serde_json::to_string(&envoy_configuration(mode, port))?)?;
            let mut command = lab.command(Ns::Host, "taskset");
            command.args(["-c", "0"]).arg(envoy).args(["--concurrency", "1", "--disable-hot-restart"]);
            command.args(["--log-level", "error", "-c"]).arg(&path);
            serve(lab, "envoy", &mut command, port)
        }
        Which::Pingora => {
            let pingora = target_dir().join("experiments/pingora/release/pingora-peer");
            ensure!(pingora.exists(), "{} is not there: cargo xtask experiments builds it", pingora.display());
            let mut command = lab.command(Ns::Host, "taskset");
            command.args(["-c", "0"]).arg(pingora).args([format!("{FRONT}:{port}"), format!("{BACKEND}:80")]);
            serve(lab, "pingora", &mut command, port)
        }
    }
}

/// Starts a proxy on the kernel's sockets, and waits until it is reachable.
fn serve(lab: &Lab, name: &str, command: &mut Command, port: u16) -> Result<Running> {
    let mut proc = lab.spawn(name, command)?;
    proc.wait_for("answer", Duration::from_secs(15), || lab.reaches(Ns::Client, FRONT, port))?;
    Ok(Running { pids: cpu::family(proc.pid()), proc: Some(proc), ours: None })
}

/// Returns Envoy's smallest configuration that forwards all requests to the backend.
fn envoy_configuration(mode: Mode, port: u16) -> serde_json::Value {
    let at = |address: &str, port: u16| json!({ "socket_address": { "address": address, "port_value": port } });
    let extension = |name: &str| format!("type.googleapis.com/envoy.extensions.filters.{name}");
    let filter = match mode {
        Mode::Http => json!({
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": extension("network.http_connection_manager.v3.HttpConnectionManager"),
                "stat_prefix": "front",
                "http_filters": [{
                    "name": "envoy.filters.http.router",
                    "typed_config": { "@type": extension("http.router.v3.Router") },
                }],
                "route_config": { "virtual_hosts": [{
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "back" } }],
                }] },
            },
        }),
        Mode::Tcp => json!({
            "name": "envoy.filters.network.tcp_proxy",
            "typed_config": {
                "@type": extension("network.tcp_proxy.v3.TcpProxy"), "stat_prefix": "front", "cluster": "back",
            },
        }),
    };
    json!({ "static_resources": {
        "listeners": [{ "address": at(FRONT, port), "filter_chains": [{ "filters": [filter] }] }],
        "clusters": [{
            "name": "back",
            "type": "STATIC",
            "connect_timeout": "10s",
            "load_assignment": {
                "cluster_name": "back",
                "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": at(BACKEND, 80) } }] }],
            },
        }],
    } })
}

fn measure(which: Which, mode: Mode, close: bool, seconds: u32) -> Result<Rates> {
    let lab = Lab::require(&["--queues", "1"])?;
    let mut rates = None;
    lab.check(|lab| {
        let small = body::body(body::SMALL)?;
        let listen = [format!("{BACKEND}:80"), format!("[{BACKEND6}]:80")];
        let nginx = Nginx::start(lab, Ns::Backend, "nginx", &listen, &[&small])?;
        nginx.proc.pin("1")?;
        let mut running = start(lab, which, mode)?;
        let port = if mode == Mode::Http { HTTP_PORT } else { TCP_PORT };
        let options =
            WrkOptions { threads: 1, connections: 64, cpus: Some("1".into()), ..WrkOptions::new(seconds, close) };
        let before = cpu::seconds(&running.pids)?;
        let wrk = clients::wrk(lab, &format!("http://{FRONT}:{port}/64"), &options)?;
        let used = cpu::seconds(&running.pids)? - before;
        wrk.clean()?;
        if let Some(proxy) = &mut running.ours {
            proxy.stop()?;
        }
        if let Some(proc) = &mut running.proc {
            // HAProxy's status after SIGTERM is 143.
            proc.terminate(Duration::from_secs(15))?;
        }
        rates =
            Some(Rates { per_cpu_second: wrk.requests as f64 / used.max(0.01), rate: wrk.rate(), p99_us: wrk.p99_us });
        Ok(())
    })?;
    rates.context("nothing was measured")
}

fn proxies(run: &mut Run) -> Result<()> {
    let (rounds, seconds) = run.choose((1, 1), (3, 3));
    let mut rows = Vec::new();
    for (mode, mode_name) in run.few(&[(Mode::Http, "HTTP"), (Mode::Tcp, "TCP")]).to_vec() {
        for (close, load) in run.few(&[(false, "keep-alive"), (true, "new connections")]).to_vec() {
            let mut figures: Vec<Vec<Rates>> = PROXIES.iter().map(|_| Vec::new()).collect();
            for _ in 0..rounds {
                for ((name, which), figures) in PROXIES.iter().zip(&mut figures) {
                    // The goal needs only these two, which suffices for a smoke run.
                    if run.smoke && !matches!(which, Which::Ours(Stack::Fastsock) | Which::Haproxy) {
                        continue;
                    }
                    // Pingora proxies HTTP only.
                    if (*which, mode) == (Which::Pingora, Mode::Tcp) {
                        continue;
                    }
                    let what = format!("{name}, {mode_name}, {load}");
                    figures.extend(run.attempt(&what, measure(*which, mode, close, seconds)));
                }
            }
            let middle = |rates: &[Rates], of: fn(&Rates) -> f64| median(rates.iter().map(of));
            for ((name, _), rates) in PROXIES.iter().zip(&figures).filter(|(_, rates)| !rates.is_empty()) {
                rows.push(vec![
                    format!("{name}, {mode_name}, {load}"),
                    number(middle(rates, |rates| rates.per_cpu_second)),
                    number(middle(rates, |rates| rates.rate)),
                    number(middle(rates, |rates| rates.p99_us)),
                ]);
            }
            if mode == Mode::Http {
                let ratio = middle(&figures[0], |rates| rates.per_cpu_second)
                    / middle(&figures[2], |rates| rates.per_cpu_second);
                run.items.push(Item::Goal(Goal {
                    goal: format!("fs-proxy ≥ 1.5 × HAProxy's requests per CPU second, {load}"),
                    measured: format!("{} ×", number(ratio)),
                    met: ratio >= 1.5,
                }));
            }
        }
    }
    run.items.push(Item::Table(Table {
        title: "Proxies".into(),
        paper: "Fastsocket's application is HAProxy. Its paper has 24 cores; one is what a machine with two can give a proxy beside its clients.".into(),
        means: "A proxy's own CPU seconds leave out the interrupts that run for it on the sender's CPU, alike for all; one that polls uses all of its CPU.".into(),
        head: ["proxy", "requests per CPU second", "requests/s", "p99, µs"].map(String::from).to_vec(),
        rows,
    }));
    Ok(())
}

/// Measures echo servers.
fn servers(run: &mut Run) {
    let seconds = run.choose(1, 3);
    let mut rows = Vec::new();
    let mut add = |run: &mut Run, name: &str, measured: Result<(f64, f64, f64)>| {
        if let Some((rate, per_cpu_second, p99)) = run.attempt(name, measured) {
            rows.push(vec![name.to_owned(), number(rate), number(per_cpu_second), number(p99)]);
        }
    };
    for (name, stack) in
        [("fs-echo on fastsock", Stack::Fastsock), ("fs-echo on tokio and the kernel's sockets", Stack::Kernel)]
    {
        add(run, name, echo(stack, seconds));
    }
    add(run, "monoio (io_uring, the kernel's TCP)", monoio(seconds));
    add(run, "smoltcp over AF_PACKET", smoltcp(seconds));
    // gVisor's netstack needs Go.
    if !run.smoke {
        add(run, "gVisor's netstack over AF_PACKET (gonet)", gvisor(seconds));
    }
    run.items.push(Item::Table(Table {
        title: "Servers over the wire".into(),
        paper: "User-space stacks that can be had today.".into(),
        means: "The same client on the kernel's sockets loads each; it is what bounds the fastest.".into(),
        head: ["server", "messages/s", "messages per CPU second", "p99, µs"].map(String::from).to_vec(),
        rows,
    }));
}

fn echo_load(lab: &Lab, from: Ns, host: &str, seconds: u32, pid: u32) -> Result<(f64, f64, f64)> {
    let client = StackOptions { cores: vec![1], ..StackOptions::new(Stack::Kernel) };
    let load =
        Load { connections: 64, seconds, body: Some(64), ..Load::new(LoadMode::PingPong, host, ECHO_PORT, client) };
    let before = cpu::seconds(&[pid])?;
    let result = load.run(lab, from)?;
    let used = cpu::seconds(&[pid])? - before;
    Ok((result.requests_per_second, result.requests as f64 / used.max(0.01), result.p99_us))
}

fn echo(stack: Stack, seconds: u32) -> Result<(f64, f64, f64)> {
    let lab = Lab::require(&["--queues", "1"])?;
    let mut result = None;
    lab.check(|lab| {
        let on = StackOptions { cores: vec![0], ..StackOptions::new(stack) };
        let mut server = servers::echo(lab, Ns::Host, FRONT, &[], &on)?;
        result = Some(echo_load(lab, Ns::Client, FRONT, seconds, server.proc.pid())?);
        server.stop()
    })?;
    result.context("nothing was measured")
}

/// An address in addition to the backend's, for stacks with their own address.
const OWN: &str = "10.77.2.9";

/// The program of the servers on other stacks, `experiments-peer`.
fn peer() -> Result<std::path::PathBuf> {
    let path = std::env::current_exe()?.with_file_name("experiments-peer");
    ensure!(path.exists(), "{} is not built", path.display());
    Ok(path)
}

/// Loads the server of `command`, pinned to CPU 0, at `host`.
fn other(lab: &Lab, command: &mut Command, from: Ns, host: &str, seconds: u32) -> Result<(f64, f64, f64)> {
    let mut proc = lab.spawn("peer", command)?;
    fs_tests::wire::ready(&mut proc)?;
    proc.pin("0")?;
    let result = echo_load(lab, from, host, seconds, proc.pid())?;
    proc.kill()?;
    Ok(result)
}

fn monoio(seconds: u32) -> Result<(f64, f64, f64)> {
    let lab = Lab::require(&["--queues", "1"])?;
    let mut result = None;
    lab.check(|lab| {
        let mut command = lab.command(Ns::Host, peer()?);
        command.args(["monoio", &format!("{FRONT}:{ECHO_PORT}")]);
        result = Some(other(lab, &mut command, Ns::Client, FRONT, seconds)?);
        Ok(())
    })?;
    result.context("nothing was measured")
}

fn smoltcp(seconds: u32) -> Result<(f64, f64, f64)> {
    // Offloads are off, as for gVisor.
    let lab = Lab::require(&["--queues", "1", "--offload", "off"])?;
    let mut result = None;
    lab.check(|lab| {
        let mut command = lab.command(Ns::Backend, peer()?);
        command.args(["smoltcp", "backend0", &format!("{OWN}/24"), &ECHO_PORT.to_string()]);
        result = Some(other(lab, &mut command, Ns::Host, OWN, seconds)?);
        Ok(())
    })?;
    result.context("nothing was measured")
}

fn gvisor(seconds: u32) -> Result<(f64, f64, f64)> {
    let gvisor = Gvisor::build()?.context("gvisor-peer cannot be built (Go 1.23 or newer)")?;
    // AF_PACKET receives copies of the kernel's packets, whose checksums and segmentation are still
    // outstanding.
    let lab = Lab::require(&["--queues", "1", "--offload", "off"])?;
    let mut result = None;
    lab.check(|lab| {
        // The last of two options applies: an address in addition to the backend's.
        let mut command = gvisor.command(lab, &["-addr", &format!("{OWN}/24"), "-listen", &ECHO_PORT.to_string()]);
        result = Some(other(lab, &mut command, Ns::Host, OWN, seconds)?);
        Ok(())
    })?;
    result.context("nothing was measured")
}

/// Measures redis on one host.
fn one_host(run: &mut Run) {
    let requests = if run.smoke { "5000" } else { run.choose("50000", "500000") };
    let mut rows = Vec::new();
    let (mut unix, mut sockmap): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for clients in run.few(&["50", "1"]).to_vec() {
        let mut rates = Vec::new();
        for (name, by) in [
            ("redis under fastsock run", By::Ours),
            ("redis on loopback TCP", By::Loopback),
            ("redis on loopback TCP, sockmap redirect", By::Sockmap),
            ("redis on AF_UNIX", By::Unix),
        ] {
            let what = format!("{name}, {clients} clients");
            // Tests also run without permission to create a cgroup.
            if run.smoke
                && by == By::Sockmap
                && let Err(error) = Sockmap::start()
            {
                println!("  {what}: skipped: {error:#}");
                continue;
            }
            if let Some(rate) = run.attempt(&what, redis(by, clients, requests)) {
                rows.push(vec![what, number(rate)]);
                rates.push((by, rate));
            }
        }
        let rate = |by| Some(rates.iter().find(|(of, _)| *of == by)?.1);
        for (peer, ratios) in [(By::Unix, &mut unix), (By::Sockmap, &mut sockmap)] {
            ratios.extend(rate(By::Ours).zip(rate(peer)).map(|(ours, peer)| ours / peer));
        }
    }
    for (peer, ratios) in [("AF_UNIX", unix), ("sockmap redirect", sockmap)] {
        let range = ratios.iter().copied().reduce(f64::min).zip(ratios.iter().copied().reduce(f64::max));
        run.items.push(Item::Goal(Goal {
            goal: format!("redis under fastsock run ahead of {peer}"),
            measured: times(range),
            met: range.is_some_and(|(least, _)| least > 1.0),
        }));
    }
    run.items.push(Item::Table(Table {
        title: "One host: redis GET".into(),
        paper: "Paper (SocksDirect): redis' latency falls with the socket's.".into(),
        means: "AF_UNIX is what a user would configure by hand for a neighbour on the host; under `fastsock run` nothing is configured.".into(),
        head: ["", "requests/s"].map(String::from).to_vec(),
        rows,
    }));
}

/// The transport of a connection between two processes of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Ours,
    Loopback,
    Sockmap,
    Unix,
}

fn redis(by: By, clients: &str, requests: &str) -> Result<f64> {
    const PORT: u16 = 7800;
    let lab = Lab::require(&["--queues", "1"])?;
    let placement = if by == By::Ours { Placement::OneHost } else { Placement::Kernel };
    let unix = by == By::Unix;
    // Started before server and clients, which belong to its cgroup.
    let sockmap = if by == By::Sockmap { Some(Sockmap::start().context("sockmap")?) } else { None };
    let mut rate = None;
    lab.check(|lab| {
        let mut stage = Stage::set(lab, placement)?;
        let socket = lab.dir().join("redis.sock").display().to_string();
        stage.cpu = Some(1);
        let mut command = stage.server("redis-server");
        command.args(["--bind", stage.host, "--port", &PORT.to_string(), "--save", "", "--appendonly", "no"]);
        command.args(["--unixsocket", &socket, "--protected-mode", "no"]);
        let server = stage.serve("redis", &mut command, PORT)?;
        stage.cpu = Some(0);
        let port = PORT.to_string();
        let to: &[&str] = if unix { &["-s", &socket] } else { &["-h", stage.host, "-p", &port] };
        let arguments = [to, &["-n", requests, "-c", clients, "-t", "get", "--csv"]].concat();
        let text = stage.run("redis-benchmark", &arguments)?;
        let line = text
            .lines()
            .find(|line| line.starts_with("\"GET\""))
            .with_context(|| format!("redis-benchmark printed {text}"))?;
        let field = line.split("\",\"").nth(1).map(|field| field.trim_matches('"')).context("no rate")?;
        rate = Some(field.parse().with_context(|| line.to_owned())?);
        fs_tests::unmodified::programs::Server::from(server).end()?;
        stage.end()
    })?;
    if let Some(sockmap) = sockmap {
        let (redirected, asked) = (sockmap.end()?, requests.parse()?);
        ensure!(redirected >= asked, "the kernel redirected {redirected} messages of {asked} requests");
    }
    rate.context("nothing was measured")
}
