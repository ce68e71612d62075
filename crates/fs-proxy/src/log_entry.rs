//! A request or connection as a line of the access log, in the configured format.

use crate::config::LogFormat;
use serde::Serialize;
use std::fmt::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// The names of `referer`, `agent` and `id`.
pub(crate) const LOGGED_FIELDS: [&str; 3] = ["referer", "user-agent", "x-request-id"];

/// A request with its response, or a TCP connection.
pub(crate) struct Entry<'a> {
    pub(crate) listener: &'a str,
    pub(crate) client: SocketAddr,
    pub(crate) server: Option<SocketAddr>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) took: Duration,
    pub(crate) what: What<'a>,
}

pub(crate) enum What<'a> {
    Request(Request<'a>),
    /// The end of a TCP connection.
    Connection(&'a str),
}

pub(crate) struct Request<'a> {
    pub(crate) status: u16,
    /// Empty if the head was malformed.
    pub(crate) method: &'a str,
    pub(crate) target: &'a str,
    pub(crate) version: &'a str,
    /// Fields of the request; only needed if [`LogFormat::has_fields`].
    pub(crate) referer: Option<&'a [u8]>,
    pub(crate) agent: Option<&'a [u8]>,
    /// `X-Request-Id`, as the server got it.
    pub(crate) id: Option<&'a [u8]>,
    /// The response was incomplete.
    pub(crate) is_broken: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    time: String,
    listener: &'a str,
    client: SocketAddr,
    server: Option<SocketAddr>,
    bytes_in: u64,
    bytes_out: u64,
    ms: f64,
    #[serde(flatten)]
    what: JsonWhat<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonWhat<'a> {
    Request {
        status: u16,
        method: &'a str,
        target: &'a str,
        version: &'a str,
        referer: Option<String>,
        agent: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        broken: bool,
    },
    Connection {
        outcome: &'a str,
    },
}

impl Entry<'_> {
    /// Appends the line. `now` is the time since 1970.
    pub(crate) fn write(&self, format: LogFormat, now: Duration, out: &mut String) {
        // Writing to a String cannot fail.
        let _ = match (format, &self.what) {
            (LogFormat::Combined, What::Request(request)) => self.write_combined(request, now, out),
            (LogFormat::Json, _) => {
                let line = serde_json::to_string(&self.json(now));
                out.push_str(&line.unwrap_or_default());
                out.push('\n');
                Ok(())
            }
            _ => self.write_plain(now, out),
        };
    }

    fn write_plain(&self, now: Duration, out: &mut String) -> fmt::Result {
        let Self { listener, client, server, bytes_in, bytes_out, took, what } = self;
        let (time, server) = (Timestamp(now), OrDash(server.as_ref()));
        match what {
            What::Request(Request { status, method, target, is_broken, .. }) => {
                let (ms, end) = (took.as_micros() as f64 / 1000.0, if *is_broken { " broken" } else { "" });
                let gap = if target.is_empty() { "" } else { " " };
                let method = if method.is_empty() { "-" } else { method };
                let target = Escaped(target.as_bytes());
                writeln!(
                    out,
                    "{time} {listener} {client} {status} {server} in={bytes_in} out={bytes_out} ms={ms:.3}{end} \
                     \"{method}{gap}{target}\""
                )
            }
            What::Connection(outcome) => {
                let (ms, outcome) = (took.as_millis(), Escaped(outcome.as_bytes()));
                writeln!(
                    out,
                    "{time} {listener} {client} TCP {server} in={bytes_in} out={bytes_out} ms={ms} \"{outcome}\""
                )
            }
        }
    }

    fn write_combined(&self, request: &Request<'_>, now: Duration, out: &mut String) -> fmt::Result {
        let Request { status, method, target, version, referer, agent, .. } = request;
        write!(out, "{} - - [{}] \"", self.client.ip().to_canonical(), ApacheTime(now))?;
        match method.is_empty() {
            true => out.push('-'),
            false => write!(out, "{method} {} {version}", Escaped(target.as_bytes()))?,
        }
        let field = |value: &Option<&[u8]>| Escaped(value.unwrap_or(b"-")).to_string();
        writeln!(out, "\" {status} {} \"{}\" \"{}\"", self.bytes_out, field(referer), field(agent))
    }

    fn json(&self, now: Duration) -> Json<'_> {
        let text = |field: &Option<&[u8]>| field.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        Json {
            time: Timestamp(now).to_string(),
            listener: self.listener,
            client: self.client,
            server: self.server,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            ms: self.took.as_micros() as f64 / 1000.0,
            what: match &self.what {
                What::Connection(outcome) => JsonWhat::Connection { outcome },
                What::Request(Request { status, method, target, version, referer, agent, id, is_broken }) => {
                    JsonWhat::Request {
                        status: *status,
                        method,
                        target,
                        version,
                        referer: text(referer),
                        agent: text(agent),
                        id: text(id),
                        broken: *is_broken,
                    }
                }
            },
        }
    }
}

