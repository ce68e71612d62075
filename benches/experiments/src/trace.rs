//! Traces of HTTP: the time and connection of each request, and the length of its answer. They are
//! generated from a distribution, or read from a HAR file or a packet capture.

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// One connection of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Flow {
    /// The requests, the earliest first.
    pub(crate) requests: Vec<Request>,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Seconds after the trace's start.
    pub(crate) at: f64,
    /// Bytes of the answer's body.
    pub(crate) bytes: u64,
}

/// A trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Trace {
    pub(crate) flows: Vec<Flow>,
}

impl Trace {
    /// Returns the number of requests of all flows.
    pub(crate) fn requests(&self) -> usize {
        self.flows.iter().map(|flow| flow.requests.len()).sum()
    }
}

/// A random generator (xorshift64*). Not fastrand: the kept results are of the trace that this one
/// draws.
struct Dice(u64);

impl Dice {
    /// Returns a value in 0..1, never 0.
    fn roll(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    }

    /// Returns a standard normal value (Box-Muller).
    fn normal(&mut self) -> f64 {
        (-2.0 * self.roll().ln()).sqrt() * (std::f64::consts::TAU * self.roll()).cos()
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.roll().ln()
    }
}

/// Median length of an answer. With [`SPREAD`], slightly more than half of the flows are below 4
/// KiB and nine tenths below 32 KiB, as in the cellular network of mTCP's trace (section 1 of its
/// paper).
const MEDIAN: f64 = 3900.0;
/// Standard deviation of the logarithm: ln(32768 / 3900) is the 0.9 quantile of the normal
/// distribution times this.
const SPREAD: f64 = 1.66;
/// Longer answers are cut to this length, which the server has.
pub(crate) const LONGEST: u64 = 4 << 20;
/// Mean number of requests per flow, and mean seconds between an answer and the next request.
const REQUESTS: f64 = 2.0;
const THINK: f64 = 0.5;

/// Generates `flows` flows that begin at random times within `seconds`.
pub(crate) fn generate(flows: usize, seconds: f64, seed: u64) -> Trace {
    let mut dice = Dice(seed | 1);
    let flows = (0..flows).map(|_| {
        let mut at = dice.roll() * seconds;
        let more = dice.exponential(REQUESTS - 1.0).round() as usize;
        let requests = (0..=more).map(|_| {
            let bytes = (MEDIAN.ln() + SPREAD * dice.normal()).exp().min(LONGEST as f64) as u64;
            let request = Request { at, bytes };
            at += dice.exponential(THINK);
            request
        });
        Flow { requests: requests.filter(|request| request.at < seconds).collect() }
    });
    Trace { flows: flows.filter(|flow| !flow.requests.is_empty()).collect() }
}

/// Reads a file: our JSON, HAR (`.har`), or a packet capture (`.pcap`).
pub(crate) fn read(path: &Path) -> Result<Trace> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let trace = match path.extension().and_then(|end| end.to_str()) {
        Some("har") => har(&bytes),
        Some("pcap") => pcap(&bytes),
        _ => serde_json::from_slice(&bytes).map_err(Into::into),
    };
    let trace: Trace = trace.with_context(|| path.display().to_string())?;
    ensure!(trace.requests() > 0, "{}: no request in it", path.display());
    Ok(trace)
}

/// Parses HAR 1.2: `log.entries[]` with `startedDateTime` (ISO 8601), `connection` and the size of
/// the answer.
fn har(bytes: &[u8]) -> Result<Trace> {
    let har: serde_json::Value = serde_json::from_slice(bytes).context("no JSON")?;
    let entries = har["log"]["entries"].as_array().context("no log.entries")?;
    let mut flows: BTreeMap<String, Vec<(f64, u64)>> = BTreeMap::new();
    for (number, entry) in entries.iter().enumerate() {
        let when = entry["startedDateTime"].as_str().with_context(|| format!("entry {number}: no startedDateTime"))?;
        let at = iso_seconds(when).with_context(|| format!("entry {number}: startedDateTime {when}"))?;
        let sizes = [&entry["response"]["bodySize"], &entry["response"]["content"]["size"]];
        let bytes = sizes.iter().find_map(|size| size.as_u64()).unwrap_or(0);
        // A request without an id has its own connection.
        let id = entry["connection"].as_str().map_or_else(|| format!("entry {number}"), str::to_owned);
        flows.entry(id).or_default().push((at, bytes));
    }
    Ok(from_absolute(flows.into_values().collect()))
}

