//! A program without rights serves 1,000 connections on a shared device, while its daemon is killed
//! (SIGKILL) and started again.

use crate::daemon::{self, Daemon};
use anyhow::{Context, Result, ensure};
use fs_benches::parts::{Plan, in_turns};
use fs_benches::report::{Goal, Row};
use fs_tests::apps::{Program, StackOptions};
use fs_tests::lab::FRONT;
use fs_tests::{Lab, Ns, Stack};
use rustix::event::epoll;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PORT: u16 = 7103;
const CONNECTIONS: usize = 1000;
/// Pause between two messages, each on the next connection: 10,000 messages a second.
const PAUSE: Duration = Duration::from_micros(100);
/// A connection without an answer for this time counts as lost.
const LOST: Duration = Duration::from_secs(5);
/// The server's user: nobody.
const USER: &str = "65534";

/// The results of a client with many connections.
struct Seen {
    lost: usize,
    longest: Duration,
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let figures = in_turns(plan, &[true, false], |kill| round(plan, kill))?;
    let longest = |side: usize| figures[side].iter().map(|seen| seen.longest.as_secs_f64() * 1e3).collect::<Vec<_>>();
    let kept: Vec<f64> = figures[0].iter().map(|seen| (CONNECTIONS - seen.lost) as f64).collect();
    let all = CONNECTIONS as f64;
    Ok(vec![
        Row::new("daemon killed: connections kept", "connections", &kept, "opened", &[all], Goal::AtLeast(1.0)),
        Row::new("daemon killed: longest answer", "ms", &longest(0), "limit", &[10.0], Goal::AtMost(1.0)),
        Row::new("daemon killed: longest answer", "ms", &longest(0), "daemon not killed", &longest(1), Goal::None),
    ])
}

fn round(plan: &Plan, kill: bool) -> Result<Seen> {
    let lab = Lab::require(&["--queues", "1"])?;
    lab_round(&lab, plan, kill).inspect_err(|_| lab.print_logs())
}

fn lab_round(lab: &Lab, plan: &Plan, kill: bool) -> Result<Seen> {
    let mut daemon = Daemon::start(lab, Ns::Host)?;
    // Another user cannot read the build's folder.
    let program = lab.dir().join("echo");
    std::fs::copy(Program::Echo.path()?, &program)?;
    let on = StackOptions::new(Stack::Fastsock);
    let mut command = daemon::enter(lab, Ns::Host);
    command.args(["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "--bounding-set=-all"]);
    command.args(["--inh-caps=-all", "--no-new-privs"]).arg(program).args(["--listen", &format!("{FRONT}:{PORT}")]);
    command.args(on.arguments(&[fs_tests::servers::devices(Ns::Host)])).env("FASTSOCK_CONTROL", daemon.control());
    let _server = daemon::ready(lab, "echo", &mut command)?;
    let over = AtomicBool::new(false);
    let (opened, is_open) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| client(&lab.ns(Ns::Client), opened, &over));
        let done = (|| {
            is_open.recv().context("the client has no connections")?;
            let pause = Duration::from_secs(u64::from(plan.seconds)) / 4;
            std::thread::sleep(pause);
            if kill {
                daemon.exchange()?;
            }
            std::thread::sleep(pause * 3);
            anyhow::Ok(())
        })();
        over.store(true, Ordering::Relaxed);
        let seen = asking.join().map_err(|_| anyhow::anyhow!("the client panicked"))?;
        done.and(seen)
    })
}

struct Connection {
    stream: TcpStream,
    /// When the message was sent whose answer is still to come.
    sent: Option<Instant>,
}

/// Asks on one connection after the other until it is over.
fn client(namespace: &str, opened: std::sync::mpsc::Sender<()>, over: &AtomicBool) -> Result<Seen> {
    let file = std::fs::File::open(format!("/run/netns/{namespace}"))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut connections = Vec::new();
    for number in 0..CONNECTIONS {
        let stream = TcpStream::connect((FRONT, PORT))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        epoll::add(&set, &stream, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
        connections.push(Connection { stream, sent: None });
    }
    ensure!(opened.send(()).is_ok(), "the bench has ended");
    let (mut longest, mut next, mut due) = (Duration::ZERO, 0, Instant::now());
    let mut lost = std::collections::BTreeSet::new();
    let mut events = Vec::with_capacity(64);
    while !over.load(Ordering::Relaxed) {
        while due <= Instant::now() {
            due += PAUSE;
            let Connection { stream, sent } = &mut connections[next];
            // The last answer is still to come: it counts from its message.
            if sent.is_none() && !lost.contains(&next) {
                *sent = Some(Instant::now());
                if stream.write(&[0; 64]).is_err() {
                    lost.insert(next);
                }
            }
            next = (next + 1) % CONNECTIONS;
        }
        events.clear();
        let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as i64 };
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&wait))?;
        for event in &events {
            let number = event.data.u64() as usize;
            let Connection { stream, sent } = &mut connections[number];
            match stream.read(&mut [0; 128]) {
                Ok(1..) => longest = longest.max(sent.take().map_or(Duration::ZERO, |at| at.elapsed())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => {
                    lost.insert(number);
                    epoll::delete(&set, &*stream)?;
                }
            }
        }
    }
    let late = |(number, connection): (usize, &Connection)| {
        let waits = connection.sent.is_some_and(|at| at.elapsed() > LOST);
        waits.then_some(number)
    };
    lost.extend(connections.iter().enumerate().filter_map(late));
    let unanswered = connections.iter().filter_map(|connection| connection.sent).map(|at| at.elapsed()).max();
    Ok(Seen { lost: lost.len(), longest: longest.max(unanswered.unwrap_or_default()) })
}
