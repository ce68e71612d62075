//! Problems that the running daemon found when it opened its devices.

use super::finding::Finding;
use crate::control::ControlArgs;
use fs_shm::control::{CounterRow, Request};

/// Prefix of the counters' names.
const GIVEN_UP: &str = "mode_given_up_";

/// Returns nothing if no daemon answers.
pub(super) fn look(control: &ControlArgs) -> Vec<Finding> {
    let Ok(client) = control.connect() else { return Vec::new() };
    let mut findings = Vec::new();
    // Rows that arrived before an error are still valid.
    let _rest = client.rows(
        |cursor| Request::Counters { cursor },
        |row: CounterRow| findings.extend(row.name.as_str().strip_prefix(GIVEN_UP).map(given_up)),
    );
    findings
}

/// The reasons are those of `fs-rt`'s `device::probe`.
fn given_up(reason: &str) -> Finding {
    let why = match reason {
        "link_down" => "the link did not come up again",
        "no_chunks" => "the driver took no receive chunks on one of the queues",
        "receive_errors" => "packets arrived with errors",
        "deaf" => "no neighbour answered any more, and some had answered the kernel before",
        other => other,
    };
    Finding::note(
        "mode",
        format!("the running daemon uses a slower XDP mode than the device offers:\nin the faster mode {why}"),
        "nothing: it works, at a higher cost per packet; the daemon's log names the queue and the mode",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slower_mode_is_reported() {
        let says = given_up("no_chunks").to_string();
        assert!(says.starts_with("note mode") && says.contains("took no receive chunks"), "{says}");
        assert!(given_up("another").to_string().contains("in the faster mode another"));
    }
}
