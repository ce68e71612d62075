//! `fastsock why`: prints in one sentence why a service's connections are, or are not, accelerated.

mod facts;
mod table;

use crate::control::ControlArgs;
use anyhow::{Context, bail};
use facts::Facts;
use fs_pairs::Reason;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Options of `fastsock why`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Port at which a service of this network namespace listens.
    #[arg(required_unless_present = "pid", conflicts_with = "pid")]
    port: Option<u16>,
    /// A process, instead of a port: all of its connections.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: ControlArgs,
}

/// Fails if no connection has a ring.
pub(crate) fn why(args: Args) -> anyhow::Result<ExitCode> {
    let proc = Path::new("/proc");
    let facts = match (args.port, args.pid) {
        (Some(port), _) => Facts::of_port(proc, port, &args.control).with_context(|| {
            format!("no process that this user can see listens at port {port} in this network namespace")
        })?,
        (None, Some(pid)) => {
            Facts::of_process(proc, pid, &args.control).with_context(|| format!("there is no process {pid}"))?
        }
        (None, None) => bail!("name a port, or a process with --pid"),
    };
    let sentence = sentence(&facts);
    let text = if args.json { format!("{:#}\n", json(&facts, &sentence)) } else { sentence + "\n" };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(if facts.with_ring > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn json(facts: &Facts, sentence: &str) -> serde_json::Value {
    serde_json::json!({
        "processes": facts.processes.iter().map(|process| process.pid).collect::<Vec<_>>(),
        "has_library": facts.has_library(),
        "connections": facts.open,
        "with_ring": facts.with_ring,
        "ring_bytes": facts.ring_bytes,
        "kernel_bytes": facts.kernel_bytes,
        "why": sentence,
    })
}

/// The first cause that applies, in the order in which an operator would remove them.
fn sentence(facts: &Facts) -> String {
    let name = facts.name();
    if facts.with_ring > 0 {
        return with_ring(facts);
    }
    if !facts.has_library() {
        return format!("{name} is not accelerated: {}", without_library(facts));
    }
    if !facts.has_daemon {
        let daemon = facts.daemon.display();
        return format!(
            "{name} is not accelerated: no daemon answers at {daemon} (`systemctl start fastsock` starts it)"
        );
    }
    if let Some(other) = &facts.other_daemon {
        let other = other.display();
        return format!("{name} is not accelerated: it looks for its daemon at {other}, where this command finds none");
    }
    if let Some(obstacle) = &facts.unreachable {
        return format!("{name} is not accelerated: {obstacle}");
    }
    if facts.open == 0 {
        return format!("{name} has the library and no open connection");
    }
    let open = connections(facts.open);
    // Also with an offer that no peer answered: `peers` are all ends on this host.
    if facts.peers.is_empty() && matches!(facts.refused, None | Some(Reason::NoPeer)) {
        return format!(
            "{name} is not accelerated: the other ends of its {open} are on other hosts or in other network namespaces"
        );
    }
    if let Some(peer) = facts.peers.iter().find(|peer| !peer.has_library) {
        let (peer, pid) = (&peer.name, peer.pid);
        return format!(
            "{name} is not accelerated: the other end, {peer} (process {pid}), has not loaded the library: start it with `fastsock run`"
        );
    }
    if let Some(reason) = facts.refused {
        return format!("{name} is not accelerated: {reason}: {}", cause(reason));
    }
    format!(
        "{name} is not accelerated yet: {open}, and none has had four reads and four writes at each end since a daemon serves (or 64 of one kind, if both ends have the same address or are loopback; a connection that a process got by fork never has a ring)"
    )
}

fn with_ring(facts: &Facts) -> String {
    let Facts { open, with_ring, ring_bytes, kernel_bytes, pinned, .. } = facts;
    let all = connections(*open.max(with_ring));
    let verb = if *with_ring == 1 { "has" } else { "have" };
    let name = facts.name();
    let carried = format!("{ring_bytes} bytes by ring and {kernel_bytes} by the kernel");
    let mut text = format!("{name} is accelerated: {with_ring} of {all} {verb} a ring, {carried}");
    if *pinned > 0 {
        text += &format!("; a call has left {pinned} of them to the kernel for good");
    } else if ring_bytes < kernel_bytes {
        text += "; the kernel carries bytes while the receiver sleeps";
    }
    if let Some(peer) = facts.peers.iter().find(|peer| !peer.has_library) {
        text += &format!("; {} (process {}) lacks the library", peer.name, peer.pid);
    }
    text
}

fn without_library(facts: &Facts) -> String {
    if !facts.is_readable {
        return "this user may not see whether it has loaded the library (run as root)".to_owned();
    }
    if let Some((file, obstacle)) = &facts.obstacle {
        return format!("{}: {obstacle}", file.display());
    }
    match &facts.service {
        Some((service, true)) => {
            format!("it was started without the library, although it is enabled: `systemctl restart {service}`")
        }
        Some((service, false)) => format!("it has not loaded the library: `fastsock enable --now {service}`"),
        None => "it has not loaded the library: start it with `fastsock run`".to_owned(),
    }
}

fn connections(count: usize) -> String {
    format!("{count} connection{}", if count == 1 { "" } else { "s" })
}

/// Returns the cause or the remedy of a refusal.
fn cause(reason: Reason) -> &'static str {
    match reason {
        Reason::NoPeer => {
            "the other program has no library or uses another daemon, or it is in another network namespace, or an address is \
             translated on the way"
        }
        Reason::NotTcp => "the descriptor stands for something else by now",
        Reason::NotEstablished => "the connection has ended by now",
        Reason::Counts => "the process claims more bytes than the kernel has counted",
        Reason::Device => "SO_BINDTODEVICE makes its addresses ambiguous",
        Reason::Ambiguous => "two sockets have the same addresses",
        Reason::Limit => "raise [limits] in fastsock.toml, or close connections",
        Reason::Policy => "a [[policy]] in fastsock.toml has `ring = false` for it",
        Reason::Twice => "the socket has a ring already, or waits for one",
        Reason::Failed => "raise LimitNOFILE= or the memory of fastsock.service",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Obstacle;
    use crate::services::Process;

    fn process(name: &str, pid: u32, has_library: bool) -> Process {
        Process { pid, name: name.into(), has_library }
    }

    /// A server with the library, a daemon, and one connection of a client with the library.
    fn ready() -> Facts {
        Facts {
            processes: vec![process("redis-server", 7, true)],
            is_readable: true,
            daemon: "/run/fastsock/control.sock".into(),
            has_daemon: true,
            peers: vec![process("redis-cli", 8, true)],
            open: 1,
            ..Facts::default()
        }
    }

    #[test]
    fn first_cause_is_told_in_one_sentence() {
        let without = || Facts { processes: vec![process("redis-server", 7, false)], ..ready() };
        let go = ("/usr/bin/app".into(), Obstacle::Go);
        let cases = [
            (Facts { is_readable: false, ..without() }, "(run as root)"),
            (Facts { obstacle: Some(go), ..without() }, "/usr/bin/app: it is a Go program"),
            (without(), "start it with `fastsock run`"),
            (
                Facts { service: Some(("redis-server".into(), false)), ..without() },
                "`fastsock enable --now redis-server`",
            ),
            (Facts { service: Some(("redis-server".into(), true)), ..without() }, "`systemctl restart redis-server`"),
            (Facts { has_daemon: false, ..ready() }, "no daemon answers at /run/fastsock/control.sock"),
            (
                Facts { other_daemon: Some("/x/control.sock".into()), ..ready() },
                "looks for its daemon at /x/control.sock",
            ),
            (
                Facts { unreachable: Some("its root folder is /var/empty".into()), ..ready() },
                "not accelerated: its root",
            ),
            (Facts { open: 0, ..ready() }, "no open connection"),
            (Facts { peers: vec![], ..ready() }, "on other hosts"),
            (Facts { peers: vec![], refused: Some(Reason::NoPeer), ..ready() }, "on other hosts"),
            (Facts { peers: vec![process("nc", 9, false)], ..ready() }, "the other end, nc (process 9)"),
            (Facts { refused: Some(Reason::Policy), ..ready() }, "a policy says so: a [[policy]]"),
            (ready(), "none has had four reads"),
        ];
        for (facts, expected) in cases {
            let said = sentence(&facts);
            assert!(said.contains(expected) && said.starts_with("redis-server (process 7) "), "{said}");
            assert!(!said.contains("is accelerated") && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn rings_and_what_limits_them_are_told() {
        let facts = Facts { with_ring: 2, open: 3, ring_bytes: 10, kernel_bytes: 1, ..ready() };
        let said = sentence(&facts);
        assert!(said.ends_with("2 of 3 connections have a ring, 10 bytes by ring and 1 by the kernel"), "{said}");
        assert!(sentence(&Facts { kernel_bytes: 11, ..facts }).ends_with("while the receiver sleeps"));
        let facts = Facts { with_ring: 1, pinned: 1, peers: vec![process("nc", 9, false)], ..ready() };
        let said = sentence(&facts);
        assert!(said.contains("1 of 1 connection has") && said.contains("left 1 of them"), "{said}");
        assert!(said.ends_with("nc (process 9) lacks the library"), "{said}");
        assert_eq!(json(&facts, &said)["with_ring"], 1);
    }

    /// The operator's guide has a row for each reason.
    #[test]
    fn each_reason_is_documented() {
        let page = include_str!("../../../../docs/OPERATING.md");
        for reason in Reason::ALL {
            let shown = reason.to_string().replace(' ', "-");
            assert!(page.contains(&format!("`{shown}`")), "{shown}");
            assert!(!cause(*reason).is_empty());
        }
    }
}
