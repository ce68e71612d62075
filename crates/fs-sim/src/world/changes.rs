//! Changes while the world runs.

use super::*;

impl World {
    pub(super) fn change(&mut self, change: Change) {
        match change {
            Change::Link(at, change) => {
                let link = match at {
                    LinkAt::Host(host) => host,
                    LinkAt::Pipe(pipe) => self.hosts.len() + pipe,
                };
                change.apply(&mut self.links[link].config);
            }
            Change::Host(host, change) => self.change_host(host, change),
        }
    }

    fn change_host(&mut self, number: usize, change: HostChange) {
        let now = self.now;
        let host = &mut self.hosts[number];
        match change {
            HostChange::ClockJump(by) => {
                host.clock.jump(by);
                self.turn_all(number, now);
            }
            HostChange::ClockStall(for_) => {
                host.clock.stall(now, now + for_);
                self.schedule(for_, Action::Relieve { host: number });
            }
            HostChange::Pause(for_) => {
                host.paused_until = host.paused_until.max(now + for_);
                self.schedule(for_, Action::Relieve { host: number });
            }
            HostChange::Squeeze(chunks, for_) => {
                for shard in &mut host.shards {
                    shard.stack.pool_mut().squeeze(chunks);
                }
                self.schedule(for_, Action::Relieve { host: number });
            }
            HostChange::Unlisten(for_) => {
                let shard = &mut host.shards[0];
                if shard.listeners.is_empty() {
                    return;
                }
                for listener in shard.listeners.drain(..) {
                    shard.stack.tcp_close_listener(listener.id);
                }
                self.turn_by(number, 0, now);
                self.schedule(for_, Action::Listen { host: number, core: 0 });
            }
        }
    }

    /// Ends a stall, a pause or a squeeze.
    pub(super) fn relieve(&mut self, number: usize) {
        let now = self.now;
        let host = &mut self.hosts[number];
        host.clock.go_on(now);
        for shard in &mut host.shards {
            shard.stack.pool_mut().release();
        }
        self.turn_all(number, now);
    }

    fn turn_all(&mut self, host: usize, at: Instant) {
        for core in 0..self.hosts[host].shards.len() {
            self.turn_by(host, core, at);
        }
    }
}
