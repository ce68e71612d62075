//! Line charts as SVG files, in light or dark colours by the reader's scheme.

use crate::outcome::Figure;
use anyhow::{Result, anyhow};
use fs_benches::plot::short;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const SIZE: (u32, u32) = (720, 380);
/// Placeholders until the SVG is complete.
const INK: RGBColor = RGBColor(1, 2, 3);
const FAINT: RGBColor = RGBColor(1, 2, 6);

/// Colours of lines, light and dark; ours is always the first.
const LINES: [(&str, &str); 8] = [
    ("#0b7285", "#3bc9db"),
    ("#e8890c", "#ffa94d"),
    ("#6741d9", "#b197fc"),
    ("#2f9e44", "#69db7c"),
    ("#c2255c", "#f783ac"),
    ("#846358", "#d2bab0"),
    ("#495057", "#ced4da"),
    ("#1864ab", "#74c0fc"),
];

fn stand_in(line: usize) -> RGBColor {
    RGBColor(2, 3, (line % LINES.len()) as u8)
}

fn hex(colour: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

/// Draws the figure as a file.
pub(crate) fn file(figure: &Figure) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, figure).map_err(|error| anyhow!("plot {}: {error}", figure.name))?;
    let mut style = String::from(":root { color-scheme: light dark; --ink: #1b1e23; --faint: #dcdfe4; ");
    let mut dark = String::from("--ink: #e6e8eb; --faint: #3a3f47; ");
    for (line, (light, night)) in LINES.iter().enumerate() {
        style += &format!("--l{line}: {light}; ");
        dark += &format!("--l{line}: {night}; ");
        svg = svg.replace(&hex(stand_in(line)), &format!("var(--l{line})"));
    }
    style += &format!("}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n");
    svg = svg.replace(&hex(INK), "var(--ink)").replace(&hex(FAINT), "var(--faint)");
    svg = svg.replacen(&format!("width=\"{}\" height=\"{}\"", SIZE.0, SIZE.1), "width=\"100%\" role=\"img\"", 1);
    let head = svg.find('>').map_or(0, |end| end + 1);
    Ok(format!("{}<style>{style}</style>{}\n", &svg[..head], &svg[head..]))
}

fn draw(svg: &mut String, figure: &Figure) -> Result<(), Box<dyn std::error::Error>> {
    let values = || figure.series.iter().flat_map(|series| series.values.iter().flatten().copied());
    let most = values().fold(0.0_f64, f64::max);
    let least = values().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
    // On a logarithmic axis the coordinates are logarithms.
    let at = |value: f64| if figure.log { value.max(least).log10() } else { value };
    let range = if figure.log {
        least.min(1e9).log10().floor()..most.max(1e-9).log10().ceil().max(least.min(1e9).log10().floor() + 1.0)
    } else {
        0.0..(most * 1.1).max(1e-9)
    };
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let rows = figure.series.len().div_ceil(4) as u32;
    let (legend, body) = root.split_vertically(38 + 18 * rows);
    let text = TextStyle::from(("sans-serif", 13).into_font()).color(&INK);
    let middle = Pos::new(HPos::Center, VPos::Top);
    let title = TextStyle::from(("sans-serif", 17).into_font()).color(&INK).pos(middle);
    legend.draw(&Text::new(figure.title.clone(), (SIZE.0 as i32 / 2, 8), title))?;
    for (line, series) in figure.series.iter().enumerate() {
        let (x, y) = (24 + 172 * (line as i32 % 4), 38 + 18 * (line as i32 / 4));
        legend.draw(&Rectangle::new([(x, y), (x + 14, y + 8)], stand_in(line).filled()))?;
        let style = text.pos(Pos::new(HPos::Left, VPos::Center));
        legend.draw(&Text::new(series.name.clone(), (x + 20, y + 4), style))?;
    }
    let last = figure.categories.len().max(2) as f64 - 1.0;
    let mut chart = ChartBuilder::on(&body)
        .margin(10)
        .x_label_area_size(44)
        .y_label_area_size(66)
        .build_cartesian_2d(-0.2..last + 0.2, range)?;
    let log = figure.log;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(INK)
        .y_labels(6)
        .y_label_formatter(&|value| short(if log { 10_f64.powf(*value) } else { *value }))
        .y_label_style(("sans-serif", 13).into_font().color(&INK))
        .draw()?;
    for (line, series) in figure.series.iter().enumerate() {
        let points: Vec<(f64, f64)> =
            series.values.iter().enumerate().filter_map(|(x, value)| Some((x as f64, at((*value)?)))).collect();
        chart.draw_series(LineSeries::new(points.clone(), stand_in(line).stroke_width(2)))?;
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, stand_in(line).filled())))?;
    }
    let floor = if log { least.min(1e9).log10().floor() } else { 0.0 };
    for (x, label) in figure.categories.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(x as f64, floor));
        root.draw(&Text::new(label.clone(), (x, y + 6), text.pos(middle)))?;
    }
    let (x, y) = chart.backend_coord(&(last / 2.0, floor));
    root.draw(&Text::new(format!("{} → {}", figure.over, figure.unit), (x, y + 24), text.pos(middle)))?;
    root.present()?;
    drop(chart);
    drop((legend, body));
    drop(root);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Series;

    #[test]
    fn chart_has_all_lines_in_both_schemes() {
        let series = |name: &str, by: f64| Series { name: name.into(), values: vec![Some(by), None, Some(3.0 * by)] };
        for log in [false, true] {
            let figure = Figure {
                name: "x".into(),
                title: "A title".into(),
                paper: String::new(),
                means: String::new(),
                over: "connections".into(),
                categories: ["6", "24", "96"].map(String::from).to_vec(),
                unit: "Gb/s".into(),
                log,
                series: vec![series("ours", 1.0), series("kernel", 100.0)],
            };
            let svg = file(&figure).unwrap();
            for part in ["prefers-color-scheme: dark", "var(--l0)", "var(--l1)", "kernel", "A title", "96"] {
                assert!(svg.contains(part), "{part} is not in {svg}");
            }
            assert!(!svg.contains(&hex(stand_in(0))), "{svg}");
        }
    }
}
