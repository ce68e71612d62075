//! Arenas that are looked at: those that have lost a side live until their last connection has ended; and what a process left
//! behind that ended in the middle of a change is put right.

use super::Server;
use super::arenas::{Acceptor, Opener};
use super::attach::Attachment;
use fs_shm::{Arena, Bells, Channel, Side};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The first look after something went; each later one waits twice as long, up to `SLOWEST`.
const FIRST: Duration = Duration::from_millis(50);
const SLOWEST: Duration = Duration::from_secs(5);
/// Between two rounds of looks: what is due meanwhile is looked at in one.
pub(super) const ROUND: Duration = Duration::from_millis(10);

/// The same for what is on its way between processes: its peer waits this long for the end when the message was thrown away.
const SHARED: Duration = Duration::from_secs(1);

/// How long after the first that was freed memory goes back. Shorter: what is used again and again is given back and asked for anew.
/// Longer: other programs lack it.
const TRIM: Duration = Duration::from_secs(1);

/// The same for ports that connections keep in use: so much later others than preloaded processes can bind them.
const PORT: Duration = Duration::from_secs(1);

/// When something is looked at next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    at: Instant,
    pause: Duration,
}

impl Look {
    /// A look that is due soon, or as soon as it was.
    fn soon(before: Option<Self>) -> Self {
        let at = Instant::now() + FIRST;
        Look { at: before.map_or(at, |look| look.at.min(at)), pause: FIRST }
    }

    /// The look after one at `now`.
    fn next(self, now: Instant, slowest: Duration) -> Self {
        let pause = (self.pause * 2).min(slowest);
        Look { at: now + pause, pause }
    }
}

/// When the control thread looks at what nobody tells of.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// When the next of all is due: of those below, and of those that the entries of the tables have.
    next: Option<Instant>,
    shares: Option<Look>,
    ports: Option<Look>,
    glance: Option<Instant>,
}

impl Schedule {
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Something has to be looked at by then.
    fn by(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |before| before.min(at)));
    }

    /// `false`: nothing is due yet. Else who asks looks at all that is, and says what is due next.
    fn take(&mut self, now: Instant) -> bool {
        self.next.take_if(|at| *at <= now).is_some()
    }

    fn shares_soon(&mut self) {
        let look = Look::soon(self.shares);
        self.shares = Some(look);
        self.by(look.at);
    }

    fn ports_soon(&mut self) {
        let look = Look { at: Instant::now() + ROUND, pause: ROUND };
        self.ports = Some(look);
        self.by(look.at);
    }

    /// The first one, if none is under way.
    pub(super) fn glance_by(&mut self, at: Instant) {
        if self.glance.is_none() {
            self.glance = Some(at);
            self.by(at);
        }
    }

    pub(super) fn is_glance_due(&self, now: Instant) -> bool {
        self.glance.is_some_and(|at| at <= now)
    }

    /// After one: when the next one is.
    pub(super) fn set_glance(&mut self, at: Option<Instant>) {
        self.glance = at;
    }

    pub(super) fn glance(&self) -> Option<Instant> {
        self.glance
    }
}

/// How often a look begins anew because a process has changed something meanwhile.
const TRIES: u32 = 16;

/// References to the sides of channels of one arena, as pages and shares have them.
type Held = HashMap<(u32, Side), u32>;

impl Server {
    /// Looks at an arena from now on: a process that took part in it has gone.
    pub(super) fn look_soon(&mut self, id: u32) {
        let Some(entry) = self.arenas.get_mut(id) else { return };
        let look = Look::soon(entry.look);
        entry.look = Some(look);
        self.sweep_at(look.at);
    }

    /// Looks after what is on its way between processes from now on.
    pub(super) fn look_at_shares_soon(&mut self) {
        self.schedule.shares_soon();
    }

    /// Something was freed in an arena: its memory goes back.
    pub(super) fn trim_soon(&mut self, id: u32) {
        let Some(entry) = self.arenas.get_mut(id) else { return };
        let soon = Instant::now() + TRIM;
        // One for ports alone may be later.
        let at = entry.trim.map_or(soon, |at| at.min(soon));
        entry.trim = Some(at);
        self.sweep_at(at);
    }

    fn trim(&mut self, id: u32, now: Instant) {
        let more = self.map(id, Side::A).is_some_and(|arena| arena.trim());
        let ports = self.trim_ports(id, now);
        if let Some(entry) = self.arenas.get_mut(id) {
            entry.trim = more.then(|| now + ROUND).into_iter().chain(ports).min();
        }
    }

    /// Looks after ports that connections keep in use from now on.
    pub(super) fn look_at_ports_soon(&mut self) {
        self.schedule.ports_soon();
    }

    /// Something has to be looked at by then.
    pub(super) fn sweep_at(&mut self, at: Instant) {
        self.schedule.by(at);
    }

