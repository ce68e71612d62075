//! Counters for Prometheus: the classic text format 0.0.4, which node_exporter's textfile collector
//! reads, and OpenMetrics 1.0.

use crate::counters;
use crate::histogram::{Histogram, bucket};
use fs_shm::control::{BUCKETS, CounterRow};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The two differ in which name of a counter its HELP and TYPE lines have, and in the last line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Classic,
    OpenMetrics,
}

/// Formats all rows, those of one name together.
pub(crate) fn text(rows: &[CounterRow], format: Format) -> String {
    let mut times: BTreeMap<&str, BTreeMap<&str, Histogram>> = BTreeMap::new();
    for row in rows {
        if let Some((name, core, end)) = bucket(row) {
            times.entry(name).or_default().entry(core).or_default().add(end, row.value);
        }
    }
    // Omits rows that the histograms contain already.
    let of_times = |name: &str| {
        times.keys().any(|times| name.strip_prefix(times).is_some_and(|rest| rest == BUCKETS || is_quantile(rest)))
    };
    let mut families: Vec<(&str, Vec<&CounterRow>)> = Vec::new();
    for row in rows.iter().filter(|row| !of_times(row.name.as_str())) {
        let name = row.name.as_str();
        match families.iter_mut().find(|(other, _)| *other == name) {
            Some((_, rows)) => rows.push(row),
            None => families.push((name, vec![row])),
        }
    }
    let mut text = String::new();
    for (name, rows) in families {
        family(&mut text, name, &rows, format);
    }
    for (name, cores) in times {
        histograms(&mut text, name, &cores);
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

/// Returns true for the suffixes that `fastsock stat` prints for times.
fn is_quantile(rest: &str) -> bool {
    rest == "_count" || rest.ends_with("_ns")
}

fn family(text: &mut String, name: &str, rows: &[&CounterRow], format: Format) {
    let is_gauge = rows.first().is_some_and(|row| row.gauge);
    let (kind, total) = if is_gauge { ("gauge", "") } else { ("counter", "_total") };
    let of_head = if format == Format::Classic { total } else { "" };
    head(text, &format!("fastsock_{name}{of_head}"), name, kind);
    for row in rows {
        let _ = writeln!(text, "fastsock_{name}{total}{} {}", labels(row), row.value);
    }
}

fn histograms(text: &mut String, name: &str, cores: &BTreeMap<&str, Histogram>) {
    let full = format!("fastsock_{name}_seconds");
    head(text, &full, name, "histogram");
    for (core, times) in cores {
        let core = escaped(core);
        let mut below = 0;
        for (end, count) in times.powers_of_two() {
            below += count;
            let end = if end.is_finite() { end.to_string() } else { "+Inf".to_owned() };
            let _ = writeln!(text, "{full}_bucket{{le=\"{end}\",core=\"{core}\"}} {below}");
        }
        let _ = writeln!(text, "{full}_sum{{core=\"{core}\"}} {:?}", times.sum_seconds());
        let _ = writeln!(text, "{full}_count{{core=\"{core}\"}} {}", times.count());
    }
}

fn head(text: &mut String, full: &str, name: &str, kind: &str) {
    let help = counters::find(name).map_or_else(|| name.replace('_', " "), |counter| counter.meaning.to_owned());
    let _ = write!(text, "# HELP {full} {help}\n# TYPE {full} {kind}\n");
}

/// Formats `{name="value"}`, or nothing for a counter without a label.
pub(crate) fn labels(row: &CounterRow) -> String {
    label(row).map_or_else(String::new, |(name, value)| format!("{{{name}=\"{}\"}}", escaped(value)))
}

/// Returns the label's name and value: a value is a core's number or a reason.
pub(crate) fn label(row: &CounterRow) -> Option<(&'static str, &str)> {
    let value = row.label.as_str();
    let name = if value.bytes().all(|byte| byte.is_ascii_digit()) { "core" } else { "reason" };
    (!value.is_empty()).then_some((name, value))
}

/// Both formats escape these three in a label's value.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_shm::control::Text;
    use std::collections::HashMap;

    fn row(name: &str, label: &str, gauge: bool, value: u64) -> CounterRow {
        CounterRow { name: Text::new(name.as_bytes()), label: Text::new(label.as_bytes()), gauge, value }
    }

    fn rows() -> [CounterRow; 9] {
        [
            row("local_bytes", "", false, 7),
            row("kernel_fallbacks", "port", false, 1),
            row("kernel_fallbacks", "limit", false, 2),
            row("attachments", "", true, 3),
            row("turn_time_count", "0", false, 3),
            row("turn_time_p50_ns", "0", true, 1280),
            row("turn_time_buckets", "0,1280", false, 2),
            row("turn_time_buckets", "0,18446744073709551615", false, 1),
            row("turn_time_buckets", "0,sum", false, 80_000_000_000),
        ]
    }

    /// The types of samples as Prometheus' classic parser knows them: by the name in the TYPE line,
    /// and for a histogram by that name with a suffix.
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
                let stem = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
                let kind = types.get(name).or_else(|| types.get(stem?).filter(|kind| *kind == "histogram"));
                of_samples.insert(name.to_owned(), kind.cloned());
            }
        }
        of_samples
    }

    #[test]
    fn classic_format_types_every_sample() {
        let text = text(&rows(), Format::Classic);
        let types = types(&text);
        for (name, kind) in [
            ("fastsock_local_bytes_total", "counter"),
            ("fastsock_kernel_fallbacks_total", "counter"),
            ("fastsock_attachments", "gauge"),
            ("fastsock_turn_time_seconds_bucket", "histogram"),
            ("fastsock_turn_time_seconds_sum", "histogram"),
        ] {
            assert_eq!(types.get(name), Some(&Some(kind.to_owned())), "{name}:\n{text}");
        }
        assert!(types.values().all(Option::is_some), "{text}");
    }

    #[test]
    fn openmetrics_names_families_and_ends() {
        let text = text(&rows(), Format::OpenMetrics);
        for line in [
            "# TYPE fastsock_local_bytes counter",
            "fastsock_local_bytes_total 7",
            "fastsock_kernel_fallbacks_total{reason=\"limit\"} 2",
            "# TYPE fastsock_turn_time_seconds histogram",
            "fastsock_turn_time_seconds_sum{core=\"0\"} 80.0",
            "fastsock_turn_time_seconds_count{core=\"0\"} 3",
            "fastsock_turn_time_seconds_bucket{le=\"0.000001024\",core=\"0\"} 0",
            "fastsock_turn_time_seconds_bucket{le=\"0.000002048\",core=\"0\"} 2",
            "fastsock_turn_time_seconds_bucket{le=\"+Inf\",core=\"0\"} 3",
        ] {
            assert_eq!(text.lines().filter(|said| *said == line).count(), 1, "{line}:\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n") && !text.contains("p50") && !text.contains("_buckets"), "{text}");
        assert_eq!(text.matches("# TYPE fastsock_kernel_fallbacks ").count(), 1, "{text}");
    }
}
