//! The engine as a target: one stack on a raw IP interface, in virtual time.

mod commands;
mod epoll;
mod fds;
mod info;
mod options;
mod stream;
mod sysctl;

use crate::config::{Config, IpVersion};
use crate::run::call::{Outcome, SysCall};
use crate::run::target::Target;
use fds::Fds;
use fs_core::{
    Addressing, Cidr, Duration, Event, FlowKey, FramePool, Framing, HeapPool, IfaceId, Instant, Interface, Route,
    RxChecksum, RxFrame, Secret, Stack, StackConfig, TxFrame,
};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

const IFACE: IfaceId = IfaceId(0);

/// Start of virtual time: a quarter of a millisecond after a whole one, so that events on whole
/// milliseconds are not at its edge.
const START: Instant = Instant::from_micros(1_000_000_250);

/// Size of the SYN cache.
const SYN_CACHE: u32 = 256;

/// Number of frames of the pool, each of 2 KiB.
const FRAMES: usize = 16 << 10;

/// Maximum duration, in virtual time, of a call that should return at once.
const CALL_MAX_US: i64 = 120_000_000;

/// Maximum number of turns at one moment: a turn that never ends is a bug of the engine.
const TURNS_MAX: u32 = 100_000;

/// A pending call.
#[derive(Debug)]
pub(crate) struct Operation {
    call: SysCall,
    /// Number of bytes moved so far.
    moved: usize,
    /// Timeout of poll or epoll_wait.
    until: Option<i64>,
}

/// The engine with its virtual host. See the module.
pub struct Engine {
    stack: Stack<HeapPool>,
    now: i64,
    sent: VecDeque<(i64, Vec<u8>)>,
    fds: Fds,
    background: Option<Operation>,
    ended: Option<(i64, Outcome)>,
    events: Vec<Event>,
    out: Vec<TxFrame>,
    sysctls: sysctl::Sysctls,
    config: Config,
    /// tcp_syncookies = 2: the stack has no SYN cache, so every SYN is answered with a cookie.
    always_cookies: bool,
    /// Directory of the script, for files in its commands.
    directory: PathBuf,
    ended_by_bug: Option<String>,
    /// Shell commands without an effect.
    not_run: Vec<String>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("now", &self.now).field("stack", &self.stack).finish_non_exhaustive()
    }
}

impl Engine {
    /// Makes a host by the script's configuration. Commands' files are relative to `directory`.
    pub fn new(config: &Config, directory: PathBuf) -> Self {
        let mut engine = Self {
            stack: Self::stack(config, SYN_CACHE),
            now: 0,
            sent: VecDeque::new(),
            fds: Fds::default(),
            background: None,
            ended: None,
            events: Vec::new(),
            out: Vec::new(),
            sysctls: sysctl::Sysctls::default(),
            directory,
            config: config.clone(),
            always_cookies: false,
            ended_by_bug: None,
            not_run: Vec::new(),
        };
        // Like Linux without the fq queue discipline.
        engine.sysctls.tcp.slow_start_pacing = false;
        engine.apply_sysctls();
        engine
    }

    /// Takes the list of shell commands that were not run, because the engine has no device queue,
    /// kernel counter or file.
    pub fn not_run(&mut self) -> Vec<String> {
        std::mem::take(&mut self.not_run)
    }

