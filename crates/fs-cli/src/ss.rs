//! `fastsock ss`: lists sockets in the columns of iproute2's `ss -tan` and four more.

mod kernel;
mod pairs;
mod text;

use crate::control::ControlArgs;
use anyhow::Context;
use fs_shm::control::{Kind, Request, SocketRow};
use std::collections::HashSet;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use text::{addr, aligned, printable};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Omit the header line.
    #[arg(long, short = 'H')]
    no_header: bool,
    /// Print the sockets, and the connections with a ring, as JSON.
    #[arg(long, conflicts_with = "no_header")]
    json: bool,
    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn ss(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.control.connect()?;
    let pairs = pairs::read(&args.control)?;
    let mut rows: Vec<SocketRow> = Vec::new();
    client
        .rows(|cursor| Request::Sockets { cursor }, |row| rows.push(row))
        .context("cannot read the daemon's sockets")?;
    complete(&mut rows);
    let text = if args.json {
        let all = serde_json::json!({ "sockets": json(&rows), "pairs": pairs::json(&pairs) });
        format!("{all:#}\n")
    } else {
        table(&rows, !args.no_header) + &pairs::table(&pairs, !args.no_header)
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Adds what the kernel knows of its sockets. Descriptors of one socket become one row.
pub(crate) fn complete(rows: &mut Vec<SocketRow>) {
    let mut tables = kernel::Tables::default();
    let mut seen = HashSet::new();
    rows.retain_mut(|row| {
        row.kind != Kind::Kernel || tables.complete(row).is_none_or(|inode| seen.insert((row.pid, inode)))
    });
}

const HEADINGS: [&str; 9] =
    ["State", "Recv-Q", "Send-Q", "Local Address:Port", "Peer Address:Port", "Kind", "Core", "Reason", "Process"];

pub(crate) fn table(rows: &[SocketRow], header: bool) -> String {
    let mut lines: Vec<[String; 9]> = Vec::new();
    if header {
        lines.push(HEADINGS.map(str::to_owned));
    }
    lines.extend(rows.iter().map(line));
    aligned(&lines)
}

/// Formats the columns of [`table`] as objects; what is unknown is null.
fn json(rows: &[SocketRow]) -> serde_json::Value {
    let known = |addr: SocketAddr| (!addr.ip().is_unspecified() || addr.port() != 0).then(|| addr.to_string());
    let object = |row: &SocketRow| {
        serde_json::json!({
            "state": state(row.state),
            "recv_queue": row.recv_queue,
            "send_queue": row.send_queue,
            "local": known(row.local),
            "peer": row.peer.and_then(known),
            "kind": kind(row.kind),
            "core": row.core,
            "reason": row.reason.map(|reason| reason.name()),
            "process": row.name.as_str(),
            "pid": row.pid,
            "fd": row.fd,
        })
    };
    rows.iter().map(object).collect()
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Wire => "wire",
        Kind::Local => "local",
        Kind::Kernel => "kernel",
    }
}

fn line(row: &SocketRow) -> [String; 9] {
    [
        state(row.state).into(),
        row.recv_queue.to_string(),
        row.send_queue.to_string(),
        addr(row.local),
        peer(row),
        kind(row.kind).into(),
        row.core.map_or("-".into(), |core| core.to_string()),
        row.reason.map_or("-".into(), |reason| reason.name().into()),
        format!("users:((\"{}\",pid={},fd={}))", printable(row.name.as_str()), row.pid, row.fd),
    ]
}

/// A listener's peer is the wildcard address of its family.
fn peer(row: &SocketRow) -> String {
    match row.peer {
        Some(peer) => addr(peer),
        None if row.local.port() == 0 => "*:*".into(),
        None if row.local.is_ipv4() => "0.0.0.0:*".into(),
        None => "[::]:*".into(),
    }
}

/// Names TCP states as ss does, by the numbers of `include/net/tcp_states.h`.
fn state(number: u8) -> &'static str {
    const NAMES: [&str; 12] = [
        "UNKNOWN",
        "ESTAB",
        "SYN-SENT",
        "SYN-RECV",
        "FIN-WAIT-1",
        "FIN-WAIT-2",
        "TIME-WAIT",
        "UNCONN",
        "CLOSE-WAIT",
        "LAST-ACK",
        "LISTEN",
        "CLOSING",
    ];
    NAMES.get(usize::from(number)).copied().unwrap_or(NAMES[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_shm::control::{KernelReason, Text};

    #[test]
    fn columns() {
        let row = SocketRow {
            state: 10,
            kind: Kind::Local,
            core: None,
            reason: None,
            recv_queue: 0,
            send_queue: 511,
            local: "0.0.0.0:80".parse().unwrap(),
            peer: None,
            pid: 7,
            fd: 6,
            name: Text::new(b"nginx"),
        };
        let other = SocketRow {
            state: 1,
            kind: Kind::Wire,
            core: Some(1),
            reason: Some(KernelReason::Port),
            local: "[::1]:80".parse().unwrap(),
            peer: Some("[::1]:1234".parse().unwrap()),
            ..row
        };
        let unknown = SocketRow { state: 7, kind: Kind::Kernel, local: "0.0.0.0:0".parse().unwrap(), ..row };
        let nginx = "users:((\"nginx\",pid=7,fd=6))";
        let expected = format!(
            "State  Recv-Q Send-Q Local Address:Port Peer Address:Port Kind   Core Reason Process\n\
             LISTEN 0      511    0.0.0.0:80         0.0.0.0:*         local  -    -      {nginx}\n\
             ESTAB  0      511    [::1]:80           [::1]:1234        wire   1    port   {nginx}\n\
             UNCONN 0      511    *:*                *:*               kernel -    -      {nginx}\n"
        );
        assert_eq!(table(&[row, other, unknown], true), expected);
        let objects: serde_json::Value = json(&[row, other, unknown]);
        assert_eq!((&objects[0]["local"], &objects[0]["peer"]), (&"0.0.0.0:80".into(), &serde_json::Value::Null));
        assert_eq!(
            (&objects[1]["kind"], &objects[1]["core"], &objects[1]["reason"]),
            (&"wire".into(), &1.into(), &"port".into())
        );
        assert_eq!((&objects[2]["local"], &objects[2]["state"]), (&serde_json::Value::Null, &"UNCONN".into()));
    }
}
