//! TCP options: MSS (RFC 9293 3.7.1), window scale and timestamps (RFC 7323), SACK (RFC 2018).
//!
//! Readers never fail: an option whose length contradicts its kind or the remaining space ends the
//! walk, and earlier valid options count.

use crate::seq::SeqNum;

#[cfg(test)]
mod tests;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
const FAST_OPEN: u8 = 34;
/// Fast Open before it had a number of its own: an experimental option (RFC 6994) with this prefix.
/// Linux still accepts it and replies with the same option.
const EXPERIMENT: u8 = 254;
const FAST_OPEN_MAGIC: [u8; 2] = [0xf9, 0x89];

/// Largest shift: RFC 7323 2.3.
pub(crate) const WINDOW_SCALE_MAX: u8 = 14;
/// Length of the timestamps option with its two NOPs in front.
pub(crate) const TIMESTAMPS_LEN: usize = 12;

/// First four bytes of these options.
pub(crate) const TIMESTAMPS_HEAD: u32 = u32::from_be_bytes([NOP, NOP, TIMESTAMPS, 10]);

/// The timestamps option (RFC 7323 section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub val: u32,
    /// TSecr: the clock value that it echoes.
    pub ecr: u32,
}

/// Options that are negotiated by SYN segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynOptions {
    /// Maximum segment size, as in the option.
    pub mss: Option<u16>,
    /// Window scale, at most 14: RFC 7323 2.3 requires that larger values are used as 14.
    pub window_scale: Option<u8>,
    /// SACK permitted.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
}

/// Up to four SACK blocks: `[start, end)` in their order in the option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(SeqNum, SeqNum); 4],
    len: u8,
}

impl SackBlocks {
    /// No block.
    pub const EMPTY: SackBlocks = SackBlocks { blocks: [(SeqNum(0), SeqNum(0)); 4], len: 0 };

    /// Appends `[start, end)`. Returns false if there are four already.
    #[inline]
    pub fn push(&mut self, start: SeqNum, end: SeqNum) -> bool {
        let Some(slot) = self.blocks.get_mut(usize::from(self.len)) else { return false };
        *slot = (start, end);
        self.len += 1;
        true
    }

    /// Returns the blocks.
    #[inline]
    pub fn as_slice(&self) -> &[(SeqNum, SeqNum)] {
        &self.blocks[..usize::from(self.len)]
    }

    /// Returns the number of blocks.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Returns true if there is no block.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Iterator over well-formed options: (kind, data).
struct Walk<'a>(&'a [u8]);

impl<'a> Iterator for Walk<'a> {
    type Item = (u8, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match *self.0 {
                [NOP, ref rest @ ..] => self.0 = rest,
                [END, ..] | [] | [_] => return None,
                [kind, len, ..] => {
                    let option = self.0.get(2..usize::from(len))?;
                    self.0 = &self.0[usize::from(len)..];
                    return Some((kind, option));
                }
            }
        }
    }
}

/// Reads the options of a SYN or SYN-ACK.
pub fn parse_syn(options: &[u8]) -> SynOptions {
    let mut syn = SynOptions::default();
    for (kind, data) in Walk(options) {
        match (kind, data) {
            (MSS, &[a, b]) => syn.mss = Some(u16::from_be_bytes([a, b])),
            (WINDOW_SCALE, &[shift]) => syn.window_scale = Some(shift.min(WINDOW_SCALE_MAX)),
            (SACK_PERMITTED, []) => syn.sack_permitted = true,
            (TIMESTAMPS, _) if data.len() == 8 => syn.timestamps = read_timestamps(data),
            (MSS | WINDOW_SCALE | SACK_PERMITTED | TIMESTAMPS, _) => break,
            _ => {}
        }
    }
    syn
}

