//! Many open connections, all served, and the memory of an idle one.

use anyhow::{Result, ensure};
use fs_tests::apps::{Program, StackOptions};
use fs_tests::lab::FRONT;
use fs_tests::loadgen::{Load, Mode};
use fs_tests::servers::{self, HTTPD_PORT};
use fs_tests::{Lab, Ns, Stack};
use std::time::{Duration, Instant};

/// Connections open at once.
const CONNECTIONS: usize = 100_000;
/// Resident bytes that the server shall use for each of them at this stage, and the most before
/// this test fails.
const BYTES_GOAL: u64 = 600;
const BYTES_MAX: u64 = 700;
/// Limit for opening, and one response each.
const OPENING_LIMIT: Duration = Duration::from_secs(400);

#[test]
#[ignore = "long: make proof"]
fn hundred_thousand_connections_are_open_and_served() -> Result<()> {
    // One source address has at most 64k ports.
    let Some(lab) = Lab::up(&["--sources", "15"])? else { return Ok(()) };
    lab.check(|lab| {
        // Spare: connections that are closing while others open.
        let ours = |cpu: usize| StackOptions {
            cores: vec![cpu],
            more: vec!["--max-connections".into(), (CONNECTIONS + 4096).to_string()],
            ..StackOptions::new(Stack::Fastsock)
        };
        let mut server = servers::start(
            lab,
            Ns::Host,
            Program::Httpd,
            FRONT,
            HTTPD_PORT,
            // hyper's 10 KB are freed soon after a response: while connections are opened, few use
            // them at the same time.
            &["--body", "64", "--print-memory", "--idle-shrink", "20"],
            &ours(0),
        )?;
        // Memory that stays after its first use (frames, tables) is not part of the idle
        // connections' share, so use a few connections first.
        let warm = Load { seconds: 2, connections: 256, ..Load::new(Mode::Short, FRONT, HTTPD_PORT, ours(1)) };
        warm.run(lab, Ns::Client)?;
        std::thread::sleep(Duration::from_secs(1));
        let before = server.proc.resident()?;
        let load = Load {
            connections: CONNECTIONS,
            seconds: 8,
            body: Some(64),
            more: vec!["--source".into(), "10.77.1.3-10.77.1.17".into(), "--timeout".into(), "30".into()],
            ..Load::new(Mode::Hold, FRONT, HTTPD_PORT, ours(1))
        };
        let started = Instant::now();
        let mut loadgen = lab.spawn("loadgen", &mut load.command(lab, Ns::Client)?)?;
        let mut idle = 0;
        let mut open = 0;
        while loadgen.ended()?.is_none() {
            ensure!(started.elapsed() < OPENING_LIMIT, "{open} connections are open after {OPENING_LIMIT:?}");
            std::thread::sleep(Duration::from_millis(500));
            let now = servers::connections_open(&server);
            open = open.max(now);
            // Not when some have closed by now.
            if now >= CONNECTIONS as u64 {
                idle = server.proc.resident()?;
            }
        }
        let status = loadgen.wait_end(Duration::from_secs(1))?;
        ensure!(status.success(), "loadgen ended with {status}:\n{}", loadgen.log());
        let result = fs_tests::loadgen::LoadResult::parse(&loadgen.log())?;
        ensure!(result.errors_total == 0, "errors: {result:?}");
        ensure!(open >= CONNECTIONS as u64, "at most {open} connections were open at once");
        ensure!(result.requests >= 2 * CONNECTIONS as u64, "{} answers to 2 × {CONNECTIONS} requests", result.requests);
        let each = idle.saturating_sub(before) / CONNECTIONS as u64;
        println!("{CONNECTIONS} connections: {each} bytes resident for each, goal {BYTES_GOAL} ({before} before, {idle} with them)");
        ensure!(each <= BYTES_MAX, "{each} bytes for an idle connection, at most {BYTES_MAX} wanted");
        server.stop()
    })
}
