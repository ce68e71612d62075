//! What an operator wants to see at a glance: listeners, and servers with their state. The admin
//! socket returns it as JSON, `fs-proxy top` and the status page as tables.

use crate::config::Mode;
use crate::flows::{self, FlowStatus};
use crate::stats::{Answers, Stats};
use crate::table::Table;
use fs_stacks::counters::Counter;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) process: u32,
    pub(crate) listeners: Vec<ListenerStatus>,
    pub(crate) upstreams: Vec<UpstreamStatus>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ListenerStatus {
    pub(crate) name: String,
    pub(crate) mode: String,
    pub(crate) open: u64,
    pub(crate) accepted: u64,
    pub(crate) failed: u64,
    /// Connections that have left user space, open now.
    #[serde(default)]
    pub(crate) spliced: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) answers: AnswersStatus,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UpstreamStatus {
    pub(crate) name: String,
    pub(crate) waiting: u64,
    pub(crate) servers: Vec<ServerStatus>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ServerStatus {
    pub(crate) address: String,
    pub(crate) healthy: bool,
    pub(crate) weight: u32,
    /// The configuration's.
    pub(crate) configured_weight: u32,
    pub(crate) active: u64,
    pub(crate) connects: u64,
    pub(crate) connect_failures: u64,
    pub(crate) answers: AnswersStatus,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AnswersStatus {
    /// Responses by the first digit of their status, 1 to 5.
    pub(crate) classes: [u64; 5],
    /// The sum of their times.
    pub(crate) seconds: f64,
}

impl AnswersStatus {
    fn of<'a>(cores: impl Iterator<Item = &'a Answers>) -> Self {
        cores.fold(Self::default(), |sum, core| Self {
            classes: std::array::from_fn(|class| sum.classes[class] + core.classes[class].value()),
            seconds: sum.seconds + core.latency().0,
        })
    }

    pub(crate) fn count(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// Returns those since an earlier moment.
    fn since(&self, before: Option<&Self>) -> Self {
        let Some(before) = before else { return *self };
        Self {
            classes: std::array::from_fn(|class| self.classes[class].saturating_sub(before.classes[class])),
            seconds: (self.seconds - before.seconds).max(0.0),
        }
    }

    /// Returns the mean time in milliseconds.
    fn mean_ms(&self) -> f64 {
        self.seconds * 1000.0 / self.count().max(1) as f64
    }
}

impl Status {
    pub(crate) fn of(stats: &Stats) -> Self {
        let sum =
            |counters: &mut dyn Iterator<Item = &Counter>| counters.map(Counter::value).fold(0, u64::wrapping_add);
        let listeners = stats.listeners.iter().enumerate().map(|(number, listener)| {
            let cores = || stats.cores.iter().map(|core| &core.0.listeners[number].0);
            ListenerStatus {
                name: listener.name.clone(),
                mode: if listener.mode == Mode::Tcp { "tcp" } else { "http" }.into(),
                open: sum(&mut cores().map(|core| &core.open)),
                accepted: sum(&mut cores().map(|core| &core.accepted)),
                failed: sum(&mut cores().map(|core| &core.failed)),
                spliced: sum(&mut cores().map(|core| &core.spliced)),
                bytes_in: sum(&mut cores().map(|core| &core.bytes_in)),
                bytes_out: sum(&mut cores().map(|core| &core.bytes_out)),
                answers: AnswersStatus::of(cores().map(|core| &core.answers)),
            }
        });
        let upstreams = stats.upstreams.iter().enumerate().map(|(number, name)| {
            let servers = stats.servers[number].iter().enumerate().map(|(place, server)| {
                let cores = || stats.cores.iter().map(|core| &core.0.servers[number][place].0);
                ServerStatus {
                    address: server.addr.to_string(),
                    healthy: server.is_healthy(),
                    weight: server.weight(),
                    configured_weight: server.configured_weight(),
                    active: sum(&mut cores().map(|core| &core.active)),
                    connects: sum(&mut cores().map(|core| &core.connects)),
                    connect_failures: sum(&mut cores().map(|core| &core.connect_failures)),
                    answers: AnswersStatus::of(cores().map(|core| &core.answers)),
                }
            });
            UpstreamStatus {
                name: name.clone(),
                waiting: sum(&mut stats.cores.iter().map(|core| &core.0.upstreams[number].0.waiting)),
                servers: servers.collect(),
            }
        });
        Self { process: std::process::id(), listeners: listeners.collect(), upstreams: upstreams.collect() }
    }

    /// Returns a table of listeners and one of servers. With an earlier status, answers are those
    /// since, in a second.
    pub(crate) fn tables(&self, before: Option<(&Self, f64)>) -> [Table; 2] {
        let (unit, seconds) = before.map_or(("", 1.0), |(_, seconds)| ("/s", seconds));
        let rate = |count: u64| match before {
            None => count.to_string(),
            Some(_) => format!("{:.0}", count as f64 / seconds),
        };
        let answers = |now: &AnswersStatus, before: Option<&AnswersStatus>| {
            let since = now.since(before);
            let [_, ok, moved, client, server] = since.classes;
            [rate(since.count()), rate(ok + moved), rate(client), rate(server), format!("{:.1}", since.mean_ms())]
        };
        let heads = ["answers", "2xx, 3xx", "4xx", "5xx"].map(|head| format!("{head}{unit}"));
        let heads = || heads.iter().cloned().chain(["mean ms".to_owned()]);
        let mut listeners = Table::new(
            ["listener", "mode", "open", "spliced", "accepted"].map(str::to_owned).into_iter().chain(heads()),
        );
        for listener in &self.listeners {
            let is_same = |old: &&ListenerStatus| (&old.name, &old.mode) == (&listener.name, &listener.mode);
            let old = before.and_then(|(before, _)| before.listeners.iter().find(is_same));
            let accepted = listener.accepted.saturating_sub(old.map_or(0, |old| old.accepted));
            let [open, spliced] = [listener.open, listener.spliced].map(|number| number.to_string());
            let row = [listener.name.clone(), listener.mode.clone(), open, spliced, rate(accepted)];
            let answers = answers(&listener.answers, old.map(|old| &old.answers));
            listeners.rows.push(row.into_iter().chain(answers).collect());
        }
        let first = ["upstream", "server", "state", "weight", "active"].map(str::to_owned);
        let mut servers = Table::new(first.into_iter().chain(heads()));
        for upstream in &self.upstreams {
            let old = before.and_then(|(before, _)| before.upstreams.iter().find(|old| old.name == upstream.name));
            for server in &upstream.servers {
                let old = old.and_then(|old| old.servers.iter().find(|old| old.address == server.address));
                let row = [
                    upstream.name.clone(),
                    server.address.clone(),
                    server.state().into(),
                    server.weight.to_string(),
                    server.active.to_string(),
                ];
                let answers = answers(&server.answers, old.map(|old| &old.answers));
                servers.rows.push(row.into_iter().chain(answers).collect());
            }
        }
        [listeners, servers]
    }

    /// Returns the status page, with these spliced flows.
    pub(crate) fn page(&self, flows: &[FlowStatus]) -> String {
        let mut page = String::from(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>fs-proxy</title>\n\
             <meta http-equiv=\"refresh\" content=\"5\">\n<style>body{font:15px sans-serif;margin:2em}\
             table{border-collapse:collapse;margin-bottom:2em}td,th{padding:.3em .8em;border-bottom:1px solid #ccc;\
             text-align:right}td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}\
             .down{background:#fdd}</style></head><body>\n<h1>fs-proxy</h1>\n",
        );
        for table in self.tables(None) {
            table.html(&mut page);
        }
        flows::html(flows, &mut page);
        // Writing to a String cannot fail.
        let _ = writeln!(page, "<p>Process {}. <a href=\"/metrics\">Metrics</a></p>\n</body></html>", self.process);
        page
    }
}

impl ServerStatus {
    fn state(&self) -> &'static str {
        match (self.healthy, self.weight) {
            (false, _) => "down",
            (true, 0) => "drained",
            (true, _) => "up",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::stats::Answer;
    use std::time::Duration;

    #[test]
    fn tables_and_page_have_each_server() {
        let text = "[[listener]]\naddress = '10.0.0.9:80'\nname = 'a<b'\nmode = 'http'\nupstream = 'x'\n\
                    [[upstream]]\nname = 'x'\nhealth_check = {}\nservers = ['10.0.0.1:1', '10.0.0.2:1']";
        let mut config: Config = toml::from_str(text).unwrap();
        config.look_up().unwrap();
        let stats = Stats::new(&config, 2, None);
        stats.servers[0][1].set_healthy(false);
        stats.set_weight((0, 0), Some(0));
        for core in &stats.cores {
            core.0.servers[0][0].0.answers.add(Answer::new(204, Duration::from_millis(3)));
            core.0.servers[0][0].0.active.add(1);
        }
        let status = Status::of(&stats);
        let page = status.page(&[]);
        assert!(page.contains("<td>a&lt;b</td>") && page.contains("<tr class=\"down\"><td>x</td><td>10.0.0.2:1</td>"));
        let mut text = String::new();
        status.tables(None)[1].text(&mut text);
        let line = text.lines().find(|line| line.contains("10.0.0.1:1")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["x", "10.0.0.1:1", "drained", "0", "2", "2", "2", "0", "0", "3.0"]);
        // The same in JSON, and a rate.
        let later: Status = serde_json::from_str(&serde_json::to_string(&status).unwrap()).unwrap();
        stats.cores[0].0.servers[0][0].0.answers.add(Answer::new(503, Duration::from_millis(5)));
        let mut text = String::new();
        Status::of(&stats).tables(Some((&later, 0.5)))[1].text(&mut text);
        let line = text.lines().find(|line| line.contains("10.0.0.1:1")).unwrap();
        assert!(
            line.ends_with("  2         0      0      2      5.0") || line.split_whitespace().last() == Some("5.0")
        );
    }

    /// A TCP and an HTTP listener may have one name.
    #[test]
    fn rates_are_those_of_the_listener_with_the_same_mode() {
        let listener = |mode: &str, port: u16| {
            format!("[[listener]]\naddress = '10.0.0.9:{port}'\nname = 'front'\nmode = '{mode}'\nupstream = 'x'\n")
        };
        let (tcp, http) = (listener("tcp", 80), listener("http", 81));
        let text = format!("{tcp}{http}[[upstream]]\nname = 'x'\nservers = ['10.0.0.1:1']");
        let stats = Stats::new(&toml::from_str(&text).unwrap(), 1, None);
        let [tcp, http] = [0, 1].map(|number| &stats.cores[0].0.listeners[number].0.accepted);
        tcp.add(10);
        http.add(1000);
        let before = Status::of(&stats);
        tcp.add(2);
        http.add(3);
        let [listeners, _] = Status::of(&stats).tables(Some((&before, 1.0)));
        let accepted: Vec<&str> = listeners.rows.iter().map(|row| &*row[4]).collect();
        assert_eq!(accepted, ["2", "3"]);
    }
}
