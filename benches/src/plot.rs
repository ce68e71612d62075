//! Bar charts as SVG: inline, with the colours of the page; as a file, with those of the reader's
//! scheme, light or dark.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Placeholder for the page's text colour until the SVG is complete.
const INK: RGBColor = RGBColor(1, 2, 3);
const OURS: RGBColor = RGBColor(1, 2, 4);
const KERNEL: RGBColor = RGBColor(1, 2, 5);
const FAINT: RGBColor = RGBColor(1, 2, 6);
const SIZE: (u32, u32) = (640, 280);

/// The colours by the reader's scheme.
pub const SCHEMES: &str = "
:root { color-scheme: light dark; --ours: #0b7285; --kernel: #e8890c; --faint: #dcdfe4; --paper: #fff; --ink: #1b1e23; }
@media (prefers-color-scheme: dark) {
  :root { --ours: #3bc9db; --kernel: #ffa94d; --faint: #3a3f47; --paper: #16181c; --ink: #e6e8eb; }
}
";

/// Like [`bars`], as a separate file.
pub fn file(title: &str, rows: &[(String, f64, f64)]) -> Result<String> {
    let svg = bars(title, rows)?;
    let head = svg.find('>').map_or(0, |end| end + 1);
    Ok(format!("{}<style>{SCHEMES}svg {{ color: var(--ink); }}</style>{}\n", &svg[..head], &svg[head..]))
}

/// Draws two bars for each label: ours and the kernel's. The colours are the page's `currentColor`,
/// `--ours`, `--kernel` and `--faint`.
pub fn bars(title: &str, rows: &[(String, f64, f64)]) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, title, rows).map_err(|error| anyhow!("plot {title}: {error}"))?;
    for (stand_in, css) in
        [(INK, "currentColor"), (OURS, "var(--ours)"), (KERNEL, "var(--kernel)"), (FAINT, "var(--faint)")]
    {
        svg = svg.replace(&format!("#{:02X}{:02X}{:02X}", stand_in.0, stand_in.1, stand_in.2), css);
    }
    // The width follows the page; the view box keeps the proportions.
    Ok(svg.replacen(&format!("width=\"{}\" height=\"{}\"", SIZE.0, SIZE.1), "width=\"100%\" role=\"img\"", 1))
}

fn draw(svg: &mut String, title: &str, rows: &[(String, f64, f64)]) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let top = rows.iter().fold(0.0_f64, |top, row| top.max(row.1).max(row.2)) * 1.15;
    let mut chart = ChartBuilder::on(&root)
        .margin(8)
        .caption(title, ("sans-serif", 18).into_font().color(&INK))
        .x_label_area_size(48)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..rows.len() as f64, 0.0..top.max(1e-9))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(INK)
        .y_labels(5)
        .y_label_formatter(&|value| short(*value))
        .y_label_style(("sans-serif", 13).into_font().color(&INK))
        .draw()?;
    let text = TextStyle::from(("sans-serif", 13).into_font()).color(&INK);
    for (i, (label, ours, kernel)) in rows.iter().enumerate() {
        let left = i as f64;
        for (from, value, colour) in [(0.14, *ours, OURS), (0.52, *kernel, KERNEL)] {
            let (x0, x1) = (left + from, left + from + 0.34);
            chart.draw_series([Rectangle::new([(x0, 0.0), (x1, value)], colour.filled())])?;
            let (x, y) = chart.backend_coord(&(f64::midpoint(x0, x1), value));
            let style = text.pos(Pos::new(HPos::Center, VPos::Bottom));
            root.draw(&Text::new(short(value), (x, y - 3), style))?;
        }
        let (x, y) = chart.backend_coord(&(left + 0.5, 0.0));
        for (line, part) in label.split(", ").enumerate() {
            let style = text.pos(Pos::new(HPos::Center, VPos::Top));
            root.draw(&Text::new(part.to_owned(), (x, y + 8 + 16 * line as i32), style))?;
        }
    }
    root.present()?;
    drop(chart);
    drop(root);
    Ok(())
}

/// Formats a number with three significant digits, and k or M.
pub fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e5 => format!("{:.0}k", v / 1e3),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