    fn stack(config: &Config, syn_cache: u32) -> Stack<HeapPool> {
        let mut stack_config = StackConfig::new(Secret([0x5f; 32]));
        stack_config.limits.connections = 1024;
        stack_config.limits.time_wait = 1024;
        stack_config.limits.syn_cache = syn_cache;
        stack_config.limits.udp_sockets = 64;
        let mut stack = Stack::new(stack_config, HeapPool::new(FRAMES, 2048));
        let own = Cidr { addr: config.local(), prefix: config.prefix_len() };
        // The other family has an address, too, as on any host.
        let other = match config.ip_version {
            IpVersion::V6 => Cidr { addr: Ipv4Addr::new(192, 168, 0, 1).into(), prefix: 16 },
            _ => Cidr { addr: Ipv6Addr::new(0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1).into(), prefix: 64 },
        };
        let iface = stack.add_interface(Interface {
            framing: Framing::Ip,
            mac: [0; 6],
            vlan: None,
            mtu: config.mtu,
            addrs: vec![own, other],
            addressing: Addressing::Standalone,
            tx_checksum: false,
            accept_partial_checksum: false,
        });
        let any = |addr: IpAddr| Route {
            to: Cidr { addr, prefix: 0 },
            gateway: None,
            iface,
            metric: 0,
            source: None,
            refusal: None,
        };
        stack.set_routes(vec![any(Ipv4Addr::UNSPECIFIED.into()), any(Ipv6Addr::UNSPECIFIED.into())]);
        stack.set_now(START);
        stack
    }

    fn instant(&self, at: i64) -> Instant {
        START + Duration::from_micros(at.max(0) as u64)
    }

    fn micros(&self, at: Instant) -> i64 {
        // Rounded up: at that microsecond, the deadline has passed.
        at.since(START).as_nanos().div_ceil(1000) as i64
    }

    /// Runs the stack's turns at this moment until nothing moves.
    fn turn(&mut self) {
        self.stack.set_now(self.instant(self.now));
        for _ in 0..TURNS_MAX {
            self.stack.tick();
            let mut moved = self.wake();
            // Like a core: packets leave after the tasks have run.
            moved |= self.proceed();
            moved |= self.transmit();
            if !moved {
                return;
            }
        }
        self.ended_by_bug = Some("the engine does not come to rest".into());
    }

    /// Delivers the stack's events to the sockets.
    fn wake(&mut self) -> bool {
        let mut events = std::mem::take(&mut self.events);
        self.stack.drain_events(&mut events);
        let any = !events.is_empty();
        for event in events.drain(..) {
            self.fds.on_event(&event);
        }
        self.events = events;
        any
    }

    /// Takes packets from the stack.
    fn transmit(&mut self) -> bool {
        let mut out = std::mem::take(&mut self.out);
        self.stack.tx_batch(IFACE, 64, &mut out);
        let any = !out.is_empty();
        let mut packet = Vec::new();
        for tx in out.drain(..) {
            packet.extend_from_slice(self.stack.pool().bytes(&tx.frame));
            let more = tx.frame.more();
            self.stack.pool_mut().free(tx.frame);
            if !more {
                self.sent.push_back((self.now, std::mem::take(&mut packet)));
            }
        }
        self.out = out;
        any
    }

    /// Continues the pending call.
    fn proceed(&mut self) -> bool {
        let Some(mut operation) = self.background.take() else { return false };
        match self.attempt(&mut operation) {
            Ok(None) => {
                self.background = Some(operation);
                false
            }
            Ok(Some(outcome)) => {
                self.ended = Some((self.now, outcome));
                true
            }
            Err(bug) => {
                self.ended_by_bug = Some(bug);
                true
            }
        }
    }

    /// Returns the time of the next event that needs no input.
    fn next(&self) -> Option<i64> {
        let stack = self.stack.next_deadline().map(|at| self.micros(at));
        let call = self.background.as_ref().and_then(|o| o.until);
        stack.into_iter().chain(call).min()
    }

    /// Advances time until `done` or `until`.
    fn advance(&mut self, until: Option<i64>, mut done: impl FnMut(&Self) -> bool) {
        loop {
            self.turn();
            if done(self) || self.ended_by_bug.is_some() {
                return;
            }
            let next = self.next();
            let to = match (next, until) {
                (Some(next), Some(until)) => next.max(self.now + 1).min(until),
                (Some(next), None) => next.max(self.now + 1),
                (None, Some(until)) => until,
                (None, None) => return,
            };
            if until.is_some_and(|until| self.now >= until) {
                return;
            }
            self.now = to.max(self.now);
        }
    }

