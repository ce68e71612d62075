//! Compares two samples of the daemon, and formats the result as text.

use super::sample::Sample;
use crate::control::Status;
use crate::histogram::{Histogram, bucket};
use crate::ss;
use fs_shm::control::{CounterRow, Kind, SocketRow};
use std::collections::BTreeMap;
use std::fmt::Write;

/// TCP_LISTEN and TCP_CLOSE of include/net/tcp_states.h.
const LISTEN: u8 = 10;
const CLOSE: u8 = 7;

/// A counter's value and its increase per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    pub(super) total: u64,
    pub(super) per_second: f64,
}

/// Connections of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) open: usize,
    pub(super) listening: usize,
    /// Unknown for the kernel's.
    pub(super) made: Option<Rate>,
    pub(super) bytes: Option<Rate>,
}

/// One core of the daemon.
#[derive(Clone, Debug, Default)]
pub(super) struct Core {
    pub(super) name: String,
    pub(super) connections: u64,
    pub(super) time_waits: u64,
    pub(super) frames: u64,
    pub(super) received: f64,
    pub(super) sent: f64,
    pub(super) dropped: f64,
    pub(super) sleeps: f64,
}

/// How long an operation took between the two samples, over all cores.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub(super) name: String,
    pub(super) per_second: f64,
    pub(super) times: Histogram,
}

/// A reason why the kernel carries sockets.
#[derive(Clone, Debug, Default)]
pub(super) struct Reason {
    pub(super) name: String,
    /// Sockets that are open now.
    pub(super) open: usize,
    /// How often the daemon gave this reason.
    pub(super) said: Rate,
}

/// The content of the screen.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) head: String,
    /// By carrier: memory, the wire, the kernel.
    pub(super) traffic: [(&'static str, Traffic); 3],
    pub(super) cores: Vec<Core>,
    pub(super) times: Vec<Times>,
    /// Drops, over all cores.
    pub(super) drops: Vec<(String, Rate)>,
    pub(super) reasons: Vec<Reason>,
    pub(super) sockets: Vec<SocketRow>,
}

/// Counters by name and label, with their previous values.
struct Counters<'a> {
    seconds: f64,
    before: BTreeMap<(&'a str, &'a str), u64>,
    now: &'a [CounterRow],
}

impl Counters<'_> {
    fn rate(&self, row: &CounterRow) -> Rate {
        let before = self.before.get(&(row.name.as_str(), row.label.as_str())).copied();
        // A new counter was 0 before. A counter that has decreased belongs to another daemon.
        let grown = row.value.saturating_sub(before.unwrap_or(0));
        Rate { total: row.value, per_second: grown as f64 / self.seconds }
    }

    fn of<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s CounterRow> {
        self.now.iter().filter(move |row| row.name.as_str() == name)
    }

    fn one(&self, name: &str) -> Rate {
        self.of(name).next().map(|row| self.rate(row)).unwrap_or_default()
    }
}

impl Report {
    pub(super) fn between(before: &Sample, now: &Sample) -> Self {
        let same = before.status.pid == now.status.pid;
        let counters = Counters {
            seconds: now.at.saturating_duration_since(before.at).as_secs_f64().max(0.001),
            before: if same { &before.counters[..] } else { &now.counters }
                .iter()
                .map(|row| ((row.name.as_str(), row.label.as_str()), row.value))
                .collect(),
            now: &now.counters,
        };
        let mut sockets = now.sockets.clone();
        // Sockets with the most unread bytes come first.
        sockets.sort_by_key(|row| {
            let waiting = u64::from(row.recv_queue) + if row.state == LISTEN { 0 } else { u64::from(row.send_queue) };
            (row.state == CLOSE, std::cmp::Reverse(waiting), row.state == LISTEN, row.pid, row.fd)
        });
        Self {
            head: head(&now.status, &counters),
            traffic: [
                ("memory", traffic(&sockets, Kind::Local, Some((&counters, "local")))),
                ("wire", traffic(&sockets, Kind::Wire, Some((&counters, "wire")))),
                ("kernel", traffic(&sockets, Kind::Kernel, None)),
            ],
            cores: cores(&counters),
            times: times(&counters),
            drops: drops(&counters),
            reasons: reasons(&counters, &sockets),
            sockets,
        }
    }
}

