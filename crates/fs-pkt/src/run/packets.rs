//! Packet events: injects the script's packets, compares the host's.

use super::conn::{Conn, Stage};
use super::icmp;
use super::{Due, PACKET_WAIT_US, Runner};
use crate::packet::option::TcpOption;
use crate::packet::verify::{self, Open};
use crate::packet::{Packet, Segment, Transport, flags};
use crate::run::target::Target;
use crate::script::ast::{Body, Direction, PacketSpec, TcpSpec, Time, Tos};
use std::fmt::Write;
use std::net::SocketAddr;

/// Default TTL of packets.
const TTL: u8 = 255;

impl<T: Target> Runner<'_, T> {
    /// Returns the connection that a packet of the script belongs to, and makes it if the packet
    /// begins one.
    fn conn_for(&mut self, spec: &PacketSpec) -> Result<usize, String> {
        let named = match spec.socket {
            Some(fd) => {
                let found = self.conns.iter().rposition(|c| c.fd.map(i64::from) == Some(fd));
                Some(found.ok_or_else(|| format!("no socket with descriptor {fd}"))?)
            }
            None => self.current,
        };
        let inbound = spec.direction == Direction::Inbound;
        if let Body::Tcp(tcp) = &spec.body {
            let stage = named.map(|i| self.conns[i].stage);
            if inbound && stage.is_none_or(|s| s == Stage::Listening) {
                return Ok(self.child(tcp));
            }
            let syn = tcp.flags & (flags::SYN | flags::ACK) == flags::SYN;
            if let Some(i) = named.filter(|_| !inbound && syn && stage == Some(Stage::Connecting)) {
                let conn = &mut self.conns[i];
                conn.stage = Stage::SynSent;
                conn.script_isn = tcp.seq;
                return Ok(i);
            }
        }
        let index = named.ok_or("no matching socket for script packet")?;
        let conn = &self.conns[index];
        let fits = match &spec.body {
            Body::Tcp(_) => !conn.udp && !conn.icmp,
            Body::Udp(_) => conn.udp,
            Body::Icmp(_) => true,
        };
        // A packet with its own ports only uses the addresses.
        if fits || spec.ports.is_some() { Ok(index) } else { Err("no matching socket for script packet".into()) }
    }

    /// Makes the connection that a packet to a listener begins.
    fn child(&mut self, tcp: &TcpSpec) -> usize {
        let mut conn = Conn::new(Stage::Received);
        conn.remote = Some(self.next_remote());
        conn.local = Some(SocketAddr::new(self.config.local(), self.config.bind_port));
        conn.remote_isn = tcp.seq;
        self.conns.push(conn);
        self.current = Some(self.conns.len() - 1);
        self.conns.len() - 1
    }

    pub(super) fn inject(&mut self, spec: &PacketSpec) -> Result<(), String> {
        let index = self.conn_for(spec)?;
        let (local, remote) = (self.config.local(), self.config.remote());
        let (bind, connect) = (self.config.bind_port, self.config.connect_port);
        let conn = &mut self.conns[index];
        if let Body::Tcp(tcp) = &spec.body {
            match conn.stage {
                Stage::SynAckSent if tcp.flags & flags::ACK != 0 => conn.stage = Stage::SynAckAcked,
                Stage::SynSent if tcp.flags & flags::SYN != 0 => {
                    // The peer's SYN, with an ACK or crossing ours.
                    if tcp.flags & flags::ACK != 0 {
                        conn.stage = Stage::SynAcked;
                    }
                    conn.remote_isn = tcp.seq;
                }
                _ => {}
            }
        }
        let live_local = *conn.local.get_or_insert(SocketAddr::new(local, bind));
        let live_remote = *conn.remote.get_or_insert(SocketAddr::new(remote, connect));
        let (mut src, mut dst) = (live_remote.port(), live_local.port());
        if let Some((s, d)) = spec.ports {
            src = if s == 0 { src } else { s };
            dst = if d == 0 { dst } else { d };
        }
        let transport = match &spec.body {
            Body::Tcp(tcp) => {
                let mut segment = live_segment(conn, tcp, (src, dst), self.config.ts_ecr_scaled)?;
                for option in &mut segment.options {
                    if let TcpOption::FastOpen(bytes) | TcpOption::FastOpenExperiment(bytes) = option
                        && let Some((script, live)) = &self.cookie
                        && bytes == script
                    {
                        bytes.clone_from(live);
                    }
                }
                Transport::Tcp(segment)
            }
            Body::Udp(len) => Transport::Udp { src, dst, payload: vec![0; usize::from(*len)] },
            Body::Icmp(spec) => icmp::inbound(spec, live_local, live_remote, conn.local_offset(false), conn.udp)?,
        };
        let packet = Packet {
            src: live_remote.ip(),
            dst: live_local.ip(),
            tos: match spec.ip.tos {
                Tos::Ecn(bits) => bits,
                Tos::Byte(byte) => byte,
                Tos::Unsaid | Tos::Ect01 => 0,
            },
            ttl: if spec.ip.ttl == 0 { TTL } else { spec.ip.ttl },
            flow_label: spec.ip.flow_label,
            transport,
        };
        if self.config.verbose {
            let now = self.target.now();
            self.print("inbound injected", now, &packet);
        }
        self.target.inject(&packet.to_bytes())
    }

    fn print(&mut self, what: &str, at: i64, packet: &Packet) {
        let text = verify::text(packet, &Open::default());
        let _ = writeln!(self.log, "{what} packet: {:9.6} {text}", at as f64 / 1e6);
    }

    pub(super) fn expect(&mut self, spec: &PacketSpec, due: &Due) -> Result<(), String> {
        let index = self.conn_for(spec)?;
        let last = due.before.unwrap_or(0);
        let deadline = (due.time != Time::Any).then_some(due.until.max(last) + PACKET_WAIT_US);
        let Some((at, live)) = self.sniff(index, deadline)? else {
            let mut message = "Timed out waiting for packet".to_string();
            let script = self.script_packet(index, spec)?;
            let _ = write!(
                message,
                "\nscript packet: {:9.6} {}",
                due.at as f64 / 1e6,
                verify::text(&script, &open_of(spec))
            );
            return Err(message);
        };
        if self.config.verbose {
            self.print("outbound sniffed", at, &live);
        }
        if let (Body::Tcp(tcp), Some(segment)) = (&spec.body, live.tcp()) {
            let conn = &mut self.conns[index];
            let syn_ack = flags::SYN | flags::ACK;
            if conn.stage == Stage::Received && tcp.flags & syn_ack == syn_ack {
                conn.script_isn = tcp.seq;
                conn.live_isn = segment.seq;
                conn.stage = Stage::SynAckSent;
            }
        }
        let script = self.script_packet(index, spec)?;
        let open = open_of(spec);
        let (at, live) = self
            .gather(index, script.payload().len(), (at, live), deadline)
            .map_err(|e| format!("{e}\nscript packet: {:9.6} {}", due.at as f64 / 1e6, verify::text(&script, &open)))?;
        let actual = self.in_script_terms(index, &script, &live);
        let compared = self.compare(index, spec, &script, &actual, &live, &open);
        compared.and_then(|()| self.check_time(due, at, "outbound packet")).map_err(|e| {
            let line = |what: &str, at: i64, packet: &Packet, open: &Open| {
                format!("\n{what} packet: {:9.6} {}", at as f64 / 1e6, verify::text(packet, open))
            };
            let shown = Open { window: false, options: false, ..open };
            format!("{e}{}{}", line("script", due.at, &script, &open), line("actual", at, &actual, &shown))
        })
    }

    /// Merges segments until their length is what the script expects: the script may have been
    /// written where large segments were captured before a device split them. The headers are the
    /// last one's; sequence number and CWR the first one's.
    fn gather(
        &mut self,
        index: usize,
        expected: usize,
        (mut at, mut live): (i64, Packet),
        deadline: Option<i64>,
    ) -> Result<(i64, Packet), String> {
        let piece = live.payload().len();
        let mut parts = vec![(at, live.clone())];
        while live.tcp().is_some_and(|t| !t.payload.is_empty() && t.payload.len() < expected)
            && !self.config.strict_segments
        {
            let Some((next_at, next)) = self.sniff(index, deadline)? else { break };
            let before = live.clone();
            let (Some(whole), Some(more)) = (live.tcp_mut(), next.tcp()) else { break };
            let mut compared = verify::fragment(whole, more);
            let last = whole.payload.len() + more.payload.len() >= expected;
            if compared.is_ok() && !last && more.payload.len() != piece {
                compared =
                    Err(format!("fragment payload: expected {piece} bytes vs actual {} bytes", more.payload.len()));
            }
            if let Err(e) = compared {
                let mut message =
                    format!("{e} (looking for {expected} bytes, found {} before)", before.payload().len());
                parts.push((next_at, next));
                for (i, (at, part)) in parts.iter().enumerate() {
                    let part = self.shifted(index, part);
                    let _ = write!(
                        message,
                        "\nactual #{i} packet: {:9.6} {}",
                        *at as f64 / 1e6,
                        verify::text(&part, &Open::default())
                    );
                }
                return Err(message);
            }
            let cwr = whole.flags & flags::CWR;
            whole.flags = more.flags & !flags::CWR | cwr;
            whole.options.clone_from(&more.options);
            whole.payload.extend_from_slice(&more.payload);
            parts.push((next_at, next.clone()));
            (at, live.ttl, live.tos) = (next_at, next.ttl, next.tos);
        }
        Ok((at, live))
    }

    /// Returns a packet with the script's sequence numbers, for messages.
    fn shifted(&self, index: usize, packet: &Packet) -> Packet {
        let conn = &self.conns[index];
        let mut packet = packet.clone();
        if let Some(segment) = packet.tcp_mut() {
            let syn = segment.has(flags::SYN);
            segment.seq = segment.seq.wrapping_sub(conn.local_offset(syn));
            if segment.has(flags::ACK) {
                segment.ack = segment.ack.wrapping_sub(conn.remote_offset(syn));
            }
        }
        packet
    }

    /// Returns the next packet of a connection. Packets of other connections are kept, all others
    /// ignored.
    fn sniff(&mut self, index: usize, deadline: Option<i64>) -> Result<Option<(i64, Packet)>, String> {
        if let Some(i) = self.stash.iter().position(|(_, p)| of_conn(&self.conns[index], p)) {
            let (at, packet) = self.stash.remove(i);
            self.learn(index, &packet);
            return Ok(Some((at, packet)));
        }
        while let Some((at, bytes)) = self.target.sniff(deadline)? {
            let packet = Packet::from_bytes(&bytes)?;
            if of_conn(&self.conns[index], &packet) {
                self.learn(index, &packet);
                return Ok(Some((at, packet)));
            }
            if self.conns.iter().any(|conn| of_conn(conn, &packet)) {
                self.stash.push((at, packet));
            } else if self.config.verbose {
                self.print("ignored outbound", at, &packet);
            }
        }
        Ok(None)
    }

    /// Records the properties of an active socket from its first packet.
    fn learn(&mut self, index: usize, packet: &Packet) {
        let conn = &mut self.conns[index];
        if conn.local.is_none() {
            conn.local = Some(SocketAddr::new(packet.src, packet.ports().0));
            if let Some(segment) = packet.tcp() {
                conn.live_isn = segment.seq;
            }
        }
    }

    /// Returns the expected packet in the script's terms.
    fn script_packet(&self, index: usize, spec: &PacketSpec) -> Result<Packet, String> {
        let conn = &self.conns[index];
        let (local, remote) = (self.config.local(), self.config.remote());
        let transport = match &spec.body {
            Body::Tcp(tcp) => Transport::Tcp(script_segment(tcp)),
            Body::Udp(len) => Transport::Udp { src: 0, dst: 0, payload: vec![0; usize::from(*len)] },
            Body::Icmp(spec) => icmp::outbound(spec, conn.local.unwrap_or(SocketAddr::new(local, 0)))?,
        };
        let tos = match spec.ip.tos {
            Tos::Ecn(bits) => bits,
            Tos::Byte(byte) => byte,
            Tos::Unsaid | Tos::Ect01 => 0,
        };
        Ok(Packet { src: local, dst: remote, tos, ttl: spec.ip.ttl, flow_label: spec.ip.flow_label, transport })
    }

    /// Returns a sent packet with the script's sequence numbers and timestamps.
    fn in_script_terms(&mut self, index: usize, script: &Packet, live: &Packet) -> Packet {
        let conn = &mut self.conns[index];
        let mut actual = live.clone();
        let Some(segment) = actual.tcp_mut() else { return actual };
        let syn = segment.has(flags::SYN);
        let (ours, theirs) = (conn.local_offset(syn), conn.remote_offset(syn));
        segment.seq = segment.seq.wrapping_sub(ours);
        if segment.has(flags::ACK) {
            segment.ack = segment.ack.wrapping_sub(theirs);
        }
        let expected = script.tcp().and_then(stamp);
        let named = script.tcp().filter(|t| t.has(flags::ACK)).and_then(cookie);
        for option in &mut segment.options {
            match option {
                TcpOption::Sack(blocks) => blocks.iter_mut().for_each(|(left, right)| {
                    *left = left.wrapping_sub(theirs);
                    *right = right.wrapping_sub(theirs);
                }),
                TcpOption::Timestamp { val, .. } => {
                    if let Some((script_val, _)) = expected {
                        conn.stamps.insert(script_val, *val);
                        conn.first_stamp.get_or_insert((script_val, *val));
                    }
                    *val = conn.script_stamp(*val);
                }
                TcpOption::FastOpen(bytes) | TcpOption::FastOpenExperiment(bytes) => {
                    if let Some((script, live)) = &mut self.cookie
                        && bytes == live
                    {
                        // The host's own choice, like its initial sequence number: replaced by the
                        // script's.
                        if let Some(named) = &named {
                            script.clone_from(named);
                        }
                        bytes.clone_from(script);
                    }
                }
                _ => {}
            }
        }
        actual
    }

    fn compare(
        &mut self,
        index: usize,
        spec: &PacketSpec,
        script: &Packet,
        actual: &Packet,
        live: &Packet,
        open: &Open,
    ) -> Result<(), String> {
        verify::headers(script, actual, open)?;
        if spec.ip.flow_label != 0 {
            self.compare_label(index, spec.ip.flow_label, live.flow_label)?;
        }
        if let (Some(s), Some(a)) = (script.tcp(), actual.tcp())
            && !open.options
        {
            verify::options(s, a)?;
            if let (Some((expected, expected_ecr)), Some((val, ecr))) = (stamp(s), stamp(a)) {
                // The script's own timestamps are injected as they are written, so their echo
                // needs no translation.
                if ecr != expected_ecr {
                    return Err(format!("bad outbound TCP timestamp echo: expected: {expected_ecr} actual: {ecr}"));
                }
                let off = i64::from(val.wrapping_sub(expected) as i32).abs() * self.config.ts_tick_us;
                let now = self.target.now();
                let tolerance = self.tolerance(now, Some(0));
                if off > tolerance {
                    return Err(format!("bad outbound TCP timestamp value, tolerance {tolerance}"));
                }
            }
        }
        let icmp = matches!(script.transport, Transport::Icmp { .. });
        if !icmp && script.payload() != actual.payload() {
            return Err("incorrect outbound data payload".into());
        }
        Ok(())
    }

    /// Each label of the script corresponds to one on the wire, and different ones to different
    /// ones.
    fn compare_label(&mut self, index: usize, script: u32, live: u32) -> Result<(), String> {
        let conn = &mut self.conns[index];
        if live == 0 {
            return Err("flowlabel unmarked in the live packet".into());
        }
        match conn.label {
            None => {}
            Some((s, l)) if s == script && l != live => {
                return Err(format!("inconsistent flowlabels for this packet: expected: {l:#x} vs actual: {live:#x}"));
            }
            Some((s, l)) if s != script && l == live => {
                return Err("expected a different flowlabel but got the same".into());
            }
            Some(_) => {}
        }
        conn.label = Some((script, live));
        Ok(())
    }
}

