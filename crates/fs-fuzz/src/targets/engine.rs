//! Frames, time and calls against a whole stack: well-formed hostile packets, with sequence numbers
//! near the relevant ones, mixed with an application's calls. After each step the stack's
//! invariants must hold; at the end, when everything is closed and time has passed, nothing may be
//! left.

mod packets;

use super::{fill, tcp_config};
use crate::host::{Host, Plan};
use crate::input::Input;
use crate::packet::{self, ACK, FIN, LOCAL, PEER, PSH, RST, SYN, Tcp, timestamps};
use crate::peer::{Offer, PORT, listen, quiesce};
use fs_core::internals::Parsed;
use fs_core::internals::SeqNum;
use fs_core::internals::Sum;
use fs_core::internals::emit_sack;
use fs_core::{
    Connect, Duration, FramePool, IfaceId, Keepalive, Linger, Listen, ListenerId, Received, Shutdown, TcpId,
    TcpOptions, UdpId,
};
use std::net::{IpAddr, SocketAddr};

/// Number of flows that the script can name.
const FLOWS: usize = 4;
const UDP_PORT: u16 = 53;

/// Observed state of a flow, for sending segments that fit, or nearly fit.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// The peer's and the stack's port.
    from: u16,
    to: u16,
    /// The stack's next expected sequence number, and its window.
    seq: u32,
    window: u32,
    /// The stack's sent sequence numbers.
    una: u32,
    nxt: u32,
    /// The peer's clock and the stack's.
    ts: (u32, u32),
    shift: u8,
}

/// The target. See the module.
pub fn frame_to_engine(data: &[u8]) -> u64 {
    let mut input = Input::new(data);
    let tcp = tcp_config(&mut input);
    let plan = Plan {
        frame_size: input.pick(&[2048, 512, 1024]),
        frames: input.pick(&[128, 48, 250]),
        mtu: input.pick(&[1500, 1280, 576]),
        tx_checksum: false,
        ..Plan::new(tcp)
    };
    let mut world = World::new(plan);
    while !input.is_done() {
        world.step(&mut input);
    }
    let signature = world.host.signature();
    world.finish();
    signature
}

struct World {
    host: Host,
    flows: [Flow; FLOWS],
    listener: Option<ListenerId>,
    ids: Vec<TcpId>,
    udp: Option<UdpId>,
    /// Frames that the target holds, so that the pool is short.
    taken: Vec<fs_core::Frame>,
    out: Vec<u8>,
    text: Vec<u8>,
    /// A Fast Open cookie that the stack has issued.
    cookie: Vec<u8>,
}

