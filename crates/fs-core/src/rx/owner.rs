//! Values of the flow table.

/// The kind in the top two bits, an index in the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Connection(u32),
    Handshake(u32),
    TimeWait(u32),
}

impl Owner {
    pub(crate) const INDEX: u32 = (1 << 30) - 1;

    #[inline]
    pub(crate) fn value(self) -> u32 {
        match self {
            Owner::Connection(i) => i,
            Owner::Handshake(i) => i | 1 << 30,
            Owner::TimeWait(i) => i | 2 << 30,
        }
    }

    #[inline]
    pub(crate) fn of(value: u32) -> Self {
        let index = value & Self::INDEX;
        match value >> 30 {
            0 => Owner::Connection(index),
            1 => Owner::Handshake(index),
            _ => Owner::TimeWait(index),
        }
    }
}
