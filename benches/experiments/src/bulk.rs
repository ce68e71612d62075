//! One flow at full speed, compared with raw AF_XDP and the kernel: the bench's figures (`cargo xtask bench
//! bulk`), and the goals.

use crate::Run;
use crate::outcome::{Goal, Item, Outcome, Table, number, read_number, read_times, times};
use anyhow::{Context, Result, ensure};
use fs_tests::apps::target_dir;
use serde::Deserialize;
use std::process::Command;

/// The part's name.
pub(crate) const NAME: &str = "bulk";
/// The table's title, by which kept tables are found.
const TITLE: &str = "One flow";

pub(crate) const ABOUT: &str = "\
One flow over veth, sender on CPU 1 and receiver on CPU 0 (`cargo xtask bench bulk`). Raw AF_XDP sends and receives the same frames without TCP; *copied* has both ends copy each byte once,
as a socket has to. Without offloads the kernel's TCP sends frames of the MTU, as ours does; with them veth hands on up to 64 KiB at a time. A goal is met where the worst round of every
run that is kept meets it.";

#[derive(Deserialize)]
struct Bench {
    rows: Vec<Row>,
}

/// A row of the bench.
#[derive(Deserialize)]
struct Row {
    what: String,
    peer_name: String,
    ours: f64,
    peer: f64,
    our_rounds: Vec<f64>,
    peer_rounds: Vec<f64>,
}

impl Row {
    /// Returns the lowest and the highest ratio of a round.
    fn ratios(&self) -> Option<(f64, f64)> {
        let ratios = || self.our_rounds.iter().zip(&self.peer_rounds).map(|(ours, peer)| ours / peer);
        Some((ratios().reduce(f64::min)?, ratios().reduce(f64::max)?))
    }
}

pub(crate) fn run(run: &mut Run) -> Result<()> {
    let mut command = Command::new(target_dir().join("release/veth"));
    command.args(run.choose(Some("--quick"), None)).args(run.smoke.then_some("--dry-run")).arg("bulk");
    let status = command.status().context("veth")?;
    ensure!(status.success(), "veth bulk: {status}");
    // The tests run the bench itself in its quick form.
    if run.smoke {
        return Ok(());
    }
    let path = target_dir().join("bench/bulk.json");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let bench: Bench = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    for (peer, least) in [("raw AF_XDP, copied", 0.9), ("kernel, offloads off", 1.0)] {
        for row in bench.rows.iter().filter(|row| row.peer_name == peer) {
            let ratios = row.ratios();
            run.items.push(Item::Goal(Goal {
                goal: format!("{} ≥ {least} × {peer}", row.what),
                measured: times(ratios),
                met: ratios.is_some_and(|(worst, _)| worst >= least),
            }));
        }
    }
    let rows = bench.rows.iter().map(|row| {
        vec![row.what.clone(), number(row.ours), row.peer_name.clone(), number(row.peer), times(row.ratios())]
    });
    run.items.push(Item::Table(Table {
        title: TITLE.into(),
        paper: "None of the four papers has a single flow over a device that carries 64 KiB at once.".into(),
        means: "Where a device takes offloads the kernel's bulk flows are ahead; docs/OPERATING.md says how to leave such programs and ports to it.".into(),
        head: ["", "fastsock, Gb/s", "peer", "its Gb/s", "ratio"].map(String::from).to_vec(),
        rows: rows.collect(),
    }));
    Ok(())
}

/// A row's ratios in the runs that contain it.
struct Range {
    what: String,
    peer: String,
    /// The runs, the oldest first.
    runs: Vec<String>,
    worst: Vec<f64>,
    /// Our median as a multiple of the peer's.
    median: Vec<f64>,
}

/// Returns each row over all kept runs (the oldest first, by name), in the order of the latest run.
pub(crate) fn ranges(kept: &[(String, Outcome)]) -> Result<Option<Table>> {
    let mut ranges: Vec<Range> = Vec::new();
    for (run, outcome) in kept.iter().rev() {
        for row in rows(outcome) {
            let [what, ours, peer, its, ratio] = &row[..] else {
                anyhow::bail!("{run}: a row of {} cells in {TITLE}", row.len());
            };
            let wrong = || format!("{run}: {what}, {peer}: no figure in {ours}, {its}, {ratio}");
            let Some((worst, _)) = read_times(ratio).with_context(wrong)? else { continue };
            let median = read_number(ours).with_context(wrong)? / read_number(its).with_context(wrong)?;
            let at = ranges.iter().position(|range| range.what == *what && range.peer == *peer);
            let range = match at {
                Some(at) => &mut ranges[at],
                None => {
                    let (what, peer) = (what.clone(), peer.clone());
                    ranges.push(Range { what, peer, runs: Vec::new(), worst: Vec::new(), median: Vec::new() });
                    ranges.last_mut().expect("it has just been pushed")
                }
            };
            range.runs.insert(0, run.clone());
            range.worst.push(worst);
            range.median.push(median);
        }
    }
    if ranges.is_empty() {
        return Ok(None);
    }
    let quick = kept.iter().filter(|(_, outcome)| outcome.quick).count();
    let row = |range: &Range| {
        let day = |run: Option<&String>| run.and_then(|run| run.get(..10)).unwrap_or("–").to_owned();
        vec![
            range.what.clone(),
            range.peer.clone(),
            range.runs.len().to_string(),
            day(range.runs.first()),
            day(range.runs.last()),
            times(least_and_most(&range.worst)),
            times(least_and_most(&range.median)),
        ]
    };
    Ok(Some(Table {
        title: format!("{TITLE}, all runs that are kept"),
        paper: "The machine's speed differs from day to day; one run says little of what holds.".into(),
        means: format!(
            "Of each run its worst round and the ratio of the medians, from the least to the greatest. Of {} runs {quick} had one round only (`--quick`), which is its worst and its median.",
            kept.len()
        ),
        head: ["", "peer", "runs", "first", "last", "worst round", "ratio of the medians"].map(String::from).to_vec(),
        rows: ranges.iter().map(row).collect(),
    }))
}

