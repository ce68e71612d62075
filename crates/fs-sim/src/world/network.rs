//! The devices and the switch between them: from a stack's transmit batch to another's receive
//! batch.

use super::*;
use crate::icmp;

/// Size of a device's receive ring in packets.
const RX_RING: usize = 512;

impl World {
    /// Handles a packet that the device of `host` receives.
    pub(super) fn arrive(&mut self, host: usize, bytes: &[u8]) {
        let Host { config, shards, rss_epoch, rng, paused_until, .. } = &mut self.hosts[host];
        let core = config.rss.queue(bytes, self.config.framing, shards.len(), *rss_epoch, rng);
        let shard = &mut shards[core];
        let first = shard.rx.len();
        if *paused_until > self.now && first >= RX_RING {
            shard.rx_dropped += 1;
            return;
        }
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

    /// Moves packets from the stack to the link, as many as the device has space for.
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
                // Only a lack of frames may delay pending packets; a runtime polls again later.
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
        // The device holds the frames until the last of them has been sent, as a TX ring does.
        self.on_the_way += 1;
        self.schedule_at(departed + Duration::from_nanos(500), Action::Sent { host, core, packets, frames });
        Ok(())
    }

    pub(super) fn put_on_link(&mut self, host: usize, packet: &[u8]) -> Result<Instant, Failure> {
        if self.hosts[host].config.late_acks && self.is_late(host, packet) {
            return Ok(self.now);
        }
        self.put_now(host, packet)
    }

    pub(super) fn put_now(&mut self, host: usize, packet: &[u8]) -> Result<Instant, Failure> {
        // Also a packet that violates a rule.
        self.record(host, packet)?;
        let framing = self.config.framing;
        wire::check(packet, framing, self.config.vlan.is_some(), self.config.mtu.into())
            .or_else(|e| self.fail(format!("host {host} sent a bad packet: {e}: {packet:02x?}")))?;
        if let Some(police) = &mut self.police {
            police
                .sent(self.now, packet)
                .map_err(|what| Failure { at: self.now, what: format!("host {host}: {what}") })?;
        }
        let to = self.switch(host, packet);
        let attached = self.config.topology.attached.get(host).copied();
        self.through(host, packet, &to, attached)
    }

    /// Puts a packet for the hosts `to` on a link that ends at the router `end`, or at a switch.
    /// Returns the time at which it has left.
    pub(super) fn through(
        &mut self,
        link: usize,
        packet: &[u8],
        to: &[usize],
        end: Option<usize>,
    ) -> Result<Instant, Failure> {
        let LinkConfig { mtu, black_hole, .. } = self.links[link].config;
        if icmp::ip_len(packet, self.config.framing).is_some_and(|len| len > usize::from(mtu)) {
            self.links[link].stats.too_big += 1;
            if !black_hole {
                self.too_big(link, packet, mtu)?;
            }
            return Ok(self.now);
        }
        let mut arrivals = core::mem::take(&mut self.arrivals);
        let departed = self.links[link].send(self.now, packet, &mut arrivals);
        for Delivery { at, bytes } in arrivals.drain(..) {
            for &host in to {
                self.on_the_way += 1;
                let bytes = bytes.clone();
                self.schedule_at(
                    at,
                    match end {
                        Some(router) => Action::Forward { router, host, bytes },
                        None => Action::Arrive { host, bytes },
                    },
                );
            }
        }
        self.arrivals = arrivals;
        Ok(departed)
    }

    /// Forwards a packet for a host at a router.
    pub(super) fn forward(&mut self, router: usize, host: usize, bytes: Vec<u8>) -> Result<(), Failure> {
        let last = self.config.topology.attached[host];
        if router == last {
            self.arrive(host, &bytes);
            return Ok(());
        }
        let Some(pipe) = self.next_hops[router][last] else {
            return self.fail(format!("no way from router {router} to host {host}"));
        };
        let end = self.config.topology.pipes[pipe].to;
        self.through(self.hosts.len() + pipe, &bytes, &[host], Some(end))?;
        Ok(())
    }

    /// Sends the message of the router at the start of `link` about a packet that was too big.
    fn too_big(&mut self, link: usize, packet: &[u8], mtu: u16) -> Result<(), Failure> {
        let (framing, hosts) = (self.config.framing, self.hosts.len());
        let Some(error) = icmp::too_big(packet, framing, mtu) else { return Ok(()) };
        let Some(host) = icmp::source(packet, framing).and_then(|ip| host::by_ip(ip, hosts)) else { return Ok(()) };
        self.record(hosts + link, &error)?;
        self.on_the_way += 1;
        let action = match link.checked_sub(hosts) {
            Some(pipe) => Action::Forward { router: self.config.topology.pipes[pipe].from, host, bytes: error },
            None => Action::Arrive { host, bytes: error },
        };
        self.schedule(Duration::from_micros(10), action);
        Ok(())
    }

    /// Counts, hashes and writes every packet.
    fn record(&mut self, from: usize, packet: &[u8]) -> Result<(), Failure> {
        self.packets += 1;
        self.digest.packet(self.now, from, packet);
        if let Some(pcap) = &mut self.pcap {
            pcap.packet(self.now, packet).map_err(|e| Failure { at: self.now, what: format!("pcap: {e}") })?;
        }
        Ok(())
    }

    /// Returns the hosts that a packet reaches: a switch that knows all addresses.
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
            // Constant, so that messages between two cores keep their order, as in a ring.
            self.schedule(Duration::from_nanos(300), Action::Message { host, core: to, message });
        }
        self.hosts[host].shards[core].outbound = outbound;
        Ok(())
    }
}
