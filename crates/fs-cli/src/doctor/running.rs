//! The running daemon.

use super::finding::Finding;
use crate::control::{ControlArgs, restart};
use crate::services::{self, Host};
use fs_pairs::Reason;
use fs_pairs::counters::{Counters, count};

/// Checks the daemon and the enabled services.
pub(super) fn look(control: &ControlArgs) -> Vec<Finding> {
    let services = services::without_library(&Host::this());
    daemon(control).into_iter().chain(services.iter().map(without_library)).collect()
}

fn without_library(state: &services::State) -> Finding {
    let service = state.unit().trim_end_matches(".service");
    Finding::note("services", state.to_string(), format!("systemctl restart {service}"))
}

/// Returns nothing if no daemon answers.
fn daemon(control: &ControlArgs) -> Vec<Finding> {
    let Some(path) = control.running() else { return Vec::new() };
    match count(&path) {
        Ok(counters) => vec![running(&counters)],
        Err(error) => vec![Finding::note(
            "daemon",
            format!("the daemon at {} does not answer: {error}", path.display()),
            format!(
                "if it has another version than this program, restart it: {}; open connections go on",
                restart(&path)
            ),
        )],
    }
}

fn running(counters: &Counters) -> Finding {
    let Counters { processes, pairs, .. } = counters;
    let says = format!("it serves {processes} processes, and {pairs} connections have a ring");
    let refused = Reason::ALL.iter().zip(counters.refused);
    let limits = refused.filter(|(reason, _)| matches!(reason, Reason::Limit | Reason::Failed)).map(|(_, n)| n);
    match limits.sum::<u64>() {
        0 => Finding::good("daemon", says),
        n => Finding::note(
            "daemon",
            format!("{says}\n{n} offers were refused because a limit was reached"),
            "raise [limits] in its configuration, or LimitNOFILE= in its unit; `fastsock ss` has the reasons",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reached_limit_is_reported() {
        let mut counters = Counters { processes: 2, pairs: 1, ..Counters::default() };
        let says = running(&counters).to_string();
        assert!(says.starts_with("ok   daemon") && says.contains("2 processes, and 1 connections"), "{says}");
        counters.refused = [3; Reason::ALL.len()];
        let says = running(&counters).to_string();
        assert!(says.starts_with("note daemon") && says.contains("6 offers were refused"), "{says}");
    }
}
