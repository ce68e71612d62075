//! The runner: receives programs, runs each, and returns the results. One runner is on the kernel,
//! one under preload.

use crate::actor::{self, Stage};
use crate::awake::Awake;
use crate::interpret::perform;
use crate::program::{ACTORS, Call, Mode, Program};
use crate::sys::{calls, names, process, progress};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A request of the judge: one program.
pub struct Request {
    /// Factor for all waiting times.
    pub patience: u32,
    /// The first of the program's ports.
    pub base: u16,
    /// The program.
    pub text: String,
}

impl Request {
    /// Returns the frame for the pipe between judge and runner.
    pub fn frame(&self) -> Vec<u8> {
        format!("{} {}\n{}", self.patience, self.base, self.text).into_bytes()
    }

    /// Returns the time in milliseconds after which it counts as hanging. A storm of signals, or
    /// loops with many connections, may last while they make progress. So may a race whose actors
    /// have no CPU.
    pub fn limit(&self) -> i32 {
        let ends = |mode| self.text.lines().next().is_some_and(|head| head.ends_with(mode));
        if ends("mode=signals") || ends("mode=racing") || self.text.contains(": serve_loop ") { 15_000 } else { 4000 }
    }

    fn parse(frame: &[u8]) -> Option<Request> {
        let frame = std::str::from_utf8(frame).ok()?;
        let (head, text) = frame.split_once('\n')?;
        let mut words = head.split(' ');
        Some(Request { patience: words.next()?.parse().ok()?, base: words.next()?.parse().ok()?, text: text.into() })
    }
}

/// Runs programs until there are no more.
pub fn serve() {
    let (input, output) = process::own_streams();
    process::adopt_orphans();
    process::end_with_parent();
    process::outlive_group();
    calls::handler(libc::SIGPIPE, 0);
    progress::share();
    while let Some(frame) = process::read_frame(input) {
        let trace = match Request::parse(&frame).and_then(|request| {
            let program = Program::parse(&request.text).ok()?;
            Some((request, program))
        }) {
            Some((request, program)) => {
                names::set_base(request.base);
                if program.mode == Mode::Alone { alone(&program) } else { Troupe::new(&request, &program).run() }
            }
            None => vec!["not a program".into()],
        };
        if !process::write_frame(output, trace.join("\n").as_bytes()) {
            return;
        }
    }
}

/// Runs a program with one actor in this process.
fn alone(program: &Program) -> Vec<String> {
    let trace = program.steps.iter().enumerate().map(|(number, step)| perform(number, step)).collect();
    calls::reset();
    trace
}

/// Minimum number of checks, 20 ms apart, without progress.
const LOOKS_AT_LEAST: u32 = 60;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Absent,
    Idle,
    Busy,
    Dead,
}

struct Member {
    state: State,
    pid: i32,
    /// Commanded steps without a result yet.
    asked: VecDeque<usize>,
}

/// A program's actors.
struct Troupe<'a> {
    program: &'a Program,
    stage: Stage,
    settle: i32,
    members: Vec<Member>,
    trace: Vec<String>,
    now: usize,
}

