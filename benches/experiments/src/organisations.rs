//! Threading models of a stack: see the crate `fs-organisations`.

use crate::Run;
use crate::callgrind;
use crate::outcome::{Figure, Goal, Item, Series, Table, number, times};
use anyhow::{Context, Result};
use fs_organisations::lock::CLASSES;
use fs_organisations::organisation::Kind;
use fs_organisations::run::{Outcome, Setting, counted, timed};
use fs_organisations::wire::Load;
use fs_tests::apps::target_dir;
use std::time::Duration;

pub(crate) const ABOUT: &str = "\
The same engine (`fs-core`) in five partitions, `benches/organisations`: UP (one instance, one thread), MsgP (a lock for each connection and each shared
structure, any core), ConnP-T (a protocol thread for each core, work sent to it by messages), ConnP-L(128) (128 groups of connections, each under a lock, any
core), and ours (a thread and an instance for each core, nothing shared). A connection's packets come in on one core; its application runs as often on another,
but with UP and ours, where RSS and RFD bring both together. All connections are busy. Bulk is sent by the stack, as in the paper; requests are 64 bytes, responses too.

What differs from the paper: its stack was FreeBSD 7's in the kernel on four cores with six network cards; here packets come from a generator in memory that runs on
the same threads and is part of each figure, alike for all. `fs-core` does no I/O and is taken as a whole, so no lock can be put into it: MsgP's connection is an
instance of its own under its lock, around which stand a table of connections, timers and device queues that are shared and locked. So MsgP looks a connection up
twice (the second table has few entries; beyond 1,024 connections some share an instance and its lock), its timers' lock is taken when the engine's own lazy wheel wants another time and once a turn, and its frames need no lock, where
FreeBSD's came from a pool of all. Only MsgP works packet by packet, as it did there; the others take a batch of up to 32 packets apart by instance, so batching is not what sets
them apart from ours. Two CPUs show waiting between two threads only; four and more are counted with all cores' turns one after the other on one thread, where nobody waits.";

/// Name on the page, and threading model.
const KINDS: [(&str, Kind); 5] = [
    ("ours", Kind::PerCore),
    ("ConnP-L(128)", Kind::ConnPL(128)),
    ("MsgP", Kind::MsgP),
    ("ConnP-T", Kind::ConnPT),
    ("UP", Kind::Up),
];

const ALL: [usize; 11] = [6, 24, 96, 192, 384, 768, 1536, 3072, 6144, 12_288, 16_384];
const FEW: [usize; 4] = [6, 96, 768, 3072];

fn setting(kind: Kind, connections: usize, load: Load, cores: usize) -> Setting {
    Setting { kind, cores: if kind == Kind::Up { 1 } else { cores }, connections, load }
}

pub(crate) fn run(run: &mut Run) -> Result<()> {
    let counts = run.few(run.choose(&FEW[..], &ALL[..]));
    let time = Duration::from_millis(run.choose(150, 1000));
    for load in [Load::Bulk, Load::Requests] {
        let mut outcomes: Vec<Vec<Option<Outcome>>> = KINDS.iter().map(|_| Vec::new()).collect();
        for &connections in counts {
            // Alternates between the models, so that other load on the machine affects all.
            for ((name, kind), outcomes) in KINDS.iter().zip(&mut outcomes) {
                let what = format!("{name}, {connections} connections");
                let measured = timed(setting(*kind, connections, load, 2), time / 4, time);
                outcomes.push(run.attempt(&what, measured));
            }
        }
        figures(run, load, counts, &outcomes);
    }
    more_cores(run)?;
    // Counted by a program with its own build profile, which a smoke run does not build.
    if !run.smoke {
        let by_part = instructions(run);
        run.attempt("instructions by part", by_part);
    }
    Ok(())
}

fn figure(load: Load, counts: &[usize], outcomes: &[Vec<Option<Outcome>>], value: fn(&Outcome) -> f64) -> Figure {
    let series = |((name, _), outcomes): (&(&str, Kind), &Vec<Option<Outcome>>)| Series {
        name: (*name).to_owned(),
        values: outcomes.iter().map(|outcome| outcome.as_ref().map(value)).collect(),
    };
    Figure {
        name: String::new(),
        title: String::new(),
        paper: String::new(),
        means: String::new(),
        over: format!("connections, {}", if load == Load::Bulk { "bulk" } else { "requests" }),
        categories: counts.iter().map(ToString::to_string).collect(),
        unit: String::new(),
        log: false,
        series: KINDS.iter().zip(outcomes).map(series).collect(),
    }
}

