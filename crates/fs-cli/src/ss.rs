//! `fastsock ss`: lists connections that have a ring, and those that were refused one, with the reason.

use crate::control::ControlArgs;
use crate::services::{self, Host};
use crate::warn;
use anyhow::Context;
use fs_pairs::listing::{Process, Row, list};
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Omit the header line.
    #[arg(long, short = 'H')]
    no_header: bool,
    /// Print the connections as JSON.
    #[arg(long, conflicts_with = "no_header")]
    json: bool,
    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn ss(args: Args) -> anyhow::Result<ExitCode> {
    let daemon = args.control.daemon()?;
    let rows = list(&daemon).with_context(|| format!("cannot read the list of the daemon at {}", daemon.display()))?;
    let text = if args.json {
        format!("{:#}\n", serde_json::json!({ "pairs": json(&rows) }))
    } else {
        table(&rows, !args.no_header)
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    for state in services::without_library(&Host::this()) {
        warn(format_args!("{state}"));
    }
    Ok(ExitCode::SUCCESS)
}

const HEADINGS: [&str; 8] =
    ["Netns", "Address:Port", "Other Address:Port", "Ring-Bytes", "Kernel-Bytes", "Since", "Reason", "Processes"];

/// Formats the columns of [`table`] as objects.
fn json(rows: &[Row]) -> serde_json::Value {
    let object = |row: &Row| {
        let processes: Vec<_> = row
            .ends
            .iter()
            .filter(|end| **end != Process::default())
            .map(|end| serde_json::json!({ "process": end.name(), "pid": end.pid, "uid": end.uid }))
            .collect();
        let [forth, back] = row.traffic;
        serde_json::json!({
            "netns": row.netns,
            "local": row.local.to_string(),
            "peer": row.peer.to_string(),
            "ring_bytes": forth.ring.saturating_add(back.ring),
            "kernel_bytes": forth.kernel.saturating_add(back.kernel),
            "seconds": row.age.as_secs(),
            "pinned": forth.is_pinned || back.is_pinned,
            "reason": row.refused.map(|reason| reason.to_string()),
            "processes": processes,
        })
    };
    rows.iter().map(object).collect()
}

/// Formats a table.
fn table(rows: &[Row], header: bool) -> String {
    let mut lines: Vec<[String; 8]> = Vec::new();
    if header {
        lines.push(HEADINGS.map(str::to_owned));
    }
    lines.extend(rows.iter().map(line));
    aligned(&lines)
}

fn line(row: &Row) -> [String; 8] {
    let [forth, back] = row.traffic;
    // Columns must not have spaces, but reasons do.
    let reason = row.refused.map(|reason| reason.to_string().replace(' ', "-"));
    let is_pinned = forth.is_pinned || back.is_pinned;
    let reason = reason.unwrap_or_else(|| if is_pinned { "pinned".into() } else { "-".into() });
    let processes: Vec<String> = row.ends.iter().filter(|end| **end != Process::default()).map(process).collect();
    [
        row.netns.to_string(),
        addr(row.local),
        addr(row.peer),
        forth.ring.saturating_add(back.ring).to_string(),
        forth.kernel.saturating_add(back.kernel).to_string(),
        format!("{}s", row.age.as_secs()),
        reason,
        format!("users:({})", processes.join(",")),
    ]
}

fn process(end: &Process) -> String {
    format!("(\"{}\",pid={},uid={})", services::printable(&end.name()), end.pid, end.uid)
}

/// Formats lines with columns as wide as their longest cell.
fn aligned<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        let cells: Vec<String> = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text += cells.join(" ").trim_end();
        text.push('\n');
    }
    text
}

/// Formats an address as ss does: `*` if it is unknown.
fn addr(addr: SocketAddr) -> String {
    let port = |port: u16| if port == 0 { "*".to_owned() } else { port.to_string() };
    match addr {
        addr if addr.ip().is_unspecified() && addr.port() == 0 => "*:*".into(),
        SocketAddr::V4(v4) => format!("{}:{}", v4.ip(), port(v4.port())),
        SocketAddr::V6(v6) => format!("[{}]:{}", v6.ip(), port(v6.port())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_pairs::{Client, Offered, Service};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    /// Lists one matched pair, and one end whose peer is unknown.
    #[test]
    fn pairs_and_reasons_are_shown() {
        let path = std::env::temp_dir().join(format!("fastsock-ss-{}.pairs", std::process::id()));
        let service = Service::bind(&path).unwrap();
        let limit = Instant::now() + Duration::from_secs(60);
        let handle = service.handle();
        let thread = std::thread::spawn(move || service.run());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0);
        let ((a, b), (c, _d)) = (connect(), connect());
        let client = Client::new(&path).unwrap();
        let offer = |sockets: &[&TcpStream]| {
            sockets.iter().for_each(|socket| assert!(client.offer(socket.as_fd(), Default::default()).is_some()));
            let answer = |_: &&TcpStream| loop {
                match client.answer() {
                    Some(answer) => break matches!(answer, Offered::Matched { .. }),
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
                assert!(Instant::now() < limit, "no answer");
            };
            sockets.iter().map(answer).collect::<Vec<bool>>()
        };
        // On a busy machine the first offer may be refused before the service takes the second.
        while offer(&[&a, &b]) != [true, true] {
            assert!(Instant::now() < limit, "no match");
        }
        assert_eq!(offer(&[&c]), [false]);
        let rows = list(&path).unwrap();
        let rows = [rows[0], rows[rows.len() - 1]];
        let shown = table(&rows, true);
        let lines: Vec<&str> = shown.lines().collect();
        let name = |socket: &TcpStream| socket.local_addr().unwrap().to_string();
        assert!(lines[0].starts_with("Netns"), "{shown}");
        assert!(lines[1].contains(&name(&a)) && lines[1].contains(&name(&b)) && lines[1].contains(" - "), "{shown}");
        assert_eq!(lines[1].matches(&format!("pid={}", std::process::id())).count(), 2, "{shown}");
        assert!(lines[2].contains(&name(&c)) && lines[2].contains("the-other-end-was-not-offered"), "{shown}");
        handle.stop();
        thread.join().unwrap().unwrap();
        assert_eq!(table(&[], false), "");
        let objects = json(&rows);
        assert_eq!(
            (&objects[0]["reason"], &objects[0]["processes"][0]["process"]),
            (&serde_json::Value::Null, &rows[0].ends[0].name().as_str().into())
        );
        assert_eq!(objects[1]["reason"], "the other end was not offered");
    }
}
