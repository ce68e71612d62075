//! The messages between a process and the match service: what decodes is encoded to the same bytes.

use fs_pairs::message::{Answer, Request};

/// Decodes the bytes as a request and as an answer.
pub fn pairs(data: &[u8]) -> u64 {
    let mut seen = 0;
    // A message's kind is its fifth byte.
    let kind = data.get(4).map_or(0, |kind| u64::from(kind & 15));
    if let Some(request) = Request::decode(data) {
        assert_eq!(request.encode(), data);
        seen |= 1 << kind;
    }
    if let Some(answer) = Answer::decode(data) {
        assert_eq!(answer.encode(), data);
        seen |= 1 << (16 + kind);
    }
    seen
}
