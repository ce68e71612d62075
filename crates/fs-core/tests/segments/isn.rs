//! Initial sequence numbers: RFC 9293 3.4.1, RFC 6528.

use crate::lab::*;
use fs_core::*;

/// Returns the sequence number of our SYN-ACK for a SYN from `port`, whose handshake is reset at
/// once.
fn answered(lab: &mut Lab, port: u16) -> u32 {
    let syn = Seg { from: port, to: 80, seq: PEER_ISN, flags: SYN, window: 65535, ..Seg::default() };
    lab.send(&syn);
    let answer = lab.one();
    assert!(answer.has(SYN | ACK), "{answer:?}");
    lab.send(&Seg { seq: PEER_ISN.wrapping_add(1), flags: RST, ..syn });
    lab.silence();
    answer.seq
}

#[test]
fn isn_follows_four_microsecond_clock() {
    let mut lab = Lab::new(TcpConfig::default());
    lab.listen(TcpOptions::default(), 0);
    let first = answered(&mut lab, 4000);
    lab.pass(Duration::from_secs(3));
    assert_eq!(answered(&mut lab, 4000).wrapping_sub(first), 750_000);
    lab.pass(Duration::from_millis(1));
    assert_eq!(answered(&mut lab, 4000).wrapping_sub(first), 750_250);
}

#[test]
fn isns_of_flows_are_unrelated() {
    let mut lab = Lab::new(TcpConfig::default());
    lab.listen(TcpOptions::default(), 0);
    let numbers: Vec<u32> = (4000..4064).map(|port| answered(&mut lab, port)).collect();
    // Distances of neighbours: all different, and spread over the whole space.
    let mut steps: Vec<u32> = numbers.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    steps.sort_unstable();
    steps.dedup();
    assert_eq!(steps.len(), 63);
    let quarters: std::collections::BTreeSet<u32> = numbers.iter().map(|n| n >> 30).collect();
    assert_eq!(quarters.len(), 4, "{numbers:x?}");
}
