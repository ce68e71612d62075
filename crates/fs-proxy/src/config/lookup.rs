//! Looks up names of servers in /etc/hosts and the DNS: their addresses, services (SRV, RFC 2782),
//! and for how long both hold.

use hickory_resolver::config::ResolveHosts;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::{Hosts, Resolver, TokioResolver};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The addresses of a name.
pub(super) struct Found<T> {
    pub(super) what: Vec<T>,
    /// The time to live of the records. `None`: they have none.
    pub(super) valid_for: Option<Duration>,
    /// The error of the look-up of the other addresses, if only those of IPv4 or of IPv6 were found.
    pub(super) failed: Option<String>,
}

/// A server of a service.
pub(super) struct Service {
    /// A whole name, which ends with a dot.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) weight: u16,
    pub(super) priority: u16,
}

/// Returns the addresses of a name. Blocks.
///
/// # Errors
/// If there are none, or no name server answers.
pub(super) fn addresses(name: &str) -> Result<Found<IpAddr>, String> {
    // As in the C library, names in the file are not looked up in the DNS.
    if let Some(addresses) = in_hosts_file(name.trim_end_matches('.')) {
        return Ok(Found { what: addresses, valid_for: None, failed: None });
    }
    run(async {
        let resolver = resolver()?;
        let found = resolver.lookup_ip(name).await.map_err(|error| error.to_string())?;
        let (mut what, mut end) = (found.iter().collect::<Vec<IpAddr>>(), found.valid_until());
        let other = match (what.iter().any(IpAddr::is_ipv4), what.iter().any(IpAddr::is_ipv6)) {
            (true, true) => return Ok(Found { what, valid_for: until(end), failed: None }),
            (true, false) => RecordType::AAAA,
            (false, _) => RecordType::A,
        };
        // The resolver does not say whether the other query found nothing, or failed.
        let mut name = found.query().name().clone();
        name.set_fqdn(true);
        let failed = match resolver.lookup(name, other).await {
            Ok(found) => {
                what.extend(found.answers().iter().filter_map(|record| record.data.ip_addr()));
                end = end.min(found.valid_until());
                None
            }
            Err(error) if error.is_no_records_found() => None,
            Err(error) => Some(error.to_string()),
        };
        Ok(Found { what, valid_for: until(end), failed })
    })
}

/// Returns the servers of a service such as `_http._tcp.a.example`. Blocks.
///
/// # Errors
/// As [`addresses`].
pub(super) fn services(name: &str) -> Result<Found<Service>, String> {
    run(async {
        let found = resolver()?.lookup(name, RecordType::SRV).await.map_err(|error| error.to_string())?;
        let service = |data: &RData| match data {
            // RFC 2782: a service that is decidedly not there.
            RData::SRV(record) if record.target.is_root() => None,
            RData::SRV(record) => Some(Service {
                host: record.target.to_utf8(),
                port: record.port,
                weight: record.weight,
                priority: record.priority,
            }),
            _ => None,
        };
        let what: Vec<Service> = found.answers().iter().filter_map(|record| service(&record.data)).collect();
        match what.is_empty() {
            true => Err("no such service".into()),
            false => Ok(Found { what, valid_for: until(found.valid_until()), failed: None }),
        }
    })
}

/// Returns the addresses that /etc/hosts has for a name.
fn in_hosts_file(name: &str) -> Option<Vec<IpAddr>> {
    let (hosts, name) = (Hosts::from_system().ok()?, Name::from_utf8(name).ok()?);
    let found = [RecordType::A, RecordType::AAAA]
        .into_iter()
        .filter_map(|kind| hosts.lookup_static_host(&Query::query(name.clone(), kind)));
    let addresses: Vec<IpAddr> = found
        .flat_map(|found| found.answers().iter().filter_map(|record| record.data.ip_addr()).collect::<Vec<_>>())
        .collect();
    (!addresses.is_empty()).then_some(addresses)
}

/// Returns a resolver with the current files of this host. It keeps nothing: what it finds is used
/// for as long as it may be.
fn resolver() -> Result<TokioResolver, String> {
    let mut builder = Resolver::builder_tokio().map_err(|error| format!("/etc/resolv.conf: {error}"))?;
    builder.options_mut().use_hosts_file = ResolveHosts::Never;
    builder.build().map_err(|error| error.to_string())
}

fn until(end: Instant) -> Option<Duration> {
    Some(end.saturating_duration_since(Instant::now()))
}

/// Runs a lookup in a thread of its own, because this one may be a runtime's.
fn run<T: Send>(lookup: impl Future<Output = Result<T, String>> + Send) -> Result<T, String> {
    let in_runtime = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(lookup)
    };
    std::thread::scope(|scope| scope.spawn(in_runtime).join()).unwrap_or_else(|_| Err("the lookup failed".into()))
}
