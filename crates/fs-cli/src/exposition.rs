//! Counters for Prometheus: the classic text format 0.0.4, which node_exporter's textfile collector
//! reads, and OpenMetrics 1.0.

use crate::counters::Row;
use std::fmt::Write;

/// The format. The two differ in the counter's name in HELP and TYPE lines, and in the last line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Classic,
    OpenMetrics,
}

/// Formats all rows, those of one counter together.
pub(crate) fn text(rows: &[Row], format: Format) -> String {
    let mut text = String::new();
    for family in rows.chunk_by(|a, b| a.counter.name == b.counter.name) {
        let counter = family[0].counter;
        let (kind, total) = if counter.is_gauge { ("gauge", "") } else { ("counter", "_total") };
        let of_head = if format == Format::Classic { total } else { "" };
        let name = format!("fastsock_{}", counter.name);
        let _ = write!(text, "# HELP {name}{of_head} {}\n# TYPE {name}{of_head} {kind}\n", counter.meaning);
        for row in family {
            let _ = writeln!(text, "{name}{total}{} {}", labels(row), row.value);
        }
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

/// Formats `{reason="value"}`, or nothing for a counter without reasons. No reason has characters
/// that need an escape.
pub(crate) fn labels(row: &Row) -> String {
    row.reason.as_ref().map_or_else(String::new, |reason| format!("{{reason=\"{reason}\"}}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::rows;
    use fs_pairs::Reason;
    use fs_pairs::counters::Counters;
    use std::collections::HashMap;

    fn some() -> Vec<Row> {
        rows(&Counters { pairs: 3, ring_bytes: 7, refused: [2; Reason::ALL.len()], ..Counters::default() })
    }

    /// Returns the types of samples by the name in their TYPE line, as Prometheus' classic parser
    /// reads them.
    fn types(classic: &str) -> HashMap<String, Option<String>> {
        let mut types = HashMap::new();
        let mut of_samples = HashMap::new();
        for line in classic.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(types.insert(name.to_owned(), kind.to_owned()), None, "two TYPE lines for {name}");
            } else if !line.starts_with("# HELP ") {
                assert!(!line.starts_with('#'), "the classic format has no such line: {line}");
                let (sample, value) = line.rsplit_once(' ').unwrap();
                value.parse::<f64>().unwrap();
                let name = sample.split('{').next().unwrap();
                of_samples.insert(name.to_owned(), types.get(name).cloned());
            }
        }
        of_samples
    }

    #[test]
    fn classic_format_types_every_sample() {
        let text = text(&some(), Format::Classic);
        let types = types(&text);
        for (name, kind) in [
            ("fastsock_ring_bytes_total", "counter"),
            ("fastsock_offers_refused_total", "counter"),
            ("fastsock_pairs", "gauge"),
        ] {
            assert_eq!(types.get(name), Some(&Some(kind.to_owned())), "{name}:\n{text}");
        }
        assert!(types.values().all(Option::is_some), "{text}");
    }

    #[test]
    fn openmetrics_names_families_and_ends() {
        let text = text(&some(), Format::OpenMetrics);
        for line in [
            "# TYPE fastsock_ring_bytes counter",
            "fastsock_ring_bytes_total 7",
            "fastsock_pairs 3",
            "fastsock_offers_refused_total{reason=\"a policy says so\"} 2",
        ] {
            assert_eq!(text.lines().filter(|said| *said == line).count(), 1, "{line}:\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n"), "{text}");
        assert_eq!(text.matches("# TYPE fastsock_offers_refused ").count(), 1, "{text}");
    }

    #[test]
    fn reasons_need_no_escape() {
        let is_plain = |c: char| !matches!(c, '\\' | '"' | '\n');
        assert!(Reason::ALL.iter().all(|reason| reason.to_string().chars().all(is_plain)));
    }
}
