//! The devices and the switch between them: from a stack's transmit batch to another's receive batch.

use super::*;

impl World {
    /// The device of `host` receives a packet.
    pub(super) fn arrive(&mut self, host: usize, bytes: &[u8]) {
        let Host { config, shards, rss_epoch, rng, .. } = &mut self.hosts[host];
        let core = config.rss.queue(bytes, self.config.framing, shards.len(), *rss_epoch, rng);
        let shard = &mut shards[core];
        let first = shard.rx.len();
        let room = shard.stack.pool().payload_room();
        for piece in bytes.chunks(room) {
            let Some(mut frame) = shard.stack.pool_mut().alloc() else {
                shard.rx_dropped += 1;
                for part in shard.rx.drain(first..) {
                    shard.stack.pool_mut().free(part.frame);
                }
                return;
            };
            frame.grow_back(piece.len());
            shard.stack.pool_mut().bytes_mut(&mut frame).copy_from_slice(piece);
            if let Some(before) = shard.rx[first..].last_mut() {
                before.frame.set_more(true);
            }
            shard.rx.push(RxFrame { frame, iface: IFACE, checksum: RxChecksum::Unknown });
        }
        let WorldConfig { framing, vlan, mtu, .. } = self.config;
        if let Some(police) = &mut self.police
            && wire::check(bytes, framing, vlan.is_some(), mtu.into()).is_ok()
        {
            police.arrived(bytes);
        }
        self.turn_soon(host, core);
    }

    /// The device takes what it has room for and puts it on the link.
    pub(super) fn transmit(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        let mut tx = core::mem::take(&mut self.hosts[host].shards[core].tx);
        loop {
            let Host { config, shards, .. } = &mut self.hosts[host];
            let shard = &mut shards[core];
            let budget = config.tx_ring - shard.tx_outstanding;
            if budget == 0 {
                break;
            }
            let built = shard.stack.tx_batch(IFACE, budget, &mut tx);
            if built > budget {
                return self.fail(format!("tx_batch built {built} of {budget}"));
            }
            if built == 0 {
                // Only want of frames may hold back what is pending; a runtime looks again later.
                if shard.stack.tx_pending(IFACE) {
                    if shard.stack.pool().available() > 0 {
                        return self.fail("tx_pending, and tx_batch builds nothing although there are frames");
                    }
                    self.turn_by(host, core, self.now + TX_RETRY);
                }
                break;
            }
            shard.tx_outstanding += built;
            self.send(host, core, built, &mut tx)?;
        }
        self.hosts[host].shards[core].tx = tx;
        Ok(())
    }

    pub(super) fn send(
        &mut self,
        host: usize,
        core: usize,
        built: usize,
        tx: &mut Vec<TxFrame>,
    ) -> Result<(), Failure> {
        let mut frames = Vec::with_capacity(tx.len());
        let (mut packets, mut departed) = (0, self.now);
        let mut packet = Vec::new();
        let mut request = None;
        for TxFrame { mut frame, checksum } in tx.drain(..) {
            let pool = self.hosts[host].shards[core].stack.pool_mut();
            if packet.is_empty() {
                request = checksum;
            }
            packet.extend_from_slice(pool.bytes(&frame));
            let more = frame.more();
            frame.set_more(false);
            frames.push(frame);
            if more {
                continue;
            }
            packets += 1;
            if let Some(request) = request.take() {
                wire::finish_checksum(&mut packet, request).or_else(|e| self.fail(e))?;
            }
            departed = departed.max(self.put_on_link(host, &packet)?);
            packet.clear();
        }
        if packets != built || !packet.is_empty() {
            return self
                .fail(format!("tx_batch says {built} packets and gives {packets}, {} bytes over", packet.len()));
        }
        // The device holds the frames until the last of them has left, as a TX ring does.
        self.on_the_way += 1;
        self.schedule_at(departed + Duration::from_nanos(500), Action::Sent { host, core, packets, frames });
        Ok(())
    }

    pub(super) fn put_on_link(&mut self, host: usize, packet: &[u8]) -> Result<Instant, Failure> {
        let framing = self.config.framing;
        wire::check(packet, framing, self.config.vlan.is_some(), self.config.mtu.into())
            .or_else(|e| self.fail(format!("host {host} sent a bad packet: {e}: {packet:02x?}")))?;
        if let Some(police) = &mut self.police {
            police.sent(packet).map_err(|what| Failure { at: self.now, what: format!("host {host}: {what}") })?;
        }
        self.packets += 1;
        self.digest.packet(self.now, host, packet);
        if let Some(pcap) = &mut self.pcap {
            pcap.packet(self.now, packet).map_err(|e| Failure { at: self.now, what: format!("pcap: {e}") })?;
        }
        let mut arrivals = core::mem::take(&mut self.arrivals);
        let departed = self.links[host].send(self.now, packet, &mut arrivals);
        for Delivery { at, bytes } in arrivals.drain(..) {
            for to in self.switch(host, &bytes) {
                self.on_the_way += 1;
                self.schedule_at(at, Action::Arrive { host: to, bytes: bytes.clone() });
            }
        }
        self.arrivals = arrivals;
        Ok(departed)
    }

    /// Whom a packet reaches: a switch that knows all addresses.
    pub(super) fn switch(&self, from: usize, packet: &[u8]) -> Vec<usize> {
        let hosts = self.hosts.len();
        if hosts == 2 && self.config.framing == Framing::Ip {
            return vec![1 - from];
        }
        let one = match self.config.framing {
            Framing::Ethernet if packet.len() < 6 => None,
            Framing::Ethernet if packet[0] & 1 == 1 => return (0..hosts).filter(|&h| h != from).collect(),
            Framing::Ethernet => host::by_mac(&packet[..6], hosts),
            Framing::Ip => match packet.first().map(|b| b >> 4) {
                Some(4) if packet.len() >= 20 => {
                    host::by_ip(IpAddr::from(<[u8; 4]>::try_from(&packet[16..20]).unwrap_or_default()), hosts)
                }
                Some(6) if packet.len() >= 40 => {
                    host::by_ip(IpAddr::from(<[u8; 16]>::try_from(&packet[24..40]).unwrap_or_default()), hosts)
                }
                _ => None,
            },
        };
        one.into_iter().filter(|&h| h != from).collect()
    }

    pub(super) fn messages(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        let mut outbound = core::mem::take(&mut self.hosts[host].shards[core].outbound);
        self.hosts[host].shards[core].stack.drain_outbound(&mut outbound);
        for fs_core::Outbound { to: CoreId(to), message } in outbound.drain(..) {
            let to = usize::from(to);
            if to >= self.hosts[host].shards.len() || to == core {
                return self.fail(format!("host {host} core {core} has a message for core {to}: {message:?}"));
            }
            self.on_the_way += 1;
            // Constant, so that messages of one core to another keep their order, as in a ring.
            self.schedule(Duration::from_nanos(300), Action::Message { host, core: to, message });
        }
        self.hosts[host].shards[core].outbound = outbound;
        Ok(())
    }
}