    fn bug(&mut self) -> Result<(), String> {
        self.ended_by_bug.take().map_or(Ok(()), Err)
    }

    fn begin_operation(&mut self, call: SysCall) -> Operation {
        let until = match &call {
            SysCall::Poll { timeout, .. } | SysCall::EpollWait { timeout, .. } if *timeout >= 0 => {
                Some(self.now + i64::from(*timeout) * 1000)
            }
            _ => None,
        };
        Operation { call, moved: 0, until }
    }
}

impl Target for Engine {
    fn now(&mut self) -> i64 {
        self.now
    }

    fn wait_until(&mut self, at: i64) {
        self.advance(Some(at), |_| false);
    }

    fn inject(&mut self, packet: &[u8]) -> Result<(), String> {
        let mut frames = Vec::new();
        let room = self.stack.pool().payload_room();
        let chunks: Vec<&[u8]> = packet.chunks(room).collect();
        for (i, bytes) in chunks.iter().enumerate() {
            let mut frame = self.stack.pool_mut().alloc().ok_or("no frame left for an injected packet")?;
            frame.grow_back(bytes.len());
            self.stack.pool_mut().bytes_mut(&mut frame).copy_from_slice(bytes);
            frame.set_more(i + 1 < chunks.len());
            frames.push(RxFrame { frame, iface: IFACE, checksum: RxChecksum::Unknown });
        }
        self.stack.set_now(self.instant(self.now));
        self.stack.rx_batch(&mut frames);
        self.turn();
        self.bug()
    }

    fn sniff(&mut self, deadline: Option<i64>) -> Result<Option<(i64, Vec<u8>)>, String> {
        if self.sent.is_empty() {
            self.advance(deadline, |engine| !engine.sent.is_empty());
        }
        self.bug()?;
        Ok(self.sent.pop_front())
    }

    fn call(&mut self, call: SysCall) -> Result<Outcome, String> {
        let aside = self.background.take();
        let mut operation = self.begin_operation(call);
        let deadline = self.now + CALL_MAX_US;
        self.stack.set_now(self.instant(self.now));
        let outcome = loop {
            if let Some(outcome) = self.attempt(&mut operation)? {
                break outcome;
            }
            if self.now >= deadline {
                return Err("the call does not return".into());
            }
            let until = operation.until.map_or(deadline, |u| u.min(deadline));
            let next = self.next().map_or(until, |n| n.max(self.now + 1).min(until));
            self.turn();
            self.bug()?;
            // The results of the turn come first.
            if let Some(outcome) = self.attempt(&mut operation)? {
                break outcome;
            }
            self.now = next.max(self.now);
            self.turn();
        };
        self.background = aside;
        self.turn();
        self.bug()?;
        Ok(outcome)
    }

    fn begin(&mut self, call: SysCall) -> Result<(), String> {
        let operation = self.begin_operation(call);
        self.background = Some(operation);
        self.turn();
        self.bug()
    }

    fn ended(&mut self, deadline: i64) -> Option<(i64, Outcome)> {
        if self.ended.is_none() && self.background.is_some() {
            self.advance(Some(deadline), |engine| engine.ended.is_some());
        }
        self.ended.take()
    }

    fn cookie(&mut self, local: IpAddr, remote: IpAddr) -> Option<Vec<u8>> {
        let key = FlowKey::new(SocketAddr::new(local, 0), SocketAddr::new(remote, 0))?;
        Some(self.stack.fast_open_cookie(&key).as_bytes().to_vec())
    }

    fn wall_time(&mut self, _seconds: i64, _nanos: i64) -> Option<i64> {
        None
    }

    fn command(&mut self, line: &str) -> Result<(), String> {
        self.run_command(line)?;
        self.turn();
        self.bug()
    }

    fn tcp_info(&mut self, fd: i32) -> Result<Vec<(&'static str, i64)>, String> {
        self.info_of(fd)
    }
}
