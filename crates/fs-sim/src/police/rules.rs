//! The rules: the permitted segments of one direction of a flow, given the segments that it has
//! sent and that have reached it.
//!
//! Sequence numbers are unwrapped offsets from the initial one: SYN is 0, the first byte of data 1.

use super::ranges::Ranges;
use super::segment::{ACK, CWR, ECE, FIN, RST, SYN, Segment};
use fs_core::{Duration, Instant};
use std::collections::VecDeque;

/// Number of equal empty ACKs within [`ECHO_TIME`], with nothing to acknowledge in between, that
/// counts as a storm.
const ECHOES_MAX: u32 = 50;
const ECHO_TIME: Duration = Duration::from_secs(1);
/// Number of RSTs that may be sent without cause: an abort in addition to replies.
const RESETS_FREE: u64 = 2;

/// Requirement of received marks on the next ACKs.
#[derive(Clone, Copy, Debug)]
enum Echo {
    /// ACKs of this offset or more must carry ECE.
    Must(i64),
    /// ACKs of this offset or more must not.
    MustNot(i64),
    /// A duplicate arrived: it is unknown which copy the stack accepted.
    Unknown,
}

/// One direction of a flow.
#[derive(Clone, Debug)]
pub(super) struct Direction {
    iss: Option<u32>,
    // ---- properties from its SYN
    scale: Option<u8>,
    mss: Option<u32>,
    sack_ok: bool,
    timestamps: bool,
    ecn: bool,
    // ---- segments that it has sent
    /// End of all sent data.
    end: i64,
    /// Data that is not known to be acknowledged, and its offset.
    bytes: VecDeque<u8>,
    bytes_from: i64,
    fin_at: Option<i64>,
    tsval: Option<u32>,
    /// The direction's acknowledgement and the right edge that it has offered: offsets of the
    /// opposite direction.
    ack: i64,
    edge: Option<i64>,
    resets: u64,
    /// The direction's latest empty ACK, number of repetitions, and start of them.
    empty: (u32, u32, u32),
    echoes: u32,
    echoes_since: Instant,
    /// True if this direction has carried more than SYNs. Then the next new SYN begins a new
    /// connection.
    used: bool,
    /// Two handshakes are mixed up (a SYN answered twice, differently): not checked.
    murky: bool,
    // ---- segments of it that have reached the other side
    delivered: Ranges,
    /// Data that arrived more than once.
    twice: Ranges,
    /// The latest timestamp of those without a hole before them.
    tsval_delivered: Option<u32>,
    // ---- segments that have reached it
    /// Right edge of the window that it may use.
    allowed: Option<i64>,
    acked: i64,
    /// Window of a SYN that it has not answered.
    syn_window: Option<u32>,
    echo: Echo,
    /// Number of segments without RST.
    heard: u64,
    /// Some of these were empty or SACKs after the handshake: congestion control determines what it
    /// may send then.
    heard_empty: bool,
}

impl Default for Direction {
    fn default() -> Self {
        Self {
            iss: None,
            scale: None,
            mss: None,
            sack_ok: false,
            timestamps: false,
            ecn: false,
            end: 0,
            bytes: VecDeque::new(),
            bytes_from: 1,
            fin_at: None,
            tsval: None,
            ack: 0,
            edge: None,
            resets: 0,
            empty: (0, 0, 0),
            echoes: 0,
            echoes_since: Instant::ZERO,
            used: false,
            murky: false,
            delivered: Ranges::default(),
            twice: Ranges::default(),
            tsval_delivered: None,
            allowed: None,
            acked: 0,
            syn_window: None,
            echo: Echo::MustNot(0),
            heard: 0,
            heard_empty: false,
        }
    }
}

fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

impl Direction {
    /// Returns the offset of one of its sequence numbers, assumed to be near the end of its sent
    /// data.
    fn offset(&self, seq: u32) -> i64 {
        let near = self.iss.unwrap_or(0).wrapping_add(self.end as u32);
        self.end + i64::from(seq.wrapping_sub(near) as i32)
    }

