//! Checks of a configuration that its types cannot express.

use super::{
    Balance, Config, EditsConfig, Finding, HashKey, Keepalive, ListenerConfig, Mode, QueueConfig, RouteConfig,
    UpstreamConfig,
};
use crate::edits::OF_REQUESTS;
use crate::fields::Field;
use std::net::SocketAddr;

/// Standard methods (RFC 9110 9, RFC 5789).
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

const WITHOUT_HTTP2: &str = "this fs-proxy was built without HTTP/2: build it with the feature `http2`";

impl Config {
    /// Returns the first error. No name is looked up yet, so the servers' addresses are not known.
    pub(super) fn check(&self) -> Result<(), Finding> {
        if self.listeners.is_empty() {
            return Err((None, "no [[listener]]: nothing to do".into()));
        }
        if let Some(burst) = self.limits.client_burst.as_ref().filter(|_| self.limits.client_requests.is_none()) {
            return Err((Some(burst.span().start), "`client_burst` has an effect only with `client_requests`".into()));
        }
        for (number, upstream) in self.upstreams.iter().enumerate() {
            let name = upstream.name.get_ref();
            if self.upstreams[..number].iter().any(|other| other.name.get_ref() == name) {
                return Err((Some(upstream.name.span().start), format!("a second upstream named `{name}`")));
            }
            if name.contains('\n') {
                let message = "the name has a line break, which ends a command of `fs-proxy admin`: remove it";
                return Err((Some(upstream.name.span().start), message.into()));
            }
            check_servers(upstream)?;
        }
        for (number, listener) in self.listeners.iter().enumerate() {
            let (address, at) = (*listener.address.get_ref(), listener.address.span().start);
            let taken = |other: &ListenerConfig| *other.address.get_ref() == address && address.port() != 0;
            if self.listeners[..number].iter().any(taken) {
                return Err((Some(at), format!("a second listener on {address}")));
            }
            let name = listener.name();
            if self.listeners[..number].iter().any(|other| other.name() == name && other.mode == listener.mode) {
                let message = format!("a second listener named `{name}`: give it another `name`, for its metrics");
                return Err((Some(at), message));
            }
            if listener.upstream.is_none() && listener.routes.is_empty() {
                return Err((Some(at), format!("the listener on {address} has neither an upstream nor a route")));
            }
            if let Some(tls) = &listener.tls {
                let (http2, at) = (tls.get_ref().http2, Some(tls.span().start));
                if http2 == Some(true) && !cfg!(feature = "http2") {
                    return Err((at, WITHOUT_HTTP2.into()));
                }
                if http2.is_some() && listener.mode == Mode::Tcp {
                    return Err((at, "`http2` has an effect only with mode = \"http\"".into()));
                }
            }
            let edits = [&listener.request_headers, &listener.response_headers];
            if listener.mode == Mode::Tcp && edits.iter().any(|edits| **edits != EditsConfig::default()) {
                return Err((Some(at), "a listener with mode = \"tcp\" has no headers".into()));
            }
            let values = listener.response_headers.set.values();
            if let Some(wrong) = OF_REQUESTS.iter().find(|name| values.clone().any(|value| value.contains(**name))) {
                return Err((Some(at), format!("`response_headers` cannot have {wrong}: it belongs to the request")));
            }
            for route in &listener.routes {
                check_route(route, listener)?;
            }
            for name in listener.upstream_names() {
                let at = Some(name.span().start);
                let Some(upstream) = self.upstream_named(name.get_ref()) else {
                    return Err((at, format!("no upstream is named `{}`", name.get_ref())));
                };
                check_use(&self.upstreams[upstream], listener)?;
            }
            self.check_splice(listener)?;
        }
        Ok(())
    }

    /// Returns the first error of the servers' addresses.
    pub(super) fn check_addresses(&self) -> Result<(), Finding> {
        for upstream in &self.upstreams {
            let (name, at) = (upstream.name.get_ref(), Some(upstream.written.span().start));
            let addrs: Vec<SocketAddr> = upstream.servers.iter().map(|server| server.addr).collect();
            if addrs.is_empty() {
                return Err((at, format!("upstream `{name}` has no servers")));
            }
            if let Some((_, twice)) = addrs.iter().enumerate().find(|(at, addr)| addrs[..*at].contains(addr)) {
                return Err((at, format!("upstream `{name}` names {twice} twice: give it a weight instead")));
            }
            if let Some(bad) = addrs.iter().find(|addr| addr.port() == 0 || addr.ip().is_unspecified()) {
                return Err((at, format!("`{bad}` is not a server's address")));
            }
        }
        if let Some(listener) = self.listeners.iter().find(|listener| self.is_loop(listener)) {
            let message = "its upstream leads back to this listener: a request would go round for ever";
            return Err((Some(listener.address.span().start), message.into()));
        }
        Ok(())
    }