/// Reads the timestamps option. The usual layout on established connections (RFC 7323 appendix A:
/// NOP NOP TS) takes a fast path.
#[inline(always)]
pub fn timestamps(options: &[u8]) -> Option<Timestamps> {
    if let Some([NOP, NOP, TIMESTAMPS, 10, data @ ..]) = options.first_chunk::<TIMESTAMPS_LEN>() {
        return read_timestamps(data);
    }
    if options.is_empty() { None } else { timestamps_slow(options) }
}

#[cold]
fn timestamps_slow(options: &[u8]) -> Option<Timestamps> {
    let (_, data) = Walk(options).find(|(kind, _)| *kind == TIMESTAMPS)?;
    read_timestamps(data)
}

#[inline(always)]
fn read_timestamps(data: &[u8]) -> Option<Timestamps> {
    let [v0, v1, v2, v3, e0, e1, e2, e3] = *<&[u8; 8]>::try_from(data).ok()?;
    Some(Timestamps { val: u32::from_be_bytes([v0, v1, v2, v3]), ecr: u32::from_be_bytes([e0, e1, e2, e3]) })
}

/// Reads the SACK option. Incomplete blocks are ignored.
pub fn sack_blocks(options: &[u8]) -> SackBlocks {
    let mut blocks = SackBlocks::EMPTY;
    if let Some((_, data)) = Walk(options).find(|(kind, _)| *kind == SACK) {
        for block in data.as_chunks::<8>().0 {
            let [s0, s1, s2, s3, e0, e1, e2, e3] = *block;
            let start = SeqNum(u32::from_be_bytes([s0, s1, s2, s3]));
            if !blocks.push(start, SeqNum(u32::from_be_bytes([e0, e1, e2, e3]))) {
                break;
            }
        }
    }
    blocks
}

/// A TCP Fast Open cookie (RFC 7413 4.1.1). An empty one requests a cookie.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Cookie {
    bytes: [u8; 16],
    len: u8,
    /// True if the experimental option carries the cookie.
    experimental: bool,
}

impl core::fmt::Debug for Cookie {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Cookie({} bytes)", self.len)
    }
}

impl Cookie {
    /// A cookie request.
    pub const REQUEST: Cookie = Cookie { bytes: [0; 16], len: 0, experimental: false };

    /// Makes a cookie of 4 to 16 bytes, an even number. Returns `None` for any other length.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if !(4..=16).contains(&bytes.len()) || bytes.len() % 2 == 1 {
            return None;
        }
        let mut cookie = Cookie { bytes: [0; 16], len: bytes.len() as u8, experimental: false };
        cookie.bytes[..bytes.len()].copy_from_slice(bytes);
        Some(cookie)
    }

    /// Returns its bytes; empty for a request.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the same cookie, for the kind of option that `asked` arrived in.
    pub fn answering(self, asked: &Cookie) -> Self {
        Self { experimental: asked.experimental, ..self }
    }

    /// Returns true for a cookie request.
    pub fn is_request(&self) -> bool {
        self.len == 0
    }
}

/// Reads the Fast Open option of a SYN or SYN-ACK. Returns `None` if it is absent or has an invalid
/// length.
pub(crate) fn fast_open(options: &[u8]) -> Option<Cookie> {
    let (data, experimental) = Walk(options).find_map(|(kind, data)| match kind {
        FAST_OPEN => Some((data, false)),
        EXPERIMENT => data.strip_prefix(&FAST_OPEN_MAGIC).map(|data| (data, true)),
        _ => None,
    })?;
    let cookie = if data.is_empty() { Cookie::REQUEST } else { Cookie::new(data)? };
    Some(Cookie { experimental, ..cookie })
}

/// Writes the Fast Open option, padded to 4 bytes. Returns the length, 0 if `out` is too small.
pub(crate) fn emit_fast_open(cookie: &Cookie, out: &mut [u8]) -> usize {
    let bytes = cookie.as_bytes();
    let magic = if cookie.experimental { &FAST_OPEN_MAGIC[..] } else { &[] };
    let kind = if cookie.experimental { EXPERIMENT } else { FAST_OPEN };
    let head = 2 + magic.len();
    let len = (head + bytes.len()).next_multiple_of(4);
    let Some(out) = out.get_mut(..len) else { return 0 };
    out.fill(NOP);
    out[..2].copy_from_slice(&[kind, head as u8 + cookie.len]);
    out[2..head].copy_from_slice(magic);
    out[head..head + bytes.len()].copy_from_slice(bytes);
    len
}