impl World {
    fn new(plan: Plan) -> Self {
        let mut host = Host::new(plan);
        let listener = host.stack.tcp_listen(listen()).ok();
        let udp = host.stack.udp_bind(SocketAddr::from((LOCAL, UDP_PORT))).ok();
        let mut flows = [Flow::default(); FLOWS];
        for (i, flow) in flows.iter_mut().enumerate() {
            *flow = Flow { from: 1000 + i as u16, to: PORT, ts: (1000, 0), ..Flow::default() };
        }
        Self {
            host,
            flows,
            listener,
            ids: Vec::new(),
            udp,
            taken: Vec::new(),
            out: Vec::new(),
            text: Vec::new(),
            cookie: Vec::new(),
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let hold = match input.below(24) {
            0 | 1 => self.syn(input),
            2..=4 => self.fitting(input),
            5..=8 => self.hostile(input),
            9 => self.reset(input),
            10 => self.icmp(input),
            11 => self.udp(input),
            12 => self.raw(input),
            13 | 14 => self.time(input),
            15 => self.accept(),
            16 | 17 => self.receive(input),
            18 | 19 => self.send(input),
            20 => self.close(input),
            21 => self.listener(input),
            22 => self.connect(input),
            _ => self.trouble(input),
        };
        self.transmit(hold);
        self.host.check();
    }

    // ---- time and applications

    fn time(&mut self, input: &mut Input<'_>) -> bool {
        let by = input.pick(&[1u64, 41, 210, 1000, 70_000, 0, 0, 3]);
        if by == 0 {
            self.host.advance_to_deadline();
        } else {
            self.host.advance(Duration::from_millis(by));
        }
        false
    }

    fn accept(&mut self) -> bool {
        if let Some((id, _)) = self.listener.and_then(|l| self.host.stack.tcp_accept(l).ok()) {
            self.ids.push(id);
        }
        false
    }

    fn id(&self, input: &mut Input<'_>) -> Option<TcpId> {
        let at = input.below(self.ids.len());
        self.ids.get(at).copied()
    }

    fn receive(&mut self, input: &mut Input<'_>) -> bool {
        let (Some(id), Some(to)) = (self.id(input), self.id(input)) else { return false };
        let stack = &mut self.host.stack;
        match input.below(5) {
            4 => {
                let _ = stack.tcp_forward(id, to, input.word().into());
            }
            0 => {
                if let Ok(Received::Frame(frame)) = stack.tcp_recv_frame(id) {
                    stack.pool_mut().free(frame);
                }
            }
            1 => {
                let _ = stack.tcp_peek(id, &mut [0; 100]);
            }
            _ => {
                let mut buf = [0; 2048];
                let n = usize::from(input.word()) % buf.len();
                let _ = stack.tcp_recv(id, &mut buf[..n]);
            }
        }
        false
    }

    fn send(&mut self, input: &mut Input<'_>) -> bool {
        let Some(id) = self.id(input) else { return false };
        let n = usize::from(input.word() % 8192);
        let _ = self.host.stack.tcp_send(id, &[0x55; 8192][..n]);
        // The device may hold the packets that leave now.
        input.chance(64)
    }

    fn close(&mut self, input: &mut Input<'_>) -> bool {
        if self.ids.is_empty() {
            return false;
        }
        let at = input.below(self.ids.len());
        let id = self.ids[at];
        let stack = &mut self.host.stack;
        match input.below(6) {
            0 | 1 => {
                let _ = stack.tcp_shutdown(id, input.pick(&[Shutdown::Write, Shutdown::Read, Shutdown::Both]));
                return false;
            }
            2 => stack.tcp_abort(id),
            _ => stack.tcp_close(id),
        }
        self.ids.swap_remove(at);
        assert!(stack.tcp_state(id).is_err(), "a closed handle is stale");
        false
    }

    fn listener(&mut self, input: &mut Input<'_>) -> bool {
        if input.chance(128) {
            return self.accept();
        }
        let defer_accept = input.chance(128).then(|| Duration::from_secs(3));
        let options = TcpOptions { defer_accept, ..TcpOptions::default() };
        match self.listener.take() {
            Some(id) => self.host.stack.tcp_close_listener(id),
            None => self.listener = self.host.stack.tcp_listen(Listen { options, ..listen() }).ok(),
        }
        false
    }

    fn connect(&mut self, input: &mut Input<'_>) -> bool {
        let remote = SocketAddr::from((PEER, 1000 + u16::from(input.byte() % 4)));
        let local = input.chance(64).then(|| SocketAddr::from((LOCAL, input.pick(&[0, PORT, 50001]))));
        if let Ok(id) = self.host.stack.tcp_connect(Connect { remote, local, options: TcpOptions::default() }) {
            self.ids.push(id);
        }
        false
    }

    /// Makes changes of operators, devices and memory.
    fn trouble(&mut self, input: &mut Input<'_>) -> bool {
        match input.below(5) {
            0 => self.host.release(),
            1 => {
                for _ in 0..input.below(200) {
                    self.taken.extend(self.host.stack.pool_mut().alloc());
                }
            }
            2 => self.taken.drain(..).for_each(|frame| self.host.stack.pool_mut().free(frame)),
            3 => {
                let Some(id) = self.id(input) else { return false };
                let Ok(mut options) = self.host.stack.tcp_options(id) else { return false };
                options.nodelay = input.chance(128);
                options.cork = input.chance(64);
                options.receive_buffer = input.chance(64).then(|| u32::from(input.word()));
                options.send_buffer = input.chance(64).then(|| u32::from(input.word()));
                options.keepalive =
                    input.chance(64).then(|| Keepalive { idle: Duration::from_secs(1), ..Keepalive::default() });
                options.linger = input.pick(&[
                    Linger::Background,
                    Linger::Timeout(Duration::from_secs(2)),
                    Linger::Timeout(Duration::ZERO),
                ]);
                options.user_timeout = input.chance(64).then(|| Duration::from_secs(3));
                let _ = self.host.stack.tcp_set_options(id, options);
            }
            _ => {
                let mtu = input.pick(&[1500, 1280, 576]);
                self.host.stack.update_interface(IfaceId(0), |i| i.mtu = mtu);
            }
        }
        false
    }

    /// Returns the flow of a step; the stack's own connection may occupy one.
    fn flow(&self, input: &mut Input<'_>) -> usize {
        input.below(FLOWS)
    }

    /// Checks the packets that the stack sends: every one must be well-formed.
    fn transmit(&mut self, hold: bool) {
        let Self { host, flows, taken, cookie, .. } = self;
        let peer = IpAddr::from(PEER);
        host.transmit(64, hold, |packet| {
            let Parsed::Tcp(s) = packet::read(packet) else { return };
            assert_eq!((s.key.local_ip(), s.key.remote_ip()), (peer, IpAddr::from(LOCAL)));
            let Some(flow) = flows.iter_mut().find(|f| f.from == s.key.local_port()) else { return };
            flow.to = s.key.remote_port();
            if s.flags.rst() {
                return;
            }
            let end = s.seq + s.seq_len();
            if s.flags.syn() {
                if let Some(given) = fast_open(s.options(packet)) {
                    cookie.clear();
                    cookie.extend_from_slice(given);
                }
                (flow.una, flow.nxt) = (s.seq.0, end.0);
            } else if end.after(SeqNum(flow.nxt)) {
                (flow.una, flow.nxt) = (s.seq.0, end.0);
            }
            if s.flags.ack() {
                flow.seq = s.ack.0;
                flow.window = u32::from(s.window);
            }
            if let Some(ts) = s.ts {
                flow.ts.1 = ts.val;
            }
        });
        host.outside = taken.len();
    }

    fn finish(mut self) {
        self.host.release();
        self.taken.drain(..).for_each(|frame| self.host.stack.pool_mut().free(frame));
        self.host.outside = 0;
        for id in self.ids.drain(..) {
            self.host.stack.tcp_abort(id);
        }
        if let Some(listener) = self.listener {
            self.host.stack.tcp_close_listener(listener);
        }
        if let Some(udp) = self.udp {
            self.host.stack.udp_close(udp);
        }
        quiesce(&mut self.host);
        self.host.check();
        self.host.check_empty();
    }
}

/// Returns the cookie of a SYN-ACK (RFC 7413).
fn fast_open(mut options: &[u8]) -> Option<&[u8]> {
    loop {
        match options {
            [1, rest @ ..] => options = rest,
            [34, len, ..] => return options.get(2..usize::from(*len)),
            [2..=255, len, ..] if *len >= 2 => options = options.get(usize::from(*len)..)?,
            _ => return None,
        }
    }
}