fn head(status: &Status, counters: &Counters<'_>) -> String {
    let Status { pid, cores, draining, device } = status;
    let serves = match cores {
        0 => "this host only".to_owned(),
        1 => format!("{device}, 1 core"),
        _ => format!("{device}, {cores} cores"),
    };
    let asked = counters.one("requests");
    let state = if *draining { ", draining" } else { "" };
    format!(
        "daemon {pid} ({serves}{state}): {} processes, {} requests/s, {} refused",
        counters.one("attachments").total,
        number(asked.per_second),
        counters.one("refused").total
    )
}

fn traffic(sockets: &[SocketRow], kind: Kind, counters: Option<(&Counters<'_>, &str)>) -> Traffic {
    let of_kind = |listens| sockets.iter().filter(|row| row.kind == kind && (row.state == LISTEN) == listens).count();
    let rate = |what| counters.map(|(counters, name)| counters.one(&format!("{name}_{what}")));
    Traffic { open: of_kind(false), listening: of_kind(true), made: rate("connections"), bytes: rate("bytes") }
}

fn cores(counters: &Counters<'_>) -> Vec<Core> {
    let mut cores: BTreeMap<u32, Core> = BTreeMap::new();
    for row in counters.now {
        let Ok(number) = row.label.as_str().parse::<u32>() else { continue };
        let core = cores.entry(number).or_insert_with(|| Core { name: number.to_string(), ..Core::default() });
        let rate = counters.rate(row).per_second;
        // A core that serves several queues has several links, whose rows are added.
        match row.name.as_str() {
            "core_connections" => core.connections += row.value,
            "core_time_waits" => core.time_waits += row.value,
            "core_frames_in_use" => core.frames += row.value,
            "link_rx_packets" => core.received += rate,
            "link_tx_packets" => core.sent += rate,
            "runtime_sleeps" => core.sleeps += rate,
            name if is_drop(name) => core.dropped += rate,
            _ => {}
        }
    }
    cores.into_values().collect()
}

fn times(counters: &Counters<'_>) -> Vec<Times> {
    let mut all: BTreeMap<&str, Histogram> = BTreeMap::new();
    for row in counters.now {
        if let Some((name, _core, end)) = bucket(row) {
            let before = counters.before.get(&(row.name.as_str(), row.label.as_str())).copied().unwrap_or(0);
            all.entry(name).or_default().add(end, row.value.saturating_sub(before));
        }
    }
    let line = |(name, times): (&str, Histogram)| {
        let per_second = times.count() as f64 / counters.seconds;
        Times { name: name.replace('_', " "), per_second, times }
    };
    all.into_iter().map(line).collect()
}

fn is_drop(name: &str) -> bool {
    name.starts_with("drops_") || matches!(name, "link_rx_dropped" | "link_rx_ran_out" | "link_tx_dropped")
}

fn drops(counters: &Counters<'_>) -> Vec<(String, Rate)> {
    let mut drops: BTreeMap<&str, Rate> = BTreeMap::new();
    for row in counters.now.iter().filter(|row| is_drop(row.name.as_str()) && row.value > 0) {
        let rate = counters.rate(row);
        let sum = drops.entry(row.name.as_str().trim_start_matches("drops_")).or_default();
        *sum = Rate { total: sum.total + rate.total, per_second: sum.per_second + rate.per_second };
    }
    let mut drops: Vec<_> = drops.into_iter().map(|(name, rate)| (name.to_owned(), rate)).collect();
    drops.sort_by(|(_, a), (_, b)| {
        (b.per_second, b.total).partial_cmp(&(a.per_second, a.total)).unwrap_or(std::cmp::Ordering::Equal)
    });
    drops
}

fn reasons(counters: &Counters<'_>, sockets: &[SocketRow]) -> Vec<Reason> {
    let mut reasons: BTreeMap<String, Reason> = BTreeMap::new();
    let of = |name: &str| Reason { name: name.to_owned(), ..Reason::default() };
    for row in counters.of("kernel_fallbacks") {
        let name = row.label.as_str();
        reasons.entry(name.to_owned()).or_insert_with(|| of(name)).said = counters.rate(row);
    }
    for reason in sockets.iter().filter_map(|row| row.reason) {
        reasons.entry(reason.name().to_owned()).or_insert_with(|| of(reason.name())).open += 1;
    }
    let mut reasons: Vec<_> = reasons.into_values().collect();
    reasons.sort_by_key(|reason| std::cmp::Reverse((reason.open, reason.said.total)));
    reasons
}

/// Formats 1234567 as `1.23M`: four or five characters.
pub(super) fn number(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e12 => (v / 1e12, "T"),
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "k"),
        v => return format!("{v:.0}"),
    };
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$}{unit}")
}

