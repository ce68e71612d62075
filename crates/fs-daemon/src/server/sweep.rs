//! Arenas whose opener or listener is gone: they live until their last connection has ended.

use super::Server;
use super::arenas::{Acceptor, Opener};
use fs_shm::channel::state::State;
use fs_shm::control::Object;
use fs_shm::{Channel, Side};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// The first look after something went; each later one waits twice as long, up to `SLOWEST`.
const FIRST: Duration = Duration::from_millis(50);
const SLOWEST: Duration = Duration::from_secs(5);

/// Looks in a row that find a connection unheld before it is closed: who has just accepted or claimed it writes it down
/// within microseconds, but may be stopped in between.
const PATIENCE: u8 = 4;

impl Server {
    /// Looks after dying arenas and unclaimed shares from now on.
    pub(super) fn sweep_soon(&mut self) {
        let at = Instant::now() + FIRST;
        if self.sweep.is_none_or(|(before, _)| at < before) {
            self.sweep = Some((at, FIRST));
        }
    }

    pub(super) fn sweep_if_due(&mut self) {
        let now = Instant::now();
        let Some((_, pause)) = self.sweep.filter(|(at, _)| *at <= now) else { return };
        let mut left = self.expire_shares(now);
        let dying: Vec<u32> = self.arenas.iter().filter(|(_, entry)| entry.is_dying()).map(|(&id, _)| id).collect();
        for id in dying {
            left |= !self.sweep_arena(id);
        }
        let pause = (pause * 2).min(SLOWEST);
        self.sweep = left.then_some((now + pause, pause));
    }

    /// `true`: the arena is over and forgotten.
    fn sweep_arena(&mut self, id: u32) -> bool {
        let Some(arena) = self.map(id, Side::B) else { return false };
        let Some(entry) = self.arenas.get(&id) else { return true };
        if entry.acceptor.is_none() {
            // An opener may have pushed after the listener closed.
            arena.refuse_pending();
        }
        let slots: Vec<u32> = arena.used_slots().collect();
        if slots.is_empty() || entry.members.is_empty() && !entry.wire {
            self.forget_arena(id);
            return true;
        }
        self.close_unheld(id, &slots);
        false
    }

    /// Closes the sides of connections that no process holds: of one that died between accept and writing it down.
    fn close_unheld(&mut self, id: u32, slots: &[u32]) {
        let Some(entry) = self.arenas.get(&id) else { return };
        let mut held: HashSet<(u32, Side)> = HashSet::new();
        for member in entry.members.iter().filter_map(|member| self.attachments.get(member)) {
            held.extend(member.channels().get(&id).into_iter().flatten());
        }
        let is_core = |side| match side {
            Side::A => matches!(entry.opener, Some(Opener::Core(_))),
            Side::B => matches!(entry.acceptor, Some(Acceptor::Core(_))),
        };
        let mut unheld = Vec::new();
        for side in [Side::A, Side::B].into_iter().filter(|&side| !is_core(side)) {
            let Some(mapped) = self.map(id, side) else { return };
            for &slot in slots.iter().filter(|&&slot| !held.contains(&(slot, side))) {
                let state = Channel::at(&mapped, slot).and_then(|channel| channel.state());
                // What waits for accept is nobody's yet.
                let waits = |state: State| side == Side::B && !state.is_accepted();
                let open = state.is_some_and(|state| !state.is_closed(side) && !waits(state));
                if open && !self.is_shared(Object::Channel { arena: id, slot, side }) {
                    unheld.push((slot, side));
                }
            }
        }
        let Some(entry) = self.arenas.get_mut(&id) else { return };
        entry.unheld = if unheld.is_empty() { 0 } else { entry.unheld.saturating_add(1) };
        if entry.unheld < PATIENCE {
            return;
        }
        for (slot, side) in unheld {
            if let Some(mapped) = self.map(id, side)
                && let Some(channel) = Channel::at(&mapped, slot)
            {
                channel.abort_dead(None);
            }
        }
    }

    /// Nothing is connected any more, and what closed connections had to send has gone.
    pub(super) fn is_quiet(&self) -> bool {
        if self.wire.as_ref().is_some_and(|wire| wire.connections() > 0) {
            return false;
        }
        !self.arenas.keys().any(|&id| self.map(id, Side::A).is_some_and(|arena| arena.used() > 0))
    }
}
