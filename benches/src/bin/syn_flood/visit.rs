//! Legitimate clients: kernel sockets that connect, request and read at a given rate. Served means
//! within one second.

use crate::Visited;
use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(1);
/// Number of client threads, which share the rate: enough that slow answers do not reduce the
/// attempts.
const THREADS: u32 = 40;

pub(crate) fn run(to: &str, each: &str, seconds: &str) -> Result<()> {
    let (to, each, seconds): (SocketAddr, u32, u64) = (to.parse()?, each.parse()?, seconds.parse()?);
    // Begins half a second after the flood, and ends before it.
    std::thread::sleep(Duration::from_millis(500));
    let span = Duration::from_secs(seconds) - Duration::from_millis(700);
    let times = Mutex::new(Vec::new());
    let begun = Instant::now();
    let pause = Duration::from_secs(1) * THREADS / each;
    std::thread::scope(|scope| {
        for n in 0..THREADS {
            let times = &times;
            scope.spawn(move || {
                let mut next = begun + pause * n / THREADS;
                while next < begun + span {
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                    let time = serve(to);
                    if let Ok(mut times) = times.lock() {
                        times.push(time);
                    }
                    next += pause;
                }
            });
        }
    });
    let times = times.into_inner().ok().context("a client panicked")?;
    let mut good: Vec<f64> = times.iter().flatten().map(|t| t.as_secs_f64() * 1000.0).collect();
    good.sort_by(f64::total_cmp);
    let result = Visited {
        tried: times.len() as u64,
        served: good.len() as u64,
        median_ms: good.get(good.len() / 2).copied().unwrap_or(0.0),
        worst_ms: good.last().copied().unwrap_or(0.0),
    };
    println!("{}", serde_json::to_string(&result)?);
    Ok(())
}

/// Returns the time of one visit; `None` if it took longer than a second or failed.
fn serve(to: SocketAddr) -> Option<Duration> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect_timeout(&to, LIMIT).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let took = begun.elapsed();
    (answer.starts_with(b"HTTP/1.1 200") && took < LIMIT).then_some(took)
}
