//! Kernel-socket clients that load the program under test, and their reports.

use crate::body::{self, Body};
use crate::lab::{Lab, Ns};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Seconds after which a single curl gives up.
const CURL_LIMIT: &str = "120";

/// The result of one GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// HTTP status.
    pub status: u16,
    /// SHA-256 of the body.
    pub sha256: String,
    /// Length of the body.
    pub len: u64,
}

fn curl(lab: &Lab) -> Command {
    let mut command = lab.command(Ns::Client, "curl");
    command.args(["--silent", "--show-error", "--globoff", "--max-time", CURL_LIMIT]);
    command
}

/// Sends one GET from the client's namespace, and hashes the body as it arrives.
pub fn get(lab: &Lab, url: &str) -> Result<Got> {
    let mut child = curl(lab)
        .args(["--write-out", "%{stderr}%{http_code}", url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run curl")?;
    let (sha256, len) = body::sha256(child.stdout.take().context("curl's output")?)?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "curl {url}: {}: {}", output.status, said.trim());
    let status = said.trim().parse().with_context(|| format!("curl {url} said {said:?}"))?;
    Ok(Got { status, sha256, len })
}

/// GETs `body` below `base` and compares every byte by digest.
pub fn download(lab: &Lab, base: &str, body: &Body) -> Result<()> {
    let got = get(lab, &format!("{base}/{}", body.name))?;
    ensure!(got.status == 200, "GET {base}/{}: status {}", body.name, got.status);
    ensure!(
        got.len == body.len && got.sha256 == body.sha256,
        "GET {base}/{}: {} bytes with SHA-256 {}, wanted {} with {}",
        body.name,
        got.len,
        got.sha256,
        body.len,
        body.sha256
    );
    Ok(())
}

/// PUTs `body` below `base` and compares what arrived in the backend's folder `uploads`.
pub fn upload(lab: &Lab, base: &str, body: &Body, uploads: &Path) -> Result<()> {
    let arrived = uploads.join(body.name);
    if arrived.exists() {
        std::fs::remove_file(&arrived)?;
    }
    let url = format!("{base}/up/{}", body.name);
    // Without a response to "Expect: 100-continue" curl would only wait for a second, so it sends
    // at once, as most clients do.
    let output = curl(lab)
        .args(["--header", "Expect:", "--write-out", "%{http_code}", "--output", "/dev/null", "--upload-file"])
        .arg(&body.path)
        .arg(&url)
        .output()
        .context("cannot run curl")?;
    let status = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success() && (status == "201" || status == "204"),
        "PUT {url}: {} status {status}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let (sha256, len) = body::sha256(std::fs::File::open(&arrived).with_context(|| arrived.display().to_string())?)?;
    ensure!(
        len == body.len && sha256 == body.sha256,
        "PUT {url}: {len} bytes with SHA-256 {sha256} arrived, sent were {} with {}",
        body.len,
        body.sha256
    );
    std::fs::remove_file(&arrived)?;
    Ok(())
}

/// Runs `n` curl processes at once, each with its own connection. Compares every body.
pub fn many(lab: &Lab, n: usize, base: &str, body: &Body) -> Result<()> {
    let dir = lab.dir().join("many");
    std::fs::create_dir_all(&dir)?;
    let script = "i=0; while [ $i -lt $N ]; do \
        curl --silent --show-error --globoff --max-time 120 --output $DIR/$i --write-out '%{http_code}\\n' $URL & \
        i=$((i + 1)); done; wait";
    let output = lab
        .command(Ns::Client, "sh")
        .args(["-c", script])
        .env("N", n.to_string())
        .env("DIR", &dir)
        .env("URL", format!("{base}/{}", body.name))
        .output()?;
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let good = said.lines().filter(|line| *line == "200").count();
    ensure!(
        good == n && errors.is_empty(),
        "{base}: {good} of {n} curls got status 200; the first errors: {}",
        errors.lines().take(5).collect::<Vec<_>>().join("; ")
    );
    for i in 0..n {
        let (sha256, _) = body::sha256(std::fs::File::open(dir.join(i.to_string()))?)?;
        ensure!(sha256 == body.sha256, "curl {i} of {n}: another body than was sent");
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// The report of wrk; see lab/wrk.lua.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Wrk {
    /// Answers received.
    pub requests: u64,
    /// Time for which it ran, in microseconds.
    pub duration_us: u64,
    /// Bytes received.
    pub bytes: u64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// The slowest response in microseconds.
    pub max_us: f64,
    /// Connections that were refused or timed out.
    pub connect_errors: u64,
    /// Reads that failed, or ended early.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Responses with a status above 399.
    pub status_errors: u64,
    /// Requests without a response in time.
    pub timeouts: u64,
}

impl Wrk {
    /// Answers per second.
    pub fn rate(&self) -> f64 {
        self.requests as f64 * 1e6 / self.duration_us as f64
    }

    /// Fails unless every request got a good status and no socket failed.
    pub fn clean(&self) -> Result<()> {
        self.has_no_error()?;
        ensure!(self.requests > 0, "wrk got no answer: {self:?}");
        Ok(())
    }

    fn has_no_error(&self) -> Result<()> {
        let errors = self.connect_errors + self.read_errors + self.write_errors + self.status_errors + self.timeouts;
        ensure!(errors == 0, "wrk met errors: {self:?}");
        Ok(())
    }
}

/// How wrk is run.
#[derive(Clone, Debug)]
pub struct WrkOptions {
    /// Threads.
    pub threads: u32,
    /// Connections.
    pub connections: u32,
    /// Seconds.
    pub seconds: u32,
    /// Send `Connection: close`: a connection for each request.
    pub close: bool,
    /// CPUs to run on, as `taskset -c` takes them.
    pub cpus: Option<String>,
}

impl WrkOptions {
    /// Creates options with 256 connections and 2 threads.
    pub fn new(seconds: u32, close: bool) -> Self {
        Self { threads: 2, connections: 256, seconds, close, cpus: None }
    }
}

/// Repeats runs of wrk until they have `answers` together, for a minute at most: on a busy machine a
/// run of a second may have none. Returns the last. No run may meet an error.
pub fn answered(answers: u64, wrk: impl Fn() -> Result<Wrk>) -> Result<Wrk> {
    let end = Instant::now() + Duration::from_secs(60);
    let mut got = 0;
    loop {
        let result = wrk()?;
        result.has_no_error()?;
        got += result.requests;
        if got >= answers {
            return Ok(result);
        }
        ensure!(Instant::now() < end, "wrk got only {got} answers: {result:?}");
    }
}

/// Runs wrk from the client's namespace.
pub fn wrk(lab: &Lab, url: &str, options: &WrkOptions) -> Result<Wrk> {
    let WrkOptions { threads, connections, seconds, close, cpus } = options;
    let mut command = match cpus {
        Some(cpus) => {
            let mut command = lab.command(Ns::Client, "taskset");
            command.args(["-c", cpus, "wrk"]);
            command
        }
        None => lab.command(Ns::Client, "wrk"),
    };
    command
        .args([&format!("-t{threads}"), &format!("-c{connections}"), &format!("-d{seconds}"), "--timeout", "60", "-s"])
        .arg(crate::apps::workspace().join("lab/wrk.lua"));
    if *close {
        command.args(["-H", "Connection: close"]);
    }
    let output = command.arg(url).output().context("cannot run wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk {url}: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    let line = text.lines().rev().find(|line| line.starts_with('{')).context("wrk printed no result")?;
    serde_json::from_str(line).with_context(|| format!("wrk printed {line}"))
}

/// Runs redis-benchmark from the client's namespace. Returns requests per second by command.
pub fn redis_benchmark(lab: &Lab, host: &str, port: u16, requests: u32) -> Result<Vec<(String, f64)>> {
    let text = lab.run(
        Ns::Client,
        "redis-benchmark",
        &[
            "-h",
            host,
            "-p",
            &port.to_string(),
            "-n",
            &requests.to_string(),
            "-c",
            "50",
            "-t",
            "ping_inline,set,get,lrange_100",
            "--csv",
        ],
    )?;
    let mut rates = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('"') && !line.starts_with("\"test\"")) {
        let mut fields = line.split("\",\"").map(|field| field.trim_matches('"'));
        let (name, rate) = (fields.next().context("redis-benchmark")?, fields.next().context("redis-benchmark")?);
        rates.push((name.to_owned(), rate.parse().with_context(|| format!("redis-benchmark printed {line}"))?));
    }
    ensure!(rates.len() >= 4 && rates.iter().all(|(_, rate)| *rate > 0.0), "redis-benchmark printed:\n{text}");
    Ok(rates)
}
