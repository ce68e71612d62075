//! The judge: runs programs on both sides, compares the results, and shrinks programs that differ.

use crate::program::{Call, Program, Step};
use crate::serve::Request;
use crate::shrink::shrink;
use crate::side::{DIES, HANGS, Side, Trace};
use anyhow::{Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};

/// Number of programs after which both namespaces are made again: their ports are in TIME_WAIT.
const NAMESPACE: usize = 8000;

/// Known differences, each with a reason, which the judge does not count.
#[derive(Clone, Debug, Default)]
pub struct Allowed(Vec<(String, String, String)>);

impl Allowed {
    /// Parses one rule per line: `CALL | KERNEL | OURS | REASON`. The first three are compared with
    /// signatures; `*` matches anything.
    pub fn parse(text: &str) -> Result<Allowed> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let rule = |line: &str| {
            let parts: Vec<&str> = line.splitn(4, " | ").map(str::trim).collect();
            let [call, kernel, ours, reason] = parts[..] else { bail!("{line}: CALL | KERNEL | OURS | REASON") };
            ensure!(!reason.is_empty(), "{line}: no reason");
            Ok((call.to_owned(), kernel.to_owned(), ours.to_owned()))
        };
        Ok(Allowed(lines.map(rule).collect::<Result<_>>()?))
    }

    fn has(&self, call: &str, kernel: &str, ours: &str) -> bool {
        self.0.iter().any(|rule| matches(&rule.0, call) && matches(&rule.1, kernel) && matches(&rule.2, ours))
    }
}

/// Programs and differences that are known and not fixed yet: the judge does not count them.
#[derive(Clone, Debug, Default)]
pub struct NotYet {
    names: Vec<String>,
    signatures: Vec<String>,
}

impl NotYet {
    /// Parses one entry per line: `NAME # REASON` of a file or of `seed-N`, or `~ SIGNATURE #
    /// REASON`, in which `*` matches anything.
    pub fn parse(text: &str) -> Result<NotYet> {
        let mut all = NotYet::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (what, reason) = line.rsplit_once(" # ").unwrap_or((line, ""));
            ensure!(!reason.trim().is_empty(), "{line}: no reason");
            match what.trim().strip_prefix("~ ") {
                Some(signature) => all.signatures.push(signature.into()),
                None => all.names.push(what.trim().into()),
            }
        }
        Ok(all)
    }

    /// Returns true if a difference of the program of this name is known.
    pub fn has(&self, name: &str, signature: &str) -> bool {
        let known = |pattern: &String| matches(pattern, signature);
        self.names.iter().any(|known| known == name) || self.signatures.iter().any(known)
    }
}

/// Returns true if a text matches a pattern, in which `*` matches anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or("")) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// Factors for the waiting times when a program that differed runs again: also on a busy machine, a
/// call that completes must be distinguished from one that blocks.
const SURE: [u32; 3] = [3, 10, 25];

/// The factors while a program is shrunk.
const QUICK: [u32; 2] = [2, 6];

/// The judge with both sides.
pub struct Judge {
    fastsock: Option<PathBuf>,
    name: String,
    kernel: Side,
    ours: Side,
    number: usize,
    rounds: usize,
    allowed: Allowed,
    /// Enables the kernel's packet timestamps for one socket, and so for all sockets.
    _times: UdpSocket,
    /// Differences that did not recur: caused by a busy machine, or by time and chance.
    pub unsteady: Vec<String>,
    /// Connections that were promoted and sends by their rings, in sides that are gone.
    carried: [u64; 2],
    /// The kernel's results of the last program.
    pub last: Trace,
}

/// A difference that has recurred.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Summary: the first differing step, as its call and the two results.
    pub signature: String,
    /// The program.
    pub program: Program,
    /// The kernel's results, of one run.
    pub kernel: Trace,
    /// Our results, of one run.
    pub ours: Trace,
}

