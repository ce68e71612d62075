//! The other end of the wire: this machine's kernel in its own namespace or, for a veth in the
//! guest, the guest's.

use super::packages::run;
use super::{PEER, PEER_PORT, VLAN, cards::Card, cards::Made};
use crate::process::Proc;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A guest's request to its peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Sends this many pings, and returns how many were answered.
    Ping {
        /// The address.
        to: String,
        /// Number of pings.
        count: u32,
    },
    /// Starts to ping, five times per second.
    PingBeside {
        /// The address.
        to: String,
    },
    /// Ends the pings, and returns like [`Ask::Ping`].
    PingEnd,
    /// [`super::echo::echo`]
    Echo {
        /// The destination, with the port.
        to: String,
        /// How much.
        bytes: u64,
    },
    /// [`super::echo::connections`]
    Connections {
        /// The destination, with the port.
        to: String,
        /// How many.
        count: u32,
    },
}

/// Added to a step's description if the guest did not respond and a client has started again.
pub const ANEW: &str = "began anew once";

/// A namespace that carries out requests. Dropping it removes it.
#[derive(Debug)]
pub struct Peer {
    namespace: String,
    folder: PathBuf,
    server: Option<Proc>,
    beside: Option<Child>,
    /// True if a client has started again.
    anew: bool,
}

impl Peer {
    /// Makes the namespace; logs go to `folder`.
    pub fn new(namespace: String, folder: &Path) -> Result<Peer> {
        let peer = Peer { namespace, folder: folder.to_owned(), server: None, beside: None, anew: false };
        run(Command::new("ip").args(["netns", "add", &peer.namespace]))?;
        peer.ip(&["link", "set", "lo", "up"])?;
        Ok(peer)
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Gives the peer's address to a device of the namespace, and starts the echo server.
    pub fn begin(&mut self, device: &str) -> Result<()> {
        self.ip(&["link", "set", device, "up"])?;
        self.ip(&["addr", "add", &format!("{PEER}/24"), "dev", device])?;
        let server = self.command(&std::env::current_exe()?, &["serve", &PEER_PORT.to_string()]);
        self.server = Some(Proc::spawn("peer-server", &self.folder.join("peer-server.log"), &mut { server })?);
        Ok(())
    }

    /// The TAPs of a card, and the peer's addresses on them.
    pub fn wire(&mut self, card: &Card) -> Result<()> {
        for number in 0..card.count() {
            let tap = format!("tap{number}");
            let mut args = vec!["tuntap", "add", &tap, "mode", "tap"];
            if card.is_multi_queue() {
                args.push("multi_queue");
            }
            if card.device == "virtio-net-pci" {
                args.push("vnet_hdr");
            }
            self.ip(&args)?;
            self.ip(&["link", "set", &tap, "up"])?;
        }
        match card.made {
            Made::Veth => Ok(()),
            Made::Card => self.begin("tap0"),
            Made::Vlan => {
                self.ip(&["link", "add", "link", "tap0", "name", "tap0.5", "type", "vlan", "id", VLAN])?;
                self.begin("tap0.5")
            }
            Made::Bond => {
                self.ip(&["link", "add", "bridge0", "type", "bridge"])?;
                self.ip(&["link", "set", "tap0", "master", "bridge0"])?;
                self.ip(&["link", "set", "tap1", "master", "bridge0"])?;
                self.begin("bridge0")
            }
        }
    }

    /// `ip` in the namespace.
    pub fn ip(&self, args: &[&str]) -> Result<String> {
        run(Command::new("ip").args(["-n", &self.namespace]).args(args))
    }

    /// A program in the namespace.
    pub fn command(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace]).arg(program).args(args);
        command
    }

    /// Carries out a request. Every action has a limit.
    pub fn act(&mut self, ask: &Ask) -> Result<String> {
        let own = std::env::current_exe()?;
        let own = own.to_str().context("a path of this program that is no text")?;
        let limited = |args: &[&str]| self.command(Path::new("timeout"), &[&["150"], args].concat());
        match ask {
            Ask::Ping { to, count } => {
                let output = limited(&["ping", "-n", "-i", "0.3", "-W", "2", "-c", &count.to_string(), to]).output()?;
                answered(&String::from_utf8_lossy(&output.stdout))
            }
            Ask::PingBeside { to } => {
                let mut ping = limited(&["ping", "-n", "-q", "-i", "0.2", to]);
                self.beside = Some(ping.stdout(Stdio::piped()).spawn()?);
                Ok(String::new())
            }
            Ask::PingEnd => {
                let child = self.beside.take().context("no ping is under way")?;
                // ping prints its summary on SIGINT, which `timeout` forwards.
                run(Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]))?;
                answered(&String::from_utf8_lossy(&child.wait_with_output()?.stdout))
            }
            Ask::Echo { to, bytes } => self.client(to, &[own, "echo", to, &bytes.to_string()]),
            Ask::Connections { to, count } => self.client(to, &[own, "connections", to, &count.to_string()]),
        }
        .map(|text| text.trim().to_owned())
    }

    /// Stores its kernel's counters in the folder, to diagnose a client's failure.
    fn save_state(&self) {
        let counted = ["ip -s link", "ip neigh", "nstat -asz", "ss -tanim"].map(|words| {
            let mut words = words.split(' ');
            let program = Path::new(words.next().unwrap_or_default());
            self.command(program, &words.collect::<Vec<_>>()).output().map(|output| output.stdout).unwrap_or_default()
        });
        // Storing a diagnostic is not a step.
        let _unread = std::fs::write(self.folder.join("peer-state"), counted.concat());
    }

    /// Runs a client of [`super::echo`]. If a guest does not answer a connect, pings find out
    /// whether it responds at all. If not, its emulated CPU may be too slow, or one of our queues
    /// may be stuck. Once in a guest's life the client then starts again, which the step's
    /// description says.
    fn client(&mut self, to: &str, args: &[&str]) -> Result<String> {
        let host = to.rsplit_once(':').map_or(to, |(host, _)| host);
        let client = |peer: &Peer| run(&mut peer.command(Path::new("timeout"), &[&["150"], args].concat()));
        let first = client(self);
        if first.is_err() {
            self.save_state();
        }
        match first {
            Err(error) if format!("{error:#}").contains(super::echo::NO_CONNECT) => {
                let mut ping = self.command(Path::new("ping"), &["-n", "-i", "0.3", "-W", "5", "-c", "3", host]);
                let pings = answered(&String::from_utf8_lossy(&ping.output()?.stdout));
                begin_anew(&mut self.anew, pings, error)?;
                // A failure now is the second one.
                Ok(format!("{}, {ANEW}", client(self)?.trim()))
            }
            result => result,
        }
    }
}