/// Converts `YYYY-MM-DDThh:mm:ss[.fff][Z|±hh:mm]` to seconds since 1970.
fn iso_seconds(text: &str) -> Option<f64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute) = (number(11, 13)?, number(14, 16)?);
    let rest = text.get(17..)?;
    let zone = rest.find(['Z', '+', '-']).unwrap_or(rest.len());
    let seconds: f64 = rest[..zone].parse().ok()?;
    let offset = match rest.get(zone..zone + 1) {
        Some(sign @ ("+" | "-")) => {
            let minutes = rest.get(zone + 1..zone + 3)?.parse::<i64>().ok()? * 60
                + rest.get(zone + 4..zone + 6)?.parse::<i64>().ok()?;
            if sign == "+" { minutes } else { -minutes }
        }
        _ => 0,
    };
    // Days from civil (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let of_era = shifted - era * 400;
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(((days * 24 + hour) * 60 + minute - offset) as f64 * 60.0 + seconds)
}

/// Makes a trace with times relative to the first request.
fn from_absolute(flows: Vec<Vec<(f64, u64)>>) -> Trace {
    let start = flows.iter().flatten().map(|&(at, _)| at).fold(f64::INFINITY, f64::min);
    let flows = flows.into_iter().filter(|flow| !flow.is_empty()).map(|mut flow| {
        flow.sort_by(|a, b| a.0.total_cmp(&b.0));
        Flow {
            requests: flow.iter().map(|&(at, bytes)| Request { at: at - start, bytes: bytes.min(LONGEST) }).collect(),
        }
    });
    Trace { flows: flows.collect() }
}

/// Parses a capture in pcap's format (both byte orders, microseconds and nanoseconds) of Ethernet
/// or raw IPv4: HTTP/1.1 without TLS. A request is a segment that begins with a method. The size of
/// its answer is the number of bytes until the next request, without headers if they end in the
/// first segment.
fn pcap(bytes: &[u8]) -> Result<Trace> {
    let word = |at: usize, big: bool| -> Option<u32> {
        let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(if big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) })
    };
    let (big, unit) = match word(0, false).context("shorter than a header")? {
        0xa1b2_c3d4 => (false, 1e-6),
        0xd4c3_b2a1 => (true, 1e-6),
        0xa1b2_3c4d => (false, 1e-9),
        0x4d3c_b2a1 => (true, 1e-9),
        _ => bail!("no pcap file (pcapng is not read: editcap -F pcap)"),
    };
    let ethernet = match word(20, big).context("shorter than a header")? & 0xffff {
        1 => true,
        101 | 228 => false,
        other => bail!("link type {other}: Ethernet (1) or raw IP (101, 228) is read"),
    };
    type Ends = ([u8; 4], u16, [u8; 4], u16);
    let mut flows: HashMap<Ends, Vec<(f64, u64)>> = HashMap::new();
    let mut order: Vec<Ends> = Vec::new();
    let mut at = 24;
    while let (Some(seconds), Some(fraction), Some(len)) = (word(at, big), word(at + 4, big), word(at + 8, big)) {
        let Some(packet) = bytes.get(at + 16..at + 16 + len as usize) else { break };
        at += 16 + len as usize;
        let when = f64::from(seconds) + f64::from(fraction) * unit;
        let Some((from, from_port, to, to_port, payload)) = tcp(packet, ethernet) else { continue };
        if payload.is_empty() {
            continue;
        }
        let ask = (from, from_port, to, to_port);
        let answer = (to, to_port, from, from_port);
        if [&b"GET "[..], b"POST ", b"HEAD ", b"PUT "].iter().any(|method| payload.starts_with(method)) {
            if !flows.contains_key(&ask) {
                order.push(ask);
            }
            flows.entry(ask).or_default().push((when, 0));
        } else if let Some(last) = flows.get_mut(&answer).and_then(|flow| flow.last_mut()) {
            let head = if payload.starts_with(b"HTTP/") {
                payload.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |end| end + 4)
            } else {
                0
            };
            last.1 += (payload.len() - head) as u64;
        }
    }
    Ok(from_absolute(order.iter().filter_map(|ends| flows.remove(ends)).collect()))
}

/// A TCP segment's source, source port, destination, destination port and payload.
type Segment<'a> = ([u8; 4], u16, [u8; 4], u16, &'a [u8]);

