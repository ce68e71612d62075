//! Counts instructions by source file with callgrind.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Costs by source file: instructions, and misses of the first-level data cache (callgrind's model,
/// with the host's size).
pub(crate) type Costs = BTreeMap<String, [u64; 2]>;

/// Runs a program under callgrind, and counts only within functions whose name contains `within`.
/// Returns the program's output and the costs.
pub(crate) fn run(program: &Path, arguments: &[&str], within: &str) -> Result<(String, Costs)> {
    let out = std::env::temp_dir().join(format!("fs-callgrind-{}", std::process::id()));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--cache-sim=yes", "--dump-instr=no", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(format!("--toggle-collect=*{within}*"))
        .arg(program)
        .args(arguments)
        .output()
        .context("valgrind (lab/install test)")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} under valgrind: {}\n{errors}", program.display(), output.status);
    let text = std::fs::read_to_string(&out).context("callgrind's file")?;
    std::fs::remove_file(&out)?;
    let costs = parse(&text)?;
    ensure!(!costs.is_empty(), "nothing was counted: is {within} a symbol?");
    Ok((said, costs))
}

/// Parses callgrind's format (valgrind manual, "Callgrind Format Specification") into self costs by
/// file. `fl=`, `fi=` and `fe=` name the file of the cost lines that follow. A line after `calls=`
/// contains the callee's cost, which is not counted here.
fn parse(text: &str) -> Result<Costs> {
    let events: Vec<&str> =
        text.lines().find_map(|line| line.strip_prefix("events: ")).context("no events")?.split(' ').collect();
    let at = |name: &str| events.iter().position(|event| *event == name);
    let instructions = at("Ir").context("no event Ir")?;
    let misses = [at("D1mr"), at("D1mw")];
    let mut costs = Costs::new();
    let mut file = String::new();
    let mut callee = false;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("fl=") {
            name.clone_into(&mut file);
        } else if let Some(name) = line.strip_prefix("fi=").or_else(|| line.strip_prefix("fe=")) {
            // Code that is inlined from Rust's library counts for the file into which it is
            // inlined.
            if !name.contains("/library/") {
                name.clone_into(&mut file);
            }
        } else if line.starts_with("calls=") {
            callee = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            if std::mem::take(&mut callee) {
                continue;
            }
            let numbers: Vec<u64> = line.split(' ').skip(1).filter_map(|number| number.parse().ok()).collect();
            let of = |at: usize| numbers.get(at).copied().unwrap_or(0);
            let entry = costs.entry(file.clone()).or_default();
            entry[0] += of(instructions);
            entry[1] += misses.iter().flatten().map(|&at| of(at)).sum::<u64>();
        }
    }
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callee_cost_is_counted_separately() {
        let text = "events: Ir D1mr D1mw\n\nfl=a.rs\nfn=f\n10 5 1\nfi=b.rs\n3 7\nfe=a.rs\n11 1 0 2\ncalls=1 4\n11 100 9 9\n12 2\n\
                    fl=b.rs\nfn=g\n4 100 9 9\nfi=/rustc/1/library/core/src/iter.rs\n9 1\n";
        let costs = parse(text).unwrap();
        assert_eq!(costs["a.rs"], [8, 3]);
        assert_eq!(costs["b.rs"], [108, 18]);
        assert_eq!(costs.len(), 2);
    }
}
