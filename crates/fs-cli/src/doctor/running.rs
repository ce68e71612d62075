//! What the daemon that runs found when it took its devices.

use super::Finding;
use crate::control::ControlArgs;
use fs_shm::control::{CounterRow, Request};

/// Begins the names of the counters.
const GIVEN_UP: &str = "mode_given_up_";

/// Nothing where no daemon answers.
pub(super) fn look(control: &ControlArgs) -> Vec<Finding> {
    let Ok(client) = control.connect() else { return Vec::new() };
    let mut findings = Vec::new();
    // Those that have come say what they say.
    let _rest = client.rows(
        |cursor| Request::Counters { cursor },
        |row: CounterRow| findings.extend(row.name.as_str().strip_prefix(GIVEN_UP).map(given_up)),
    );
    findings
}

/// The reasons are those of `fs-rt`'s `binding`.
fn given_up(reason: &str) -> Finding {
    let why = match reason {
        "link_down" => "its link did not come up again",
        "no_chunks" => "its driver took no chunks to receive into on one of the queues",
        "receive_errors" => "packets were received with errors",
        "deaf" => "no neighbour that answered the kernel before did any more",
        other => other,
    };
    Finding::note(
        "mode",
        format!("the daemon that runs took the device in a lower mode than it offers:\nin that one {why}"),
        "nothing: it works, and costs more for each packet; the daemon's log names queue and mode",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_that_was_given_up_is_said() {
        let says = given_up("no_chunks").to_string();
        assert!(says.starts_with("note mode") && says.contains("took no chunks"), "{says}");
        assert!(given_up("another").to_string().contains("in that one another"));
    }
}
