//! mTCP's applications: lighttpd and ab, unmodified, and an SSL proxy ([`crate::ssl`]).

use crate::outcome::{self, Figure, Item, Series, Table, number, times};
use crate::{Run, cpu, server, ssl};
use anyhow::{Context, Result, ensure};
use fs_tests::body;
use fs_tests::clients::{self, WrkOptions};
use fs_tests::lab::{FRONT, Lab, Ns};
use fs_tests::process::Proc;
use fs_tests::unmodified::programs::Server;
use fs_tests::unmodified::{Placement, Stage};
use std::path::{Path, PathBuf};

pub(crate) const ABOUT: &str = "\
The paper ported lighttpd and ab to its own calls, and SSLShader, a proxy that ends TLS. Here Debian's lighttpd and ab run unmodified under `fastsock run`; the SSL proxies are HAProxy with
`nbthread 1` and nginx with one worker, unmodified as well, and fs-proxy, which has either stack in its own process. Over veth the server or proxy has CPU 0, with the daemon that serves it, its client CPU 1. lighttpd has one process and Debian's defaults but for the
number of requests on a connection; its client is wrk with 64 connections, on the kernel's sockets. Paper: applications gain 33 % (SSLShader) to 320 % (lighttpd) on eight cores with a 10 Gb/s card.";

const PORT: u16 = 7900;
/// Requested files, with their lengths.
const FILES: [(&str, u64); 3] = [body::SMALL, ("8k", 8 << 10), ("64k", 64 << 10)];
/// Loads, and whether each closes its connections.
const LOADS: [(&str, bool); 2] = [("new connections", true), ("keep-alive", false)];

pub(crate) fn run(run: &mut Run) -> Result<()> {
    lighttpd(run);
    ab(run);
    ssl::proxies(run)
}

/// Requests per second, and per CPU second of the server's processes.
type Rates = (f64, f64);

fn lighttpd(run: &mut Run) {
    let files = run.few(run.choose(&[FILES[0], FILES[2]][..], &FILES[..])).to_vec();
    let seconds = run.choose(1, 3);
    let mut rates = Vec::new();
    let mut of_cpu = Vec::new();
    for (name, preloaded) in [("fastsock", true), ("kernel", false)] {
        let found = run.attempt(&format!("lighttpd, {name}"), serve(preloaded, &files, seconds));
        for (at, (load, _)) in LOADS.iter().enumerate() {
            let name = format!("{name}, {load}");
            let values = |of: fn(&Rates) -> f64| {
                let value = |file: usize| found.as_ref().map(|found| of(&found[file][at]));
                (0..files.len()).map(value).collect()
            };
            rates.push(Series { name: name.clone(), values: values(|rates| rates.0) });
            of_cpu.push(Series { name, values: values(|rates| rates.1) });
        }
    }
    let categories: Vec<String> = files.iter().map(|(_, len)| outcome::size(*len as usize)).collect();
    let figure = |name: &str, title: &str, paper: &str, unit: &str, series| Figure {
        name: name.into(),
        title: title.into(),
        paper: paper.into(),
        means: String::new(),
        over: "file".into(),
        categories: categories.clone(),
        unit: unit.into(),
        log: true,
        series,
    };
    let paper = "Paper, abstract: mTCP improves applications by up to 320 %, which is lighttpd, on eight cores.";
    let mut all = figure("mtcp-lighttpd", "lighttpd over the wire, by size of the file", paper, "requests/s", rates);
    let paper = "Where its one client bounds a server, what it answers for a second of its CPU tells the two apart.";
    let title = "lighttpd over the wire, by CPU second";
    let mut each = figure("mtcp-lighttpd-cpu", title, paper, "requests/CPU second", of_cpu);
    let larger = " Files larger than a frame go over veth 64 KiB at a time on the kernel's sockets, by frames of the MTU on ours, as under Bulk.";
    for (figure, what) in [(&mut all, "requests"), (&mut each, "requests for a CPU second")] {
        let ratio = |load: &str| times(figure.ratios(&format!("fastsock, {load}"), &format!("kernel, {load}")));
        let (new, kept) = (ratio(LOADS[0].0), ratio(LOADS[1].0));
        figure.means = format!(
            "lighttpd under `fastsock run` answers {new} the {what} that it does on the kernel's sockets with new connections, {kept} with kept ones."
        );
    }
    all.means += larger;
    each.means += " Ours counts lighttpd and the daemon, the kernel's lighttpd alone: the interrupts of its packets run on the sender's CPU.";
    run.items.extend([Item::Figure(all), Item::Figure(each)]);
}

