//! Clients on the kernel's sockets, for servers on either stack: `fs-experiments play` and
//! `fs-experiments flows`. Each runs on one thread and prints one line of JSON.

use crate::trace::{Flow, Trace};
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// The reported percentiles.
pub(crate) const PERCENTILES: [f64; 8] = [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0, 99.9];

/// The result of a replay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Replayed {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    /// The maximum number of connections that were open at the same time.
    pub(crate) concurrent: u64,
    /// Seconds from the first request to the last answer.
    pub(crate) seconds: f64,
    /// At [`PERCENTILES`]: µs by which a request was late, and µs until its answer was complete.
    pub(crate) late_us: Vec<f64>,
    pub(crate) latency_us: Vec<f64>,
    pub(crate) bytes: u64,
}

struct Shared {
    to: SocketAddr,
    start: Instant,
    late: Histogram<u64>,
    latency: Histogram<u64>,
    errors: u64,
    bytes: u64,
    open: u64,
    most: u64,
}

fn on_one_thread<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_max(100_000_000_000, 3)?)
}

/// Plays a trace: sends each request at its time, or when the previous answer on its connection is
/// complete.
pub(crate) fn replay(to: SocketAddr, trace: Trace) -> Result<Replayed> {
    on_one_thread(async move {
        let start = Instant::now() + Duration::from_millis(100);
        let (late, latency) = (histogram()?, histogram()?);
        let shared = Rc::new(RefCell::new(Shared { to, start, late, latency, errors: 0, bytes: 0, open: 0, most: 0 }));
        let mut tasks = Vec::with_capacity(trace.flows.len());
        for flow in trace.flows {
            let shared = shared.clone();
            tasks.push(tokio::task::spawn_local(async move {
                let begin = Duration::from_secs_f64(flow.requests.first().map_or(0.0, |request| request.at));
                tokio::time::sleep_until(start + begin).await;
                {
                    let mut shared = shared.borrow_mut();
                    shared.open += 1;
                    shared.most = shared.most.max(shared.open);
                }
                let result = play(&shared, &flow).await;
                let mut shared = shared.borrow_mut();
                shared.open -= 1;
                shared.errors += u64::from(result.is_err());
            }));
        }
        for task in tasks {
            task.await?;
        }
        let shared = shared.borrow();
        let at = |histogram: &Histogram<u64>| {
            PERCENTILES.iter().map(|&p| histogram.value_at_percentile(p) as f64 / 1e3).collect::<Vec<f64>>()
        };
        Ok(Replayed {
            requests: shared.latency.len(),
            errors: shared.errors,
            concurrent: shared.most,
            seconds: start.elapsed().as_secs_f64(),
            late_us: at(&shared.late),
            latency_us: at(&shared.latency),
            bytes: shared.bytes,
        })
    })
}

async fn play(shared: &RefCell<Shared>, flow: &Flow) -> Result<()> {
    let (to, start) = (shared.borrow().to, shared.borrow().start);
    let mut stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 16 << 10];
    for request in &flow.requests {
        let due = start + Duration::from_secs_f64(request.at);
        tokio::time::sleep_until(due).await;
        let began = Instant::now();
        stream.write_all(format!("GET /{} HTTP/1.1\r\nHost: replay\r\n\r\n", request.bytes).as_bytes()).await?;
        let bytes = answer(&mut stream, &mut buffer).await?;
        ensure!(bytes == request.bytes, "{bytes} bytes for {}", request.bytes);
        let mut shared = shared.borrow_mut();
        shared.bytes += bytes;
        shared.late.saturating_record((began - due).as_nanos() as u64);
        shared.latency.saturating_record(began.elapsed().as_nanos() as u64);
    }
    Ok(())
}

