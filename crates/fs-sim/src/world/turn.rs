//! A core's turn: the engine's calls in the documented order, and the applications that its events
//! drive.

use super::*;

impl World {
    /// Runs one turn of a core's loop, in the order that the engine documents.
    pub(super) fn turn(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        let now = self.hosts[host].clock.local(self.now);
        let shard = &mut self.hosts[host].shards[core];
        shard.turns += 1;
        shard.stack.set_now(now);
        let mut idle = shard.mailbox.is_empty() && shard.rx.is_empty();
        while let Some(message) = shard.mailbox.pop_front() {
            shard.stack.deliver(message);
        }
        let mut rx = core::mem::take(&mut shard.rx);
        if self.config.one_by_one {
            self.receive_one_by_one(host, core, &mut rx)?;
        }
        let shard = &mut self.hosts[host].shards[core];
        shard.stack.rx_batch(&mut rx);
        if !rx.is_empty() {
            return self.fail(format!("rx_batch left {} frames", rx.len()));
        }
        shard.rx = rx;
        shard.stack.tick();
        self.observe(host, core)?;
        idle &= !self.events(host, core)?;
        let before = self.packets;
        self.transmit(host, core)?;
        self.check_waits(host, core)?;
        if self.events(host, core)? {
            // Sending made space. A core polls again after a turn that did something.
            self.turn_by(host, core, self.now + Duration::from_micros(1));
        }
        self.idle_turns += u64::from(idle && self.packets == before);
        self.messages(host, core)?;
        if self.hosts[host].shards[core].turns.is_multiple_of(SWEEP_TURNS) {
            self.sweep(host, core)?;
        }
        self.next_turn(host, core)
    }

    fn receive_one_by_one(&mut self, host: usize, core: usize, rx: &mut Vec<RxFrame>) -> Result<(), Failure> {
        while !rx.is_empty() {
            let len = rx.iter().position(|part| !part.frame.more()).map_or(rx.len(), |last| last + 1);
            let mut packet = rx.drain(..len).collect();
            self.hosts[host].shards[core].stack.rx_batch(&mut packet);
            self.observe(host, core)?;
        }
        Ok(())
    }

    pub(super) fn next_turn(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        let Host { shards, clock, .. } = &mut self.hosts[host];
        let shard = &mut shards[core];
        let Some(deadline) = shard.stack.next_deadline() else { return Ok(()) };
        if deadline > clock.local(self.now) {
            shard.spins = 0;
            let at = clock.when(deadline);
            self.turn_by(host, core, at);
            return Ok(());
        }
        shard.spins += 1;
        if shard.spins > SPINS_MAX {
            return self.fail(format!("host {host} core {core} spins: deadline {deadline:?} is never dealt with"));
        }
        self.turn_by(host, core, self.now + Duration::from_micros(1));
        Ok(())
    }

    /// Runs applications until there are no more events. Returns false if there were none.
    pub(super) fn events(&mut self, host: usize, core: usize) -> Result<bool, Failure> {
        let mut any = false;
        loop {
            let shard = &mut self.hosts[host].shards[core];
            let mut events = core::mem::take(&mut shard.events);
            shard.stack.drain_events(&mut events);
            if events.is_empty() {
                shard.events = events;
                return Ok(any);
            }
            any = true;
            for &event in &events {
                self.event(host, core, event)?;
            }
            events.clear();
            self.hosts[host].shards[core].events = events;
        }
    }

    pub(super) fn event(&mut self, host: usize, core: usize, event: Event) -> Result<(), Failure> {
        let shard = &mut self.hosts[host].shards[core];
        match event {
            Event::Tcp(id, ready) => {
                if ready == Ready(0) {
                    return self.fail(format!("an event of {id:?} that says nothing"));
                }
                // `None` if an earlier event of the batch has closed the connection, or if it is
                // not accepted yet.
                if let Some(conn) = shard.conn(id) {
                    conn.event(ready);
                    if !conn.pausing {
                        self.run_conn(host, core, id)?;
                    }
                }
            }
            Event::Accept(id) => {
                let Some(listener) = shard.listeners.iter_mut().find(|l| l.id == id) else {
                    return self.fail(format!("accept event of {id:?}, which has no owner"));
                };
                listener.ready = true;
                self.accept(host, core)?;
            }
            Event::Udp(id, _) => return self.fail(format!("event of {id:?}, which has no owner")),
            Event::NeighbourNeeded(_, addr) => {
                let wait = self.rng.duration(Duration::from_micros(10), Duration::from_millis(2));
                self.schedule(wait, Action::Resolved { host, addr });
            }
        }
        Ok(())
    }

    pub(super) fn accept(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        for listener in 0..self.hosts[host].shards[core].listeners.len() {
            while self.hosts[host].shards[core].listeners[listener].ready {
                let shard = &mut self.hosts[host].shards[core];
                let Listener { id, ready } = &mut shard.listeners[listener];
                match shard.stack.tcp_accept(*id) {
                    Ok((id, remote)) => self.accepted(host, core, id, remote)?,
                    Err(fs_core::Error::WouldBlock) => *ready = false,
                    Err(e) => return self.fail(format!("accept: {e}")),
                }
            }
        }
        Ok(())
    }

