//! `make demo`: the proxy on fastsock, then the same program on kernel sockets, between the same
//! clients and the same nginx. It compares bodies by digest, measures both with wrk, and writes a
//! report.
//!
//! `lab/demo` installs, builds and starts it. `FS_DEMO_LINK=packet` runs fastsock over AF_PACKET,
//! which needs no root.

mod report;

use anyhow::{Context, Result};
use fs_tests::apps::LinkChoice;
use fs_tests::body::{self, Body};
use fs_tests::clients::{self, Wrk, WrkOptions};
use fs_tests::proxy::{Mode, Proxy, ProxyOptions};
use fs_tests::{Lab, Nginx, Ns, Stack};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

/// Connections of wrk.
const CONNECTIONS: u32 = 64;
/// Seconds per measurement.
const SECONDS: u32 = 3;

/// One measurement of one proxy.
pub(crate) struct Sample {
    /// The proxy's stack.
    pub(crate) stack: Stack,
    /// The proxy's mode.
    pub(crate) mode: Mode,
    /// True if each request uses a new connection.
    pub(crate) close: bool,
    /// wrk's results.
    pub(crate) wrk: Wrk,
    /// CPU seconds of the proxy in that time.
    pub(crate) cpu_seconds: f64,
}

impl Sample {
    /// Returns requests per CPU second of the proxy.
    pub(crate) fn per_cpu_second(&self) -> f64 {
        self.wrk.requests as f64 / self.cpu_seconds.max(0.01)
    }

    /// Returns the load's name for tables.
    pub(crate) fn load(&self) -> String {
        let mode = match self.mode {
            Mode::Tcp => "TCP",
            Mode::Http => "HTTP",
        };
        format!("{mode}, {}", if self.close { "new connection each" } else { "keep-alive" })
    }
}

/// Texts of the report besides the figures.
pub(crate) struct Setting {
    /// fastsock's link.
    pub(crate) link: LinkChoice,
    /// Compared bodies, for the text.
    pub(crate) compared: Vec<String>,
    /// Executed commands, so that a reader can repeat them.
    pub(crate) commands: Vec<String>,
    /// The proxy's configuration.
    pub(crate) config: String,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("demo: FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let link = match std::env::var("FS_DEMO_LINK").as_deref() {
        Err(_) | Ok("xdp") => LinkChoice::Xdp,
        Ok("packet") => LinkChoice::Packet,
        Ok(other) => anyhow::bail!("FS_DEMO_LINK={other}: xdp or packet"),
    };
    // AF_PACKET receives copies of the kernel's packets, whose checksums and segmentation are still
    // outstanding.
    let arguments: &[&str] = if link == LinkChoice::Packet { &["--offload", "off"] } else { &[] };
    let lab = Lab::require(arguments)?;
    let result = show(&lab, link);
    if result.is_err() {
        lab.print_logs();
    }
    result
}

fn show(lab: &Lab, link: LinkChoice) -> Result<()> {
    let bodies = [body::EMPTY, body::ONE, body::SMALL, body::TEN_KIB, body::MIB, body::TEN_MIB].map(body::body);
    let bodies = bodies.into_iter().collect::<Result<Vec<_>>>()?;
    let listen = vec![format!("{}:80", fs_tests::lab::BACKEND), format!("[{}]:80", fs_tests::lab::BACKEND6)];
    let nginx = Nginx::start(lab, Ns::Backend, "nginx", &listen, &bodies.iter().collect::<Vec<_>>())?;
    say("backend: nginx in its own namespace, behind the proxy's");
    let mut setting = Setting { link, compared: Vec::new(), commands: Vec::new(), config: String::new() };
    let mut samples = Vec::new();
    for stack in [Stack::Fastsock, Stack::Kernel] {
        let name = match (stack, link) {
            (Stack::Fastsock, LinkChoice::Xdp) => "fastsock over AF_XDP",
            (Stack::Fastsock, LinkChoice::Packet) => "fastsock over AF_PACKET",
            (Stack::Kernel, _) => "kernel sockets",
        };
        let options = ProxyOptions { link, ..ProxyOptions::new(stack) };
        let mut proxy = Proxy::start(lab, &options)?;
        say(&format!("proxy: {name}"));
        let compared = compare(lab, &proxy, &bodies, &nginx)?;
        setting.compared.push(format!("{name}: {compared}"));
        for mode in [Mode::Http, Mode::Tcp] {
            for close in [false, true] {
                samples.push(measure(lab, &proxy, stack, mode, close)?);
            }
        }
        if stack == Stack::Fastsock {
            setting.config = proxy.config.clone();
        }
        setting.commands.push(proxy.command_line.clone());
        proxy.stop()?;
    }
    println!("\n{}", table(&samples));
    let path = fs_tests::apps::target_dir().join("demo/report.html");
    report::write(&path, &samples, &setting).with_context(|| format!("cannot write {}", path.display()))?;
    say(&format!("report: {}", path.canonicalize()?.display()));
    Ok(())
}