    /// Checks a SYN that it sends.
    pub(super) fn on_syn(&mut self, back: &mut Direction, segment: &Segment) -> Result<(), String> {
        let is_answer = segment.has(ACK);
        if segment.ecn != 0 {
            return Err("ECT on a SYN".into());
        }
        if self.iss != Some(segment.seq) {
            if !is_answer && self.iss.is_some() && back.used || self.used && !is_answer {
                *back = Direction { heard: back.heard, ..Direction::default() };
            }
            // Also after the connection's end: a late copy of the SYN is answered again.
            let murky = is_answer && self.iss.is_some();
            let syn_window = self.syn_window;
            *self = Direction {
                iss: Some(segment.seq),
                murky,
                syn_window,
                end: 1,
                heard: self.heard,
                ..Direction::default()
            };
            if is_answer {
                // The SYN that it answers offers its window, unscaled, from our first byte on.
                self.allowed = syn_window.map(|window| 1 + i64::from(window));
            }
        }
        self.scale = segment.scale;
        self.mss = segment.mss;
        self.sack_ok = segment.sack_ok;
        self.timestamps = segment.timestamps.is_some();
        self.edge = None;
        if is_answer && segment.has(ECE) && !back.ecn {
            return Err("ECN is accepted without an offer".into());
        }
        self.ecn |= segment.has(ECE);
        self.on_data(1, segment)
    }

    /// Checks any other segment that it sends.
    pub(super) fn on_segment(
        &mut self,
        back: &Direction,
        segment: &Segment,
        now: Instant,
        initial_window: u32,
    ) -> Result<(), String> {
        self.used = true;
        if segment.has(RST) {
            self.resets += 1;
            if self.resets > self.heard + RESETS_FREE {
                return Err(format!("{} RSTs, and only {} segments have come", self.resets, self.heard));
            }
            return if segment.ecn == 0 { Ok(()) } else { Err("ECT on a RST".into()) };
        }
        if self.iss.is_none() || back.iss.is_none() || self.murky || back.murky {
            return Ok(());
        }
        if !segment.has(ACK) {
            return Err("a segment without ACK".into());
        }
        self.on_ack(back, segment)?;
        let start = self.offset(segment.seq);
        let len = segment.payload.len() as i64;
        let new = start + len > self.end;
        if len > 0 && self.allowed.is_none_or(|allowed| start + len > allowed) {
            return Err(format!(
                "sends {start}..{}, beyond the peer's window, which ends at {:?}",
                start + len,
                self.allowed
            ));
        }
        let mss = back.mss.unwrap_or(536);
        if len > 0 && segment.payload.len() as u32 + segment.options > mss {
            return Err(format!("{len} bytes and {} of options over the peer's MSS of {mss}", segment.options));
        }
        // Like Linux, the engine sends a segment while the window has any space: up to one more. A
        // tail loss probe (RFC 8985 7.3) may be another one.
        if self.acked <= 1 && !self.heard_empty && new && start + len > i64::from((initial_window + 2) * mss) {
            return Err(format!("a first flight of {} bytes with an MSS of {mss}", start + len - 1));
        }
        self.on_data(start, segment)?;
        self.on_options(back, segment)?;
        self.on_ecn(back, segment, new)?;
        self.on_empty(segment, now)
    }

    fn on_ack(&mut self, back: &Direction, segment: &Segment) -> Result<(), String> {
        let ack = back.offset(segment.ack);
        if ack > back.delivered.end_from(0) {
            return Err(format!("acknowledges {ack}, which never arrived: {:?}", back.delivered));
        }
        if ack < self.ack {
            return Err(format!("acknowledges {ack} after {}", self.ack));
        }
        self.ack = ack;
        let shift = back.scale.and(self.scale).unwrap_or(0);
        let edge = ack + (i64::from(segment.window) << shift);
        if let Some(old) = self.edge
            && old > edge
        {
            return Err(format!("the offered window's edge moves back by {}", old - edge));
        }
        self.edge = Some(edge);
        Ok(())
    }

