//! A connection in the script's terms and on the wire.

use std::collections::HashMap;
use std::net::SocketAddr;

/// Progress of a connection, which determines the packets and calls that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// After socket().
    New,
    /// After listen().
    Listening,
    /// A packet of the script was injected for a listener.
    Received,
    /// Our SYN-ACK was received.
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
    /// True for SOCK_DGRAM.
    pub(super) udp: bool,
    pub(super) icmp: bool,
    /// The script's descriptor.
    pub(super) fd: Option<i32>,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    /// Our initial sequence numbers in the script and on the wire. The peer's are the same in both.
    pub(super) script_isn: u32,
    pub(super) live_isn: u32,
    pub(super) remote_isn: u32,
    /// Our timestamps: from the script's to those on the wire.
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

    /// Returns the offset from our sequence numbers in the script to those on the wire. A SYN's are
    /// absolute.
    pub(super) fn local_offset(&self, syn: bool) -> u32 {
        if syn { self.live_isn.wrapping_sub(self.script_isn) } else { self.live_isn }
    }

    /// Returns the offset for the peer's sequence numbers.
    pub(super) fn remote_offset(&self, syn: bool) -> u32 {
        if syn { 0 } else { self.remote_isn }
    }

    /// Returns the script's timestamp for one of ours.
    pub(super) fn script_stamp(&self, live: u32) -> u32 {
        let (script, first) = self.first_stamp.unwrap_or((live, live));
        script.wrapping_add(live.wrapping_sub(first))
    }

    /// Returns the timestamp on the wire for the script's echo.
    pub(super) fn live_stamp(&self, script: u32, scaled: bool) -> Option<u32> {
        let worked_out = || {
            let (first_script, first) = self.first_stamp?;
            scaled.then(|| first.wrapping_add(script.wrapping_sub(first_script)))
        };
        self.stamps.get(&script).copied().or_else(worked_out)
    }
}