/// Writes lighttpd's configuration and its files.
fn site(dir: &Path, host: &str, files: &[(&'static str, u64)]) -> Result<PathBuf> {
    let root = dir.join("lighttpd");
    std::fs::create_dir_all(&root)?;
    for &file in files {
        std::fs::copy(body::body(file)?.path, root.join(file.0))?;
    }
    let config = dir.join("lighttpd.conf");
    std::fs::write(
        &config,
        format!(
            "server.document-root = \"{}\"\nserver.bind = \"{host}\"\nserver.port = {PORT}\nserver.max-keep-alive-requests = 60000\n\
             server.errorlog = \"{}\"\n",
            root.display(),
            dir.join("lighttpd.log").display()
        ),
    )?;
    Ok(config)
}

/// Measures lighttpd on CPU 0. Returns the rates of each file by load.
fn serve(preloaded: bool, files: &[(&'static str, u64)], seconds: u32) -> Result<Vec<[Rates; 2]>> {
    let lab = Lab::require(&["--queues", "1"])?;
    let mut found = Vec::new();
    lab.check(|lab| {
        let config = site(lab.dir(), FRONT, files)?;
        let started: (Option<Stage>, Proc) = if preloaded {
            let mut stage = Stage::set(lab, Placement::Server)?;
            stage.cpu = Some(0);
            let mut command = stage.server("lighttpd");
            let proc = stage.serve("lighttpd", command.args(["-D", "-f"]).arg(&config), PORT)?;
            (Some(stage), proc)
        } else {
            let mut command = lab.command(Ns::Host, "taskset");
            command.args(["-c", "0", "lighttpd", "-D", "-f"]).arg(&config);
            (None, server::reached(lab, "lighttpd", &mut command, PORT)?)
        };
        let (stage, proc) = started;
        let mut pids = vec![proc.pid()];
        pids.extend(stage.as_ref().and_then(Stage::daemon_pid));
        for (file, len) in files {
            let mut rates = [(0.0, 0.0); 2];
            for (rates, (_, close)) in rates.iter_mut().zip(LOADS) {
                let options = WrkOptions {
                    threads: 1,
                    connections: 64,
                    cpus: Some("1".into()),
                    ..WrkOptions::new(seconds, close)
                };
                let counted = stage.as_ref().map(Stage::counters).transpose()?;
                let before = cpu::seconds(&pids)?;
                let wrk = clients::wrk(lab, &format!("http://{FRONT}:{PORT}/{file}"), &options)?;
                let used = cpu::seconds(&pids)? - before;
                wrk.clean()?;
                if let Some((stage, counted)) = stage.as_ref().zip(counted) {
                    stage.proven(&counted, wrk.requests * len)?;
                }
                *rates = (wrk.rate(), wrk.requests as f64 / used.max(0.01));
            }
            found.push(rates);
        }
        Server::from(proc).end()?;
        stage.map_or(Ok(()), Stage::end)
    })?;
    Ok(found)
}

/// Placements of ab and lighttpd, with their names on the page.
const PLACES: [(&str, Placement); 4] = [
    ("two hosts, ab under fastsock run, lighttpd on the kernel's sockets", Placement::Client),
    ("two hosts, both on the kernel's sockets", Placement::KernelWire),
    ("one host, both under fastsock run", Placement::OneHost),
    ("one host, both on the kernel's sockets", Placement::Kernel),
];

fn ab(run: &mut Run) {
    let seconds = run.choose(1, 3);
    let mut rows = Vec::new();
    let mut found = Vec::new();
    for (name, placement) in PLACES {
        let rates = run.attempt(&format!("ab, {name}"), asked(placement, seconds));
        if let Some([new, kept]) = rates {
            rows.push(vec![name.to_owned(), number(new), number(kept)]);
        }
        found.push(rates);
    }
    let ratio = |ours: usize, kernel: usize| {
        let [ours, kernel] = [found[ours]?, found[kernel]?];
        let (new, kept) = (ours[0] / kernel[0], ours[1] / kernel[1]);
        Some((new.min(kept), new.max(kept)))
    };
    let means = format!(
        "ab under `fastsock run` gets {} the answers that it does on the kernel's sockets from the same lighttpd over the wire, and both by memory on one host {} those of the kernel's loopback \
         device. ab has one thread, and asks on 64 connections for a file of 64 bytes.",
        times(ratio(0, 1)),
        times(ratio(2, 3))
    );
    run.items.push(Item::Table(Table {
        title: "ab".into(),
        paper: "ab is among the programs that the paper ported.".into(),
        means,
        head: ["", "requests/s, new connections", "requests/s, keep-alive"].map(String::from).to_vec(),
        rows,
    }));
}

/// Returns requests per second of ab on CPU 1 from lighttpd on CPU 0, by load.
fn asked(placement: Placement, seconds: u32) -> Result<[f64; 2]> {
    let lab = Lab::require(&["--queues", "1"])?;
    let mut rates = [0.0; 2];
    lab.check(|lab| {
        let mut stage = Stage::set(lab, placement)?;
        if placement == Placement::Client
            && let Some(daemon) = stage.daemon()
        {
            daemon.proc.pin("1")?;
        }
        stage.cpu = Some(0);
        let config = site(lab.dir(), stage.host, &FILES[..1])?;
        let mut command = stage.server("lighttpd");
        let server = stage.serve("lighttpd", command.args(["-D", "-f"]).arg(&config), PORT)?;
        stage.cpu = Some(1);
        let url = format!("http://{}:{PORT}/{}", stage.host, FILES[0].0);
        for (rate, (_, close)) in rates.iter_mut().zip(LOADS) {
            let seconds = seconds.to_string();
            // More requests than the time allows. ab keeps a record of each.
            let mut arguments = vec!["-q", "-c", "64", "-t", &seconds, "-n", "2000000"];
            arguments.extend((!close).then_some("-k"));
            arguments.push(&url);
            let counted = stage.counters()?;
            let (answers, found) = per_second(&stage.run("ab", &arguments)?)?;
            stage.proven(&counted, answers * FILES[0].1)?;
            *rate = found;
        }
        Server::from(server).end()?;
        stage.end()
    })?;
    Ok(rates)
}

/// Returns the number of answers and the rate that ab printed. Returns an error unless every
/// request was answered without error.
fn per_second(report: &str) -> Result<(u64, f64)> {
    let value = |name: &str| {
        let line = report.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line[name.len()..].split_whitespace().next()?.parse::<f64>().ok())
    };
    let failed = value("Failed requests:").with_context(|| format!("ab printed {report}"))?;
    ensure!(failed == 0.0 && value("Non-2xx responses:").is_none(), "ab met failures:\n{report}");
    let (answers, rate) = value("Complete requests:")
        .zip(value("Requests per second:"))
        .with_context(|| format!("ab printed {report}"))?;
    ensure!(answers > 0.0, "ab got no answer:\n{report}");
    Ok((answers as u64, rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ab_output_is_rate_only_without_failures() {
        let report = |failed: &str, more: &str| {
            format!(
                "Concurrency Level:      64\nComplete requests:      20000\nFailed requests:        {failed}\n{more}\
                 Requests per second:    13351.23 [#/sec] (mean)\nTime per request:       4.794 [ms] (mean)\n"
            )
        };
        assert_eq!(per_second(&report("0", "Keep-Alive requests:    20000\n")).unwrap(), (20000, 13351.23));
        assert!(per_second(&report("3", "   (Connect: 0, Receive: 0, Length: 3, Exceptions: 0)\n")).is_err());
        assert!(per_second(&report("0", "Non-2xx responses:      20000\n")).is_err());
        assert!(per_second("apr_socket_recv: Connection reset by peer (104)").is_err());
    }
}