    pub(super) fn sweep_if_due(&mut self) {
        let now = Instant::now();
        if !self.schedule.take(now) {
            return;
        }
        let is_due = |look: Option<Look>| look.is_some_and(|look| look.at <= now);
        if is_due(self.schedule.shares) {
            let again = self.expire_shares(now);
            self.schedule.shares = self.schedule.shares.filter(|_| again).map(|look| look.next(now, SHARED));
        }
        if is_due(self.schedule.ports) {
            let again = self.see_to_all_ports();
            self.schedule.ports = self.schedule.ports.filter(|_| again).map(|look| look.next(now, PORT));
        }
        for id in self.arenas.ids_where(|entry| is_due(entry.look)) {
            let again = self.look_at(id);
            let Some(entry) = self.arenas.get_mut(id) else { continue };
            entry.look = entry.look.filter(|_| again).map(|look| look.next(now, SLOWEST));
        }
        self.see_to_due(now);
        let unshared = self.share_put_off(now);
        let suspended = self.see_to_suspended(now);
        let late = self.see_to_late(now);
        let glance = self.glance_if_due(now);
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        for id in self.arenas.ids_where(|entry| is_due(entry.trim)) {
            self.trim(id, now);
        }
        self.give_rings_back();
        let looks = self
            .arenas
            .values()
            .filter_map(|entry| entry.look)
            .chain(self.schedule.shares)
            .chain(self.schedule.ports)
            .map(|look| look.at);
        let trims = self.arenas.values().filter_map(|entry| entry.trim);
        let dues = self.attachments.values().filter_map(|attachment| attachment.due);
        if let Some(next) =
            looks.chain(trims).chain(dues).chain(unshared).chain(suspended).chain(late).chain(glance).min()
        {
            self.sweep_at(next.max(now + ROUND));
        }
    }

    /// Answers [`fs_shm::control::Request::Due`], which has no answer.
    pub(super) fn record_due(&mut self, connection: u64, after: u32) {
        self.counters.requests += 1;
        let me = self.connections.attachment(connection);
        let Some(attachment) = me.and_then(|me| self.attachments.get_mut(me)) else { return };
        let at = Instant::now() + Duration::from_millis(after.into());
        attachment.promise(at);
        self.sweep_at(at);
    }

    /// Sees to connections for which a process has set a time.
    fn see_to_due(&mut self, now: Instant) {
        let is_due = |attachment: &Attachment| attachment.due.is_some_and(|at| at <= now);
        for id in self.attachments.ids_where(is_due) {
            let held = self.attachments.get(id).map(Attachment::channels).unwrap_or_default();
            let mut next = None;
            for (number, channels) in held {
                for side in [Side::A, Side::B] {
                    let mut slots = channels.iter().filter(|(_, of)| *of == side).peekable();
                    let Some(arena) = slots.peek().and_then(|_| self.map(number, side)) else { continue };
                    let now = fs_shm::channel::now();
                    let left = slots.filter_map(|&(slot, _)| Channel::at(&arena, slot)?.see_to(now));
                    next = next.into_iter().chain(left.min()).min();
                }
            }
            if let Some(attachment) = self.attachments.get_mut(id) {
                let next = next.map(|left| now + Duration::from_nanos(left));
                attachment.due = next.into_iter().chain(attachment.keep_promises(now)).min();
            }
        }
    }

    /// `true`: it has to be looked at again.
    fn look_at(&mut self, id: u32) -> bool {
        let Some(arena) = self.map(id, Side::B) else { return true };
        let Some(entry) = self.arenas.get(id) else { return false };
        let is_dying = entry.is_dying();
        let stopped = entry.stopped;
        if entry.acceptor.is_none() && !entry.is_emptied {
            // An opener may have pushed after the listener closed.
            arena.refuse_pending();
        }
        if stopped {
            // Or have written over what ended its connections.
            self.reset_flows(id);
        }
        let is_right = self.reconcile(id, &arena) & arena.reclaim_larges();
        self.tell_ends(&arena);
        let Some(entry) = self.arenas.get(id) else { return false };
        // What waits in an inbox belongs to the listener, whoever has opened it.
        let is_nobodys =
            || entry.listener().is_none() && entry.members.is_empty() && !entry.wire && !self.is_any_shared(id);
        if is_dying && (arena.used() == 0 || is_nobodys()) {
            self.forget_arena(id);
            return false;
        }
        if arena.is_trim_asked() {
            self.trim_soon(id);
        }
        is_dying || !is_right
    }

