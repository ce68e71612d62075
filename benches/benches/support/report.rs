//! Figures, their budgets and peers: as a table, and as JSON.

use serde_json::json;
use std::path::Path;

/// The factor by which a figure may exceed its budget.
pub const STAGE: f64 = 1.3;

/// A line of the table.
pub struct Row {
    pub what: String,
    pub unit: &'static str,
    pub ours: f64,
    pub budget: Option<f64>,
    /// Name and figure of the peer that was measured with it.
    pub peer: Option<(&'static str, f64)>,
    /// The peer's figure on the machine that the budget is for.
    pub peer_there: Option<f64>,
}

impl Row {
    /// Returns the budget on this machine: scaled by the peer's figure here and there.
    fn budget_here(&self) -> Option<f64> {
        match (self.budget, self.peer, self.peer_there) {
            (Some(budget), Some((_, here)), Some(there)) => Some(budget * here / there),
            (budget, _, _) => budget,
        }
    }
}

/// Prints the table and writes it to `target/bench/in_memory.json`. Returns true if every row keeps
/// its budget on this machine × [`STAGE`]. Rows that criterion's filter left out are NaN; then the
/// file is not written.
pub fn publish(rows: &[Row], quick: bool) -> std::io::Result<bool> {
    println!(
        "\n{:58} {:>9} {:>8} {:>8} {:>8} {:>6}  {:>20} {:>9}",
        "one core, in memory", "measured", "budget", "here", "× 1.3", "ratio", "peer", "peer/ours"
    );
    let mut good = true;
    for row @ Row { what, unit, ours, budget, peer, .. } in rows {
        if ours.is_nan() {
            println!("{what:58} not measured");
            continue;
        }
        let limit = budget.map_or(String::new(), |b| format!("{b:.0}"));
        let (here, gate, ratio) = match row.budget_here() {
            Some(b) => (format!("{b:.0}"), format!("{:.0}", b * STAGE), format!("{:.2}", ours / b)),
            None => Default::default(),
        };
        let over = row.budget_here().is_some_and(|b| *ours > b * STAGE);
        good &= !over;
        let (peer, factor) = match peer {
            Some((name, figure)) => (format!("{name} {figure:.0}"), format!("{:.2}", figure / ours)),
            None => Default::default(),
        };
        let verdict = if over { "  over" } else { "" };
        println!(
            "{what:58} {ours:>6.1} {unit:2} {limit:>8} {here:>8} {gate:>8} {ratio:>6}  {peer:>20} {factor:>9}{verdict}"
        );
    }
    if rows.iter().any(|r| r.ours.is_nan()) {
        println!("a part only: in_memory.json stays as it is");
        return Ok(good);
    }
    let lines: Vec<_> = rows
        .iter()
        .map(|r| {
            json!({
                "what": r.what, "unit": r.unit, "ours": r.ours, "budget": r.budget,
                "budget_here": r.budget_here(), "stage_factor": STAGE,
                "ratio_to_budget_here": r.budget_here().map(|b| r.ours / b),
                "peer_name": r.peer.map(|p| p.0), "peer": r.peer.map(|p| p.1),
            })
        })
        .collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    std::fs::create_dir_all(&folder)?;
    let text = serde_json::to_string_pretty(
        &json!({ "quick": quick, "kernel": fs_benches::report::kernel(), "rows": lines }),
    )?;
    std::fs::write(folder.join("in_memory.json"), text + "\n")?;
    Ok(good)
}
