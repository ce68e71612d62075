//! The Internet checksum for links whose device does not finish it.

use fs_core::TxChecksum;

/// Adds `bytes` to a running sum of big-endian words. `odd` is true if an odd number of bytes came
/// before.
fn add(mut sum: u64, odd: &mut bool, bytes: &[u8]) -> u64 {
    let mut rest = bytes;
    if *odd && !rest.is_empty() {
        sum += u64::from(rest[0]);
        rest = &rest[1..];
        *odd = false;
    }
    let words = rest.chunks_exact(8);
    let tail = words.remainder();
    for word in words {
        let word = u64::from_be_bytes(word.try_into().unwrap_or_default());
        sum += (word >> 32) + (word & 0xffff_ffff);
    }
    for pair in tail.chunks(2) {
        sum += u64::from(pair[0]) << 8;
        if let Some(&low) = pair.get(1) {
            sum += u64::from(low);
        } else {
            *odd = true;
        }
    }
    sum
}

fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

/// Returns the RFC 1071 checksum of a packet in `parts`, starting at byte `start`.
pub(crate) fn of_parts<'a>(parts: impl Iterator<Item = &'a [u8]>, start: usize) -> u16 {
    let mut skip = start;
    let (mut sum, mut odd) = (0, false);
    for part in parts {
        let from = skip.min(part.len());
        skip -= from;
        sum = add(sum, &mut odd, &part[from..]);
    }
    fold(sum)
}

/// Computes and stores the checksum that `request` asks for, in a contiguous packet. A request that
/// points outside the packet is ignored: the packet is sent unchanged, and its receiver drops it.
pub(crate) fn finish(packet: &mut [u8], request: TxChecksum) {
    let sum = of_parts(std::iter::once(&*packet), request.start as usize);
    store(packet, request, sum);
}

/// Stores a final sum as `request` says. UDP sends a sum of zero as all ones (RFC 768). All ones is
/// the same number in one's complement, so zero is never sent for other protocols either.
pub(crate) fn store(head: &mut [u8], request: TxChecksum, sum: u16) {
    let at = request.start as usize + request.offset as usize;
    if let Some(field) = head.get_mut(at..at + 2) {
        let sum = if sum == 0 { 0xffff } else { sum };
        field.copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The simple implementation, for comparison.
    fn slow(bytes: &[u8]) -> u16 {
        let sum: u64 =
            bytes.chunks(2).map(|pair| (u64::from(pair[0]) << 8) + pair.get(1).map_or(0, |&low| u64::from(low))).sum();
        fold(sum)
    }

    #[test]
    fn sums_agree_for_any_split() {
        let packet: Vec<u8> = (0..1500u32).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8).collect();
        for start in [0, 1, 14, 34, 54, 1499] {
            let expected = slow(&packet[start..]);
            assert_eq!(of_parts(std::iter::once(&packet[..]), start), expected);
            for cut in [1, 2, 7, 54, 55, 101] {
                assert_eq!(of_parts(packet.chunks(cut), start), expected, "from {start} in pieces of {cut}");
            }
        }
    }

    #[test]
    fn finished_packet_sums_to_zero() {
        let mut packet: Vec<u8> = (0..99).collect();
        packet[36] = 0;
        packet[37] = 0;
        finish(&mut packet, TxChecksum { start: 20, offset: 16 });
        assert_eq!(slow(&packet[20..]), 0);
    }

    #[test]
    fn request_outside_the_packet_changes_nothing() {
        let mut packet = [7u8; 20];
        finish(&mut packet, TxChecksum { start: 19, offset: 4 });
        assert_eq!(packet, [7; 20]);
    }
}
