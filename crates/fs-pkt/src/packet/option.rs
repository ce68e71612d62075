//! TCP options: bytes, and packetdrill's notation.

use std::fmt;

/// A TCP option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    /// End of list (0).
    Eol,
    /// No operation (1).
    Nop,
    /// Maximum segment size (2).
    Mss(u16),
    /// Window scale (3).
    WindowScale(u8),
    /// SACK permitted (4).
    SackPermitted,
    /// SACK (5): left and right edges.
    Sack(Vec<(u32, u32)>),
    /// Timestamps (8).
    Timestamp {
        /// TSval.
        val: u32,
        /// TSecr.
        ecr: u32,
    },
    /// MD5 digest (19).
    Md5(Vec<u8>),
    /// Fast Open cookie (34).
    FastOpen(Vec<u8>),
    /// Fast Open cookie under the experimental number (254, 0xf989).
    FastOpenExperiment(Vec<u8>),
    /// Accurate ECN (172 or 174): byte counters of 24 bits.
    AccurateEcn {
        /// 0: ECT(0), CE, ECT(1); 1: ECT(1), CE, ECT(0).
        order: u8,
        /// The counters that are present.
        fields: Vec<u32>,
    },
    /// Any other.
    Other(u8, Vec<u8>),
}

const FAST_OPEN_MAGIC: [u8; 2] = [0xf9, 0x89];

impl TcpOption {
    /// Returns its kind.
    pub fn kind(&self) -> u8 {
        match self {
            TcpOption::Eol => 0,
            TcpOption::Nop => 1,
            TcpOption::Mss(_) => 2,
            TcpOption::WindowScale(_) => 3,
            TcpOption::SackPermitted => 4,
            TcpOption::Sack(_) => 5,
            TcpOption::Timestamp { .. } => 8,
            TcpOption::Md5(_) => 19,
            TcpOption::FastOpen(_) => 34,
            TcpOption::AccurateEcn { order: 0, .. } => 172,
            TcpOption::AccurateEcn { .. } => 174,
            TcpOption::FastOpenExperiment(_) => 254,
            TcpOption::Other(kind, _) => *kind,
        }
    }

    /// Returns the bytes after kind and length.
    pub(crate) fn value(&self) -> Vec<u8> {
        match self {
            TcpOption::Eol | TcpOption::Nop | TcpOption::SackPermitted => Vec::new(),
            TcpOption::Mss(mss) => mss.to_be_bytes().to_vec(),
            TcpOption::WindowScale(shift) => vec![*shift],
            TcpOption::Sack(blocks) => {
                blocks.iter().flat_map(|(l, r)| [l.to_be_bytes(), r.to_be_bytes()].concat()).collect()
            }
            TcpOption::Timestamp { val, ecr } => [val.to_be_bytes(), ecr.to_be_bytes()].concat(),
            TcpOption::Md5(bytes) | TcpOption::FastOpen(bytes) | TcpOption::Other(_, bytes) => bytes.clone(),
            TcpOption::FastOpenExperiment(bytes) => [&FAST_OPEN_MAGIC[..], bytes].concat(),
            TcpOption::AccurateEcn { fields, .. } => {
                fields.iter().flat_map(|f| f.to_be_bytes()[1..].to_vec()).collect()
            }
        }
    }

    /// Returns its length in the header.
    #[allow(clippy::len_without_is_empty, reason = "no option is empty")]
    pub fn len(&self) -> usize {
        match self {
            TcpOption::Eol | TcpOption::Nop => 1,
            other => 2 + other.value().len(),
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(self.kind());
        if !matches!(self, TcpOption::Eol | TcpOption::Nop) {
            let value = self.value();
            out.push(2 + value.len() as u8);
            out.extend(value);
        }
    }

    /// Parses all options of a header. The unparsable rest is one `Other`.
    pub(crate) fn read_all(mut bytes: &[u8]) -> Vec<TcpOption> {
        let mut options = Vec::new();
        while let Some((&kind, rest)) = bytes.split_first() {
            if kind <= 1 {
                options.push(if kind == 0 { TcpOption::Eol } else { TcpOption::Nop });
                bytes = rest;
                continue;
            }
            let len = rest.first().map_or(0, |l| usize::from(*l));
            if len < 2 || len > bytes.len() {
                options.push(TcpOption::Other(kind, rest.to_vec()));
                return options;
            }
            options.push(TcpOption::read(kind, &bytes[2..len]));
            bytes = &bytes[len..];
        }
        options
    }

    fn read(kind: u8, value: &[u8]) -> TcpOption {
        let word = |at: usize| u32::from_be_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
        match (kind, value.len()) {
            (2, 2) => TcpOption::Mss(u16::from_be_bytes([value[0], value[1]])),
            (3, 1) => TcpOption::WindowScale(value[0]),
            (4, 0) => TcpOption::SackPermitted,
            (5, n) if n > 0 && n % 8 == 0 => {
                TcpOption::Sack((0..n / 8).map(|i| (word(i * 8), word(i * 8 + 4))).collect())
            }
            (8, 8) => TcpOption::Timestamp { val: word(0), ecr: word(4) },
            (19, _) => TcpOption::Md5(value.to_vec()),
            (34, _) => TcpOption::FastOpen(value.to_vec()),
            (254, n) if n >= 2 && value[..2] == FAST_OPEN_MAGIC => TcpOption::FastOpenExperiment(value[2..].to_vec()),
            (172 | 174, n) if n % 3 == 0 && n <= 9 => TcpOption::AccurateEcn {
                order: u8::from(kind == 174),
                fields: value.chunks(3).map(|f| u32::from_be_bytes([0, f[0], f[1], f[2]])).collect(),
            },
            _ => TcpOption::Other(kind, value.to_vec()),
        }
    }
}

fn hex(f: &mut fmt::Formatter<'_>, name: &str, bytes: &[u8]) -> fmt::Result {
    f.write_str(name)?;
    if !bytes.is_empty() {
        f.write_str(" ")?;
    }
    bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
}

impl fmt::Display for TcpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TcpOption::Eol => f.write_str("eol"),
            TcpOption::Nop => f.write_str("nop"),
            TcpOption::Mss(mss) => write!(f, "mss {mss}"),
            TcpOption::WindowScale(shift) => write!(f, "wscale {shift}"),
            TcpOption::SackPermitted => f.write_str("sackOK"),
            TcpOption::Sack(blocks) => {
                f.write_str("sack")?;
                blocks.iter().try_for_each(|(l, r)| write!(f, " {l}:{r}"))
            }
            TcpOption::Timestamp { val, ecr } => write!(f, "TS val {val} ecr {ecr}"),
            TcpOption::Md5(bytes) => hex(f, "md5", bytes),
            TcpOption::FastOpen(bytes) => hex(f, "FO", bytes),
            TcpOption::FastOpenExperiment(bytes) => hex(f, "FOEXP", bytes),
            TcpOption::AccurateEcn { order, fields } => {
                f.write_str("ECN")?;
                let names = if *order == 0 { ["e0b", "ceb", "e1b"] } else { ["e1b", "ceb", "e0b"] };
                names.iter().zip(fields).try_for_each(|(name, value)| write!(f, " {name} {value}"))
            }
            TcpOption::Other(kind, bytes) => hex(f, &format!("kind {kind}"), bytes),
        }
    }
}
