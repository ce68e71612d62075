//! Results of an experiment: figures, tables, goals. They are JSON in the run's folder, and a page
//! for readers.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A part's results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The kernel's release.
    pub(crate) kernel: String,
    /// CPUs of the machine.
    pub(crate) processors: usize,
    /// A short run at small sizes.
    pub(crate) quick: bool,
    /// Duration in seconds.
    pub(crate) took_seconds: f64,
    /// Items in the page's order.
    pub(crate) items: Vec<Item>,
    /// Failed measurements with their reasons.
    pub(crate) missing: Vec<String>,
}

/// An item of a page.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Item {
    Figure(Figure),
    Table(Table),
    Goal(Goal),
}

/// Lines over categories.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// File name of the plot, without its extension.
    pub(crate) name: String,
    pub(crate) title: String,
    /// The paper's result, with its figure's number.
    pub(crate) paper: String,
    /// One sentence of interpretation.
    pub(crate) means: String,
    /// Name of the category axis.
    pub(crate) over: String,
    pub(crate) categories: Vec<String>,
    /// Unit of the values.
    pub(crate) unit: String,
    /// True if the value axis is logarithmic.
    pub(crate) log: bool,
    pub(crate) series: Vec<Series>,
}

/// One line of a figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// One value for each category; `None` where it was not measured.
    pub(crate) values: Vec<Option<f64>>,
}

/// A table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) paper: String,
    pub(crate) means: String,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// A goal with its figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Goal {
    pub(crate) goal: String,
    pub(crate) measured: String,
    pub(crate) met: bool,
}

impl Figure {
    /// Returns the value of a series in a category.
    pub(crate) fn value(&self, series: &str, category: &str) -> Option<f64> {
        let at = self.categories.iter().position(|name| name == category)?;
        *self.series.iter().find(|one| one.name == series)?.values.get(at)?
    }

    /// Returns the range of `of`'s values as multiples of `to`'s, over all categories.
    pub(crate) fn ratios(&self, of: &str, to: &str) -> Option<(f64, f64)> {
        let ratio = |category: &String| Some(self.value(of, category)? / self.value(to, category)?);
        let ratios: Vec<f64> = self.categories.iter().filter_map(ratio).filter(|ratio| ratio.is_finite()).collect();
        let least = ratios.iter().copied().reduce(f64::min)?;
        Some((least, ratios.iter().copied().reduce(f64::max)?))
    }
}

/// Formats a range of ratios, such as "2.1 to 3 times".
pub(crate) fn times(ratios: Option<(f64, f64)>) -> String {
    match ratios {
        None => "not measured".into(),
        Some((least, most)) if number(least) == number(most) => format!("{} ×", number(least)),
        Some((least, most)) => format!("{} to {} ×", number(least), number(most)),
    }
}

/// Parses the output of [`times`]. Returns `Some(None)` if nothing was measured, `None` for other
/// text.
pub(crate) fn read_times(text: &str) -> Option<Option<(f64, f64)>> {
    if text == times(None) {
        return Some(None);
    }
    let numbers = text.strip_suffix(" ×")?;
    let (least, most) = numbers.split_once(" to ").unwrap_or((numbers, numbers));
    Some(Some((read_number(least)?, read_number(most)?)))
}

/// Parses the output of [`number`].
pub(crate) fn read_number(text: &str) -> Option<f64> {
    text.replace(',', "").parse().ok()
}

/// A number of bytes with its unit.
pub(crate) fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// Formats a number with three significant digits.
pub(crate) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 1000.0 {
        let unit = 10_f64.powi(magnitude.log10().floor() as i32 - 2);
        let digits = format!("{:.0}", (value / unit).round() * unit);
        let groups: Vec<&str> =
            digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap_or_default()).collect();
        return groups.join(",");
    }
    match magnitude {
        0.0 => "0".into(),
        m if m >= 100.0 => format!("{value:.0}"),
        m if m >= 10.0 => format!("{value:.1}"),
        m if m >= 1.0 => format!("{value:.2}"),
        m if m >= 0.001 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// Reads a part's results.
pub(crate) fn read(path: &Path) -> Result<Outcome> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// Writes a part's results.
pub(crate) fn write(path: &Path, outcome: &Outcome) -> Result<()> {
    let text = serde_json::to_string_pretty(outcome)? + "\n";
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_round_trip_through_file() {
        for (ratios, text) in
            [(Some((0.7, 1234.0)), "0.700 to 1,230 ×"), (Some((2.0, 2.0)), "2.00 ×"), (None, "not measured")]
        {
            assert_eq!(times(ratios), text);
            assert_eq!(times(read_times(text).unwrap()), text);
        }
        assert_eq!(read_times("16.2 million/s"), None);
    }
}
