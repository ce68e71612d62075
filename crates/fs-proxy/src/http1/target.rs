//! A request's target (RFC 9112 3.2).

/// A target that the lean path serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A path with its query, or `*`: passes unchanged.
    AsItCame,
    /// An absolute target: the server gets its parts.
    Absolute {
        /// Host and port, without userinfo.
        authority: &'a str,
        /// The path does not start with `/`.
        needs_slash: bool,
        /// Path and query; may be empty.
        rest: &'a str,
    },
}

/// Checks the bytes of a host (RFC 3986 3.2.2) with its port.
pub(crate) fn is_host(bytes: &[u8]) -> bool {
    static HOST: [bool; 256] = host_bytes();
    bytes.iter().all(|&byte| HOST[usize::from(byte)])
}

const fn host_bytes() -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let char = byte as u8;
        table[byte] = char.is_ascii_alphanumeric()
            || matches!(
                char,
                b'-' | b'.'
                    | b'_'
                    | b'~'
                    | b'!'
                    | b'$'
                    | b'&'
                    | b'\''
                    | b'('
                    | b')'
                    | b'*'
                    | b'+'
                    | b','
                    | b';'
                    | b'='
                    | b'%'
                    | b':'
                    | b'['
                    | b']'
            );
        byte += 1;
    }
    table
}

/// Checks for a name or an address, with an optional port.
fn is_plain_authority(authority: &str) -> bool {
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => ("v6", port),
        Some(_) => return false,
        None => authority.find(':').map_or((authority, ""), |colon| authority.split_at(colon)),
    };
    let is_port = |port: &str| port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
        && (port.is_empty() || is_port(port))
        && !port.contains('+')
}

impl<'a> Target<'a> {
    /// Parses the target of a request with this method. Returns `None` for an odd one, which may be
    /// valid or not.
    ///
    /// Like nginx and HAProxy it accepts more bytes than RFC 3986 (`"`, `<`, `>`, backtick, `{` …):
    /// the server decides. `#` would start a fragment, which requests do not have.
    #[must_use]
    pub fn of(method: &str, target: &'a str) -> Option<Self> {
        if !target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            return None;
        }
        if target.starts_with('/') {
            return (method != "CONNECT").then_some(Self::AsItCame);
        }
        if target == "*" {
            return (method == "OPTIONS").then_some(Self::AsItCame);
        }
        let scheme = target.find("://")?;
        if method == "CONNECT" || !["http", "https"].iter().any(|one| target[..scheme].eq_ignore_ascii_case(one)) {
            return None;
        }
        let after = &target[scheme + 3..];
        let end = after.find(['/', '?']).unwrap_or(after.len());
        let (authority, rest) = after.split_at(end);
        // Userinfo is only for the client's own use (RFC 9110 4.2.4).
        let (user, authority) = authority.split_once('@').unwrap_or(("", authority));
        if !user.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:".contains(&byte)) {
            return None;
        }
        if !is_plain_authority(authority) {
            return None;
        }
        Some(Self::Absolute { authority, needs_slash: !rest.starts_with('/'), rest })
    }

    /// Writes the server's form of an absolute target.
    pub(crate) fn write(method: &str, needs_slash: bool, rest: &str, out: &mut Vec<u8>) {
        if rest.is_empty() && method == "OPTIONS" {
            // RFC 9112 3.2.4: it refers to the server as a whole.
            return out.push(b'*');
        }
        if needs_slash {
            out.push(b'/');
        }
        out.extend_from_slice(rest.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(method: &str, target: &str) -> Option<(String, String)> {
        match Target::of(method, target)? {
            Target::AsItCame => Some((String::new(), target.into())),
            Target::Absolute { authority, needs_slash, rest } => {
                let mut out = Vec::new();
                Target::write(method, needs_slash, rest, &mut out);
                Some((authority.into(), String::from_utf8(out).unwrap()))
            }
        }
    }

    #[test]
    fn absolute_targets_are_split() {
        for (method, target, authority, path) in [
            ("GET", "http://a.example/x?y", "a.example", "/x?y"),
            ("GET", "HTTP://a:81", "a:81", "/"),
            ("GET", "http://user:secret@a?q", "a", "/?q"),
            ("OPTIONS", "http://a", "a", "*"),
            ("OPTIONS", "http://a/", "a", "/"),
            ("GET", "https://[::1]:8/", "[::1]:8", "/"),
            ("OPTIONS", "*", "", "*"),
            ("GET", "/\"<>`{}|\\^", "", "/\"<>`{}|\\^"),
        ] {
            assert_eq!(sent(method, target), Some((authority.into(), path.into())), "{target}");
        }
        for (method, odd) in [
            ("GET", "*"),
            ("GET", "a"),
            ("GET", "ftp://a/"),
            ("GET", "http:///x"),
            ("GET", "http://:80/"),
            ("GET", "http://a:+8/"),
            ("GET", "http://]@a/"),
            ("GET", "http://a@b@c/"),
            ("GET", "http://[a/"),
            ("GET", "http://a:b:1/"),
            ("GET", "http://a b/"),
            ("CONNECT", "a:1"),
            ("CONNECT", "/"),
            ("GET", "/a#b"),
            ("GET", "/\u{e9}"),
        ] {
            assert_eq!(Target::of(method, odd), None, "{odd}");
        }
    }
}