/// Parses a TCP packet over IPv4. Returns `None` for other packets.
fn tcp(packet: &[u8], ethernet: bool) -> Option<Segment<'_>> {
    let ip = if ethernet {
        if packet.get(12..14)? != [8, 0] {
            return None;
        }
        packet.get(14..)?
    } else {
        packet
    };
    let head = usize::from(ip.first()? & 15) * 4;
    if ip[0] >> 4 != 4 || *ip.get(9)? != 6 {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    let segment = ip.get(head..total.min(ip.len()))?;
    let port = |at: usize| Some(u16::from_be_bytes([*segment.get(at)?, *segment.get(at + 1)?]));
    let data = usize::from(segment.get(12)? >> 4) * 4;
    Some((ip.get(12..16)?.try_into().ok()?, port(0)?, ip.get(16..20)?.try_into().ok()?, port(2)?, segment.get(data..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_paper() {
        let trace = generate(20_000, 10.0, 1);
        let mut sizes: Vec<u64> = trace.flows.iter().flat_map(|flow| flow.requests.iter().map(|r| r.bytes)).collect();
        sizes.sort_unstable();
        let share = |below: u64| sizes.partition_point(|&size| size < below) as f64 / sizes.len() as f64;
        assert!((0.5..0.55).contains(&share(4096)), "{} below 4 KiB", share(4096));
        assert!((0.88..0.92).contains(&share(32 << 10)), "{} below 32 KiB", share(32 << 10));
        assert_eq!(trace, generate(20_000, 10.0, 1), "the same from the same seed");
        assert!(trace.flows.iter().all(|flow| flow.requests.is_sorted_by(|a, b| a.at <= b.at)));
    }

    #[test]
    fn har_file_keeps_connections_and_times() {
        let text = r#"{"log": {"entries": [
            {"startedDateTime": "2024-02-29T23:59:59.500Z", "connection": "1", "response": {"bodySize": 10}},
            {"startedDateTime": "2024-03-01T01:00:00.750+01:00", "connection": "1", "response": {"bodySize": -1, "content": {"size": 20}}},
            {"startedDateTime": "2024-03-01T00:00:01Z", "response": {}}]}}"#;
        let trace = har(text.as_bytes()).unwrap();
        let seen: Vec<Vec<(f64, u64)>> =
            trace.flows.iter().map(|flow| flow.requests.iter().map(|r| (r.at, r.bytes)).collect()).collect();
        assert_eq!(seen, [vec![(0.0, 10), (1.25, 20)], vec![(1.5, 0)]]);
        assert!(har(b"{}").is_err() && har(br#"{"log": {"entries": [{}]}}"#).is_err());
        assert_eq!(iso_seconds("1970-01-02T00:00:01Z"), Some(86_401.0));
    }

    fn packet(from: (u8, u16), to: (u8, u16), payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 12];
        packet.extend([8, 0, 0x45, 0]);
        packet.extend((40 + payload.len() as u16).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, from.0, 10, 0, 0, to.0]);
        packet.extend(from.1.to_be_bytes());
        packet.extend(to.1.to_be_bytes());
        packet.extend([0; 8]);
        packet.extend([0x50, 0x18, 0, 0, 0, 0, 0, 0]);
        packet.extend(payload);
        packet
    }

    #[test]
    fn capture_gives_requests_with_answer_sizes() {
        let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0];
        let (client, server) = ((1, 1000), (2, 80));
        for (ms, packet) in [
            (0u32, packet(client, server, b"GET /a HTTP/1.1\r\n\r\n")),
            (1, packet(server, client, b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n1234")),
            (2, packet(server, client, b"567")),
            (500, packet(client, server, b"GET /b HTTP/1.1\r\n\r\n")),
            (501, packet(server, client, b"HTTP/1.1 204 No Content\r\n\r\n")),
        ] {
            for word in [0, ms * 1000, packet.len() as u32, packet.len() as u32] {
                file.extend(word.to_le_bytes());
            }
            file.extend(packet);
        }
        let trace = pcap(&file).unwrap();
        assert_eq!(
            trace.flows,
            [Flow { requests: vec![Request { at: 0.0, bytes: 7 }, Request { at: 0.5, bytes: 0 }] }]
        );
        // A truncated capture is an error or a shorter trace.
        for end in 0..file.len() {
            if let Ok(short) = pcap(&file[..end]) {
                assert!(short.requests() <= 2);
            }
        }
        assert!(pcap(&[0x0a, 0x0d, 0x0d, 0x0a].repeat(10)).is_err());
    }
}