fn open_of(spec: &PacketSpec) -> Open {
    let tcp = match &spec.body {
        Body::Tcp(tcp) => Some(tcp),
        _ => None,
    };
    Open::of(spec.ip, tcp)
}

fn stamp(segment: &Segment) -> Option<(u32, u32)> {
    segment.options.iter().find_map(|o| match o {
        TcpOption::Timestamp { val, ecr } => Some((*val, *ecr)),
        _ => None,
    })
}

fn cookie(segment: &Segment) -> Option<Vec<u8>> {
    segment.options.iter().find_map(|o| match o {
        TcpOption::FastOpen(bytes) | TcpOption::FastOpenExperiment(bytes) if !bytes.is_empty() => Some(bytes.clone()),
        _ => None,
    })
}

/// Returns true if the host sent this packet for that connection.
fn of_conn(conn: &Conn, packet: &Packet) -> bool {
    let (src, dst) = packet.ports();
    let Some(remote) = conn.remote else { return false };
    if matches!(packet.transport, Transport::Icmp { .. }) {
        return packet.dst == remote.ip() && conn.local.is_none_or(|l| l.ip() == packet.src);
    }
    if SocketAddr::new(packet.dst, dst) != remote || matches!(packet.transport, Transport::Udp { .. }) != conn.udp {
        return false;
    }
    if conn.local == Some(SocketAddr::new(packet.src, src)) {
        return true;
    }
    let syn = packet.tcp().is_some_and(|t| t.has(flags::SYN) && !t.has(flags::ACK));
    conn.stage == Stage::SynSent && syn || conn.udp && conn.stage == Stage::Connecting
}

