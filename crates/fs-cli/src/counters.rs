//! Every counter of the daemon, its meaning, and when to alarm. The help texts of the metrics, the
//! manual page fastsock-counters(7) and docs/COUNTERS.md are made from this table.

use fs_pairs::Reason;
use fs_pairs::counters::Counters;
use std::fmt::Write;

/// One counter, as `fastsock stat` names it.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) name: &'static str,
    /// The meaning of the counter, in one sentence.
    pub(crate) meaning: &'static str,
    /// When an operator should look at it. Empty if no value indicates a fault.
    alarm: &'static str,
    /// True if the number can decrease.
    pub(crate) is_gauge: bool,
    value: Value,
}

#[derive(Debug)]
enum Value {
    One(fn(&Counters) -> u64),
    /// One for each [`Reason`].
    ByReason,
}

/// A value of a counter.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) counter: &'static Counter,
    pub(crate) reason: Option<String>,
    pub(crate) value: u64,
}

/// All counters.
const COUNTERS: [Counter; 13] = [
    Counter {
        name: "processes",
        meaning: "Processes that are connected to the daemon now.",
        alarm: "near `processes` of `[limits]`",
        is_gauge: true,
        value: Value::One(|counters| counters.processes),
    },
    Counter {
        name: "pairs",
        meaning: "Connections that have a ring now.",
        alarm: "near `pairs` of `[limits]`",
        is_gauge: true,
        value: Value::One(|counters| counters.pairs),
    },
    Counter {
        name: "offers_waiting",
        meaning: "Ends of connections that wait for their other end now.",
        alarm: "",
        is_gauge: true,
        value: Value::One(|counters| counters.waiting),
    },
    Counter {
        name: "offers",
        meaning: "Ends of connections that processes have offered.",
        alarm: "",
        is_gauge: false,
        value: Value::One(|counters| counters.offers),
    },
    Counter {
        name: "pairs_promoted",
        meaning: "Connections that got a ring.",
        alarm: "",
        is_gauge: false,
        value: Value::One(|counters| counters.promoted),
    },
    Counter {
        name: "offers_refused",
        meaning: "Offers that were refused, by reason. The kernel carries the connection.",
        alarm: "`too many connections` or `the service has no memory or descriptors` grows",
        is_gauge: false,
        value: Value::ByReason,
    },
    Counter {
        name: "messages_malformed",
        meaning: "Processes that were cut off because of a message that is not valid.",
        alarm: "grows: a process misbehaves, or a bug. After an upgrade it may grow by 1 for each process with an older library",
        is_gauge: false,
        value: Value::One(|counters| counters.malformed),
    },
    Counter {
        name: "ring_bytes",
        meaning: "Bytes that rings carried, both directions, as the processes count them.",
        alarm: "",
        is_gauge: false,
        value: Value::One(|counters| counters.ring_bytes),
    },
    Counter {
        name: "kernel_bytes",
        meaning: "Bytes that the kernel carried on connections with a ring, both directions, as the processes count them.",
        alarm: "",
        is_gauge: false,
        value: Value::One(|counters| counters.kernel_bytes),
    },
    Counter {
        name: "wire_accepted",
        meaning: "Connections over the device of `[wire]` that were accepted.",
        alarm: "",
        is_gauge: false,
        value: Value::One(|counters| counters.wire_accepted),
    },
    Counter {
        name: "wire_open",
        meaning: "Connections over the device that are open now.",
        alarm: "",
        is_gauge: true,
        value: Value::One(|counters| counters.wire_open),
    },
    Counter {
        name: "wire_refused",
        meaning: "Connections over the device that were reset because no program could be reached at the port.",
        alarm: "grows: the program does not run, or its backlog is full",
        is_gauge: false,
        value: Value::One(|counters| counters.wire_refused),
    },
    Counter {
        name: "wire_reset",
        meaning: "Connections over the device that ended by a reset of one end.",
        alarm: "",
        is_gauge: false,
        value: Value::One(|counters| counters.wire_reset),
    },
];

/// Returns the values of all counters, those of one counter together.
pub(crate) fn rows(counters: &Counters) -> Vec<Row> {
    let row = |counter: &'static Counter| match counter.value {
        Value::One(value) => vec![Row { counter, reason: None, value: value(counters) }],
        Value::ByReason => {
            let values = Reason::ALL.iter().zip(counters.refused);
            values.map(|(reason, value)| Row { counter, reason: Some(reason.to_string()), value }).collect()
        }
    };
    COUNTERS.iter().flat_map(row).collect()
}