pub(super) const TRAFFIC: [&str; 7] = ["carried by", "open", "listen", "made", "made/s", "bytes", "bytes/s"];

pub(super) fn traffic_line((name, traffic): &(&str, Traffic)) -> [String; 7] {
    let both = |rate: Option<Rate>| match rate {
        Some(rate) => [number(rate.total as f64), number(rate.per_second)],
        None => ["-".into(), "-".into()],
    };
    let ([made, made_rate], [bytes, bytes_rate]) = (both(traffic.made), both(traffic.bytes));
    [(*name).into(), traffic.open.to_string(), traffic.listening.to_string(), made, made_rate, bytes, bytes_rate]
}

pub(super) const CORES: [&str; 8] =
    ["core", "connections", "time-wait", "frames", "rx pkt/s", "tx pkt/s", "drops/s", "sleeps/s"];

pub(super) fn core_line(core: &Core) -> [String; 8] {
    [
        core.name.clone(),
        core.connections.to_string(),
        core.time_waits.to_string(),
        core.frames.to_string(),
        number(core.received),
        number(core.sent),
        number(core.dropped),
        number(core.sleeps),
    ]
}

pub(super) const TIMES: [&str; 5] = ["time", "per s", "p50", "p99", "max"];

pub(super) fn times_line(times: &Times) -> [String; 5] {
    let below = |share| match times.times.count() {
        0 => "-".into(),
        _ => span(times.times.quantile_ns(share)),
    };
    [times.name.clone(), number(times.per_second), below(0.5), below(0.99), below(1.0)]
}

/// Formats nanoseconds in a unit that keeps them short.
fn span(ns: u64) -> String {
    match ns {
        u64::MAX => "> 60 s".into(),
        ns if ns >= 10_000_000_000 => format!("{} s", ns / 1_000_000_000),
        ns if ns >= 10_000_000 => format!("{} ms", ns / 1_000_000),
        ns if ns >= 10_000 => format!("{} us", ns / 1_000),
        ns => format!("{:.1} us", ns as f64 / 1e3),
    }
}

pub(super) const DROPS: [&str; 3] = ["dropped", "packets", "per s"];

pub(super) fn drop_line((name, rate): &(String, Rate)) -> [String; 3] {
    [name.clone(), number(rate.total as f64), number(rate.per_second)]
}

pub(super) const REASONS: [&str; 4] = ["not accelerated", "now", "so far", "per s"];

pub(super) fn reason_line(reason: &Reason) -> [String; 4] {
    let Reason { name, open, said } = reason;
    [name.clone(), open.to_string(), number(said.total as f64), number(said.per_second)]
}

/// Formats the report as text: tables separated by blank lines, the last one as `fastsock ss`
/// prints it.
pub(super) fn text(report: &Report) -> String {
    let Report { head, traffic, cores, times, drops, reasons, sockets } = report;
    let mut text = format!("{head}\n");
    table(&mut text, TRAFFIC, traffic.iter().map(traffic_line));
    table(&mut text, CORES, cores.iter().map(core_line));
    table(&mut text, TIMES, times.iter().map(times_line));
    table(&mut text, DROPS, drops.iter().map(drop_line));
    table(&mut text, REASONS, reasons.iter().map(reason_line));
    if !sockets.is_empty() {
        text.push('\n');
        text += &ss::table(sockets, true);
    }
    text.push('\n');
    text
}

