//! mTCP's applications: lighttpd and ab, unmodified on one host, and an SSL proxy ([`crate::ssl`]).

use crate::outcome::{Item, Table, number, times};
use crate::{Run, ssl};
use anyhow::{Context, Result, ensure};
use fs_tests::body;
use fs_tests::lab::Lab;
use fs_tests::unmodified::programs::Server;
use fs_tests::unmodified::{Placement, Stage};
use std::path::{Path, PathBuf};

pub(crate) const ABOUT: &str = "\
The paper ported lighttpd and ab to its own calls, and SSLShader, a proxy that ends TLS. Here Debian's lighttpd and ab run unmodified under `fastsock run` on one host, on a CPU each; the SSL proxies, over veth, are HAProxy with
`nbthread 1` and nginx with one worker, on the kernel's sockets, and fs-proxy, which has either stack in its own process. The proxy has CPU 0, its client CPU 1. lighttpd has one process and Debian's defaults but for the
number of requests on a connection. Paper: applications gain 33 % (SSLShader) to 320 % (lighttpd) on eight cores with a 10 Gb/s card.";

const PORT: u16 = 7900;
/// Loads, and whether each closes its connections.
const LOADS: [(&str, bool); 2] = [("new connections", true), ("keep-alive", false)];

pub(crate) fn run(run: &mut Run) -> Result<()> {
    ab(run);
    ssl::proxies(run)
}

/// Writes lighttpd's configuration and its file.
fn site(dir: &Path, host: &str, file: (&'static str, u64)) -> Result<PathBuf> {
    let root = dir.join("lighttpd");
    std::fs::create_dir_all(&root)?;
    std::fs::copy(body::body(file)?.path, root.join(file.0))?;
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

/// Placements of ab and lighttpd, with their names on the page.
const PLACES: [(&str, Placement); 2] =
    [("both under fastsock run", Placement::OneHost), ("both on the kernel's sockets", Placement::Kernel)];

fn ab(run: &mut Run) {
    let seconds = run.choose(1, 3);
    let mut rows = Vec::new();
    let mut found = Vec::new();
    for (name, placement) in PLACES {
        let rates = asked(run, placement, seconds);
        let rates = run.attempt(&format!("ab, {name}"), rates);
        if let Some([new, kept]) = rates {
            rows.push(vec![name.to_owned(), number(new), number(kept)]);
        }
        found.push(rates);
    }
    let ratio = |at: usize| Some(found[0]?[at] / found[1]?[at]);
    let of = |at: usize| times(ratio(at).map(|ratio| (ratio, ratio)));
    let means = format!(
        "Both under `fastsock run` exchange {} the answers of the kernel's loopback device with new connections, {} with kept ones. ab has one thread, and asks on 64 connections for a file of 64 \
         bytes.",
        of(0),
        of(1)
    );
    run.items.push(Item::Table(Table {
        title: "ab and lighttpd on one host".into(),
        paper: "ab is among the programs that the paper ported.".into(),
        means,
        head: ["", "requests/s, new connections", "requests/s, keep-alive"].map(String::from).to_vec(),
        rows,
    }));
}

/// Returns requests per second of ab on CPU 1 from lighttpd on CPU 0, by load.
fn asked(run: &Run, placement: Placement, seconds: u32) -> Result<[f64; 2]> {
    let lab = Lab::require(&["--queues", "1"])?;
    let mut rates = [0.0; 2];
    lab.check(|lab| {
        let mut stage = run.stage(Stage::set(lab, placement)?);
        stage.cpu = Some(0);
        let config = site(lab.dir(), stage.host, body::SMALL)?;
        let mut command = stage.server("lighttpd");
        let server = stage.serve("lighttpd", command.args(["-D", "-f"]).arg(&config), PORT)?;
        stage.cpu = Some(1);
        let url = format!("http://{}:{PORT}/{}", stage.host, body::SMALL.0);
        for (rate, (_, close)) in rates.iter_mut().zip(LOADS) {
            let seconds = seconds.to_string();
            // More requests than the time allows. ab keeps a record of each.
            let mut arguments = vec!["-q", "-c", "64", "-t", &seconds, "-n", "2000000"];
            arguments.extend((!close).then_some("-k"));
            arguments.push(&url);
            let before = stage.reported();
            *rate = per_second(&stage.run("ab", &arguments)?)?;
            // A connection with one request is too short for a ring.
            if !close {
                stage.proven(before)?;
            }
        }
        Server::from(server).end()?;
        stage.end()
    })?;
    Ok(rates)
}

/// Returns the rate that ab printed. Returns an error unless every
/// request was answered without error.
fn per_second(report: &str) -> Result<f64> {
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
    Ok(rate)
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
        assert_eq!(per_second(&report("0", "Keep-Alive requests:    20000\n")).unwrap(), 13351.23);
        assert!(per_second(&report("3", "   (Connect: 0, Receive: 0, Length: 3, Exceptions: 0)\n")).is_err());
        assert!(per_second(&report("0", "Non-2xx responses:      20000\n")).is_err());
        assert!(per_second("apr_socket_recv: Connection reset by peer (104)").is_err());
    }
}
