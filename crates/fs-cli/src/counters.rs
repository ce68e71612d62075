//! Every counter of the daemon: its meaning, and when to alarm. The help texts of the metrics, the
//! manual page fastsock-counters(7) and docs/COUNTERS.md come from this table.

use std::fmt::Write;

/// One counter, as `fastsock stat` names it.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) name: &'static str,
    /// What is counted, or measured: one sentence.
    pub(crate) meaning: &'static str,
    /// When to look. Empty: no value is a fault in itself.
    pub(crate) alarm: &'static str,
}

const fn counter(name: &'static str, meaning: &'static str, alarm: &'static str) -> Counter {
    Counter { name, meaning, alarm }
}

/// Counters by where they come from.
pub(crate) const GROUPS: [(&str, &[Counter]); 5] =
    [("Daemon", &DAEMON), ("Cores", &CORES), ("TCP/IP", &STACK), ("Dropped packets", &DROPS), ("Times", &TIMES)];

const DAEMON: [Counter; 15] = [
    counter("local_connections", "Connections between processes of this host, carried by shared memory.", ""),
    counter("local_bytes", "Bytes of these connections, both directions.", ""),
    counter("wire_connections", "Connections of preloaded programs over the device.", ""),
    counter("wire_bytes", "Bytes of these connections, both directions.", ""),
    counter("attachments", "Processes that use the daemon now.", "near `attachments` of `[limits]`"),
    counter("attached", "Processes that have ever attached to the daemon.", ""),
    counter("listeners", "Listening sockets that the daemon knows now.", "near `listeners` of `[limits]`"),
    counter("arenas", "Pairs of processes that share memory now.", "near `arenas` of `[limits]`"),
    counter("namespaces", "Network namespaces with processes that use the daemon now.", ""),
    counter("routes_local", "Decisions that shared memory carries a connection.", ""),
    counter("routes_wire", "Decisions that the device carries a connection.", ""),
    counter("refused", "Calls that a `[[rule]]` refused with EACCES.", "grows, and no rule should match"),
    counter("requests", "Requests that processes made of the daemon.", ""),
    counter("requests_malformed", "Requests that are not valid.", "above 0: a process misbehaves, or a bug"),
    counter(
        "kernel_fallbacks",
        "Decisions that the kernel carries a connection, by reason. One decision can hold for many connections.",
        "`limit`, `namespace` or `port` grows",
    ),
];

const CORES: [Counter; 18] = [
    counter("core_connections", "TCP connections of the core now.", ""),
    counter("core_kernel_connections", "Connections that the core carries over kernel sockets now.", ""),
    counter("core_time_waits", "Connections in TIME-WAIT now.", ""),
    counter("core_frames_in_use", "Packet frames in use now.", "does not fall after load ends"),
    counter("link_rx_packets", "Packets that the core took from the device.", ""),
    counter("link_tx_packets", "Packets that the core gave to the device.", ""),
    counter("link_rx_dropped", "Packets that the kernel dropped before the core's queue.", "grows"),
    counter("link_rx_ran_out", "Times that the device had no free receive frame.", "grows: the core is at its limit"),
    counter("link_tx_dropped", "Packets that the device did not send.", "grows"),
    counter("link_tx_merges", "Frames sent that contain several segments.", ""),
    counter("link_tx_merged", "Segments sent in these frames.", ""),
    counter("mode_given_up_link_down", "Faster XDP modes given up: the link did not come up.", "above 0"),
    counter("mode_given_up_no_chunks", "Faster XDP modes given up: a queue took no receive frames.", "above 0"),
    counter("mode_given_up_receive_errors", "Faster XDP modes given up: packets arrived with errors.", "above 0"),
    counter("mode_given_up_deaf", "Faster XDP modes given up: no neighbour replied.", "above 0"),
    counter("runtime_sleeps", "Times that the core had nothing to do and slept.", "constant under load: at its limit"),
    counter("runtime_coalescings", "Times that the core slept briefly so that packets collect.", ""),
    counter("runtime_timed_sleeps", "Sleeps that a timer ended.", ""),
];

