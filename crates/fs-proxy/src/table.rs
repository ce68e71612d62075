//! Text in rows, for a terminal or for a browser.

use std::fmt::Write;

/// Text in rows.
pub(crate) struct Table {
    heads: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heads: impl Iterator<Item = String>) -> Self {
        Self { heads: heads.collect(), rows: Vec::new() }
    }

    /// Appends the table for a terminal.
    pub(crate) fn text(&self, out: &mut String) {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).chain(self.heads.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heads.len()).map(width).collect();
        for row in std::iter::once(&self.heads).chain(&self.rows) {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Names to the left, numbers to the right.
                let _ = match column {
                    0 | 1 => write!(line, "{cell:width$}  "),
                    _ => write!(line, "{cell:>width$}  "),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }

    pub(crate) fn html(&self, out: &mut String) {
        out.push_str("<table>\n");
        for (row, tag) in std::iter::once((&self.heads, "th")).chain(self.rows.iter().map(|row| (row, "td"))) {
            let class = if row.iter().any(|cell| cell == "down") { " class=\"down\"" } else { "" };
            let _ = write!(out, "<tr{class}>");
            for cell in row {
                let cell = cell.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                let _ = write!(out, "<{tag}>{cell}</{tag}>");
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</table>\n");
    }
}
