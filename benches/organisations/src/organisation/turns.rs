//! A core's turn in each threading model.

use super::*;

impl Worker {
    /// Runs a turn without locks and messages: the instance belongs to this core.
    pub(super) fn turn_alone(&mut self, now: Instant) -> bool {
        let Some(shard) = &mut self.own else { return false };
        let worked = !self.batch.is_empty() || !self.served.is_empty();
        self.counters.packets_in += shard.receive(self.batch.all(), now, &mut self.served);
        for ready in self.served.drain(..) {
            shard.serve(ready, &mut self.buffer);
        }
        shard.transmit(&mut self.sent);
        self.wire.came(&self.sent, &mut self.counters);
        self.sent.clear();
        worked
    }

    /// Runs a turn packet by packet. Holds the table's lock until it has the connection's, as
    /// FreeBSD does. Each call of the application takes the connection's lock again.
    pub(super) fn turn_msgp(&mut self, shared: &Shared, now: Instant) -> bool {
        let batch = std::mem::take(&mut self.batch);
        for run in batch.singly() {
            let Some((flow, bytes)) = run.iter().next() else { continue };
            let table = shared.table.take(&mut self.counters);
            let Some(&place) = table.get(&key_of(bytes)) else { continue };
            let mut shard = shared.shards[place as usize].take(&mut self.counters);
            drop(table);
            debug_assert_eq!(place as usize, shared.group(flow));
            touch(&mut shard, self.core, &mut self.counters);
            self.counters.packets_in += shard.receive(run, now, &mut self.ready);
            shard.transmit(&mut self.sent);
            shared.arm(place, &mut shard, &mut self.counters);
            drop(shard);
            shared.deliver(self.core, &mut self.sent, &mut self.ready, &mut self.counters);
        }
        let mut worked = !batch.is_empty();
        self.batch = batch;
        self.take_sockets(shared);
        for ready in std::mem::take(&mut self.served) {
            worked = true;
            let place = shared.group(ready.flow);
            let mut shard = shared.shards[place].take(&mut self.counters);
            touch(&mut shard, self.core, &mut self.counters);
            shard.serve(ready, &mut self.buffer);
            shard.transmit(&mut self.sent);
            shared.arm(place as u32, &mut shard, &mut self.counters);
            drop(shard);
            shared.deliver(self.core, &mut self.sent, &mut self.ready, &mut self.counters);
        }
        let mut due = Vec::new();
        {
            let mut timers = shared.timers.take(&mut self.counters);
            while let Some(&(at, place)) = timers.first()
                && at <= now
            {
                timers.pop_first();
                due.push(place);
            }
        }
        for place in due {
            let mut shard = shared.shards[place as usize].take(&mut self.counters);
            touch(&mut shard, self.core, &mut self.counters);
            shard.armed = None;
            shard.tick(now, &mut self.ready);
            shard.transmit(&mut self.sent);
            shared.arm(place, &mut shard, &mut self.counters);
            drop(shard);
            shared.deliver(self.core, &mut self.sent, &mut self.ready, &mut self.counters);
        }
        worked
    }

    /// Runs a turn with one lock per group and batch, also for the application's calls, so that
    /// batching is equal in all models.
    pub(super) fn turn_locked(&mut self, shared: &Shared, now: Instant) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        batch.sort_by_key(|flow| shared.group(flow));
        for (group, run) in batch.runs(|flow| shared.group(flow)) {
            let mut shard = shared.shards[group].take(&mut self.counters);
            touch(&mut shard, self.core, &mut self.counters);
            self.counters.packets_in += shard.receive(run, now, &mut self.ready);
            shard.transmit(&mut self.sent);
            drop(shard);
            shared.deliver(self.core, &mut self.sent, &mut self.ready, &mut self.counters);
        }
        let mut worked = !batch.is_empty();
        self.batch = batch;
        self.take_sockets(shared);
        let mut served = std::mem::take(&mut self.served);
        served.sort_by_key(|ready| shared.group(ready.flow));
        for run in served.chunk_by(|a, b| shared.group(a.flow) == shared.group(b.flow)) {
            worked = true;
            let mut shard = shared.shards[shared.group(run[0].flow)].take(&mut self.counters);
            touch(&mut shard, self.core, &mut self.counters);
            for &ready in run {
                shard.serve(ready, &mut self.buffer);
            }
            shard.transmit(&mut self.sent);
            drop(shard);
            shared.deliver(self.core, &mut self.sent, &mut self.ready, &mut self.counters);
        }
        served.clear();
        self.served = served;
        // Runs the timers of groups without recent packets.
        if self.counters.turns.is_multiple_of(1024) {
            for group in (self.core..shared.shards.len()).step_by(shared.cores) {
                let mut shard = shared.shards[group].take(&mut self.counters);
                shard.tick(now, &mut self.ready);
                shard.transmit(&mut self.sent);
                drop(shard);
                shared.deliver(self.core, &mut self.sent, &mut self.ready, &mut self.counters);
            }
        }
        worked
    }

    /// Runs a turn that sends packets and calls to the connection's protocol thread as messages.
    pub(super) fn turn_messages(&mut self, shared: &Shared) -> bool {
        let mut worked = !self.batch.is_empty();
        self.batch.sort_by_key(|flow| shared.group(flow));
        for (group, run) in self.batch.runs(|flow| shared.group(flow)) {
            let mut packets = Batch::default();
            run.iter().for_each(|(flow, bytes)| packets.push(flow, bytes));
            shared.send_message(group, Message::Packets(packets), &mut self.counters);
        }
        self.take_sockets(shared);
        let mut served = std::mem::take(&mut self.served);
        served.sort_by_key(|ready| shared.group(ready.flow));
        for run in served.chunk_by(|a, b| shared.group(a.flow) == shared.group(b.flow)) {
            worked = true;
            shared.send_message(shared.group(run[0].flow), Message::Calls(run.to_vec()), &mut self.counters);
        }
        served.clear();
        self.served = served;
        worked
    }

    pub(super) fn take_sockets(&mut self, shared: &Shared) {
        let mut sockets = shared.sockets[self.core].take(&mut self.counters);
        std::mem::swap(&mut *sockets, &mut self.served);
    }
}