impl Judge {
    /// Makes namespaces, daemon and runners, with a name that distinguishes them from other
    /// judges'. Without `fastsock` both sides are the kernel's, which shows errors of the judge
    /// itself.
    pub fn new(name: &str, fastsock: Option<&Path>, allowed: Allowed) -> Result<Judge> {
        let times = crate::sys::options::times()?;
        let (kernel, ours) = Judge::sides(name, 0, fastsock)?;
        let fastsock = fastsock.map(Path::to_path_buf);
        Ok(Judge {
            fastsock,
            name: name.into(),
            kernel,
            ours,
            number: 0,
            rounds: 0,
            allowed,
            _times: times,
            unsteady: Vec::new(),
            last: Trace::new(),
            carried: [0; 2],
        })
    }

    fn sides(name: &str, round: usize, fastsock: Option<&Path>) -> Result<(Side, Side)> {
        let side = |letter: char, fastsock| Side::up(&format!("{name}{letter}{round}"), fastsock);
        Ok((side('k', None)?, side('f', fastsock)?))
    }

    /// Returns how many connections were promoted so far, and how many sends went by their rings.
    pub fn carried(&mut self) -> [u64; 2] {
        let now = self.ours.carried();
        [self.carried[0] + now[0], self.carried[1] + now[1]]
    }

    fn request(&mut self, program: &Program, patience: u32) -> Request {
        self.number += 1;
        Request { patience, base: 10_000 + (self.number % 10_000) as u16 * 4, text: program.to_string() }
    }

    fn both(&mut self, program: &Program, patience: u32) -> Result<(Trace, Trace)> {
        let request = self.request(program, patience);
        self.kernel.begin(&request)?;
        self.ours.begin(&request)?;
        Ok((outcome(program, self.kernel.finish(&request)?), outcome(program, self.ours.finish(&request)?)))
    }

    /// Runs a program once on each side, and again if the results differ.
    pub fn judge(&mut self, program: &Program) -> Result<Option<Difference>> {
        if self.number >= NAMESPACE {
            self.rounds += 1;
            self.number = 0;
            self.carried = self.carried();
            (self.kernel, self.ours) = Judge::sides(&self.name, self.rounds, self.fastsock.as_deref())?;
        }
        let (kernel, ours) = self.both(program, 1)?;
        self.last.clone_from(&kernel);
        if self.same(program, &kernel, &ours) {
            if kernel == [HANGS] {
                self.unsteady
                    .push(format!("hangs on both sides: nothing was compared ({} {})", program.profile, program.seed));
            }
            return Ok(None);
        }

        let how = self.signature(program, &kernel, &ours);
        let once =
            Difference { signature: how.clone(), program: program.clone(), kernel: kernel.clone(), ours: ours.clone() };
        // A crash counts, also one that does not recur.
        if ours.iter().any(|answer| answer.starts_with(DIES)) {
            return Ok(Some(once));
        }
        let found = self.again(program, (kernel, ours), &SURE)?;
        if found.is_none() {
            let Difference { kernel, ours, .. } = &once;
            let pair = kernel.iter().zip(ours).enumerate().find(|(_, (kernel, ours))| kernel != ours);
            let step =
                pair.map_or_else(String::new, |(number, (kernel, ours))| format!("step {number}: {kernel} / {ours}"));
            self.unsteady.push(format!("{how} ({} {}, {step})", program.profile, program.seed));
        }
        Ok(found)
    }

    /// Returns a difference if our results equal none of the kernel's, in further runs with more
    /// time.
    fn again(&mut self, program: &Program, first: (Trace, Trace), patience: &[u32]) -> Result<Option<Difference>> {
        let mut allowed: BTreeSet<Trace> = BTreeSet::from([first.0.clone()]);
        // A difference in one of a hundred runs of a racing program counts: it need not recur.
        let racing = program.mode.races();
        let mut last = racing.then_some(first);
        let wanted = if racing { 1 } else { patience.len() };
        let mut different = 0;
        for (round, patience) in patience.iter().copied().enumerate() {
            if racing {
                for _ in 0..3 {
                    let request = self.request(program, 2);
                    self.kernel.begin(&request)?;
                    allowed.insert(outcome(program, self.kernel.finish(&request)?));
                }
            }
            let (kernel, ours) = self.both(program, patience)?;
            allowed.insert(kernel.clone());
            if !allowed.iter().any(|kernel| self.same(program, kernel, &ours)) {
                different += 1;
                last = Some((kernel, ours));
            }
            if different >= wanted {
                break;
            }
            if !racing && different <= round {
                break;
            }
        }
        let Some((kernel, ours)) = last.filter(|_| racing || different >= wanted) else { return Ok(None) };
        if allowed.iter().any(|kernel| self.same(program, kernel, &ours)) {
            return Ok(None);
        }
        Ok(Some(Difference {
            signature: self.signature(program, &kernel, &ours),
            program: program.clone(),
            kernel,
            ours,
        }))
    }

