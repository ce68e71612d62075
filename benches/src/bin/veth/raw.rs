//! The bound: the capacity of raw AF_XDP between the same two namespaces on the same cores, without
//! a stack. See the program `raw_xdp`.

use crate::with_logs;
use anyhow::{Context, Result, ensure};
use fs_benches::parts::Plan;
use fs_benches::report::{Goal, Row};
use fs_tests::lab::{CLIENT, FRONT};
use fs_tests::{Lab, Ns};
use serde::Deserialize;
use std::process::Command;
use std::time::Duration;

/// IP length of the smallest frame: 60 bytes with its Ethernet header.
pub(crate) const SMALL: u32 = 46;

#[derive(Deserialize)]
struct Counted {
    packets: u64,
    bytes: u64,
    seconds: f64,
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let small = forward_rate(plan, SMALL)?;
    let full = forward_rate(plan, 1500)?;
    // The bound has no peer, so the small frames take the peer's column.
    Ok(vec![Row::new("raw AF_XDP forward, 1514 B", "packets/s", &full, "60 B", &small, Goal::None)])
}

/// Returns packets per second that one core receives and returns, for every round.
pub(crate) fn forward_rate(plan: &Plan, size: u32) -> Result<Vec<f64>> {
    rounds(plan, 1500, |lab| {
        let _forward = lab.spawn("forward", &mut raw(lab, Ns::Host, "0", 1500, "forward")?)?;
        wait_for_program(lab)?;
        let mut generate = raw(lab, Ns::Client, "1", 1500, "generate")?;
        generate.args(["--to", FRONT, "--size", &size.to_string(), "--seconds", &plan.seconds.to_string()]);
        let counted = counted(lab, "generate", &mut generate, plan)?;
        Ok(counted.packets as f64 / counted.seconds)
    })
}

/// Returns gigabits per second that arrive when one core sends full-size packets and the other
/// receives them. With `copies`, both copy the contents, out of a buffer and into one.
pub(crate) fn one_way_gigabits(plan: &Plan, mtu: u32, copies: bool) -> Result<Vec<f64>> {
    let copies = if copies { ["--copies", "1"] } else { ["--copies", "0"] };
    rounds(plan, mtu, |lab| {
        let mut sink = raw(lab, Ns::Host, "0", mtu, "sink")?;
        sink.args(["--seconds", &plan.seconds.to_string()]).args(copies);
        let mut blast = raw(lab, Ns::Client, "1", mtu, "blast")?;
        blast
            .args(["--to", FRONT, "--size", &mtu.to_string(), "--seconds", &(plan.seconds + 10).to_string()])
            .args(copies);
        let mut sink = lab.spawn("sink", &mut sink)?;
        wait_for_program(lab)?;
        let _blast = lab.spawn("blast", &mut blast)?;
        sink.wait_end(Duration::from_secs(u64::from(plan.seconds) + 10))?;
        let counted = parse(&sink.log())?;
        Ok(counted.bytes as f64 * 8.0 / counted.seconds / 1e9)
    })
}

fn rounds(plan: &Plan, mtu: u32, measure: impl Fn(&Lab) -> Result<f64>) -> Result<Vec<f64>> {
    (0..plan.rounds).map(|_| with_logs(&crate::lab(&["--mtu", &mtu.to_string()])?, &measure)).collect()
}

fn raw(lab: &Lab, ns: Ns, cpu: &str, mtu: u32, role: &str) -> Result<Command> {
    let program = fs_tests::apps::programs_dir().join("raw_xdp");
    ensure!(program.exists(), "{} is not there: cargo build --release -p fs-benches --bins", program.display());
    let (device, own) = if ns == Ns::Client { ("client0", CLIENT) } else { ("front0", FRONT) };
    let mut command = lab.command(ns, "taskset");
    command.args(["-c", cpu]).arg(program).args([role, "--device", device, "--own", own, "--mtu", &mtu.to_string()]);
    Ok(command)
}

/// Waits until the peer's program is on its device; the queue opens shortly afterwards.
fn wait_for_program(lab: &Lab) -> Result<()> {
    for _ in 0..200 {
        if !lab.xdp_programs(Ns::Host, "front0")?.is_empty() {
            std::thread::sleep(Duration::from_millis(200));
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("no XDP program on front0 after 4 s")
}

fn counted(lab: &Lab, name: &str, command: &mut Command, plan: &Plan) -> Result<Counted> {
    let mut proc = lab.spawn(name, command)?;
    let status = proc.wait_end(Duration::from_secs(u64::from(plan.seconds) + 10))?;
    ensure!(status.success(), "{name} ended with {status}:\n{}", proc.log());
    parse(&proc.log())
}

fn parse(log: &str) -> Result<Counted> {
    let line = log.lines().rev().find(|line| line.starts_with('{')).with_context(|| format!("no result in:\n{log}"))?;
    let counted: Counted = serde_json::from_str(line)?;
    ensure!(counted.packets > 0, "no packet came through:\n{log}");
    Ok(counted)
}
