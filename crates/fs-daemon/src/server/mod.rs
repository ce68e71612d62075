//! The control thread: one epoll loop that serves all connections of processes. It owns the books (who is attached,
//! what they hold, who listens where); data never passes through it.
//!
//! What processes send is hostile: a record that makes no sense is answered with an error, and nothing that a process
//! does makes the loop wait (every call on its sockets and memory returns at once).

mod admin;
mod apart;
mod arenas;
mod attach;
mod capture;
mod cgroups;
mod commands;
mod connections;
mod directory;
mod events;
mod exec;
mod flows;
mod in_flight;
mod lent;
mod limits;
mod listen;
mod namespaces;
mod numbered;
mod place;
mod ports;
mod requests;
mod room;
mod route;
mod share;
mod strangers;
mod sweep;
mod waits;

use crate::bells::Pollers;
use crate::config::{Config, users};
use crate::counters::Counters;
use crate::joins::Joins;
use crate::listeners::Listeners;
use crate::owners::Owners;
use crate::sys::Alarm;
use crate::wire::Wire;
pub(crate) use arenas::ArenaMemory;
use arenas::Arenas;
use attach::Attachment;
use capture::Captures;
use cgroups::Cgroups;
use connections::Connections;
use directory::Directory;
use events::{Events, Token};
use fs_shm::Geometry;
use listen::ListenerMemory;
use namespaces::Namespaces;
use numbered::Numbered;
use place::DefaultOptions;
use ports::Port;
use rustix::event::Timespec;
use share::InTransit;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use strangers::Strangers;
use sweep::Schedule;

pub(crate) use commands::{Command, Commands};

/// What the close of a descriptor that a process has passed may take: its linger time is the process's to choose.
const LINGER: Duration = Duration::from_millis(2);

/// Everything that the control thread knows.
///
/// Each part keeps its own order; what concerns several of them is in `impl Server`, in the file of the part that it begins with.
pub(crate) struct Server {
    config: Config,
    joins: Joins,
    owners: Owners,
    cgroups: Cgroups,
    geometry: Geometry,
    directory: Directory,
    events: Events,
    control: OwnedFd,
    commands: Arc<Commands>,
    connections: Connections,
    attachments: Numbered<Attachment>,
    pollers: &'static Pollers,
    arenas: Arenas,
    listeners: Listeners<ListenerMemory>,
    namespaces: Namespaces,
    default_options: DefaultOptions,
    in_transit: InTransit,
    ports: Vec<Port>,
    strangers: Strangers,
    wire: Option<Arc<dyn Wire>>,
    counters: Counters,
    counted: Option<admin::Counted>,
    captures: Captures,
    schedule: Schedule,
    /// Listeners whose room is to be shared anew, and when.
    unshared: HashMap<u32, Instant>,
    /// The attachment that the next glance goes on with; 0: it is a new one.
    glanced_to: u32,
    /// Until when a drain may take.
    draining: Option<Instant>,
}

/// What the control thread starts with.
pub(crate) struct Start {
    pub(crate) config: Config,
    pub(crate) joins: Joins,
    pub(crate) geometry: Geometry,
    pub(crate) control: OwnedFd,
    pub(crate) commands: Arc<Commands>,
    pub(crate) pollers: &'static Pollers,
    pub(crate) wire: Option<Arc<dyn Wire>>,
}

impl Server {
    pub(crate) fn new(start: Start) -> io::Result<Self> {
        let Start { config, joins, geometry, control, commands, pollers, wire } = start;
        let events = Events::new()?;
        events.watch(control.as_fd(), Token::Control)?;
        events.watch(commands.wake(), Token::Wake)?;
        let mut server = Self {
            config,
            joins,
            owners: Owners::read(&users),
            cgroups: Cgroups::open(),
            geometry,
            directory: Directory::new()?,
            events,
            control,
            commands,
            connections: Connections::default(),
            // 1 is the daemon: the attachment that its own cores take locks as.
            attachments: Numbered::new(2..=u32::MAX),
            pollers,
            arenas: Arenas::default(),
            listeners: Listeners::default(),
            namespaces: Namespaces::new()?,
            default_options: DefaultOptions::new(),
            in_transit: InTransit::default(),
            ports: Vec::new(),
            strangers: Strangers::default(),
            wire,
            counters: Counters::default(),
            counted: None,
            captures: Captures::default(),
            schedule: Schedule::default(),
            unshared: HashMap::new(),
            glanced_to: 0,
            draining: None,
        };
        server.open_namespace(server.namespaces.own(), std::process::id());
        Ok(server)
    }

