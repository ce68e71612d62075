//! The treatment of header fields: one table, for the lean path and for hyper's.
//!
//! Fields about one connection are removed (RFC 9110 7.6.1). Fields that the proxy writes itself
//! replace the received ones. All others pass.

/// The class of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Passes unchanged.
    EndToEnd,
    /// `Host`: exactly one (RFC 9112 3.2).
    Host,
    /// `Content-Length`.
    ContentLength,
    /// `Transfer-Encoding`.
    TransferEncoding,
    /// `Connection`.
    Connection,
    /// `Expect`.
    Expect,
    /// `Upgrade`: only passes with a request for a tunnel and its 101 response.
    Upgrade,
    /// `X-Forwarded-For`: the client's address is appended.
    ForwardedFor,
    /// `X-Forwarded-Proto`: ours, unless the peer is a trusted proxy.
    ForwardedProto,
    /// About this connection only: removed.
    HopByHop,
}

impl Field {
    /// Classifies a field by its name, in any case.
    #[inline]
    #[must_use]
    pub fn of(name: &str) -> Self {
        let is = |lower: &str| name.eq_ignore_ascii_case(lower);
        match name.len() {
            2 if is("te") => Self::HopByHop,
            4 if is("host") => Self::Host,
            6 if is("expect") => Self::Expect,
            7 if is("upgrade") => Self::Upgrade,
            10 if is("connection") => Self::Connection,
            10 if is("keep-alive") => Self::HopByHop,
            14 if is("content-length") => Self::ContentLength,
            15 if is("x-forwarded-for") => Self::ForwardedFor,
            16 if is("proxy-connection") => Self::HopByHop,
            17 if is("transfer-encoding") => Self::TransferEncoding,
            17 if is("x-forwarded-proto") => Self::ForwardedProto,
            18 if is("proxy-authenticate") => Self::HopByHop,
            19 if is("proxy-authorization") => Self::HopByHop,
            _ => Self::EndToEnd,
        }
    }

    /// Returns true for fields that never pass in a head that is written again.
    #[must_use]
    pub fn ends_here(self) -> bool {
        matches!(self, Self::HopByHop | Self::Connection | Self::Upgrade | Self::TransferEncoding)
    }
}

/// Fields that `Connection` cannot declare to be about the connection. A client could otherwise
/// remove fields that the proxy in front of this one has added, or that the message needs (RFC 9110
/// 7.6.1: "intended for all recipients").
const NEVER_HOP_BY_HOP: [&str; 14] = [
    "authorization",
    "cache-control",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "set-cookie",
    "true-client-ip",
    "via",
    "x-real-ip",
];

/// Returns true if a field that `Connection` names is removed.
#[must_use]
pub fn may_be_named(name: &str) -> bool {
    !NEVER_HOP_BY_HOP.iter().any(|kept| name.eq_ignore_ascii_case(kept)) && !starts_with(name, "x-forwarded-")
}

/// Fields that a trailer section cannot have (RFC 9110 6.5.1): framing, routing, authentication,
/// request modifiers, response control, and content encoding.
const NOT_IN_TRAILERS: [&str; 22] = [
    "age",
    "authorization",
    "cache-control",
    "content-encoding",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "expires",
    "forwarded",
    "if-match",
    "if-none-match",
    "location",
    "max-forwards",
    "range",
    "retry-after",
    "set-cookie",
    "trailer",
    "vary",
    "via",
    "www-authenticate",
    "x-real-ip",
];

/// Returns true if a trailer field is passed on.
#[must_use]
pub fn may_be_trailer(name: &str) -> bool {
    Field::of(name) == Field::EndToEnd
        && !NOT_IN_TRAILERS.iter().any(|kept| name.eq_ignore_ascii_case(kept))
        && !starts_with(name, "x-forwarded-")
}

fn starts_with(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// The value of `Transfer-Encoding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Exactly `chunked`, once.
    Chunked,
    /// The field names another coding, which the proxy cannot decode.
    Other,
    /// Chunked twice, an empty element or no element: implementations disagree about the meaning.
    Malformed,
}

impl Coding {
    /// Parses the values of all lines of the field.
    #[must_use]
    pub fn of<'a>(values: impl Iterator<Item = &'a [u8]>) -> Self {
        let (mut chunked, mut malformed) = (0, false);
        for coding in values.flat_map(|value| value.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii) {
            match coding {
                coding if coding.eq_ignore_ascii_case(b"chunked") => chunked += 1,
                b"" => malformed = true,
                _ => return Self::Other,
            }
        }
        if chunked == 1 && !malformed { Self::Chunked } else { Self::Malformed }
    }
}

/// Writes a line.
pub(crate) fn write_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_are_case_insensitive() {
        assert_eq!(Field::of("CONNECTION"), Field::Connection);
        assert_eq!(Field::of("Te"), Field::HopByHop);
        assert_eq!(Field::of("Trailer"), Field::EndToEnd);
        assert!(!may_be_named("X-Forwarded-Host") && !may_be_named("Cookie") && may_be_named("X-Hop"));
        assert!(may_be_trailer("X-Checksum") && !may_be_trailer("Host") && !may_be_trailer("Transfer-Encoding"));
    }

    #[test]
    fn codings() {
        let of = |values: &[&str]| Coding::of(values.iter().map(|value| value.as_bytes()));
        assert_eq!(of(&["Chunked"]), Coding::Chunked);
        for malformed in [&["chunked, chunked"][..], &["chunked", "chunked"], &[",chunked"], &[""]] {
            assert_eq!(of(malformed), Coding::Malformed, "{malformed:?}");
        }
        assert_eq!(of(&["gzip, chunked"]), Coding::Other);
    }
}
