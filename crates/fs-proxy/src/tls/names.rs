//! The certificate for the name that a client asks for (SNI, RFC 6066 3).

use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::HashMap;
use std::sync::Arc;
use x509_parser::prelude::{GeneralName, X509Certificate};

/// A listener's certificates by the names in them. The first one serves all other names, and
/// clients that name none.
#[derive(Debug, Default)]
pub(super) struct ByName {
    first: Option<Arc<CertifiedKey>>,
    /// Names in lower case.
    exact: HashMap<String, Arc<CertifiedKey>>,
    /// Wildcard names without `*.`, which match names with one more label.
    wildcards: HashMap<String, Arc<CertifiedKey>>,
}

impl ByName {
    /// Adds a certificate. If several have a name, the first serves it.
    pub(super) fn add(&mut self, identity: CertifiedKey) {
        let identity = Arc::new(identity);
        for name in names(&identity) {
            let (map, name) = match name.strip_prefix("*.") {
                Some(parent) => (&mut self.wildcards, parent.to_owned()),
                None => (&mut self.exact, name),
            };
            map.entry(name).or_insert_with(|| identity.clone());
        }
        self.first.get_or_insert(identity);
    }

    fn of(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let found = name.and_then(|name| {
            let name = name.to_ascii_lowercase();
            let parent = || name.split_once('.').and_then(|(_, parent)| self.wildcards.get(parent));
            self.exact.get(&name).or_else(parent)
        });
        found.or(self.first.as_ref()).cloned()
    }
}

/// Parses a certificate. `None` if it is malformed: rustls then decides about it.
pub(super) fn parsed<'a>(der: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    x509_parser::parse_x509_certificate(der).ok().map(|(_, parsed)| parsed)
}

/// Returns a certificate's DNS names, in lower case.
fn names(identity: &CertifiedKey) -> Vec<String> {
    let Some(parsed) = identity.end_entity_cert().ok().and_then(parsed) else { return Vec::new() };
    let alternative = parsed.subject_alternative_name().ok().flatten();
    let names = alternative.iter().flat_map(|extension| &extension.value.general_names);
    let dns = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    dns.collect()
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.of(hello.server_name())
    }
}