const STACK: [Counter; 35] = [
    counter("runtime_mailbox_full", "Messages to another core that found its mailbox full.", "grows"),
    counter("stack_rx_packets", "Packets received from links.", ""),
    counter("stack_rx_bytes", "Bytes received from links, headers included.", ""),
    counter("stack_tx_packets", "Packets handed to links.", ""),
    counter("stack_tx_bytes", "Bytes handed to links, headers included.", ""),
    counter("stack_packets_local", "Packets whose connection is owned by the core that received them.", ""),
    counter(
        "stack_packets_forwarded",
        "Packets forwarded to the core that owns their flow.",
        "most packets: `fastsock doctor`, steering",
    ),
    counter("stack_packets_asked", "Packets without an owner that were sent to the next core.", ""),
    counter("stack_packets_from_cores", "Packets received from another core.", ""),
    counter("stack_handovers", "Connections moved to another core before they were accepted.", ""),
    counter("stack_listen_global", "SYNs answered for a listener of another core.", ""),
    counter("stack_accepted", "Passive connections established.", ""),
    counter("stack_connected", "Active connections established.", ""),
    counter("stack_connect_failed", "Active connections that failed.", "a growing share of `stack_connected`"),
    counter("stack_resets_received", "Connections ended by a RST from the peer.", ""),
    counter("stack_resets_sent", "RSTs sent.", "grows fast: a port scan, or a service is down"),
    counter("stack_timeouts", "Connections that timed out.", "grows: the network or peers fail"),
    counter("stack_retransmits", "Segments retransmitted.", "above 1 % of `stack_tx_packets`"),
    counter("stack_fast_recoveries", "Fast recoveries entered.", ""),
    counter("stack_ecn_reductions", "Windows reduced after a congestion mark (RFC 3168).", ""),
    counter("stack_rto_fired", "Retransmission time-outs.", "grows steadily"),
    counter("stack_window_probes", "Zero-window probes sent.", "grows steadily: peers do not read"),
    counter("stack_keepalive_probes", "Keepalive probes sent.", ""),
    counter("stack_out_of_order", "Segments that arrived out of order and were kept.", ""),
    counter("stack_dup_acks", "Duplicate ACKs received.", ""),
    counter("stack_acks_sent", "Pure ACKs sent.", ""),
    counter("stack_acks_piggybacked", "Delayed ACKs that another segment carried.", ""),
    counter("stack_challenge_acks", "Challenge ACKs sent (RFC 5961).", "grows fast: blind attacks"),
    counter("stack_invalid_unanswered", "Rejected segments without a reply, because of the rate limit.", "grows fast"),
    counter("stack_syn_cookies_sent", "SYN cookies sent.", "grows: a SYN flood, or backlogs are too short"),
    counter("stack_syn_cookies_ok", "Handshakes completed by cookie.", ""),
    counter("stack_udp_received", "UDP datagrams received into sockets.", ""),
    counter("stack_udp_sent", "UDP datagrams sent.", ""),
    counter("stack_icmp_errors", "ICMP errors delivered to their socket.", ""),
    counter("stack_rx_compacted", "Small payloads copied out of their frames to free the pool.", ""),
];

const DROPS: [Counter; 30] = [
    counter("drops_malformed", "Packets with lengths that contradict each other.", ""),
    counter("drops_not_our_protocol", "Packets of a protocol that the stack does not have.", ""),
    counter("drops_not_our_address", "Packets to another address.", ""),
    counter("drops_fragment", "IP fragments; the kernel reassembles them.", ""),
    counter("drops_bad_ip_checksum", "Packets with a wrong IPv4 header checksum.", "grows: a fault in the network"),
    counter(
        "drops_bad_transport_checksum",
        "Packets with a wrong TCP, UDP or ICMP checksum.",
        "grows: set `partial_checksums` on a virtual link",
    ),
    counter("drops_bad_address", "Packets with an address that is not allowed there (RFC 1122 3.2.1.3).", ""),
    counter("drops_no_socket", "Segments for which there is no socket.", ""),
    counter("drops_listen_overflow", "SYNs for a listener whose queue is full.", "grows: raise the backlog"),
    counter("drops_bad_handshake_ack", "ACKs that complete no known handshake.", ""),
    counter("drops_out_of_window", "Segments outside the window.", ""),
    counter("drops_paws", "Segments with an old time stamp (RFC 7323).", ""),
    counter("drops_bad_ack", "Segments with an ACK of data never sent, or of long ago.", ""),
    counter("drops_no_ack", "Segments without the ACK that they must have.", ""),
    counter("drops_unexpected_syn", "SYNs on an established connection.", ""),
    counter("drops_inexact_rst", "RSTs within the window, but not at its start.", "grows fast: blind attacks"),
    counter("drops_data_after_close", "Data after our side was closed. The connection is reset.", ""),
    counter("drops_data_after_fin", "Data after the peer's FIN.", ""),
    counter("drops_duplicate", "Data received already.", ""),
    counter("drops_receive_budget", "Data beyond the receive memory of the connection or core.", "grows"),
    counter("drops_no_frames", "Packets for which no frame was free.", "above 0: memory of the core is exhausted"),
    counter("drops_no_slots", "Connections for which no slot was free.", "above 0: too many connections"),
    counter(
        "drops_mailbox_full",
        "Packets for another core whose mailbox was full.",
        "grows: that core is at its limit",
    ),
    counter("drops_no_route", "Packets to send without a route.", "grows: look at `ip route`"),
    counter("drops_neighbour_unresolved", "Packets to a neighbour that did not resolve.", "grows: a peer is down"),
    counter("drops_udp_queue_full", "Datagrams for a socket whose queue is full.", "grows"),
    counter("drops_challenge_limited", "Challenge ACKs not sent, because of the rate limit.", "grows fast"),
    counter("drops_icmp_unmatched", "ICMP errors that belong to no socket.", ""),
    counter("drops_link_tx", "Packets that the link did not send.", "grows"),
    counter("drops_nobodys_flow", "Packets of a flow that no core knows.", ""),
];

