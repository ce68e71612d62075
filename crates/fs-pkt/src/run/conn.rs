//! A connection as the script speaks of it and as it is on the wire.

use std::collections::HashMap;
use std::net::SocketAddr;

/// How far a connection is, for telling which packets and calls are its.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// After socket().
    New,
    /// After listen().
    Listening,
    /// A script's packet came to a listener.
    Received,
    /// Our SYN-ACK was seen.
    SynAckSent,
    /// The script's packet that acknowledges it was injected.
    SynAckAcked,
    /// After connect() (or a datagram's sendto()).
    Connecting,
    /// The script expects our SYN.
    SynSent,
    /// The script's SYN-ACK was injected.
    SynAcked,
}

#[derive(Clone, Debug)]
pub(super) struct Conn {
    pub(super) stage: Stage,
    /// SOCK_STREAM's or SOCK_DGRAM's protocol.
    pub(super) udp: bool,
    pub(super) icmp: bool,
    /// The script's descriptor.
    pub(super) fd: Option<i32>,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    /// First sequence numbers in the script, and ours on the wire. The peer's are the same in both.
    pub(super) script_isn: u32,
    pub(super) live_isn: u32,
    pub(super) remote_isn: u32,
    /// Our timestamps: the script's and those on the wire.
    pub(super) stamps: HashMap<u32, u32>,
    pub(super) first_stamp: Option<(u32, u32)>,
    /// The flow label, in the script and on the wire.
    pub(super) label: Option<(u32, u32)>,
}

impl Conn {
    pub(super) fn new(stage: Stage) -> Self {
        Self {
            stage,
            udp: false,
            icmp: false,
            fd: None,
            local: None,
            remote: None,
            script_isn: 0,
            live_isn: 0,
            remote_isn: 0,
            stamps: HashMap::new(),
            first_stamp: None,
            label: None,
        }
    }

    /// What is added to the script's sequence numbers of ours to get those on the wire. A SYN's are absolute.
    pub(super) fn local_offset(&self, syn: bool) -> u32 {
        if syn { self.live_isn.wrapping_sub(self.script_isn) } else { self.live_isn }
    }

    /// The same for the peer's.
    pub(super) fn remote_offset(&self, syn: bool) -> u32 {
        if syn { 0 } else { self.remote_isn }
    }

    /// The script's timestamp for one of ours.
    pub(super) fn script_stamp(&self, live: u32) -> u32 {
        let (script, first) = self.first_stamp.unwrap_or((live, live));
        script.wrapping_add(live.wrapping_sub(first))
    }

    /// The timestamp on the wire for what the script echoes.
    pub(super) fn live_stamp(&self, script: u32, scaled: bool) -> Option<u32> {
        let worked_out = || {
            let (first_script, first) = self.first_stamp?;
            scaled.then(|| first.wrapping_add(script.wrapping_sub(first_script)))
        };
        self.stamps.get(&script).copied().or_else(worked_out)
    }
}
