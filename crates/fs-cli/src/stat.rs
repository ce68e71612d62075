//! `fastsock stat`: counters.

use crate::control::ControlArgs;
use anyhow::Context;
use fs_shm::control::{CounterRow, Request};
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
    let text = if args.prometheus { prometheus(&rows) } else { plain(&rows) };
    std::io::stdout().write_all(text.as_bytes()).context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// `name value` or `name{label} value`, one a line.
fn plain(rows: &[CounterRow]) -> String {
    rows.iter().map(|row| format!("{}{} {}\n", row.name.as_str(), labels(row), row.value)).collect()
}

fn prometheus(rows: &[CounterRow]) -> String {
    let mut text = String::new();
    let mut last = "";
    for row in rows {
        let name = row.name.as_str();
        if name != last {
            text += &format!("# TYPE fastsock_{name} {}\n", if row.gauge { "gauge" } else { "counter" });
            last = name;
        }
        text += &format!("fastsock_{name}{} {}\n", labels(row), row.value);
    }
    text
}

fn labels(row: &CounterRow) -> String {
    let value = row.label.as_str();
    match value {
        "" => String::new(),
        _ if value.bytes().all(|b| b.is_ascii_digit()) => format!("{{core=\"{value}\"}}"),
        _ => format!("{{reason=\"{value}\"}}"),
    }
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
        let expected = "# TYPE fastsock_local_bytes counter\nfastsock_local_bytes 7\n# TYPE fastsock_k counter\n\
                        fastsock_k{reason=\"port\"} 1\nfastsock_k{reason=\"limit\"} 2\n";
        assert_eq!(prometheus(&rows), expected);
        assert_eq!(prometheus(&[row("x", "0", true, 3)]), "# TYPE fastsock_x gauge\nfastsock_x{core=\"0\"} 3\n");
    }
}
