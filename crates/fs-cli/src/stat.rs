//! `fastsock stat`: counters.

use crate::control::ControlArgs;
use anyhow::Context;
use fs_shm::control::{CounterRow, Request};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::io::Write;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// In Prometheus's text format.
    #[arg(long)]
    prometheus: bool,
    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn stat(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.control.connect()?;
    let mut rows: Vec<CounterRow> = Vec::new();
    client.rows(|cursor| Request::Counters { cursor }, |row| rows.push(row)).context("the daemon's counters")?;
    let text = if args.prometheus { prometheus(&rows)? } else { plain(&rows) };
    std::io::stdout().write_all(text.as_bytes()).context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// `name value` or `name{label} value`, one a line.
fn plain(rows: &[CounterRow]) -> String {
    rows.iter().map(|row| format!("{}{} {}\n", row.name.as_str(), labels(row), row.value)).collect()
}

/// Rows of one name stand together, as the format wants.
fn prometheus(rows: &[CounterRow]) -> anyhow::Result<String> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.name.as_str()) {
            names.push(row.name.as_str());
        }
    }
    let mut registry = prometheus_client::registry::Registry::with_prefix("fastsock");
    for name in names {
        let rows = rows.iter().filter(|row| row.name.as_str() == name).copied().collect();
        registry.register_collector(Box::new(Family { rows }));
    }
    let mut text = String::new();
    encode(&mut text, &registry).context("write the counters")?;
    Ok(text)
}

/// All rows of a name.
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
                // The only one of its name.
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

/// What a label's value is: a core's number or a reason.
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
        let text = prometheus(&[row("x", "0", true, 3)]).unwrap();
        assert!(text.contains("# TYPE fastsock_x gauge\nfastsock_x{core=\"0\"} 3\n"), "{text}");
    }
}
