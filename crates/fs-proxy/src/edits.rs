//! Changes of header fields that the configuration asks for.

use crate::config::EditsConfig;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;

/// A request's client, for the placeholders in values.
#[derive(Clone, Copy)]
pub(crate) struct About {
    pub(crate) client: IpAddr,
    pub(crate) is_tls: bool,
}

/// The placeholders: the client's address, an element of `Forwarded` (RFC 7239) and a request id.
const CLIENT: &str = "{client}";
const FORWARDED: &str = "{forwarded}";
const ID: &str = "{id}";
/// The placeholders that only requests can have.
pub(crate) const OF_REQUESTS: [&str; 2] = [FORWARDED, ID];

/// Fields that are set or removed, in the order of the configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edits {
    /// Names in lower case.
    removed: Vec<HeaderName>,
    set: Vec<(HeaderName, String)>,
}

impl Edits {
    /// Returns `None` if nothing is changed. Names were checked with the configuration.
    pub(crate) fn new(config: &EditsConfig) -> Option<Self> {
        let removed: Vec<HeaderName> = config.remove.iter().filter_map(|name| name.parse().ok()).collect();
        let set = config.set.iter().filter_map(|(name, value)| Some((name.parse().ok()?, value.clone())));
        let set: Vec<(HeaderName, String)> = set.collect();
        (!removed.is_empty() || !set.is_empty()).then_some(Self { removed, set })
    }

    fn is_gone(&self, name: &str) -> bool {
        let names = self.removed.iter().chain(self.set.iter().map(|(name, _)| name));
        names.into_iter().any(|gone| gone.as_str().eq_ignore_ascii_case(name))
    }

    /// Changes the head in `bytes` from `start` to the end. It was written by the lean path: a first
    /// line, and a field in each further line.
    pub(crate) fn apply(&self, bytes: &mut Vec<u8>, start: usize, about: About) {
        let line_end =
            |bytes: &[u8], at: usize| bytes[at..].iter().position(|&byte| byte == b'\n').map(|len| at + len + 1);
        let Some(mut read) = line_end(bytes, start) else { return };
        let mut write = read;
        while let Some(end) = line_end(bytes, read) {
            let line = &bytes[read..end];
            if line == b"\r\n" {
                break;
            }
            let name = line.split(|&byte| byte == b':').next().unwrap_or_default();
            if !std::str::from_utf8(name).is_ok_and(|name| self.is_gone(name)) {
                bytes.copy_within(read..end, write);
                write += end - read;
            }
            read = end;
        }
        bytes.truncate(write);
        for (name, value) in &self.set {
            let value = expand(value, about);
            for part in [name.as_str(), ": ", &value, "\r\n"] {
                bytes.extend_from_slice(part.as_bytes());
            }
        }
        bytes.extend_from_slice(b"\r\n");
    }

    /// Changes a head that bytes of its body may follow.
    pub(crate) fn apply_to_head(&self, bytes: &mut Vec<u8>, about: About) {
        let end = bytes.windows(4).position(|end| end == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
        let body = bytes.split_off(end);
        self.apply(bytes, 0, about);
        bytes.extend_from_slice(&body);
    }

    /// Changes fields on the odd path.
    pub(crate) fn apply_to(&self, fields: &mut HeaderMap, about: About) {
        for name in &self.removed {
            fields.remove(name);
        }
        for (name, value) in &self.set {
            if let Ok(value) = HeaderValue::from_str(&expand(value, about)) {
                fields.insert(name, value);
            }
        }
    }
}

fn expand(value: &str, about: About) -> String {
    if !value.contains('{') {
        return value.to_owned();
    }
    let About { client, is_tls } = about;
    let client = client.to_canonical();
    let node = if client.is_ipv6() { format!("\"[{client}]\"") } else { client.to_string() };
    let forwarded = format!("for={node};proto={}", if is_tls { "https" } else { "http" });
    let value = value.replace(CLIENT, &client.to_string()).replace(FORWARDED, &forwarded);
    if value.contains(ID) { value.replace(ID, &request_id()) } else { value }
}

/// Returns an id that no other request has: 64 random bits of the thread, and a number.
fn request_id() -> String {
    thread_local! {
        static NEXT: (u64, Cell<u64>) = (RandomState::new().build_hasher().finish(), Cell::new(0));
    }
    NEXT.with(|(thread, next)| {
        next.set(next.get() + 1);
        format!("{thread:016x}{:08x}", next.get())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_set_and_removed() {
        let config: EditsConfig =
            toml::from_str("remove = ['X-Gone', 'server']\nset = { X-Real-IP = '{client}', A = 'b c' }").unwrap();
        let edits = Edits::new(&config).unwrap();
        let about = About { client: "::ffff:192.0.2.1".parse().unwrap(), is_tls: false };
        let mut bytes =
            b"HTTP/1.1 103 Early\r\nServer: x\r\n\r\nHTTP/1.1 200 OK\r\nx-gone: 1\r\nServer: y\r\nX-Kept: \xe9\r\n\
                          a: old\r\nX-GONE: 2\r\n\r\n"
                .to_vec();
        let start = bytes.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
        edits.apply(&mut bytes, start, about);
        let expected = b"HTTP/1.1 103 Early\r\nServer: x\r\n\r\nHTTP/1.1 200 OK\r\nX-Kept: \xe9\r\n";
        assert!(bytes.starts_with(expected), "{}", String::from_utf8_lossy(&bytes));
        let mut set: Vec<&[u8]> = bytes[expected.len()..].split(|&byte| byte == b'\n').collect();
        set.sort_unstable();
        assert_eq!(set, [&b""[..], b"\r", b"a: b c\r", b"x-real-ip: 192.0.2.1\r"]);
        let mut map = HeaderMap::new();
        for (name, value) in [("x-gone", "1"), ("server", "y"), ("a", "old"), ("x-kept", "k")] {
            map.append(name, HeaderValue::from_static(value));
        }
        edits.apply_to(&mut map, about);
        assert_eq!(map.len(), 3);
        assert_eq!(
            (&map["a"], &map["x-real-ip"], &map["x-kept"]),
            (&"b c".parse().unwrap(), &"192.0.2.1".parse().unwrap(), &"k".parse().unwrap())
        );
        assert!(Edits::new(&toml::from_str("").unwrap()).is_none());
    }

    #[test]
    fn placeholders() {
        let about = About { client: "2001:db8::7".parse().unwrap(), is_tls: true };
        assert_eq!(expand("{forwarded}", about), "for=\"[2001:db8::7]\";proto=https");
        assert_eq!(expand("a {client} {other}", about), "a 2001:db8::7 {other}");
        let (one, other) = (expand("{id}", about), expand("{id}", about));
        assert!(one.len() >= 24 && one != other && one[..16] == other[..16]);
    }
}
