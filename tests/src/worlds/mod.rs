//! Random worlds: a host with a drawn firewall, users and namespaces. Each connection of a program under the library
//! gets the verdict that the kernel gives to the same connection of a program without it. A rule that comes later does
//! to a connection with a ring what it does to the kernel's.
//!
//! `tests/worlds/agent.py` is all programs of a world. The servers run under the library. A client without it makes
//! a kernel connection, and one with it a connection that gets a ring where both ends are in one namespace.

mod rules;

use crate::lab::{BACK, BACKEND, FRONT, Lab, Ns};
use crate::random::Random;
use crate::unmodified::Daemon;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Ports of the servers, in each namespace.
const PORTS: [u16; 3] = [7700, 7701, 7702];
/// Users of clients. Servers are the second one's.
const USERS: [u32; 2] = [0, 1201];
/// Clients: a namespace and a user.
const CLIENTS: [(Ns, u32); 3] = [(Ns::Host, USERS[0]), (Ns::Host, USERS[1]), (Ns::Client, USERS[0])];
/// Addresses of servers that a client of the host reaches, in the host and in the other namespace.
const ADDRESSES: [&str; 5] = ["127.0.0.1", FRONT, BACK, "::1", BACKEND];
/// Connections are tracked from their first packet, as on a host with a firewall. Otherwise the first packet after
/// the rules would look like a new connection, and which end sends it is chance.
const EMPTY: &str = "flush ruleset
table inet tracking { chain c { type filter hook output priority 0; ct state new counter
 }
}
";
/// A dropped packet is sent again after a second, so that a shorter wait finds what a rule drops.
const DIAL_S: [&str; 3] = ["0.3", "0.9", "3"];
/// No progress for so long: a connection is stopped.
const STOPPED: Duration = Duration::from_millis(400);
/// The kernel gets a piece of a connection with a ring each 0.9 s, and a machine may be busy.
const RULE_HOLDS_AFTER: Duration = Duration::from_millis(1200);
/// For busy machines.
const PATIENCE: Duration = Duration::from_secs(40);

/// What worlds have shown.
#[derive(Debug, Default)]
pub struct Seen {
    /// Worlds.
    pub worlds: u64,
    /// Pairs of connections that were opened after the rules.
    pub dials: u64,
    /// Of those, how many the rules refused or dropped.
    pub denied: u64,
    /// Connections with a ring that were open when rules came.
    pub flows: u64,
    /// Of those, how many the rules stopped or ended.
    pub stopped: u64,
    /// Time from the rule until the last of them got an answer.
    pub slowest: Duration,
    /// Of those, how many got answers for more than 1.5 seconds.
    pub slow: u64,
    /// What was not as on the kernel, with the seed of the world.
    pub wrong: Vec<String>,
}

impl Seen {
    /// Returns a line for people.
    pub fn line(&self, seed: u64) -> String {
        format!(
            "{} worlds from seed {seed}: {} pairs of connections, {} denied; {} open ones with a ring when rules came, \
             {} stopped, the last answer {:?} after the rule, {} after more than 1.5 s; {} wrong",
            self.worlds,
            self.dials,
            self.denied,
            self.flows,
            self.stopped,
            self.slowest,
            self.slow,
            self.wrong.len()
        )
    }
}

/// A process of `agent.py`; killed when dropped.
struct Agent {
    child: Child,
    said: Receiver<String>,
}

