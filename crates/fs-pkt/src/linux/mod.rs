//! The kernel as a target: a TUN device in a separate network namespace, real system calls, real
//! time.
//!
//! Each script has its own thread, which moves to a new network namespace (`sys::enter_namespace`).
//! The threads and processes that it starts (the reader of the device, the threads that make system
//! calls, shell commands) inherit the namespace, which ends with the last of them.

mod info;
mod sys;
mod worker;

use crate::config::Config;
use crate::run::call::{Outcome, SysCall};
use crate::run::target::Target;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use worker::Worker;

/// Name of the device: the public suites' commands rely on it.
const DEVICE: &str = "tun0";

/// Maximum duration of a call that should return at once.
const CALL_MAX: Duration = Duration::from_secs(60);

/// Waits up to this length are spun: waking up takes about as long.
const SPIN: Duration = Duration::from_micros(150);

/// The kernel under test. See the module.
#[derive(Debug)]
pub struct Linux {
    tun: OwnedFd,
    packets: Receiver<(Instant, Vec<u8>)>,
    stop: Arc<AtomicBool>,
    start: Option<Instant>,
    direct: Worker,
    background: Worker,
    busy: bool,
    directory: PathBuf,
    /// Descriptors that calls have created. They are closed at the end.
    open: Vec<i32>,
}

/// Returns why this machine cannot run scripts on Linux; `None` if it can.
pub fn unavailable() -> Option<String> {
    if !sys::is_root() {
        return Some("--target linux needs root".into());
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Some("--target linux needs /dev/net/tun".into());
    }
    if Command::new("ip").arg("-V").output().is_err() {
        return Some("--target linux needs the ip command".into());
    }
    None
}

impl Linux {
    /// Runs `script` in its own thread and network namespace, on a host set up by the
    /// configuration.
    pub fn with<R: Send>(
        config: &Config,
        directory: PathBuf,
        script: impl FnOnce(&mut Linux) -> R + Send,
    ) -> Result<R, String> {
        if let Some(reason) = unavailable() {
            return Err(reason);
        }
        std::thread::scope(|scope| {
            let inside = move || {
                sys::enter_namespace().map_err(|e| format!("no new network namespace: {e}"))?;
                let mut linux = Linux::new(config, directory)?;
                Ok(script(&mut linux))
            };
            scope.spawn(inside).join().map_err(|_| "the script's thread panicked".to_string())?
        })
    }

