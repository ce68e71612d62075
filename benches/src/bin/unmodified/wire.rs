//! nginx with one worker over a veth device, and a kernel's wrk on the other host. A core of the
//! daemon serves it, compared with the kernel's sockets in turns. The figure is requests per CPU
//! second of the whole machine. That contains programs, daemon, and the kernel's work on both sides
//! of the device in any context. So it needs an idle machine.

use crate::PORTS;
use anyhow::{Context, Result, ensure};
use fs_benches::parts::Plan;
use fs_benches::report::{Goal, Row};
use fs_tests::apps::workspace;
use fs_tests::clients::Wrk;
use fs_tests::lab::Lab;
use fs_tests::process::Proc;
use fs_tests::unmodified::{Placement, Stage};

/// Connections of wrk.
const CONNECTIONS: u32 = 16;
/// Unit of CPU time in /proc: ticks of USER_HZ.
const TICKS: f64 = 100.0;

/// One round.
struct Round {
    wrk: Wrk,
    /// CPU seconds of the machine.
    machine: f64,
    /// CPU seconds of the server's processes and the daemon. They contain the kernel's work for the
    /// peer in their context, as on the kernel.
    server: f64,
}

impl Round {
    fn per_machine_second(&self) -> f64 {
        self.wrk.requests as f64 / self.machine
    }

    fn per_server_second(&self) -> f64 {
        self.wrk.requests as f64 / self.server
    }
}

/// Returns the CPU seconds for which the machine was busy: user, nice, system, irq, softirq of
/// `/proc/stat`.
fn machine() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat")?;
    let fields: Vec<u64> = line.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    ensure!(fields.len() >= 8, "/proc/stat: {line}");
    Ok(fields[..3].iter().chain(&fields[5..7]).sum::<u64>() as f64 / TICKS)
}

/// Returns the CPU seconds of a process and its children so far.
fn tree(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Field 2 is the name in parentheses, which may hold blanks; utime and stime are fields 14 and 15.
    let fields = stat.rsplit_once(')').context("/proc/PID/stat")?.1.split_whitespace();
    let own: u64 = fields.skip(11).take(2).map_while(|field| field.parse::<u64>().ok()).sum();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let children = children.split_whitespace().map(|child| tree(child.parse()?)).sum::<Result<f64>>()?;
    Ok(own as f64 / TICKS + children)
}

fn nginx(stage: &Stage, port: u16) -> Result<Proc> {
    let dir = stage.folder(&format!("nginx-{port}"))?;
    let config = dir.join("nginx.conf");
    let (d, files, host) = (dir.display(), stage.files().display(), stage.host);
    std::fs::write(
        &config,
        format!(
            "user root;\nworker_processes 1;\ndaemon off;\npid {d}/pid;\nerror_log {d}/error.log;\n\
             events {{ worker_connections 1024; }}\nhttp {{\n  access_log off;\n  sendfile on;\n\
             keepalive_requests 1000000000;\n  client_body_temp_path {d}/body;\n  proxy_temp_path {d}/t1;\n  \
             fastcgi_temp_path {d}/t2;\n  uwsgi_temp_path {d}/t3;\n  scgi_temp_path {d}/t4;\n\
             server {{ listen {host}:{port}; root {files}; }}\n}}\n"
        ),
    )?;
    let mut command = stage.server("nginx");
    command.arg("-e").arg(dir.join("error.log")).arg("-c").arg(&config);
    stage.serve(&format!("nginx-{port}"), &mut command, port)
}

fn wrk(stage: &Stage, port: u16, seconds: u32) -> Result<Wrk> {
    let script = workspace().join("lab/wrk.lua").display().to_string();
    let url = format!("http://{}:{port}/64", stage.host);
    let (connections, time) = (format!("-c{CONNECTIONS}"), format!("-d{seconds}"));
    let text = stage.run("wrk", &["-t1", &connections, &time, "-s", &script, &url])?;
    let line = text.lines().rev().find(|line| line.starts_with('{')).context("wrk printed no result")?;
    let result: Wrk = serde_json::from_str(line)?;
    result.clean()?;
    Ok(result)
}

fn round(stage: &mut Stage, server: &Proc, port: u16, seconds: u32) -> Result<Round> {
    let daemon = stage.daemon().map(|daemon| daemon.proc.pid());
    let server = || -> Result<f64> { Ok(tree(server.pid())? + daemon.map_or(Ok(0.0), tree)?) };
    let counters = stage.counters()?;
    let (machine_before, server_before) = (machine()?, server()?);
    let wrk = wrk(stage, port, seconds)?;
    let result = Round { machine: machine()? - machine_before, server: server()? - server_before, wrk };
    stage.proven(&counters, result.wrk.requests * 64)?;
    Ok(result)
}

/// A row's value of a round.
type Figure = fn(&Round) -> f64;

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let lab = Lab::require(&["--queues", "1"])?;
    let mut rows = Vec::new();
    lab.check(|lab| {
        let mut stages = [Stage::set(lab, Placement::Server)?, Stage::set(lab, Placement::KernelWire)?];
        let servers = [nginx(&stages[0], PORTS[0])?, nginx(&stages[1], PORTS[1])?];
        let mut rounds = [Vec::new(), Vec::new()];
        for number in 0..2 * plan.rounds {
            // In turns, with each side first as often as second.
            let side = (number + number / 2) % 2;
            rounds[side].push(round(&mut stages[side], &servers[side], PORTS[side], plan.seconds.max(2))?);
        }
        for mut server in servers {
            server.terminate(std::time::Duration::from_secs(15))?;
        }
        stages.into_iter().try_for_each(Stage::end)?;
        let values: [(&str, Figure, Goal); 3] = [
            ("requests per CPU second", Round::per_machine_second, Goal::AtLeast(1.0)),
            ("requests per CPU second of the server's side", Round::per_server_second, Goal::None),
            ("rate", |round| round.wrk.rate(), Goal::None),
        ];
        for (name, value, goal) in values {
            let of = |rounds: &[Round]| rounds.iter().map(value).collect::<Vec<_>>();
            let what = format!("nginx 64 B over veth, {CONNECTIONS} connections: {name}");
            rows.push(Row::new(&what, "/s", &of(&rounds[0]), "kernel", &of(&rounds[1]), goal));
        }
        Ok(())
    })?;
    Ok(rows)
}
