//! A core's view of its arenas: which connections have changed, and sleeping until one does.
//!
//! One poller for each core, with a lane in each arena. The lanes are looked at in each of the core's turns, without a
//! system call; before the core sleeps they are told to ring its eventfd, as any process's are.

use super::bells::Later;
use fs_rt::Source;
use fs_shm::lanes::Lane;
use fs_shm::{Arena, Channel, Side};
use std::cell::RefCell;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::Waker;

/// An arena on a core.
pub(super) struct CoreArena {
    pub(super) id: u32,
    pub(super) arena: Arena,
    lane: Lane,
    /// The tasks of its connections, by slot.
    tasks: RefCell<Vec<Option<Waker>>>,
    pub(super) allowed: RefCell<Allowed>,
}

/// Connections that the control thread has allowed the arena's process.
#[derive(Debug, Default)]
pub(super) struct Allowed {
    generation: u64,
    to: HashSet<(Option<IpAddr>, SocketAddr)>,
}

impl Allowed {
    /// More than these are asked for again: their memory is the process's to use up.
    const MOST: usize = 4096;

    pub(super) fn has(&self, generation: u64, from: Option<IpAddr>, to: SocketAddr) -> bool {
        self.generation == generation && self.to.contains(&(from, to))
    }

    /// Notes an answer to what was asked in that generation.
    pub(super) fn add(&mut self, generation: u64, from: Option<IpAddr>, to: SocketAddr) {
        if self.generation != generation || self.to.len() >= Self::MOST {
            self.to.clear();
            self.generation = generation;
        }
        self.to.insert((from, to));
    }
}

impl CoreArena {
    /// `None`: it has no lane left (a process took all of them).
    pub(super) fn new(id: u32, arena: Arena, poller: u32) -> Option<Rc<Self>> {
        let lane = arena.join(poller)?;
        if arena.side() == Side::B {
            arena.watch_inbox(lane, true);
        }
        Some(Rc::new(Self { id, arena, lane, tasks: RefCell::default(), allowed: RefCell::default() }))
    }

    /// The task of a connection is woken whenever the connection changes, from here on.
    pub(super) fn watch(&self, channel: &Channel<'_>, waker: &Waker) {
        let mut tasks = self.tasks.borrow_mut();
        let slot = channel.slot() as usize;
        if tasks.len() <= slot {
            tasks.resize(slot + 1, None);
        }
        match &mut tasks[slot] {
            Some(known) => known.clone_from(waker),
            none => {
                *none = Some(waker.clone());
                channel.watch(self.lane);
            }
        }
    }

    /// The connection's task has ended.
    pub(super) fn forget(&self, channel: &Channel<'_>) {
        let waker = self.tasks.borrow_mut().get_mut(channel.slot() as usize).and_then(Option::take);
        if waker.is_some() {
            channel.unwatch(self.lane);
        }
    }

    /// Wakes the tasks of connections that have changed; answers whether there were any.
    fn look(&self) -> bool {
        if !self.arena.is_dirty(self.lane) {
            return false;
        }
        self.arena.drain(self.lane, |slot| {
            if let Some(Some(waker)) = self.tasks.borrow().get(slot as usize) {
                waker.wake_by_ref();
            }
        });
        true
    }
}

impl Drop for CoreArena {
    fn drop(&mut self) {
        self.arena.leave(self.lane);
    }
}

/// What is done with a connection that a process opens.
type Opened = dyn Fn(&Rc<CoreArena>, Channel<'_>);

/// A core's poller: what its arenas bring.
pub(super) struct Poller {
    arenas: RefCell<Vec<Rc<CoreArena>>>,
    opened: Box<Opened>,
    bells: &'static Later,
}

impl Poller {
    /// `opened` gets every connection that a process opens.
    pub(super) fn new(bells: &'static Later, opened: impl Fn(&Rc<CoreArena>, Channel<'_>) + 'static) -> Self {
        Self { arenas: RefCell::default(), opened: Box::new(opened), bells }
    }

    /// Watched from the core's next turn on. To be called in a task of the core.
    pub(super) fn add(&self, arena: Rc<CoreArena>) {
        self.arenas.borrow_mut().push(arena);
    }

    pub(super) fn remove(&self, id: u32) {
        // Dropped after the borrow: its lane is left then.
        let gone: Vec<_> = self.arenas.borrow_mut().extract_if(.., |arena| arena.id == id).collect();
        drop(gone);
    }
}

impl Source for Poller {
    #[inline]
    fn look(&self) -> usize {
        self.bells.ring_due();
        let mut work = 0;
        for home in self.arenas.borrow().iter() {
            work += usize::from(home.look());
            if home.arena.side() == Side::B {
                // As many as wait now; more in the next turn.
                for _ in 0..home.arena.pending() {
                    let Some(channel) = Channel::accept(&home.arena) else { break };
                    (self.opened)(home, channel);
                    work += 1;
                }
            }
        }
        work
    }

    fn prepare_sleep(&self) -> bool {
        self.arenas.borrow().iter().all(|home| home.arena.prepare_sleep(home.lane))
    }

    fn awake(&self) {
        self.arenas.borrow().iter().for_each(|home| home.arena.awake(home.lane));
    }
}