fn figures(run: &mut Run, load: Load, counts: &[usize], outcomes: &[Vec<Option<Outcome>>]) {
    let bulk = load == Load::Bulk;
    let value: fn(&Outcome) -> f64 = if bulk { Outcome::gigabits } else { Outcome::responses };
    let mut rate = figure(load, counts, outcomes, value);
    let name = if bulk { "bulk" } else { "requests" };
    rate.name = format!("organisations-{name}");
    rate.title =
        if bulk { "Throughput by connections, bulk, two cores" } else { "Requests by connections, two cores" }.into();
    rate.unit = if bulk { "Gb/s" } else { "responses/s" }.into();
    rate.paper = if bulk {
        "Paper, figure 1 (four cores, six cards of 1 Gb/s): ConnP-L reaches 5.44 Gb/s for most loads and 126 % more than UP for the heaviest; MsgP is 31 % ahead \
         of UP on average and 62 % for the heaviest; ConnP-T is behind UP but for the heaviest."
    } else {
        "The paper has bulk only; requests and responses are what servers do most."
    }
    .into();
    let over = |other| times(rate.ratios("ours", other));
    rate.means = format!(
        "Nothing shared carries {} what ConnP-L(128) does, {} MsgP and {} ConnP-T on the same two cores, and {} UP on one.",
        over("ConnP-L(128)"),
        over("MsgP"),
        over("ConnP-T"),
        over("UP")
    );
    let goal = |other: &str, rate: &Figure| {
        let ratios = rate.ratios("ours", other);
        Item::Goal(Goal {
            goal: format!("ours ahead of {other} at every number of connections, {name}"),
            measured: times(ratios),
            met: ratios.is_some_and(|(least, _)| least > 1.0),
        })
    };
    let goals: Vec<Item> = ["ConnP-L(128)", "MsgP", "ConnP-T"].iter().map(|other| goal(other, &rate)).collect();
    run.items.push(Item::Figure(rate));
    run.items.extend(goals);

    let mut locks = figure(load, counts, outcomes, Outcome::locks);
    locks.name = format!("organisations-{name}-locks");
    locks.title = format!("Locks taken for a packet, {name}");
    locks.unit = "locks/packet".into();
    locks.paper = "Paper, section 4.1: MsgP's locks are what bounds it; ConnP-L has one for a group, ConnP-T none within the stack.".into();
    locks.means =
        "Ours and UP take none; what ConnP-T takes are those of its messages and of the sockets' wake-ups.".into();
    run.items.push(Item::Figure(locks));

    let rows: Vec<Vec<String>> = KINDS
        .iter()
        .zip(outcomes)
        .filter(|((_, kind), _)| !matches!(kind, Kind::Up | Kind::PerCore))
        .flat_map(|((name, _), outcomes)| {
            counts.iter().zip(outcomes).filter_map(move |(count, outcome)| {
                let outcome = outcome.as_ref()?;
                let cell = |class: usize| match outcome.counters.taken[class] {
                    0 => "–".into(),
                    _ => number(outcome.waited(Some(class))),
                };
                let mut row = vec![(*name).to_owned(), count.to_string(), number(outcome.waited(None))];
                row.extend((0..CLASSES.len()).map(cell));
                row.push(number(1000.0 * outcome.counters.wakes as f64 / outcome.packets()));
                Some(row)
            })
        })
        .collect();
    let mut head: Vec<String> = ["organisation", "connections", "all"].map(String::from).to_vec();
    head.extend(CLASSES.iter().map(ToString::to_string));
    head.push("wake-ups for 1,000 packets".into());
    run.items.push(Item::Table(Table {
        title: format!("Locks that somebody held, in percent of those taken, by what they guard; {name}, two cores"),
        paper: "Paper, table 1 (share of acquisitions of the global TCP/IP locks that did not succeed at once) and table 3 (scheduler): MsgP's table of \
                connections is the lock that is waited for, ConnP-L's groups make waiting rare, ConnP-T pays by the scheduler."
            .into(),
        means: "Waiting is between two threads here. A thread that is woken is a pass of the scheduler, which the paper counts in cycles.".into(),
        head,
        rows,
    }));
}