fn script_segment(tcp: &TcpSpec) -> Segment {
    Segment {
        src: 0,
        dst: 0,
        seq: tcp.seq,
        ack: tcp.ack,
        flags: tcp.flags,
        window: tcp.window.unwrap_or(0),
        urgent: tcp.urgent,
        options: tcp.options.clone().unwrap_or_default(),
        payload: vec![0; usize::from(tcp.len)],
    }
}

/// Returns the injected segment, with the wire's sequence numbers and timestamps.
fn live_segment(conn: &Conn, tcp: &TcpSpec, ports: (u16, u16), scaled: bool) -> Result<Segment, String> {
    let mut segment = script_segment(tcp);
    (segment.src, segment.dst) = ports;
    let syn = segment.has(flags::SYN);
    let (ours, theirs) = (conn.local_offset(syn), conn.remote_offset(syn));
    segment.seq = segment.seq.wrapping_add(theirs);
    let acks = segment.has(flags::ACK);
    if acks {
        segment.ack = segment.ack.wrapping_add(ours);
    }
    for option in &mut segment.options {
        match option {
            TcpOption::Sack(blocks) => blocks.iter_mut().for_each(|(left, right)| {
                *left = left.wrapping_add(ours);
                *right = right.wrapping_add(ours);
            }),
            TcpOption::Timestamp { ecr, .. } if acks => {
                *ecr = conn.live_stamp(*ecr, scaled).ok_or_else(|| {
                    format!(
                        "unable to infer live TS ecr for script TS ecr {ecr};  no matching or preceding outbound TS val"
                    )
                })?;
            }
            _ => {}
        }
    }
    Ok(segment)
}
