//! Runs a script on a target: times of events, and their expected contents.

pub mod call;
mod conn;
mod control;
mod icmp;
mod invoke;
mod packets;
pub mod target;
mod values;

use crate::config::Config;
use crate::python::Python;
use crate::script::ast::{Action, Call, Direction, Event, Script, Time};
use crate::symbols;
use call::SysCall;
use conn::Conn;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use target::Target;

/// Why a script failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The script.
    pub file: String,
    /// The event's line; 0: the script as a whole.
    pub line: u32,
    /// Description of the failure, over one or more lines.
    pub message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.line == 0 {
            return write!(f, "{}: {}", self.file, self.message);
        }
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// An event's time, computed when its turn comes.
#[derive(Clone, Copy, Debug)]
struct Due {
    time: Time,
    at: i64,
    until: i64,
    /// Base of relative times.
    offset: i64,
    /// Time of the previous event, for the tolerance.
    before: Option<i64>,
}

/// A call that has begun and not ended.
#[derive(Debug)]
struct Pending {
    line: u32,
    call: Call,
    made: SysCall,
    due: Due,
    end: i64,
}

struct Runner<'a, T> {
    file: &'a str,
    config: &'a Config,
    target: &'a mut T,
    conns: Vec<Conn>,
    /// The connection of packets that do not name one: the latest.
    current: Option<usize>,
    /// The target's descriptors by the script's.
    fds: BTreeMap<i32, i32>,
    python: Python,
    pending: Option<Pending>,
    /// Packets of other connections, taken from the target and not yet expected.
    stash: Vec<(i64, crate::packet::Packet)>,
    /// The previous event: its time, and whether it was an injected packet.
    last: Option<(i64, bool)>,
    events_run: usize,
    remote_port: u16,
    /// The Fast Open cookies of the script and of the host.
    cookie: Option<(Vec<u8>, Vec<u8>)>,
    log: &'a mut String,
}

/// Maximum delay of an expected packet before it counts as missing.
const PACKET_WAIT_US: i64 = 2_000_000;

/// Maximum time that a new call waits for a pending one.
const IDLE_WAIT_US: i64 = 1_000_000;

/// Runs `script`. Warnings, and the output of `--verbose`, are appended to `log`.
pub fn run<T: Target>(
    script: &Script,
    file: &str,
    config: &Config,
    target: &mut T,
    log: &mut String,
) -> Result<(), Failure> {
    let whole = |message: String| Failure { file: file.into(), line: 0, message };
    for init in &config.init_scripts {
        target.command(init).map_err(|e| whole(format!("error executing init script: {e}")))?;
    }
    if let Some(init) = &script.init {
        let fail =
            |e| Failure { file: file.into(), line: init.line, message: format!("error executing init command: {e}") };
        target.command(&init.text).map_err(fail)?;
    }
    let mut runner = Runner {
        file,
        config,
        target,
        conns: Vec::new(),
        current: None,
        fds: BTreeMap::new(),
        python: Python::new(symbols::PYTHON),
        pending: None,
        stash: Vec::new(),
        last: None,
        events_run: 0,
        remote_port: 40_000,
        cookie: None,
        log,
    };
    let ended = runner.events(&script.events);
    // An assertion that failed came before the event that failed.
    let result = runner.assertions().and(ended);
    if let Some(cleanup) = &script.cleanup {
        // Runs for any result of the script.
        let done = runner
            .target
            .command(&cleanup.text)
            .map_err(|e| runner.fail(cleanup.line, format!("error executing cleanup command: {e}")));
        return result.and(done);
    }
    result
}

