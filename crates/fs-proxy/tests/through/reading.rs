//! A stream of HTTP/1.1 as RFC 9110 and RFC 9112 say. Two readings: of what the proxy receives, in which
//! a line may end with a bare LF and empty lines may come first (RFC 9112 2.2 leaves both to the
//! receiver), and of what it sends, which has neither.

/// Lower-case names with their values, in order.
type Fields = Vec<(String, Vec<u8>)>;

/// How far a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Whole,
    /// The stream ends within it.
    Incomplete,
    /// Nobody may take it for whole.
    Wrong,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Method and target in the server's form, or the status.
    pub(crate) what: (String, Vec<u8>),
    /// Of a request.
    pub(crate) host: Option<Vec<u8>>,
    /// Those that everybody passes on.
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    pub(crate) state: State,
    /// Another message may follow on the connection.
    pub(crate) continues: bool,
    /// False if a receiver may take it for whole or not: a trailer line ends with a bare LF.
    pub(crate) is_clear: bool,
}

impl Message {
    pub(crate) fn status(&self) -> &str {
        &self.what.0
    }

    /// Returns true if `passed` is this message, as a proxy passes it on.
    pub(crate) fn is_same(&self, passed: &Self) -> bool {
        // RFC 9112 3.2.4: a target for the server as a whole has two forms.
        let star = |message: &Self| message.what.0 == "OPTIONS" && matches!(&*message.what.1, b"*" | b"/");
        let lower = |host: &Option<Vec<u8>>| host.as_ref().map(|host| host.to_ascii_lowercase());
        (self.what == passed.what || star(self) && star(passed))
            && (self.host.is_none() || lower(&self.host) == lower(&passed.host))
            && self.body == passed.body
            && self.state == passed.state
            && self.lost(passed).is_none()
    }

    /// Returns a field that was not passed on as it came.
    pub(crate) fn lost(&self, passed: &Self) -> Option<String> {
        let named = |fields: &Fields, name: &str| -> Vec<Vec<u8>> {
            fields.iter().filter(|(own, _)| own == name).map(|(_, value)| value.clone()).collect()
        };
        let names = self.fields.iter().map(|(name, _)| name);
        names.into_iter().find(|name| named(&self.fields, name) != named(&passed.fields, name)).cloned()
    }
}

/// Returns a line without its end, and the rest.
fn line(bytes: &[u8], strict: bool) -> Result<(&[u8], &[u8]), State> {
    let lf = bytes.iter().position(|&byte| byte == b'\n').ok_or(State::Incomplete)?;
    let (line, rest) = (&bytes[..lf], &bytes[lf + 1..]);
    let line = match line.strip_suffix(b"\r") {
        Some(line) => line,
        None if strict => return Err(State::Wrong),
        None => line,
    };
    if line.contains(&b'\r') { Err(State::Wrong) } else { Ok((line, rest)) }
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

fn trimmed(value: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().position(|byte| !blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    &value[start..end]
}

fn is_value(value: &[u8]) -> bool {
    value.iter().all(|&byte| byte == b'\t' || byte >= b' ' && byte != 0x7f)
}

/// Reads field lines up to the empty line.
fn fields(mut bytes: &[u8], strict: bool) -> Result<(Fields, &[u8]), State> {
    let mut fields = Fields::new();
    loop {
        let (line, rest) = line(bytes, strict)?;
        bytes = rest;
        if line.is_empty() {
            return Ok((fields, bytes));
        }
        let colon = line.iter().position(|&byte| byte == b':').ok_or(State::Wrong)?;
        let (name, value) = (&line[..colon], trimmed(&line[colon + 1..]));
        if !is_token(name) || !is_value(value) {
            return Err(State::Wrong);
        }
        fields.push((String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()));
    }
}

fn values<'a>(fields: &'a Fields, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    fields.iter().filter(move |(own, _)| own == name).map(|(_, value)| &**value)
}

/// Returns the members of a list field, in lower case.
fn list(fields: &Fields, name: &str) -> Vec<Vec<u8>> {
    let members = values(fields, name).flat_map(|value| value.split(|&byte| byte == b','));
    members.map(|member| trimmed(member).to_ascii_lowercase()).filter(|member| !member.is_empty()).collect()
}

/// Fields about the connection, about the message's length, or with lines of the proxy.
const NOT_COMPARED: [&str; 17] = [
    "connection",
    "content-length",
    "date",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-forwarded-for",
    "x-forwarded-proto",
    "http2-settings",
];

fn compared(fields: &Fields) -> Fields {
    let options = list(fields, "connection");
    let stays = |name: &str| !NOT_COMPARED.contains(&name) && !options.iter().any(|option| option == name.as_bytes());
    fields.iter().filter(|(name, _)| stays(name)).cloned().collect()
}

enum Framing {
    Length(u64),
    Chunked,
    UntilEnd,
}

/// Reads `Content-Length`: one number, maybe repeated (RFC 9112 6.3).
fn length(fields: &Fields) -> Result<Option<u64>, State> {
    let mut length = None;
    for value in values(fields, "content-length").flat_map(|value| value.split(|&byte| byte == b',')) {
        let digits = trimmed(value);
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err(State::Wrong);
        }
        let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or(State::Wrong)?;
        if length.is_some_and(|length| length != number) {
            return Err(State::Wrong);
        }
        length = Some(number);
    }
    Ok(length)
}

