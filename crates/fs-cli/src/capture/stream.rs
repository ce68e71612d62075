//! Converts connections through shared memory into packets: a SYN from each side, data with
//! sequence numbers from its positions, FIN, RST. Missed data is a gap in the sequence numbers, and
//! a comment on the next packet.

use super::file::{Packet, PcapNg, RAW, Way};
use etherparse::PacketBuilder;
use fs_shm::Side;
use fs_shm::follow::{Connection, Seen};
use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Largest segment, about as large as the MTU of the kernel's loopback device.
const SEGMENT: usize = 32 << 10;

/// Longest comment.
const COMMENT: usize = 1000;

/// An arena and a connection in it.
type Key = (u32, Connection);

struct Stream {
    addrs: [SocketAddr; 2],
    /// Positions told of.
    at: [u64; 2],
    ended: [bool; 2],
    comment: Option<String>,
}

/// All connections, and the file.
pub(super) struct Streams {
    interface: u32,
    open: HashMap<Key, Stream>,
    packet: Vec<u8>,
    /// Bytes seen, and bytes missed.
    pub(super) bytes: u64,
    pub(super) missed: u64,
    pub(super) connections: u64,
}

#[derive(Clone, Copy, Default)]
struct Flags {
    syn: bool,
    fin: bool,
    rst: bool,
    psh: bool,
}

impl Streams {
    pub(super) fn new(file: &mut PcapNg<impl Write>) -> io::Result<Self> {
        let interface = file.interface(
            RAW,
            "fastsock-memory",
            "connections between processes of this host, by shared memory: packets made of what they carry",
        )?;
        Ok(Streams { interface, open: HashMap::new(), packet: Vec::new(), bytes: 0, missed: 0, connections: 0 })
    }

    pub(super) fn interface(&self) -> u32 {
        self.interface
    }

    /// The arena has ended.
    pub(super) fn forget(&mut self, arena: u32) {
        self.open.retain(|(of, _), _| *of != arena);
    }