    /// Checks payload from `start` on, and FIN.
    fn on_data(&mut self, start: i64, segment: &Segment) -> Result<(), String> {
        let payload = segment.payload;
        let end = start + payload.len() as i64;
        let known = self.bytes_from + self.bytes.len() as i64;
        if !payload.is_empty() {
            if start > known {
                return Err(format!("data at {start}, and none before from {known} on"));
            }
            if let Some(fin) = self.fin_at
                && end > fin
            {
                return Err(format!("data up to {end} after the FIN at {fin}"));
            }
            // Acknowledged data is not kept.
            let kept = &payload[(self.bytes_from - start).clamp(0, payload.len() as i64) as usize..];
            let at = (start.max(self.bytes_from) - self.bytes_from) as usize;
            let again = kept.len().min(self.bytes.len() - at);
            if !self.bytes.range(at..at + again).eq(&kept[..again]) {
                return Err(format!("sends {start}..{end} again with other bytes"));
            }
            self.bytes.extend(&kept[again..]);
        }
        if segment.has(FIN) {
            if self.fin_at.is_some_and(|fin| fin != end) || end < self.bytes_from + self.bytes.len() as i64 {
                return Err(format!("FIN at {end}, and before at {:?}", self.fin_at));
            }
            self.fin_at = Some(end);
        }
        self.end = self.end.max(end + i64::from(segment.has(FIN)));
        Ok(())
    }

    fn on_options(&mut self, back: &Direction, segment: &Segment) -> Result<(), String> {
        match (segment.timestamps, self.timestamps && back.timestamps) {
            (None, true) => return Err("no timestamp although both agreed".into()),
            (Some(_), false) => return Err("a timestamp without negotiation".into()),
            (Some((new, echo)), true) => {
                if self.tsval.is_some_and(|old| after(old, new)) {
                    return Err(format!("the timestamp runs backwards from {:?}", self.tsval));
                }
                self.tsval = Some(new);
                if back.tsval_delivered.is_none_or(|latest| after(echo, latest)) {
                    return Err(format!(
                        "a timestamp is echoed that never arrived in order: {:?}",
                        back.tsval_delivered
                    ));
                }
            }
            (None, false) => {}
        }
        let agreed = self.sack_ok && back.sack_ok;
        if !agreed && !segment.sacks.is_empty() {
            return Err("SACK blocks without negotiation".into());
        }
        let blocks: Vec<_> = segment.sacks.iter().map(|&(s, e)| (back.offset(s), back.offset(e))).collect();
        let (ack, mut blocks) = (back.offset(segment.ack), &blocks[..]);
        if let [first, rest @ ..] = blocks
            && (first.1 <= ack || rest.iter().any(|other| other.0 <= first.0 && first.1 <= other.1))
        {
            if first.1 > ack && !rest.first().is_some_and(|next| next.0 <= first.0 && first.1 <= next.1) {
                return Err(format!("D-SACK block {first:?} is not within the second: {blocks:?}"));
            }
            // Data before the stream's first byte arrived late from an earlier connection of the
            // same addresses.
            if first.1 > 0 && !back.twice.has(first.0, first.1) {
                return Err(format!("D-SACK block {first:?} names what did not come twice: {:?}", back.twice));
            }
            blocks = rest;
        }
        for (i, &(start, end)) in blocks.iter().enumerate() {
            if start >= end || !back.delivered.has(start, end) {
                return Err(format!("SACK block {start}..{end} names what never arrived: {:?}", back.delivered));
            }
            if start <= ack {
                return Err(format!("SACK block {start}..{end} is not above the acknowledgement {ack}"));
            }
            if blocks[..i].iter().any(|other| other.0 < end && start < other.1) {
                return Err(format!("SACK blocks overlap: {blocks:?}"));
            }
        }
        Ok(())
    }

