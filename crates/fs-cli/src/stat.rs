//! `fastsock stat`: counters.

use crate::control::ControlArgs;
use crate::exposition::{self, Format, label, labels};
use crate::histogram::bucket;
use anyhow::Context;
use fs_shm::control::{CounterRow, Request};
use std::io::Write;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("format").args(["prometheus", "openmetrics", "json"])))]
pub(crate) struct Args {
    /// Print the counters in Prometheus' classic text format (0.0.4), for node_exporter's textfile
    /// collector.
    #[arg(long)]
    prometheus: bool,
    /// Print the counters in the OpenMetrics format (1.0).
    #[arg(long)]
    openmetrics: bool,
    /// Print the counters as a JSON array.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn stat(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.control.connect()?;
    let mut rows: Vec<CounterRow> = Vec::new();
    client
        .rows(|cursor| Request::Counters { cursor }, |row| rows.push(row))
        .context("cannot read the daemon's counters")?;
    let text = match args {
        Args { prometheus: true, .. } => exposition::text(&rows, Format::Classic),
        Args { openmetrics: true, .. } => exposition::text(&rows, Format::OpenMetrics),
        Args { json: true, .. } => json(&rows),
        _ => plain(&rows),
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Formats `name value` or `name{label} value`, one per line. For times: the count and three
/// quantiles.
fn plain(rows: &[CounterRow]) -> String {
    let read = rows.iter().filter(|row| bucket(row).is_none());
    read.map(|row| format!("{}{} {}\n", row.name.as_str(), labels(row), row.value)).collect()
}

/// Formats the rows of [`plain`] as objects.
fn json(rows: &[CounterRow]) -> String {
    let read = rows.iter().filter(|row| bucket(row).is_none());
    let object = |row: &CounterRow| {
        let labels: serde_json::Map<_, _> =
            label(row).into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        let kind = if row.gauge { "gauge" } else { "counter" };
        serde_json::json!({ "name": row.name.as_str(), "labels": labels, "type": kind, "value": row.value })
    };
    format!("{:#}\n", serde_json::Value::Array(read.map(object).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_shm::control::Text;

    #[test]
    fn plain_and_json_have_the_same_rows() {
        let row = |name: &str, label: &str, gauge, value| {
            let (name, label) = (Text::new(name.as_bytes()), Text::new(label.as_bytes()));
            CounterRow { name, label, gauge, value }
        };
        let rows = [
            row("local_bytes", "", false, 7),
            row("kernel_fallbacks", "port", false, u64::MAX),
            row("turn_time_p50_ns", "0", true, 1280),
            row("turn_time_buckets", "0,1280", false, 2),
        ];
        assert_eq!(
            plain(&rows),
            "local_bytes 7\nkernel_fallbacks{reason=\"port\"} 18446744073709551615\nturn_time_p50_ns{core=\"0\"} 1280\n"
        );
        let expected = serde_json::json!([
            { "name": "local_bytes", "labels": {}, "type": "counter", "value": 7 },
            { "name": "kernel_fallbacks", "labels": { "reason": "port" }, "type": "counter", "value": u64::MAX },
            { "name": "turn_time_p50_ns", "labels": { "core": "0" }, "type": "gauge", "value": 1280 },
        ]);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json(&rows)).unwrap(), expected);
    }
}