/// Reads an answer to its end. Returns the length of its body.
async fn answer(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<u64> {
    let mut have = 0;
    let (head, length) = loop {
        let count = stream.read(&mut buffer[have..]).await?;
        ensure!(count > 0, "the connection has ended");
        have += count;
        if let Some(end) = buffer[..have].windows(4).position(|four| four == b"\r\n\r\n") {
            let head = std::str::from_utf8(&buffer[..end])?;
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                if name.eq_ignore_ascii_case("content-length") { value.trim().parse::<u64>().ok() } else { None }
            });
            break (end + 4, length.context("an answer without Content-Length")?);
        }
        ensure!(have < buffer.len(), "an answer without an end of its headers");
    };
    let mut body = (have - head) as u64;
    while body < length {
        let count = stream.read(buffer).await?;
        ensure!(count > 0, "the connection has ended");
        body += count as u64;
    }
    Ok(body)
}

/// The result of many receivers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Flows {
    pub(crate) flows: usize,
    pub(crate) bytes: u64,
    /// Jain's index of the receivers' bytes in the measured time.
    pub(crate) jain: f64,
}

/// Opens `count` connections to a source and receives from all. Counting begins after a third of
/// the time.
pub(crate) fn flows(to: SocketAddr, count: usize, seconds: f64) -> Result<Flows> {
    on_one_thread(async move {
        let mut streams = Vec::with_capacity(count);
        for number in 0..count {
            streams.push(TcpStream::connect(to).await.with_context(|| format!("connection {number}"))?);
        }
        let begin = Instant::now() + Duration::from_secs_f64(seconds / 3.0);
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let tasks: Vec<_> = streams
            .into_iter()
            .map(|mut stream| {
                tokio::task::spawn_local(async move {
                    let (mut buffer, mut bytes) = (vec![0; 16 << 10], 0u64);
                    while let Ok(Ok(count @ 1..)) = tokio::time::timeout_at(end, stream.read(&mut buffer)).await {
                        // A read that is ready succeeds even if the timeout has passed.
                        let now = Instant::now();
                        if now >= end {
                            break;
                        }
                        if now >= begin {
                            bytes += count as u64;
                        }
                        tokio::task::yield_now().await;
                    }
                    bytes
                })
            })
            .collect();
        let mut shares = Vec::with_capacity(count);
        for task in tasks {
            shares.push(task.await? as f64);
        }
        let bytes = shares.iter().sum::<f64>() as u64;
        Ok(Flows { flows: count, bytes, jain: fs_sim::measure::jain(&shares) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Request;
    use std::io::{Read, Write};

    #[test]
    fn replay_sends_in_time_and_counts_answers() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream));
            }
        });
        let at = |ms: u32, bytes| Request { at: f64::from(ms) / 1e3, bytes };
        let flows = vec![Flow { requests: vec![at(0, 5), at(60, 100_000)] }, Flow { requests: vec![at(30, 0)] }];
        let replayed = replay(to, Trace { flows }).unwrap();
        assert_eq!((replayed.requests, replayed.errors, replayed.bytes), (3, 0, 100_005));
        assert!(replayed.seconds >= 0.06 && replayed.concurrent >= 1);
        // A wrong answer is an error, not a figure.
        let wrong = Trace { flows: vec![Flow { requests: vec![at(0, 666)] }] };
        assert_eq!(replay(to, wrong).unwrap().errors, 1);
    }

    #[test]
    fn receivers_end_in_time_during_endless_stream() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                std::thread::spawn(move || while stream.write_all(&[7; 1 << 16]).is_ok() {});
            }
        });
        let start = std::time::Instant::now();
        let flows = flows(to, 8, 0.3).unwrap();
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        assert!(flows.bytes > 0 && flows.jain > 0.125 && flows.jain <= 1.0, "{flows:?}");
    }

    fn serve(mut stream: std::net::TcpStream) {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
            let bytes: usize = text[5..].split(' ').next().unwrap().parse().unwrap();
            let bytes = if bytes == 666 { 1 } else { bytes };
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n");
            if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![b'x'; bytes])).is_err() {
                return;
            }
        }
    }
}