    pub(super) fn see(
        &mut self,
        file: &mut PcapNg<impl Write>,
        time: u64,
        arena: u32,
        connection: Connection,
        seen: Seen<'_>,
    ) -> io::Result<()> {
        let key = (arena, connection);
        if let Seen::Opened { addrs, joined } = seen {
            self.connections += 1;
            let at = joined.unwrap_or_default();
            let comment = joined.map(|_| "it was open before the capture began".to_owned());
            self.open.insert(key, Stream { addrs: same_family(addrs), at, ended: [false; 2], comment });
            if joined.is_none() {
                let syn = Flags { syn: true, ..Flags::default() };
                self.write(file, time, key, Side::A, syn, &[])?;
                self.write(file, time, key, Side::B, syn, &[])?;
                self.write(file, time, key, Side::A, Flags::default(), &[])?;
            }
            return Ok(());
        }
        let Some(stream) = self.open.get_mut(&key) else { return Ok(()) };
        match seen {
            Seen::Opened { .. } => {}
            Seen::Bytes { from, at, bytes } => {
                stream.at[from.index()] = at;
                self.bytes += bytes.len() as u64;
                let count = bytes.len().div_ceil(SEGMENT);
                for (number, segment) in bytes.chunks(SEGMENT).enumerate() {
                    let flags = Flags { psh: number + 1 == count, ..Flags::default() };
                    self.write(file, time, key, from, flags, segment)?;
                    if let Some(stream) = self.open.get_mut(&key) {
                        stream.at[from.index()] = stream.at[from.index()].wrapping_add(segment.len() as u64);
                    }
                }
            }
            Seen::Gap { from, at, len } => {
                stream.at[from.index()] = at.wrapping_add(len);
                self.missed = self.missed.saturating_add(len);
                stream.say(&format!("{len} bytes from {} before this packet were missed", stream.addrs[from.index()]));
            }
            Seen::End { from } => {
                self.write(file, time, key, from, Flags { fin: true, ..Flags::default() }, &[])?;
                if let Some(stream) = self.open.get_mut(&key) {
                    stream.ended[from.index()] = true;
                }
                self.write(file, time, key, from.other(), Flags::default(), &[])?;
            }
            Seen::Reset { from } => {
                self.write(file, time, key, from, Flags { rst: true, ..Flags::default() }, &[])?;
            }
            Seen::Closed { cut } => {
                if cut {
                    stream.say("the last bytes of the connection, and how it ended, were missed");
                }
                if stream.comment.is_some() {
                    self.write(file, time, key, Side::A, Flags::default(), &[])?;
                }
                self.open.remove(&key);
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        file: &mut PcapNg<impl Write>,
        time: u64,
        key: Key,
        from: Side,
        flags: Flags,
        payload: &[u8],
    ) -> io::Result<()> {
        let Some(stream) = self.open.get_mut(&key) else { return Ok(()) };
        let (me, peer) = (from.index(), from.other().index());
        let sequence =
            |side: usize, first: u64| (stream.at[side].wrapping_add(first + u64::from(stream.ended[side]))) as u32;
        let builder = match (stream.addrs[me].ip(), stream.addrs[peer].ip()) {
            (IpAddr::V4(source), IpAddr::V4(to)) => PacketBuilder::ipv4(source.octets(), to.octets(), 64),
            (source, to) => PacketBuilder::ipv6(v6(source), v6(to), 64),
        };
        let ports = [stream.addrs[me].port(), stream.addrs[peer].port()];
        let mut tcp = builder.tcp(ports[0], ports[1], sequence(me, u64::from(!flags.syn)), u16::MAX);
        if !flags.syn || from == Side::B {
            tcp = tcp.ack(sequence(peer, 1));
        }
        if flags.syn {
            tcp = tcp.syn();
        }
        if flags.fin {
            tcp = tcp.fin();
        }
        if flags.rst {
            tcp = tcp.rst();
        }
        if flags.psh {
            tcp = tcp.psh();
        }
        self.packet.clear();
        tcp.write(&mut self.packet, payload).map_err(io::Error::other)?;
        let comment = stream.comment.take();
        let (interface, bytes) = (self.interface, &self.packet[..]);
        file.packet(&Packet {
            interface,
            time,
            way: Way::Unknown,
            comment: comment.as_deref(),
            len: bytes.len() as u32,
            bytes,
        })
    }
}

impl Stream {
    /// Adds a comment to the next packet.
    fn say(&mut self, what: &str) {
        let comment = self.comment.get_or_insert_default();
        if comment.len() > COMMENT {
            return;
        }
        if !comment.is_empty() {
            comment.push_str("; ");
        }
        comment.push_str(what);
    }
}

/// Converts both addresses to one family: `::ffff:10.0.0.1` becomes 10.0.0.1.
fn same_family(addrs: [Option<SocketAddr>; 2]) -> [SocketAddr; 2] {
    let unknown = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    addrs.map(|addr| addr.map_or(unknown, |addr| SocketAddr::new(addr.ip().to_canonical(), addr.port())))
}

fn v6(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::SlicedPacket;
    use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
    use pcap_parser::{Block, PcapBlockOwned, PcapError, PcapNGReader};

    const CONNECTION: Connection = Connection { slot: 3, generation: 9 };

    fn seen(events: &[Seen<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut file = PcapNg::new(&mut bytes).unwrap();
        let mut streams = Streams::new(&mut file).unwrap();
        for (time, seen) in (1_700_000_000_000_000_001..).zip(events) {
            streams.see(&mut file, time, 7, CONNECTION, *seen).unwrap();
        }
        file.statistics(0, 5, 1, 2).unwrap();
        bytes
    }

    /// Source port, flags, sequence number, acknowledgment, payload, comment.
    type Told = (u16, String, u32, u32, Vec<u8>, Option<String>);

    /// Parses each packet with an independent reader.
    fn packets(bytes: &[u8]) -> Vec<Told> {
        let mut reader = PcapNGReader::new(1 << 20, bytes).unwrap();
        let (mut packets, mut statistics) = (Vec::new(), 0);
        loop {
            match reader.next() {
                Ok((offset, block)) => {
                    match block {
                        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                            let data = &packet.packet_data()[..packet.caplen as usize];
                            let sliced = SlicedPacket::from_ip(data).unwrap();
                            let Some(etherparse::TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("no TCP") };
                            let flags = [(tcp.syn(), 'S'), (tcp.fin(), 'F'), (tcp.rst(), 'R'), (tcp.psh(), 'P')];
                            let flags = flags.iter().filter(|(on, _)| *on).map(|(_, name)| name).collect();
                            let acked = if tcp.ack() { tcp.acknowledgment_number() } else { 0 };
                            let comment = packet.options.iter().find(|option| option.code.0 == 1);
                            let comment = comment.map(|option| String::from_utf8(option.value.to_vec()).unwrap());
                            let payload = tcp.payload().to_vec();
                            packets.push((tcp.source_port(), flags, tcp.sequence_number(), acked, payload, comment));
                        }
                        PcapBlockOwned::NG(Block::InterfaceStatistics(_)) => statistics += 1,
                        PcapBlockOwned::NG(Block::SectionHeader(_) | Block::InterfaceDescription(_)) => {}
                        _ => panic!("another kind of block"),
                    }
                    reader.consume(offset);
                }
                Err(PcapError::Eof) => break,
                Err(PcapError::Incomplete(_)) => reader.refill().unwrap(),
                Err(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(statistics, 1);
        packets
    }

    fn opened(joined: Option<[u64; 2]>) -> Seen<'static> {
        Seen::Opened { addrs: ["[::ffff:127.0.0.1]:700", "127.0.0.1:80"].map(|addr| addr.parse().ok()), joined }
    }

    #[test]
    fn whole_connection() {
        let packets = packets(&seen(&[
            opened(None),
            Seen::Bytes { from: Side::A, at: 0, bytes: b"GET" },
            Seen::Bytes { from: Side::B, at: 0, bytes: &[7; 40_000] },
            Seen::End { from: Side::A },
            Seen::End { from: Side::B },
            Seen::Closed { cut: false },
        ]));
        let short: Vec<_> = packets
            .iter()
            .map(|(port, flags, seq, ack, payload, _)| (*port, &**flags, *seq, *ack, payload.len()))
            .collect();
        assert_eq!(
            short,
            [
                (700, "S", 0, 0, 0),
                (80, "S", 0, 1, 0),
                (700, "", 1, 1, 0),
                (700, "P", 1, 1, 3),
                (80, "", 1, 4, 32768),
                (80, "P", 32769, 4, 7232),
                (700, "F", 4, 40001, 0),
                (80, "", 40001, 5, 0),
                (80, "F", 40001, 5, 0),
                (700, "", 5, 40002, 0),
            ]
        );
        assert_eq!(packets[3].4, b"GET");
        assert!(packets.iter().all(|packet| packet.5.is_none()));
    }

    #[test]
    fn missed_data_is_reported() {
        let packets = packets(&seen(&[
            opened(Some([1 << 33, 5])),
            Seen::Gap { from: Side::A, at: 1 << 33, len: 100 },
            Seen::Bytes { from: Side::A, at: (1 << 33) + 100, bytes: b"x" },
            Seen::Closed { cut: true },
        ]));
        assert_eq!((packets[0].2, packets[0].3, packets.len()), (101, 6, 2));
        let comment = packets[0].5.as_deref().unwrap();
        assert!(comment.contains("open before the capture began; 100 bytes from 127.0.0.1:700 before"), "{comment}");
        assert!(packets[1].5.as_deref().unwrap().contains("how it ended, were missed"));
    }

    #[test]
    fn reset_between_address_families() {
        let unlike = Seen::Opened { addrs: [None, "[::1]:80".parse().ok()], joined: None };
        let packets = packets(&seen(&[unlike, Seen::Reset { from: Side::B }, Seen::Closed { cut: false }]));
        assert_eq!((packets.len(), packets[3].0, &*packets[3].1), (4, 80, "R"));
    }
}