/// Each is a count and three quantiles in `fastsock stat`, and a histogram for Prometheus.
const TIMES: [Counter; 3] = [
    counter("turn_time", "Time from a check of the core's queues that finds work until the next check.", "p99 > 1 ms"),
    counter("connect_time", "Time from connect until the connection is established.", "p99 far above the network's"),
    counter("accept_wait", "Time from the end of the handshake until the connection is accepted.", "p99 > 10 ms"),
];

/// Returns the entry of a name of `fastsock stat`, or of a histogram's name without `_seconds`.
pub(crate) fn find(name: &str) -> Option<&'static Counter> {
    let times = |counter: &Counter| {
        let rest = name.strip_prefix(counter.name);
        rest.is_some_and(|rest| matches!(rest, "_count" | "_p50_ns" | "_p99_ns" | "_max_ns"))
    };
    let mut all = GROUPS.iter().flat_map(|(_, counters)| counters.iter());
    all.find(|counter| counter.name == name).or_else(|| TIMES.iter().find(|counter| times(counter)))
}

/// Formats the manual page fastsock-counters(7).
pub(crate) fn manual() -> String {
    let mut page = String::from(
        ".TH FASTSOCK-COUNTERS 7\n.SH NAME\nfastsock\\-counters \\- counters of the fastsock daemon\n.SH DESCRIPTION\n\
         .BR \"fastsock stat\" (1)\nprints these counters. With\n.B \\-\\-prometheus\na name has\n.B fastsock_\nbefore \
         it, and a counter that cannot fall has\n.B _total\nafter it.\n",
    );
    let text = |text: &str| text.replace('\\', "\\e").replace('-', "\\-").replace('`', "");
    for (title, counters) in GROUPS {
        let _ = writeln!(page, ".SH {}", title.to_uppercase());
        for counter in counters {
            let _ = writeln!(page, ".TP\n.B {}\n{}", counter.name, text(counter.meaning));
            if !counter.alarm.is_empty() {
                let _ = writeln!(page, "Alarm: {}.", text(counter.alarm));
            }
        }
    }
    page + ".SH SEE ALSO\n.BR fastsock (1),\n.BR fastsock.toml (5)\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/COUNTERS.md");

    /// The tables of docs/COUNTERS.md.
    fn tables() -> String {
        let mut page = String::new();
        for (title, counters) in GROUPS {
            let _ = write!(page, "\n## {title}\n\n| name | meaning | alarm when it |\n|---|---|---|\n");
            for Counter { name, meaning, alarm } in counters {
                let _ = writeln!(page, "| `{name}` | {meaning} | {alarm} |");
            }
        }
        page
    }

    #[test]
    fn page_has_the_table() {
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (head, tables_of_page) = page.split_at(page.find("\n## ").unwrap());
        if std::env::var_os("UPDATE_COUNTERS").is_some() {
            std::fs::write(PAGE, format!("{head}{}", tables())).unwrap();
        } else {
            assert_eq!(tables_of_page, tables(), "UPDATE_COUNTERS=1 cargo test -p fs-cli writes {PAGE}");
        }
    }

    #[test]
    fn table_is_that_of_the_stack() {
        let stats = fs_core::Stats::default();
        let stack = stats.counters().map(|(name, _)| format!("stack_{name}"));
        let drops = fs_core::DropReason::ALL.iter().map(|reason| format!("drops_{}", reason.name()));
        let code: BTreeSet<String> = stack.chain(drops).collect();
        let all = GROUPS.iter().flat_map(|(_, counters)| counters.iter().map(|counter| counter.name.to_owned()));
        let table: BTreeSet<String> =
            all.filter(|name| name.starts_with("stack_") || name.starts_with("drops_")).collect();
        assert_eq!(table, code);
    }

    /// Names of alert rules and dashboard that no counter has would never fire, and show nothing.
    #[test]
    fn rules_and_dashboard_name_counters_that_exist() {
        let rules = include_str!("../../../packaging/prometheus/fastsock.rules.yml");
        let dashboard = include_str!("../../../packaging/grafana/fastsock.json");
        serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
        let mut seen = 0;
        for word in
            [rules, dashboard].iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        {
            let Some(name) = word.strip_prefix("fastsock_").filter(|name| *name != "drops_") else { continue };
            let stem = ["_total", "_seconds_bucket", "_seconds_count", "_seconds_sum"]
                .iter()
                .find_map(|end| name.strip_suffix(end))
                .unwrap_or(name);
            assert!(find(stem).is_some(), "{word}");
            seen += 1;
        }
        assert!(seen > 20, "{seen}");
    }

    #[test]
    fn names_are_found() {
        for name in ["local_bytes", "turn_time", "turn_time_count", "accept_wait_p99_ns", "drops_paws"] {
            assert!(find(name).is_some(), "{name}");
        }
        for name in ["", "turn_time_p", "local_bytes_count"] {
            assert!(find(name).is_none(), "{name}");
        }
        assert!(manual().contains(".B drops_paws\n"));
    }
}
