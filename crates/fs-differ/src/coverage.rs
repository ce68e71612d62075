//! Counts the programs' calls and arguments.

use crate::program::{Call, Kind, Mode, Program};
use std::collections::BTreeMap;
use std::fmt::Write;

const HEAD: &str = include_str!("differ.md");

/// The counters.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    programs: BTreeMap<(String, &'static str), u64>,
    calls: BTreeMap<Call, u64>,
    words: BTreeMap<(Call, String), u64>,
}

impl Coverage {
    /// Counts the calls of a program that have run, by the results of its steps.
    pub fn add(&mut self, program: &Program, results: &[String]) {
        let mode = match program.mode {
            Mode::Alone => "one process",
            Mode::Ordered => "several, in order",
            Mode::Racing => "several, racing",
            Mode::Signals => "several, racing, with signals",
        };
        *self.programs.entry((program.profile.clone(), mode)).or_default() += 1;
        for (step, result) in program.steps.iter().zip(results) {
            // The actor did not exist, or was in a call.
            if ["nobody", "dead", "busy"].contains(&result.as_str()) {
                continue;
            }
            *self.calls.entry(step.call).or_default() += 1;
            for (kind, arg) in step.call.kinds().iter().zip(&step.args) {
                let names: Vec<&str> = match kind {
                    Kind::One(table) => table.iter().filter(|(_, value)| value == arg).map(|(name, _)| *name).collect(),
                    Kind::Bits(table) => {
                        table.iter().filter(|(_, bit)| *bit != 0 && arg & bit == *bit).map(|(name, _)| *name).collect()
                    }
                    _ => Vec::new(),
                };
                for name in names {
                    *self.words.entry((step.call, name.into())).or_default() += 1;
                }
            }
        }
    }

    /// Formats the counters as a page.
    pub fn table(&self, seed: u64) -> String {
        let all: u64 = self.programs.values().sum();
        let mut text = format!(
            "{HEAD}\n## What was called\n\nIn {all} programs from seed {seed}: how often each call was made, and in brackets how often with which \
             argument.\n\n| kind of program | programs |\n|---|---|\n"
        );
        for ((profile, mode), count) in &self.programs {
            let _ = writeln!(text, "| {profile} ({mode}) | {count} |");
        }
        text.push_str("\n| call | times | with |\n|---|---|---|\n");
        for call in Call::ALL {
            let times = self.calls.get(call).copied().unwrap_or(0);
            let with: Vec<String> = self
                .words
                .iter()
                .filter(|((of, _), _)| of == call)
                .map(|((_, word), count)| format!("{word} ({count})"))
                .collect();
            let _ = writeln!(text, "| {} | {times} | {} |", call.name(), with.join(", "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::generate;

    #[test]
    fn calls_that_did_not_run_are_not_counted() {
        let program = generate(1, "");
        let results = |first: &str| -> Vec<String> {
            std::iter::once(first).chain(std::iter::repeat("0")).take(program.steps.len()).map(str::to_owned).collect()
        };
        let counted = |results: &[String]| {
            let mut coverage = Coverage::default();
            coverage.add(&program, results);
            coverage.calls.values().sum::<u64>()
        };
        let all = program.steps.len() as u64;
        assert_eq!(counted(&results("0")), all);
        for first in ["nobody", "dead", "busy"] {
            assert_eq!(counted(&results(first)), all - 1, "{first}");
        }
        // The runner has died.
        assert_eq!(counted(&results("0")[..1]), 1);
    }
}