/// Counts with more cores than the machine has.
fn more_cores(run: &mut Run) -> Result<()> {
    let cores = run.few(run.choose(&[2usize, 4, 16][..], &[2, 4, 8, 16, 32][..]));
    let packets = run.choose(20_000, 200_000);
    let mut rows = Vec::new();
    for (name, kind) in KINDS.iter().filter(|(_, kind)| *kind != Kind::Up) {
        for &cores in cores {
            let outcome = counted(setting(*kind, 768, Load::Requests, cores), packets)
                .with_context(|| format!("{name} on {cores} cores"))?;
            let each = |count: u64| number(count as f64 / outcome.packets());
            rows.push(vec![
                (*name).to_owned(),
                cores.to_string(),
                number(outcome.locks()),
                each(outcome.counters.moves),
                each(outcome.counters.messages),
            ]);
        }
    }
    run.items.push(Item::Table(Table {
        title: "More cores, by counts: for a packet, 768 connections, requests".into(),
        paper: "Paper, table 2: second-level cache misses for each KB sent grow from 1.83 (UP, 6 connections) to 28.9 (ConnP-L), 37.3 (MsgP) and 52.3 (ConnP-T), \
                and are 18.5, 40.4, 40.5 and 51.4 at 16,384."
            .into(),
        means: "A move is an instance's state touched by another core than the one before, so its lines come from that core's cache: the share of packets whose \
                connection (or group) moves grows with the cores where any core may work on it, and is none where a connection lives on one."
            .into(),
        head: ["organisation", "cores", "locks", "moves of state", "messages"].map(String::from).to_vec(),
        rows,
    }));
    Ok(())
}

/// Parts of the work with their sources; the first match applies.
const GROUPS: [(&str, &[&str]); 9] = [
    ("generator", &["benches/memory/", "organisations/src/wire.rs"]),
    (
        "receive",
        &[
            "fs-core/src/rx/",
            "fs-core/src/stack/receive/",
            "fs-core/src/tcb/input",
            "fs-core/src/tcb/recv",
            "fs-core/src/frame_queue",
        ],
    ),
    ("send", &["fs-core/src/tx/", "fs-core/src/stack/transmit/", "fs-core/src/tcb/send", "fs-core/src/tcb/cc"]),
    ("timers", &["fs-core/src/timer/", "fs-core/src/stack/tick", "fs-core/src/tcb/timers"]),
    ("engine, other", &["fs-core/", "fs-prefetch/", "fs-probe/", "siphasher"]),
    ("application", &["organisations/src/shard.rs"]),
    ("copies", &["memmove", "memcpy", "memset"]),
    (
        "partition",
        &["organisations/src/", "sync/", "futex", "hashbrown", "hash/", "btree", "alloc/", "pthread", "malloc"],
    ),
    ("rest", &[""]),
];

fn instructions(run: &mut Run) -> Result<()> {
    let program = target_dir().join("icount/fs-organisations");
    let connections = run.choose(&[768usize][..], &[24, 768, 6144][..]);
    let packets = run.choose("4000", "20000");
    let mut rows = Vec::new();
    for &connections in connections {
        for (name, kind) in [
            ("ours", "per-core"),
            ("ConnP-L(128)", "connp-l:128"),
            ("MsgP", "msgp"),
            ("ConnP-T", "connp-t"),
            ("UP", "up"),
        ] {
            let cores = if kind == "up" { "1" } else { "2" };
            let arguments = [kind, "requests", &connections.to_string(), cores, "--packets", packets];
            let (said, costs) = callgrind::run(&program, &arguments, "counted_turns")?;
            let outcome: Outcome = serde_json::from_str(said.trim()).with_context(|| format!("printed {said}"))?;
            let mut sums = [0u64; GROUPS.len()];
            for (file, [instructions, _]) in &costs {
                let group = GROUPS.iter().position(|(_, parts)| parts.iter().any(|part| file.contains(part)));
                sums[group.unwrap_or(GROUPS.len() - 1)] += instructions;
            }
            let total: u64 = sums.iter().sum();
            let misses: u64 = costs.values().map(|cost| cost[1]).sum();
            let per_packet = |count: u64| number(count as f64 / outcome.packets());
            let mut row = vec![name.to_owned(), connections.to_string(), per_packet(total)];
            row.extend(sums.iter().map(|&sum| per_packet(sum)));
            row.push(per_packet(misses));
            rows.push(row);
        }
    }
    let mut head: Vec<String> = ["organisation", "connections", "all"].map(String::from).to_vec();
    head.extend(GROUPS.iter().map(|(name, _)| (*name).to_owned()));
    head.push("cache misses".into());
    run.items.push(Item::Table(Table {
        title: "Instructions for a packet by what they are for (callgrind), requests, two cores' turns on one thread".into(),
        paper: "Paper, table 3: cycles in the scheduler for each KB sent are highest with ConnP-T and lowest with ConnP-L.".into(),
        means: "What sets the organisations apart before anybody waits is the column of the partition: locks, tables and messages around the same engine. Cache \
                misses are those of callgrind's model of one core's first data cache; moves between cores are not in it."
            .into(),
        head,
        rows,
    }));
    Ok(())
}
