//! Packets of the hostile peer.

use super::*;

impl World {
    pub(super) fn syn(&mut self, input: &mut Input<'_>) -> bool {
        let offer = Offer {
            isn: input.pick(&[1u32, 0xffff_fff0, 0x7fff_ffff, 5000]).wrapping_add(u32::from(input.byte() % 16) * 100),
            mss: input.pick(&[Some(1460), Some(536), Some(0), Some(1), Some(65535), None]),
            shift: input.pick(&[Some(7), None, Some(0), Some(14)]),
            sack: input.byte() & 1 == 0,
            timestamps: input.byte() & 1 == 0,
        };
        let flow = self.flow(input);
        let mut options = offer.options();
        match input.below(8) {
            0 => options.extend_from_slice(&[34, 2, 1, 1]),
            1 | 2 => {
                options.extend_from_slice(&[34, 2 + self.cookie.len() as u8]);
                options.extend_from_slice(&self.cookie);
            }
            3 => options.extend_from_slice(&[34, 10, 1, 2, 3, 4, 5, 6, 7, 8]),
            _ => {}
        }
        let extra = if input.chance(20) { ACK } else { 0 };
        let payload = if input.chance(64) { &[7; 9][..] } else { &[] };
        let Flow { from, to, nxt, .. } = self.flows[flow];
        self.flows[flow].seq = offer.isn.wrapping_add(1);
        self.flows[flow].shift = offer.shift.unwrap_or(0);
        let tcp = Tcp {
            from,
            to,
            seq: offer.isn,
            ack: nxt,
            flags: SYN | extra,
            window: input.word(),
            options: &options,
            payload,
            ..Tcp::default()
        };
        self.packet(&tcp)
    }

    /// Sends a segment that an honest peer could send next.
    pub(super) fn fitting(&mut self, input: &mut Input<'_>) -> bool {
        let flow = self.flow(input);
        let len = input.pick(&[0usize, 1, 10, 100, 1000, 1400, 0, 0]);
        let fin = if input.chance(16) { FIN } else { 0 };
        let push = if input.chance(128) { PSH } else { 0 };
        let Flow { from, to, seq, nxt, ts, .. } = self.flows[flow];
        self.flows[flow].ts.0 += 1;
        let window = input.pick(&[u16::MAX, 1000, 0, 100]);
        self.text.clear();
        fill(seq, 1, len, &mut self.text);
        let text = std::mem::take(&mut self.text);
        let options = timestamps(ts.0, ts.1);
        let options = if input.chance(200) { &options[..] } else { &[] };
        let tcp =
            Tcp { from, to, seq, ack: nxt, flags: ACK | fin | push, window, options, payload: &text, ..Tcp::default() };
        let hold = self.packet(&tcp);
        self.text = text;
        hold
    }

    /// Sends a segment near the relevant sequence numbers.
    pub(super) fn hostile(&mut self, input: &mut Input<'_>) -> bool {
        let flow = self.flow(input);
        let Flow { from, to, seq, window, una, nxt, ts, .. } = self.flows[flow];
        let flags = input.byte();
        let seq = input.near(seq, window);
        let ack = if input.chance(128) { input.near(nxt, 1460) } else { input.near(una, nxt.wrapping_sub(una)) };
        let mut options = [0u8; 40];
        let n = match input.below(4) {
            0 => {
                options[..12].copy_from_slice(&timestamps(input.near(ts.0, 1000), ts.1));
                12
            }
            1 | 2 => {
                options[..12].copy_from_slice(&timestamps(ts.0, ts.1));
                let blocks: Vec<_> = (0..=input.below(3))
                    .map(|_| {
                        let start = una.wrapping_add(u32::from(input.byte()) * 50);
                        (SeqNum(start), SeqNum(start.wrapping_add(input.near(500, 1460))))
                    })
                    .collect();
                12 + emit_sack(&blocks, &mut options[12..])
            }
            _ => {
                let raw = input.bytes(usize::from(flags >> 4));
                options[..raw.len()].copy_from_slice(raw);
                raw.len()
            }
        };
        let len = input.pick(&[0usize, 1, 3, 100, 1460, 0]);
        let text = vec![input.byte(); len];
        let urgent = input.pick(&[0, 1, 100, u16::MAX]);
        let window = if input.chance(128) { input.word() } else { u16::MAX };
        let ecn = input.byte();
        let tcp = Tcp {
            from,
            to,
            seq,
            ack,
            flags,
            window,
            urgent,
            options: &options[..n],
            payload: &text,
            ecn,
            source: None,
        };
        self.packet(&tcp)
    }

