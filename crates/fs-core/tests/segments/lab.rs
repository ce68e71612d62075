//! A stack and a handmade peer: segments go in and come out one by one.

use crate::common;
use fs_core::*;
use std::net::{IpAddr, SocketAddr};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const URG: u8 = 0x20;

/// A TCP segment, sent or received by the peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seg {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Seg {
    /// Returns the data of an option, by kind.
    pub(crate) fn option(&self, kind: u8) -> Option<Vec<u8>> {
        let mut rest = &self.options[..];
        while let [k, more @ ..] = rest {
            match *k {
                0 => return None,
                1 => rest = more,
                k => {
                    let len = usize::from(*more.first()?);
                    if k == kind {
                        return Some(rest[2..len].to_vec());
                    }
                    rest = &rest[len..];
                }
            }
        }
        None
    }

    /// Returns TSval and TSecr.
    pub(crate) fn timestamps(&self) -> Option<(u32, u32)> {
        let data = self.option(8)?;
        let word = |i: usize| u32::from_be_bytes(data[i..i + 4].try_into().unwrap());
        Some((word(0), word(4)))
    }

    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

/// Makes the options of a SYN: segment size 1460, and those selected by the arguments.
pub(crate) fn syn_options(timestamps: Option<u32>, sack: bool, scale: Option<u8>) -> Vec<u8> {
    let mut options = vec![2, 4, 5, 180];
    if sack {
        options.extend([1, 1, 4, 2]);
    }
    if let Some(val) = timestamps {
        options.extend(ts(val, 0));
    }
    if let Some(shift) = scale {
        options.extend([1, 3, 3, shift]);
    }
    options
}

/// Makes a padded timestamps option.
pub(crate) fn ts(val: u32, ecr: u32) -> Vec<u8> {
    let mut option = vec![1, 1, 8, 10];
    option.extend(val.to_be_bytes());
    option.extend(ecr.to_be_bytes());
    option
}

pub(crate) struct Lab {
    pub(crate) stack: Stack<HeapPool>,
    pub(crate) now: Instant,
    pub(crate) events: Vec<Event>,
    pub(crate) v6: bool,
    /// Every packet sent from now on, raw.
    pub(crate) raw: Vec<Vec<u8>>,
}

/// An established connection and the peer's sequence numbers.
#[derive(Clone, Debug)]
pub(crate) struct Conn {
    pub(crate) id: TcpId,
    pub(crate) listener: ListenerId,
    pub(crate) port: u16,
    /// The peer's next sequence number.
    pub(crate) seq: u32,
    /// Our next sequence number: the data that the peer has acknowledged.
    pub(crate) ack: u32,
    /// The peer's TSval, and our last one.
    pub(crate) ts: Option<(u32, u32)>,
}

pub(crate) const PEER_ISN: u32 = 0x7fff_fff0;

impl Lab {
    pub(crate) fn new(tcp: TcpConfig) -> Self {
        let (framing, addressing) = (Framing::Ip, Addressing::Standalone);
        let limits = common::limits(100, 100, 50);
        let stack = common::stack(common::Plan { last: 1, seed: 7, tcp, limits, frames: 8192, framing, addressing });
        let mut lab = Self { stack, now: Instant::ZERO, events: Vec::new(), v6: false, raw: Vec::new() };
        lab.pass(Duration::from_secs(1000));
        lab
    }

