//! A lab with connections in it, and a round of changes.

use crate::change::{Change, Step, WIRES, Wire};
use anyhow::{Context, Result, bail, ensure};
use fs_tests::apps::{READY_LIMIT, StackOptions};
use fs_tests::random::Random;
use fs_tests::{Lab, Ns, Proc, Stack};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Limit for connections to continue after the changes are reversed. The kernel's retransmission
/// timers have backed off, and a neighbour is given up after 3 s and looked up again.
const GO_ON: Duration = Duration::from_secs(60);
/// Bytes of each connection that count as going on: more than were on their way.
const FURTHER: u64 = 64 << 10;

/// Ports of the host's and its peers' echo servers, for IPv4 and IPv6.
const HOSTS: (u16, u16) = (7400, 7401);
const PEERS: (u16, u16) = (7410, 7411);

/// Options of the rounds.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Told {
    /// Tell each change when it is made.
    #[arg(long)]
    verbose: bool,
    /// Only changes whose commands contain this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Also delete and create one of the devices.
    #[arg(long)]
    devices: bool,
}

/// A program with its connections.
struct End {
    proc: Proc,
    report: PathBuf,
}

pub(crate) struct World<'a> {
    lab: &'a Lab,
    stack: Stack,
    ends: Vec<End>,
    /// Resets that the host's kernel had sent before.
    resets: u64,
    /// Changes whose commands have succeeded.
    worked: u64,
}

/// The reported state of one connection.
#[derive(Debug)]
struct Said {
    name: String,
    done: u64,
    /// New connections that were reset before their first echo.
    forgotten: u64,
    error: String,
}

