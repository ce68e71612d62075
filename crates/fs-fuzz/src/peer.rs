//! A peer that completes an honest handshake, and then follows a script.

use crate::host::Host;
use crate::packet::{self, ACK, SYN, Tcp, timestamps};
use fs_core::internals::SeqNum;
use fs_core::internals::{self, SynOptions, Timestamps};
use fs_core::internals::{Parsed, Segment};
use fs_core::{Instant, ListenerId, TcpId};
use std::sync::OnceLock;

/// Port that targets listen on.
pub const PORT: u16 = 80;

/// A peer's end of one connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The peer's port.
    pub from: u16,
    /// The peer's next sequence number.
    pub seq: u32,
    /// The stack's next sequence number, as observed.
    pub ack: u32,
    /// Window field of its segments.
    pub window: u16,
    /// If timestamps were negotiated: the next value, and the one to echo.
    pub ts: Option<(u32, u32)>,
    /// SACK was negotiated.
    pub sack: bool,
    /// Shift of the stack's window fields.
    pub shift: u8,
    /// Shift of the peer's window fields.
    pub own_shift: u8,
}

/// Options of a peer's SYN.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// The peer's initial sequence number.
    pub isn: u32,
    /// Segment size.
    pub mss: Option<u16>,
    /// Window shift.
    pub shift: Option<u8>,
    /// SACK permitted.
    pub sack: bool,
    /// Timestamps.
    pub timestamps: bool,
}

impl Offer {
    /// Returns the SYN's options.
    pub fn options(&self) -> Vec<u8> {
        let syn = SynOptions {
            mss: self.mss,
            window_scale: self.shift,
            sack_permitted: self.sack,
            timestamps: self.timestamps.then_some(Timestamps { val: 1000, ecr: 0 }),
        };
        let mut out = [0; 40];
        let n = internals::emit_syn(&syn, &mut out);
        out[..n].to_vec()
    }
}

/// Returns the segment in a packet of the stack; `None` for other protocols.
pub fn segment(packet: &[u8]) -> Option<Segment> {
    match packet::read(packet) {
        Parsed::Tcp(segment) => Some(segment),
        _ => None,
    }
}

/// Returns the time at which the stack answers a SYN from `from` with `iss`: RFC 6528's clock
/// advances by 250,000 per second.
pub fn time_of(iss: u32, make: impl FnOnce() -> Host) -> Instant {
    // Constant: hosts share their secret.
    static F: OnceLock<u32> = OnceLock::new();
    let f = *F.get_or_init(|| {
        let mut host = make();
        let id = host.stack.tcp_listen(listen()).expect("a fresh stack listens");
        let offer = Offer { isn: 1, mss: None, shift: None, sack: false, timestamps: false };
        let (peer, _) = Peer::open(&mut host, id, 1000, 65535, offer).expect("a fresh stack accepts");
        (peer.ack - 1).wrapping_sub((host.now.as_micros() / 4) as u32)
    });
    Instant::from_micros(u64::from(iss.wrapping_sub(f)) * 4 + (4 << 32))
}

/// Returns the parameters of a listener at [`PORT`].
pub fn listen() -> fs_core::Listen {
    fs_core::Listen {
        at: std::net::SocketAddr::from((packet::LOCAL, PORT)),
        backlog: 4,
        v6_only: false,
        fast_open: 2,
        options: fs_core::TcpOptions::default(),
    }
}

impl Peer {
    /// Opens a connection to `listener`.
    pub fn open(host: &mut Host, listener: ListenerId, from: u16, window: u16, offer: Offer) -> Option<(Peer, TcpId)> {
        let mut out = Vec::new();
        let options = offer.options();
        let syn = Tcp { from, to: PORT, seq: offer.isn, flags: SYN, window, options: &options, ..Tcp::default() };
        syn.write(&mut out, false);
        host.receive(&out, true);
        let mut answer = None;
        host.transmit(64, false, |packet| {
            answer = segment(packet).map(|s| (s, internals::parse_syn(s.options(packet))));
        });
        let (answer, agreed) = answer.filter(|(s, _)| s.flags.syn() && s.flags.ack())?;
        let mut peer = Peer {
            from,
            seq: offer.isn.wrapping_add(1),
            ack: answer.seq.0.wrapping_add(1),
            window,
            ts: agreed.timestamps.map(|ts| (1001, ts.val)),
            sack: agreed.sack_permitted,
            shift: agreed.window_scale.unwrap_or(0),
            own_shift: agreed.window_scale.and(offer.shift).unwrap_or(0),
        };
        peer.send(host, ACK, peer.seq, peer.ack, &[], &[]);
        let (id, _) = host.stack.tcp_accept(listener).ok()?;
        host.transmit(64, false, |_| {});
        Some((peer, id))
    }

    /// Opens the first connection of a fresh stack, which must succeed.
    pub fn first(host: &mut Host, window: u16, offer: Offer) -> (ListenerId, Peer, TcpId) {
        let Ok(listener) = host.stack.tcp_listen(listen()) else { panic!("a fresh stack listens") };
        let Some((peer, id)) = Peer::open(host, listener, 1000, window, offer) else { panic!("a handshake fails") };
        (listener, peer, id)
    }

    /// Sends a segment with the negotiated options.
    pub fn send(&mut self, host: &mut Host, flags: u8, seq: u32, ack: u32, sack: &[(SeqNum, SeqNum)], payload: &[u8]) {
        let mut bytes = [0u8; 40];
        let mut n = 0;
        if let Some((val, ecr)) = self.ts {
            bytes[..12].copy_from_slice(&timestamps(val, ecr));
            n = 12;
        }
        n += internals::emit_sack(sack, &mut bytes[n..]);
        let (from, window) = (self.from, self.window);
        let tcp = Tcp { from, to: PORT, seq, ack, flags, window, options: &bytes[..n], payload, ..Tcp::default() };
        let mut out = Vec::with_capacity(payload.len() + 80);
        tcp.write(&mut out, false);
        host.receive(&out, true);
    }

    /// Records a segment that the stack sent.
    pub fn saw(&mut self, segment: &Segment) {
        let end = segment.seq + segment.seq_len();
        if end.after(SeqNum(self.ack)) {
            self.ack = end.0;
        }
        if let (Some((_, ecr)), Some(ts)) = (&mut self.ts, segment.ts) {
            *ecr = ts.val;
        }
    }
}

/// Runs all timers. Panics if the stack never becomes idle.
pub fn quiesce(host: &mut Host) {
    for _ in 0..2000 {
        host.transmit(64, false, |_| {});
        if host.stack.tcp_connections() + host.stack.tcp_handshakes() + host.stack.tcp_time_waits() == 0 {
            return;
        }
        assert!(host.advance_to_deadline(), "something is left, and nothing is due: {:?}", host.stack);
    }
    panic!("the stack does not come to rest: {:?}", host.stack);
}