/// Reads a body. Returns its content, the rest, how far it goes, and whether that is clear.
fn body<'a>(framing: &Framing, bytes: &'a [u8], strict: bool) -> (Vec<u8>, &'a [u8], State, bool) {
    match *framing {
        Framing::UntilEnd => (bytes.to_vec(), &[], State::Whole, true),
        Framing::Length(length) if length <= bytes.len() as u64 => {
            let (content, rest) = bytes.split_at(length as usize);
            (content.to_vec(), rest, State::Whole, true)
        }
        Framing::Length(_) => (bytes.to_vec(), &[], State::Incomplete, true),
        Framing::Chunked => {
            let mut content = Vec::new();
            match chunks(bytes, strict, &mut content) {
                Ok((rest, is_clear)) => (content, rest, State::Whole, is_clear),
                Err(state) => (content, &[], state, true),
            }
        }
    }
}

/// RFC 9112 7.1. White space after a size is BWS of an extension, which a receiver removes.
fn chunks<'a>(mut bytes: &'a [u8], strict: bool, content: &mut Vec<u8>) -> Result<(&'a [u8], bool), State> {
    loop {
        let (line, rest) = line(bytes, true)?;
        let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
        let extension = trimmed(&line[digits..]);
        let is_extension = extension.is_empty() || extension[0] == b';';
        if digits == 0 || !is_extension || strict && digits != line.len() {
            return Err(State::Wrong);
        }
        let size = std::str::from_utf8(&line[..digits]).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let size = size.ok_or(State::Wrong)?;
        if size == 0 {
            return match fields(rest, true) {
                Err(State::Wrong) if !strict => fields(rest, false).map(|(_, rest)| (rest, false)),
                read => read.map(|(_, rest)| (rest, true)),
            };
        }
        if size > rest.len() as u64 {
            content.extend_from_slice(rest);
            return Err(State::Incomplete);
        }
        let (data, rest) = rest.split_at(size as usize);
        content.extend_from_slice(data);
        bytes = match rest {
            [b'\r', b'\n', rest @ ..] => rest,
            [] | [b'\r'] => return Err(State::Incomplete),
            _ => return Err(State::Wrong),
        };
    }
}

/// The bytes of a host with its port (RFC 3986 3.2.2).
fn is_host(host: &[u8]) -> bool {
    host.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%:[]".contains(byte))
}

/// Returns the target in the form for a server, and the host of an absolute one.
fn target(method: &str, target: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    // More bytes than a URI has: servers decide.
    if !target.iter().all(|&byte| byte > b' ' && byte != 0x7f) || method == "CONNECT" {
        return None;
    }
    if target.starts_with(b"/") || target == b"*" && method == "OPTIONS" {
        return Some((target.to_vec(), None));
    }
    let scheme = target.windows(3).position(|window| window == b"://")?;
    // The proxy is the origin of all schemes (the bytes of RFC 3986 3.1).
    if !target[..scheme].iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte)) {
        return None;
    }
    let after = &target[scheme + 3..];
    let end = after.iter().position(|byte| b"/?".contains(byte)).unwrap_or(after.len());
    let (authority, path) = after.split_at(end);
    let host = authority.iter().rposition(|&byte| byte == b'@').map_or(authority, |at| &authority[at + 1..]);
    if host.is_empty() || !is_host(host) {
        return None;
    }
    let path = match path {
        [] if method == "OPTIONS" => b"*".to_vec(),
        [b'/', ..] => path.to_vec(),
        _ => [b"/", path].concat(),
    };
    Some((path, Some(host.to_vec())))
}

