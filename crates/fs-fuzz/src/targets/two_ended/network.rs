//! The network between the two ends: its faults, its time, and packets that are on the way.

use super::*;

impl World {
    /// Changes the route to the other host while data waits to be sent, and receives replies before
    /// it is.
    pub(super) fn reroute(&mut self, input: &mut Input<'_>) {
        let (side, iface, n) = (input.below(2), input.byte() & 1, input.below(4));
        self.write_at(input.below(self.conns.len()), side, 3000);
        self.hosts[side].route(iface, 2 - side as u8);
        (0..n).for_each(|_| self.deliver(1 - side));
    }

    /// Reports to a sender that its packet is too large for the path. No time passes in between, so
    /// that retransmissions have the time of the originals: by RACK's rule for equal times (RFC
    /// 8985 6.2) an ACK of later originals may mark them lost again.
    pub(super) fn too_large(&mut self, input: &mut Input<'_>) {
        let (side, link) = (input.below(2), self.link_header());
        let at = input.below(self.links[side].len());
        let Some(packet) = self.links[side].get_mut(at) else { return };
        let Some(passing) = Passing::of(&mut packet.bytes, link) else { return };
        let mtu = passing.size().saturating_sub(1 + input.below(200)).max(552);
        if packet.damaged || passing.size() <= mtu {
            return;
        }
        let error = passing.error(Trouble::TooLarge(mtu as u16));
        let (iface, seq, port) = (IfaceId(packet.iface), passing.seq(), client_port(side, &passing));
        self.links[side].remove(at);
        // With two networks, built packets may wait for a neighbour.
        let believes = !self.two_ways
            && self.owner(side, port).and_then(|id| self.hosts[side].stack.sending(id)).is_some_and(|s| {
                let out = s.nxt.wrapping_sub(s.una);
                seq.wrapping_sub(s.una) < out
            });
        let now = self.hosts[side].now;
        if let Some(conn) = self.conns.iter_mut().rfind(|c| c.local.port() == port).filter(|_| believes) {
            let known = conn.size[side].map_or(mtu, |(known, _)| known.min(mtu));
            conn.size[side] = Some((known, now));
        }
        self.hosts[side].receive_on(iface, &error, false);
    }

    /// Sets options that determine when a connection times out.
    pub(super) fn watch(&mut self, input: &mut Input<'_>) {
        let (at, side) = (input.below(self.conns.len()), input.below(2));
        let Some(conn) = self.conns.get_mut(at) else { return };
        let Some(id) = conn.ids[side] else { return };
        let stack = &mut self.hosts[side].stack;
        let Ok(now) = stack.tcp_options(id) else { return };
        let ms = Duration::from_millis;
        let on = input.chance(128);
        let keepalive = on.then_some(Keepalive { idle: ms(400), interval: ms(200), count: 3 });
        let linger = if input.chance(128) { Linger::Timeout(ms(100)) } else { Linger::Background };
        let options = TcpOptions { keepalive, linger, ..now };
        conn.watched[side] = stack.tcp_set_options(id, options).is_ok() && on;
        // The connection may time out at any jump of time.
        conn.dirty |= on;
    }

    /// Loses all packets for a while. Connections that depend on keepalive must have timed out by
    /// then.
    pub(super) fn silence(&mut self) {
        let waits = |world: &Self, conn: &Conn, side: usize| {
            let stack = &world.hosts[side].stack;
            let id = conn.ids[side].filter(|_| conn.watched[side])?;
            let open = matches!(stack.tcp_state(id), Ok(TcpState::Established | TcpState::CloseWait));
            (open && stack.sending(id)?.segments == 0).then_some(id)
        };
        let mut waiting = Vec::new();
        for side in 0..2 {
            waiting.extend(self.conns.iter().filter_map(|c| Some((side, waits(self, c, side)?))));
        }
        self.deadlines += 2;
        for _ in 0..SILENCE.as_millis() / 50 {
            self.links.iter_mut().for_each(VecDeque::clear);
            self.advance(Duration::from_millis(50));
            self.transmit();
        }
        self.links.iter_mut().for_each(VecDeque::clear);
        for (side, id) in waiting {
            let state = self.hosts[side].stack.tcp_state(id);
            assert_eq!(state, Ok(TcpState::Closed), "keepalive has not given up: {:?}", self.conns);
        }
    }