    fn same(&self, program: &Program, kernel: &Trace, ours: &Trace) -> bool {
        self.signature(program, kernel, ours).is_empty()
    }

    fn signature(&self, program: &Program, kernel: &Trace, ours: &Trace) -> String {
        signature(&self.allowed, program, kernel, ours)
    }

    /// Shrinks a program, keeping the difference.
    pub fn shrink(&mut self, found: &Difference) -> Result<Difference> {
        let mut best = found.clone();
        let mut failed = None;
        shrink(&found.program, 250, |candidate| {
            let again = self.both(candidate, 1).and_then(|(kernel, ours)| {
                if self.signature(candidate, &kernel, &ours) == found.signature {
                    self.again(candidate, (kernel, ours), &QUICK)
                } else {
                    Ok(None)
                }
            });
            match again {
                Ok(Some(again)) if again.signature == found.signature => {
                    best = again;
                    true
                }
                Ok(_) => false,
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(best),
        }
    }
}

/// Returns a summary of the first difference that is not allowed: call, flags and both results,
/// without numbers. Empty if there is none, and both sides have a result for each step, or hang.
fn signature(allowed: &Allowed, program: &Program, kernel: &Trace, ours: &Trace) -> String {
    let all = program.steps.len();
    if kernel.len() != all && *kernel != [HANGS] {
        return format!(
            "{all} steps, on the kernel {} results: {}",
            kernel.len(),
            kernel.last().map_or("", |text| text)
        );
    }
    let mut others_are_left = false;
    for (number, step) in program.steps.iter().enumerate() {
        let (one, other) = (kernel.get(number), ours.get(number));
        if one == other {
            continue;
        }
        let (one, other) = (one.map_or("nothing", |text| text), other.map_or("nothing", |text| text));
        // The rings' events come before the kernel's: which come first is not compared, and where
        // not all had a place, which are left.
        if step.call == Call::Wait && (others_are_left || sorted(one) == sorted(other)) {
            continue;
        }
        if step.call == Call::Wait && are_of_many(step.args[1], one, other) {
            others_are_left = true;
            continue;
        }
        if step.call == Call::Accept && is_turn(program, kernel, ours, number) {
            return format!("{}: which of several blocked accept calls was served first", words(step));
        }
        let (words, one, other) = (words(step), plain(one), plain(other));
        if !allowed.has(&words, &one, &other) {
            return format!("{words}: kernel {one}, ours {other}");
        }
    }
    if kernel.len() == ours.len() { String::new() } else { "more answers than steps".into() }
}

/// Returns the comparable outcome. For a racing program it is each call's result in one word, by
/// kind of call and not by actor: it is undefined which of several actors gets a connection. For
/// others it is the results.
fn outcome(program: &Program, trace: Trace) -> Trace {
    if !program.mode.races() || trace.len() != program.steps.len() {
        return trace;
    }
    let mut by_call: BTreeMap<Call, Vec<usize>> = BTreeMap::new();
    for (number, step) in program.steps.iter().enumerate() {
        by_call.entry(step.call).or_default().push(number);
    }
    let mut outcome = vec![String::new(); trace.len()];
    for places in by_call.values() {
        let word = |place: &usize| {
            let first = trace[*place].split_whitespace().next().unwrap_or("");
            if first.bytes().all(|byte| byte.is_ascii_digit()) { "done".to_owned() } else { first.to_owned() }
        };
        let mut words: Vec<String> = places.iter().map(word).collect();
        words.sort_unstable();
        for (place, word) in places.iter().zip(words) {
            outcome[*place] = word;
        }
    }
    // Each connection was accepted once, by any actor.
    let servers = program.steps.iter().zip(&trace).filter(|(step, _)| step.call == Call::Serve);
    let taken: u64 = servers.filter_map(|(_, answer)| answer.strip_prefix("ok ")?.parse::<u64>().ok()).sum();
    if let Some(first) = program.steps.iter().position(|step| step.call == Call::Serve) {
        outcome[first].push_str(&format!(" {taken}"));
    }
    outcome
}

/// Returns the step's call and flags, without slots and numbers.
fn words(step: &Step) -> String {
    let text = step.to_string();
    let named = |word: &&str| {
        let digits = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
        let bare = word.trim_start_matches(['>', '@', '-']);
        !digits(bare) && !bare.strip_prefix('s').is_some_and(digits)
    };
    text.split_whitespace().skip(1).filter(named).collect::<Vec<_>>().join(" ")
}

/// Returns true if both results of epoll_wait fill the available space and differ only in the
/// descriptors: those in both results have equal events.
fn are_of_many(room: i32, one: &str, other: &str) -> bool {
    let events = |answer: &str| -> Option<Vec<(String, String)>> {
        let mut words = answer.split_whitespace();
        let is_full = words.next()?.parse() == Ok(room);
        let all = words.map(|word| word.split_once('=').map(|(slot, events)| (slot.to_owned(), events.to_owned())));
        let all: Vec<_> = all.collect::<Option<_>>()?;
        (is_full && all.len() == room as usize).then_some(all)
    };
    let (Some(one), Some(other)) = (events(one), events(other)) else { return false };
    let of = |slot: &str, all: &[(String, String)]| {
        let mut events: Vec<String> =
            all.iter().filter(|(of, _)| of == slot).map(|(_, events)| events.clone()).collect();
        events.sort();
        events
    };
    one.iter().all(|(slot, _)| {
        let (here, there) = (of(slot, &one), of(slot, &other));
        there.is_empty() || here == there
    })
}

/// Returns true if the accept at this step blocked on at least one side, and all accepts of the
/// program had the same results on both, in other actors: it is undefined which of several waiting
/// actors gets a connection.
fn is_turn(program: &Program, kernel: &Trace, ours: &Trace, number: usize) -> bool {
    let waited = |trace: &Trace| trace.get(number).is_some_and(|answer| answer.contains(['(']));
    // Addresses are removed as well, since not every accept requests them.
    let without_numbers = |answer: &String| -> String {
        let words = answer.split_whitespace().filter(|word| !word.contains('/'));
        words.flat_map(str::chars).filter(|letter| !letter.is_ascii_digit()).collect()
    };
    let accepts = |trace: &Trace| {
        let steps = program.steps.iter().zip(trace).filter(|(step, _)| step.call == Call::Accept);
        let mut answers: Vec<String> = steps.map(|(_, answer)| without_numbers(answer)).collect();
        answers.sort_unstable();
        answers
    };
    (waited(kernel) || waited(ours)) && accepts(kernel) == accepts(ours)
}

fn sorted(answer: &str) -> Vec<&str> {
    let mut words: Vec<&str> = answer.split_whitespace().collect();
    words.sort_unstable();
    words
}

/// Returns a result without its numbers.
fn plain(text: &str) -> String {
    // "(during step 32)": a smaller program has another number.
    let is_step =
        |word: &str| word.strip_suffix(')').is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    let word = |word: &str| {
        if is_step(word) {
            "N)".into()
        } else if word.starts_with('#') {
            "#".into()
        } else if let Some((_, events)) = word.split_once('=') {
            format!("s={events}")
        } else if word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_digit()) {
            "N".into()
        } else {
            word.to_owned()
        }
    };
    text.split_whitespace().map(word).collect::<Vec<String>>().join(" ")
}

/// Formats a difference: the program with both results at each step.
pub fn report(found: &Difference) -> String {
    let mut text = format!("{}\n\n{}\n", found.signature, found.program.head());
    for (number, step) in found.program.steps.iter().enumerate() {
        let none = String::new();
        let (kernel, ours) = (found.kernel.get(number).unwrap_or(&none), found.ours.get(number).unwrap_or(&none));
        let line = if kernel == ours {
            format!("{:<50} # {kernel}\n", step.to_string())
        } else {
            format!("{:<50} # kernel: {kernel}   OURS: {ours}\n", step.to_string())
        };
        text.push_str(&line);
    }
    if found.kernel.len() != found.ours.len() {
        text.push_str(&format!("# kernel: {:?}\n# ours: {:?}\n", found.kernel.last(), found.ours.last()));
    }
    text
}

/// Differences by signature.
pub type Found = BTreeMap<String, (usize, Difference)>;

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_STEPS: &str =
        "program profile=actors seed=1 mode=ordered\n0: accept s0 >s1 accept 0\n2: connect s0 lo4 p0\n";