/// Writes a SYN's options, padded to 4 bytes, in Linux's order (MSS, SACK-permitted with
/// timestamps, window scale). Returns the length, at most 20; 0 if `out` is too small.
pub fn emit_syn(syn: &SynOptions, out: &mut [u8]) -> usize {
    let words = SynWords::of(syn);
    let Some(out) = out.get_mut(..4 * words.as_slice().len()) else { return 0 };
    words.emit(out);
    out.len()
}

/// A SYN's options as words in host order, from which their checksum is computed without reading
/// them again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SynWords {
    words: [u32; 5],
    len: usize,
}

impl SynWords {
    /// Makes the words in [`emit_syn`]'s order.
    #[inline]
    pub(crate) fn of(syn: &SynOptions) -> Self {
        let mut all = Self::default();
        if let Some(mss) = syn.mss {
            all.put(u32::from_be_bytes([MSS, 4, 0, 0]) | u32::from(mss));
        }
        match (syn.sack_permitted, syn.timestamps) {
            (sack, Some(ts)) => {
                all.put(if sack { u32::from_be_bytes([SACK_PERMITTED, 2, TIMESTAMPS, 10]) } else { TIMESTAMPS_HEAD });
                all.put(ts.val);
                all.put(ts.ecr);
            }
            (true, None) => all.put(u32::from_be_bytes([NOP, NOP, SACK_PERMITTED, 2])),
            (false, None) => {}
        }
        if let Some(shift) = syn.window_scale {
            all.put(u32::from_be_bytes([NOP, WINDOW_SCALE, 3, shift.min(WINDOW_SCALE_MAX)]));
        }
        all
    }

    #[inline]
    fn put(&mut self, word: u32) {
        let slot = self.words.get_mut(self.len);
        debug_assert!(slot.is_some(), "an option more than there is room for");
        if let Some(slot) = slot {
            *slot = word;
            self.len += 1;
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u32] {
        self.words.get(..self.len).unwrap_or_default()
    }

    /// Writes as many words as fit.
    #[inline]
    pub(crate) fn emit(&self, out: &mut [u8]) {
        for (out, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(self.as_slice()) {
            *out = word.to_be_bytes();
        }
    }
}

/// Writes NOP NOP TS. Returns 12, or 0 if `out` is too small.
#[inline]
pub fn emit_timestamps(ts: Timestamps, out: &mut [u8]) -> usize {
    let Some(out) = out.first_chunk_mut::<TIMESTAMPS_LEN>() else { return 0 };
    let [v0, v1, v2, v3] = ts.val.to_be_bytes();
    let [e0, e1, e2, e3] = ts.ecr.to_be_bytes();
    *out = [NOP, NOP, TIMESTAMPS, 10, v0, v1, v2, v3, e0, e1, e2, e3];
    TIMESTAMPS_LEN
}

/// Writes NOP NOP SACK with as many of `blocks` (at most four) as fit into `out`: three together
/// with timestamps (RFC 2018 section 3). Returns the length, 0 for no blocks.
pub fn emit_sack(blocks: &[(SeqNum, SeqNum)], out: &mut [u8]) -> usize {
    let count = blocks.len().min(4).min(out.len().saturating_sub(4) / 8);
    if count == 0 {
        return 0;
    }
    let len = 4 + count * 8;
    out[..4].copy_from_slice(&[NOP, NOP, SACK, len as u8 - 2]);
    for (slot, (start, end)) in out[4..len].as_chunks_mut::<8>().0.iter_mut().zip(blocks) {
        slot[..4].copy_from_slice(&start.0.to_be_bytes());
        slot[4..].copy_from_slice(&end.0.to_be_bytes());
    }
    len
}