impl Agent {
    fn start(lab: &Lab, ns: Ns, user: u32, library: &[String], args: &[String]) -> Result<Agent> {
        let script = crate::apps::workspace().join("tests/worlds/agent.py");
        // Other users may not enter the checkout, so the script is an argument.
        let text = std::fs::read_to_string(&script).with_context(|| script.display().to_string())?;
        let mut command = lab.command(ns, "setpriv");
        command.args(["--reuid", &user.to_string(), "--regid", &user.to_string(), "--clear-groups", "env"]);
        command.args(library).args(["/usr/bin/python3", "-c", &text]).args(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("agent.py")?;
        let out = child.stdout.take().context("no pipe")?;
        let (lines, said) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    break;
                }
            }
        });
        let agent = Agent { child, said };
        ensure!(agent.line()? == "ready", "agent.py did not start");
        Ok(agent)
    }

    fn ask(&mut self, line: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().context("no pipe")?;
        writeln!(input, "{line}").and_then(|()| input.flush()).context("agent.py")
    }

    fn line(&self) -> Result<String> {
        self.said.recv_timeout(PATIENCE).map_err(|error| anyhow!("agent.py says nothing: {error}"))
    }

    /// Returns the reply to the request `number`; replies to other requests are dropped.
    fn reply(&self, number: &str) -> Result<String> {
        loop {
            let line = self.line()?;
            if let Some((_, rest)) = line.split_once(' ').filter(|(first, _)| *first == number) {
                return Ok(rest.to_owned());
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The kernel's and the library's process of each client.
struct Client {
    kernel: Agent,
    ours: Agent,
}

/// A lab with servers and clients, in which worlds follow each other.
pub struct Stage<'a> {
    lab: &'a Lab,
    daemon: Daemon,
    clients: Vec<Client>,
    _servers: Vec<Agent>,
    number: u64,
}

impl Stage<'_> {
    /// Starts servers and clients.
    pub fn new(lab: &Lab) -> Result<Stage<'_>> {
        lab.run(Ns::Host, "sysctl", &["-qw", "net.ipv4.ip_forward=1"])?;
        for (ns, via) in [(Ns::Client, FRONT), (Ns::Backend, BACK)] {
            lab.run(ns, "ip", &["route", "replace", "default", "via", via])?;
        }
        let daemon = Daemon::start(lab, Ns::Host)?.yielding();
        let library = daemon.environment();
        let mut servers = Vec::new();
        for (ns, name) in [(Ns::Host, "host"), (Ns::Backend, "container")] {
            let mut args = vec!["serve".to_owned(), name.to_owned()];
            args.extend(PORTS.map(|port| port.to_string()));
            servers.push(Agent::start(lab, ns, USERS[1], &library, &args)?);
        }
        let dial = ["dial".to_owned()];
        let clients = CLIENTS.iter().map(|(ns, user)| {
            Ok(Client {
                kernel: Agent::start(lab, *ns, *user, &[], &dial)?,
                ours: Agent::start(lab, *ns, *user, &library, &dial)?,
            })
        });
        let clients = clients.collect::<Result<_>>()?;
        Ok(Stage { lab, daemon, clients, _servers: servers, number: 0 })
    }

    /// Draws the world of `seed` and compares. An error is one of the test itself.
    pub fn run(&mut self, seed: u64, seen: &mut Seen) -> Result<()> {
        let mut random = Random::new(seed);
        let rules = rules::draw(&mut random);
        self.load(rules::NFT, EMPTY)?;
        let flow = match random.below(2) {
            0 => None,
            _ => Some(self.open(&mut random)?),
        };
        let world = format!("seed {seed}, {}", rules.kind);
        self.load(rules.loader, &rules.script).with_context(|| format!("{world}:\n{}", rules.script))?;
        let loaded = Instant::now();
        let mut wrong = self.dial(&mut random, seen)?;
        if let Some(flow) = flow {
            wrong.extend(self.watch(&flow, loaded, seen)?);
        }
        seen.worlds += 1;
        seen.wrong.extend(wrong.into_iter().map(|what| format!("{world}: {what}\n{}", rules.script)));
        Ok(())
    }

    fn load(&self, command: &[&str], script: &str) -> Result<()> {
        let [program, args @ ..] = command else { bail!("no command") };
        let mut command = self.lab.command(Ns::Host, program);
        let mut child = command.args(args).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        child.stdin.take().context("no pipe")?.write_all(script.as_bytes())?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Opens some connections from both clients of a kind. Each pair has one verdict.
    fn dial(&mut self, random: &mut Random, seen: &mut Seen) -> Result<Vec<String>> {
        let mut asked = Vec::new();
        for _ in 0..4 {
            let client = random.below(CLIENTS.len() as u64) as usize;
            let address = match CLIENTS[client].0 {
                Ns::Host => random.pick(&ADDRESSES),
                _ => random.pick(&[FRONT, BACK, BACKEND]),
            };
            asked.push((client, address, random.pick(&PORTS)));
        }
        let mut wrong = Vec::new();
        for patience in DIAL_S {
            let mut left = Vec::new();
            wrong.clear();
            let ids = asked.iter().map(|(client, address, port)| {
                self.number += 1;
                let line = format!("dial {} {address} {port} {patience}", self.number);
                let pair = &mut self.clients[*client];
                pair.kernel.ask(&line)?;
                pair.ours.ask(&line).map(|()| self.number.to_string())
            });
            let ids = ids.collect::<Result<Vec<_>>>()?;
            let mut replies = [HashMap::new(), HashMap::new()];
            for (client, pair) in self.clients.iter().enumerate() {
                // Replies come in any order.
                for _ in asked.iter().filter(|(of, ..)| *of == client) {
                    for (agent, replies) in [&pair.kernel, &pair.ours].into_iter().zip(&mut replies) {
                        let line = agent.line()?;
                        let (id, verdict) = line.split_once(' ').context("no reply")?;
                        replies.insert(id.to_owned(), verdict.to_owned());
                    }
                }
            }
            for (id, asked) in ids.iter().zip(&asked) {
                let [kernel, ours] = replies.each_ref().map(|all| all.get(id).cloned().unwrap_or_default());
                if kernel == ours {
                    seen.dials += 1;
                    seen.denied += u64::from(kernel.contains(": E") || kernel.ends_with("timeout"));
                    continue;
                }
                let (client, address, port) = *asked;
                let (ns, user) = CLIENTS[client];
                let text = format!("{ns:?}, user {user}, to {address}:{port}: kernel '{kernel}', ours '{ours}'");
                // Ask again, and wait longer. On a busy machine an answer may come late. Or the server's kernel acknowledges
                // bytes before accept(2), in a packet that no user owns, and a rule by user (skuid) resets it.
                wrong.push(text);
                left.push(*asked);
            }
            asked = left;
        }
        Ok(wrong)
    }

    /// Opens two connections of one kind, and waits until the library's has a ring.
    fn open(&mut self, random: &mut Random) -> Result<Flow> {
        self.number += 1;
        let (id, client) = (self.number.to_string(), random.below(2) as usize);
        let (address, port) = (random.pick(&ADDRESSES[..4]), random.pick(&PORTS));
        let pair = &mut self.clients[client];
        pair.kernel.ask(&format!("flow {id} {address} {port} 0.002"))?;
        pair.ours.ask(&format!("flow {id} {address} {port} 0"))?;
        let start = Instant::now();
        let mut ring = false;
        while !ring && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
            ring = self.daemon.with_ring(self.lab, port)?.iter().any(|pair| pair.ring_bytes > 1000);
        }
        let pair = &mut self.clients[client];
        for agent in [&mut pair.kernel, &mut pair.ours] {
            while progress(agent, &id)?.0 == 0 {
                ensure!(start.elapsed() < PATIENCE, "no answer before any rule");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(Flow { id, client, ring, name: format!("user {} to {address}:{port}", CLIENTS[client].1) })
    }

    /// Waits until both connections of a flow have the same fate.
    fn watch(&mut self, flow: &Flow, loaded: Instant, seen: &mut Seen) -> Result<Option<String>> {
        let pair = &mut self.clients[flow.client];
        let mut kernel = Watched::new(loaded);
        let mut ours = Watched::new(loaded);
        let wrong = loop {
            std::thread::sleep(Duration::from_millis(50));
            let fates = [kernel.look(&mut pair.kernel, &flow.id)?, ours.look(&mut pair.ours, &flow.id)?];
            if loaded.elapsed() > RULE_HOLDS_AFTER && fates[0] == fates[1] {
                break None;
            }
            if loaded.elapsed() > PATIENCE {
                break Some(format!("{}: kernel {}, ours {}", flow.name, fates[0], fates[1]));
            }
        };
        if flow.ring {
            seen.flows += 1;
            if ours.fate() != "goes on" {
                seen.stopped += 1;
                let after = ours.moved.saturating_duration_since(loaded);
                seen.slowest = seen.slowest.max(after);
                seen.slow += u64::from(after > Duration::from_millis(1500));
            }
        }
        for agent in [&mut pair.kernel, &mut pair.ours] {
            agent.ask(&format!("end {}", flow.id))?;
        }
        Ok(wrong)
    }

    /// Sockets that got a ring, of the programs that have ended. Ends all programs.
    pub fn end(mut self) -> Result<()> {
        self.clients.clear();
        self.daemon.stop()
    }
}

/// Two connections that are open when rules come.
struct Flow {
    id: String,
    client: usize,
    ring: bool,
    name: String,
}

/// A connection's progress.
struct Watched {
    count: u64,
    moved: Instant,
    end: String,
}

impl Watched {
    fn new(since: Instant) -> Watched {
        Watched { count: 0, moved: since, end: "-".into() }
    }

    fn look(&mut self, agent: &mut Agent, id: &str) -> Result<String> {
        let (count, end) = progress(agent, id)?;
        if count != self.count {
            (self.count, self.moved) = (count, Instant::now());
        }
        self.end = end;
        Ok(self.fate())
    }

    fn fate(&self) -> String {
        match self.end.as_str() {
            "-" if self.moved.elapsed() < STOPPED => "goes on".into(),
            "-" => "is stopped".into(),
            error => format!("ends with {error}"),
        }
    }
}

/// Asks for a flow's count, and its error or `-`.
fn progress(agent: &mut Agent, id: &str) -> Result<(u64, String)> {
    agent.ask(&format!("count {id}"))?;
    let line = agent.reply(id)?;
    let (count, end) = line.split_once(' ').with_context(|| line.clone())?;
    Ok((count.parse()?, end.to_owned()))
}