/// Reads a request. Returns what follows it. `Err`: there is no request that may be passed on.
pub(crate) fn request(mut bytes: &[u8], strict: bool) -> Result<(Message, &[u8]), State> {
    let (start, rest) = loop {
        let (start, rest) = line(bytes, strict)?;
        if strict || !start.is_empty() {
            break (start, rest);
        }
        bytes = rest;
    };
    let parts: Vec<&[u8]> = start.split(|&byte| byte == b' ').collect();
    let [method, wanted, version @ (b"HTTP/1.0" | b"HTTP/1.1")] = parts[..] else { return Err(State::Wrong) };
    let is_new = version == b"HTTP/1.1";
    if !is_token(method) || strict && !is_new {
        return Err(State::Wrong);
    }
    let method = String::from_utf8_lossy(method).into_owned();
    // hyper drops a fragment.
    let fragment = wanted.iter().position(|&byte| byte == b'#').unwrap_or(wanted.len());
    if strict && fragment < wanted.len() {
        return Err(State::Wrong);
    }
    let (wanted, absolute) = target(&method, &wanted[..fragment]).ok_or(State::Wrong)?;
    let (fields, rest) = fields(rest, strict)?;
    let hosts: Vec<&[u8]> = values(&fields, "host").collect();
    if hosts.len() > 1 || is_new && hosts.is_empty() || !hosts.iter().all(|host| is_host(host)) {
        return Err(State::Wrong);
    }
    let host = absolute.or_else(|| hosts.first().map(|host| host.to_vec()));
    let (length, codings) = (length(&fields)?, list(&fields, "transfer-encoding"));
    let has_codings = values(&fields, "transfer-encoding").next().is_some();
    let framing = match length {
        Some(_) if has_codings && strict => return Err(State::Wrong),
        _ if has_codings && (!is_new || codings != [b"chunked"]) => return Err(State::Wrong),
        _ if has_codings => Framing::Chunked,
        length => Framing::Length(length.unwrap_or(0)),
    };
    if strict && values(&fields, "content-length").any(|value| value.contains(&b',')) {
        return Err(State::Wrong);
    }
    let options = list(&fields, "connection");
    let has = |option: &[u8]| options.iter().any(|own| own == option);
    // RFC 9112 6.1: with both, the coding wins, and nothing may follow.
    let is_ambiguous = length.is_some() && has_codings;
    let continues = !has(b"close") && (is_new || has(b"keep-alive")) && !is_ambiguous;
    let (body, rest, state, is_clear) = body(&framing, rest, strict);
    let (what, fields) = ((method, wanted), compared(&fields));
    Ok((Message { what, host, fields, body, state, continues, is_clear }, rest))
}

/// Reads a response and the interim ones before it. Returns what follows it.
pub(crate) fn response<'a>(mut bytes: &'a [u8], method: &str, strict: bool) -> Result<(Message, &'a [u8]), State> {
    loop {
        let (start, rest) = line(bytes, strict)?;
        if start.is_empty() && !strict {
            bytes = rest;
            continue;
        }
        let (version, after) = start.split_first_chunk::<9>().ok_or(State::Wrong)?;
        let (status, reason) = after.split_first_chunk::<3>().ok_or(State::Wrong)?;
        let is_new = version == b"HTTP/1.1 ";
        let is_known = is_new || version == b"HTTP/1.0 ";
        if !is_known || !status.iter().all(u8::is_ascii_digit) || status[0] == b'0' {
            return Err(State::Wrong);
        }
        if !is_value(reason) || !(reason.starts_with(b" ") || reason.is_empty() && !strict) {
            return Err(State::Wrong);
        }
        let (fields, rest) = fields(rest, strict)?;
        let status = String::from_utf8_lossy(status).into_owned();
        if status == "101" {
            return Err(State::Wrong);
        }
        if status.starts_with('1') {
            bytes = rest;
            continue;
        }
        let (length, codings) = (length(&fields)?, list(&fields, "transfer-encoding"));
        let has_codings = values(&fields, "transfer-encoding").next().is_some();
        let no_body = method == "HEAD" || matches!(&*status, "204" | "304");
        if has_codings
            && (!is_new || codings != [b"chunked"] || strict && (length.is_some() || no_body && method != "HEAD"))
        {
            return Err(State::Wrong);
        }
        let framing = match length {
            _ if no_body => Framing::Length(0),
            _ if has_codings => Framing::Chunked,
            Some(length) => Framing::Length(length),
            None => Framing::UntilEnd,
        };
        let options = list(&fields, "connection");
        let has = |option: &[u8]| options.iter().any(|own| own == option);
        let continues = !has(b"close") && is_new && !matches!(framing, Framing::UntilEnd);
        let (body, rest, state, is_clear) = body(&framing, rest, strict);
        let what = (status, Vec::new());
        let fields = compared(&fields);
        return Ok((Message { what, host: None, fields, body, state, continues, is_clear }, rest));
    }
}
