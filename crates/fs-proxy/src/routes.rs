//! The destination of a request: the first route of its listener that matches, else the listener's
//! upstream.

use crate::config::{HashKey, HostPattern, RouteConfig};
use crate::upstream::Upstream;
use http::HeaderMap;
use httparse::Header;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::net::IpAddr;
use std::rc::Rc;

/// The default status of a redirect: permanent, with the same method.
const REDIRECT: u16 = 308;

/// The parts of a request that decide where it goes.
pub(crate) struct Facts<'a> {
    pub(crate) method: &'a str,
    /// Path and query, or `*`.
    pub(crate) target: &'a str,
    pub(crate) fields: Fields<'a>,
}

/// A request's header fields.
pub(crate) enum Fields<'a> {
    Lines(&'a [Header<'a>]),
    Map(&'a HeaderMap),
}

impl<'a> Fields<'a> {
    /// Returns the first value of a field.
    pub(crate) fn get(&self, name: &str) -> Option<&'a [u8]> {
        match self {
            Self::Lines(lines) => lines.iter().find(|line| line.name.eq_ignore_ascii_case(name)).map(|line| line.value),
            Self::Map(map) => map.get(name).map(|value| value.as_bytes()),
        }
    }
}

impl<'a> Facts<'a> {
    fn field(&self, name: &str) -> Option<&'a [u8]> {
        self.fields.get(name)
    }

    /// Returns the host without its port.
    fn host(&self) -> &'a str {
        let host = self.field("host").and_then(|host| std::str::from_utf8(host).ok()).unwrap_or_default();
        let end = match host.strip_prefix('[').and_then(|rest| rest.find(']')) {
            Some(at) => at + 2,
            None => host.find(':').unwrap_or(host.len()),
        };
        &host[..end]
    }

    fn path(&self) -> &'a str {
        self.target.split('?').next().unwrap_or_default()
    }

    fn cookie(&self, name: &str) -> Option<&'a [u8]> {
        let pairs = self.field("cookie")?.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        pairs.into_iter().find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }
}

/// A route.
pub(crate) struct Route {
    hosts: Vec<HostPattern>,
    paths: Vec<String>,
    methods: Vec<String>,
    /// Names and values; `*` is any value.
    fields: Vec<(String, String)>,
    then: Then,
}

enum Then {
    Upstream(Rc<Upstream>),
    Redirect(u16, String),
}

/// The destination of a request.
pub(crate) enum Destination {
    Upstream(Rc<Upstream>),
    /// Status and location.
    Redirect(u16, String),
    /// No route matches.
    Nowhere,
}

impl Route {
    /// `upstream` is the one that the configuration names.
    pub(crate) fn new(config: &RouteConfig, upstream: Option<Rc<Upstream>>) -> Option<Self> {
        let status = config.status.as_ref().map_or(REDIRECT, |status| *status.get_ref());
        let then = match (upstream, &config.redirect) {
            (Some(upstream), _) => Then::Upstream(upstream),
            (None, Some(location)) => Then::Redirect(status, location.get_ref().clone()),
            (None, None) => return None,
        };
        Some(Self {
            hosts: config.hosts.clone(),
            paths: config.paths.clone(),
            methods: config.methods.clone(),
            fields: config.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            then,
        })
    }

    fn matches(&self, facts: &Facts<'_>) -> bool {
        let any = |list: usize, found: bool| list == 0 || found;
        let field = |(name, value): &(String, String)| {
            facts.field(name).is_some_and(|found| value == "*" || found == value.as_bytes())
        };
        any(self.methods.len(), self.methods.iter().any(|method| method == facts.method))
            && any(self.paths.len(), self.paths.iter().any(|start| is_below(start, facts.path())))
            && any(self.hosts.len(), self.hosts.iter().any(|host| host.matches(facts.host())))
            && self.fields.iter().all(field)
    }
}

/// Returns true if `start` is the path, or a parent of it.
fn is_below(start: &str, path: &str) -> bool {
    path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || start.ends_with('/') || rest.starts_with('/'))
}

/// The routes of a listener.
pub(crate) struct Routes {
    pub(crate) routes: Vec<Route>,
    pub(crate) default: Option<Rc<Upstream>>,
}

impl Routes {
    /// Returns the upstream of every request, if nothing in a request matters.
    #[inline]
    pub(crate) fn direct(&self) -> Option<&Rc<Upstream>> {
        self.default.as_ref().filter(|upstream| self.routes.is_empty() && upstream.hash.is_none())
    }

    /// Returns where a request goes.
    pub(crate) fn destination(&self, facts: &Facts<'_>) -> Destination {
        match self.routes.iter().find(|route| route.matches(facts)).map(|route| &route.then) {
            Some(Then::Upstream(upstream)) => Destination::Upstream(upstream.clone()),
            Some(Then::Redirect(status, location)) => {
                let target = if facts.target.starts_with('/') { facts.target } else { "/" };
                Destination::Redirect(*status, location.replace("{host}", facts.host()).replace("{target}", target))
            }
            None => self.default.clone().map_or(Destination::Nowhere, Destination::Upstream),
        }
    }

    /// Returns the upstream for a TLS client that asks for this name.
    pub(crate) fn upstream_of_name(&self, name: Option<&str>) -> Option<Rc<Upstream>> {
        let matches = |route: &&Route| {
            route.hosts.is_empty() || name.is_some_and(|name| route.hosts.iter().any(|host| host.matches(name)))
        };
        match self.routes.iter().find(matches).map(|route| &route.then) {
            Some(Then::Upstream(upstream)) => Some(upstream.clone()),
            Some(Then::Redirect(..)) | None => self.default.clone(),
        }
    }
}

