//! Two programs on one shared device, each at full load, next to one alone.

use crate::daemon::{self, Daemon};
use anyhow::Result;
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::apps::{Program, StackOptions};
use fs_tests::lab::FRONT;
use fs_tests::loadgen::{Load, LoadResult, Mode};
use fs_tests::{Lab, Ns, Stack};

const PORTS: [u16; 2] = [7101, 7102];
/// Connections of each program, as many as keep it busy.
const CONNECTIONS: usize = 64;

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let figures = in_turns(plan, &[1, 2], |programs| round(plan, programs))?;
    let rates = |side: usize, of: fn(&[f64]) -> f64| figures[side].iter().map(|all| of(all)).collect::<Vec<_>>();
    let least = |all: &[f64]| all.iter().copied().fold(f64::INFINITY, f64::min);
    let (alone, both, slower) = (rates(0, |all| all[0]), rates(1, |all| all.iter().sum()), rates(1, least));
    Ok(vec![
        Row::new("two programs: the slower one", "requests/s", &slower, "both", &both, Goal::AtLeast(0.4)),
        Row::new("two programs: the slower one", "requests/s", &slower, "alone", &alone, Goal::AtLeast(0.4)),
        Row::new("two programs: both", "requests/s", &both, "alone", &alone, Goal::None),
    ])
}

fn round(plan: &Plan, programs: usize) -> Result<Vec<f64>> {
    let lab = Lab::require(&["--queues", "1"])?;
    lab_round(&lab, plan, programs).inspect_err(|_| lab.print_logs())
}

/// The servers share CPU 0 and the host's device, the clients CPU 1 and the client's device.
fn lab_round(lab: &Lab, plan: &Plan, programs: usize) -> Result<Vec<f64>> {
    let (hosts, clients) = (Daemon::start(lab, Ns::Host)?, Daemon::start(lab, Ns::Client)?);
    let on = |cpu| StackOptions { cores: vec![cpu], ..StackOptions::new(Stack::Fastsock) };
    let ports = &PORTS[..programs];
    let server = |port: &u16| {
        daemon::serve(lab, Program::Httpd, &format!("{FRONT}:{port}"), &["--body", "64"], &on(0), Some(&hosts))
    };
    let servers = ports.iter().map(server).collect::<Result<Vec<_>>>()?;
    let load = |port: &u16| {
        let load = Load::new(Mode::KeepAlive, FRONT, *port, on(1));
        let load = Load { connections: CONNECTIONS, seconds: plan.seconds, body: Some(64), ..load };
        daemon::load(lab, &load, &format!("loadgen-{port}"), Some(&clients))
    };
    let loads = ports.iter().map(load).collect::<Result<Vec<_>>>()?;
    let results = loads.into_iter().map(|load| daemon::result(load, plan.seconds));
    let results = results.collect::<Result<Vec<LoadResult>>>();
    drop(servers);
    Ok(results?.iter().map(|result| result.requests_per_second).collect())
}