/// Formats a value, or `-` if there is none.
struct OrDash<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for OrDash<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("-"),
        }
    }
}

/// Bytes between quotes, as Apache writes them. Targets in HTTP/2 may have any UTF-8.
struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|&byte| match byte {
            b'"' | b'\\' => write!(f, "\\{}", byte as char),
            b' '..=b'~' => f.write_char(byte as char),
            _ => write!(f, "\\x{byte:02x}"),
        })
    }
}

/// RFC 3339, in UTC, with milliseconds.
struct Timestamp(Duration);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { year, month, day, hour, minute, second } = Parts::of(self.0);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", self.0.subsec_millis())
    }
}

/// `29/Nov/2026:09:17:02 +0000`.
struct ApacheTime(Duration);

impl fmt::Display for ApacheTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let Parts { year, month, day, hour, minute, second } = Parts::of(self.0);
        let month = MONTHS[(month as usize - 1) % 12];
        write!(f, "{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000")
    }
}

/// A time in UTC.
struct Parts {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Parts {
    fn of(time: Duration) -> Self {
        let (days, second) = (time.as_secs() / 86_400, time.as_secs() % 86_400);
        let (year, month, day) = date(days);
        Self { year, month, day, hour: second / 3600, minute: second / 60 % 60, second: second % 60 }
    }
}

/// The Gregorian date of a day since 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // Years start in March here, so that the leap day is the last of a year. 719468 days are
    // between 0000-03-01 and 1970.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps() {
        let at = |seconds, ms| Timestamp(Duration::from_secs(seconds) + Duration::from_millis(ms)).to_string();
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400, 7), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(1_709_251_199, 999), "2024-02-29T23:59:59.999Z");
        assert_eq!(at(4_102_444_799, 0), "2099-12-31T23:59:59.000Z");
        assert_eq!(ApacheTime(Duration::from_secs(951_782_400)).to_string(), "29/Feb/2000:00:00:00 +0000");
    }

    fn line(format: LogFormat, what: What<'_>) -> String {
        let mut out = String::new();
        Entry {
            listener: "front",
            client: "[::ffff:192.0.2.1]:5000".parse().unwrap(),
            server: Some("10.0.0.1:80".parse().unwrap()),
            bytes_in: 1,
            bytes_out: 2,
            took: Duration::from_micros(3456),
            what,
        }
        .write(format, Duration::from_secs(951_782_400), &mut out);
        out
    }

    fn request(agent: &[u8]) -> What<'_> {
        What::Request(Request {
            status: 200,
            method: "GET",
            // NEL, which some terminals and tools take for the end of a line: HTTP/2 allows it.
            target: "/a\"b\u{85}",
            version: "HTTP/1.1",
            referer: None,
            agent: Some(agent),
            id: None,
            is_broken: false,
        })
    }

    #[test]
    fn formats() {
        assert_eq!(
            line(LogFormat::Plain, request(b"x")),
            "2000-02-29T00:00:00.000Z front [::ffff:192.0.2.1]:5000 200 10.0.0.1:80 in=1 out=2 ms=3.456 \
             \"GET /a\\\"b\\xc2\\x85\"\n"
        );
        assert_eq!(
            line(LogFormat::Combined, request(b"a \"quoted\" \\ \n\xe9")),
            "192.0.2.1 - - [29/Feb/2000:00:00:00 +0000] \"GET /a\\\"b\\xc2\\x85 HTTP/1.1\" 200 2 \"-\" \
             \"a \\\"quoted\\\" \\\\ \\x0a\\xe9\"\n"
        );
        let json: serde_json::Value = serde_json::from_str(&line(LogFormat::Json, request(b"a\"\n"))).unwrap();
        assert_eq!(
            (json["status"].as_u64(), json["agent"].as_str(), json["target"].as_str()),
            (Some(200), Some("a\"\n"), Some("/a\"b\u{85}"))
        );
        assert!(json["referer"].is_null() && json["ms"].as_f64() == Some(3.456));
        let json: serde_json::Value = serde_json::from_str(&line(LogFormat::Json, What::Connection("ok"))).unwrap();
        assert_eq!((json["outcome"].as_str(), json["status"].as_u64()), (Some("ok"), None));
        assert_eq!(line(LogFormat::Combined, What::Connection("ok")), line(LogFormat::Plain, What::Connection("ok")));
        // The parser of the PROXY protocol has CRLF in an error.
        let plain = line(LogFormat::Plain, What::Connection("a\r\n\"b\""));
        assert!(plain.ends_with("ms=3 \"a\\x0d\\x0a\\\"b\\\"\"\n"), "{plain}");
    }
}