/// Returns the key by which an upstream chooses a server, if it does so and the request has it.
pub(crate) fn key(hash: Option<&HashKey>, client: IpAddr, facts: Option<&Facts<'_>>) -> Option<u64> {
    let mut hasher = SipHasher13::new();
    match hash? {
        HashKey::Address => match client.to_canonical() {
            IpAddr::V4(address) => hasher.write(&address.octets()),
            IpAddr::V6(address) => hasher.write(&address.octets()),
        },
        HashKey::Path => hasher.write(facts?.path().as_bytes()),
        HashKey::Header(name) => hasher.write(facts?.field(name)?),
        HashKey::Cookie(name) => hasher.write(facts?.cookie(name)?),
    }
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(text: &str) -> Route {
        let config: RouteConfig = toml::from_str(&format!("redirect = '/'\n{text}")).unwrap();
        Route::new(&config, None).unwrap()
    }

    #[track_caller]
    fn check(text: &str, method: &str, target: &str, lines: &[(&str, &str)], expected: bool) {
        let lines: Vec<_> = lines.iter().map(|(name, value)| Header { name, value: value.as_bytes() }).collect();
        let mut map = HeaderMap::new();
        for line in &lines {
            map.append(
                line.name.parse::<http::HeaderName>().unwrap(),
                http::HeaderValue::from_bytes(line.value).unwrap(),
            );
        }
        for fields in [Fields::Lines(&lines), Fields::Map(&map)] {
            let facts = Facts { method, target, fields };
            assert_eq!(route(text).matches(&facts), expected, "{text}: {method} {target} {lines:?}");
        }
    }

    #[test]
    fn routes_match_hosts_paths_methods_and_fields() {
        let host = |host| [("Host", host)];
        for (pattern, name, expected) in [
            ("a.example", "a.example", true),
            ("a.example", "A.Example:8080", true),
            ("a.example", "b.a.example", false),
            ("*.a.example", "b.a.example", true),
            ("*.a.example", "c.b.A.EXAMPLE", true),
            ("*.a.example", "a.example", false),
            ("*.a.example", ".a.example", false),
            ("*.a.example", "ba.example", false),
            ("[::1]", "[::1]:80", true),
            ("10.0.0.1", "10.0.0.1", true),
        ] {
            check(&format!("hosts = ['{pattern}']"), "GET", "/", &host(name), expected);
        }
        for (start, target, expected) in [
            ("/api", "/api", true),
            ("/api", "/api/x", true),
            ("/api", "/api?x=/y", true),
            ("/api", "/apix", false),
            ("/api", "/x/api", false),
            ("/api/", "/api/x", true),
            ("/api/", "/api", false),
            ("/", "/anything", true),
            ("/", "*", false),
        ] {
            check(&format!("paths = ['{start}']"), "GET", target, &host("x"), expected);
        }
        check("methods = ['GET', 'HEAD']", "HEAD", "/", &host("x"), true);
        check("methods = ['GET', 'HEAD']", "POST", "/", &host("x"), false);
        check("headers = { X-Canary = '1' }", "GET", "/", &[("x-canary", "1")], true);
        check("headers = { X-Canary = '1' }", "GET", "/", &[("x-canary", "2")], false);
        check("headers = { X-Canary = '*' }", "GET", "/", &[("x-canary", "2")], true);
        check("headers = { X-Canary = '*' }", "GET", "/", &[], false);
        check("hosts = ['a']\npaths = ['/x']", "GET", "/x", &host("b"), false);
        check("", "GET", "/", &[], true);
    }

    #[test]
    fn redirects_have_the_requests_host_and_target() {
        let routes = |location: &str| Routes { routes: vec![route("").renamed(location)], default: None };
        let lines = [Header { name: "Host", value: b"a.example:8080" }];
        let facts = Facts { method: "GET", target: "/x?y=1", fields: Fields::Lines(&lines) };
        for (location, expected) in [
            ("https://{host}{target}", "https://a.example/x?y=1"),
            ("https://new.example/", "https://new.example/"),
            ("https://{host}:8443{target}", "https://a.example:8443/x?y=1"),
        ] {
            match routes(location).destination(&facts) {
                Destination::Redirect(308, made) => assert_eq!(made, expected),
                _ => panic!("no redirect to {location}"),
            }
        }
    }

    impl Route {
        fn renamed(mut self, location: &str) -> Self {
            self.then = Then::Redirect(REDIRECT, location.to_owned());
            self
        }
    }

    #[test]
    fn keys_are_equal_for_equal_parts() {
        let lines = [Header { name: "Cookie", value: b"a=1; session=42; b=session=1" }];
        let facts = |target| Facts { method: "GET", target, fields: Fields::Lines(&lines) };
        let of =
            |hash: &HashKey, address: &str, target| key(Some(hash), address.parse().unwrap(), Some(&facts(target)));
        let (one, other) = ("10.0.0.1", "10.0.0.2");
        assert_eq!(of(&HashKey::Address, one, "/a"), of(&HashKey::Address, "::ffff:10.0.0.1", "/b"));
        assert_ne!(of(&HashKey::Address, one, "/a"), of(&HashKey::Address, other, "/a"));
        assert_eq!(of(&HashKey::Path, one, "/a?1"), of(&HashKey::Path, other, "/a?2"));
        assert_ne!(of(&HashKey::Path, one, "/a"), of(&HashKey::Path, one, "/b"));
        assert!(of(&HashKey::Cookie("session".into()), one, "/").is_some());
        assert_eq!(of(&HashKey::Cookie("none".into()), one, "/"), None);
        assert_eq!(of(&HashKey::Header("X-Key".into()), one, "/"), None);
        assert_eq!(key(None, one.parse().unwrap(), None), None);
    }
}