    /// Puts right what a process left behind that ended between two steps: a side is closed when nobody has a descriptor of it,
    /// and a slot is free that nobody opens or will accept. `false`: it cannot be told now, as a process that lives is in the
    /// middle of a change.
    fn reconcile(&mut self, id: u32, arena: &Arena) -> bool {
        let Some(other) = self.map(id, Side::A) else { return false };
        for round in 0..TRIES {
            let before = self.changes(id);
            if before.is_none() && round > 0 {
                std::thread::yield_now();
                continue;
            }
            let held = self.held(id);
            let Some(entry) = self.arenas.get(id) else { return true };
            let is_core = |side| match side {
                Side::A => matches!(entry.of.0, Opener::Core(_)),
                Side::B => matches!(entry.of.1, Acceptor::Core(_)),
            };
            let mut extra = Vec::new();
            let mut free = Vec::new();
            for slot in arena.used_slots() {
                let Some(channel) = Channel::at(arena, slot) else {
                    free.push(slot);
                    continue;
                };
                let Some(state) = channel.state() else { continue };
                for (side, mapped) in [(Side::A, &*other), (Side::B, arena)] {
                    let Some(channel) = Channel::with_generation(mapped, slot, channel.generation()) else { continue };
                    if is_core(side) || state.is_closed(side) {
                        continue;
                    }
                    if side == Side::B && !state.is_accepted() {
                        // Its opener ended before it was in the inbox.
                        if entry.opener.is_none() && !arena.has_entry(slot, channel.generation()) {
                            extra.push((channel, u32::MAX));
                        }
                        continue;
                    }
                    let (has, should) = (channel.refs(), held.get(&(slot, side)).copied().unwrap_or(0));
                    if should == 0 {
                        extra.push((channel, u32::MAX));
                    } else if has > should {
                        extra.push((channel, has - should));
                    }
                }
            }
            if extra.is_empty() && free.is_empty() {
                return true;
            }
            if before.is_none() || before != self.changes(id) {
                std::thread::yield_now();
                continue;
            }
            for (channel, references) in extra {
                channel.release_gone(references, false);
            }
            free.into_iter().for_each(|slot| arena.give_back_slot(slot));
            return true;
        }
        false
    }

    /// Wakes the peers of sides that are closed, where nothing says that they were told: who closed them may have ended before he did.
    fn tell_ends(&self, arena: &Arena) {
        let mut any = false;
        for channel in arena.used_slots().filter_map(|slot| Channel::at(arena, slot)) {
            any |= channel.tell_end();
        }
        if any {
            let pollers = [Side::A, Side::B].into_iter().flat_map(|side| arena.pollers(side));
            pollers.for_each(|poller| self.pollers.ring(poller));
        }
    }

    /// The changes that all who take part in an arena have begun; `None`: one is in the middle of some.
    fn changes(&self, id: u32) -> Option<Vec<u32>> {
        let members = self.arenas.get(id)?.members.iter();
        members.filter_map(|member| self.attachments.get(*member)).map(|member| member.page.unchanged_since()).collect()
    }

    fn held(&self, id: u32) -> Held {
        let mut held = Held::new();
        let Some(entry) = self.arenas.get(id) else { return held };
        for member in entry.members.iter().filter_map(|member| self.attachments.get(*member)) {
            for &(slot, side) in member.channels().get(&id).into_iter().flatten() {
                *held.entry((slot, side)).or_default() += 1;
            }
        }
        for (slot, side) in self.shared_of(id) {
            *held.entry((slot, side)).or_default() += 1;
        }
        held
    }

    /// Nothing is connected any more, and what closed connections had to send has gone.
    pub(super) fn is_quiet(&self) -> bool {
        if self.wire.as_ref().is_some_and(|wire| wire.connections() > 0) {
            return false;
        }
        !self.arenas.iter().any(|(id, _)| self.map(id, Side::A).is_some_and(|arena| arena.used() > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_look_is_the_earliest() {
        let mut schedule = Schedule::default();
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        assert!(schedule.next().is_none() && !schedule.take(now));
        schedule.by(at(20));
        schedule.by(at(30));
        schedule.glance_by(at(10));
        schedule.glance_by(at(5));
        assert_eq!((schedule.next(), schedule.glance()), (Some(at(10)), Some(at(10))), "one glance is under way");
        assert!(!schedule.take(at(9)) && schedule.next().is_some());
        assert!(schedule.is_glance_due(at(10)) && schedule.take(at(10)) && schedule.next().is_none());
    }

    #[test]
    fn each_look_waits_twice_as_long_up_to_a_bound() {
        let now = Instant::now();
        let first = Look::soon(None);
        assert!(Look::soon(Some(first)).at <= first.at, "not later than it was due");
        let mut look = first;
        let pauses: Vec<u128> = std::iter::repeat_with(|| {
            look = look.next(now, Duration::from_millis(300));
            look.pause.as_millis()
        })
        .take(4)
        .collect();
        assert_eq!(pauses, [100, 200, 300, 300]);
    }
}
