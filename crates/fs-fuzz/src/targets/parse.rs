//! Raw bytes as a packet, on an Ethernet link and on a raw one: no panic, no lost frame, and
//! accepted packets are consistent.

use crate::input::Input;
use fs_core::Framing;
use fs_core::RxChecksum;
use fs_core::internals::Sum;
use fs_core::internals::{Parsed, View};
use fs_core::internals::{parse_error_v4, parse_error_v6};

/// The target. See the module.
pub fn parse(data: &[u8]) -> u64 {
    let mut input = Input::new(data);
    let choice = input.byte();
    let framing = if choice & 1 == 0 { Framing::Ethernet } else { Framing::Ip };
    let vlan = (choice & 2 != 0).then_some(7);
    let view = View { framing, vlan, accept_partial_checksum: choice & 4 != 0, mac: [2, 0, 0, 0, 0, 2] };
    let checksum = if choice & 8 == 0 { RxChecksum::Verified } else { RxChecksum::Unknown };
    let tail = if choice & 16 == 0 { 0 } else { usize::from(input.word()) };
    let mut packet = input.bytes(usize::MAX).to_vec();
    if choice & 32 == 0 {
        repair(&mut packet, framing, tail);
    }
    let result = fs_core::internals::parse(&view, &packet, tail, checksum, || Sum::ZERO);
    if let Ok(parsed) = &result {
        consistent(parsed, &packet, tail);
    }
    // ICMP errors are parsed from any message.
    let errors = (parse_error_v4(&packet).is_some(), parse_error_v6(&packet).is_some());
    let kind = match result {
        Err(reason) => 100 + reason as u64,
        Ok(Parsed::Tcp(s)) => u64::from(s.flags.0) + 1000 + 1000 * u64::from(s.ts.is_some()),
        Ok(Parsed::Udp(_)) => 1,
        Ok(Parsed::Icmp { v6, .. }) => 2 + u64::from(v6),
        Ok(Parsed::Arp { .. }) => 4,
        Ok(Parsed::Ndisc { .. }) => 5,
    };
    kind << 16 | u64::from(errors.0) << 1 | u64::from(errors.1) | u64::from(choice) << 8
}

/// Repairs the fields that a fuzzer rarely guesses: MAC address, IP versions, lengths and the IPv4
/// checksum.
fn repair(packet: &mut [u8], framing: Framing, tail: usize) {
    let ip = match framing {
        Framing::Ip => 0,
        Framing::Ethernet if packet.len() < 18 => return,
        Framing::Ethernet => {
            packet[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
            let ethertype = match packet[13] % 8 {
                0..=3 => [8, 0],
                4 | 5 => [0x86, 0xdd],
                6 => [8, 6],
                _ => [0x81, 0],
            };
            packet[12..14].copy_from_slice(&ethertype);
            if packet[12..14] == [0x81, 0] { 18 } else { 14 }
        }
    };
    let Some(p) = packet.get_mut(ip..) else { return };
    let v6 = match framing {
        Framing::Ethernet => packet_is_v6(p),
        Framing::Ip => p.first().is_some_and(|b| b & 1 == 1),
    };
    let len = p.len() + tail;
    if !v6 && p.len() >= 20 {
        p[0] = 0x45 | p[0] & 1;
        p[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        p[6] &= 0x40;
        p[7] = 0;
        p[9] = [6, 17, 1, p[9]][usize::from(p[9] % 4)];
        p[10..12].copy_from_slice(&[0, 0]);
        let header = usize::from(p[0] & 15) * 4;
        let sum = Sum::of(&p[..header.min(p.len())]).finish();
        p[10..12].copy_from_slice(&sum.to_be_bytes());
    } else if v6 && p.len() >= 40 {
        p[0] = 0x60;
        p[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        p[6] = [6, 17, 58, 0, 43, 44, 60, p[6]][usize::from(p[6] % 8)];
    }
}

fn packet_is_v6(p: &[u8]) -> bool {
    p.first().is_some_and(|b| b >> 4 == 6)
}

/// Checks that offsets and lengths of an accepted packet are in bounds.
fn consistent(parsed: &Parsed, packet: &[u8], tail: usize) {
    let all = packet.len() + tail;
    match *parsed {
        Parsed::Tcp(s) => {
            assert!(usize::from(s.payload_off) <= packet.len(), "all headers are in the first frame");
            assert!(usize::from(s.payload_off) + s.payload_len as usize <= all, "text within the packet");
            assert!(
                usize::from(s.opt_off) + usize::from(s.opt_len) == usize::from(s.payload_off),
                "options end at the text"
            );
            assert_eq!(s.options(packet).len(), usize::from(s.opt_len));
            assert_eq!(s.ts, fs_core::internals::timestamps(s.options(packet)));
        }
        Parsed::Udp(d) => {
            assert!(usize::from(d.payload_off) <= packet.len(), "the header is in the first frame");
            assert!(usize::from(d.payload_off) + d.payload_len as usize <= all, "payload within the packet");
        }
        Parsed::Icmp { off, len, ip_off, .. } | Parsed::Ndisc { off, len, ip_off } => {
            assert!(ip_off < off && usize::from(off) + usize::from(len) <= packet.len() && len >= 8);
        }
        Parsed::Arp { off } => assert!(usize::from(off) <= packet.len()),
    }
}
