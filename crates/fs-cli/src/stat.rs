//! `fastsock stat`: counters.

use crate::control::ControlArgs;
use crate::histogram::{Histogram, bucket};
use anyhow::Context;
use fs_shm::control::{BUCKETS, CounterRow, Request};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print the counters in Prometheus' text format.
    #[arg(long)]
    prometheus: bool,
    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn stat(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.control.connect()?;
    let mut rows: Vec<CounterRow> = Vec::new();
    client
        .rows(|cursor| Request::Counters { cursor }, |row| rows.push(row))
        .context("cannot read the daemon's counters")?;
    let text = if args.prometheus { prometheus(&rows)? } else { plain(&rows) };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Formats `name value` or `name{label} value`, one per line. For times: the count and three
/// quantiles.
fn plain(rows: &[CounterRow]) -> String {
    let read = rows.iter().filter(|row| bucket(row).is_none());
    read.map(|row| format!("{}{} {}\n", row.name.as_str(), labels(row), row.value)).collect()
}

/// Formats for Prometheus, with all rows of a name together.
fn prometheus(rows: &[CounterRow]) -> anyhow::Result<String> {
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
    let mut names: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| !of_times(row.name.as_str())) {
        if !names.contains(&row.name.as_str()) {
            names.push(row.name.as_str());
        }
    }
    let mut registry = prometheus_client::registry::Registry::with_prefix("fastsock");
    for name in names {
        let rows = rows.iter().filter(|row| row.name.as_str() == name).copied().collect();
        registry.register_collector(Box::new(Family { rows }));
    }
    for (name, cores) in times {
        let cores = cores.into_iter().map(|(core, times)| (core.to_owned(), times)).collect();
        registry.register_collector(Box::new(Times { name: format!("{name}_seconds"), cores }));
    }
    let mut text = String::new();
    encode(&mut text, &registry).context("cannot format the counters")?;
    Ok(text)
}

/// Returns true for the suffixes that `plain` prints for times.
fn is_quantile(rest: &str) -> bool {
    rest == "_count" || rest.ends_with("_ns")
}

/// A histogram for each core.
#[derive(Debug)]
struct Times {
    name: String,
    cores: Vec<(String, Histogram)>,
}

impl prometheus_client::collector::Collector for Times {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = self.name.replace('_', " ");
        let mut family = encoder.encode_descriptor(&self.name, &help, None, MetricType::Histogram)?;
        for (core, times) in &self.cores {
            let labels = [("core", core.clone())];
            let mut encoder = family.encode_family(&labels)?;
            let (sum, count) = (times.sum_seconds(), times.count());
            encoder.encode_histogram::<prometheus_client::encoding::NoLabelSet>(
                sum,
                count,
                &times.powers_of_two(),
                None,
            )?;
        }
        Ok(())
    }
}

/// All rows with one name.
#[derive(Debug)]
struct Family {
    rows: Vec<CounterRow>,
}

impl prometheus_client::collector::Collector for Family {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(first) = self.rows.first() else { return Ok(()) };
        let name = first.name.as_str().to_owned();
        let help = name.replace('_', " ");
        let kind =
            if first.gauge { ConstGauge::new(0i64).metric_type() } else { ConstCounter::new(0u64).metric_type() };
        let mut family = encoder.encode_descriptor(&name, &help, None, kind)?;
        for row in &self.rows {
            let value = row.label.as_str();
            if value.is_empty() {
                // The only row of its name.
                return number(row, family);
            }
            let labels = [(label(value), value.to_owned())];
            number(row, family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn number(row: &CounterRow, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
    match row.gauge {
        true => ConstGauge::new(row.value as i64).encode(encoder),
        false => ConstCounter::new(row.value).encode(encoder),
    }
}

fn labels(row: &CounterRow) -> String {
    match row.label.as_str() {
        "" => String::new(),
        value => format!("{{{}=\"{value}\"}}", label(value)),
    }
}

/// Returns the label's name: a value is a core's number or a reason.
fn label(value: &str) -> &'static str {
    if value.bytes().all(|b| b.is_ascii_digit()) { "core" } else { "reason" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_shm::control::Text;

    #[test]
    fn both_formats() {
        let row = |name: &str, label: &str, gauge, value| {
            let (name, label) = (Text::new(name.as_bytes()), Text::new(label.as_bytes()));
            CounterRow { name, label, gauge, value }
        };
        let rows = [row("local_bytes", "", false, 7), row("k", "port", false, 1), row("k", "limit", false, 2)];
        assert_eq!(plain(&rows), "local_bytes 7\nk{reason=\"port\"} 1\nk{reason=\"limit\"} 2\n");
        let text = prometheus(&rows).unwrap();
        assert!(text.contains("# TYPE fastsock_local_bytes counter\nfastsock_local_bytes_total 7\n"), "{text}");
        assert_eq!(text.matches("# TYPE fastsock_k counter").count(), 1, "{text}");
        assert!(text.contains("fastsock_k_total{reason=\"port\"} 1\nfastsock_k_total{reason=\"limit\"} 2\n"), "{text}");
        let rows = [
            row("turn_time_count", "0", false, 3),
            row("turn_time_p50_ns", "0", true, 1280),
            row("turn_time_buckets", "0,1280", false, 2),
            row("turn_time_buckets", "0,18446744073709551615", false, 1),
            row("turn_time_buckets", "0,sum", false, 80_000_000_000),
        ];
        assert_eq!(plain(&rows), "turn_time_count{core=\"0\"} 3\nturn_time_p50_ns{core=\"0\"} 1280\n");
        let text = prometheus(&rows).unwrap();
        for line in [
            "# TYPE fastsock_turn_time_seconds histogram",
            "fastsock_turn_time_seconds_sum{core=\"0\"} 80.0",
            "fastsock_turn_time_seconds_count{core=\"0\"} 3",
            "fastsock_turn_time_seconds_bucket{le=\"0.000001024\",core=\"0\"} 0",
            "fastsock_turn_time_seconds_bucket{le=\"0.000002048\",core=\"0\"} 2",
            "fastsock_turn_time_seconds_bucket{le=\"+Inf\",core=\"0\"} 3",
        ] {
            assert!(text.lines().any(|said| said == line), "{line}:\n{text}");
        }
        assert!(!text.contains("p50") && !text.contains("buckets"), "{text}");
        let text = prometheus(&[row("x", "0", true, 3)]).unwrap();
        assert!(text.contains("# TYPE fastsock_x gauge\nfastsock_x{core=\"0\"} 3\n"), "{text}");
    }
}