impl<'a> World<'a> {
    pub(crate) fn begin(lab: &'a Lab, stack: Stack, seed: u64) -> Result<World<'a>> {
        let mut random = Random::new(!seed);
        let promote = random.below(2);
        lab.run(Ns::Host, "sh", &["-c", &format!("echo 0 > /proc/sys/net/ipv4/ip_forward && echo 0 > /proc/sys/net/ipv6/conf/all/forwarding
            for d in all default front0 back0; do echo {promote} > /proc/sys/net/ipv4/conf/$d/promote_secondaries; done")])?;
        let queues = 1 + random.below(2);
        for Wire { device, peer, peer_device, .. } in WIRES {
            for (ns, device) in [(Ns::Host, device), (peer, peer_device)] {
                lab.run(ns, "ethtool", &["-L", device, "rx", &queues.to_string(), "tx", &queues.to_string()])?;
            }
        }
        let mut world = World { lab, stack, ends: Vec::new(), resets: 0, worked: 0 };
        for step in Change::ground() {
            world.step(&step, false);
        }
        let cores = random.pick(&[vec![0], vec![0, 1]]);
        // The number of cores is at most that of queues.
        let cores = if queues < cores.len() as u64 { vec![0] } else { cores };
        let (v4, v6) = (
            [format!("0.0.0.0:{}", HOSTS.0), format!("[::]:{}", HOSTS.1)],
            [format!("0.0.0.0:{}", PEERS.0), format!("[::]:{}", PEERS.1)],
        );
        let mut of_host = Vec::new();
        for Wire { net4, net6, .. } in WIRES {
            of_host.push(format!("{net4}.2:{}", PEERS.0));
            of_host.push(format!("{net4}.2:{},{net4}.50", PEERS.0));
            of_host.push(format!("[{net6}:2]:{}", PEERS.1));
            of_host.push(format!("[{net6}:2]:{},{net6}:50", PEERS.1));
        }
        let options = StackOptions {
            cores,
            more: vec!["--frames".into(), "8192".into(), "--ephemeral-ports".into(), "512".into()],
            ..StackOptions::new(stack)
        };
        world.start("host", Ns::Host, &v4, &of_host, options.arguments(&[("front0", ""), ("back0", "")]))?;
        for Wire { net4, net6, peer, .. } in WIRES {
            let of_peer: Vec<String> = ["1", "50"]
                .iter()
                .flat_map(|at| [format!("{net4}.{at}:{}", HOSTS.0), format!("[{net6}:{at}]:{}", HOSTS.1)])
                .collect();
            let name = if peer == Ns::Client { "client" } else { "backend" };
            world.start(name, peer, &v6, &of_peer, StackOptions::new(Stack::Kernel).arguments(&[]))?;
        }
        world.go_on(None).context("at the start")?;
        world.resets = world.kernel_resets()?;
        Ok(world)
    }

    fn start(
        &mut self,
        name: &str,
        ns: Ns,
        listen: &[String],
        connections: &[String],
        stack: Vec<String>,
    ) -> Result<()> {
        let report = self.lab.dir().join(format!("{name}.state"));
        let program = std::env::current_exe().context("this program's path")?;
        let mut command = self.lab.command(ns, program);
        command.arg("end").arg("--report").arg(&report).args(stack);
        if ns == Ns::Host {
            command.arg("--peers-forget");
        }
        listen.iter().for_each(|at| {
            command.args(["--listen", at]);
        });
        connections.iter().for_each(|to| {
            command.args(["--connection", to]);
        });
        let proc = self.lab.spawn(name, &mut command)?;
        self.ends.push(End { proc, report });
        Ok(())
    }

    /// Makes and reverses the changes of `seed`. Returns their number.
    pub(crate) fn round(&mut self, seed: u64, Told { verbose, only, devices }: &Told) -> Result<u64> {
        let mut random = Random::new(seed);
        let began = Instant::now();
        let mut made = Vec::new();
        let mut to_undo = Vec::new();
        let (forgotten, mut may_forget) = (self.forgotten()?, false);
        let count = 1 + random.below(6);
        for _ in 0..count {
            let Change { does, undoes } = loop {
                let change = Change::draw(&mut random);
                if (*devices || !change.removes_a_device())
                    && only.as_ref().is_none_or(|only| change.does.script.contains(only))
                {
                    break change;
                }
            };
            made.push(format!("{:.3} s {:?}: {}", began.elapsed().as_secs_f64(), does.ns, does.script));
            may_forget |= does.takes_from_a_peer();
            self.worked += u64::from(self.play(&does, *verbose)?);
            to_undo.extend(undoes);
            self.pause(&mut random);
            if random.below(3) == 0 && !to_undo.is_empty() {
                let undo = to_undo.swap_remove(random.below(to_undo.len() as u64) as usize);
                made.push(format!("{:.3} s {:?}: {}", began.elapsed().as_secs_f64(), undo.ns, undo.script));
                self.play(&undo, *verbose)?;
            }
        }
        while !to_undo.is_empty() {
            self.pause(&mut random);
            let undo = to_undo.swap_remove(random.below(to_undo.len() as u64) as usize);
            made.push(format!("{:.3} s {:?}: {}", began.elapsed().as_secs_f64(), undo.ns, undo.script));
            self.play(&undo, *verbose)?;
        }
        for step in Change::ground() {
            self.step(&step, false);
        }
        made.push(format!("{:.3} s: all as it was", began.elapsed().as_secs_f64()));
        self.go_on(None)
            .and_then(|()| self.no_resets())
            .and_then(|()| {
                let more = self.forgotten()? - forgotten;
                ensure!(may_forget || more == 0, "{more} new connections were reset, and no link was down");
                Ok(())
            })
            .with_context(|| format!("after\n  {}", made.join("\n  ")))?;
        Ok(count)
    }

    /// Returns how many changes have worked: those that are impossible in the current state do not.
    pub(crate) fn worked(&self) -> u64 {
        self.worked
    }

    /// Pauses, often for no time, sometimes long enough for several retransmission time-outs.
    fn pause(&self, random: &mut Random) {
        let longest = random.pick(&[0, 0, 3, 30, 300, 1200]);
        std::thread::sleep(Duration::from_millis(random.below(longest + 1)));
    }

    /// Runs a step, and returns whether its last command succeeded. Replies of the host's kernel
    /// while its device goes down are not counted: veth takes the program off its queues before it
    /// stops them (`veth_disable_xdp`), so the kernel gets their packets. The replies do not leave,
    /// because the device no longer sends (`dev_deactivate_many` comes before `ndo_stop`).
    fn play(&mut self, step: &Step, verbose: bool) -> Result<bool> {
        let Some((down, rest)) = step.down_and_rest() else { return Ok(self.step(step, verbose)) };
        let before = self.kernel_resets()?;
        let worked = self.step(&down, verbose);
        self.resets += self.kernel_resets()? - before;
        Ok(rest.map_or(worked, |rest| self.step(&rest, verbose)))
    }

    fn step(&self, Step { ns, script }: &Step, verbose: bool) -> bool {
        if verbose {
            println!("{ns:?}: {script}");
        }
        let taken = if self.stack == Stack::Kernel { "true" } else { "ip link show back0 | grep -q prog/xdp" };
        let script = script.replace("BACKEND", &self.lab.ns(Ns::Backend)).replace("TAKEN", taken);
        let mut command = self.lab.command(*ns, "sh");
        let stderr = if verbose { Stdio::inherit() } else { Stdio::null() };
        // A step that is impossible in the current state is skipped.
        command.args(["-c", &script]).stdout(Stdio::null()).stderr(stderr).status().is_ok_and(|status| status.success())
    }

    fn said(&self) -> Result<Vec<Said>> {
        let mut said = Vec::new();
        for End { report, .. } in &self.ends {
            let text = std::fs::read_to_string(report).unwrap_or_default();
            for line in text.lines() {
                let mut parts = line.split('\t');
                let (name, done, forgotten, error) = (parts.next(), parts.next(), parts.next(), parts.next());
                said.push(Said {
                    name: name.unwrap_or_default().to_owned(),
                    done: done.unwrap_or_default().parse().context("what an end says")?,
                    forgotten: forgotten.unwrap_or_default().parse().context("what an end says")?,
                    error: error.unwrap_or_default().to_owned(),
                });
            }
        }
        Ok(said)
    }

    fn forgotten(&self) -> Result<u64> {
        Ok(self.said()?.iter().map(|said| said.forgotten).sum())
    }

    /// Checks that all connections continue and new ones are made, except those of the address that
    /// is `gone`, which are silent. Those to the `peer` may get packets without having asked.
    fn go_on(&mut self, gone: Option<(&str, &str)>) -> Result<()> {
        let until = Instant::now() + GO_ON;
        let mut before: Option<Vec<Said>> = None;
        loop {
            for end in &mut self.ends {
                if let Some(status) = end.proc.ended()? {
                    bail!("an end has ended ({status}): {}", end.proc.log());
                }
            }
            let said = self.said()?;
            if let Some(Said { name, done, error, .. }) = said.iter().find(|said| !said.error.is_empty()) {
                bail!("{name} after {done}: {error}");
            }
            let is_whole = said.len() == 2 * 8 + 2 * 2 * 4;
            match &before {
                None if is_whole => before = Some(said),
                None => {}
                Some(before) => {
                    let further = |name: &str| if name.starts_with("new:") { 1 } else { FURTHER };
                    let late: Vec<String> = said
                        .iter()
                        .zip(before)
                        .filter(|(now, before)| now.done < before.done + further(&now.name))
                        .filter(|(now, _)| {
                            !gone.is_some_and(|(gone, peer)| now.name.contains(gone) || now.name.contains(peer))
                        })
                        .map(|(now, before)| format!("{} ({} then {})", now.name, before.done, now.done))
                        .collect();
                    if late.is_empty() && is_whole {
                        return Ok(());
                    }
                    ensure!(
                        Instant::now() < until,
                        "these do not go on within {GO_ON:?}: {}\n{}",
                        late.join(", "),
                        self.state()
                    );
                }
            }
            ensure!(Instant::now() < until, "the ends say nothing");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Collects the state of the host's namespace, of connections and neighbours in its peers', and
    /// of its stack.
    fn state(&self) -> String {
        let of_host = "ip -br addr; ip route; ip -6 route; ip neigh; ip link; grep Tcp: /proc/net/snmp; ethtool -l back0 | tail -5";
        let of_peer = "ip -br addr; ip neigh; ss -tinoHO";
        [(Ns::Host, of_host), (Ns::Client, of_peer), (Ns::Backend, of_peer)]
            .map(|(ns, script)| self.lab.run(ns, "sh", &["-c", script]).unwrap_or_else(|error| error.to_string()))
            .join("\n")
            + &std::fs::read_to_string(self.lab.dir().join("host.counters")).unwrap_or_default()
    }

    fn kernel_resets(&self) -> Result<u64> {
        let text = self.lab.run(Ns::Host, "cat", &["/proc/net/snmp"])?;
        let mut tcp = text.lines().filter(|line| line.starts_with("Tcp:"));
        let (names, values) = (tcp.next().context("Tcp:")?, tcp.next().context("Tcp:")?);
        let at = names.split(' ').position(|name| name == "OutRsts").context("OutRsts")?;
        values.split(' ').nth(at).context("OutRsts")?.parse().context("OutRsts")
    }

    /// Checks that the host's kernel has replied to none of our packets. On kernel sockets there
    /// may be reasons for it.
    fn no_resets(&mut self) -> Result<()> {
        let resets = self.kernel_resets()?;
        let more = resets - std::mem::replace(&mut self.resets, resets);
        ensure!(self.stack == Stack::Kernel || more == 0, "the host's kernel has sent {more} resets");
        Ok(())
    }

    /// Removes an address for good: its connections wait, as on the kernel, and the others are not
    /// affected. Then the ends stop.
    pub(crate) fn end(mut self, seed: u64) -> Result<()> {
        let mut random = Random::new(seed ^ 0xe4d);
        let Wire { device, net4, net6, .. } = random.pick(&WIRES);
        let (gone, prefix, peer) = random.pick(&[
            (format!("{net4}.50"), 24, format!("{net4}.2:")),
            (format!("{net6}:50"), 64, format!("[{net6}:2]:")),
        ]);
        self.lab.run(Ns::Host, "ip", &["addr", "del", &format!("{gone}/{prefix}"), "dev", device])?;
        // Twice: the first check may find older packets.
        for _ in 0..2 {
            self.go_on(Some((&gone, &peer)))
                .and_then(|()| self.no_resets())
                .with_context(|| format!("{gone} is gone"))?;
        }
        for end in &mut self.ends {
            end.proc.terminate(READY_LIMIT)?;
        }
        Ok(())
    }
}