    #[test]
    fn equal_results_are_the_same_only_if_complete() {
        let program = Program::parse(TWO_STEPS).expect("a program");
        let of = |kernel: &[&str], ours: &[&str]| {
            let trace = |answers: &[&str]| answers.iter().map(|answer| (*answer).to_owned()).collect::<Trace>();
            signature(&Allowed::default(), &program, &trace(kernel), &trace(ours))
        };
        assert_eq!(of(&["5", "0"], &["5", "0"]), "");
        assert_eq!(of(&[HANGS], &[HANGS]), "", "is reported as not compared");
        for answer in ["DIES: signal: 11", "not a program", "5"] {
            assert_ne!(of(&[answer], &[answer]), "", "{answer} on both sides");
        }
        assert_ne!(of(&["5", "0", "0"], &["5", "0", "0"]), "");
        assert_ne!(of(&["5", "0"], &["DIES: signal: 11"]), "");
        assert_ne!(of(&["5", "0"], &["5"]), "");
        assert_ne!(of(&["5", "0"], &[HANGS]), "");
        assert_ne!(of(&[HANGS], &["5", "0"]), "");
        assert_ne!(of(&["5", "0"], &["5", "EBADF"]), "");
    }

    #[test]
    fn allowed_difference_hides_no_later_one() {
        let program = Program::parse(TWO_STEPS).expect("a program");
        let allowed = Allowed::parse("accept accept | * | * | a reason").expect("a rule");
        let of = |second: &str| {
            signature(&allowed, &program, &vec!["5".into(), "0".into()], &vec!["EMFILE".into(), second.to_owned()])
        };
        assert_eq!(of("0"), "");
        assert_ne!(of("ECONNREFUSED"), "");
    }