    /// Serves until it is told to end. Dropping the server closes every connection, which is how processes learn.
    pub(crate) fn run(self) -> io::Result<()> {
        let alarm = Alarm::new(LINGER)?;
        crate::sys::hold(self.directory.page().life());
        // Dropped before the alarm is, which goes on meanwhile.
        let mut server = self;
        server.serve_all(&alarm)
    }

    /// Whatever it closes on the way, for whomever, `alarm` bounds; it is armed when this returns.
    fn serve_all(&mut self, alarm: &Alarm) -> io::Result<()> {
        let mut tokens = Vec::new();
        loop {
            let timeout = self.timeout();
            alarm.disarm();
            self.events.wait(timeout.as_ref(), &mut tokens)?;
            alarm.arm();
            for &token in &tokens {
                match token {
                    Token::Control => self.accept(),
                    Token::Wake => {
                        for command in self.commands.take() {
                            if self.obey(command).is_break() {
                                return Ok(());
                            }
                        }
                    }
                    Token::Connection(id) => self.serve(id),
                    Token::Listener(id) => self.listens_no_more(id),
                    Token::Exec(attachment) => self.execs(attachment),
                    Token::Namespace(netns) => self.namespace_changed(netns),
                    Token::Firewall(netns) => self.rules_changed(netns),
                }
            }
            self.sweep_if_due();
            if self.draining.is_some_and(|until| Instant::now() >= until || self.is_quiet()) {
                return Ok(());
            }
        }
    }

    /// Until the next thing that has to be done by the clock; none: sleep until something happens.
    fn timeout(&self) -> Option<Timespec> {
        // A drain looks ten times a second whether all is done.
        let drain = self.draining.map(|until| until.min(Instant::now() + Duration::from_millis(100)));
        let at = self.schedule.next().into_iter().chain(drain).min()?;
        let left = at.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) })
    }

    fn obey(&mut self, command: Command) -> std::ops::ControlFlow<()> {
        match command {
            Command::Stop => return std::ops::ControlFlow::Break(()),
            Command::Drain(most) => {
                let until = Instant::now() + most;
                self.draining = Some(self.draining.map_or(until, |before| before.min(until)));
                self.directory.set_stopping();
                if let Some(wire) = &self.wire {
                    wire.leave();
                }
                tracing::info!(attachments = self.attachments.len(), "draining: new connections are the kernel's");
            }
            Command::Reload(config) => {
                let Config { firewall, open_flows, sharing, rules, policies, limits, device: _, drain: _, joins: _ } =
                    *config;
                let before = std::mem::take(&mut self.config);
                self.config = Config { firewall, open_flows, sharing, rules, policies, limits, ..before };
                self.owners = Owners::read(&users);
                self.heed_rules_everywhere();
                self.end_denied();
                // Ways that processes know are asked for anew.
                self.bump();
            }
            Command::ListenFailed { listener, errno } => self.listen_failed(listener, errno),
            Command::Trim { arena } => self.trim_soon(arena),
            // Who has asked may have given up.
            Command::Judge { arena, from, to, answer } => drop(answer.send(self.judge(arena, from, to))),
        }
        std::ops::ControlFlow::Continue(())
    }

    /// Root, and who runs the daemon, could do worse to it than ask for much.
    fn is_trusted(&self, uid: u32) -> bool {
        is_trusted(uid)
    }

    /// Whether a user may have one more of something, of which there may be `limit`, and are `all`: nobody can use up all, and all
    /// together not what root may need. Nor the descriptors, which may be fewer than all limits together take.
    fn has_room(&self, uid: u32, limit: usize, all: usize, theirs: impl FnOnce() -> usize) -> bool {
        let is_room = || all < limit - limit / 16 && theirs() < share_of(limit);
        self.is_trusted(uid) || is_room() && !self.events.are_descriptors_scarce()
    }

    /// Numbers of one user's.
    fn is_one_user(&self, one: u32, other: u32) -> bool {
        one == other || self.owners.of(one) == self.owners.of(other)
    }

    /// Whatever was answered before is asked anew.
    fn bump(&self) {
        self.directory.bump();
        self.commands.bump();
    }
}

impl Drop for Server {
    /// The cores end with the books: closed connections send what they still hold, for a second at most.
    fn drop(&mut self) {
        if let Some(wire) = &self.wire {
            wire.shut_down(Duration::from_secs(1));
        }
    }
}

/// What one user may have of a limit.
fn share_of(limit: usize) -> usize {
    limit.div_ceil(2)
}

/// See [`Server::is_trusted`].
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}