/// Sends every body in both directions through both modes of the proxy.
fn compare(lab: &Lab, proxy: &Proxy, bodies: &[Body], nginx: &Nginx) -> Result<String> {
    for mode in [Mode::Http, Mode::Tcp] {
        for base in [proxy.url(mode), proxy.url6(mode)] {
            for body in bodies {
                clients::download(lab, &base, body)?;
                clients::upload(lab, &base, body, nginx.uploads())?;
            }
        }
    }
    let sizes: Vec<String> = bodies.iter().map(|body| body.len.to_string()).collect();
    let text = format!(
        "bodies of {} bytes, down and up, HTTP and TCP proxy, IPv4 and IPv6: every SHA-256 equal",
        sizes.join(", ")
    );
    say(&format!("  curl: {text}"));
    Ok(text)
}

fn measure(lab: &Lab, proxy: &Proxy, stack: Stack, mode: Mode, close: bool) -> Result<Sample> {
    let url = format!("{}/{}", proxy.url(mode), body::SMALL.0);
    let options = WrkOptions { connections: CONNECTIONS, ..WrkOptions::new(SECONDS, close) };
    let before = proxy.proc.cpu_seconds()?;
    let wrk = clients::wrk(lab, &url, &options)?;
    let sample = Sample { stack, mode, close, cpu_seconds: proxy.proc.cpu_seconds()? - before, wrk };
    say(&format!("  wrk: {:<26} {:>9.0}/s", sample.load(), sample.wrk.rate()));
    sample.wrk.clean().with_context(|| format!("{}, {}", stack.name(), sample.load()))?;
    Ok(sample)
}

/// Formats a table of both proxies by load.
fn table(samples: &[Sample]) -> String {
    let mut text = String::new();
    let head = ["", "stack", "requests/s", "connections/s", "p50 µs", "p99 µs", "CPU s", "requests/CPU s"];
    let _ = writeln!(
        text,
        "{:<26}{:<10}{:>12}{:>15}{:>10}{:>10}{:>8}{:>16}",
        head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7]
    );
    for (ours, kernel) in pairs(samples) {
        for sample in [ours, kernel] {
            let rate = sample.wrk.rate();
            let connections = if sample.close { format!("{rate:.0}") } else { "–".into() };
            let _ = writeln!(
                text,
                "{:<26}{:<10}{:>12.0}{:>15}{:>10.0}{:>10.0}{:>8.2}{:>16.0}",
                sample.load(),
                sample.stack.name(),
                rate,
                connections,
                sample.wrk.p50_us,
                sample.wrk.p99_us,
                sample.cpu_seconds,
                sample.per_cpu_second()
            );
        }
    }
    text
}

/// Returns each load's two samples: ours, the kernel's.
pub(crate) fn pairs(samples: &[Sample]) -> impl Iterator<Item = (&Sample, &Sample)> {
    let (ours, kernel) = samples.split_at(samples.len() / 2);
    ours.iter().zip(kernel)
}

fn say(line: &str) {
    println!("{line}");
    // A closed pipe must not stop the demo.
    let _ = std::io::stdout().flush();
}