    #[test]
    fn distinguishes_accept_order_from_late_accept() {
        let text = "program profile=actors seed=1 mode=ordered\n\
                    0: accept s0 >s1 accept 0\n1: accept s0 >s1 accept 0\n2: connect s0 lo4 p0\n";
        let program = Program::parse(text).expect("a program");
        let trace = |answers: [&str; 3]| answers.map(str::to_owned).to_vec();
        let kernel = trace(["5 127.0.0.1/:e0/16 (during step 2)", "waits (actor 1)", "0"]);
        let other = trace(["waits (actor 0)", "4 (during step 2)", "0"]);
        let none = trace(["waits (actor 0)", "waits (actor 1)", "0"]);
        let failed = trace(["EBADF (during step 2)", "waits (actor 1)", "0"]);
        assert!(is_turn(&program, &kernel, &other, 0));
        assert!(!is_turn(&program, &kernel, &none, 0));
        assert!(!is_turn(&program, &kernel, &failed, 0));
    }

    #[test]
    fn distinguishes_other_events_from_other_descriptors() {
        assert!(are_of_many(1, "1 s1=in", "1 s2=out"));
        assert!(are_of_many(2, "2 s5=0|hup s2=out", "2 s5=0|hup s0=0|hup"));
        assert!(!are_of_many(1, "1 s1=in", "1 s1=in|out"));
        assert!(!are_of_many(2, "2 s1=in s2=in", "2 s1=in|out s3=in"));
        assert!(!are_of_many(2, "1 s1=in", "1 s2=in"), "there was room for both");
        assert!(!are_of_many(2, "2 s1=in s2=in", "1 s1=in"));
        assert!(!are_of_many(1, "EINTR", "1 s1=in"));
        assert!(!are_of_many(1, "1 s1=in (during step 4)", "1 s2=in"), "which of them waited is not whose they are");
    }
}