impl<T: Target> Runner<'_, T> {
    fn fail(&self, line: u32, message: impl Into<String>) -> Failure {
        Failure { file: self.file.into(), line, message: message.into() }
    }

    fn events(&mut self, events: &[Event]) -> Result<(), Failure> {
        if let Some(first) = events.first()
            && !matches!(first.time, Time::At(0) | Time::After(_))
        {
            return Err(self.fail(first.line, "first event should be at time 0"));
        }
        let cookie = self.target.cookie(self.config.local(), self.config.remote());
        self.cookie = self.config.cookie.clone().zip(cookie);
        let mut last_absolute: Option<i64> = None;
        for event in events {
            if let Time::At(at) = event.time {
                if last_absolute.is_some_and(|before| at < before) {
                    return Err(self.fail(event.line, "time goes backward in script"));
                }
                last_absolute = Some(at);
            } else {
                last_absolute = None;
            }
            self.reap(0)?;
            let due = self.due(event);
            self.event(event, &due)?;
            let injected = matches!(&event.action, Action::Packet(p) if p.direction == Direction::Inbound);
            self.last = Some((due.at, injected));
            self.events_run += 1;
        }
        self.reap(IDLE_WAIT_US)?;
        match &self.pending {
            None => Ok(()),
            Some(pending) => {
                let message = format!(
                    "runtime error: exiting while a blocking system call ({}) is in progress",
                    pending.call.name
                );
                Err(self.fail(pending.line, message))
            }
        }
    }

    /// Returns the time of the event, relative to the previous one.
    fn due(&mut self, event: &Event) -> Due {
        let before = self.last.map(|(at, _)| at);
        let now = self.target.now();
        let injects = matches!(&event.action, Action::Packet(p) if p.direction == Direction::Inbound);
        let offset = match self.last {
            Some((at, true)) if injects => at,
            _ => now,
        };
        let (at, until, offset) = match event.time {
            Time::At(at) => (at, at, 0),
            Time::Between(at, until) => (at, until, 0),
            Time::After(delta) => (offset + delta, offset + delta, offset),
            Time::AfterBetween(from, to) => (offset + from, offset + to, offset),
            Time::Any => (offset, offset, offset),
        };
        Due { time: event.time, at, until, offset, before }
    }

    fn event(&mut self, event: &Event, due: &Due) -> Result<(), Failure> {
        match &event.action {
            Action::Packet(spec) if spec.direction == Direction::Inbound => {
                self.wait(event, due, "inbound packet")?;
                self.inject(spec).map_err(|e| self.fail(event.line, format!("error handling packet: {e}")))
            }
            Action::Packet(spec) => match self.expect(spec, due) {
                Err(e) if self.config.non_fatal_packet => {
                    let _ = writeln!(self.log, "{}:{}: warning handling packet: {e}", self.file, event.line);
                    Ok(())
                }
                result => result.map_err(|e| self.fail(event.line, format!("error handling packet: {e}"))),
            },
            Action::Call(call) => self.call_event(event, call, due),
            Action::Command(line) => {
                self.wait(event, due, "command")?;
                let done = self.target.command(line);
                done.map_err(|e| self.fail(event.line, format!("error executing `{line}` command: {e}")))
            }
            Action::Code(code) => {
                self.wait(event, due, "data collection for code")?;
                self.code(event.line, code).map_err(|e| self.fail(event.line, format!("error executing code: {e}")))
            }
        }
    }

    /// Waits until an event is due. Returns an error if it is late by then.
    fn wait(&mut self, event: &Event, due: &Due, what: &str) -> Result<(), Failure> {
        self.target.wait_until(due.at);
        self.reap(0)?;
        if self.events_run == 0 {
            return Ok(());
        }
        let now = self.target.now();
        self.check_time(due, now, what).map_err(|e| self.fail(event.line, e))
    }

    fn tolerance(&self, at: i64, before: Option<i64>) -> i64 {
        let share = before.map_or(0.0, |before| self.config.tolerance_percent / 100.0 * (at - before) as f64);
        self.config.tolerance_us.max(share as i64)
    }

    /// Checks that an event happened on time.
    fn check_time(&self, due: &Due, actual: i64, what: &str) -> Result<(), String> {
        let seconds = |us: i64| us as f64 / 1e6;
        let tolerance = self.tolerance(due.at, due.before);
        if due.time == Time::Any || (due.at - tolerance..=due.until + tolerance).contains(&actual) {
            return Ok(());
        }
        let (from, to) = (seconds(due.at), seconds(due.until));
        let offset = due.offset;
        Err(match due.time {
            Time::Between(..) => format!(
                "timing error: expected {what} in time range {from:.6}~{to:.6} sec but happened at {:.6} sec",
                seconds(actual)
            ),
            Time::AfterBetween(..) => format!(
                "timing error: expected {what} in relative time range +{:.6}~+{:.6} sec but happened at {:+.6} sec",
                seconds(due.at - offset),
                seconds(due.until - offset),
                seconds(actual - offset)
            ),
            _ => format!(
                "timing error: expected {what} at {from:.6} sec but happened at {:.6} sec; tolerance {:.6} sec",
                seconds(actual),
                seconds(tolerance)
            ),
        })
    }

    fn call_event(&mut self, event: &Event, call: &Call, due: &Due) -> Result<(), Failure> {
        let fail = |e: String| Failure {
            file: self.file.into(),
            line: event.line,
            message: format!("runtime error in {} call: {e}", call.name),
        };
        self.reap(IDLE_WAIT_US)?;
        let Some(end) = call.end else {
            self.wait(event, due, "system call start")?;
            let made = self.prepare(call).map_err(fail)?;
            let outcome = self.target.call(made.clone()).map_err(fail)?;
            return match self.conclude(call, &made, &outcome) {
                Err(e) if self.config.non_fatal_call => {
                    let _ = writeln!(self.log, "{}:{}: warning in {} call: {e}", self.file, event.line, call.name);
                    Ok(())
                }
                result => result.map_err(fail),
            };
        };
        if self.pending.is_some() {
            return Err(fail("blocking system call while another blocking system call is already in progress".into()));
        }
        self.wait(event, due, "system call start")?;
        let made = self.prepare(call).map_err(fail)?;
        self.target.begin(made.clone()).map_err(fail)?;
        let end = if matches!(due.time, Time::After(_)) { end + due.offset } else { end };
        self.pending = Some(Pending { line: event.line, call: call.clone(), made, due: *due, end });
        self.reap(0)
    }

    /// Checks whether the pending call has ended, waiting up to `wait` for it.
    fn reap(&mut self, wait: i64) -> Result<(), Failure> {
        if self.pending.is_none() {
            return Ok(());
        }
        let deadline = self.target.now() + wait;
        let Some((at, outcome)) = self.target.ended(deadline) else { return Ok(()) };
        let Some(pending) = self.pending.take() else { return Ok(()) };
        let line = pending.line;
        let checked = self.conclude(&pending.call, &pending.made, &outcome);
        checked.map_err(|e| self.fail(line, format!("runtime error in {} call: {e}", pending.call.name)))?;
        let due = Due { at: pending.end, until: pending.end, before: Some(pending.due.at), ..pending.due };
        self.check_time(&due, at, "system call return").map_err(|e| self.fail(line, e))
    }

    /// Adds a code block to the program, with the values of TCP_INFO now.
    fn code(&mut self, line: u32, code: &str) -> Result<(), String> {
        let conn = self.current.and_then(|i| self.conns[i].fd);
        let fd = conn.and_then(|fd| self.fds.get(&fd).copied()).ok_or("no socket whose TCP_INFO could be had")?;
        for (name, value) in self.target.tcp_info(fd)? {
            self.python.set(name, value);
        }
        self.python.add(line, code);
        Ok(())
    }

    /// Runs the code blocks.
    fn assertions(&mut self) -> Result<(), Failure> {
        let run = self.python.run().map_err(|e| self.fail(0, format!("python3, for the code blocks: {e}")))?;
        self.log.push_str(&run.0);
        run.1.map_err(|(line, message)| self.fail(line, format!("error executing code: {message}")))
    }

    /// Returns a port for the next peer.
    fn next_remote(&mut self) -> SocketAddr {
        self.remote_port += 1;
        SocketAddr::new(self.config.remote(), self.remote_port)
    }
}