/// Returns whether a client may start again after its connect has failed with `error`, and then
/// `pings`: if the guest answered none of them, and once in its life.
fn begin_anew(anew: &mut bool, pings: Result<String>, error: anyhow::Error) -> Result<()> {
    match pings {
        Err(_) if !std::mem::replace(anew, true) => Ok(()),
        Err(pings) => Err(error.context(format!("{pings:#} after it, and a client has begun anew before"))),
        Ok(pings) => Err(error.context(format!("{pings} after it"))),
    }
}

/// Parses ping's summary. Fails if more than a twentieth is lost.
fn answered(text: &str) -> Result<String> {
    let line = text.lines().find(|line| line.contains("packets transmitted")).context("ping says nothing")?;
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|piece| piece.parse::<u32>().ok());
    let (sent, received) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    // Pings in flight at the end count as lost.
    ensure!(received > 0 && sent <= received + 2 + sent / 20, "{received} of {sent} pings answered");
    Ok(format!("{received} of {sent} pings"))
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.beside {
            let _gone = child.kill();
            let _gone = child.wait();
        }
        drop(self.server.take());
        // Processes that a guest or a server leaves there are ended with it.
        for _ in 0..100 {
            let pids = Command::new("ip").args(["netns", "pids", &self.namespace]).output();
            if pids.is_ok_and(|output| output.stdout.is_empty()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _gone = Command::new("ip").args(["netns", "del", &self.namespace]).output();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn silent_guest_gets_one_more_attempt() {
        let mut anew = false;
        let connect = || anyhow!("no connection");
        assert!(begin_anew(&mut anew, Ok("3 of 3 pings".into()), connect()).is_err(), "it answers, but no connect");
        assert!(begin_anew(&mut anew, Err(anyhow!("0 of 3 pings answered")), connect()).is_ok());
        assert!(begin_anew(&mut anew, Err(anyhow!("0 of 3 pings answered")), connect()).is_err(), "a second time");
    }
}
