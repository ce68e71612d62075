//! The peer of a server: a packet generator with enough TCP to keep a server busy. It builds its
//! packets and reads the answers outside the measured time.

/// The server's address and port.
pub const SERVER: ([u8; 4], u16) = ([10, 0, 0, 1], 80);
/// Next hop of the server's answers: a router, so that one neighbour serves a million clients.
pub const GATEWAY: [u8; 4] = [10, 0, 0, 2];
/// The server's address for IPv6; the clients' differ in the last 32 bits.
pub const SERVER_V6: [u8; 16] = [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1];
/// The router's IPv6 address.
pub const GATEWAY_V6: [u8; 16] = [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
/// The clients' IPv6 network.
const SERVER_NET_V6: [u8; 16] = [0xfd, 0x78, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// Destination of the stack's connects when the generator is a server.
pub const REMOTE: ([u8; 4], u16) = ([11, 0, 0, 1], 80);
/// MAC address of the server.
pub const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// MAC address of the router.
pub const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Clients per address; further clients use the next address.
const PORTS: u32 = 50_000;
const FIRST_PORT: u16 = 1024;
const FIRST_ADDR: u32 = 0x0b00_0001;

/// TCP flags.
#[allow(missing_docs)]
pub mod flag {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
}

/// The peer's state of one connection: 12 bytes, so that a million of them rarely displace the
/// server's cache lines.
#[derive(Clone, Copy, Default)]
pub struct Flow {
    /// Next byte to send.
    pub snd_nxt: u32,
    /// Next expected byte.
    pub rcv_nxt: u32,
    /// The stack's latest timestamp.
    pub ts_recent: u32,
}

/// The generator's role.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Clients of the stack, each with its own address and port.
    Clients,
    /// One server ([`REMOTE`]) to which the stack connects; the stack's port identifies a flow.
    Server,
}

/// The clients, or the server in their place.
pub struct Clients {
    /// Sequence numbers of each connection.
    pub flows: Vec<Flow>,
    /// Offer and send timestamps.
    pub timestamps: bool,
    /// Use IPv6 instead of IPv4.
    pub v6: bool,
    /// The generator's side of the connections.
    pub role: Role,
    /// Clock of the timestamps, in ms.
    pub now_ms: u32,
    /// Ranges received beyond `rcv_nxt`, in order of arrival, of the one connection that loses
    /// packets.
    islands: Vec<(u32, u32)>,
}

/// A parsed packet of the stack.
#[derive(Clone, Copy)]
pub struct Answer {
    /// The answer's connection.
    pub flow: usize,
    /// The answer's first byte.
    pub seq: u32,
    /// Bytes of payload.
    pub payload: usize,
}

fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let total: u64 = (&mut words).map(|w| u64::from(u32::from_be_bytes([w[0], w[1], w[2], w[3]]))).sum();
    let mut last = [0; 4];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    total + u64::from(u32::from_be_bytes(last))
}