    /// Advances the time in steps, with timers. Packets that are sent stay in `raw` until `sent`.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let next = self.stack.next_deadline().filter(|at| *at <= until).unwrap_or(until);
            self.now = self.now.max(next);
            self.stack.set_now(self.now);
            self.stack.tick();
            self.stack.check(Some(0));
            self.collect();
            if next >= until {
                return;
            }
        }
    }

    pub(crate) fn host(v6: bool, last: u8) -> IpAddr {
        if v6 { [0xfd00, 0, 0, 0, 0, 0, 0, last as u16].into() } else { [10, 0, 0, last].into() }
    }

    fn collect(&mut self) {
        let mut out = Vec::new();
        self.stack.tx_batch(IfaceId(0), 1000, &mut out);
        let mut packet = Vec::new();
        for tx in out {
            packet.extend_from_slice(self.stack.pool().bytes(&tx.frame));
            let more = tx.frame.more();
            self.stack.pool_mut().free(tx.frame);
            if !more {
                self.raw.push(std::mem::take(&mut packet));
            }
        }
        self.stack.drain_events(&mut self.events);
    }

    /// Returns the TCP segments that were sent since the last call.
    pub(crate) fn sent(&mut self) -> Vec<Seg> {
        self.collect();
        std::mem::take(&mut self.raw).iter().filter_map(|packet| read(packet)).collect()
    }

    /// Returns the segment that was sent, and fails if there are none or more.
    #[track_caller]
    pub(crate) fn one(&mut self) -> Seg {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:#?}");
        sent.remove(0)
    }

    #[track_caller]
    pub(crate) fn silence(&mut self) {
        let sent = self.sent();
        assert!(sent.is_empty(), "{sent:#?}");
    }

    /// Receives the peer's segments in one batch.
    pub(crate) fn send_together(&mut self, segments: &[Seg]) {
        let mut batch = Vec::new();
        for seg in segments {
            let bytes = write(seg, self.v6);
            let mut frame = self.stack.pool_mut().alloc().expect("a frame");
            frame.grow_back(bytes.len());
            self.stack.pool_mut().bytes_mut(&mut frame).copy_from_slice(&bytes);
            batch.push(RxFrame { frame, iface: IfaceId(0), checksum: RxChecksum::Verified });
        }
        self.stack.rx_batch(&mut batch);
        self.stack.check(Some(0));
        self.stack.drain_events(&mut self.events);
    }

    /// Calls `f` with an empty pool.
    pub(crate) fn without_frames(&mut self, f: impl FnOnce(&mut Self)) {
        let held: Vec<_> = std::iter::from_fn(|| self.stack.pool_mut().alloc()).collect();
        f(self);
        held.into_iter().for_each(|frame| self.stack.pool_mut().free(frame));
    }

    /// Receives a whole packet, its transport checksum marked as verified.
    pub(crate) fn inject(&mut self, bytes: &[u8]) {
        self.inject_as(bytes, RxChecksum::Verified);
    }

    pub(crate) fn inject_as(&mut self, bytes: &[u8], checksum: RxChecksum) {
        let mut frame = self.stack.pool_mut().alloc().expect("a frame");
        frame.grow_back(bytes.len());
        self.stack.pool_mut().bytes_mut(&mut frame).copy_from_slice(bytes);
        self.stack.rx_batch(&mut vec![RxFrame { frame, iface: IfaceId(0), checksum }]);
        self.stack.check(Some(0));
        self.stack.drain_events(&mut self.events);
    }

    /// Receives a segment from the peer (host 2).
    pub(crate) fn send(&mut self, seg: &Seg) {
        let packet = write(seg, self.v6);
        self.inject(&packet);
    }

    pub(crate) fn listen(&mut self, options: TcpOptions, fast_open: u32) -> ListenerId {
        let at = SocketAddr::new(Lab::host(self.v6, 1), 80);
        self.stack.tcp_listen(Listen { at, backlog: 10, v6_only: false, fast_open, options }).unwrap()
    }

    /// Accepts a connection that the peer opens from `port`.
    pub(crate) fn accept_with(&mut self, port: u16, options: Vec<u8>, tcp: TcpOptions) -> Conn {
        let listener = self.listen(tcp, 0);
        self.accept_on(listener, port, options)
    }

    pub(crate) fn accept_on(&mut self, listener: ListenerId, port: u16, options: Vec<u8>) -> Conn {
        let syn = Seg { from: port, to: 80, seq: PEER_ISN, flags: SYN, window: 65535, options, ..Seg::default() };
        self.send(&syn);
        let answer = self.one();
        assert!(answer.has(SYN | ACK) && answer.ack == PEER_ISN.wrapping_add(1), "{answer:?}");
        let theirs = syn.timestamps().map(|t| t.0);
        let ours = answer.timestamps().map(|t| t.0);
        let ts = theirs.zip(ours);
        let mut conn = Conn {
            id: TcpId { index: 0, generation: 0 },
            listener,
            port,
            seq: PEER_ISN.wrapping_add(1),
            ack: answer.seq.wrapping_add(1),
            ts,
        };
        self.send(&conn.seg(ACK));
        conn.id = self.stack.tcp_accept(listener).unwrap().0;
        self.silence();
        conn
    }

    /// Accepts an ordinary connection.
    pub(crate) fn accept(&mut self) -> Conn {
        self.accept_with(4000, syn_options(Some(1000), true, Some(0)), TcpOptions::default())
    }

    #[track_caller]
    pub(crate) fn read(&mut self, conn: &Conn) -> Vec<u8> {
        let mut buf = vec![0; 100_000];
        let n = self.stack.tcp_recv(conn.id, &mut buf).expect("something to read");
        buf.truncate(n);
        buf
    }

    /// Reads everything available.
    pub(crate) fn read_all(&mut self, id: TcpId) -> Vec<u8> {
        let mut buf = vec![0; 100_000];
        let n = self.stack.tcp_recv(id, &mut buf).unwrap_or(0);
        buf.truncate(n);
        buf
    }

    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.stack.stats().dropped(reason)
    }
}

