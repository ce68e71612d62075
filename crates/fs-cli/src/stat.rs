//! `fastsock stat`: counters.

use crate::control::ControlArgs;
use crate::counters::{Row, rows};
use crate::exposition::{self, Format, labels};
use anyhow::Context;
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
    let daemon = args.control.daemon()?;
    let counters = fs_pairs::counters::count(&daemon)
        .with_context(|| format!("cannot read the counters of the daemon at {}", daemon.display()))?;
    let rows = rows(&counters);
    let text = match args {
        Args { prometheus: true, .. } => exposition::text(&rows, Format::Classic),
        Args { openmetrics: true, .. } => exposition::text(&rows, Format::OpenMetrics),
        Args { json: true, .. } => json(&rows),
        _ => plain(&rows),
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Formats `name value` or `name{label} value`, one per line.
fn plain(rows: &[Row]) -> String {
    rows.iter().map(|row| format!("{}{} {}\n", row.counter.name, labels(row), row.value)).collect()
}

/// Formats the rows of [`plain`] as objects.
fn json(rows: &[Row]) -> String {
    let object = |row: &Row| {
        let labels: serde_json::Map<_, _> =
            row.reason.iter().map(|reason| ("reason".to_owned(), reason.as_str().into())).collect();
        let kind = if row.counter.is_gauge { "gauge" } else { "counter" };
        serde_json::json!({ "name": row.counter.name, "labels": labels, "type": kind, "value": row.value })
    };
    format!("{:#}\n", serde_json::Value::Array(rows.iter().map(object).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_pairs::Reason;
    use fs_pairs::counters::Counters;

    #[test]
    fn plain_and_json_have_the_same_rows() {
        let counters = Counters { pairs: 7, refused: [u64::MAX; Reason::ALL.len()], ..Counters::default() };
        let rows = rows(&counters);
        let text = plain(&rows);
        let refused = "offers_refused{reason=\"not established\"} 18446744073709551615";
        assert!(text.lines().any(|line| line == "pairs 7") && text.lines().any(|line| line == refused), "{text}");
        let objects: Vec<serde_json::Value> = serde_json::from_str(&json(&rows)).unwrap();
        assert_eq!(objects.len(), text.lines().count());
        let expected = serde_json::json!({ "name": "pairs", "labels": {}, "type": "gauge", "value": 7 });
        assert!(objects.contains(&expected), "{objects:?}");
        let reason = serde_json::json!({ "reason": "not established" });
        let expected =
            serde_json::json!({ "name": "offers_refused", "labels": reason, "type": "counter", "value": u64::MAX });
        assert!(objects.contains(&expected), "{objects:?}");
    }
}