fn finish(mut sum: u64) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Clients {
    /// Creates `flows` connections, none of which has begun.
    pub fn new(flows: usize, timestamps: bool, v6: bool, role: Role) -> Self {
        Self { flows: vec![Flow::default(); flows], timestamps, v6, role, now_ms: 1, islands: Vec::new() }
    }

    /// Returns true if received data has a gap.
    pub fn missing(&self) -> bool {
        !self.islands.is_empty()
    }

    /// Returns the flow of the client with this address (its last 32 bits) and port.
    pub fn flow_of(address: u32, port: u16) -> usize {
        ((address - FIRST_ADDR) * PORTS + u32::from(port - FIRST_PORT)) as usize
    }

    /// Returns a flow's address (its last 32 bits), its port and the stack's port.
    fn addr(&self, flow: usize) -> ([u8; 4], u16, u16) {
        match self.role {
            Role::Server => (FIRST_ADDR.to_be_bytes(), REMOTE.1, flow as u16),
            Role::Clients => {
                let flow = flow as u32;
                ((FIRST_ADDR + flow / PORTS).to_be_bytes(), FIRST_PORT + (flow % PORTS) as u16, SERVER.1)
            }
        }
    }

    /// Returns the destination of the stack's connects over IPv6.
    pub fn remote_v6(&self) -> std::net::IpAddr {
        let mut ip = SERVER_NET_V6;
        ip[12..].copy_from_slice(&REMOTE.0);
        std::net::Ipv6Addr::from(ip).into()
    }

    /// Returns the length of an IP header.
    fn ip_header(&self) -> usize {
        if self.v6 { 40 } else { 20 }
    }

    /// Writes the IP packet of `flow` with these flags and `payload` bytes, and advances the
    /// sequence number. Returns its length.
    pub fn build(&mut self, flow: usize, flags: u8, payload: usize, out: &mut [u8]) -> usize {
        self.build_at(flow, 0, flags, payload, out)
    }

    /// Like [`Clients::build`], but `ahead` bytes later in the stream. If `ahead` is not 0, this
    /// leaves a gap and does not advance the sequence number.
    pub fn build_at(&mut self, flow: usize, ahead: u32, flags: u8, payload: usize, out: &mut [u8]) -> usize {
        let (address, port, to) = self.addr(flow);
        let at = self.ip_header();
        let (head, tail) = out.split_at_mut(at);
        if self.v6 {
            head.fill(0);
            head[0] = 0x60;
            head[6] = 6;
            head[7] = 64;
            head[8..24].copy_from_slice(&SERVER_NET_V6);
            head[20..24].copy_from_slice(&address);
            head[24..40].copy_from_slice(&SERVER_V6);
        } else {
            head.copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            head[12..16].copy_from_slice(&address);
            head[16..20].copy_from_slice(&SERVER.0);
        }
        let client = &mut self.flows[flow];
        let mut tcp = 20;
        tail[0..2].copy_from_slice(&port.to_be_bytes());
        tail[2..4].copy_from_slice(&to.to_be_bytes());
        tail[4..8].copy_from_slice(&client.snd_nxt.wrapping_add(ahead).to_be_bytes());
        let ack = if flags & flag::ACK != 0 { client.rcv_nxt } else { 0 };
        tail[8..12].copy_from_slice(&ack.to_be_bytes());
        tail[13] = flags;
        tail[14..16].copy_from_slice(&0xffffu16.to_be_bytes());
        tail[16..20].fill(0);
        let mut option = |bytes: &[u8]| {
            tail[tcp..tcp + bytes.len()].copy_from_slice(bytes);
            tcp += bytes.len();
        };
        if flags & flag::SYN != 0 {
            option(&[2, 4, 0x05, 0xb4, 1, 3, 3, 7, 1, 1, 4, 2]);
        }
        if self.timestamps {
            option(&[1, 1, 8, 10]);
            option(&self.now_ms.to_be_bytes());
            option(&client.ts_recent.to_be_bytes());
        }
        if !self.islands.is_empty() {
            let blocks = self.islands.len().min(3);
            option(&[1, 1, 5, 2 + 8 * blocks as u8]);
            for (start, end) in &self.islands[self.islands.len() - blocks..] {
                option(&start.to_be_bytes());
                option(&end.to_be_bytes());
            }
        }
        tail[12] = (tcp as u8 / 4) << 4;
        let len = tcp + payload;
        tail[tcp..len].fill(b'x');
        let pseudo = if self.v6 {
            head[4..6].copy_from_slice(&(len as u16).to_be_bytes());
            sum(&head[8..40])
        } else {
            head[2..4].copy_from_slice(&((at + len) as u16).to_be_bytes());
            let header = finish(sum(head));
            head[10..12].copy_from_slice(&header);
            sum(&head[12..20])
        };
        let transport = finish(pseudo + 6 + len as u64 + sum(&tail[..len]));
        tail[16..18].copy_from_slice(&transport);
        if ahead == 0 {
            let counted = payload as u32 + u32::from(flags & flag::SYN != 0) + u32::from(flags & flag::FIN != 0);
            client.snd_nxt = client.snd_nxt.wrapping_add(counted);
        }
        at + len
    }

    /// Parses a packet of the stack and updates its flow. `keep` decides whether the packet
    /// arrives.
    pub fn answer(&mut self, ip: &[u8], keep: impl FnOnce(&Answer) -> bool) -> Answer {
        let at = self.ip_header();
        let total = usize::from(u16::from_be_bytes(if self.v6 { [ip[4], ip[5]] } else { [ip[2], ip[3]] }));
        let total = if self.v6 { total + at } else { total };
        let to = word(ip, at - 4);
        let (from_port, port) = (word(ip, at) >> 16, word(ip, at) & 0xffff);
        let flow = match self.role {
            Role::Server => from_port as usize,
            Role::Clients => Self::flow_of(to, port as u16),
        };
        let tcp = usize::from(ip[at + 12] >> 4) * 4;
        let (flags, payload) = (ip[at + 13], total - at - tcp);
        let seq = word(ip, at + 4);
        let answer = Answer { flow, seq, payload };
        if !keep(&answer) {
            return answer;
        }
        let counted = payload as u32 + u32::from(flags & flag::SYN != 0) + u32::from(flags & flag::FIN != 0);
        let client = &mut self.flows[flow];
        if self.timestamps {
            let ts = (at + 20..at + tcp).find(|&at| ip[at..at + 2] == [8, 10]).expect("a timestamp in every answer");
            client.ts_recent = word(ip, ts + 2);
        }
        if flags & flag::SYN != 0 || seq == client.rcv_nxt && self.islands.is_empty() {
            client.rcv_nxt = seq.wrapping_add(counted);
        } else {
            self.arrived(flow, seq, seq.wrapping_add(counted));
        }
        answer
    }

    /// Handles a segment that is out of order, or arrives during a gap. Islands are in the order of
    /// arrival. The generator loses few packets, so they are few.
    fn arrived(&mut self, flow: usize, mut start: u32, mut end: u32) {
        let client = &mut self.flows[flow];
        let after = |a: u32, b: u32| a.wrapping_sub(b) as i32;
        if after(end, client.rcv_nxt) <= 0 {
            return;
        }
        self.islands.retain(|&(s, e)| {
            let apart = after(s, end) > 0 || after(start, e) > 0;
            if !apart {
                start = if after(s, start) < 0 { s } else { start };
                end = if after(e, end) > 0 { e } else { end };
            }
            apart
        });
        if after(start, client.rcv_nxt) <= 0 {
            client.rcv_nxt = end;
        } else {
            self.islands.push((start, end));
        }
    }
}

/// A fast random generator (xorshift64*).
pub struct Dice(u64);

impl Default for Dice {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Dice {
    /// Returns a uniform value in `0..n`.
    pub fn roll(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)) * n as u128) >> 64) as usize
    }
}