impl Conn {
    /// Makes the peer's next segment, without payload.
    pub(crate) fn seg(&self, flags: u8) -> Seg {
        let options = self.ts.map_or(Vec::new(), |(val, ecr)| ts(val, ecr));
        let (seq, ack) = (self.seq, self.ack);
        Seg { from: self.port, to: 80, seq, ack, flags, window: 65535, options, ..Seg::default() }
    }

    pub(crate) fn data(&self, payload: &[u8]) -> Seg {
        Seg { payload: payload.to_vec(), ..self.seg(ACK | PSH) }
    }

    /// Makes an out-of-order segment: `off` bytes after the next.
    pub(crate) fn data_at(&self, off: i32, payload: &[u8]) -> Seg {
        Seg { seq: self.seq.wrapping_add(off as u32), ..self.data(payload) }
    }
}

pub(crate) fn read(packet: &[u8]) -> Option<Seg> {
    let (off, protocol) = if packet[0] >> 4 == 4 { (20, packet[9]) } else { (40, packet[6]) };
    if protocol != 6 {
        return None;
    }
    let t = &packet[off..];
    let half = |i: usize| u16::from_be_bytes([t[i], t[i + 1]]);
    let word = |i: usize| u32::from_be_bytes([t[i], t[i + 1], t[i + 2], t[i + 3]]);
    let header = usize::from(t[12] >> 4) * 4;
    Some(Seg {
        from: half(0),
        to: half(2),
        seq: word(4),
        ack: word(8),
        flags: t[13],
        window: half(14),
        urgent: half(18),
        options: t[20..header].to_vec(),
        payload: t[header..].to_vec(),
    })
}

pub(crate) fn write(seg: &Seg, v6: bool) -> Vec<u8> {
    let mut options = seg.options.clone();
    options.resize(options.len().next_multiple_of(4), 0);
    let len = 20 + options.len() + seg.payload.len();
    let mut packet = if v6 { ip6(6, len) } else { ip4(6, len) };
    packet.extend(seg.from.to_be_bytes());
    packet.extend(seg.to.to_be_bytes());
    packet.extend(seg.seq.to_be_bytes());
    packet.extend(seg.ack.to_be_bytes());
    packet.extend([(20 + options.len() as u8) << 2, seg.flags]);
    packet.extend(seg.window.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(seg.urgent.to_be_bytes());
    packet.extend(options);
    packet.extend(&seg.payload);
    packet
}

/// Makes an IPv4 header from host 2 to host 1.
pub(crate) fn ip4(protocol: u8, len: usize) -> Vec<u8> {
    ip4_from([10, 0, 0, 2], protocol, len)
}

/// Makes an IPv4 header to host 1.
pub(crate) fn ip4_from(from: [u8; 4], protocol: u8, len: usize) -> Vec<u8> {
    let [l0, l1] = (20 + len as u16).to_be_bytes();
    let mut h = vec![0x45, 0, l0, l1, 0, 0, 0x40, 0, 64, protocol, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1];
    h[12..16].copy_from_slice(&from);
    let sum: u32 = h.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    h[10..12].copy_from_slice(&sum.to_be_bytes());
    h
}

/// Makes an IPv6 header from host 2 to host 1.
pub(crate) fn ip6(next: u8, len: usize) -> Vec<u8> {
    let [l0, l1] = (len as u16).to_be_bytes();
    let mut h = vec![0x60, 0, 0, 0, l0, l1, next, 64];
    for last in [2, 1] {
        let mut addr = [0; 16];
        (addr[0], addr[15]) = (0xfd, last);
        h.extend(addr);
    }
    h
}
