//! redis-server and redis-benchmark, if they are installed.

use super::lab::{Killed, Lab};
use anyhow::{Context, bail};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Requests of one measurement, for each client count: about two seconds on the kernel.
const REQUESTS_OF_ONE: u32 = 30_000;
const REQUESTS_OF_MANY: u32 = 250_000;

/// Maximum time until the server listens.
const STARTING: Duration = Duration::from_secs(10);

pub(super) fn is_installed() -> bool {
    let runs = |program: &str| {
        let mut command = Command::new(program);
        command.arg("--version").env_remove("LD_PRELOAD").stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    runs("redis-server") && runs("redis-benchmark")
}

/// Returns GETs per second.
pub(super) fn measure(lab: &Lab, clients: u32, ring: bool) -> anyhow::Result<f64> {
    // redis cannot bind a free port and print its number.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    lab.with(&mut command, ring).current_dir(&lab.folder).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Killed(command.spawn().context("cannot start redis-server")?);
    let end = Instant::now() + STARTING;
    let address = format!("127.0.0.1:{port}");
    while std::net::TcpStream::connect(&address).is_err() {
        if Instant::now() > end {
            bail!("redis-server does not listen at {address}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let requests = if clients == 1 { REQUESTS_OF_ONE } else { REQUESTS_OF_MANY };
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &port, "-c", &clients.to_string(), "-n", &requests.to_string(), "-t", "get", "--csv"]);
    let output = lab.with(&mut command, ring).output().context("cannot start redis-benchmark")?;
    let said = String::from_utf8_lossy(&output.stdout);
    rate(&said).with_context(|| format!("redis-benchmark failed: {}{said}", String::from_utf8_lossy(&output.stderr)))
}

/// Reads `"GET","123456.78",…`.
fn rate(csv: &str) -> Option<f64> {
    let line = csv.lines().find_map(|line| line.strip_prefix("\"GET\",\""))?;
    line.split('"').next()?.parse().ok().filter(|rate: &f64| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"142857.14\",\"0.1\"\n";
        assert_eq!(rate(csv), Some(142_857.14));
        assert_eq!((rate(""), rate("\"GET\",\"0\""), rate("\"SET\",\"1\"")), (None, None, None));
    }
}