    pub(super) fn reset(&mut self, input: &mut Input<'_>) -> bool {
        let flow = self.flow(input);
        let Flow { from, to, seq, window, nxt, .. } = self.flows[flow];
        let ack = if input.chance(128) { ACK } else { 0 };
        let tcp = Tcp {
            from,
            to,
            seq: input.near(seq, window),
            ack: input.near(nxt, 100),
            flags: RST | ack,
            ..Tcp::default()
        };
        self.packet(&tcp)
    }

    /// Sends an ICMP error about a packet of the stack, or about an unknown one.
    pub(super) fn icmp(&mut self, input: &mut Input<'_>) -> bool {
        let flow = self.flow(input);
        let Flow { from, to, una, nxt, .. } = self.flows[flow];
        let (kind, code) = input.pick(&[(3, 4), (3, 3), (3, 1), (3, 2), (11, 0), (12, 0), (4, 0), (5, 0), (8, 0)]);
        let mtu = input.pick(&[0u16, 68, 552, 576, 1280, 1499, 1500, u16::MAX]);
        let seq = if input.chance(128) { una } else { input.near(una, nxt.wrapping_sub(una)) };
        let udp = input.chance(40);
        let mut message = vec![kind, code, 0, 0, 0, 0];
        message.extend_from_slice(&mtu.to_be_bytes());
        let start = message.len();
        packet::ipv4(&mut message, if udp { 17 } else { 6 }, 0, 20);
        // The stack sent the quoted packet: addresses are swapped.
        message[start + 12..start + 16].copy_from_slice(&LOCAL);
        message[start + 16..start + 20].copy_from_slice(&PEER);
        message[start + 10..start + 12].copy_from_slice(&[0, 0]);
        let sum = Sum::of(&message[start..start + 20]).finish();
        message[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
        let (from, to) = if udp { (9, UDP_PORT) } else { (from, to) };
        message.extend_from_slice(&to.to_be_bytes());
        message.extend_from_slice(&from.to_be_bytes());
        message.extend_from_slice(&seq.to_be_bytes());
        message.resize(start + 20 + input.pick(&[8usize, 20, 28, 3]), 0);
        let sum = Sum::of(&message).finish();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        self.out.clear();
        packet::ipv4(&mut self.out, 1, 0, message.len());
        self.out.extend_from_slice(&message);
        self.host.receive(&self.out, false);
        false
    }

    pub(super) fn udp(&mut self, input: &mut Input<'_>) -> bool {
        let len = usize::from(input.byte() % 32);
        let payload = input.bytes(len).to_vec();
        self.out.clear();
        packet::ipv4(&mut self.out, 17, 0, 8 + payload.len());
        let [l0, l1] = (8 + payload.len() as u16).to_be_bytes();
        let [p0, p1] = if input.chance(200) { UDP_PORT } else { 54 }.to_be_bytes();
        self.out.extend_from_slice(&[0, 9, p0, p1, l0, l1, 0, 0]);
        self.out.extend_from_slice(&payload);
        self.host.receive(&self.out, false);
        if let Some(id) = self.udp.filter(|_| input.chance(64)) {
            let mut buf = [0; 64];
            let _ = self.host.stack.udp_recv(id, &mut buf, input.chance(64));
            let _ = self.host.stack.udp_send(id, &buf[..input.below(64)], Some(SocketAddr::from((PEER, 9))));
        }
        false
    }

    pub(super) fn raw(&mut self, input: &mut Input<'_>) -> bool {
        let len = usize::from(input.byte() % 64);
        let bytes = input.bytes(len);
        self.host.receive(bytes, false);
        false
    }

    pub(super) fn packet(&mut self, tcp: &Tcp<'_>) -> bool {
        self.out.clear();
        tcp.write(&mut self.out, false);
        self.host.receive(&self.out, true);
        false
    }
}