/// Formats the manual page fastsock-counters(7).
pub(crate) fn manual() -> String {
    let mut page = String::from(
        ".TH FASTSOCK-COUNTERS 7\n.SH NAME\nfastsock\\-counters \\- counters of the fastsock daemon\n.SH DESCRIPTION\n\
         .BR \"fastsock stat\" (1)\nprints these counters. With\n.B \\-\\-prometheus\na name has\n.B fastsock_\nbefore \
         it, and a counter that cannot fall has\n.B _total\nafter it.\n",
    );
    let text = |text: &str| text.replace('\\', "\\e").replace('-', "\\-").replace('`', "");
    for counter in &COUNTERS {
        let _ = writeln!(page, ".TP\n.B {}\n{}", counter.name, text(counter.meaning));
        if !counter.alarm.is_empty() {
            let _ = writeln!(page, "Alarm: {}.", text(counter.alarm));
        }
    }
    page + ".SH SEE ALSO\n.BR fastsock (1)\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/COUNTERS.md");

    /// The first lines of the tables of docs/COUNTERS.md.
    const STACK: &str = "| counter of a core | meaning |";
    const DROPS: &str = "| reason of a drop | meaning |";

    /// Returns the names in the source text after `start`, up to `}`, with their documentation: the
    /// definitions of macros and structs of counters.
    fn documented(source: &str, start: &str) -> Vec<(String, String)> {
        let (_, lines) = source.split_once(start).expect("the definition");
        let (mut found, mut meaning) = (Vec::new(), Vec::new());
        for line in lines.lines().map(str::trim).take_while(|line| *line != "}") {
            if let Some(text) = line.strip_prefix("///") {
                meaning.push(text.trim());
            } else if let Some(name) = line.strip_suffix(',') {
                let name = match name.split_once(" = ") {
                    Some((_, text)) => text.trim_matches('"'),
                    None => name.trim_start_matches("pub ").split(':').next().unwrap(),
                };
                found.push((name.to_owned(), meaning.join(" ")));
                meaning.clear();
            }
        }
        found
    }

    fn table_of(head: &str, rows: impl IntoIterator<Item = (String, String)>) -> String {
        let rows = rows.into_iter().map(|(name, meaning)| format!("| `{name}` | {meaning} |\n"));
        format!("{head}\n|---|---|\n{}", rows.collect::<String>())
    }

    fn tables_of_stack() -> [(&'static str, String); 2] {
        let stack = documented(include_str!("../../fs-core/src/stats.rs"), "\ncounters! {");
        let links = documented(include_str!("../../fs-xdp/src/link.rs"), "pub struct LinkStats {");
        let links = links.into_iter().map(|(name, meaning)| (format!("link_{name}"), meaning));
        let drops = documented(include_str!("../../fs-core/src/drop_reason.rs"), "\nreasons! {");
        assert!(stack.len() > 30 && links.len() > 6 && drops.len() == fs_core::DropReason::ALL.len());
        [(STACK, table_of(STACK, stack.into_iter().chain(links))), (DROPS, table_of(DROPS, drops))]
    }

    /// The daemon's table in docs/COUNTERS.md.
    fn table() -> String {
        let mut page = String::from("\n| name | meaning | alarm when it |\n|---|---|---|\n");
        for Counter { name, meaning, alarm, .. } in &COUNTERS {
            let _ = writeln!(page, "| `{name}` | {meaning} | {alarm} |");
        }
        page
    }

    #[test]
    fn page_has_the_tables() {
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (head, _) = page.split_at(page.find("\n| name").unwrap());
        let mut new = format!("{head}{}", table());
        for (start, table) in tables_of_stack() {
            let at = new.find(start).unwrap();
            let end = new[at..].find("\n\n").map_or(new.len(), |end| at + end + 1);
            new.replace_range(at..end, &table);
        }
        if std::env::var_os("UPDATE_COUNTERS").is_some() {
            std::fs::write(PAGE, new).unwrap();
        } else {
            assert_eq!(page, new, "UPDATE_COUNTERS=1 cargo test -p fs-cli writes {PAGE}");
        }
    }

    /// An alert rule or dashboard with an unknown name would never fire and show nothing.
    #[test]
    fn rules_and_dashboard_name_counters_that_exist() {
        let rules = include_str!("../../../packaging/prometheus/fastsock.rules.yml");
        let dashboard = include_str!("../../../packaging/grafana/fastsock.json");
        serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
        let mut seen = 0;
        for word in
            [rules, dashboard].iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        {
            let Some(name) = word.strip_prefix("fastsock_") else { continue };
            let stem = name.strip_suffix("_total").unwrap_or(name);
            let counter = COUNTERS.iter().find(|counter| counter.name == stem);
            assert!(counter.is_some_and(|counter| counter.is_gauge == (name == stem)), "{word}");
            seen += 1;
        }
        assert!(seen > 8, "{seen}");
        // The textfile collector exports a stale file's counters, so they are never absent.
        let guide = include_str!("../../../docs/OPERATING.md");
        let file = guide.split("mv fastsock.new ").nth(1).and_then(|rest| rest.lines().next()).unwrap();
        let absent = rules.lines().find(|line| line.contains("absent(")).unwrap();
        let age = format!("time() - node_textfile_mtime_seconds{{file=~\".*{file}\"}} > ");
        assert!(absent.contains(&age), "{absent}");
        // The reasons in the alerts exist.
        let named = rules.split("reason=~\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        assert!(named.split('|').all(|reason| Reason::ALL.iter().any(|known| known.to_string() == reason)), "{named}");
    }

    #[test]
    fn each_counter_has_a_row() {
        let counters = Counters { pairs: 3, refused: [7; Reason::ALL.len()], ..Counters::default() };
        let rows = rows(&counters);
        assert_eq!(rows.len(), COUNTERS.len() - 1 + Reason::ALL.len());
        let sum = |name: &str| rows.iter().filter(|row| row.counter.name == name).map(|row| row.value).sum::<u64>();
        assert_eq!((sum("pairs"), sum("offers_refused")), (3, 7 * Reason::ALL.len() as u64));
        assert!(manual().contains(".B offers_refused\n"));
    }
}