    fn new(config: &Config, directory: PathBuf) -> Result<Self, String> {
        let tun = sys::open_tun(DEVICE).map_err(|e| format!("TUN device: {e}"))?;
        set_up(config)?;
        // Threads for commands and calls are made first: only the reader's thread gets real-time
        // priority.
        let (direct, background) = (Worker::new()?, Worker::new()?);
        let sniffer = sys::open_sniffer(DEVICE).map_err(|e| format!("packet socket: {e}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (send, packets) = channel();
        let ends = stop.clone();
        std::thread::Builder::new()
            .name("reader".into())
            .spawn(move || read_packets(&sniffer, &ends, &send))
            .map_err(|e| format!("reader thread: {e}"))?;
        sys::be_prompt();
        Ok(Self { tun, packets, stop, start: None, direct, background, busy: false, directory, open: Vec::new() })
    }

    fn started(&mut self) -> Instant {
        *self.start.get_or_insert_with(sys::start_of_script)
    }

    fn micros(&mut self, at: Instant) -> i64 {
        let start = self.started();
        match at.checked_duration_since(start) {
            Some(since) => since.as_micros() as i64,
            None => -(start.duration_since(at).as_micros() as i64),
        }
    }

    fn instant(&mut self, at: i64) -> Instant {
        self.started() + Duration::from_micros(at.max(0) as u64)
    }

    fn note(&mut self, call: &SysCall, outcome: &Outcome) {
        use crate::run::call::Out;
        match (call, &outcome.out) {
            (
                SysCall::Socket { .. } | SysCall::Accept { .. } | SysCall::EpollCreate { .. } | SysCall::Open { .. },
                _,
            ) if outcome.result >= 0 => {
                self.open.push(outcome.result as i32);
            }
            (SysCall::Pipe, Out::Pair(a, b)) => self.open.extend([*a, *b]),
            (SysCall::Close { fd }, _) if outcome.result == 0 => self.open.retain(|f| f != fd),
            _ => {}
        }
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the calls that still block, so that their threads, and with them the namespace,
        // end.
        self.open.iter().for_each(|fd| sys::end_descriptor(*fd));
    }
}

fn read_packets(sniffer: &OwnedFd, stop: &AtomicBool, to: &Sender<(Instant, Vec<u8>)>) {
    sys::be_prompt();
    let mut buffer = vec![0; 1 << 17];
    while !stop.load(Ordering::Relaxed) {
        // An error means that the device is gone; the script's next sniff then finds no packet and
        // reports it.
        match sys::read_packet(sniffer.as_fd(), &mut buffer) {
            Ok(Some(packet)) => {
                if to.send(packet).is_err() {
                    return;
                }
            }
            Ok(None) => {}
            Err(_) => return,
        }
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(args).output().map_err(|e| format!("ip: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

/// Sets addresses and routes of the device.
fn set_up(config: &Config) -> Result<(), String> {
    let (local, gateway, remote) = (config.local(), config.gateway(), config.remote());
    let own = format!("{local}/{}", config.prefix_len());
    let mtu = config.mtu.to_string();
    ip(&["link", "set", "lo", "up"])?;
    ip(&["link", "set", DEVICE, "mtu", &mtu, "up"])?;
    let network = match remote {
        IpAddr::V4(a) => format!("{}/24", std::net::Ipv4Addr::from(u32::from(a) & 0xffff_ff00)),
        IpAddr::V6(a) => format!("{}/64", std::net::Ipv6Addr::from(u128::from(a) >> 64 << 64)),
    };
    if local.is_ipv4() {
        ip(&["addr", "add", &own, "dev", DEVICE])?;
    } else {
        ip(&["-6", "addr", "add", &own, "dev", DEVICE, "nodad"])?;
    }
    let gateway = gateway.to_string();
    let route = ["route", "add", &network, "dev", DEVICE];
    let through = [&route[..], &["via", &gateway]].concat();
    let family = |args: &[&str]| if local.is_ipv4() { ip(args) } else { ip(&[&["-6"], args].concat()) };
    // A gateway equal to our own address means no gateway: the peers are on the link.
    if config.gateway() == local { family(&route) } else { family(&through).or_else(|_| family(&route)) }
}

impl Target for Linux {
    fn now(&mut self) -> i64 {
        self.micros(Instant::now())
    }

    fn wait_until(&mut self, at: i64) {
        let at = self.instant(at);
        loop {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            if left > SPIN {
                std::thread::sleep(left - SPIN);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn inject(&mut self, packet: &[u8]) -> Result<(), String> {
        sys::write_packet(self.tun.as_fd(), packet).map_err(|e| format!("injecting into the TUN device: {e}"))
    }

    fn sniff(&mut self, deadline: Option<i64>) -> Result<Option<(i64, Vec<u8>)>, String> {
        let found = match deadline {
            None => self.packets.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => {
                let left = self.instant(deadline).saturating_duration_since(Instant::now());
                self.packets.recv_timeout(left)
            }
        };
        match found {
            Ok((at, packet)) => Ok(Some((self.micros(at), packet))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err("the TUN device is gone".into()),
        }
    }

    fn call(&mut self, call: SysCall) -> Result<Outcome, String> {
        self.direct.begin(call.clone())?;
        let (_, outcome) = self.direct.ended(CALL_MAX).ok_or("the call does not return")?;
        self.note(&call, &outcome);
        Ok(outcome)
    }

    fn begin(&mut self, call: SysCall) -> Result<(), String> {
        self.background.begin(call)?;
        self.busy = true;
        // Time for the other thread to enter the call.
        std::thread::sleep(Duration::from_micros(300));
        Ok(())
    }

    fn ended(&mut self, deadline: i64) -> Option<(i64, Outcome)> {
        if !self.busy {
            return None;
        }
        let left = self.instant(deadline).saturating_duration_since(Instant::now());
        let (at, outcome) = self.background.ended(left)?;
        self.busy = false;
        if let Some(call) = self.background.last.take() {
            self.note(&call, &outcome);
        }
        Some((self.micros(at), outcome))
    }

    fn cookie(&mut self, _local: IpAddr, _remote: IpAddr) -> Option<Vec<u8>> {
        // The cookie derives from net.ipv4.tcp_fastopen_key, which scripts set.
        None
    }

    fn wall_time(&mut self, seconds: i64, nanos: i64) -> Option<i64> {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
        let now = self.micros(Instant::now());
        let ago = since.as_micros() as i64 - (seconds * 1_000_000 + nanos / 1000);
        Some(now - ago)
    }

    fn command(&mut self, line: &str) -> Result<(), String> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(line).env("PACKETDRILL_PID", std::process::id().to_string());
        if !self.directory.as_os_str().is_empty() {
            shell.current_dir(&self.directory);
        }
        let output = shell.output().map_err(|e| format!("sh: {e}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
    }

    fn tcp_info(&mut self, fd: i32) -> Result<Vec<(&'static str, i64)>, String> {
        let bytes = sys::tcp_info(fd).map_err(|e| format!("TCP_INFO: {e}"))?;
        Ok(info::named(&bytes))
    }
}
