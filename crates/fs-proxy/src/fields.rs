//! What a proxy does with the fields of a head: one table, for the lean path and for the odd one.
//!
//! Fields about one connection end here (RFC 9110 7.6.1). Fields that the proxy writes itself replace what came. All
//! others pass.

/// A field, as far as a proxy cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Passes as it came.
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
    /// `Upgrade`: only a request for a tunnel and its 101 take it further.
    Upgrade,
    /// `X-Forwarded-For`: the client's address is appended.
    ForwardedFor,
    /// `X-Forwarded-Proto`: ours, unless the peer is a trusted proxy.
    ForwardedProto,
    /// About this connection only: dropped.
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

    /// True for fields that never pass through in a head that is written again.
    #[must_use]
    pub fn ends_here(self) -> bool {
        matches!(self, Self::HopByHop | Self::Connection | Self::Upgrade | Self::TransferEncoding)
    }
}

/// Fields that `Connection` cannot declare to be about the connection: a client could otherwise erase what the proxy in
/// front of this one has said about it, or what the message needs (RFC 9110 7.6.1: "intended for all recipients").
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

/// True when a field that `Connection` names is removed.
#[must_use]
pub fn may_be_named(name: &str) -> bool {
    !NEVER_HOP_BY_HOP.iter().any(|kept| name.eq_ignore_ascii_case(kept)) && !starts_with(name, "x-forwarded-")
}

/// Fields that a trailer section cannot have (RFC 9110 6.5.1): framing, routing, authentication, request modifiers,
/// response control, and how the content is to be read.
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

/// True when a trailer field is passed on.
#[must_use]
pub fn may_be_trailer(name: &str) -> bool {
    Field::of(name) == Field::EndToEnd
        && !NOT_IN_TRAILERS.iter().any(|kept| name.eq_ignore_ascii_case(kept))
        && !starts_with(name, "x-forwarded-")
}

fn starts_with(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// What the values of `Transfer-Encoding` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Exactly `chunked`, once.
    Chunked,
    /// Another coding is named: the proxy cannot undo it.
    Other,
    /// Chunked twice, an empty element or no element: peers disagree about what that means.
    Malformed,
}

impl Coding {
    /// Reads the field's values, of all its lines.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_any_case() {
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