    pub(super) fn accepted(&mut self, host: usize, core: usize, id: TcpId, remote: SocketAddr) -> Result<(), Failure> {
        let shard = &mut self.hosts[host].shards[core];
        let (local, again) = (shard.stack.tcp_local(id), shard.stack.tcp_remote(id));
        let Ok(local) = local else { return self.fail(format!("accepted {id:?} has no local address: {local:?}")) };
        if again != Ok(remote) {
            return self.fail(format!("accept says {remote}, tcp_remote {again:?}"));
        }
        let Some(&plan) = self.by_tuple.get(&(remote, local)) else {
            return self.fail(format!("accepted a connection from {remote} to {local} that no client made"));
        };
        let status = &mut self.status[plan];
        if core::mem::replace(&mut status.server_begun, true) {
            if status.server.is_some() && shard.stack.stats().syn_cookies_ok > 0 {
                // A late duplicate of the segment that carried the cookie, after the connection's
                // end: no state exists that could distinguish it from a new connection (as on
                // Linux).
                shard.stack.tcp_abort(id);
                return Ok(());
            }
            return self.fail(format!("connection {plan} from {remote} to {local} was accepted twice"));
        }
        let conn = Conn::new(self.plans[plan].clone(), Side::Server, id, false, self.rng.fork());
        if let Err(what) = shard.insert(conn) {
            return self.fail(what);
        }
        self.run_conn(host, core, id)
    }

    /// Starts a plan: its client connects (in a simultaneous open, both ends do).
    pub(super) fn start(&mut self, plan: usize) -> Result<(), Failure> {
        let Plan { kind, client, server, to, from, options, .. } = *self.plans[plan];
        if !self.connect(plan, Side::Client, client, Connect { remote: to, local: from, options })? {
            // No port is free: TIME-WAITs hold them all for a while.
            self.schedule(Duration::from_secs(1), Action::Start(plan));
            return Ok(());
        }
        if let (Kind::SimultaneousOpen, Some(from)) = (kind, from) {
            let connect = Connect { remote: from, local: Some(to), options };
            self.status[plan].server_begun = true;
            if !self.connect(plan, Side::Server, server, connect)? {
                return self.fail(format!("connection {plan}: no port for its other end"));
            }
        }
        Ok(())
    }

    /// Connects. Returns false if no port was free.
    pub(super) fn connect(&mut self, plan: usize, side: Side, host: usize, connect: Connect) -> Result<bool, Failure> {
        let core = self.rng.below(self.hosts[host].shards.len() as u64) as usize;
        let now = self.hosts[host].clock.local(self.now);
        let mut first = [0; 1400];
        let first = match (side, self.plans[plan].client_script.first()) {
            (Side::Client, Some(Step::Exchange(send, _))) if self.hosts[host].config.fast_open => {
                let first = &mut first[..(*send as usize).min(1400)];
                crate::pattern::fill(self.plans[plan].seed, 0, first);
                first
            }
            _ => &mut [],
        };
        let shard = &mut self.hosts[host].shards[core];
        shard.stack.set_now(now);
        let connected = match first.is_empty() {
            true => shard.stack.tcp_connect(connect).map(|id| (id, 0)),
            false => shard.stack.tcp_connect_with(connect, first),
        };
        let (id, sent) = match connected {
            Ok(connected) => connected,
            Err(fs_core::Error::AddrNotAvailable) => return Ok(false),
            Err(e) => return self.fail(format!("connection {plan}: connect: {e}")),
        };
        let (local, remote) = (shard.stack.tcp_local(id), shard.stack.tcp_remote(id));
        let Ok(local) = local else { return self.fail(format!("connection {plan}: tcp_local: {local:?}")) };
        if remote != Ok(connect.remote) {
            return self.fail(format!("connection {plan} to {}: tcp_remote: {remote:?}", connect.remote));
        }
        self.status[plan].begun = true;
        if side == Side::Client {
            self.by_tuple.insert((local, connect.remote), plan);
        }
        let mut conn = Conn::new(self.plans[plan].clone(), side, id, true, self.rng.fork());
        conn.took(sent as u64);
        if let Err(what) = self.hosts[host].shards[core].insert(conn) {
            return self.fail(what);
        }
        self.turn_soon(host, core);
        Ok(true)
    }

    /// Runs an application.
    pub(super) fn run_conn(&mut self, host: usize, core: usize, id: TcpId) -> Result<(), Failure> {
        let now = self.hosts[host].clock.local(self.now);
        let Host { config: HostConfig { late_acks, .. }, ref mut shards, .. } = self.hosts[host];
        let shard = &mut shards[core];
        shard.stack.set_now(now);
        let Some(slot) = shard.conns.get_mut(id.index as usize) else { return Ok(()) };
        let Some(conn) = slot else { return Ok(()) };
        let read_before = conn.moved().1;
        let progress = conn.progress(&mut shard.stack);
        let (plan, side) = (conn.plan.id as usize, conn.side);
        let flow = shard.stack.tcp_local(id).ok().zip(shard.stack.tcp_remote(id).ok());
        let late = flow.filter(|_| late_acks && conn.moved().1 > read_before);
        match progress {
            Ok(Progress::Blocked) => self.observe(host, core)?,
            Ok(Progress::Pause(d)) => {
                self.schedule(d, Action::Resume { host, core, id });
                self.observe(host, core)?;
            }
            Ok(Progress::Over(end)) => {
                *slot = None;
                self.over(plan, side, end)?;
            }
            Err(what) => {
                let what = format!("{what}\n{}", conn.describe(&shard.stack));
                return self.fail(what);
            }
        }
        late.map_or(Ok(()), |flow| self.end_late(host, flow, None))
    }

    pub(super) fn over(&mut self, plan: usize, side: Side, end: End) -> Result<(), Failure> {
        let kind = self.plans[plan].kind;
        let status = &mut self.status[plan];
        match side {
            Side::Client => status.client = Some(end),
            Side::Server => status.server = Some(end),
        }
        if status.done(kind) && !core::mem::replace(&mut status.counted, true) {
            self.done += 1;
            self.active -= 1;
            self.start_next(Duration::ZERO);
        }
        Ok(())
    }
}
