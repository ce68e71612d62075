//! Cursors over a message's bytes. Nothing allocates, nothing panics: what does not fit or is cut off is an error.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The bytes are not a message of this version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "malformed control message: {}", self.0)
    }
}

impl core::error::Error for Malformed {}

/// Text of at most `N` bytes (a longer one is cut), as UTF-8 as it came.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    /// The beginning of `text`, as much as there is room for.
    pub fn new(text: &[u8]) -> Self {
        let len = text.len().min(N).min(255);
        let mut bytes = [0; N];
        bytes[..len].copy_from_slice(&text[..len]);
        Self { len: len as u8, bytes }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The text up to its first byte that is not UTF-8.
    pub fn as_str(&self) -> &str {
        match core::str::from_utf8(self.as_bytes()) {
            Ok(text) => text,
            Err(error) => core::str::from_utf8(&self.as_bytes()[..error.valid_up_to()]).unwrap_or(""),
        }
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self { len: 0, bytes: [0; N] }
    }
}

impl<const N: usize> core::fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// Writes a message. What does not fit is left out and remembered: [`Writer::finish`] answers it.
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    len: usize,
    full: bool,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, len: 0, full: false }
    }

    pub(crate) fn finish(self) -> Result<usize, Malformed> {
        if self.full { Err(Malformed("too long")) } else { Ok(self.len) }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        match self.buffer.get_mut(self.len..self.len + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.full = true,
        }
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    pub(crate) fn text<const N: usize>(&mut self, text: &Text<N>) {
        self.u8(text.len);
        self.bytes(text.as_bytes());
    }

    /// Family (4 or 6), the address's bytes.
    pub(crate) fn ip(&mut self, addr: IpAddr) {
        match addr {
            IpAddr::V4(addr) => {
                self.u8(4);
                self.bytes(&addr.octets());
            }
            IpAddr::V6(addr) => {
                self.u8(6);
                self.bytes(&addr.octets());
            }
        }
    }

    /// Address, port, and for IPv6 the scope. Flow labels are not carried: nobody asks for them.
    pub(crate) fn addr(&mut self, addr: SocketAddr) {
        self.ip(addr.ip());
        self.u16(addr.port());
        if let SocketAddr::V6(addr) = addr {
            self.u32(addr.scope_id());
        }
    }

    /// 0, or 1 and the address.
    pub(crate) fn some_addr(&mut self, addr: Option<SocketAddr>) {
        self.bool(addr.is_some());
        if let Some(addr) = addr {
            self.addr(addr);
        }
    }
}

/// Reads a message.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// All of the message has to have been read.
    pub(crate) fn finish<T>(self, value: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(value) } else { Err(Malformed("longer than its kind")) }
    }

    /// What has not been read.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed("cut off"))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed("cut off"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("neither true nor false")),
        }
    }

    pub(crate) fn text<const N: usize>(&mut self) -> Result<Text<N>, Malformed> {
        let len = usize::from(self.u8()?);
        if len > N {
            return Err(Malformed("text too long"));
        }
        Ok(Text::new(self.bytes(len)?))
    }

    pub(crate) fn ip(&mut self) -> Result<IpAddr, Malformed> {
        match self.u8()? {
            4 => self.array::<4>().map(|octets| Ipv4Addr::from(octets).into()),
            6 => self.array::<16>().map(|octets| Ipv6Addr::from(octets).into()),
            _ => Err(Malformed("unknown address family")),
        }
    }

    pub(crate) fn addr(&mut self) -> Result<SocketAddr, Malformed> {
        let ip = self.ip()?;
        let port = self.u16()?;
        Ok(match ip {
            IpAddr::V4(_) => SocketAddr::new(ip, port),
            IpAddr::V6(addr) => SocketAddrV6::new(addr, port, 0, self.u32()?).into(),
        })
    }

    pub(crate) fn some_addr(&mut self) -> Result<Option<SocketAddr>, Malformed> {
        Ok(if self.bool()? { Some(self.addr()?) } else { None })
    }
}