    /// Repeats a packet with another ACK: of data that was never sent, or, while a connection
    /// opened by data in a SYN waits for its handshake's end, an old one. It must have no effect.
    pub(super) fn wild_ack(&mut self, input: &mut Input<'_>) {
        let (side, link, far) = (input.below(2), self.link_header(), u32::from(input.word()));
        let kind = input.below(3);
        let at = input.below(self.links[side].len());
        let Some(Packet { mut bytes, iface, damaged: false }) = self.links[side].get(at).cloned() else { return };
        let Some(mut passing) = Passing::of(&mut bytes, link) else { return };
        const SYN_RST: u8 = 2 | 4;
        let to = 1 - side;
        let owner = self.owner(to, client_port(side, &passing)).filter(|_| passing.flags() & SYN_RST == 0);
        let Some(id) = owner else { return };
        let stack = &self.hosts[to].stack;
        let state = stack.tcp_state(id);
        let (Some(sending), Ok(info)) = (stack.sending(id), stack.tcp_info(id)) else { return };
        let acked = u32::try_from(info.bytes_acked).unwrap_or(u32::MAX);
        passing.set_ack(match kind {
            0 => sending.nxt.wrapping_add(1 + far),
            1 if state == Ok(TcpState::SynReceived) => sending.una.wrapping_sub(1 + far % 8),
            _ => sending.una.wrapping_sub(acked).wrapping_sub(3 + far),
        });
        let of = |world: &Self| {
            let stack = &world.hosts[to].stack;
            let (sending, receiving) = (stack.sending(id), stack.receiving(id));
            (stack.tcp_state(id), sending.map(|s| (s.una, s.sacked)), receiving.map(|r| (r.nxt, r.held)))
        };
        let before = of(self);
        self.hosts[to].receive_on(IfaceId(iface), &bytes, false);
        assert_eq!(before, of(self), "an ACK that cannot be true was taken in");
    }

    pub(super) fn link_header(&self) -> usize {
        if self.two_ways { 14 } else { 0 }
    }

    pub(super) fn transmit(&mut self) {
        for (side, (host, link)) in self.hosts.iter_mut().zip(&mut self.links).enumerate() {
            let (spare, conns, now) = (&mut self.spare, &self.conns, host.now);
            let told = conns.iter().any(|c| c.size[side].is_some());
            host.transmit_by(self.budget, false, |iface, packet| {
                if told {
                    check_size(conns, side, packet, now);
                }
                if link.len() < QUEUE_MAX {
                    let mut copy = spare.pop().unwrap_or_default();
                    copy.bytes.clear();
                    copy.bytes.extend_from_slice(packet);
                    (copy.damaged, copy.iface) = (false, iface.0);
                    link.push_back(copy);
                }
            });
        }
    }

    pub(super) fn deliver(&mut self, side: usize) {
        if let Some(packet) = self.links[side].pop_front() {
            self.hosts[1 - side].receive_on(IfaceId(packet.iface), &packet.bytes, false);
            self.spare.push(packet);
        }
    }

    pub(super) fn disturb(&mut self, input: &mut Input<'_>) {
        let link = &mut self.links[input.below(2)];
        let at = input.below(link.len());
        if at >= link.len() {
            return;
        }
        // Neighbour messages have no protection against damage.
        let exposed = self.two_ways && link[at].bytes[12..14] != [8, 0];
        match input.below(5) {
            4 if exposed => {}
            0 => drop(link.remove(at)),
            1 => link.push_back(link[at].clone()),
            2 => link.swap(0, at),
            3 => link.clear(),
            _ => {
                let packet = &mut link[at];
                let place = usize::from(input.word()) % packet.bytes.len();
                if !std::mem::replace(&mut packet.damaged, true) {
                    packet.bytes[place] ^= 1 << input.below(8);
                }
            }
        }
    }

    pub(super) fn advance(&mut self, by: Duration) {
        self.hosts.iter_mut().for_each(|h| h.advance(by));
    }

    /// Advances to the next deadline of either host. Returns false if there is none.
    pub(super) fn jump(&mut self) -> bool {
        let now = self.hosts[0].now;
        let Some(next) = self.hosts.iter().filter_map(|h| h.stack.next_deadline()).min() else { return false };
        self.advance(next.since(now));
        true
    }
}
