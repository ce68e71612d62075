//! The other side of the wire: a packet generator that knows just enough TCP to keep a server busy. It
//! builds its packets and reads the answers outside the measured time.

/// The server's address and port.
pub const SERVER: ([u8; 4], u16) = ([10, 0, 0, 1], 80);
/// Where the server's answers go: a router, so that one neighbour serves a million clients.
pub const GATEWAY: [u8; 4] = [10, 0, 0, 2];
/// MAC address of the server.
pub const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// MAC address of the router.
pub const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Clients per address; the next one has the next address.
const PORTS: u32 = 50_000;
const FIRST_PORT: u16 = 1024;
const FIRST_ADDR: u32 = 0x0b00_0001;

/// TCP flags.
pub mod flag {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
}

/// One client connection: 12 bytes, so that a million of them disturb the server's caches little.
#[derive(Clone, Copy, Default)]
pub struct Flow {
    pub snd_nxt: u32,
    pub rcv_nxt: u32,
    /// The server's latest timestamp.
    pub ts_recent: u32,
}

/// The clients.
pub struct Clients {
    pub flows: Vec<Flow>,
    pub timestamps: bool,
    /// Clock of the timestamps, in ms.
    pub now_ms: u32,
}

fn addr(flow: usize) -> ([u8; 4], u16) {
    let flow = flow as u32;
    ((FIRST_ADDR + flow / PORTS).to_be_bytes(), FIRST_PORT + (flow % PORTS) as u16)
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

impl Clients {
    pub fn new(flows: usize, timestamps: bool) -> Self {
        Self { flows: vec![Flow::default(); flows], timestamps, now_ms: 1 }
    }

    /// Writes the IP packet of `flow` with these flags and `payload` bytes, and counts what it sends.
    /// Returns its length.
    pub fn build(&mut self, flow: usize, flags: u8, payload: usize, out: &mut [u8]) -> usize {
        let (ip, port) = addr(flow);
        let client = &mut self.flows[flow];
        let mut tcp = 20;
        out[..20].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        out[12..16].copy_from_slice(&ip);
        out[16..20].copy_from_slice(&SERVER.0);
        out[20..22].copy_from_slice(&port.to_be_bytes());
        out[22..24].copy_from_slice(&SERVER.1.to_be_bytes());
        out[24..28].copy_from_slice(&client.snd_nxt.to_be_bytes());
        let ack = if flags & flag::ACK != 0 { client.rcv_nxt } else { 0 };
        out[28..32].copy_from_slice(&ack.to_be_bytes());
        out[33] = flags;
        out[34..36].copy_from_slice(&0xffffu16.to_be_bytes());
        out[36..40].fill(0);
        let mut option = |bytes: &[u8]| {
            out[20 + tcp..20 + tcp + bytes.len()].copy_from_slice(bytes);
            tcp += bytes.len();
        };
        if flags & flag::SYN != 0 {
            option(&[2, 4, 0x05, 0xb4, 1, 3, 3, 7]);
        }
        if self.timestamps {
            option(&[1, 1, 8, 10]);
            option(&self.now_ms.to_be_bytes());
            option(&client.ts_recent.to_be_bytes());
        }
        out[32] = (tcp as u8 / 4) << 4;
        let len = 20 + tcp + payload;
        out[20 + tcp..len].fill(b'x');
        out[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        let header = finish(sum(&out[..20]));
        out[10..12].copy_from_slice(&header);
        let transport = finish(sum(&out[12..20]) + 6 + (tcp + payload) as u64 + sum(&out[20..len]));
        out[36..38].copy_from_slice(&transport);
        let counted = payload as u32 + u32::from(flags & flag::SYN != 0) + u32::from(flags & flag::FIN != 0);
        client.snd_nxt = client.snd_nxt.wrapping_add(counted);
        len
    }

    /// Reads an answer's IP packet and takes note of what it acknowledges and brings.
    pub fn answer(&mut self, ip: &[u8]) {
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let to = u32::from_be_bytes([ip[16], ip[17], ip[18], ip[19]]);
        let port = u16::from_be_bytes([ip[22], ip[23]]);
        let flow = ((to - FIRST_ADDR) * PORTS + u32::from(port - FIRST_PORT)) as usize;
        let tcp = usize::from(ip[32] >> 4) * 4;
        let (flags, payload) = (ip[33], total - 20 - tcp);
        let client = &mut self.flows[flow];
        let seq = u32::from_be_bytes([ip[24], ip[25], ip[26], ip[27]]);
        let counted = payload as u32 + u32::from(flags & flag::SYN != 0) + u32::from(flags & flag::FIN != 0);
        client.rcv_nxt = seq.wrapping_add(counted);
        if self.timestamps {
            let at = (40..20 + tcp).find(|&at| ip[at..at + 2] == [8, 10]).expect("a timestamp in every answer");
            client.ts_recent = u32::from_be_bytes([ip[at + 2], ip[at + 3], ip[at + 4], ip[at + 5]]);
        }
    }
}

/// A cheap generator for "at random" (xorshift64*).
pub struct Dice(u64);

impl Dice {
    pub fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    /// Uniform in `0..n`.
    pub fn roll(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)) * n as u128) >> 64) as usize
    }
}