impl<'a> Troupe<'a> {
    fn new(request: &Request, program: &'a Program) -> Troupe<'a> {
        // If calls time out by themselves, the runner waits for that.
        let timed = program.steps.iter().any(|step| step.call == Call::SetTimeout && step.args[2] > 0);
        let member = |_| Member { state: State::Absent, pid: 0, asked: VecDeque::new() };
        Troupe {
            program,
            stage: Stage::new(&request.text),
            settle: (6 * request.patience as i32).max(if timed { 50 } else { 0 }),
            members: (0..ACTORS).map(member).collect(),
            trace: vec![String::new(); program.steps.len()],
            now: 0,
        }
    }

    fn run(mut self) -> Vec<String> {
        match process::fork() {
            forked if forked.value == 0 => {
                process::end_with_group();
                actor::run(0, &self.stage, self.program)
            }
            forked if !forked.is_ok() => return vec![format!("the runner cannot fork: {}", forked.text())],
            forked => self.members[0] = Member { state: State::Idle, pid: forked.value as i32, asked: VecDeque::new() },
        }
        if self.program.mode.races() {
            self.race()
        } else {
            self.in_order()
        }
        self.end();
        std::mem::take(&mut self.trace)
    }

    /// Runs a program in order: each step is complete, or observed to block, before the next one
    /// begins.
    fn in_order(&mut self) {
        for number in 0..self.program.steps.len() {
            self.now = number;
            let step = &self.program.steps[number];
            let actor = usize::from(step.actor);
            match self.members[actor].state {
                State::Absent => self.trace[number] = "nobody".into(),
                State::Dead => self.trace[number] = "dead".into(),
                // An actor that is busy in the step between must not leave another one stopped,
                // which would delay the rest of the program.
                State::Busy if step.call == Call::Signal && step.args[1] == libc::SIGCONT => {
                    self.trace[number] = self.signal(step.args[0], step.args[1])
                }
                State::Busy => self.trace[number] = "busy".into(),
                State::Idle if step.call == Call::Signal => {
                    self.trace[number] = self.signal(step.args[0], step.args[1])
                }
                State::Idle => self.ask(actor, number),
            }
            self.listen(self.settle);
        }
        let before = self.awake();
        let begun = Instant::now();
        self.listen(4 * self.settle);
        let waited = begun.elapsed();
        for (actor, member) in self.members.iter().enumerate() {
            if member.asked.is_empty() {
                continue;
            }
            let now = Awake::of(member.pid);
            let what = match member.state {
                State::Dead => "died",
                _ if now.is_spin(before[actor], waited) => "spins",
                _ if now.is_poll(before[actor], waited) => "polls",
                _ => "waits",
            };
            for number in &member.asked {
                self.trace[*number] = format!("{what} (actor {actor})");
            }
        }
    }

    /// Runs a racing program: every actor is commanded all its steps at once.
    fn race(&mut self) {
        for number in 0..self.program.steps.len() {
            let step = &self.program.steps[number];
            let actor = usize::from(step.actor);
            if step.call == Call::Signal {
                // In the middle of their steps.
                process::pause(2);
                self.hear(0);
                self.trace[number] = self.signal(step.args[0], step.args[1]);
            } else {
                process::write_whole(self.stage.commands[actor].1, &(number as u32).to_le_bytes());
                self.members[actor].asked.push_back(number);
            }
        }
        // No progress for this long is the end: no step sleeps as long. A step of many calls
        // reports its progress. Checks are counted as well, and an actor without a CPU has more of
        // them: it is not hanging. Handlers and forks that wait for each other for up to 2 s (docs/LIMITS.md) are
        // not the end.
        let patience = Duration::from_millis(if self.program.mode == Mode::Signals { 4000 } else { 1500 });
        let mut until = Instant::now() + patience;
        let (mut looks, mut progress) = (0, progress::total());
        let may_run = |member: &Member| !member.asked.is_empty() && Awake::is_runnable(member.pid);
        while (Instant::now() < until
            || looks < LOOKS_AT_LEAST
            || looks < 5 * LOOKS_AT_LEAST && self.members.iter().any(may_run))
            && self.members.iter().any(|member| !member.asked.is_empty())
        {
            looks += 1;
            let now = progress::total();
            if self.hear(20) || now != progress {
                until = Instant::now() + patience;
                (looks, progress) = (0, now);
            }
            for actor in 0..ACTORS {
                let member = &self.members[actor];
                if member.pid != 0 && !member.asked.is_empty() && process::await_end(member.pid, 0) {
                    // Results from before its end are in the pipe.
                    while self.hear(0) {}
                    let member = &mut self.members[actor];
                    let ends =
                        member.asked.front().is_some_and(|number| self.program.steps[*number].call == Call::Exit);
                    for number in std::mem::take(&mut member.asked) {
                        self.trace[number] = if ends { "ended".into() } else { "died".into() };
                    }
                    self.members[actor].state = State::Dead;
                }
            }
        }
        let before = self.awake();
        // Long enough to observe a wait that polls each 16 ms, the rarest.
        const LOOKS: Duration = Duration::from_millis(120);
        if self.members.iter().any(|member| !member.asked.is_empty()) {
            process::pause(LOOKS.as_millis() as u64);
        }
        for (actor, member) in self.members.iter().enumerate() {
            for number in &member.asked {
                let polls = Awake::of(member.pid).is_poll(before[actor], LOOKS);
                self.trace[*number] = if polls { "polls" } else { "waits" }.into();
            }
        }
    }

    /// Returns the CPU times of the actors that are in a call.
    fn awake(&self) -> Vec<Awake> {
        let waits = |member: &Member| if member.asked.is_empty() { Awake::default() } else { Awake::of(member.pid) };
        self.members.iter().map(waits).collect()
    }

    fn ask(&mut self, actor: usize, number: usize) {
        let member = &mut self.members[actor];
        member.state = State::Busy;
        member.asked.push_back(number);
        process::write_whole(self.stage.commands[actor].1, &(number as u32).to_le_bytes());
        let step = &self.program.steps[number];
        if step.call == Call::Exit {
            let pid = member.pid;
            self.ended(pid);
            self.trace[number] = "ended".into();
        }
    }

    /// Handles the end of a process: none of its actors exists any more.
    fn ended(&mut self, pid: i32) {
        process::await_end(pid, 2000);
        for member in self.members.iter_mut().filter(|member| member.pid == pid && member.state != State::Absent) {
            member.state = State::Dead;
        }
        // Other processes are notified of it later, by the daemon.
        process::pause(2 * self.settle as u64);
    }

    fn signal(&mut self, actor: i32, signal: i32) -> String {
        let Some(member) = self.members.get(actor as usize) else { return "nobody".into() };
        if member.pid == 0 || member.state == State::Dead {
            return "nobody".into();
        }
        let pid = member.pid;
        let answer = process::kill(pid, signal);
        if signal == libc::SIGKILL && !self.program.mode.races() {
            self.ended(pid);
        } else if !self.program.mode.races() {
            process::pause(self.settle as u64);
        }
        answer.text()
    }

    /// Receives results until no actor is busy, or none arrives for a while.
    fn listen(&mut self, milliseconds: i32) {
        while self.members.iter().any(|member| member.state == State::Busy) {
            // If a step that cannot block is in progress, waits for it, and for others no longer
            // than usual.
            let sure = self.members.iter().any(|member| {
                member.state == State::Busy
                    && member.asked.front().is_none_or(|number| !self.program.steps[*number].may_wait())
            });
            if !self.hear(if sure { milliseconds.max(2000) } else { milliseconds.min(4 * self.settle) }) {
                self.bury();
                return;
            }
        }
    }

    /// Finds actors that have ended by themselves.
    fn bury(&mut self) {
        for member in self.members.iter_mut().filter(|member| member.state == State::Busy && member.pid != 0) {
            if process::await_end(member.pid, 0) {
                member.state = State::Dead;
            }
        }
    }

    /// Receives available results. Returns false if none arrives in time.
    fn hear(&mut self, milliseconds: i32) -> bool {
        let from: Vec<i32> = self.stage.replies.iter().map(|(read, _)| *read).collect();
        let ready = process::readable(&from, milliseconds);
        for actor in (0..ACTORS).filter(|actor| ready[*actor]) {
            let Some(frame) = process::read_frame(from[actor]) else { continue };
            let Some((pid, text)) = frame.split_at_checked(4) else { continue };
            let member = &mut self.members[actor];
            member.pid = i32::from_le_bytes([pid[0], pid[1], pid[2], pid[3]]);
            let text = String::from_utf8_lossy(text);
            if text == "begins" {
                member.state = if member.asked.is_empty() { State::Idle } else { State::Busy };
                continue;
            }
            if member.state != State::Dead {
                member.state = State::Idle;
            }
            if let Some(number) = member.asked.pop_front() {
                let late = if number == self.now || self.program.mode.races() {
                    String::new()
                } else {
                    format!(" (during step {})", self.now)
                };
                self.trace[number] = format!("{text}{late}");
                let step = &self.program.steps[number];
                if matches!(step.call, Call::Exec | Call::ExecPlain) && text == "ok" {
                    // Of the process's threads only the calling one is left.
                    let pid = self.members[actor].pid;
                    for (other, member) in self.members.iter_mut().enumerate() {
                        if other != actor && member.pid == pid {
                            member.state = State::Dead;
                        }
                    }
                }
                // The new actor reports itself.
                if matches!(step.call, Call::Fork | Call::Thread) && text == "ok" {
                    let other = (step.args[0] as usize).min(ACTORS - 1);
                    if !self.program.mode.races() && self.members[other].state == State::Absent {
                        self.members[other].state = State::Busy;
                    }
                }
            }
        }
        ready.contains(&true)
    }

    /// Ends all actors.
    fn end(&mut self) {
        let idle = |member: &&Member| member.pid != 0 && member.state == State::Idle;
        for (actor, member) in self.members.iter().enumerate().filter(|(_, member)| idle(member)) {
            process::write_whole(self.stage.commands[actor].1, &u32::MAX.to_le_bytes());
            process::await_end(member.pid, 20);
        }
        for member in self.members.iter().filter(|member| member.pid != 0) {
            process::kill(member.pid, libc::SIGKILL);
        }
        process::end_group_but_own();
        self.stage.close();
        let until = Instant::now() + Duration::from_secs(2);
        while process::reap() && Instant::now() < until {
            process::pause(1);
        }
    }
}