/// First column left-aligned, numbers right-aligned. Nothing for an empty table.
fn table<const N: usize>(text: &mut String, headings: [&str; N], lines: impl Iterator<Item = [String; N]>) {
    let mut all: Vec<[String; N]> = vec![headings.map(str::to_owned)];
    all.extend(lines);
    if all.len() == 1 {
        return;
    }
    text.push('\n');
    let widths: [usize; N] = std::array::from_fn(|column| all.iter().map(|line| line[column].len()).max().unwrap_or(0));
    for line in &all {
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            let _never_fails = match column {
                0 => write!(text, "{cell:width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.push('\n');
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use fs_shm::control::{KernelReason, Text};
    use std::time::{Duration, Instant};

    fn counter(name: &str, label: &str, value: u64) -> CounterRow {
        CounterRow { name: Text::new(name.as_bytes()), label: Text::new(label.as_bytes()), gauge: false, value }
    }

    fn status(pid: u32) -> Status {
        Status { pid, cores: 2, draining: false, device: "eth0".into() }
    }

    /// Two samples, two seconds apart, of a daemon with two cores.
    pub(crate) fn samples() -> (Sample, Sample) {
        let socket = SocketRow {
            state: 1,
            kind: Kind::Local,
            core: None,
            reason: None,
            recv_queue: 0,
            send_queue: 0,
            local: "127.0.0.1:80".parse().unwrap(),
            peer: Some("127.0.0.1:4000".parse().unwrap()),
            pid: 7,
            fd: 6,
            name: Text::new(b"nginx"),
        };
        let listener = SocketRow { state: LISTEN, peer: None, fd: 4, send_queue: 511, ..socket };
        let full = SocketRow { recv_queue: 900, kind: Kind::Wire, core: Some(1), fd: 9, ..socket };
        let left = SocketRow { kind: Kind::Kernel, reason: Some(KernelReason::NotServed), fd: 11, ..socket };
        let at = Instant::now();
        let before = vec![counter("local_bytes", "", 1_000_000), counter("link_rx_packets", "0", 10)];
        let now = vec![
            counter("attachments", "", 3),
            counter("local_bytes", "", 5_000_000),
            counter("link_rx_packets", "0", 30),
            counter("link_rx_packets", "1", 4),
            counter("core_connections", "1", 1),
            counter("drops_bad_checksum", "0", 2),
            counter("drops_bad_checksum", "1", 4),
            counter("link_tx_dropped", "1", 0),
            counter("kernel_fallbacks", "not-served", 12),
            counter("accept_wait_buckets", "0,10240", 9),
            counter("accept_wait_buckets", "1,40960000", 1),
            counter("accept_wait_buckets", "1,sum", 40_000_000),
        ];
        (
            Sample { at, status: status(5), counters: before, sockets: Vec::new() },
            Sample {
                at: at + Duration::from_secs(2),
                status: status(5),
                counters: now,
                sockets: vec![listener, socket, full, left],
            },
        )
    }

    #[test]
    fn increases_are_per_second() {
        let (before, now) = samples();
        let report = Report::between(&before, &now);
        assert_eq!(report.traffic[0].1.bytes, Some(Rate { total: 5_000_000, per_second: 2e6 }));
        assert_eq!((report.traffic[0].1.open, report.traffic[0].1.listening), (1, 1));
        assert_eq!((report.cores[0].received, report.cores[1].received), (10.0, 2.0));
        assert_eq!(report.drops, [("bad_checksum".to_owned(), Rate { total: 6, per_second: 3.0 })]);
        assert_eq!((report.reasons[0].name.as_str(), report.reasons[0].open), ("not-served", 1));
        assert_eq!(report.sockets[0].fd, 9, "what nobody reads comes first");
        // Nothing is known of another daemon's past.
        let other = Sample { status: status(6), ..before };
        assert_eq!(Report::between(&other, &now).traffic[0].1.bytes.unwrap().per_second, 0.0);
    }

    #[test]
    fn report_as_text() {
        let (before, now) = samples();
        let text = text(&Report::between(&before, &now));
        let begin = "daemon 5 (eth0, 2 cores): 3 processes, 0 requests/s, 0 refused\n\n\
                     carried by  open  listen  made  made/s  bytes  bytes/s\n\
                     memory         1       1     0       0  5.00M    2.00M\n";
        assert!(text.starts_with(begin), "{text}");
        assert!(
            text.contains("\nnot accelerated  now  so far  per s\nnot-served         1      12      6\n"),
            "{text}"
        );
        assert!(
            text.contains("time         per s    p50    p99    max\naccept wait      5  10 us  40 ms  40 ms\n"),
            "{text}"
        );
        assert!(text.contains("\nState  Recv-Q Send-Q"), "{text}");
    }

    #[test]
    fn numbers_are_short() {
        let said = [0.4, 9999.0, 10_000.0, 99_949.0, 123_456.0, 1_230_000.0, 99.96e6, 5e9, 7e12].map(number);
        assert_eq!(said, ["0", "9999", "10.0k", "99.9k", "123k", "1.23M", "100M", "5.00G", "7.00T"]);
    }
}