    /// Returns warnings: valid settings that are probably mistakes.
    pub(super) fn doubts(&self) -> Vec<Finding> {
        let mut doubts = Vec::new();
        for upstream in &self.upstreams {
            let (name, at) = (upstream.name.get_ref(), Some(upstream.name.span().start));
            let used =
                self.listeners.iter().any(|listener| listener.upstream_names().any(|used| used.get_ref() == name));
            if !used {
                doubts.push((at, format!("no listener uses upstream `{name}`")));
            }
            if upstream.servers.iter().all(|server| server.weight == 0) {
                doubts.push((at, format!("every server of upstream `{name}` has weight 0: nothing can use it")));
            }
            if let Some(check) = upstream.health_check.as_ref().filter(|check| check.timeout > check.interval) {
                let (timeout, interval) = (check.timeout, check.interval);
                let message = format!(
                    "upstream `{name}`: a check may take {timeout:?}, so a server that is silent is checked less often \
                     than each {interval:?}: choose a shorter timeout or a longer interval"
                );
                doubts.push((at, message));
            }
        }
        for (number, listener) in self.listeners.iter().enumerate() {
            let (address, at) = (*listener.address.get_ref(), listener.address.span().start);
            for other in self.listeners[..number].iter().map(|other| *other.address.get_ref()) {
                if other != address && (covers(other, address) || covers(address, other)) {
                    let message = format!(
                        "{address} and {other} overlap: connections that match both go to the more specific one"
                    );
                    doubts.push((Some(at), message));
                }
            }
        }
        doubts
    }

    /// Checks that packets of a listener's connections may go from one to the other.
    fn check_splice(&self, listener: &ListenerConfig) -> Result<(), Finding> {
        let Some(splice) = listener.splice.as_ref().filter(|_| listener.splices()) else { return Ok(()) };
        let at = Some(splice.span().start);
        if listener.tls.is_some() {
            let message = "`splice` is not possible with `tls`: the proxy decrypts each byte; remove one of the two, or \
                           route by `hosts` without `tls`, so that the server ends TLS";
            return Err((at, message.into()));
        }
        let mut upstreams = self.upstreams_of(listener).map(|number| &self.upstreams[number]);
        match listener.mode {
            Mode::Tcp => {
                let Some(upstream) = upstreams.find(|upstream| upstream.tls.is_some()) else { return Ok(()) };
                let name = upstream.name.get_ref();
                let message =
                    format!("`splice` is not possible with upstream `{name}`, which has `tls`: remove one of the two");
                Err((at, message))
            }
            // Only tunnels leave user space, and other upstreams may have none.
            Mode::Http if upstreams.any(|upstream| upstream.tls.is_none() && !upstream.http2) => Ok(()),
            Mode::Http => {
                let message =
                    "`splice` has no effect: the listener has no upstream without `tls` and `http2`; remove it";
                Err((at, message.into()))
            }
        }
    }

    /// Returns true if a request could come back to its listener.
    fn is_loop(&self, first: &ListenerConfig) -> bool {
        let mut reached: Vec<&ListenerConfig> = vec![first];
        let mut at = 0;
        while let Some(listener) = reached.get(at) {
            at += 1;
            let servers: Vec<SocketAddr> = self
                .upstreams_of(listener)
                .flat_map(|number| &self.upstreams[number].servers)
                .map(|server| server.addr)
                .collect();
            for next in self.listeners.iter().filter(|next| servers.iter().any(|server| leads_to(*server, next))) {
                if std::ptr::eq(next, first) {
                    return true;
                }
                if !reached.iter().any(|known| std::ptr::eq(*known, next)) {
                    reached.push(next);
                }
            }
        }
        false
    }
}

fn check_servers(upstream: &UpstreamConfig) -> Result<(), Finding> {
    let (name, at) = (upstream.name.get_ref(), Some(upstream.written.span().start));
    if upstream.http2 && !cfg!(feature = "http2") {
        return Err((at, WITHOUT_HTTP2.into()));
    }
    if upstream.http2 && upstream.health_check.as_ref().is_some_and(|check| check.path.is_some()) {
        let message =
            format!("upstream `{name}`: a health check with a path uses HTTP/1.1, so with `http2` it has none");
        return Err((at, message));
    }
    if let Some(tls) = upstream.tls.as_ref().filter(|_| upstream.send_proxy.is_some()) {
        let message = "an upstream has either `tls` or `send_proxy`: the header would precede the handshake";
        return Err((Some(tls.span().start), message.into()));
    }
    if let Some(tls) = &upstream.tls {
        tls.get_ref().files().map_err(|message| (Some(tls.span().start), message))?;
    }
    if upstream.slow_start.is_some() && upstream.health_check.is_none() {
        return Err((at, "`slow_start` has an effect only with `health_check`".into()));
    }
    if upstream.queue != QueueConfig::default() && !upstream.has_max_connections() {
        return Err((at, "`queue` has an effect only with `max_connections` of servers".into()));
    }
    if upstream.has_unused_lookup_interval() {
        return Err((at, "`lookup_interval` has an effect only with names of servers".into()));
    }
    if upstream.http2 && upstream.keepalive.connections != Keepalive::default().connections {
        return Err((at, "`keepalive.connections` has no effect with `http2`: requests share a connection".into()));
    }
    if let Some(hash) = &upstream.hash
        && upstream.balance != Balance::Hash
    {
        return Err((Some(hash.span().start), "`hash` has an effect only with balance = \"hash\"".into()));
    }
    if let Some(hash) = &upstream.hash
        && let HashKey::Header(name) = hash.get_ref()
    {
        check_field(name).map_err(|message| (Some(hash.span().start), message))?;
    }
    Ok(())
}