    fn on_ecn(&mut self, back: &Direction, segment: &Segment, new: bool) -> Result<(), String> {
        let agreed = self.ecn && back.ecn;
        if segment.ecn == 3 {
            return Err("it marks its own packets".into());
        }
        if segment.ecn != 0 && !agreed {
            return Err("ECT without negotiation".into());
        }
        if segment.ecn != 0 && (segment.payload.is_empty() || !new) {
            return Err("ECT on what is not new data".into());
        }
        if segment.has(CWR) && (!agreed || !new || segment.payload.is_empty()) {
            return Err("CWR on what is not new data of a connection with ECN".into());
        }
        // TIME-WAIT forgets marks, and no data is sent any more.
        let over = self.fin_at.is_some() && back.fin_at.is_some_and(|fin| self.ack > fin);
        match self.echo {
            Echo::Must(_) if over => Ok(()),
            _ if !agreed && segment.has(ECE) => Err("ECE without negotiation".into()),
            Echo::Must(from) if agreed && self.ack >= from && !segment.has(ECE) => {
                Err(format!("no ECE although a mark has come before {from} and no CWR"))
            }
            Echo::MustNot(from) if self.ack >= from && segment.has(ECE) => {
                Err(format!("ECE although no mark has come since {from}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks for repeated equal empty ACKs.
    fn on_empty(&mut self, segment: &Segment, now: Instant) -> Result<(), String> {
        let fields = (segment.seq, segment.ack, segment.window);
        let same = segment.span() == 0 && segment.sacks.is_empty() && self.empty == fields;
        if !same || now.since(self.echoes_since) > ECHO_TIME {
            (self.empty, self.echoes, self.echoes_since) = (fields, 0, now);
        }
        self.echoes += 1;
        if self.echoes > ECHOES_MAX {
            return Err(format!("the {}th time the same empty ACK since {:?}", self.echoes, self.echoes_since));
        }
        Ok(())
    }

    /// Records that a segment of this direction has reached the other end, `receiver`.
    pub(super) fn on_arrival(&mut self, receiver: &mut Direction, segment: &Segment) {
        if segment.has(RST) {
            return;
        }
        receiver.heard += 1;
        let start = self.offset(segment.seq);
        let (data, end) = (start + i64::from(segment.has(SYN)), start + segment.span());
        if self.iss.is_none() || start < 0 || end > self.end || segment.has(SYN) && start != 0 {
            // A segment of an earlier connection.
            return;
        }
        // RFC 7323 4.3 (2): a segment beyond a hole does not change what is echoed.
        if let Some((tsval, _)) = segment.timestamps
            && start <= self.delivered.end_from(0)
            && self.tsval_delivered.is_none_or(|old| after(tsval, old))
        {
            self.tsval_delivered = Some(tsval);
        }
        if segment.span() > 0 {
            for (s, e) in self.delivered.within(data, end).collect::<Vec<_>>() {
                self.twice.insert(s, e);
            }
            let again = self.delivered.insert(start, end);
            receiver.echoes = 0;
            receiver.on_mark(segment, end, again);
        }
        if !segment.sacks.is_empty() || segment.span() == 0 && receiver.acked >= 1 {
            receiver.heard_empty = true;
        }
        if segment.has(ACK) {
            let ack = receiver.offset(segment.ack);
            if (0..=receiver.end).contains(&ack) {
                let scaled = !segment.has(SYN) && self.scale.is_some();
                let shift = if scaled { receiver.scale.and(self.scale).unwrap_or(0) } else { 0 };
                let edge = ack + (i64::from(segment.window) << shift);
                receiver.allowed = Some(receiver.allowed.map_or(edge, |old| old.max(edge)));
                receiver.on_acked(ack);
            }
        } else if segment.has(SYN) {
            receiver.syn_window = Some(segment.window);
            if receiver.iss.is_some() {
                // A crossing SYN offers its window from our first byte on.
                let edge = 1 + i64::from(segment.window);
                receiver.allowed = Some(receiver.allowed.map_or(edge, |old| old.max(edge)));
            }
        }
    }

    /// Records that a segment with data, possibly marked, has reached it.
    fn on_mark(&mut self, segment: &Segment, end: i64, again: bool) {
        self.echo = match (segment.ecn == 3, segment.has(CWR), again) {
            (true, _, false) => Echo::Must(end),
            (false, true, false) => Echo::MustNot(end),
            (true, ..) | (_, true, _) => Echo::Unknown,
            // The marked segment may have found no space, and this copy is accepted instead.
            (false, false, true) if matches!(self.echo, Echo::Must(_)) => Echo::Unknown,
            // The segment with CWR may have arrived late and been rejected for its timestamp, and
            // this copy is accepted instead.
            (false, false, true) if matches!(self.echo, Echo::MustNot(from) if end >= from) => Echo::Unknown,
            (false, false, _) => self.echo,
        };
    }

    /// Records that an acknowledgement has reached it.
    fn on_acked(&mut self, ack: i64) {
        self.acked = self.acked.max(ack);
        let known = (self.acked - self.bytes_from).clamp(0, self.bytes.len() as i64);
        self.bytes.drain(..known as usize);
        self.bytes_from += known;
    }
}
