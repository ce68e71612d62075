//! TCP's flags as bits of the header's 13th and 14th bytes, and packetdrill's letters for them.

pub(crate) const FIN: u16 = 1;
pub(crate) const SYN: u16 = 1 << 1;
pub(crate) const RST: u16 = 1 << 2;
pub(crate) const PSH: u16 = 1 << 3;
pub(crate) const ACK: u16 = 1 << 4;
pub(crate) const URG: u16 = 1 << 5;
pub(crate) const ECE: u16 = 1 << 6;
pub(crate) const CWR: u16 = 1 << 7;
pub(crate) const AE: u16 = 1 << 8;

/// Letters in printing order.
const LETTERS: [(char, u16); 9] =
    [('F', FIN), ('S', SYN), ('R', RST), ('P', PSH), ('.', ACK), ('U', URG), ('E', ECE), ('W', CWR), ('A', AE)];

/// Returns the flag of a letter.
pub(crate) fn of(letter: char) -> Option<u16> {
    LETTERS.iter().find(|(l, _)| *l == letter).map(|(_, bit)| *bit)
}

/// Returns the letters of the flags, or `-` for none. With `ace` the three ECN bits are one digit.
pub(crate) fn letters(flags: u16, ace: bool) -> String {
    let shown = if ace { flags & 0x3f } else { flags };
    let mut text: String = LETTERS.iter().filter(|(_, bit)| shown & bit != 0).map(|(letter, _)| *letter).collect();
    if ace {
        text.push((b'0' + (flags >> 6 & 7) as u8) as char);
    }
    if text.is_empty() { "-".into() } else { text }
}