/// Returns a goal over all kept runs: the range of their worst rounds, and the number of runs that
/// met it.
pub(crate) fn in_all(goal: &Goal, kept: &[(String, Outcome)]) -> Result<(String, GoalCount)> {
    let (mut worst, mut held) = (Vec::new(), GoalCount { met: 0, runs: 0 });
    for (run, outcome) in kept {
        for item in &outcome.items {
            let Item::Goal(one) = item else { continue };
            if one.goal != goal.goal {
                continue;
            }
            held.runs += 1;
            held.met += usize::from(one.met);
            let ratios = read_times(&one.measured).with_context(|| format!("{run}: {}: {}", one.goal, one.measured))?;
            worst.extend(ratios.map(|(worst, _)| worst));
        }
    }
    Ok((format!("worst round of each run {}", times(least_and_most(&worst))), held))
}

/// The number of runs that met a goal, of those that contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GoalCount {
    pub(crate) met: usize,
    pub(crate) runs: usize,
}

fn rows(outcome: &Outcome) -> impl Iterator<Item = &Vec<String>> {
    outcome.items.iter().flat_map(|item| match item {
        Item::Table(table) if table.title == TITLE => &table.rows[..],
        _ => &[],
    })
}

fn least_and_most(values: &[f64]) -> Option<(f64, f64)> {
    Some((values.iter().copied().reduce(f64::min)?, values.iter().copied().reduce(f64::max)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a run with one row; `ratio` has the format of kept runs.
    fn run(day: &str, quick: bool, ours: &str, its: &str, ratio: &str, met: bool) -> (String, Outcome) {
        let goal = Goal { goal: "bulk ≥ 0.9 × raw".into(), measured: ratio.into(), met };
        let table = Table {
            title: TITLE.into(),
            rows: vec![["bulk", ours, "raw", its, ratio].map(String::from).to_vec()],
            paper: String::new(),
            means: String::new(),
            head: Vec::new(),
        };
        let items = vec![Item::Goal(goal), Item::Table(table)];
        (format!("{day}T0102"), Outcome { quick, items, ..Outcome::default() })
    }

    #[test]
    fn row_has_worst_and_median_round_of_every_run() {
        let kept = [
            run("2026-01-01", true, "6.00", "8.00", "0.750 ×", false),
            run("2026-01-02", false, "9.50", "10.0", "0.910 to 1.20 ×", true),
            run("2026-01-03", false, "–", "–", "not measured", false),
        ];
        let table = ranges(&kept).unwrap().unwrap();
        let wanted = ["bulk", "raw", "2", "2026-01-01", "2026-01-02", "0.750 to 0.910 ×", "0.750 to 0.950 ×"];
        assert_eq!(table.rows, [wanted.map(String::from).to_vec()]);
        assert!(table.means.contains("Of 3 runs 1 had one round only"), "{}", table.means);
        assert!(ranges(&[run("2026-01-01", false, "six", "8.00", "0.750 ×", false)]).is_err());
        assert!(ranges(&[("2026-01-01T0102".into(), Outcome::default())]).unwrap().is_none());
    }

    #[test]
    fn goal_counts_runs_that_met_it() {
        let kept = [
            run("2026-01-01", true, "6.00", "8.00", "0.750 ×", false),
            run("2026-01-02", false, "9.50", "10.0", "0.910 to 1.20 ×", true),
        ];
        let Item::Goal(goal) = &kept[1].1.items[0] else { panic!("its first item is the goal") };
        let (measured, held) = in_all(goal, &kept).unwrap();
        assert_eq!(
            (measured.as_str(), held),
            ("worst round of each run 0.750 to 0.910 ×", GoalCount { met: 1, runs: 2 })
        );
        let (measured, held) = in_all(goal, &kept[1..]).unwrap();
        assert_eq!((measured.as_str(), held), ("worst round of each run 0.910 ×", GoalCount { met: 1, runs: 1 }));
    }
}