/// Checks an upstream for the protocol of a listener that uses it.
fn check_use(upstream: &UpstreamConfig, listener: &ListenerConfig) -> Result<(), Finding> {
    let name = upstream.name.get_ref();
    if let Some(hash) = upstream.hash.as_ref().filter(|hash| *hash.get_ref() != HashKey::Address)
        && listener.mode == Mode::Tcp
    {
        let message =
            format!("a listener with mode = \"tcp\" uses upstream `{name}`: only hash = \"address\" is possible");
        return Err((Some(hash.span().start), message));
    }
    if upstream.request_headers != EditsConfig::default() && listener.mode == Mode::Tcp {
        let message = format!("a listener with mode = \"tcp\" uses upstream `{name}`: it has no headers");
        return Err((Some(upstream.name.span().start), message));
    }
    if upstream.http2 && listener.mode == Mode::Tcp {
        let message = format!("a listener with mode = \"tcp\" uses upstream `{name}`, which has `http2`");
        return Err((Some(upstream.name.span().start), message));
    }
    if let Some(version) = upstream.send_proxy.as_ref().filter(|_| listener.mode == Mode::Http) {
        let message = format!(
            "a listener with mode = \"http\" uses upstream `{name}`: requests of several clients share a connection, so \
             servers get X-Forwarded-For instead"
        );
        return Err((Some(version.span().start), message));
    }
    Ok(())
}

/// Checks that a field of a request can decide where it goes.
fn check_field(name: &str) -> Result<(), String> {
    let is_via = name.eq_ignore_ascii_case("via");
    match Field::of(name) {
        Field::Host | Field::ContentLength | Field::ForwardedProto => Ok(()),
        Field::EndToEnd if !is_via => Ok(()),
        Field::EndToEnd | Field::ForwardedFor => {
            Err(format!("`{name}` cannot decide where a request goes: the proxy appends to it before"))
        }
        _ => Err(format!("`{name}` cannot decide where a request goes: it is about one connection")),
    }
}

fn is_other_case(given: &str, method: &str) -> bool {
    given != method && given.eq_ignore_ascii_case(method)
}

fn check_route(route: &RouteConfig, listener: &ListenerConfig) -> Result<(), Finding> {
    let at = listener.address.span().start;
    match (&route.upstream, &route.redirect) {
        (Some(_), None) | (None, Some(_)) => {}
        _ => return Err((Some(at), "a route needs either `upstream` or `redirect`".into())),
    }
    route.headers.keys().try_for_each(|name| check_field(name)).map_err(|message| (Some(at), message))?;
    // Clients may have methods of their own, in any case.
    if let Some(method) = route.methods.iter().find(|&given| METHODS.iter().any(|method| is_other_case(given, method)))
    {
        return Err((Some(at), format!("`{method}` is not a method such as \"GET\": their case matters")));
    }
    if let Some(redirect) = &route.redirect {
        let text = redirect.get_ref();
        let rest = text.replace("{host}", "").replace("{target}", "");
        let is_location =
            !text.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"{}".contains(&byte));
        if !is_location {
            let message = format!("`{text}` is not a location such as \"https://{{host}}{{target}}\"");
            return Err((Some(redirect.span().start), message));
        }
    }
    match &route.status {
        Some(status) if route.redirect.is_none() => {
            return Err((Some(status.span().start), "`status` has an effect only with `redirect`".into()));
        }
        Some(status) if ![301, 302, 303, 307, 308].contains(status.get_ref()) => {
            let message = format!("{} is not the status of a redirect: 301, 302, 303, 307 or 308", status.get_ref());
            return Err((Some(status.span().start), message));
        }
        _ => {}
    }
    let is_for_http =
        !route.paths.is_empty() || !route.methods.is_empty() || !route.headers.is_empty() || route.redirect.is_some();
    if listener.mode == Mode::Tcp && is_for_http {
        return Err((Some(at), "a route of a listener with mode = \"tcp\" has only `hosts` and `upstream`".into()));
    }
    if listener.mode == Mode::Tcp && !cfg!(feature = "tls") {
        return Err((Some(at), "this fs-proxy was built without TLS, so it cannot read names of TLS clients".into()));
    }
    Ok(())
}

/// Returns true if a listener on `wide` would also get connections to `exact`.
fn covers(wide: SocketAddr, exact: SocketAddr) -> bool {
    let families = wide.is_ipv6() || exact.is_ipv4();
    wide.port() == exact.port() && wide.port() != 0 && wide.ip().is_unspecified() && families
}

/// Returns true if a connection to `server` goes to this listener. For a wildcard address, only
/// loopback is certain.
fn leads_to(server: SocketAddr, listener: &ListenerConfig) -> bool {
    let address = *listener.address.get_ref();
    server == address || (server.ip().is_loopback() && covers(address, server))
}
