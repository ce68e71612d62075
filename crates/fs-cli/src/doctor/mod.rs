//! `fastsock doctor`: checks what this machine supports, and prints remedies for the rest.

mod device;
mod finding;
mod firewall;
mod host;
mod running;
mod shared;

use crate::control::ControlArgs;
use anyhow::Context;
use finding::{Finding, Grade};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

const NO_OUTPUT: &str = "cannot write to standard output";

/// Options of `fastsock doctor`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Device to check [default: the device of the default route].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Configuration whose `devices` are checked too [default: /etc/fastsock/fastsock.toml, if it
    /// exists].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: ControlArgs,
}

/// Fails if programs cannot use a device through AF_XDP. Connections with a ring need none of this.
pub(crate) fn doctor(args: Args) -> anyhow::Result<ExitCode> {
    let mut findings = host::look();
    findings.extend(device::look(args.device.as_deref()));
    findings.extend(shared::look(args.config.as_deref()));
    findings.extend(firewall::look());
    findings.extend(running::look(&args.control));
    let worst = findings.iter().map(|finding| finding.grade).max().unwrap_or(Grade::Good);
    let code = if works(worst) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    // println! would panic if the reader has gone, such as head(1).
    let mut output = std::io::stdout();
    if args.json {
        writeln!(output, "{:#}", json(&findings, worst)).context(NO_OUTPUT)?;
        return Ok(code);
    }
    for finding in &findings {
        writeln!(output, "{finding}").context(NO_OUTPUT)?;
    }
    let sentence = match worst {
        Grade::Bad => {
            "AF_XDP does not work here until the items marked BAD are solved; `fastsock run` needs none of them."
        }
        Grade::Note => "AF_XDP works here, with the restrictions in the notes.",
        Grade::Good => "AF_XDP works here.",
    };
    writeln!(output, "{sentence}").context(NO_OUTPUT)?;
    Ok(code)
}

fn works(worst: Grade) -> bool {
    worst != Grade::Bad
}

/// `device_works` has the same meaning as the exit status.
fn json(findings: &[Finding], worst: Grade) -> serde_json::Value {
    let object = |finding: &Finding| {
        let Finding { what, grade, says, cure } = finding;
        serde_json::json!({ "what": what, "grade": grade.name().to_lowercase(), "says": says, "do": cure })
    };
    let findings: Vec<_> = findings.iter().map(object).collect();
    serde_json::json!({ "device_works": works(worst), "findings": findings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_prints_the_remedy_below_the_problem() {
        let finding = Finding::bad("device", "eth9 is down\nand has no address", "ip link set eth9 up");
        let text = finding.to_string();
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        assert_eq!(lines, ["BAD  device       eth9 is down", "and has no address", "do: ip link set eth9 up"]);
        let json = json(&[finding], Grade::Bad);
        assert_eq!((&json["device_works"], &json["findings"][0]["grade"]), (&false.into(), &"bad".into()));
        assert_eq!(json["findings"][0]["do"], "ip link set eth9 up");
        assert!(works(Grade::Good) && works(Grade::Note), "a restriction is no failure");
    }
}
