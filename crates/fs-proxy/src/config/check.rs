//! Checks of a configuration that its types cannot express.

use super::{Config, ListenerConfig, UpstreamConfig};
use std::net::SocketAddr;

/// An offset in the file, and the error there.
type Finding = (Option<usize>, String);

impl Config {
    /// Returns the first error.
    pub(super) fn check(&self) -> Result<(), Finding> {
        if self.listeners.is_empty() {
            return Err((None, "no [[listener]]: nothing to do".into()));
        }
        for (number, upstream) in self.upstreams.iter().enumerate() {
            let name = upstream.name.get_ref();
            if self.upstreams[..number].iter().any(|other| other.name.get_ref() == name) {
                return Err((Some(upstream.name.span().start), format!("a second upstream named `{name}`")));
            }
            let servers = upstream.servers.get_ref();
            if servers.is_empty() {
                return Err((Some(upstream.servers.span().start), format!("upstream `{name}` has no servers")));
            }
            if let Some((_, twice)) = servers.iter().enumerate().find(|(at, addr)| servers[..*at].contains(addr)) {
                let message = format!("upstream `{name}` names {twice} twice: its share would be double");
                return Err((Some(upstream.servers.span().start), message));
            }
            if let Some(bad) = servers.iter().find(|addr| addr.port() == 0 || addr.ip().is_unspecified()) {
                return Err((Some(upstream.servers.span().start), format!("`{bad}` is not a server's address")));
            }
        }
        for (number, listener) in self.listeners.iter().enumerate() {
            let (address, at) = (*listener.address.get_ref(), listener.address.span().start);
            let taken = |other: &ListenerConfig| *other.address.get_ref() == address && address.port() != 0;
            if self.listeners[..number].iter().any(taken) {
                return Err((Some(at), format!("a second listener on {address}")));
            }
            if self.upstream_of(listener).is_none() {
                let at = listener.upstream.span().start;
                return Err((Some(at), format!("no upstream is named `{}`", listener.upstream.get_ref())));
            }
            if self.is_loop(listener) {
                let at = listener.upstream.span().start;
                let message = format!(
                    "upstream `{}` leads back to this listener: a request would go round for ever",
                    listener.upstream.get_ref()
                );
                return Err((Some(at), message));
            }
        }
        Ok(())
    }

    /// Returns warnings: valid settings that are probably mistakes.
    pub(super) fn doubts(&self) -> Vec<Finding> {
        let mut doubts = Vec::new();
        for upstream in &self.upstreams {
            let name = upstream.name.get_ref();
            let used = self.listeners.iter().any(|listener| listener.upstream.get_ref() == name);
            if !used {
                doubts.push((Some(upstream.name.span().start), format!("no listener uses upstream `{name}`")));
            }
            if let Some(check) = upstream.health_check.as_ref().filter(|check| check.timeout > check.interval) {
                let (timeout, interval) = (check.timeout, check.interval);
                let message = format!(
                    "upstream `{name}`: a check may take {timeout:?}, so a server that is silent is checked less often \
                     than each {interval:?}: choose a shorter timeout or a longer interval"
                );
                doubts.push((Some(upstream.name.span().start), message));
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

    /// Returns true if a request could come back to its listener.
    fn is_loop(&self, first: &ListenerConfig) -> bool {
        let mut reached: Vec<&ListenerConfig> = vec![first];
        let mut at = 0;
        while let Some(listener) = reached.get(at) {
            at += 1;
            let upstream = self.upstream_of(listener).map(|number| &self.upstreams[number]);
            let servers = upstream.map_or(&[][..], |upstream: &UpstreamConfig| upstream.servers.get_ref());
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
