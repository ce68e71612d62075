//! The bytes of a connection.

use super::outcome::{Done, Wrong};
use super::wait_method::WaitMethod;

/// The content of a connection: its number, the length, and whether a reply is requested; then
/// bytes that depend on the number.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) id: u32,
    pub(super) length: u32,
    pub(super) answer: bool,
}

pub(super) const HEAD: usize = 8;

impl Load {
    pub(super) fn head(self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&self.id.to_le_bytes());
        head[4..].copy_from_slice(&(self.length | u32::from(self.answer) << 31).to_le_bytes());
        head
    }

    fn of(head: [u8; HEAD]) -> Load {
        let [a, b, c, d, e, f, g, h] = head;
        let length = u32::from_le_bytes([e, f, g, h]);
        Load { id: u32::from_le_bytes([a, b, c, d]), length: length & 0x7fff_ffff, answer: length >> 31 != 0 }
    }

    fn byte(self, at: u32) -> u8 {
        (self.id.wrapping_mul(37).wrapping_add(11) ^ at.wrapping_mul(7).wrapping_add(at >> 8)) as u8
    }
}

/// Maximum number of bytes of one call.
pub(super) const PIECE: usize = 8192;

/// Reads a connection to its end, and checks each byte.
pub(super) fn read_load(from: i32, way: WaitMethod, form: usize) -> Done<Load> {
    let mut head = [0; HEAD];
    let mut buffer = [0u8; PIECE];
    let mut at = 0usize;
    // Sizes without alignment.
    let piece = [PIECE, 1000, 77, 4096][form / 4 % 4];
    loop {
        let got = way.receive(from, &mut buffer[..piece], form)?;
        if got == 0 {
            break;
        }
        for (byte, place) in buffer[..got].iter().zip(at..) {
            if place < HEAD {
                head[place] = *byte;
            } else if *byte != Load::of(head).byte((place - HEAD) as u32) {
                return Err(Wrong("other_bytes", 0));
            }
        }
        at += got;
    }
    let load = Load::of(head);
    if at != HEAD + load.length as usize {
        return Err(Wrong(if at < HEAD + load.length as usize { "too_few_bytes" } else { "too_many_bytes" }, 0));
    }
    Ok(load)
}

pub(super) fn send_load(to: i32, load: Load, way: WaitMethod, form: usize) -> Done<()> {
    let mut buffer = [0u8; PIECE];
    way.send(to, &load.head(), form)?;
    let mut at = 0;
    while at < load.length {
        let size = (load.length - at).min(PIECE as u32);
        for (byte, place) in buffer[..size as usize].iter_mut().zip(at..) {
            *byte = load.byte(place);
        }
        way.send(to, &buffer[..size as usize], form)?;
        at += size;
    }
    Ok(())
}
